//! Records, codec, signing, transcript writer and streaming verifier of ZKDV.

pub mod cbor;
pub mod chain;
pub mod cose;
pub mod file;
pub mod key;
pub mod limits;
pub mod reader;
pub mod record;
pub mod report;
#[cfg(feature = "testing")]
pub mod testing;
pub mod verify;
pub mod violation;
