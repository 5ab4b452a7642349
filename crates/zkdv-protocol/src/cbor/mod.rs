//! Deterministic CBOR (RFC 8949 §4.2.1), as the transcript uses it.
//!
//! [`decode`] checks bytes strictly, without allocating, and gives an [`Item`]: a view that reads from them. [`Encoder`] and
//! [`Value`] write. Whatever [`decode`] accepts, the encoder writes back byte for byte.

mod encode;
mod error;
mod head;
mod item;
mod scan;
mod value;

pub use encode::Encoder;
pub use error::{EncodingError, EncodingErrorKind};
pub use item::{Array, Item, Map};
pub use scan::{decode, measure};
pub use value::{Key, Value};

pub(crate) use head::Head;
pub(crate) use item::quote;

/// The head that `bytes` start with and its length, where it is the shortest.
pub(crate) fn read_head(bytes: &[u8]) -> Option<(Head, usize)> {
    head::read(bytes, 0).ok()
}

/// How many arrays and maps may stand inside one another; the outermost counts as 1.
pub const MAX_DEPTH: usize = 16;
