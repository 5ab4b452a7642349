//! Openings of batches: a row, a window in a row, the absence of a window.

use super::windows::{BLOCK_NUMBERS, NUMBER_BYTES, SortedList};
use super::{BatchCommitment, Matrix};
use crate::rolling::{Base, Roller, hash_window};
use crate::tree::{self, TreeKind};
use crate::{Digest, HashError};

/// Shows a row of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowOpening {
    /// Index of the row.
    pub row: u64,
    /// The words of the row.
    pub words: Vec<u32>,
    /// Siblings in the tree of rows.
    pub path: Vec<Digest>,
}

/// Shows that a window stands in a batch: a row, and where in the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowOpening {
    /// The row that holds it.
    pub row: RowOpening,
    /// Words of the row before the window.
    pub position: u64,
}

/// Shows a block of the sorted list of window hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockOpening {
    /// Index of the block.
    pub block: u64,
    /// The numbers of the block as 8-byte little-endian numbers.
    pub bytes: Vec<u8>,
    /// Siblings in the tree of blocks.
    pub path: Vec<Digest>,
}

/// Shows that no window with a certain hash is in the list: two neighbours between which it would stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbsenceOpening {
    /// The block that holds the lower neighbour.
    pub lower: BlockOpening,
    /// The block that holds the upper neighbour, where that is the next one.
    pub upper: Option<BlockOpening>,
}

/// Opens a row.
///
/// # Errors
/// [`HashError::Index`] where there is no such row.
pub fn open_row(matrix: &Matrix<'_>, row: usize) -> Result<RowOpening, HashError> {
    let words = matrix.row(row)?.to_vec();
    let path = tree::open_of(TreeKind::BatchRows, matrix.rows(), row, &|row| matrix.row_node(row))?;
    Ok(RowOpening {
        row: row as u64,
        words,
        path,
    })
}

/// Opens the first place where these words stand in one row. Any number of words can be shown, not only windows of the
/// length that was hashed.
///
/// # Errors
/// [`HashError::EmptyWindow`], and [`HashError::WindowAbsent`] where no row holds the words.
pub fn open_window(matrix: &Matrix<'_>, window: &[u32]) -> Result<WindowOpening, HashError> {
    if window.is_empty() {
        return Err(HashError::EmptyWindow);
    }
    let mut places = matrix.rows_of_words().enumerate().filter_map(|(row, words)| {
        let position = words.windows(window.len()).position(|words| words == window)?;
        Some((row, position))
    });
    let (row, position) = places.next().ok_or(HashError::WindowAbsent)?;
    Ok(WindowOpening {
        row: open_row(matrix, row)?,
        position: position as u64,
    })
}

/// Opens the place where the hash of a window would stand in the sorted list. That it is absent is the prover's
/// statement: the list binds the prover to it, but only who audits the batch knows that the list is complete.
///
/// # Errors
/// Where the window is not as long as those of the batch, and [`HashError::WindowPresent`] where its hash is in the
/// list.
pub fn open_absent(
    matrix: &Matrix<'_>,
    rolling_window: usize,
    base: &Base,
    window: &[u32],
) -> Result<AbsenceOpening, HashError> {
    if window.len() != rolling_window {
        return Err(HashError::WindowLength {
            expected: rolling_window,
            got: window.len(),
        });
    }
    match open_absent_part(matrix, rolling_window, base, window) {
        Err(HashError::EveryWindowPresent) => Err(HashError::WindowPresent),
        opened => opened.map(|(_, opening)| opening),
    }
}

/// Opens the absence of a window of these words, and so of all of them in a row: where the first such window starts, and
/// the place where its hash would stand.
///
/// # Errors
/// Where there are fewer words than in a window of the batch, and [`HashError::EveryWindowPresent`] where the hash of each
/// of their windows is in the list.
pub fn open_absent_part(
    matrix: &Matrix<'_>,
    rolling_window: usize,
    base: &Base,
    words: &[u32],
) -> Result<(u64, AbsenceOpening), HashError> {
    let roller = Roller::new(base, rolling_window)?;
    if words.len() < rolling_window {
        return Err(HashError::AbsenceTooShort {
            expected: rolling_window,
            got: words.len(),
        });
    }
    let list = SortedList::new(matrix, &roller);
    let mut places = words
        .windows(rolling_window)
        .map(|window| list.find(hash_window(window, base) + 1));
    let (position, upper) = places
        .by_ref()
        .enumerate()
        .find_map(|(position, place)| Some((position as u64, place.err()?)))
        .ok_or(HashError::EveryWindowPresent)?;
    Ok((position, open_between(&list, upper)?))
}

