//! Openings of trees, chunks and batches verify, and nothing that was changed does.
#![allow(clippy::unwrap_used, reason = "what cannot be opened fails the test")]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use zkdv_hash::batch::{self, AbsenceOpening, BatchCommitment, BlockOpening, Matrix};
use zkdv_hash::rolling::{Base, MODULUS, Roller, hash_window};
use zkdv_hash::tree::{self, TreeKind};
use zkdv_hash::{Digest, HashError, chunk, leaf};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn leaves_of_trees(
        kind in select(TreeKind::ALL.as_slice()),
        leaves in vec(vec(any::<u8>(), 0..70), 1..300),
        place in any::<Index>(),
        tampering in any::<Index>(),
    ) {
        let (count, index) = (leaves.len() as u64, place.index(leaves.len()));
        let root = tree::root(kind, &leaves);
        let path = tree::open(kind, &leaves, index).unwrap();
        let (data, index) = (&leaves[index], index as u64);
        prop_assert!(tree::verify(kind, &root, count, index, data, &path));

        let other_kind = TreeKind::ALL.into_iter().find(|&other| other != kind).unwrap();
        prop_assert!(!tree::verify(other_kind, &root, count, index, data, &path));
        prop_assert!(!tree::verify(kind, &flipped(&root, tampering), count, index, data, &path));
        for other in [count - 1, count + 1, 2 * count, u64::MAX] {
            prop_assert!(!tree::verify(kind, &root, other, index, data, &path));
        }
        for other in [index + 1, index ^ 1, count, u64::MAX] {
            // A neighbour with the same data has the same path.
            if usize::try_from(other).is_ok_and(|other| leaves.get(other) == Some(data)) {
                continue;
            }
            prop_assert!(!tree::verify(kind, &root, count, other, data, &path));
        }
        prop_assert!(!tree::verify(kind, &root, count, index, &[data.as_slice(), &[0]].concat(), &path));
        if !data.is_empty() {
            prop_assert!(!tree::verify(kind, &root, count, index, &flipped_bytes(data, tampering), &path));
        }
        for changed in changed_paths(&path, tampering) {
            prop_assert!(!tree::verify(kind, &root, count, index, data, &changed));
        }
    }

    #[test]
    fn roots_bind_every_leaf(leaves in vec(any::<[u8; 32]>(), 1..40), place in any::<Index>(), tampering in any::<Index>()) {
        let root = tree::root(TreeKind::Parameters, &leaves);
        let mut changed = leaves.clone();
        let leaf = place.get_mut(&mut changed);
        *leaf = flipped_bytes(leaf, tampering).try_into().unwrap();
        prop_assert_ne!(tree::root(TreeKind::Parameters, &changed), root);
        changed = leaves.clone();
        changed.push([0; 32]);
        prop_assert_ne!(tree::root(TreeKind::Parameters, &changed), root);
        changed = leaves;
        changed.pop();
        prop_assert_ne!(tree::root(TreeKind::Parameters, &changed), root);
    }

    #[test]
    fn chunks_of_leaves(
        // Past the length from which leaves are spread over threads, and around whole chunks.
        length in prop_oneof![0usize..5000, (0usize..200).prop_map(|chunks| chunks * 1024), 130_000usize..300_000],
        place in any::<Index>(),
        tampering in any::<Index>(),
    ) {
        let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
        let digest = Digest::from(blake3::hash(&bytes));
        prop_assert_eq!(leaf::digest(&bytes), digest);
        let count = length.div_ceil(1024).max(1);
        let index = place.index(count) as u64;
        let opening = chunk::open(&bytes, index).unwrap();
        let (length, shown, chain) = (length as u64, opening.bytes.as_slice(), opening.chain.as_slice());
        prop_assert_eq!(opening.chunk, index);
        prop_assert!(chunk::verify(&digest, length, index, shown, chain));

        prop_assert!(!chunk::verify(&flipped(&digest, tampering), length, index, shown, chain));
        for other in [index + 1, index ^ 1, count as u64, u64::MAX] {
            prop_assert!(!chunk::verify(&digest, length, other, shown, chain));
        }
        prop_assert!(!chunk::verify(&digest, length, index, &[shown, &[0]].concat(), chain));
        if !shown.is_empty() {
            prop_assert!(!chunk::verify(&digest, length, index, &flipped_bytes(shown, tampering), chain));
            prop_assert!(!chunk::verify(&digest, length, index, &shown[1..], chain));
        }
        for changed in changed_paths(chain, tampering) {
            prop_assert!(!chunk::verify(&digest, length, index, shown, &changed));
        }
        // The last chunk shows the length.
        if index + 1 == count as u64 {
            for other in [length + 1, length + 1024, u64::MAX] {
                prop_assert!(!chunk::verify(&digest, other, index, shown, chain));
            }
        }
        let beyond = HashError::Index { what: "chunk", index: count as u64, count: count as u64 };
        prop_assert_eq!(chunk::open(&bytes, count as u64), Err(beyond));
    }

    #[test]
    fn rows_and_windows_of_batches(case in case(), place in any::<Index>(), column in any::<Index>(), tampering in any::<Index>()) {
        let Case { matrix, window, base } = case.borrow();
        let commitment = batch::commit(&matrix, window, &base).unwrap();
        let digest = commitment.digest();
        let row = place.index(matrix.rows());
        let opening = batch::open_row(&matrix, row).unwrap();
        prop_assert_eq!(opening.words.as_slice(), matrix.row(row).unwrap());
        prop_assert!(batch::verify_row(&digest, &commitment, &opening));
        prop_assert!(!batch::verify_row(&flipped(&digest, tampering), &commitment, &opening));
        for changed in changed_commitments(&commitment, tampering) {
            prop_assert!(!batch::verify_row(&digest, &changed, &opening));
            prop_assert!(!batch::verify_row(&changed.digest(), &commitment, &opening));
        }
        let mut changed = opening.clone();
        *column.get_mut(&mut changed.words) ^= 1 << tampering.index(32);
        prop_assert!(!batch::verify_row(&digest, &commitment, &changed));
        changed = opening.clone();
        changed.row += 1;
        // A neighbour with the same words has the same path.
        let is_twin = matrix.row(row + 1).is_ok_and(|next| next == opening.words);
        prop_assert!(is_twin || !batch::verify_row(&digest, &commitment, &changed));
        changed = opening.clone();
        changed.words.push(0);
        prop_assert!(!batch::verify_row(&digest, &commitment, &changed));
        for path in changed_paths(&opening.path, tampering) {
            changed = opening.clone();
            changed.path = path;
            prop_assert!(!batch::verify_row(&digest, &commitment, &changed));
        }

        if window <= matrix.width() {
            let start = column.index(matrix.width() - window + 1);
            let words = &opening.words[start..][..window];
            let opening = batch::open_window(&matrix, words).unwrap();
            prop_assert!(batch::verify_window(&digest, &commitment, words, &opening));
            let mut other = words.to_vec();
            other[0] = other[0].wrapping_add(1);
            prop_assert!(!batch::verify_window(&digest, &commitment, &other, &opening));
            prop_assert!(!batch::verify_window(&digest, &commitment, &[], &opening));
            let mut changed = opening.clone();
            changed.position = u64::MAX;
            prop_assert!(!batch::verify_window(&digest, &commitment, words, &changed));
            changed = opening.clone();
            changed.row.row = matrix.rows() as u64;
            prop_assert!(!batch::verify_window(&digest, &commitment, words, &changed));
        }
    }

    #[test]
    fn absent_windows_of_batches(case in case(), tampering in any::<Index>(), noise in any::<u32>()) {
        let Case { matrix, window, base } = case.borrow();
        let commitment = batch::commit(&matrix, window, &base).unwrap();
        let digest = commitment.digest();
        // Words of a batch are below 16.
        let mut absent = vec![noise | 16; window];
        absent[window - 1] = 16;
        let opening = batch::open_absent(&matrix, window, &base, &absent).unwrap();
        prop_assert!(batch::verify_absent(&digest, &commitment, &base, &absent, &opening));
        prop_assert_eq!(batch::open_window(&matrix, &absent), Err(HashError::WindowAbsent));

        prop_assert!(!batch::verify_absent(&flipped(&digest, tampering), &commitment, &base, &absent, &opening));
        prop_assert!(!batch::verify_absent(&digest, &commitment, &base, &[], &opening));
        for changed in changed_commitments(&commitment, tampering) {
            prop_assert!(!batch::verify_absent(&digest, &changed, &base, &absent, &opening));
        }
        for changed in changed_blocks(&opening.lower, tampering) {
            let changed = AbsenceOpening { lower: changed, upper: opening.upper.clone() };
            prop_assert!(!batch::verify_absent(&digest, &commitment, &base, &absent, &changed));
        }
        for upper in opening.upper.iter().flat_map(|upper| changed_blocks(upper, tampering)) {
            let changed = AbsenceOpening { lower: opening.lower.clone(), upper: Some(upper) };
            prop_assert!(!batch::verify_absent(&digest, &commitment, &base, &absent, &changed));
        }
    }

    #[test]
    fn windows_that_are_there_cannot_be_shown_absent(case in case(), place in any::<Index>(), column in any::<Index>()) {
        let Case { matrix, window, base } = case.borrow();
        prop_assume!(window <= matrix.width());
        let commitment = batch::commit(&matrix, window, &base).unwrap();
        let start = column.index(matrix.width() - window + 1);
        let present = &matrix.row(place.index(matrix.rows())).unwrap()[start..][..window];
        prop_assert_eq!(batch::open_absent(&matrix, window, &base, present), Err(HashError::WindowPresent));
        let blocks = all_blocks(&matrix, window, base);
        for lower in &blocks {
            for upper in std::iter::once(None).chain(blocks.iter().cloned().map(Some)) {
                let forged = AbsenceOpening { lower: lower.clone(), upper };
                prop_assert!(!batch::verify_absent(&commitment.digest(), &commitment, &base, present, &forged));
            }
        }
    }

    #[test]
    fn rolling_is_hashing_each_window(
        words in vec(prop_oneof![Just(0), Just(u32::MAX), any::<u32>()], 0..200),
        window in 1usize..40,
        base in prop_oneof![Just(1 << 32), Just(MODULUS - 1), (1u64 << 32)..MODULUS],
    ) {
        let base = Base::from_value(base).unwrap();
        let roller = Roller::new(&base, window).unwrap();
        let rolled: Vec<u64> = roller.hashes(&words).collect();
        prop_assert_eq!(rolled.len(), roller.windows_in(words.len()));
        for (hash, window) in rolled.iter().zip(words.windows(window)) {
            prop_assert_eq!(*hash, hash_window(window, &base));
            prop_assert_eq!(*hash, hash_by_doubling(window, base.value()));
        }
    }
}

