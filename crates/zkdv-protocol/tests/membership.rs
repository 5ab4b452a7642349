//! Proofs of membership show what is true of a batch, and nothing that was changed is accepted.
#![allow(clippy::unwrap_used, reason = "what cannot be shown fails the test")]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use zkdv_hash::batch::{self, BlockOpening, Matrix, RowOpening};
use zkdv_hash::rolling::Base;
use zkdv_hash::{Digest, HashError};
use zkdv_protocol::limits::{MAX_BLOCK_BYTES, MAX_MEMBERSHIP_BYTES};
use zkdv_protocol::membership::{Claim, CommittedUpdate, MembershipError, MembershipFormatError, MembershipProof};

const RUN: Digest = Digest::from_bytes([3; 32]);

fn committed(matrix: &Matrix<'_>, rolling_window: usize) -> CommittedUpdate {
    let base = Base::from_root(&RUN);
    CommittedUpdate {
        run: RUN,
        record: 9,
        update: 4,
        batch: batch::commit(matrix, rolling_window, &base).unwrap().digest(),
        rolling_window: rolling_window as u64,
    }
}

/// Words of a few values, so that windows repeat, or of any.
fn batches() -> impl Strategy<Value = (Vec<u32>, usize, usize, usize)> {
    (
        1usize..40,
        1usize..30,
        1usize..5,
        prop_oneof![Just(3u32), Just(u32::MAX)],
    )
        .prop_flat_map(|(rows, width, window, most)| {
            vec(0..=most, rows * width).prop_map(move |words| (words, rows, width, window))
        })
}

