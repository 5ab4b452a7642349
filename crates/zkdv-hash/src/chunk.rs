//! Openings of bytes inside a leaf.
//!
//! BLAKE3 is itself a tree over chunks of 1024 bytes, so a chunk can be shown to stand in a plain digest by the
//! chaining values beside its path to the top (BLAKE3 specification, section 2.1).

use blake3::hazmat::{ChainingValue, HasherExt, Mode, merge_subtrees_non_root, merge_subtrees_root};
use blake3::{CHUNK_LEN, Hasher};

use crate::tree::{Side, sides};
use crate::{Digest, HashError, leaf};

/// Bytes of a chunk; the last one of a leaf may be shorter, and an empty leaf has one empty chunk.
pub const CHUNK_BYTES: usize = CHUNK_LEN;

/// What shows that a chunk stands in a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkOpening {
    /// Index of the chunk.
    pub chunk: u64,
    /// The bytes of the chunk.
    pub bytes: Vec<u8>,
    /// Chaining values beside the path to the top, from the bottom up.
    pub chain: Vec<Digest>,
}

/// Opens one chunk of a leaf's bytes.
///
/// # Errors
/// [`HashError::Index`] where the leaf has no such chunk.
pub fn open(bytes: &[u8], chunk: u64) -> Result<ChunkOpening, HashError> {
    let count = chunk_count(bytes.len() as u64);
    if chunk >= count {
        return Err(HashError::Index {
            what: "chunk",
            index: chunk,
            count,
        });
    }
    let mut inside = bytes;
    let mut offset = 0;
    let mut chain = Vec::new();
    let position = chunk * CHUNK_BYTES as u64;
    while inside.len() > CHUNK_BYTES {
        let (left, right) = leaf::split(inside);
        let middle = offset + left.len() as u64;
        let beside;
        if position < middle {
            beside = leaf::chaining_value(right, middle);
            inside = left;
        } else {
            beside = leaf::chaining_value(left, offset);
            inside = right;
            offset = middle;
        }
        chain.push(Digest::from_bytes(beside));
    }
    chain.reverse();
    Ok(ChunkOpening {
        chunk,
        bytes: inside.to_vec(),
        chain,
    })
}

/// Whether `bytes` are chunk number `chunk` of the leaf with this plain digest, which has `length` bytes.
///
/// The chunk and the chain must be exactly as long as `length` and `chunk` call for. The length itself is what the schema
/// says: an opening shows it only where the chunk is the last, and shows the index and bytes of the chunk in any case.
pub fn verify(digest: &Digest, length: u64, chunk: u64, bytes: &[u8], chain: &[Digest]) -> bool {
    let count = chunk_count(length);
    if chunk >= count {
        return false;
    }
    let offset = chunk * CHUNK_BYTES as u64;
    if bytes.len() as u64 != (length - offset).min(CHUNK_BYTES as u64) {
        return false;
    }
    let Some((last, inner)) = chain.split_last() else {
        return count == 1 && Digest::from(blake3::hash(bytes)) == *digest;
    };
    let mut sides = sides(count, chunk);
    if count == 1 {
        return false;
    }
    let mut node = Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root();
    for sibling in inner {
        let Some(side) = sides.next() else { return false };
        let (left, right) = pair(side, &node, sibling);
        node = merge_subtrees_non_root(left, right, Mode::Hash);
    }
    let (Some(side), None) = (sides.next(), sides.next()) else {
        return false;
    };
    let (left, right) = pair(side, &node, last);
    Digest::from(merge_subtrees_root(left, right, Mode::Hash)) == *digest
}

fn pair<'a>(side: Side, node: &'a ChainingValue, sibling: &'a Digest) -> (&'a ChainingValue, &'a ChainingValue) {
    match side {
        Side::Left => (sibling.as_bytes(), node),
        Side::Right => (node, sibling.as_bytes()),
    }
}

fn chunk_count(length: u64) -> u64 {
    length.div_ceil(CHUNK_BYTES as u64).max(1)
}
