//! Digests and probes in one pass: against BLAKE3, against sums by definition, and on any number of threads.
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::float_cmp,
    reason = "tests of small numbers"
)]

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use rayon::ThreadPoolBuilder;
use zkdv_hash::batch::{self, Matrix};
use zkdv_hash::commit::{self, LeafInput, Outputs};
use zkdv_hash::probe::{self, ProbeOut, ProbedTree};
use zkdv_hash::rolling::Base;
use zkdv_hash::tree::{self, TreeKind};
use zkdv_hash::{Digest, Dtype, HashError, leaf};

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_leaf_alone((dtype, shape) in leaf_types(), ratio in ratios()) {
        let leaf = Leaf::new(dtype, shape, 1);
        let (digest, probe) = leaf.commit(ratio);
        prop_assert_eq!(digest, Digest::from(blake3::hash(&leaf.bytes)));
        prop_assert_eq!(&probe, &leaf.probe(ratio));
        if dtype == Dtype::Float32 {
            leaf.assert_sums(ratio, &probe);
        }
    }

    #[test]
    fn many_leaves_are_each_leaf_alone(types in vec((leaf_types(), any::<bool>()), 0..12), ratio in ratios()) {
        let leaves: Vec<(Leaf, bool)> = types
            .into_iter()
            .enumerate()
            .map(|(index, ((dtype, shape), due))| (Leaf::new(dtype, shape, index as u64), due))
            .collect();
        let found = Results::of(&leaves, ratio).unwrap();
        let mut expected = Results::default();
        for (leaf, due) in &leaves {
            let (digest, mut probe) = leaf.commit(ratio);
            if *due {
                expected.digests.push(digest.into());
                expected.probe_digests.push(Digest::from(blake3::hash(&probe.bytes())).into());
            } else {
                expected.digests.push([0; 32]);
                expected.probe_digests.push([0; 32]);
                probe.f32s.fill(0.0);
                probe.f64s.fill(0.0);
            }
            expected.probes32.extend(probe.f32s);
            expected.probes64.extend(probe.f64s);
        }
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let shapes: [&[u64]; 8] = [
        &[300, 257],
        &[],
        &[1],
        &[5, 0],
        &[200_003],
        &[64, 1000],
        &[3, 7, 11_000],
        &[90],
    ];
    let dtypes = [
        Dtype::Float32,
        Dtype::Bfloat16,
        Dtype::Float64,
        Dtype::Complex64,
        Dtype::Int32,
    ];
    let leaves: Vec<(Leaf, bool)> = dtypes
        .iter()
        .flat_map(|&dtype| shapes.iter().map(move |shape| (dtype, shape)))
        .enumerate()
        .map(|(index, (dtype, shape))| (Leaf::new(dtype, shape.to_vec(), index as u64), index % 7 != 3))
        .collect();
    let words: Vec<u32> = noise("words", 4 * 64 * 300)
        .as_chunks()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect();
    let matrix = Matrix::new(&words, 64, 300).unwrap();
    let base = Base::from_root(&Digest::ZERO);
    let many: Vec<[u8; 8]> = (0..5000u64).map(u64::to_le_bytes).collect();
    let results = [1, 2, 5].map(|threads| {
        let pool = ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let ratios = [0.01, 0.3, 1.0].map(|ratio| Results::of(&leaves, ratio).unwrap());
            let batch = batch::commit(&matrix, 32, &base).unwrap();
            (
                ratios,
                batch,
                tree::root(TreeKind::Parameters, &many),
                leaf::digest(&leaves[4].0.bytes),
            )
        })
    });
    assert_eq!(results[0], results[1]);
    assert_eq!(results[0], results[2]);
}

#[test]
fn every_bit_of_a_leaf_counts() {
    let leaf = Leaf::new(Dtype::Float32, vec![2, 40_000], 0);
    let (digest, probe) = leaf.commit(0.01);
    for byte in [0, 131_071, 131_072, 300_000, leaf.bytes.len() - 1] {
        let mut changed = Leaf {
            bytes: leaf.bytes.clone(),
            shape: leaf.shape.clone(),
            signs: leaf.signs.clone(),
            ..leaf
        };
        changed.bytes[byte] ^= 0x40;
        let (changed_digest, changed_probe) = changed.commit(0.01);
        assert_ne!(changed_digest, digest, "{byte}");
        let differing = probe
            .f32s
            .iter()
            .zip(&changed_probe.f32s)
            .filter(|(a, b)| a != b)
            .count();
        assert_eq!(differing, 1, "{byte}");
    }
}

