//! Keys: the user's long-lived identity, the short-lived ones of sessions, and signers that live elsewhere.

mod identity;
mod public;
mod session;
mod signer;

pub use identity::{IdentityKey, KeyError};
pub use public::PublicKey;
pub use session::SessionKey;
pub use signer::{ExternalSigner, Signer, SignerError};
