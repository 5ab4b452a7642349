//! The sorted list of window hashes.

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

use super::Matrix;
use crate::rolling::Roller;
use crate::tree::{self, TreeKind};
use crate::{Digest, HashError};

/// Numbers in a block of the list; the last block may be shorter.
pub const BLOCK_NUMBERS: usize = 64;

/// Windows that one thread hashes at a time.
const WINDOWS_OF_A_TASK: usize = 4096;

/// Bytes of a number.
pub(super) const NUMBER_BYTES: usize = 16;

/// Every different window hash plus one, in ascending order between the sentinels 0 and 2^128 - 1.
pub(super) struct SortedList(Vec<u128>);

impl SortedList {
    pub(super) fn new(matrix: &Matrix<'_>, roller: &Roller) -> Self {
        let per_row = roller.windows_in(matrix.width);
        // There are at most as many windows as words, which are in memory. The first number stays the lower sentinel.
        let mut numbers = vec![0; matrix.rows * per_row + 2];
        if let Some(last) = numbers.last_mut() {
            *last = u128::MAX;
        }
        if per_row > 0 {
            let rows = matrix.words.par_chunks_exact(matrix.width);
            let outs = numbers[1..]
                .par_chunks_exact_mut(per_row)
                .with_min_len(WINDOWS_OF_A_TASK.div_ceil(per_row));
            outs.zip(rows).for_each(|(out, row)| {
                out.iter_mut()
                    .zip(roller.hashes(row))
                    .for_each(|(out, hash)| *out = hash + 1);
            });
        }
        numbers.par_sort_unstable();
        numbers.dedup();
        Self(numbers)
    }

    pub(super) fn window_count(&self) -> u64 {
        (self.0.len() - 2) as u64
    }

    pub(super) fn root(&self) -> Digest {
        tree::root_of(TreeKind::BatchWindows, self.block_count(), &|block| {
            self.block_node(block)
        })
    }

    /// The opening of a block: its bytes and its path.
    pub(super) fn open(&self, block: usize) -> Result<(Vec<u8>, Vec<Digest>), HashError> {
        let path = tree::open_of(TreeKind::BatchWindows, self.block_count(), block, &|block| {
            self.block_node(block)
        })?;
        Ok((self.block(block).to_vec(), path))
    }

    /// Where the number stands, or would stand.
    pub(super) fn find(&self, number: u128) -> Result<usize, usize> {
        self.0.binary_search(&number)
    }

    fn block_count(&self) -> usize {
        self.0.len().div_ceil(BLOCK_NUMBERS)
    }

    fn block(&self, block: usize) -> &[u8] {
        let start = block * BLOCK_NUMBERS;
        bytemuck::cast_slice(&self.0[start..self.0.len().min(start + BLOCK_NUMBERS)])
    }

    fn block_node(&self, block: usize) -> Digest {
        tree::leaf_digest(TreeKind::BatchWindows, self.block(block))
    }
}
