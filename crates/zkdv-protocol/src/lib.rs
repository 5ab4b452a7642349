//! Records, codec, signing, transcript writer and streaming verifier of ZKDV.

pub mod cbor;
pub mod chain;
pub mod cose;
pub mod key;
pub mod limits;
pub mod record;