/// Opens the number at `upper` and the one before it.
fn open_between(list: &SortedList, upper: usize) -> Result<AbsenceOpening, HashError> {
    // The sentinels stand on both sides of every hash, so `upper` is at least 1 and inside the list.
    let (lower_block, upper_block) = ((upper - 1) / BLOCK_NUMBERS, upper / BLOCK_NUMBERS);
    let open = |block| {
        let (bytes, path) = list.open(block)?;
        Ok(BlockOpening {
            block: block as u64,
            bytes,
            path,
        })
    };
    let upper = if upper_block == lower_block {
        None
    } else {
        Some(open(upper_block)?)
    };
    Ok(AbsenceOpening {
        lower: open(lower_block)?,
        upper,
    })
}

/// Whether the opening shows a row of the batch with this digest.
pub fn verify_row(digest: &Digest, batch: &BatchCommitment, opening: &RowOpening) -> bool {
    let RowOpening { row, words, path } = opening;
    let bytes: &[u8] = bytemuck::cast_slice(words);
    batch.digest() == *digest
        && words.len() as u64 == batch.width
        && tree::verify(
            TreeKind::BatchRows,
            &batch.row_root,
            batch.rows,
            *row,
            Digest::from(blake3::hash(bytes)).as_bytes(),
            path,
        )
}

/// Whether the opening shows that `window` stands in the batch with this digest.
pub fn verify_window(digest: &Digest, batch: &BatchCommitment, window: &[u32], opening: &WindowOpening) -> bool {
    let start = usize::try_from(opening.position).ok();
    let place = start.and_then(|start| opening.row.words.get(start..)?.get(..window.len()));
    !window.is_empty() && place == Some(window) && verify_row(digest, batch, &opening.row)
}

/// Whether the opening shows that no window with the hash of `window` is in the list of the batch with this digest.
///
/// `window` must be as long as the run's rolling window, which the caller knows from the root record.
pub fn verify_absent(
    digest: &Digest,
    batch: &BatchCommitment,
    base: &Base,
    window: &[u32],
    opening: &AbsenceOpening,
) -> bool {
    if window.is_empty() || batch.digest() != *digest {
        return false;
    }
    let Some(lower) = block_numbers(batch, &opening.lower) else {
        return false;
    };
    let number = hash_window(window, base) + 1;
    let Some(opening_above) = &opening.upper else {
        // Both neighbours are in one block.
        return lower.windows(2).any(|pair| pair[0] < number && number < pair[1]);
    };
    let Some(upper) = block_numbers(batch, opening_above) else {
        return false;
    };
    opening_above.block == opening.lower.block + 1
        && lower.last().is_some_and(|&last| last < number)
        && upper.first().is_some_and(|&first| number < first)
}

/// The numbers of a block that stands in the batch's list.
fn block_numbers(batch: &BatchCommitment, opening: &BlockOpening) -> Option<Vec<u64>> {
    const NUMBERS: u64 = BLOCK_NUMBERS as u64;
    let BlockOpening { block, bytes, path } = opening;
    let numbers = batch.window_count.checked_add(2)?;
    let length = numbers.checked_sub(block.checked_mul(NUMBERS)?)?.min(NUMBERS);
    let is_whole = bytes.len() as u64 == length * NUMBER_BYTES as u64;
    let stands = || {
        let blocks = numbers.div_ceil(NUMBERS);
        tree::verify(TreeKind::BatchWindows, &batch.window_root, blocks, *block, bytes, path)
    };
    let numbers = bytes.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number));
    (is_whole && stands()).then(|| numbers.collect())
}