#[test]
fn a_scalar_is_its_own_probe() {
    // A payload of NaN and a negative zero stay what they are.
    for bits in [0x7fc0_1234u32, 0x8000_0000, 1, 0x3f80_0000] {
        let mut out = [0.0f32];
        let bytes = bits.to_le_bytes();
        commit::leaf(Dtype::Float32, &bytes, &[], 0.01, &[], ProbeOut::F32(&mut out)).unwrap();
        assert_eq!(out[0].to_bits(), bits);
    }
    let mut parts = [0.0f64; 2];
    let bytes = [(-1.5f64).to_le_bytes(), 2.5f64.to_le_bytes()].concat();
    commit::leaf(Dtype::Complex128, &bytes, &[], 0.01, &[], ProbeOut::F64(&mut parts)).unwrap();
    assert_eq!(parts.map(f64::to_bits), [(-1.5f64).to_bits(), 2.5f64.to_bits()]);
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_written() {
    let leaves = [
        (Leaf::new(Dtype::Float32, vec![10, 100], 0), true),
        (Leaf::new(Dtype::Float64, vec![7], 1), false),
    ];
    let inputs: Vec<LeafInput<'_>> = leaves.iter().map(|(leaf, due)| leaf.input(*due)).collect();
    let signs: Vec<u32> = leaves.iter().flat_map(|(leaf, _)| leaf.signs.clone()).collect();
    let attempt = |inputs: &[LeafInput<'_>], ratio: f64, signs: &[u32], lengths: [usize; 4]| {
        let mut results = Results::filled(lengths);
        let before = results.clone();
        let error = commit::leaves(inputs, ratio, signs, results.outputs()).unwrap_err();
        assert_eq!(results, before, "{error}");
        error
    };
    let fitting = [2, 2, 10, 1];
    let mut results = Results::filled(fitting);
    commit::leaves(&inputs, 0.01, &signs, results.outputs()).unwrap();
    assert!(results.probes32.iter().all(|number| *number != -7.0) && results.probes64 == [0.0]);

    for (place, what) in ["digests", "probe digests", "binary32", "binary64"]
        .into_iter()
        .enumerate()
    {
        for change in [-1isize, 1] {
            let mut lengths = fitting;
            lengths[place] = lengths[place].checked_add_signed(change).unwrap();
            let error = attempt(&inputs, 0.01, &signs, lengths);
            assert!(
                matches!(error, HashError::OutputLength { .. }) && error.to_string().contains(what),
                "{error}"
            );
        }
    }
    for words in [&signs[1..], &[signs.as_slice(), &[0]].concat()] {
        assert!(matches!(
            attempt(&inputs, 0.01, words, fitting),
            HashError::SignWords { expected: 5, .. }
        ));
    }
    for ratio in [0.0, -0.5, 1.000_000_1, f64::NAN, f64::INFINITY] {
        assert!(matches!(
            attempt(&inputs, ratio, &signs, fitting),
            HashError::ProbeRatio { .. }
        ));
    }
    let short = LeafInput {
        bytes: &inputs[0].bytes[4..],
        ..inputs[0]
    };
    assert!(matches!(
        attempt(&[short, inputs[1]], 0.01, &signs, fitting),
        HashError::ByteCount { got: 3996, .. }
    ));
    let large = LeafInput {
        shape: &[1 << 40, 1 << 40],
        ..inputs[0]
    };
    assert!(matches!(
        attempt(&[large, inputs[1]], 0.01, &signs, fitting),
        HashError::ShapeOverflow { .. }
    ));
    // Leaves that are not due may have any shape that can be counted: together they need not be countable.
    let vast = LeafInput {
        dtype: Dtype::Float8E5m2,
        shape: &[1 << 11, 1 << 52],
        due: false,
        bytes: &[],
    };
    assert!(matches!(
        attempt(&[vast; 4], 1.0, &signs, [4, 4, 10, 1]),
        HashError::SignWords { .. }
    ));
}

#[test]
fn a_leaf_alone_is_refused_where_it_does_not_fit() {
    let leaf = Leaf::new(Dtype::Float32, vec![10, 100], 0);
    let attempt = |signs: &[u32], out: ProbeOut<'_>| {
        commit::leaf(leaf.dtype, &leaf.bytes, &leaf.shape, 0.01, signs, out).unwrap_err()
    };
    assert!(matches!(
        attempt(&leaf.signs[1..], ProbeOut::F32(&mut [0.0; 10])),
        HashError::SignWords { .. }
    ));
    assert!(matches!(
        attempt(&leaf.signs, ProbeOut::F32(&mut [0.0; 9])),
        HashError::OutputLength { got: 9, .. }
    ));
    assert!(matches!(
        attempt(&leaf.signs, ProbeOut::F64(&mut [0.0; 10])),
        HashError::OutputLength { got: 0, .. }
    ));
    assert!(matches!(
        attempt(&leaf.signs, ProbeOut::None),
        HashError::OutputLength { got: 0, .. }
    ));
    let none = commit::leaf(Dtype::Int8, &[1], &[1], 0.01, &[], ProbeOut::F32(&mut [0.0])).unwrap_err();
    assert!(matches!(
        none,
        HashError::OutputLength {
            expected: 0,
            got: 1,
            ..
        }
    ));
}