#[test]
fn chunks_at_the_edges_of_small_leaves() {
    for length in [0usize, 1, 1023, 1024, 1025, 2047, 2048, 2049, 3072, 3073, 4096, 5120] {
        let bytes: Vec<u8> = (0..=250).cycle().take(length).collect();
        let digest = Digest::from(blake3::hash(&bytes));
        let last = length.div_ceil(1024).max(1) as u64 - 1;
        let length = length as u64;
        let opening = chunk::open(&bytes, last).unwrap();
        assert!(chunk::verify(&digest, length, last, &opening.bytes, &opening.chain));
        let longer = [opening.chain.as_slice(), &[Digest::ZERO]].concat();
        assert!(
            !chunk::verify(&digest, length, last, &opening.bytes, &longer),
            "{length}"
        );
        for other in [length + 1, length + 1023, length + 1024, length + 2048] {
            assert!(
                !chunk::verify(&digest, other, last, &opening.bytes, &opening.chain),
                "{length} as {other}"
            );
            let padded = [opening.bytes.as_slice(), &[0; 1024]].concat();
            assert!(
                !chunk::verify(&digest, other, last, &padded[..1024], &opening.chain),
                "{length} as {other}"
            );
        }
    }
}

#[test]
fn commitments_that_contradict_themselves_open_nothing() {
    let words: Vec<u32> = (0..300).collect();
    let matrix = Matrix::new(&words, 3, 100).unwrap();
    let base = Base::from_root(&Digest::ZERO);
    let honest = batch::commit(&matrix, 1, &base).unwrap();
    // A prover may say anything in a digest of its own. What it says must still agree with what it shows.
    let wider = BatchCommitment { width: 101, ..honest };
    assert!(!batch::verify_row(
        &wider.digest(),
        &wider,
        &batch::open_row(&matrix, 1).unwrap()
    ));

    // Blocks of another size than the protocol's, over the same numbers.
    let numbers: Vec<u64> = [0].into_iter().chain(1..=300).chain([u64::MAX]).collect();
    let absent = [5000];
    for (size, trailing) in [(128, 0), (129, 0), (127, 0), (128, 1), (128, 8)] {
        let encode = |block: &[u64]| -> Vec<u8> {
            let bytes = block.iter().flat_map(|number| number.to_le_bytes());
            bytes.chain(std::iter::repeat_n(0, trailing)).collect()
        };
        let blocks: Vec<Vec<u8>> = numbers.chunks(size).map(encode).collect();
        let window_root = tree::root(TreeKind::BatchWindows, &blocks);
        let said = BatchCommitment { window_root, ..honest };
        let block = blocks.len() - 1;
        let path = tree::open(TreeKind::BatchWindows, &blocks, block).unwrap();
        let lower = BlockOpening {
            block: block as u64,
            bytes: blocks[block].clone(),
            path,
        };
        let opening = AbsenceOpening { lower, upper: None };
        let is_shown = batch::verify_absent(&said.digest(), &said, &base, &absent, &opening);
        assert_eq!(
            is_shown,
            (size, trailing) == (128, 0),
            "blocks of {size} and {trailing} bytes"
        );
    }
}

