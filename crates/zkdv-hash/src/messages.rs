//! BLAKE3 of many messages of one length, several at a time.
//!
//! A BLAKE3 implementation is fast where one message has many chunks, which it compresses side by side. Rows of a batch,
//! blocks of a list and nodes of a tree are many messages of a chunk or less, for which the public interface of
//! [`blake3`] compresses block after block, at a third of the speed. Here lanes are messages instead. The compression
//! function is that of the BLAKE3 specification (section 2.2), written over lanes in plain loops, which the compiler
//! turns into the vector code of each instruction set that is chosen from at run time.
#![expect(
    clippy::inline_always,
    reason = "code that is compiled for an instruction set must be inlined to where it is chosen"
)]

use blake3::hazmat::{ContextKey, HasherExt};
use blake3::{BLOCK_LEN, CHUNK_LEN, Hasher};
use pulp::{Arch, NullaryFnOnce};

use crate::leaf;

/// Messages that are compressed side by side.
const LANES: usize = 8;

/// Fewer messages are faster one after the other.
const FEWEST_MESSAGES: usize = 3;

/// Longer messages have chunks enough for `blake3` to be as fast.
const LONGEST_MESSAGE_BYTES: usize = 16 * CHUNK_LEN;

/// So many bytes are hashed by one thread.
const PARALLEL_BYTES: usize = 128 * 1024;

/// Nodes that wait at a time for what is to the right of them, in messages up to the longest, and one to merge with them.
const LONGEST_STACK: usize = (LONGEST_MESSAGE_BYTES / CHUNK_LEN).ilog2() as usize + 1;

/// Length of a full block, as the compression function takes it.
const BLOCK_BYTES: u32 = 64;

/// Words of a block, and of the state of a compression.
const BLOCK_WORDS: usize = 16;

/// The initialization vector (section 2.2, table 1): that of SHA-256.
const IV: [u32; 8] = [
    0x6a09_e667,
    0xbb67_ae85,
    0x3c6e_f372,
    0xa54f_f53a,
    0x510e_527f,
    0x9b05_688c,
    0x1f83_d9ab,
    0x5be0_cd19,
];

/// Which word of the block each round mixes in where (section 2.2, table 2, applied round after round).
const SCHEDULE: [[usize; BLOCK_WORDS]; 7] = schedule();

/// Domain flags (section 2.2, table 3).
const CHUNK_START: u32 = 1 << 0;
const CHUNK_END: u32 = 1 << 1;
const PARENT: u32 = 1 << 2;
const ROOT: u32 = 1 << 3;
const DERIVE_KEY_MATERIAL: u32 = 1 << 6;

/// Words that belong to one place of each lane's message or chaining value.
type Lanes = [u32; LANES];

type Block = [Lanes; BLOCK_WORDS];

type Chaining = [Lanes; 8];

/// A mode of BLAKE3.
#[derive(Clone, Copy)]
pub(crate) enum Mode<'a> {
    /// Plain hashing.
    Hash,
    /// Key derivation in a context.
    DeriveKey(&'a ContextKey),
}

impl Mode<'_> {
    fn key(self) -> [u32; 8] {
        match self {
            Self::Hash => IV,
            Self::DeriveKey(key) => {
                let mut words = [0; 8];
                for (word, bytes) in words.iter_mut().zip(key.as_chunks().0) {
                    *word = u32::from_le_bytes(*bytes);
                }
                words
            }
        }
    }

    fn flags(self) -> u32 {
        match self {
            Self::Hash => 0,
            Self::DeriveKey(_) => DERIVE_KEY_MATERIAL,
        }
    }

    fn digest(self, message: &[u8]) -> [u8; 32] {
        match self {
            Self::Hash => leaf::digest(message).into(),
            Self::DeriveKey(key) => Hasher::new_from_context_key(key).update(message).finalize().into(),
        }
    }
}

