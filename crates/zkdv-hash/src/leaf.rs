//! Digests of leaves (schemes `blake3-256` and `zkdv-sharded-leaf-1`).

use std::cmp::Ordering;
use std::sync::LazyLock;

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

use crate::derive::Context;
use crate::{Digest, HashError};

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

/// A part of a leaf that lies on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Start and stop in every dimension of the leaf, in elements.
    pub ranges: Vec<(u64, u64)>,
    /// Plain digest of the shard's own elements in C order.
    pub digest: Digest,
}

/// The digest of a leaf that is spread over devices.
///
/// Shards are ordered by their starts and disjoint; a shard that is held more than once appears once.
///
/// # Errors
/// Where a shard's ranges are not those of a leaf with so many `dimensions`, run backwards, are out of order or overlap
/// those of another shard.
pub fn sharded_digest(dimensions: u64, shards: &[Shard]) -> Result<Digest, HashError> {
    static CONTEXT: LazyLock<Context> = LazyLock::new(|| Context::new("zkdv 1 sharded leaf"));
    check_shards(dimensions, shards)?;
    let mut hasher = CONTEXT.hasher();
    hasher.update(&dimensions.to_le_bytes());
    hasher.update(&(shards.len() as u64).to_le_bytes());
    for shard in shards {
        for (start, stop) in &shard.ranges {
            hasher.update(&start.to_le_bytes());
            hasher.update(&stop.to_le_bytes());
        }
        hasher.update(shard.digest.as_bytes());
    }
    Ok(hasher.finalize().into())
}

fn check_shards(dimensions: u64, shards: &[Shard]) -> Result<(), HashError> {
    for (index, shard) in shards.iter().enumerate() {
        if shard.ranges.len() as u64 != dimensions {
            return Err(HashError::ShardDimensions {
                shard: index,
                expected: dimensions,
                got: shard.ranges.len(),
            });
        }
        if let Some(dimension) = shard.ranges.iter().position(|(start, stop)| start > stop) {
            return Err(HashError::ShardRange {
                shard: index,
                dimension,
            });
        }
    }
    for (index, pair) in shards.windows(2).enumerate() {
        if starts(&pair[0]).cmp(starts(&pair[1])) != Ordering::Less {
            return Err(HashError::ShardOrder { shard: index + 1 });
        }
    }
    for (first, shard) in shards.iter().enumerate() {
        // Only shards that start before this one stops in the leading dimension can share elements with it.
        let stop = shard.ranges.first().map_or(u64::MAX, |range| range.1);
        let rest = shards.iter().enumerate().skip(first + 1);
        let near = rest.take_while(|(_, other)| other.ranges.first().is_none_or(|range| range.0 < stop));
        for (second, other) in near {
            if shard
                .ranges
                .iter()
                .zip(&other.ranges)
                .all(|(a, b)| a.0.max(b.0) < a.1.min(b.1))
            {
                return Err(HashError::ShardOverlap { first, second });
            }
        }
    }
    Ok(())
}

fn starts(shard: &Shard) -> impl Iterator<Item = u64> {
    shard.ranges.iter().map(|range| range.0)
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