#[test]
fn blocks_open_at_their_edges() {
    // 2 sentinels and 126, 127, 254, 255 windows: the list ends with a block, or begins the next.
    for windows in [0usize, 1, 125, 126, 127, 253, 254, 255, 400] {
        let words: Vec<u32> = (0..windows).map(|word| u32::try_from(word).unwrap() + 16).collect();
        let matrix = Matrix::new(&words, usize::from(windows > 0), windows).unwrap();
        let base = Base::from_root(&Digest::ZERO);
        let commitment = batch::commit(&matrix, 1, &base).unwrap();
        assert_eq!(commitment.window_count, windows as u64);
        // A window of one word is its own hash, so these are in front of, between and behind all of them.
        for absent in [0, 15, u32::MAX] {
            let opening = batch::open_absent(&matrix, 1, &base, &[absent]).unwrap();
            assert!(
                batch::verify_absent(&commitment.digest(), &commitment, &base, &[absent], &opening),
                "{windows}"
            );
        }
        for &present in &words {
            assert_eq!(
                batch::open_absent(&matrix, 1, &base, &[present]),
                Err(HashError::WindowPresent)
            );
        }
    }
}

#[test]
fn neighbours_in_two_blocks_must_be_next_to_each_other() {
    let words: Vec<u32> = (0..300).map(|word| 10 * word).collect();
    let matrix = Matrix::new(&words, 1, 300).unwrap();
    let base = Base::from_root(&Digest::ZERO);
    let commitment = batch::commit(&matrix, 1, &base).unwrap();
    let blocks = all_blocks(&matrix, 1, base);
    // Between the last of one block and the first of the next.
    let absent = [126 * 10 + 5];
    let honest = AbsenceOpening {
        lower: blocks[0].clone(),
        upper: Some(blocks[1].clone()),
    };
    assert!(batch::verify_absent(
        &commitment.digest(),
        &commitment,
        &base,
        &absent,
        &honest
    ));
    // A block left out in between would hide whatever it holds.
    let hidden = [140 * 10];
    let forged = AbsenceOpening {
        lower: blocks[0].clone(),
        upper: Some(blocks[2].clone()),
    };
    assert!(!batch::verify_absent(
        &commitment.digest(),
        &commitment,
        &base,
        &hidden,
        &forged
    ));
    let reversed = AbsenceOpening {
        lower: blocks[1].clone(),
        upper: Some(blocks[0].clone()),
    };
    assert!(!batch::verify_absent(
        &commitment.digest(),
        &commitment,
        &base,
        &absent,
        &reversed
    ));
}