fn stands(matrix: &Matrix<'_>, words: &[u32]) -> bool {
    (0..matrix.rows()).any(|row| {
        matrix
            .row(row)
            .unwrap()
            .windows(words.len())
            .any(|window| window == words)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_row_is_shown((words, rows, width, window) in batches(), place in any::<Index>()) {
        let matrix = Matrix::new(&words, rows, width).unwrap();
        let update = committed(&matrix, window);
        let row = place.index(rows);
        let proof = MembershipProof::of_row(&update, &matrix, row).unwrap();
        prop_assert_eq!(proof.verify(&update), Ok(()));
        prop_assert_eq!(proof.words(), matrix.row(row).unwrap());
        let encoded = proof.encode().unwrap();
        prop_assert_eq!(MembershipProof::decode(&encoded), Ok(proof));
    }

    #[test]
    fn words_are_shown_to_be_there_or_not((words, rows, width, window) in batches(), sought in vec(0u32..4, 1..8)) {
        let matrix = Matrix::new(&words, rows, width).unwrap();
        let update = committed(&matrix, window);
        match MembershipProof::of_words(&update, &matrix, &sought) {
            Ok(proof) => {
                prop_assert_eq!(proof.verify(&update), Ok(()));
                prop_assert_eq!(proof.words(), &sought[..]);
                prop_assert_eq!(matches!(proof.claim, Claim::Absent { .. }), !stands(&matrix, &sought));
                prop_assert_eq!(MembershipProof::decode(&proof.encode().unwrap()), Ok(proof));
            }
            Err(HashError::AbsenceTooShort { .. }) => prop_assert!(sought.len() < window && !stands(&matrix, &sought)),
            Err(HashError::EveryWindowPresent) => {
                prop_assert!(!stands(&matrix, &sought));
                prop_assert!(sought.windows(window).all(|window| stands(&matrix, window)));
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn a_proof_of_any_other_update_is_refused((words, rows, width, window) in batches(), place in any::<Index>()) {
        let matrix = Matrix::new(&words, rows, width).unwrap();
        let update = committed(&matrix, window);
        let row = matrix.row(place.index(rows)).unwrap();
        let absent = vec![u32::MAX - 7; window];
        for sought in [row, &row[..1], &absent] {
            let Ok(proof) = MembershipProof::of_words(&update, &matrix, sought) else { continue };
            let other = Digest::from_bytes([4; 32]);
            let refused = |update: &CommittedUpdate| proof.verify(update).unwrap_err();
            prop_assert_eq!(refused(&CommittedUpdate { run: other, ..update }), MembershipError::OtherRun);
            prop_assert_eq!(refused(&CommittedUpdate { record: 8, ..update }), MembershipError::OtherRecord);
            prop_assert_eq!(refused(&CommittedUpdate { update: 5, ..update }), MembershipError::OtherRecord);
            prop_assert_eq!(refused(&CommittedUpdate { batch: other, ..update }), MembershipError::OtherBatch);
        }
    }

    /// One changed bit anywhere gives bytes that are refused, or a proof that is refused, or the same statement in which what
    /// was changed plays no part: words around a window that is shown absent.
    #[test]
    fn one_changed_bit_is_noticed((words, rows, width, window) in batches(), sought in vec(0u32..9, 1..8), place in any::<Index>(), bit in 0u8..8) {
        let matrix = Matrix::new(&words, rows, width).unwrap();
        let update = committed(&matrix, window);
        let Ok(proof) = MembershipProof::of_words(&update, &matrix, &sought) else { return Ok(()) };
        let mut encoded = proof.encode().unwrap();
        let at = place.index(encoded.len());
        encoded[at] ^= 1 << bit;
        let Ok(changed) = MembershipProof::decode(&encoded) else { return Ok(()) };
        if changed.verify(&update).is_err() {
            return Ok(());
        }
        match &changed.claim {
            Claim::Absent { words, position, .. } => {
                prop_assert!(!stands(&matrix, words));
                prop_assert_ne!((words, *position), (&sought, 0));
            }
            // Another length or position of the same row, or a row with the same words.
            _ => prop_assert!(stands(&matrix, changed.words())),
        }
    }

    #[test]
    fn any_bytes_are_refused_or_written_back(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(proof) = MembershipProof::decode(&bytes) {
            prop_assert_eq!(proof.encode(), Ok(bytes));
        }
    }
}

/// A batch of one row of 300 different numbers in ascending order, with windows of one word: the list has three blocks.
fn numbers() -> Vec<u32> {
    (0..300).map(|number| number * 2 + 1).collect()
}

fn absent_proof(words: &[u32], sought: &[u32]) -> (CommittedUpdate, MembershipProof) {
    let matrix = Matrix::new(words, 1, words.len()).unwrap();
    let update = committed(&matrix, 1);
    let proof = MembershipProof::of_words(&update, &matrix, sought).unwrap();
    assert_eq!(proof.verify(&update), Ok(()));
    (update, proof)
}

#[test]
fn a_present_window_cannot_be_shown_absent_with_blocks_of_its_list() {
    let words = numbers();
    let matrix = Matrix::new(&words, 1, words.len()).unwrap();
    let update = committed(&matrix, 1);
    // A word hashes to itself, so that every number of the list is known; those around it are not neighbours.
    let blocks: Vec<BlockOpening> = [0u32, 256, 400, 602]
        .iter()
        .map(
            |&sought| match MembershipProof::of_words(&update, &matrix, &[sought]).unwrap().claim {
                Claim::Absent { opening, .. } => opening.lower,
                other => panic!("{other:?}"),
            },
        )
        .collect();
    let (_, proof) = absent_proof(&words, &[0]);
    for &present in &words {
        for lower in &blocks {
            for upper in blocks.iter().cloned().map(Some).chain([None]) {
                let mut forged = proof.clone();
                forged.claim = Claim::Absent {
                    words: vec![present],
                    position: 0,
                    opening: batch::AbsenceOpening {
                        lower: lower.clone(),
                        upper,
                    },
                };
                assert_eq!(forged.verify(&update), Err(MembershipError::Absent));
            }
        }
    }
}

#[test]
fn absence_between_blocks_needs_both() {
    let words = numbers();
    // 127 numbers and the sentinel fill the first block: 253 is its last, 255 the first of the next.
    let (update, proof) = absent_proof(&words, &[254]);
    let Claim::Absent {
        words,
        position,
        opening,
    } = proof.claim.clone()
    else {
        panic!("it is absent")
    };
    assert!(opening.upper.is_some());
    let mut forged = proof;
    for opening in [
        batch::AbsenceOpening {
            upper: None,
            ..opening.clone()
        },
        batch::AbsenceOpening {
            lower: opening.upper.clone().unwrap(),
            upper: None,
        },
        batch::AbsenceOpening {
            lower: opening.upper.clone().unwrap(),
            upper: Some(opening.lower.clone()),
        },
        batch::AbsenceOpening {
            lower: opening.lower.clone(),
            upper: Some(opening.lower.clone()),
        },
    ] {
        forged.claim = Claim::Absent {
            words: words.clone(),
            position,
            opening,
        };
        assert_eq!(forged.verify(&update), Err(MembershipError::Absent));
    }
}

#[test]
fn the_position_of_an_absent_window_lies_inside_its_words() {
    let (update, proof) = absent_proof(&numbers(), &[1, 2, 3]);
    let Claim::Absent {
        words,
        position,
        opening,
    } = proof.claim.clone()
    else {
        panic!("it is absent")
    };
    assert_eq!(position, 1, "1 is there, 2 is not");
    for position in [3, 4, u64::MAX] {
        let claim = Claim::Absent {
            words: words.clone(),
            position,
            opening: opening.clone(),
        };
        let forged = MembershipProof { claim, ..proof.clone() };
        assert_eq!(forged.verify(&update), Err(MembershipError::Position));
    }
    for position in [0, 2] {
        let claim = Claim::Absent {
            words: words.clone(),
            position,
            opening: opening.clone(),
        };
        let forged = MembershipProof { claim, ..proof.clone() };
        assert_eq!(forged.verify(&update), Err(MembershipError::Absent));
    }
}

#[test]
fn the_size_grows_with_the_logarithm_of_the_batch() {
    let size = |rows: u32| {
        let words: Vec<u32> = (0..rows * 8).collect();
        let matrix = Matrix::new(&words, rows as usize, 8).unwrap();
        let update = committed(&matrix, 4);
        let row = MembershipProof::of_row(&update, &matrix, rows as usize / 2)
            .unwrap()
            .encode()
            .unwrap()
            .len();
        let absent = MembershipProof::of_words(&update, &matrix, &[9, 9, 9, 9])
            .unwrap()
            .encode()
            .unwrap()
            .len();
        (row, absent)
    };
    let (row, absent) = size(1 << 14);
    assert!(row < 320 + 14 * 34, "{row}");
    // One block of 128 numbers and its path, or two.
    assert!(absent < 300 + 2 * (1024 + 40 + 12 * 34), "{absent}");
    assert_eq!(size(1 << 15).0 - row, 34, "a level more is a digest more");
}

fn row_proof() -> (CommittedUpdate, MembershipProof) {
    let words: Vec<u32> = (0..20).collect();
    let matrix = Matrix::new(&words, 5, 4).unwrap();
    let update = committed(&matrix, 2);
    let proof = MembershipProof::of_row(&update, &matrix, 1).unwrap();
    (update, proof)
}

fn refused(proof: &MembershipProof) -> MembershipFormatError {
    MembershipProof::decode(&proof.encode().unwrap()).unwrap_err()
}

#[test]
fn what_the_grammar_does_not_allow_is_not_read() {
    let (_, proof) = row_proof();
    let row = match &proof.claim {
        Claim::Row(opening) => opening.clone(),
        other => panic!("{other:?}"),
    };
    let long = RowOpening {
        path: vec![Digest::ZERO; 65],
        ..row.clone()
    };
    assert!(matches!(
        refused(&MembershipProof {
            claim: Claim::Row(long),
            ..proof.clone()
        }),
        MembershipFormatError::Grammar(_)
    ));
    for (position, length) in [(0, 0), (0, 5), (4, 1), (u64::MAX, 1), (1, u64::MAX)] {
        let opening = batch::WindowOpening {
            row: row.clone(),
            position,
        };
        let claim = Claim::Window { opening, length };
        assert!(matches!(
            refused(&MembershipProof { claim, ..proof.clone() }),
            MembershipFormatError::Grammar(_)
        ));
    }
    let block = BlockOpening {
        block: 0,
        bytes: vec![0; MAX_BLOCK_BYTES + 1],
        path: Vec::new(),
    };
    let opening = batch::AbsenceOpening {
        lower: block,
        upper: None,
    };
    let claim = Claim::Absent {
        words: vec![1],
        position: 0,
        opening,
    };
    assert!(matches!(
        refused(&MembershipProof { claim, ..proof }),
        MembershipFormatError::Grammar(_)
    ));
}

#[test]
fn a_proof_that_is_too_long_is_neither_written_nor_read() {
    let words = vec![0; MAX_MEMBERSHIP_BYTES / 4];
    let matrix = Matrix::new(&words, 1, words.len()).unwrap();
    let proof = MembershipProof::of_row(&committed(&matrix, 1), &matrix, 0).unwrap();
    assert!(matches!(proof.encode(), Err(MembershipFormatError::TooLarge { .. })));
    let bytes = vec![0; MAX_MEMBERSHIP_BYTES + 1];
    assert!(matches!(
        MembershipProof::decode(&bytes),
        Err(MembershipFormatError::TooLarge { .. })
    ));
}

#[test]
fn other_versions_and_other_files_are_told_apart_from_damage() {
    let (_, proof) = row_proof();
    let encoded = proof.encode().unwrap();
    // The version is the one byte after its name.
    let name = b"zkdv-membership";
    let place = encoded.windows(name.len()).position(|bytes| bytes == name).unwrap() + name.len();
    let mut other = encoded.clone();
    other[place] = 2;
    assert_eq!(MembershipProof::decode(&other), Err(MembershipFormatError::Version));
    assert_eq!(MembershipProof::decode(b"\xa0"), Err(MembershipFormatError::Version));
    assert!(matches!(
        MembershipProof::decode(&encoded[..50]),
        Err(MembershipFormatError::Encoding(_))
    ));
    assert!(matches!(
        MembershipProof::decode(b""),
        Err(MembershipFormatError::Encoding(_))
    ));
    for cut in 0..encoded.len() {
        assert!(MembershipProof::decode(&encoded[..cut]).is_err());
    }
}

#[test]
fn batches_without_rows_or_windows_have_none_of_them() {
    for (rows, width) in [(0, 4), (3, 1), (3, 0)] {
        let words = vec![1; rows * width];
        let matrix = Matrix::new(&words, rows, width).unwrap();
        let update = committed(&matrix, 2);
        let proof = MembershipProof::of_words(&update, &matrix, &[1, 1]).unwrap();
        assert!(matches!(proof.claim, Claim::Absent { .. }));
        assert_eq!(proof.verify(&update), Ok(()));
        assert!(MembershipProof::of_row(&update, &matrix, rows).is_err());
    }
}