/// Writes the digest of each message, of which `bytes` joins as many as there are digests, all of the same length.
pub(crate) fn digests(mode: Mode<'_>, bytes: &[u8], digests: &mut [[u8; 32]]) {
    let length = bytes.len().checked_div(digests.len()).unwrap_or(0);
    if bytes.len() > PARALLEL_BYTES && digests.len() > LANES {
        let middle = digests.len().div_ceil(2).next_multiple_of(LANES);
        let (left, right) = digests.split_at_mut(middle);
        let (left_bytes, right_bytes) = bytes.split_at(middle * length);
        rayon::join(
            || self::digests(mode, left_bytes, left),
            || self::digests(mode, right_bytes, right),
        );
        return;
    }
    let mut rest = bytes;
    for digests in digests.chunks_mut(LANES) {
        let messages;
        (messages, rest) = rest.split_at(length * digests.len());
        if digests.len() < FEWEST_MESSAGES || length == 0 || length > LONGEST_MESSAGE_BYTES {
            for (index, digest) in digests.iter_mut().enumerate() {
                *digest = mode.digest(&messages[index * length..][..length]);
            }
        } else {
            Arch::new().dispatch(Group {
                key: mode.key(),
                flags: mode.flags(),
                messages,
                length,
                digests,
            });
        }
    }
}

/// As many messages as there are lanes, or less.
struct Group<'a> {
    key: [u32; 8],
    flags: u32,
    messages: &'a [u8],
    length: usize,
    digests: &'a mut [[u8; 32]],
}

impl NullaryFnOnce for Group<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let chunks = self.length.div_ceil(CHUNK_LEN);
        let mut waiting = [[[0; LANES]; 8]; LONGEST_STACK];
        let mut height = 0;
        for chunk in 0..chunks {
            let is_last = chunk + 1 == chunks;
            let mut node = self.chunk(chunk, if chunks == 1 { ROOT } else { 0 });
            // Subtrees are merged where they are complete; at the end, with all that is to their left.
            let merges = if is_last {
                height
            } else {
                (chunk + 1).trailing_zeros() as usize
            };
            for _ in 0..merges {
                height -= 1;
                let root = if is_last && height == 0 { ROOT } else { 0 };
                node = self.parent(&waiting[height], &node, root);
            }
            waiting[height] = node;
            height += 1;
        }
        for (lane, digest) in self.digests.iter_mut().enumerate() {
            for (bytes, words) in digest.as_chunks_mut::<4>().0.iter_mut().zip(&waiting[0]) {
                *bytes = words[lane].to_le_bytes();
            }
        }
    }
}

impl Group<'_> {
    /// The chaining values of one chunk of each message.
    #[inline(always)]
    fn chunk(&self, chunk: usize, root: u32) -> Chaining {
        let start = chunk * CHUNK_LEN;
        let length = (self.length - start).min(CHUNK_LEN);
        let mut chaining = self.key.map(|word| [word; LANES]);
        for from in (0..length).step_by(BLOCK_LEN) {
            let bytes = (length - from).min(BLOCK_LEN);
            let mut block = [[0; LANES]; BLOCK_WORDS];
            for (lane, message) in self.messages.chunks_exact(self.length).enumerate().take(LANES) {
                let part = &message[start + from..][..bytes];
                if let Ok(part) = <&[u8; BLOCK_LEN]>::try_from(part) {
                    set_lane(&mut block, lane, part);
                } else {
                    let mut padded = [0; BLOCK_LEN];
                    padded[..bytes].copy_from_slice(part);
                    set_lane(&mut block, lane, &padded);
                }
            }
            let mut flags = self.flags;
            if from == 0 {
                flags |= CHUNK_START;
            }
            if from + bytes == length {
                flags |= CHUNK_END | root;
            }
            #[expect(clippy::cast_possible_truncation, reason = "no message is so long")]
            compress(&mut chaining, &block, chunk as u32, bytes as u32, flags);
        }
        chaining
    }

    /// The chaining values of the nodes above these children.
    #[inline(always)]
    fn parent(&self, left: &Chaining, right: &Chaining, root: u32) -> Chaining {
        let mut block = [[0; LANES]; BLOCK_WORDS];
        block[..8].copy_from_slice(left);
        block[8..].copy_from_slice(right);
        let mut chaining = self.key.map(|word| [word; LANES]);
        compress(&mut chaining, &block, 0, BLOCK_BYTES, self.flags | PARENT | root);
        chaining
    }
}

#[inline(always)]
fn set_lane(block: &mut Block, lane: usize, bytes: &[u8; BLOCK_LEN]) {
    for (words, bytes) in block.iter_mut().zip(bytes.as_chunks().0) {
        words[lane] = u32::from_le_bytes(*bytes);
    }
}