#[derive(Clone, Debug)]
struct OwnedCase {
    words: Vec<u32>,
    rows: usize,
    width: usize,
    window: usize,
    base: u64,
}

struct Case<'a> {
    matrix: Matrix<'a>,
    window: usize,
    base: Base,
}

impl OwnedCase {
    fn borrow(&self) -> Case<'_> {
        Case {
            matrix: Matrix::new(&self.words, self.rows, self.width).unwrap(),
            window: self.window,
            base: Base::from_value(self.base).unwrap(),
        }
    }
}

/// A batch of words below 16, so that windows repeat, with up to a few blocks of windows.
fn case() -> impl Strategy<Value = OwnedCase> {
    (1usize..12, 1usize..50, 1usize..9, (1u64 << 32)..MODULUS).prop_flat_map(|(rows, width, window, base)| {
        vec(0u32..16, rows * width).prop_map(move |words| OwnedCase {
            words,
            rows,
            width,
            window,
            base,
        })
    })
}

/// Every block of the list of windows, opened: each is where some absent hash would stand.
fn all_blocks(matrix: &Matrix<'_>, window: usize, base: Base) -> Vec<BlockOpening> {
    let roller = Roller::new(&base, window).unwrap();
    let rows = (0..matrix.rows()).map(|row| matrix.row(row).unwrap());
    let mut numbers: Vec<u64> = rows.flat_map(|row| roller.hashes(row).map(|hash| hash + 1)).collect();
    numbers.extend([0, u64::MAX]);
    numbers.sort_unstable();
    numbers.dedup();
    let blocks: Vec<Vec<u8>> = numbers
        .chunks(batch::BLOCK_NUMBERS)
        .map(|block| block.iter().flat_map(|n| n.to_le_bytes()).collect())
        .collect();
    (0..blocks.len())
        .map(|block| BlockOpening {
            block: block as u64,
            bytes: blocks[block].clone(),
            path: tree::open(TreeKind::BatchWindows, &blocks, block).unwrap(),
        })
        .collect()
}

