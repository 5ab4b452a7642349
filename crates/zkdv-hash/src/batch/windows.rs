//! The sorted list of window hashes.

use std::sync::Mutex;

use super::{Matrix, sort};
use crate::rolling::{MODULUS_BITS, Roller};
use crate::tree::{self, TreeKind};
use crate::{Digest, HashError};

/// Numbers in a block of the list; the last block may be shorter.
pub const BLOCK_NUMBERS: usize = 128;

/// Bytes of a number.
pub(super) const NUMBER_BYTES: usize = 8;

/// Bytes of memory that are kept for the next list. A list of a batch of usual size costs as much again where the
/// operating system has to clear memory for it each time.
const KEPT_BYTES: usize = 32 << 20;

/// Every different window hash plus one, in ascending order between the sentinels 0 and 2^64 - 1.
pub(super) struct SortedList {
    numbers: Vec<u64>,
    /// Room to sort in.
    spare: Vec<u64>,
}

/// The memory of a list that is no longer needed.
static KEPT: Mutex<Option<SortedList>> = Mutex::new(None);

impl SortedList {
    pub(super) fn new(matrix: &Matrix<'_>, roller: &Roller) -> Self {
        // Whoever finds the place empty, or in use, allocates. A process that was forked may find it in use for ever.
        let kept = KEPT.try_lock().ok().and_then(|mut kept| kept.take());
        let mut list = kept.unwrap_or(Self {
            numbers: Vec::new(),
            spare: Vec::new(),
        });
        // There are at most as many windows as words, which are in memory.
        list.numbers
            .resize(matrix.rows * roller.windows_in(matrix.width) + 2, 0);
        if let [lowest, inside @ .., highest] = list.numbers.as_mut_slice() {
            (*lowest, *highest) = (0, u64::MAX);
            roller.fill_successors(matrix.words, matrix.width, inside);
        }
        // A hash plus one is at most the modulus.
        sort::sort_between(&mut list.numbers, &mut list.spare, MODULUS_BITS);
        list
    }

    pub(super) fn window_count(&self) -> u64 {
        (self.numbers.len() - 2) as u64
    }

    pub(super) fn root(&self) -> Digest {
        tree::root_of_equal(
            TreeKind::BatchWindows,
            bytemuck::cast_slice(&self.numbers),
            BLOCK_NUMBERS * NUMBER_BYTES,
        )
    }

    /// The opening of a block: its bytes and its path.
    pub(super) fn open(&self, block: usize) -> Result<(Vec<u8>, Vec<Digest>), HashError> {
        let path = tree::open_of(TreeKind::BatchWindows, self.block_count(), block, &|block| {
            self.block_node(block)
        })?;
        Ok((self.block(block).to_vec(), path))
    }

    /// Where the number stands, or would stand.
    pub(super) fn find(&self, number: u64) -> Result<usize, usize> {
        self.numbers.binary_search(&number)
    }

    fn block_count(&self) -> usize {
        self.numbers.len().div_ceil(BLOCK_NUMBERS)
    }

    fn block(&self, block: usize) -> &[u8] {
        let start = block * BLOCK_NUMBERS;
        bytemuck::cast_slice(&self.numbers[start..self.numbers.len().min(start + BLOCK_NUMBERS)])
    }

    fn block_node(&self, block: usize) -> Digest {
        tree::leaf_digest(TreeKind::BatchWindows, self.block(block))
    }
}

impl Drop for SortedList {
    fn drop(&mut self) {
        let bytes = (self.numbers.capacity() + self.spare.capacity()) * NUMBER_BYTES;
        if bytes <= KEPT_BYTES
            && let Ok(mut kept) = KEPT.try_lock()
            && kept.is_none()
        {
            *kept = Some(Self {
                numbers: std::mem::take(&mut self.numbers),
                spare: std::mem::take(&mut self.spare),
            });
        }
    }
}
