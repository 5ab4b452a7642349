//! The rolling hash that locates windows of a batch.
//!
//! A window `w_0 … w_{k-1}` of words has the hash `w_0·b^(k-1) + … + w_{k-1}` modulo `p = 2^61 - 1` (Karp and Rabin,
//! "Efficient randomized pattern-matching algorithms", 1987). The base `b` follows from the root record and is public:
//! colliding windows can be computed, so the hash only locates, and never stands for the window's bytes.

#![expect(
    clippy::inline_always,
    reason = "code that is compiled for an instruction set must be inlined to where it is chosen"
)]

use std::sync::LazyLock;

use pulp::{Arch, NullaryFnOnce};

use crate::derive::Context;
use crate::{Digest, HashError};

/// The modulus, a Mersenne prime.
pub const MODULUS: u64 = (1 << MODULUS_BITS) - 1;

/// Bits of the modulus.
pub(crate) const MODULUS_BITS: u32 = 61;

/// The smallest base: no word reaches it, so words are digits of a number in this base.
const SMALLEST_BASE: u64 = 1 << 32;

/// Rows that are rolled along together.
const INTERLEAVED: usize = 4;

/// Windows that one thread hashes at a time.
const WINDOWS_OF_A_TASK: usize = 8192;

/// The base of a run's rolling hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base(u64);

impl Base {
    /// The base that follows from the digest of a run's root record.
    pub fn from_root(root: &Digest) -> Self {
        static CONTEXT: LazyLock<Context> = LazyLock::new(|| Context::new("zkdv 1 rolling base"));
        let mut stream = CONTEXT.hasher().update(root.as_bytes()).finalize_xof();
        loop {
            let mut bytes = [0; 8];
            stream.fill(&mut bytes);
            // All but one in about 2^29 candidates are accepted.
            if let Ok(base) = Self::from_value(u64::from_le_bytes(bytes) & MODULUS) {
                return base;
            }
        }
    }

    /// The base that this number is.
    ///
    /// # Errors
    /// [`HashError::RollingBase`] below 2^32 and from the modulus on.
    pub const fn from_value(value: u64) -> Result<Self, HashError> {
        if value >= SMALLEST_BASE && value < MODULUS {
            Ok(Self(value))
        } else {
            Err(HashError::RollingBase { value })
        }
    }

    /// The number.
    pub const fn value(self) -> u64 {
        self.0
    }
}

/// The hash of one window, of any length.
pub fn hash_window(words: &[u32], base: &Base) -> u64 {
    canonical(start(words, base.0))
}

/// Hashes of all windows of a fixed length, each from the one before.
#[derive(Clone, Copy, Debug)]
pub struct Roller {
    base: u64,
    /// `p - base^window`: what a word weighs that leaves, once the base was multiplied in.
    leaving: u64,
    window: usize,
}

impl Roller {
    /// A roller for windows of `window` words.
    ///
    /// # Errors
    /// [`HashError::EmptyWindow`] where the window holds no words.
    pub fn new(base: &Base, window: usize) -> Result<Self, HashError> {
        if window == 0 {
            return Err(HashError::EmptyWindow);
        }
        Ok(Self {
            base: base.0,
            leaving: MODULUS - canonical(power(base.0, window)),
            window,
        })
    }

    /// How many windows a row of `width` words has: none where it is narrower than a window.
    pub const fn windows_in(&self, width: usize) -> usize {
        (width + 1).saturating_sub(self.window)
    }

