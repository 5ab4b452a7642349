//! Records, codec, signing, transcript writer and streaming verifier of ZKDV.
//!
//! [`file::TranscriptFile`] writes, [`verify::verify`] verifies; [`record`] is what both have in common. The README beside the
//! sources shows what flows through them.

pub mod cbor;
pub mod chain;
pub mod cose;
pub mod file;
pub mod key;
pub mod limits;
pub mod membership;
pub mod reader;
pub mod record;
pub mod report;
#[cfg(feature = "testing")]
pub mod testing;
pub mod verify;
pub mod violation;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
