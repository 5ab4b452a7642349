//! What cannot be hashed, sharded, rolled or drawn is refused with a message that says so.
#![allow(clippy::unwrap_used, reason = "what is refused wrongly fails the test")]

use zkdv_hash::batch::{self, Matrix};
use zkdv_hash::challenge::{self, Draw, Sampling};
use zkdv_hash::leaf::{self, Shard};
use zkdv_hash::probe::{self, ProbedTree};
use zkdv_hash::rolling::{Base, MODULUS, Roller};
use zkdv_hash::tree::{self, TreeKind};
use zkdv_hash::{Digest, Dtype, HashError};

#[test]
fn shards_out_of_order_overlapping_or_of_another_leaf() {
    let refused = |dimensions, ranges: &[&[(u64, u64)]]| {
        let shards: Vec<Shard> = ranges
            .iter()
            .map(|ranges| Shard {
                ranges: ranges.to_vec(),
                digest: Digest::ZERO,
            })
            .collect();
        leaf::sharded_digest(dimensions, &shards).unwrap_err()
    };
    assert_eq!(
        refused(2, &[&[(0, 1)]]),
        HashError::ShardDimensions {
            shard: 0,
            expected: 2,
            got: 1
        }
    );
    assert_eq!(
        refused(1, &[&[(0, 1)], &[(3, 2)]]),
        HashError::ShardRange { shard: 1, dimension: 0 }
    );
    assert_eq!(refused(1, &[&[(1, 2)], &[(0, 1)]]), HashError::ShardOrder { shard: 1 });
    assert_eq!(refused(1, &[&[(0, 2)], &[(0, 2)]]), HashError::ShardOrder { shard: 1 });
    assert_eq!(refused(0, &[&[], &[]]), HashError::ShardOrder { shard: 1 });
    assert_eq!(
        refused(1, &[&[(0, 3)], &[(2, 4)]]),
        HashError::ShardOverlap { first: 0, second: 1 }
    );
    let far = refused(2, &[&[(0, 9), (0, 1)], &[(1, 2), (1, 2)], &[(8, 9), (0, 1)]]);
    assert_eq!(far, HashError::ShardOverlap { first: 0, second: 2 });
}

#[test]
fn shards_bind_their_ranges_and_digests() {
    let shards = |stop, digest| {
        [Shard {
            ranges: vec![(0, stop)],
            digest,
        }]
    };
    let own = leaf::sharded_digest(1, &shards(4, Digest::ZERO)).unwrap();
    assert_ne!(leaf::sharded_digest(1, &shards(5, Digest::ZERO)).unwrap(), own);
    assert_ne!(leaf::sharded_digest(1, &shards(4, own)).unwrap(), own);
    assert_ne!(leaf::sharded_digest(1, &[]).unwrap(), own);
    assert_ne!(
        leaf::sharded_digest(2, &[]).unwrap(),
        leaf::sharded_digest(1, &[]).unwrap()
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
    for value in [0, (1 << 32) - 1, MODULUS, MODULUS + 1, u128::MAX] {
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
