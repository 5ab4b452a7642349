//! The sorted list of window hashes.

use rayon::slice::ParallelSliceMut;

use super::Matrix;
use crate::rolling::Roller;
use crate::tree::{self, TreeKind};
use crate::{Digest, HashError};

/// Numbers in a block of the list; the last block may be shorter.
pub const BLOCK_NUMBERS: usize = 64;

/// Bytes of a number.
pub(super) const NUMBER_BYTES: usize = 16;

/// Every different window hash plus one, in ascending order between the sentinels 0 and 2^128 - 1.
pub(super) struct SortedList(Vec<u128>);

impl SortedList {
    pub(super) fn new(matrix: &Matrix<'_>, roller: &Roller, rolling_window: usize) -> Self {
        let per_row = (matrix.width + 1).saturating_sub(rolling_window);
        let mut numbers = Vec::with_capacity(matrix.rows.saturating_mul(per_row) + 2);
        numbers.push(0);
        for row in matrix.rows_of_words() {
            numbers.extend(roller.hashes(row).map(|hash| hash + 1));
        }
        numbers.push(u128::MAX);
        numbers.par_sort_unstable();
        numbers.dedup();
        Self(numbers)
    }

    pub(super) fn window_count(&self) -> u64 {
        (self.0.len() - 2) as u64
    }

    pub(super) fn root(&self) -> Digest {
        tree::root_of(TreeKind::BatchWindows, self.block_count(), &|block| self.block_node(block))
    }

    /// The opening of a block: its bytes and its path.
    pub(super) fn open(&self, block: usize) -> Result<(Vec<u8>, Vec<Digest>), HashError> {
        let path =
            tree::open_of(TreeKind::BatchWindows, self.block_count(), block, &|block| self.block_node(block))?;
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
