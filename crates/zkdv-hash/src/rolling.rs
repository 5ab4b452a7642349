//! The rolling hash that locates windows of a batch.
//!
//! A window `w_0 … w_{k-1}` of words has the hash `w_0·b^(k-1) + … + w_{k-1}` modulo `p = 2^127 - 1` (Karp and Rabin,
//! "Efficient randomized pattern-matching algorithms", 1987). The base `b` follows from the root record and is public:
//! colliding windows can be computed, so the hash only locates, and never stands for the window's bytes.

use std::sync::LazyLock;

use crate::derive::Context;
use crate::{Digest, HashError};

/// The modulus, a Mersenne prime.
pub const MODULUS: u128 = (1 << 127) - 1;

/// The smallest base: no word reaches it, so words are digits of a number in this base.
const SMALLEST_BASE: u128 = 1 << 32;

/// The base of a run's rolling hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base(u128);

impl Base {
    /// The base that follows from the digest of a run's root record.
    pub fn from_root(root: &Digest) -> Self {
        static CONTEXT: LazyLock<Context> = LazyLock::new(|| Context::new("zkdv 1 rolling base"));
        let mut stream = CONTEXT.hasher().update(root.as_bytes()).finalize_xof();
        loop {
            let mut bytes = [0; 16];
            stream.fill(&mut bytes);
            // All but one in about 2^95 candidates are accepted.
            if let Ok(base) = Self::from_value(u128::from_le_bytes(bytes) & MODULUS) {
                return base;
            }
        }
    }

    /// The base that this number is.
    ///
    /// # Errors
    /// [`HashError::RollingBase`] below 2^32 and from the modulus on.
    pub const fn from_value(value: u128) -> Result<Self, HashError> {
        if value >= SMALLEST_BASE && value < MODULUS { Ok(Self(value)) } else { Err(HashError::RollingBase { value }) }
    }

    /// The number.
    pub const fn value(self) -> u128 {
        self.0
    }
}

/// The hash of one window, of any length.
pub fn hash_window(words: &[u32], base: &Base) -> u128 {
    canonical(words.iter().fold(0, |hash, &word| step(hash, base.0, u128::from(word))))
}

/// Hashes of all windows of a fixed length, each from the one before.
#[derive(Clone, Copy, Debug)]
pub struct Roller {
    base: u128,
    /// `base^window`: the weight of the word that leaves, once the base was multiplied in.
    leaving: u128,
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
        Ok(Self { base: base.0, leaving: canonical(power(base.0, window)), window })
    }

    /// The hashes of the windows of `row`, in order; none where it is narrower than a window.
    pub fn hashes<'a>(&self, row: &'a [u32]) -> impl Iterator<Item = u128> + use<'a> {
        let Self { base, leaving, window } = *self;
        let first = row.get(..window).map(|first| first.iter().fold(0, |hash, &word| step(hash, base, u128::from(word))));
        let mut pairs = row.iter().zip(row.get(window..).unwrap_or_default());
        let mut next = first;
        std::iter::from_fn(move || {
            let hash = next?;
            next = pairs.next().map(|(&out, &word)| slide(hash, base, leaving, out, word));
            Some(canonical(hash))
        })
    }
}

/// The hash of the next window: `hash * base + word - out * base^window`.
fn slide(hash: u128, base: u128, leaving: u128, out: u32, word: u32) -> u128 {
    let gone = canonical(multiply(leaving, u128::from(out)));
    step(hash, base, MODULUS - gone + u128::from(word))
}

/// `hash * base + addend` modulo `p`, at most `p + 1`, for `hash` at most `p + 1`, `base` below `p` and `addend` below 2^127 + 2^32.
fn step(hash: u128, base: u128, addend: u128) -> u128 {
    fold(fold(multiply(hash, base)) + fold(addend))
}

/// A number congruent to `a * b`, for `a` and `b` at most 2^127.
fn multiply(a: u128, b: u128) -> u128 {
    let mask = u128::from(u64::MAX);
    let (a_high, a_low, b_high, b_low) = (a >> 64, a & mask, b >> 64, b & mask);
    let low = a_low * b_low;
    // Each high half is at most 2^63, so neither sum can overflow.
    let middle = a_high * b_low + (low >> 64);
    let middle_low = (middle & mask) + a_low * b_high;
    let high = a_high * b_high + (middle >> 64) + (middle_low >> 64);
    let low = middle_low << 64 | low & mask;
    // a * b = high * 2^128 + low, and 2^127 is congruent to 1.
    fold((low & MODULUS) + (high << 1 | low >> 127))
}

/// A congruent number, at most `p + 1`.
fn fold(value: u128) -> u128 {
    (value & MODULUS) + (value >> 127)
}

/// The congruent number below `p`.
fn canonical(value: u128) -> u128 {
    let value = fold(value);
    if value >= MODULUS { value - MODULUS } else { value }
}

fn power(base: u128, mut exponent: usize) -> u128 {
    let mut square = base;
    let mut power = 1;
    while exponent > 0 {
        if exponent % 2 == 1 {
            power = fold(multiply(power, square));
        }
        square = fold(multiply(square, square));
        exponent /= 2;
    }
    power
}