    /// The hashes of the windows of `row`, in order.
    pub fn hashes<'a>(&self, row: &'a [u32]) -> impl Iterator<Item = u64> + use<'a> {
        let Self { base, leaving, window } = *self;
        let first = row.get(..window).map(|words| start(words, base));
        let mut pairs = row.iter().zip(row.get(window..).unwrap_or_default());
        std::iter::successors(first, move |&hash| {
            let (&out, &word) = pairs.next()?;
            Some(step(hash, base, leaving, out, word))
        })
        .map(canonical)
    }

    /// Writes the hashes plus one of the windows of all rows of this width, [`windows_in`](Self::windows_in) of each, in
    /// order.
    pub(crate) fn fill_successors(&self, words: &[u32], width: usize, hashes: &mut [u64]) {
        let per_row = self.windows_in(width);
        if per_row == 0 {
            return;
        }
        let rows = words.len() / width;
        if rows > INTERLEAVED && hashes.len() > WINDOWS_OF_A_TASK {
            let middle = rows.div_ceil(2).next_multiple_of(INTERLEAVED);
            let (left, right) = words.split_at(middle * width);
            let (left_hashes, right_hashes) = hashes.split_at_mut(middle * per_row);
            rayon::join(
                || self.fill_successors(left, width, left_hashes),
                || self.fill_successors(right, width, right_hashes),
            );
            return;
        }
        let mut words = words.chunks_exact(INTERLEAVED * width);
        let mut hashes = hashes.chunks_exact_mut(INTERLEAVED * per_row);
        for (rows, hashes) in words.by_ref().zip(hashes.by_ref()) {
            Arch::new().dispatch(Interleaved {
                roller: *self,
                rows: std::array::from_fn(|row| &rows[row * width..][..width]),
                hashes,
            });
        }
        let rows = words.remainder().chunks_exact(width);
        for (row, hashes) in rows.zip(hashes.into_remainder().chunks_exact_mut(per_row)) {
            self.fill_row(row, hashes);
        }
    }

    /// Writes the hashes plus one of a row, which is cut into parts where it is long.
    fn fill_row(&self, row: &[u32], hashes: &mut [u64]) {
        if hashes.len() < INTERLEAVED * self.window {
            for (out, hash) in hashes.iter_mut().zip(self.hashes(row)) {
                *out = hash + 1;
            }
            return;
        }
        let part = hashes.len() / INTERLEAVED;
        let (whole, rest) = hashes.split_at_mut(INTERLEAVED * part);
        Arch::new().dispatch(Interleaved {
            roller: *self,
            rows: std::array::from_fn(|index| &row[index * part..][..part + self.window - 1]),
            hashes: whole,
        });
        for (out, hash) in rest.iter_mut().zip(self.hashes(&row[INTERLEAVED * part..])) {
            *out = hash + 1;
        }
    }
}

/// Rows of one width, which are rolled along together: each hash waits for the one before it in its row, not for those in
/// other rows.
struct Interleaved<'a> {
    roller: Roller,
    rows: [&'a [u32]; INTERLEAVED],
    hashes: &'a mut [u64],
}

impl NullaryFnOnce for Interleaved<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Roller { base, leaving, window } = self.roller;
        let per_row = self.hashes.len() / INTERLEAVED;
        let mut outs = self.hashes.chunks_exact_mut(per_row);
        let mut outs: [&mut [u64]; INTERLEAVED] = std::array::from_fn(|_| outs.next().unwrap_or_default());
        let rows = self.rows.map(|row| &row[..per_row + window - 1]);
        let mut hashes = rows.map(|row| start(&row[..window - 1], base));
        for index in 0..per_row {
            for (row, hash) in rows.iter().zip(&mut hashes) {
                // The first window has no word before it.
                let (leaving, out) = if index == 0 { (0, 0) } else { (leaving, row[index - 1]) };
                *hash = step(*hash, base, leaving, out, row[index + window - 1]);
            }
            for (out, &hash) in outs.iter_mut().zip(&hashes) {
                out[index] = successor(hash);
            }
        }
    }
}

/// The hash of a window as a number up to 2^61.
fn start(window: &[u32], base: u64) -> u64 {
    window.iter().fold(0, |hash, &word| step(hash, base, 0, 0, word))
}

/// A number up to 2^61 congruent to `hash * base + leaving * out + word`, for `hash` up to 2^61, and `base` and `leaving`
/// below it.
#[inline(always)]
fn step(hash: u64, base: u64, leaving: u64, out: u32, word: u32) -> u64 {
    // Below 2^123, as the first product is at most 2^122.
    let sum = u128::from(hash) * u128::from(base) + u128::from(leaving) * u128::from(out) + u128::from(word);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the lower bits are asked for, and above 61 there are 62 at most"
    )]
    let (lower, upper) = (sum as u64 & MODULUS, (sum >> MODULUS_BITS) as u64);
    // 2^61 is congruent to 1.
    let folded = lower + upper;
    (folded & MODULUS) + (folded >> MODULUS_BITS)
}

/// The congruent number below `p`, for values up to 2^61.
#[inline(always)]
fn canonical(value: u64) -> u64 {
    if value >= MODULUS { value - MODULUS } else { value }
}

/// One more than the congruent number below `p`, for values up to 2^61.
#[inline(always)]
fn successor(value: u64) -> u64 {
    let next = value + 1;
    (next & MODULUS) + (next >> MODULUS_BITS)
}

/// A number up to 2^61 congruent to `base^exponent`.
fn power(base: u64, exponent: usize) -> u64 {
    let (mut square, mut power, mut exponent) = (base, 1, exponent);
    while exponent > 0 {
        if exponent % 2 == 1 {
            power = step(power, square, 0, 0, 0);
        }
        square = canonical(step(square, square, 0, 0, 0));
        exponent /= 2;
    }
    power
}