fn leaf_types() -> impl Strategy<Value = (Dtype, Vec<u64>)> {
    let shapes = prop_oneof![
        Just(vec![]),
        vec(0u64..40, 1..4),
        vec(1u64..400, 1..3),
        // Long enough for several blocks, whatever the type.
        (60_000u64..90_000).prop_map(|length| vec![length]),
        (1u64..4, 20_000u64..40_000).prop_map(|(rows, width)| vec![rows, width]),
        (5_000u64..20_000, 1u64..12).prop_map(|(rows, width)| vec![rows, width]),
    ];
    (select(Dtype::ALL), shapes)
}

fn ratios() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.01), Just(1.0), Just(1e-9), 0.001..1.0]
}

struct Leaf {
    dtype: Dtype,
    shape: Vec<u64>,
    bytes: Vec<u8>,
    signs: Vec<u32>,
}

impl Leaf {
    fn new(dtype: Dtype, shape: Vec<u64>, index: u64) -> Self {
        let length = usize::try_from(dtype.array_bytes(&shape).unwrap()).unwrap();
        let mut bytes = noise(&format!("{dtype} {index}"), length);
        if dtype == Dtype::Float32 {
            // Numbers between 1 and 2 of either sign, whose sums are easily bounded.
            bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|[_, _, high, top]| {
                *high |= 0x80;
                *top = *top & 0x80 | 0x3f;
            });
        }
        let columns = 32 * probe::sign_words(&shape, dtype).unwrap();
        let signs = probe::signs(&Digest::ZERO, ProbedTree::Optimizer, index, columns);
        Self {
            dtype,
            shape,
            bytes,
            signs,
        }
    }

    fn input(&self, due: bool) -> LeafInput<'_> {
        // A leaf that is not due may come without its bytes.
        LeafInput {
            dtype: self.dtype,
            shape: &self.shape,
            bytes: if due { &self.bytes } else { &[] },
            due,
        }
    }

    fn commit(&self, ratio: f64) -> (Digest, Probe) {
        let Self {
            dtype,
            shape,
            bytes,
            signs,
        } = self;
        let mut probe = Probe::new(*dtype, shape, ratio);
        let digest = commit::leaf(*dtype, bytes, shape, ratio, signs, probe.out()).unwrap();
        (digest, probe)
    }

    fn probe(&self, ratio: f64) -> Probe {
        let Self {
            dtype,
            shape,
            bytes,
            signs,
        } = self;
        let mut probe = Probe::new(*dtype, shape, ratio);
        probe::probe(*dtype, bytes, shape, ratio, signs, probe.out()).unwrap();
        probe
    }

    /// Every number is the signed sum over its slice, to rounding.
    fn assert_sums(&self, ratio: f64, probe: &Probe) {
        let values: Vec<f64> = self
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes).into())
            .collect();
        let Some(&last) = self.shape.last() else { return };
        if values.is_empty() {
            return;
        }
        let (dimension, kept) = (
            usize::try_from(last).unwrap(),
            usize::try_from(probe::kept(last, ratio).unwrap()).unwrap(),
        );
        let mut found = probe.f32s.iter();
        for row in values.chunks(dimension) {
            for slice in 0..kept {
                let columns = slice * dimension / kept..(slice + 1) * dimension / kept;
                let terms = columns.len() as f64;
                let signed = columns.map(|i| {
                    if self.signs[i / 32] >> (i % 32) & 1 == 1 {
                        -row[i]
                    } else {
                        row[i]
                    }
                });
                let difference = (signed.sum::<f64>() - f64::from(*found.next().unwrap())).abs();
                // Each of the additions rounds a number below twice the terms.
                assert!(
                    difference <= terms * 2.0 * terms * f64::from(f32::EPSILON),
                    "{difference} at {terms} terms"
                );
            }
        }
        assert_eq!(found.next(), None);
    }
}

