//! Leaves against the `blake3` crate.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use zkdv_hash::commit::{self, LeafInput, Outputs};
use zkdv_hash::probe::{self, ProbeOut};
use zkdv_hash::{Digest, Dtype, leaf};

#[test]
fn digests_are_plain_blake3() {
    let bytes: Vec<u8> = (0..700_000u32).map(|i| (i % 251) as u8).collect();
    for length in [
        0, 1, 1023, 1024, 1025, 65_536, 65_537, 131_072, 131_073, 200_000, 262_144, 699_999,
    ] {
        let expected = Digest::from(blake3::hash(&bytes[..length]));
        assert_eq!(leaf::digest(&bytes[..length]), expected, "{length}");
        let shape = [length as u64];
        assert_eq!(
            commit::leaf(Dtype::Uint8, &bytes[..length], &shape, 0.01, &[], ProbeOut::None).unwrap(),
            expected
        );
    }
}

#[test]
fn one_pass_over_many_leaves_is_each_leaf_alone() {
    let root = Digest::from(blake3::hash(b"root"));
    let shapes: [&[u64]; 6] = [&[300, 257], &[], &[1], &[5, 0], &[100_003], &[64, 1000]];
    let arrays: Vec<Vec<u8>> = shapes
        .iter()
        .map(|shape| {
            (0..shape.iter().product::<u64>())
                .flat_map(|i| (i as f32).sin().to_le_bytes())
                .collect()
        })
        .collect();
    let mut signs = Vec::new();
    let mut expected_probes = Vec::new();
    let mut expected_digests: Vec<[u8; 32]> = Vec::new();
    for (index, (shape, bytes)) in shapes.iter().zip(&arrays).enumerate() {
        let words = probe::sign_words(shape, Dtype::Float32).unwrap();
        let own = probe::signs(&root, probe::ProbedTree::Parameters, index as u64, words * 32);
        let mut out = vec![0f32; probe::length(shape, Dtype::Float32, 0.01).unwrap()];
        expected_digests.push(
            commit::leaf(Dtype::Float32, bytes, shape, 0.01, &own, ProbeOut::F32(&mut out))
                .unwrap()
                .into(),
        );
        expected_probes.extend(out);
        signs.extend(own);
    }
    let inputs: Vec<LeafInput<'_>> = shapes
        .iter()
        .zip(&arrays)
        .map(|(shape, bytes)| LeafInput {
            dtype: Dtype::Float32,
            shape,
            bytes,
            due: true,
        })
        .collect();
    let mut digests = vec![[0; 32]; shapes.len()];
    let mut probe_digests = digests.clone();
    let mut probes32 = vec![0f32; expected_probes.len()];
    let outputs = Outputs {
        digests: &mut digests,
        probe_digests: &mut probe_digests,
        probes32: &mut probes32,
        probes64: &mut [],
    };
    commit::leaves(&inputs, 0.01, &signs, outputs).unwrap();
    assert_eq!(digests, expected_digests);
    assert_eq!(probes32, expected_probes);
    assert_eq!(probe_digests[3], *blake3::hash(b"").as_bytes());
}
