//! What cannot be hashed, sharded, rolled or drawn is refused with a message that says so.
#![allow(clippy::unwrap_used, reason = "what is refused wrongly fails the test")]

use zkdv_hash::batch::{self, Matrix};
use zkdv_hash::challenge::{self, Draw, Sampling};
use zkdv_hash::leaf;
use zkdv_hash::probe::{self, ProbedTree};
use zkdv_hash::rolling::{Base, MODULUS, Roller};
use zkdv_hash::sharding::Sharding;
use zkdv_hash::tree::{self, TreeKind};
use zkdv_hash::{Digest, Dtype, HashError};

#[test]
fn leaves_that_are_not_cut_into_shards() {
    let reason = |shape: &[u64], extents: &[u64]| match Sharding::new(shape, extents).unwrap_err() {
        HashError::Sharding { reason, .. } => reason,
        other => panic!("{other}"),
    };
    assert!(reason(&[4, 4], &[2]).contains("one extent for each dimension"));
    assert!(reason(&[], &[1]).contains("one extent for each dimension"));
    assert!(reason(&[4, 4], &[5, 4]).contains("between 1 and its dimension"));
    assert!(reason(&[4, 4], &[0, 4]).contains("between 1 and its dimension"));
    assert!(reason(&[4, 0], &[2, 0]).contains("between 1 and its dimension"));
    assert!(reason(&[], &[]).contains("stays whole"));
    assert!(reason(&[4, 4], &[4, 4]).contains("stays whole"));
    assert!(reason(&[65_537], &[1]).contains("at most 65536"));
    assert!(reason(&[u64::MAX], &[1]).contains("at most 65536"));
    assert!(reason(&[1 << 32, 1 << 31], &[1, 1]).contains("at most 65536"));
    assert!(reason(&[1 << 32, 1 << 32], &[1 << 31, 1 << 31]).contains("2^64 elements"));
    assert_eq!(Sharding::new(&[65_536], &[1]).unwrap().count(), 65_536);
    assert_eq!(
        Sharding::new(&[u64::MAX], &[u64::MAX - 1]).unwrap().elements(1),
        Some(1)
    );
}

#[test]
fn shards_elements_and_digests_that_a_leaf_does_not_have() {
    let sharding = Sharding::new(&[3, 5], &[2, 5]).unwrap();
    assert_eq!(sharding.ranges(2), None);
    assert_eq!(sharding.elements(u64::MAX), None);
    assert_eq!(sharding.locate(15), None);
    assert_eq!(sharding.locate(u64::MAX), None);
    for got in [0, 1, 3] {
        let digests = vec![Digest::ZERO; got];
        assert_eq!(
            sharding.digest(&digests),
            Err(HashError::ShardCount { expected: 2, got })
        );
    }
    for got in [0, 59, 61] {
        let refused = HashError::LeafBytes {
            elements: 15,
            element_bytes: 4,
            got,
        };
        assert_eq!(sharding.shard_digests(&vec![0; got], 4), Err(refused));
    }
}

#[test]
fn a_sharded_digest_binds_ranges_and_the_order_of_shards() {
    let [one, other] = [b"one", b"two"].map(|bytes| leaf::digest(bytes));
    let digest = |shape: &[u64], extents: &[u64], shards: &[Digest]| {
        Sharding::new(shape, extents).unwrap().digest(shards).unwrap()
    };
    let own = digest(&[4], &[2], &[one, other]);
    assert_ne!(digest(&[4], &[2], &[other, one]), own);
    assert_ne!(digest(&[4], &[3], &[one, other]), own);
    assert_ne!(digest(&[3], &[2], &[one, other]), own);
    assert_ne!(digest(&[4, 1], &[2, 1], &[one, other]), own);
    assert_ne!(
        digest(&[1, 4], &[1, 2], &[one, other]),
        digest(&[4, 1], &[2, 1], &[one, other])
    );
}