fn changed_commitments(commitment: &BatchCommitment, tampering: Index) -> Vec<BatchCommitment> {
    let c = *commitment;
    vec![
        BatchCommitment { rows: c.rows + 1, ..c },
        BatchCommitment {
            width: c.width + 1,
            ..c
        },
        BatchCommitment {
            matrix: flipped(&c.matrix, tampering),
            ..c
        },
        BatchCommitment {
            row_root: flipped(&c.row_root, tampering),
            ..c
        },
        BatchCommitment {
            window_root: flipped(&c.window_root, tampering),
            ..c
        },
        BatchCommitment {
            window_count: c.window_count + 1,
            ..c
        },
        BatchCommitment {
            window_count: u64::MAX,
            ..c
        },
    ]
}

fn changed_blocks(opening: &BlockOpening, tampering: Index) -> Vec<BlockOpening> {
    let mut changed = vec![
        BlockOpening {
            bytes: flipped_bytes(&opening.bytes, tampering),
            ..opening.clone()
        },
        BlockOpening {
            bytes: [opening.bytes.as_slice(), &[0; 16]].concat(),
            ..opening.clone()
        },
        BlockOpening {
            bytes: opening.bytes[16..].to_vec(),
            ..opening.clone()
        },
        BlockOpening {
            bytes: opening.bytes[1..].to_vec(),
            ..opening.clone()
        },
        BlockOpening {
            block: opening.block + 1,
            ..opening.clone()
        },
        BlockOpening {
            block: u64::MAX,
            ..opening.clone()
        },
    ];
    changed.extend(
        changed_paths(&opening.path, tampering)
            .into_iter()
            .map(|path| BlockOpening {
                path,
                ..opening.clone()
            }),
    );
    changed
}

fn changed_paths(path: &[Digest], tampering: Index) -> Vec<Vec<Digest>> {
    let mut changed = vec![[path, &[Digest::ZERO]].concat()];
    if let Some((last, rest)) = path.split_last() {
        changed.push(rest.to_vec());
        changed.push([rest, &[flipped(last, tampering)]].concat());
        let place = tampering.index(path.len());
        let mut one = path.to_vec();
        one[place] = flipped(&one[place], tampering);
        changed.push(one);
    }
    changed
}

fn flipped(digest: &Digest, tampering: Index) -> Digest {
    Digest::try_from(flipped_bytes(digest.as_bytes(), tampering).as_slice()).unwrap()
}

/// The bytes with one bit changed.
fn flipped_bytes(bytes: &[u8], tampering: Index) -> Vec<u8> {
    let bit = tampering.index(8 * bytes.len());
    let mut changed = bytes.to_vec();
    changed[bit / 8] ^= 1 << (bit % 8);
    changed
}

/// The hash with no product wider than a sum: multiplication by adding up doubles.
fn hash_by_doubling(window: &[u32], base: u64) -> u64 {
    let add = |a: u64, b: u64| (a + b) % MODULUS;
    window.iter().fold(0, |hash, &word| {
        let product = (0..61).rev().fold(0, |sum, bit| {
            let doubled = add(sum, sum);
            if base >> bit & 1 == 1 {
                add(doubled, hash)
            } else {
                doubled
            }
        });
        add(product, u64::from(word))
    })
}
