//! Limits that are part of the format.

/// The longest record or receipt, in bytes.
pub const MAX_RECORD_BYTES: usize = 16 << 20;
/// The longest name (of a leaf, a scalar, a file …), in bytes.
pub const MAX_NAME_BYTES: usize = 1024;
/// The longest name of a run, in bytes.
pub const MAX_RUN_NAME_BYTES: usize = 256;
/// The most leaves in a tree; also the most aliases, batch leaves, scalars, platforms, files or values that one record may list.
pub const MAX_LEAVES: usize = 65_536;
/// The most dimensions of a leaf.
pub const MAX_DIMENSIONS: usize = 32;
/// The most program records in a transcript.
pub const MAX_PROGRAMS: usize = 4096;
/// The most bytes that the files of all program records may have together: a verifier hashes them.
pub const MAX_PROGRAM_BYTES: u64 = 4 << 30;
/// The longest replay snapshot interval, in updates.
pub const MAX_REPLAY_SNAPSHOT_INTERVAL: u64 = 65_536;
/// The most updates in flight.
pub const MAX_IN_FLIGHT: u64 = 1024;
/// The longest encoding of an update's scalars, in bytes.
pub const MAX_SCALARS_BYTES: usize = 256;
/// The longest value that an edit carries, in bytes.
pub const MAX_EDIT_VALUE_BYTES: usize = 64;
/// The most shards of a leaf.
pub const MAX_SHARDS: usize = zkdv_hash::sharding::MAX_SHARDS;
/// The longest chunk of an opening, in bytes: a BLAKE3 chunk.
pub const MAX_CHUNK_BYTES: usize = 1024;
/// The longest element of a leaf, in bytes: a complex128.
pub const MAX_ELEMENT_BYTES: usize = 16;
/// The longest proof of membership, in bytes.
pub const MAX_MEMBERSHIP_BYTES: usize = 16 << 20;
/// The longest block of a list of window hashes, in bytes: 128 numbers.
pub const MAX_BLOCK_BYTES: usize = 1024;
/// The longest path of an opening: a leaf in a full tree, or a chunk in a leaf of 2^64 bytes.
pub const MAX_PATH: usize = 64;
