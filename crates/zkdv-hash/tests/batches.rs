//! Batches: every window's hash against its definition.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use zkdv_hash::Digest;
use zkdv_hash::rolling::{Base, Roller, hash_window};

#[test]
fn rolling_is_hashing_each_window() {
    let base = Base::from_root(&Digest::ZERO);
    let words: Vec<u32> = (0..40_000u32)
        .map(|i| i.wrapping_mul(2_654_435_761).rotate_left(i % 32))
        .collect();
    for (rows, width, window) in [
        (1, 1, 1),
        (1, 5000, 7),
        (4, 300, 32),
        (7, 100, 100),
        (9, 33, 32),
        (5, 31, 32),
        (3, 3000, 500),
        (6, 40, 1),
    ] {
        let words = &words[..rows * width];
        let roller = Roller::new(&base, window).unwrap();
        let hashes: Vec<u128> = words.chunks(width).flat_map(|row| roller.hashes(row)).collect();
        assert_eq!(hashes.len(), rows * roller.windows_in(width));
        let expected: Vec<u128> = words
            .chunks(width)
            .flat_map(|row| row.windows(window))
            .map(|window| hash_window(window, &base))
            .collect();
        assert_eq!(hashes, expected, "{rows} x {width}, {window}");
    }
}
