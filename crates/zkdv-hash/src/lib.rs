//! Digests, Merkle trees, rolling hashes, probes and challenges of ZKDV.
//!
//! Everything here is a pure function of its arguments: no clock, no randomness, no files. The bytes are fixed by the
//! page "Commitments" of the protocol; the schemes are named in the root record of every transcript.
//!
//! | module | what it commits to or draws |
//! |---|---|
//! | [`leaf`] | one array in memory |
//! | [`sharding`] | one array that is spread over devices |
//! | [`chunk`] | one kilobyte inside a leaf |
//! | [`tree`] | a list of leaves |
//! | [`batch`] | a batch of training data, its rows and its windows |
//! | [`rolling`] | the hash that locates a window |
//! | [`probe`] | a small projection of a leaf |
//! | [`commit`] | digests and probes of many leaves in one pass over memory |
//! | [`challenge`] | which update is checked, and which coordinates |
//!
//! Work is spread over the current rayon thread pool; no result depends on the number of its threads.

#[cfg(not(target_endian = "little"))]
compile_error!("zkdv-hash hashes arrays as they lie in memory, and committed bytes are little-endian");

pub mod batch;
pub mod challenge;
pub mod chunk;
pub mod commit;
mod derive;
mod digest;
pub mod dtype;
mod error;
pub mod leaf;
mod messages;
pub mod probe;
pub mod rolling;
pub mod sharding;
pub mod tree;

pub use digest::Digest;
pub use dtype::Dtype;
pub use error::HashError;
