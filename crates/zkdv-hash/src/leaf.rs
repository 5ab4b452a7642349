//! Digests of leaves (scheme `blake3-256`).

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

use crate::Digest;

/// Subtrees up to this length are hashed by one thread.
const PARALLEL_BYTES: usize = 128 * 1024;

/// The digest of a leaf that lies in one piece: plain BLAKE3-256 of its elements as little-endian bytes in C order.
///
/// Large leaves are spread over the current rayon thread pool.
pub fn digest(bytes: &[u8]) -> Digest {
    if bytes.len() <= PARALLEL_BYTES {
        return blake3::hash(bytes).into();
    }
    let (left, right) = children(bytes, 0);
    merge_subtrees_root(&left, &right, Mode::Hash).into()
}

/// The chaining values of the two subtrees under the top of `bytes`, which has more than one chunk and starts
/// `offset` bytes into the leaf.
pub(crate) fn children(bytes: &[u8], offset: u64) -> (ChainingValue, ChainingValue) {
    let (left, right) = split(bytes);
    let right_offset = offset + left.len() as u64;
    if bytes.len() > PARALLEL_BYTES {
        rayon::join(|| chaining_value(left, offset), || chaining_value(right, right_offset))
    } else {
        (chaining_value(left, offset), chaining_value(right, right_offset))
    }
}

/// The chaining value of a subtree that is not the whole leaf and not empty.
pub(crate) fn chaining_value(bytes: &[u8], offset: u64) -> ChainingValue {
    if bytes.len() <= PARALLEL_BYTES {
        return Hasher::new().set_input_offset(offset).update(bytes).finalize_non_root();
    }
    let (left, right) = children(bytes, offset);
    merge_subtrees_non_root(&left, &right, Mode::Hash)
}

/// The bytes under the left and the right child of a node over more than one chunk.
pub(crate) fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    // The left length is below the whole length, which is a `usize`.
    bytes.split_at(usize::try_from(left_subtree_len(bytes.len() as u64)).unwrap_or(bytes.len()))
}