#[derive(Debug)]
struct Probe {
    f32s: Vec<f32>,
    f64s: Vec<f64>,
}

impl Probe {
    fn new(dtype: Dtype, shape: &[u64], ratio: f64) -> Self {
        let length = probe::length(shape, dtype, ratio).unwrap();
        match dtype {
            Dtype::Float64 | Dtype::Complex128 => Self {
                f32s: vec![],
                f64s: vec![-7.0; length],
            },
            _ => Self {
                f32s: vec![-7.0; length],
                f64s: vec![],
            },
        }
    }

    fn out(&mut self) -> ProbeOut<'_> {
        match (self.f32s.is_empty(), self.f64s.is_empty()) {
            (true, true) => ProbeOut::None,
            (false, _) => ProbeOut::F32(&mut self.f32s),
            (_, false) => ProbeOut::F64(&mut self.f64s),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let f32s = self.f32s.iter().flat_map(|number| number.to_le_bytes());
        f32s.chain(self.f64s.iter().flat_map(|number| number.to_le_bytes()))
            .collect()
    }
}

impl PartialEq for Probe {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

#[derive(Clone, Debug, Default)]
struct Results {
    digests: Vec<[u8; 32]>,
    probe_digests: Vec<[u8; 32]>,
    probes32: Vec<f32>,
    probes64: Vec<f64>,
}

impl Results {
    fn of(leaves: &[(Leaf, bool)], ratio: f64) -> Result<Self, HashError> {
        let inputs: Vec<LeafInput<'_>> = leaves.iter().map(|(leaf, due)| leaf.input(*due)).collect();
        let signs: Vec<u32> = leaves.iter().flat_map(|(leaf, _)| leaf.signs.clone()).collect();
        let probes: Vec<Probe> = leaves
            .iter()
            .map(|(leaf, _)| Probe::new(leaf.dtype, &leaf.shape, ratio))
            .collect();
        let length32 = probes.iter().map(|probe| probe.f32s.len()).sum();
        let length64 = probes.iter().map(|probe| probe.f64s.len()).sum();
        let mut results = Self::filled([leaves.len(), leaves.len(), length32, length64]);
        commit::leaves(&inputs, ratio, &signs, results.outputs())?;
        Ok(results)
    }

    fn filled([digests, probe_digests, length32, length64]: [usize; 4]) -> Self {
        Self {
            digests: vec![[7; 32]; digests],
            probe_digests: vec![[7; 32]; probe_digests],
            probes32: vec![-7.0; length32],
            probes64: vec![-7.0; length64],
        }
    }

    fn outputs(&mut self) -> Outputs<'_> {
        Outputs {
            digests: &mut self.digests,
            probe_digests: &mut self.probe_digests,
            probes32: &mut self.probes32,
            probes64: &mut self.probes64,
        }
    }
}

/// By bits, as noise read as numbers has NaNs.
impl PartialEq for Results {
    fn eq(&self, other: &Self) -> bool {
        let bits = |results: &Self| {
            let f32s: Vec<u32> = results.probes32.iter().map(|number| number.to_bits()).collect();
            let f64s: Vec<u64> = results.probes64.iter().map(|number| number.to_bits()).collect();
            (f32s, f64s)
        };
        self.digests == other.digests && self.probe_digests == other.probe_digests && bits(self) == bits(other)
    }
}

fn noise(name: &str, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new_derive_key("zkdv test noise")
        .update(name.as_bytes())
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}
