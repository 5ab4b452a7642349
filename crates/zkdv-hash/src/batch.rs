//! Commitments to batches of training data (scheme `zkdv-batch-1`), and what can be shown about them.
//!
//! A batch is a matrix of 32-bit words. It is committed to as a whole, by rows, and by the sorted rolling hashes of all
//! windows of consecutive words in its rows.

mod openings;
mod sort;
mod windows;

use std::sync::LazyLock;

use crate::derive::Context;
use crate::messages::Mode;
use crate::rolling::{Base, Roller};
use crate::tree::{self, TreeKind};
use crate::{Digest, HashError, leaf, messages};

pub use openings::{
    AbsenceOpening, BlockOpening, RowOpening, WindowOpening, open_absent, open_absent_part, open_row, open_window,
    verify_absent, verify_row, verify_window,
};
pub use windows::BLOCK_NUMBERS;
use windows::SortedList;

/// Rows that a batch without words may have.
const EMPTY_ROWS: usize = 65_536;

/// Words that one thread commits to faster than it hands them over to others.
const SMALL_WORDS: usize = 8192;

/// Rows of which the tree is hashed by one thread.
const SMALL_ROWS: usize = 4096;

/// A batch: `rows` rows of `width` words, in C order.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    words: &'a [u32],
    rows: usize,
    width: usize,
}

impl<'a> Matrix<'a> {
    /// A matrix over these words.
    ///
    /// # Errors
    /// Where the words do not fill the shape exactly, and for more than 65,536 rows of no words.
    pub fn new(words: &'a [u32], rows: usize, width: usize) -> Result<Self, HashError> {
        if rows.checked_mul(width) != Some(words.len()) {
            return Err(HashError::BatchShape {
                rows,
                width,
                words: words.len(),
            });
        }
        if width == 0 && rows > EMPTY_ROWS {
            return Err(HashError::EmptyRows {
                rows,
                limit: EMPTY_ROWS,
            });
        }
        Ok(Self { words, rows, width })
    }

    /// Number of rows.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Words in a row.
    pub const fn width(&self) -> usize {
        self.width
    }

    /// The words of a row.
    ///
    /// # Errors
    /// [`HashError::Index`] where there is no such row.
    pub fn row(&self, index: usize) -> Result<&'a [u32], HashError> {
        if index >= self.rows {
            return Err(HashError::Index {
                what: "row",
                index: index as u64,
                count: self.rows as u64,
            });
        }
        Ok(&self.words[index * self.width..][..self.width])
    }

    /// Whether a commitment is best left to the calling thread, and stays on it.
    pub const fn is_small(&self) -> bool {
        self.words.len() <= SMALL_WORDS && self.rows <= SMALL_ROWS
    }

    fn rows_of_words(&self) -> impl Iterator<Item = &'a [u32]> {
        let Self { words, rows, width } = *self;
        (0..rows).map(move |row| &words[row * width..][..width])
    }

    /// The plain digests of the bytes of all rows.
    fn row_digests(&self) -> Vec<[u8; Digest::LENGTH]> {
        let mut digests = vec![[0; Digest::LENGTH]; self.rows];
        messages::digests(Mode::Hash, bytemuck::cast_slice(self.words), &mut digests);
        digests
    }

    /// The node of a row on level 0 of the tree of rows.
    fn row_node(&self, row: usize) -> Digest {
        let words = &self.words[row * self.width..][..self.width];
        tree::leaf_digest(
            TreeKind::BatchRows,
            leaf::digest(bytemuck::cast_slice(words)).as_bytes(),
        )
    }
}

/// What a batch digest is made of. With it and the digest, openings are verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchCommitment {
    /// Number of rows.
    pub rows: u64,
    /// Words in a row.
    pub width: u64,
    /// Plain digest of all bytes.
    pub matrix: Digest,
    /// Root over the digests of the rows.
    pub row_root: Digest,
    /// Root over the blocks of the sorted list of window hashes.
    pub window_root: Digest,
    /// Different window hashes in the list.
    pub window_count: u64,
}

impl BatchCommitment {
    /// The batch digest: what an update's record holds.
    pub fn digest(&self) -> Digest {
        static CONTEXT: LazyLock<Context> = LazyLock::new(|| Context::new("zkdv 1 batch"));
        let mut hasher = CONTEXT.hasher();
        hasher
            .update(&self.rows.to_le_bytes())
            .update(&self.width.to_le_bytes());
        hasher.update(self.matrix.as_bytes());
        hasher.update(self.row_root.as_bytes());
        hasher.update(self.window_root.as_bytes());
        hasher.update(&self.window_count.to_le_bytes());
        hasher.finalize().into()
    }
}

/// Commits to a batch, with windows of `rolling_window` words.
///
/// # Errors
/// [`HashError::EmptyWindow`] where the window holds no words.
pub fn commit(matrix: &Matrix<'_>, rolling_window: usize, base: &Base) -> Result<BatchCommitment, HashError> {
    let roller = Roller::new(base, rolling_window)?;
    let of_bytes = || {
        let rows = matrix.row_digests();
        let row_root = tree::root_of_equal(TreeKind::BatchRows, rows.as_flattened(), Digest::LENGTH);
        (leaf::digest(bytemuck::cast_slice(matrix.words)), row_root)
    };
    let of_windows = || {
        let list = SortedList::new(matrix, &roller);
        (list.root(), list.window_count())
    };
    let ((matrix_digest, row_root), (window_root, window_count)) = if matrix.is_small() {
        (of_bytes(), of_windows())
    } else {
        rayon::join(of_bytes, of_windows)
    };
    Ok(BatchCommitment {
        rows: matrix.rows as u64,
        width: matrix.width as u64,
        matrix: matrix_digest,
        row_root,
        window_root,
        window_count,
    })
}
