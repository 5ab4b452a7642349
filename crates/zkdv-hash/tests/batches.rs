//! Batches of every shape and kind are committed to as the definition says, word by word.
#![allow(clippy::unwrap_used, reason = "what cannot be committed to fails the test")]

use proptest::collection::vec;
use proptest::prelude::*;
use rayon::ThreadPoolBuilder;
use zkdv_hash::batch::{self, BLOCK_NUMBERS, Matrix};
use zkdv_hash::rolling::{Base, MODULUS, hash_window};
use zkdv_hash::tree::{self, TreeKind};
use zkdv_hash::{Digest, leaf};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn small_batches_of_few_words(
        rows in 0usize..20,
        width in 0usize..80,
        window in 1usize..40,
        alphabet in vec(any::<u32>(), 1..4),
        choices in vec(any::<prop::sample::Index>(), 20 * 80),
    ) {
        let words: Vec<u32> = choices[..rows * width].iter().map(|choice| *choice.get(&alphabet)).collect();
        check("few words", &words, rows, width, window);
    }
}

#[test]
fn batches_of_every_shape() {
    // Rows that are rolled together and alone, of one chunk and of many; lists in one part and in many.
    for (rows, width, window) in [
        (0, 7, 3),
        (3, 0, 1),
        (1, 1, 1),
        (5, 31, 32),
        (9, 32, 32),
        (8, 129, 4),
        (11, 257, 32),
        (33, 785, 4),
        (97, 785, 32),
        (3, 5000, 7),
        (1, 70_001, 32),
        (5000, 3, 2),
    ] {
        let noise = noise(rows * width);
        let each = |word: &dyn Fn(usize, u32) -> u32| -> Vec<u32> {
            let words = noise.iter().enumerate();
            words.map(|(index, &noise)| word(index, noise)).collect()
        };
        for (what, words) in [
            ("noise", noise.clone()),
            ("zeros", each(&|_, _| 0)),
            ("highest words", each(&|_, _| u32::MAX)),
            ("ones in zeros", each(&|_, noise| u32::from(noise % 50 == 0))),
            ("equal rows", each(&|index, _| noise[index % width])),
            ("alternating", each(&|index, _| u32::from(index % 2 == 0))),
            ("ascending", each(&|index, _| u32::try_from(index).unwrap())),
            ("descending", each(&|index, _| u32::MAX - u32::try_from(index).unwrap())),
            (
                "padded rows",
                each(&|index, noise| if index % width < width / 3 { noise } else { 0 }),
            ),
        ] {
            check(what, &words, rows, width, window);
        }
    }
}

/// Hashes that share their upper bits can be chosen where the base is known; here bases are chosen, the lowest and the
/// highest.
#[test]
fn hashes_in_few_buckets() {
    for (base, window) in [(1 << 32, 2), (MODULUS - 1, 2), (MODULUS - 1, 5)] {
        let base = Base::from_value(base).unwrap();
        for rows in [7, 200] {
            let words = noise(rows * 400);
            check_with(base, "few buckets", &words, rows, 400, window);
            check_with(base, "equal words", &vec![u32::MAX; rows * 400], rows, 400, window);
        }
    }
}

fn check(what: &str, words: &[u32], rows: usize, width: usize, window: usize) {
    check_with(Base::from_root(&Digest::ZERO), what, words, rows, width, window);
}

fn check_with(base: Base, what: &str, words: &[u32], rows: usize, width: usize, window: usize) {
    let matrix = Matrix::new(words, rows, width).unwrap();
    let found = batch::commit(&matrix, window, &base).unwrap();
    let rows_of_words = || (0..rows).map(|row| &words[row * width..][..width]);
    let mut numbers: Vec<u64> = rows_of_words()
        .flat_map(|row| row.windows(window).map(|window| hash_window(window, &base) + 1))
        .chain([0, u64::MAX])
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    let blocks: Vec<Vec<u8>> = numbers
        .chunks(BLOCK_NUMBERS)
        .map(|block| block.iter().flat_map(|number| number.to_le_bytes()).collect())
        .collect();
    let bytes = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
    let row_digests: Vec<[u8; 32]> = rows_of_words().map(|row| blake3::hash(&bytes(row)).into()).collect();
    let context = format!("{what}, {rows} x {width}, windows of {window}");
    assert_eq!(found.window_count, numbers.len() as u64 - 2, "{context}");
    assert_eq!(
        found.window_root,
        tree::root(TreeKind::BatchWindows, &blocks),
        "{context}"
    );
    assert_eq!(
        found.row_root,
        tree::root(TreeKind::BatchRows, &row_digests),
        "{context}"
    );
    assert_eq!(found.matrix, leaf::digest(&bytes(words)), "{context}");
    for threads in [1, 3] {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert_eq!(
            pool.install(|| batch::commit(&matrix, window, &base)).unwrap(),
            found,
            "{context}"
        );
    }
}

/// Words without a pattern.
fn noise(count: usize) -> Vec<u32> {
    let mut bytes = vec![0; 4 * count];
    blake3::Hasher::new_derive_key("zkdv test noise")
        .finalize_xof()
        .fill(&mut bytes);
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect()
}