#[test]
fn batches_that_are_no_matrix() {
    assert_eq!(
        Matrix::new(&[1, 2, 3], 2, 2).unwrap_err(),
        HashError::BatchShape {
            rows: 2,
            width: 2,
            words: 3
        }
    );
    assert!(matches!(
        Matrix::new(&[], usize::MAX, 2),
        Err(HashError::BatchShape { .. })
    ));
    assert!(matches!(
        Matrix::new(&[], 65_537, 0),
        Err(HashError::EmptyRows { limit: 65_536, .. })
    ));
    let matrix = Matrix::new(&[1, 2], 1, 2).unwrap();
    let base = Base::from_root(&Digest::ZERO);
    assert_eq!(batch::commit(&matrix, 0, &base), Err(HashError::EmptyWindow));
    assert!(batch::commit(&matrix, usize::MAX, &base).is_ok_and(|batch| batch.window_count == 0));
    assert!(matches!(
        batch::open_row(&matrix, 1),
        Err(HashError::Index {
            what: "row",
            index: 1,
            count: 1
        })
    ));
    assert_eq!(batch::open_window(&matrix, &[]), Err(HashError::EmptyWindow));
    assert_eq!(batch::open_window(&matrix, &[2, 1]), Err(HashError::WindowAbsent));
    let short = batch::open_absent(&matrix, 2, &base, &[1]);
    assert_eq!(short, Err(HashError::WindowLength { expected: 2, got: 1 }));
}

#[test]
fn bases_outside_the_field() {
    for value in [0, (1 << 32) - 1, MODULUS, MODULUS + 1, u64::MAX] {
        assert_eq!(Base::from_value(value), Err(HashError::RollingBase { value }));
    }
    assert!(Base::from_value(1 << 32).is_ok() && Base::from_value(MODULUS - 1).is_ok());
    assert_eq!(
        Roller::new(&Base::from_root(&Digest::ZERO), 0).unwrap_err(),
        HashError::EmptyWindow
    );
}

#[test]
fn probes_of_no_ratio_dimension_or_tree() {
    for ratio in [0.0, -0.0, -1.0, 1.5, f64::NAN, f64::NEG_INFINITY] {
        assert!(
            matches!(probe::kept(10, ratio), Err(HashError::ProbeRatio { .. })),
            "{ratio}"
        );
        // Also where no leaf has a probe.
        assert!(
            matches!(
                probe::length(&[3], Dtype::Int8, ratio),
                Err(HashError::ProbeRatio { .. })
            ),
            "{ratio}"
        );
    }
    let dimension = (1 << 53) + 1;
    assert_eq!(
        probe::kept(dimension, 0.5),
        Err(HashError::ProbeDimension { dimension })
    );
    assert!(matches!(
        probe::length(&[dimension], Dtype::Float8E5m2, 0.5),
        Err(HashError::ProbeDimension { .. })
    ));
    assert!(matches!(
        probe::length(&[1 << 32, 1 << 32], Dtype::Float32, 0.5),
        Err(HashError::ShapeOverflow { .. })
    ));
    assert!(matches!(
        probe::sign_words(&[u64::MAX], Dtype::Complex128),
        Err(HashError::ShapeOverflow { .. })
    ));
    assert_eq!(ProbedTree::try_from(2), Err(HashError::ProbeTree { number: 2 }));
}

#[test]
fn challenges_of_no_rule() {
    let draw = |sampling| challenge::draw(&Digest::ZERO, &[], &sampling, u64::MAX, 1, 1);
    for probability in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        assert!(matches!(
            draw(Sampling::Probability(probability)),
            Err(HashError::Probability { .. })
        ));
    }
    assert_eq!(draw(Sampling::Every(0)), Err(HashError::EveryZero));
    // The update after the last that a number can name is 2^64, an even one.
    assert_eq!(draw(Sampling::Every(2)).map(|draw| draw.sampled), Ok(true));
    assert_eq!(draw(Sampling::Every(3)).map(|draw| draw.sampled), Ok(false));
    let none = challenge::draw(&Digest::ZERO, &[], &Sampling::Probability(0.0), 0, 0, 0);
    assert_eq!(
        none,
        Ok(Draw {
            sampled: false,
            parameter: None,
            optimizer: None
        })
    );
}

#[test]
fn trees_without_such_a_leaf_or_kind() {
    let none: [[u8; 32]; 0] = [];
    assert!(matches!(
        tree::open(TreeKind::Inputs, &none, 0),
        Err(HashError::Index { index: 0, count: 0, .. })
    ));
    assert!(!tree::verify(
        TreeKind::Inputs,
        &tree::root(TreeKind::Inputs, &none),
        0,
        0,
        &[],
        &[]
    ));
    let message = "probes".parse::<TreeKind>().unwrap_err().to_string();
    assert!(
        message.contains("`probes`") && message.contains("parameter-probes"),
        "{message}"
    );
    for kind in TreeKind::ALL {
        assert_eq!(kind.name().parse(), Ok(kind));
    }
}
