//! Challenges (scheme `zkdv-challenge-1`): whether an update is checked, and at which coordinates.

use std::sync::LazyLock;

use blake3::OutputReader;

use crate::derive::Context;
use crate::{Digest, HashError};

/// The rule by which updates are sampled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampling {
    /// Each update with this probability, from 0 to 1.
    Probability(f64),
    /// Updates `u` with `(u + 1) mod n = 0`.
    Every(u64),
}

/// What a challenge asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Whether the update is to be checked.
    pub sampled: bool,
    /// An element of the parameters, counted over all leaves in schema order; none where there are no elements.
    pub parameter: Option<u64>,
    /// An element of the optimizer state, likewise.
    pub optimizer: Option<u64>,
}

/// Draws the challenge of an update.
///
/// `record_digest` is that of the update's record; `randomness` is the receipt's, or empty where the transcript is its
/// own challenger. The coordinates are drawn whether or not the update is sampled.
///
/// # Errors
/// Where the sampling rule is none: a probability outside 0 to 1, or every 0 updates.
pub fn draw(
    record_digest: &Digest,
    randomness: &[u8],
    sampling: &Sampling,
    update: u64,
    parameters_elements: u64,
    optimizer_elements: u64,
) -> Result<Draw, HashError> {
    static CONTEXT: LazyLock<Context> = LazyLock::new(|| Context::new("zkdv 1 challenge"));
    let mut words = Words(
        CONTEXT
            .hasher()
            .update(record_digest.as_bytes())
            .update(randomness)
            .finalize_xof(),
    );
    let word = words.next();
    let sampled = match *sampling {
        Sampling::Probability(probability) => u128::from(word) < threshold(probability)?,
        Sampling::Every(0) => return Err(HashError::EveryZero),
        Sampling::Every(n) => (u128::from(update) + 1).is_multiple_of(u128::from(n)),
    };
    Ok(Draw {
        sampled,
        parameter: words.below(parameters_elements),
        optimizer: words.below(optimizer_elements),
    })
}

/// `floor(probability * 2^64)`.
fn threshold(probability: f64) -> Result<u128, HashError> {
    if !(0.0..=1.0).contains(&probability) {
        return Err(HashError::Probability { probability });
    }
    // Scaling by a power of two is exact, and the conversion rounds towards zero.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 2^64"
    )]
    Ok((probability * 2f64.powi(64)) as u128)
}

/// A stream read as 64-bit little-endian words.
struct Words(OutputReader);

impl Words {
    fn next(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A number below `count`, each as likely as any other.
    fn below(&mut self, count: u64) -> Option<u64> {
        if count == 0 {
            return None;
        }
        // 2^64 modulo `count`: the words beyond the last whole cycle.
        let excess = (u64::MAX % count + 1) % count;
        loop {
            let word = self.next();
            // At least half of all words are accepted. `u64::MAX - excess` is the last word of the last whole cycle.
            if word <= u64::MAX - excess {
                return Some(word % count);
            }
        }
    }
}
