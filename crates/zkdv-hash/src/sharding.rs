//! Leaves that are spread over devices (scheme `zkdv-sharded-leaf-1`): where each element lies, and the leaf's digest.

use std::ops::Range;
use std::sync::LazyLock;

use crate::derive::Context;
use crate::{Digest, HashError, leaf};

/// The most shards of a leaf.
pub const MAX_SHARDS: usize = 65_536;

/// How a leaf is cut: shards of one extent in every dimension, of which the last along a dimension may be shorter.
///
/// Shards are counted in C order, which is the order of their starts; a shard that several devices hold counts once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharding {
    shape: Vec<u64>,
    extents: Vec<u64>,
    count: u64,
}

/// Where an element of a leaf lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// The shard that holds it.
    pub shard: u64,
    /// Its index among the shard's own elements, in C order.
    pub element: u64,
}

impl Sharding {
    /// A leaf of this shape in shards of these extents.
    ///
    /// # Errors
    /// Where there is not one extent for each dimension, or one that is 0 or above its dimension; where the leaf stays
    /// whole, which is no sharding, nor has a leaf without elements one; where there are more than [`MAX_SHARDS`]; and for
    /// shapes with more elements than 64 bits count.
    pub fn new(shape: &[u64], extents: &[u64]) -> Result<Self, HashError> {
        let refused = |reason| HashError::Sharding {
            shape: shape.to_vec(),
            extents: extents.to_vec(),
            reason,
        };
        if shape.len() != extents.len() {
            return Err(refused("there is one extent for each dimension"));
        }
        let mut pairs = shape.iter().zip(extents);
        if pairs.any(|(&size, &extent)| extent == 0 || extent > size) {
            return Err(refused("an extent is between 1 and its dimension"));
        }
        if shape.iter().copied().try_fold(1_u64, u64::checked_mul).is_none() {
            return Err(refused("the leaf has 2^64 elements or more"));
        }
        let count = shape
            .iter()
            .zip(extents)
            .try_fold(1_u64, |count, (size, extent)| count.checked_mul(size.div_ceil(*extent)));
        match count {
            Some(1) => Err(refused("the leaf stays whole, and is committed as it is")),
            Some(count) if count <= MAX_SHARDS as u64 => Ok(Self {
                shape: shape.to_vec(),
                extents: extents.to_vec(),
                count,
            }),
            _ => Err(refused("a leaf has at most 65536 shards")),
        }
    }

    /// The shape of the leaf.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The extents of a shard.
    pub fn extents(&self) -> &[u64] {
        &self.extents
    }

    /// How many shards there are.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Start and stop of a shard in every dimension; none where there is no such shard.
    pub fn ranges(&self, shard: u64) -> Option<Vec<Range<u64>>> {
        if shard >= self.count {
            return None;
        }
        let mut rest = shard;
        let mut ranges = Vec::with_capacity(self.shape.len());
        for (&size, &extent) in self.shape.iter().zip(&self.extents).rev() {
            let parts = size.div_ceil(extent);
            let start = rest % parts * extent;
            rest /= parts;
            ranges.push(start..start + extent.min(size - start));
        }
        ranges.reverse();
        Some(ranges)
    }

    /// How many elements a shard has; none where there is no such shard.
    pub fn elements(&self, shard: u64) -> Option<u64> {
        let ranges = self.ranges(shard)?;
        Some(ranges.iter().map(|range| range.end - range.start).product())
    }

    /// Where an element of the leaf lies, counted in C order; none where there is no such element.
    pub fn locate(&self, element: u64) -> Option<Located> {
        let (mut rest, mut shard, mut inside) = (element, 0, 0);
        let (mut shards, mut elements) = (1, 1);
        for (&size, &extent) in self.shape.iter().zip(&self.extents).rev() {
            let position = rest % size;
            rest /= size;
            let part = position / extent;
            shard += part * shards;
            inside += position % extent * elements;
            shards *= size.div_ceil(extent);
            // The shard's own extent, which is shorter at the end of the dimension.
            elements *= extent.min(size - part * extent);
        }
        (rest == 0).then_some(Located { shard, element: inside })
    }

    /// The digest of the leaf, from the plain digest of each shard's own elements in C order.
    ///
    /// # Errors
    /// Where there is not one digest for each shard.
    pub fn digest(&self, shards: &[Digest]) -> Result<Digest, HashError> {
        static CONTEXT: LazyLock<Context> = LazyLock::new(|| Context::new("zkdv 1 sharded leaf"));
        if shards.len() as u64 != self.count {
            return Err(HashError::ShardCount {
                expected: self.count,
                got: shards.len(),
            });
        }
        let mut hasher = CONTEXT.hasher();
        hasher.update(&(self.shape.len() as u64).to_le_bytes());
        hasher.update(&self.count.to_le_bytes());
        for (index, shard) in (0..).zip(shards) {
            for range in self.ranges(index).into_iter().flatten() {
                hasher.update(&range.start.to_le_bytes());
                hasher.update(&range.end.to_le_bytes());
            }
            hasher.update(shard.as_bytes());
        }
        Ok(hasher.finalize().into())
    }

    /// The plain digests of the shards of a leaf whose elements, in C order, are `bytes`.
    ///
    /// # Errors
    /// Where `bytes` are not all elements of `element_bytes` bytes each.
    pub fn shard_digests(&self, bytes: &[u8], element_bytes: usize) -> Result<Vec<Digest>, HashError> {
        let elements: u64 = self.shape.iter().product();
        if elements.checked_mul(element_bytes as u64) != Some(bytes.len() as u64) {
            return Err(HashError::LeafBytes {
                elements,
                element_bytes,
                got: bytes.len(),
            });
        }
        let digests = (0..self.count).map(|shard| leaf::digest(&self.shard_bytes(shard, bytes, element_bytes)));
        Ok(digests.collect())
    }

    /// The bytes of a shard that is there, of a leaf that is as long as it should be.
    fn shard_bytes(&self, shard: u64, bytes: &[u8], element_bytes: usize) -> Vec<u8> {
        let ranges = self.ranges(shard).unwrap_or_default();
        let Some((columns, leading)) = ranges.split_last() else {
            return bytes.to_vec();
        };
        let mut found = Vec::new();
        let mut position: Vec<u64> = leading.iter().map(|range| range.start).collect();
        loop {
            let row = position
                .iter()
                .chain([&columns.start])
                .zip(&self.shape)
                .fold(0, |index, (place, size)| index * size + place);
            #[expect(clippy::cast_possible_truncation, reason = "elements of an array in memory")]
            let run = [row, columns.end - columns.start].map(|elements| elements as usize * element_bytes);
            found.extend_from_slice(&bytes[run[0]..run[0] + run[1]]);
            // The next row, as an odometer counts.
            let has_next = (0..leading.len()).rev().any(|wheel| {
                position[wheel] += 1;
                let has_more = position[wheel] < leading[wheel].end;
                if !has_more {
                    position[wheel] = leading[wheel].start;
                }
                has_more
            });
            if !has_next {
                return found;
            }
        }
    }
}