/// The compression function (section 2.2), in each lane.
#[inline(always)]
fn compress(chaining: &mut Chaining, block: &Block, counter: u32, length: u32, flags: u32) {
    for lane in 0..LANES {
        let mut state = [0; BLOCK_WORDS];
        for (word, chaining) in state.iter_mut().zip(chaining.iter()) {
            *word = chaining[lane];
        }
        state[8..12].copy_from_slice(&IV[..4]);
        // The upper half of the counter is 0: no message has so many chunks.
        state[12..].copy_from_slice(&[counter, 0, length, flags]);
        // Written out, so that the loop over lanes is all that the compiler has to turn into vector code.
        round::<0>(&mut state, block, lane);
        round::<1>(&mut state, block, lane);
        round::<2>(&mut state, block, lane);
        round::<3>(&mut state, block, lane);
        round::<4>(&mut state, block, lane);
        round::<5>(&mut state, block, lane);
        round::<6>(&mut state, block, lane);
        for (word, chaining) in chaining.iter_mut().enumerate() {
            chaining[lane] = state[word] ^ state[word + 8];
        }
    }
}

#[inline(always)]
fn round<const ROUND: usize>(state: &mut [u32; BLOCK_WORDS], block: &Block, lane: usize) {
    let word = |place: usize| block[SCHEDULE[ROUND][place]][lane];
    mix(state, [0, 4, 8, 12], word(0), word(1));
    mix(state, [1, 5, 9, 13], word(2), word(3));
    mix(state, [2, 6, 10, 14], word(4), word(5));
    mix(state, [3, 7, 11, 15], word(6), word(7));
    mix(state, [0, 5, 10, 15], word(8), word(9));
    mix(state, [1, 6, 11, 12], word(10), word(11));
    mix(state, [2, 7, 8, 13], word(12), word(13));
    mix(state, [3, 4, 9, 14], word(14), word(15));
}

#[inline(always)]
fn mix(state: &mut [u32; BLOCK_WORDS], [a, b, c, d]: [usize; 4], first: u32, second: u32) {
    state[a] = state[a].wrapping_add(state[b]).wrapping_add(first);
    state[d] = (state[d] ^ state[a]).rotate_right(16);
    state[c] = state[c].wrapping_add(state[d]);
    state[b] = (state[b] ^ state[c]).rotate_right(12);
    state[a] = state[a].wrapping_add(state[b]).wrapping_add(second);
    state[d] = (state[d] ^ state[a]).rotate_right(8);
    state[c] = state[c].wrapping_add(state[d]);
    state[b] = (state[b] ^ state[c]).rotate_right(7);
}

const fn schedule() -> [[usize; BLOCK_WORDS]; 7] {
    const PERMUTATION: [usize; BLOCK_WORDS] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
    let mut schedule = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]; 7];
    let mut round = 1;
    while round < schedule.len() {
        let mut place = 0;
        while place < BLOCK_WORDS {
            schedule[round][place] = schedule[round - 1][PERMUTATION[place]];
            place += 1;
        }
        round += 1;
    }
    schedule
}

#[cfg(test)]
mod tests {
    use blake3::hazmat::hash_derive_key_context;

    use super::*;

    #[test]
    fn digests_are_those_of_blake3() {
        let context = hash_derive_key_context("zkdv test");
        let mut bytes = vec![0; (2 * LANES + 1) * (LONGEST_MESSAGE_BYTES + BLOCK_LEN)];
        Hasher::new().finalize_xof().fill(&mut bytes);
        let edges = [1, 2, 3, 4, 5, 7, 8, 15, 16].map(|chunks| chunks * CHUNK_LEN);
        let lengths = [0, 1, 4, 31, 32, 63, 64, 65, 100, 128, 516].into_iter();
        for length in lengths.chain(edges.into_iter().flat_map(|edge| [edge - 64, edge - 1, edge, edge + 1])) {
            for count in [0, 1, FEWEST_MESSAGES - 1, FEWEST_MESSAGES, LANES, 2 * LANES + 1] {
                let messages = &bytes[..length * count];
                for mode in [Mode::Hash, Mode::DeriveKey(&context)] {
                    let mut found = vec![[0; 32]; count];
                    digests(mode, messages, &mut found);
                    for (index, digest) in found.iter().enumerate() {
                        let message = &messages[index * length..][..length];
                        let mut hasher = match mode {
                            Mode::Hash => Hasher::new(),
                            Mode::DeriveKey(key) => Hasher::new_from_context_key(key),
                        };
                        let expected = hasher.update(message).finalize();
                        assert_eq!(
                            digest,
                            expected.as_bytes(),
                            "message {index} of {count} with {length} bytes"
                        );
                    }
                }
            }
        }
    }
}
