//! Digests and probes of leaves in one pass over memory.
//!
//! A leaf is cut where BLAKE3's tree cuts it, down to blocks that stay in a core's cache. Each block is hashed to its
//! chaining value, and the probe's slices that start in it are summed while it is in cache. Blocks of all leaves are
//! spread over the current rayon thread pool.

use blake3::Hasher;
use blake3::hazmat::{ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root};

use crate::dtype::ProbeKind;
use crate::probe::{self, Layout, ProbeOut};
use crate::{Digest, Dtype, HashError, leaf};

/// What one thread does at a time. A power of two of BLAKE3 chunks: enough for its widest vector code, worth a handover
/// to another thread, small enough for a core's second-level cache.
const BLOCK_BYTES: usize = 128 * 1024;

/// What hashing and bookkeeping of a leaf cost besides its bytes, in bytes hashed in the same time.
const LEAF_COST_BYTES: usize = 512;

/// Digest and probe of one leaf.
///
/// `bytes` are the elements in C order; `signs` are those of [`probe::signs`], [`probe::sign_words`] of them; the probe
/// is written to `out`, which has [`probe::length`] numbers of the dtype's [`probe_kind`](Dtype::probe_kind).
///
/// # Errors
/// Where the shape does not give the number of bytes, sign words or probe numbers that were handed over, where its size
/// overflows, and for a ratio outside (0, 1].
pub fn leaf(
    dtype: Dtype,
    bytes: &[u8],
    shape: &[u64],
    ratio: f64,
    signs: &[u32],
    out: ProbeOut<'_>,
) -> Result<Digest, HashError> {
    let layout = Layout::checked(dtype, bytes, shape, ratio, signs, &out)?;
    Ok(Pass {
        dtype,
        bytes,
        layout,
        signs,
    }
    .digest(out))
}

/// A leaf among those that are committed together.
#[derive(Clone, Copy, Debug)]
pub struct LeafInput<'a> {
    /// The element type.
    pub dtype: Dtype,
    /// The shape; empty for a scalar.
    pub shape: &'a [u64],
    /// The elements in C order.
    pub bytes: &'a [u8],
    /// Whether the leaf is committed in this call; if not, its results are zeros.
    pub due: bool,
}

/// Where the results of [`leaves`] are written.
#[derive(Debug, Default)]
pub struct Outputs<'a> {
    /// The digest of each leaf.
    pub digests: &'a mut [[u8; 32]],
    /// The plain digest of each leaf's probe as bytes; that of no bytes where the leaf has none.
    pub probe_digests: &'a mut [[u8; 32]],
    /// The binary32 probes, joined in the order of the leaves.
    pub probes32: &'a mut [f32],
    /// The binary64 probes, joined in the order of the leaves.
    pub probes64: &'a mut [f64],
}

/// Digests, probes and digests of probes of many leaves.
///
/// `signs` are the sign words of all leaves, due or not, joined in their order: [`probe::sign_words`] of each. Leaves
/// that are not due take their place in every result, as zeros.
///
/// # Errors
/// As [`leaf()`]; nothing is written then.
pub fn leaves(inputs: &[LeafInput<'_>], ratio: f64, signs: &[u32], outputs: Outputs<'_>) -> Result<(), HashError> {
    let plan = plan(inputs, ratio, signs, &outputs)?;
    commit(&plan, outputs);
    Ok(())
}

/// Whether these leaves are best left to the calling thread; [`leaves`] stays on it then.
pub fn is_small(inputs: &[LeafInput<'_>]) -> bool {
    let cost = inputs.iter().fold(0usize, |cost, input| {
        cost.saturating_add(cost_bytes(input.due, input.bytes))
    });
    cost <= BLOCK_BYTES
}

/// What a leaf costs, in bytes hashed in the same time.
const fn cost_bytes(due: bool, bytes: &[u8]) -> usize {
    if due {
        bytes.len().saturating_add(LEAF_COST_BYTES)
    } else {
        0
    }
}

struct Planned<'a> {
    pass: Pass<'a>,
    due: bool,
    cost: usize,
}

fn plan<'a>(
    inputs: &[LeafInput<'a>],
    ratio: f64,
    signs: &'a [u32],
    outputs: &Outputs<'_>,
) -> Result<Vec<Planned<'a>>, HashError> {
    let mut plan = Vec::with_capacity(inputs.len());
    let (mut words, mut length32, mut length64) = (0usize, 0usize, 0usize);
    for &LeafInput {
        dtype,
        shape,
        bytes,
        due,
    } in inputs
    {
        let expected = dtype.array_bytes(shape)?;
        // Leaves that are not due may come without their bytes.
        if due && bytes.len() as u64 != expected {
            return Err(HashError::ByteCount {
                shape: shape.to_vec(),
                dtype,
                expected,
                got: bytes.len(),
            });
        }
        let layout = Layout::new(shape, dtype, ratio)?;
        let start = words;
        if let Some(layout) = layout {
            words = words.saturating_add(layout.sign_words());
            match layout.kind {
                ProbeKind::F32 => length32 = length32.saturating_add(layout.length()),
                ProbeKind::F64 => length64 = length64.saturating_add(layout.length()),
            }
        }
        // Too few words are refused below, when it is known how many there should be.
        let signs = signs.get(start..words).unwrap_or_default();
        plan.push(Planned {
            pass: Pass {
                dtype,
                bytes,
                layout,
                signs,
            },
            due,
            cost: cost_bytes(due, bytes),
        });
    }
    if signs.len() != words {
        return Err(HashError::SignWords {
            expected: words,
            got: signs.len(),
        });
    }
    for (what, expected, got) in [
        ("the list of digests", inputs.len(), outputs.digests.len()),
        ("the list of probe digests", inputs.len(), outputs.probe_digests.len()),
        ("the joined binary32 probes", length32, outputs.probes32.len()),
        ("the joined binary64 probes", length64, outputs.probes64.len()),
    ] {
        if expected != got {
            return Err(HashError::OutputLength { what, expected, got });
        }
    }
    Ok(plan)
}

/// Commits a run of leaves, parted where about half of the work lies on each side.
fn commit(plan: &[Planned<'_>], mut outputs: Outputs<'_>) {
    let cost = plan
        .iter()
        .fold(0usize, |cost, planned| cost.saturating_add(planned.cost));
    if plan.len() < 2 || cost <= BLOCK_BYTES {
        for planned in plan {
            let rest = std::mem::take(&mut outputs);
            let (own, rest) = rest.split_after(std::slice::from_ref(planned));
            planned.commit(own);
            outputs = rest;
        }
        return;
    }
    let mut before = 0usize;
    let half = plan.iter().position(|planned| {
        before = before.saturating_add(planned.cost);
        before >= cost / 2
    });
    let (left, right) = plan.split_at(half.map_or(1, |last| last + 1).min(plan.len() - 1));
    let (left_outputs, right_outputs) = outputs.split_after(left);
    rayon::join(|| commit(left, left_outputs), || commit(right, right_outputs));
}

impl Planned<'_> {
    fn commit(&self, outputs: Outputs<'_>) {
        let Outputs {
            digests,
            probe_digests,
            probes32,
            probes64,
        } = outputs;
        let mut out = match self.pass.layout.map(|layout| layout.kind) {
            None => ProbeOut::None,
            Some(ProbeKind::F32) => ProbeOut::F32(probes32),
            Some(ProbeKind::F64) => ProbeOut::F64(probes64),
        };
        let (mut digest, mut probe_digest) = (Digest::ZERO, Digest::ZERO);
        if self.due {
            digest = self.pass.digest(out.reborrow());
            probe_digest = leaf::digest(out.as_bytes());
        } else {
            out.clear();
        }
        // One of each: these are the outputs of this leaf alone.
        digests.fill(digest.into());
        probe_digests.fill(probe_digest.into());
    }
}

impl Outputs<'_> {
    /// The outputs of these leaves, which come first, and of those after them.
    fn split_after(self, leaves: &[Planned<'_>]) -> (Self, Self) {
        let (mut length32, mut length64) = (0, 0);
        for layout in leaves.iter().filter_map(|planned| planned.pass.layout) {
            match layout.kind {
                ProbeKind::F32 => length32 += layout.length(),
                ProbeKind::F64 => length64 += layout.length(),
            }
        }
        let (digests, later_digests) = self.digests.split_at_mut(leaves.len());
        let (probe_digests, later_probe_digests) = self.probe_digests.split_at_mut(leaves.len());
        let (probes32, later_probes32) = self.probes32.split_at_mut(length32);
        let (probes64, later_probes64) = self.probes64.split_at_mut(length64);
        (
            Self {
                digests,
                probe_digests,
                probes32,
                probes64,
            },
            Self {
                digests: later_digests,
                probe_digests: later_probe_digests,
                probes32: later_probes32,
                probes64: later_probes64,
            },
        )
    }
}

/// One pass over one leaf.
struct Pass<'a> {
    dtype: Dtype,
    bytes: &'a [u8],
    layout: Option<Layout>,
    signs: &'a [u32],
}

impl Pass<'_> {
    fn digest(&self, out: ProbeOut<'_>) -> Digest {
        let length = self.bytes.len();
        if length <= BLOCK_BYTES {
            self.sum(0, out);
            return blake3::hash(self.bytes).into();
        }
        let (left, right) = self.children(0, length, out);
        merge_subtrees_root(&left, &right, Mode::Hash).into()
    }

    /// The chaining value of the subtree over these bytes of the leaf.
    fn subtree(&self, start: usize, stop: usize, out: ProbeOut<'_>) -> ChainingValue {
        if stop - start <= BLOCK_BYTES {
            self.sum(start, out);
            return Hasher::new()
                .set_input_offset(start as u64)
                .update(&self.bytes[start..stop])
                .finalize_non_root();
        }
        let (left, right) = self.children(start, stop, out);
        merge_subtrees_non_root(&left, &right, Mode::Hash)
    }

    /// The chaining values of the two subtrees under the top of these bytes.
    fn children(&self, start: usize, stop: usize, out: ProbeOut<'_>) -> (ChainingValue, ChainingValue) {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "shorter than the whole, which is a `usize`"
        )]
        let middle = start + left_subtree_len((stop - start) as u64) as usize;
        let slices = self
            .layout
            .map_or(0, |layout| layout.slices_before(middle) - layout.slices_before(start));
        let (left_out, right_out) = out.split_at(slices);
        rayon::join(
            || self.subtree(start, middle, left_out),
            || self.subtree(middle, stop, right_out),
        )
    }

    /// Sums the slices that start from this byte on, as many as there is room for.
    fn sum(&self, start: usize, out: ProbeOut<'_>) {
        if let Some(layout) = &self.layout {
            probe::sum(
                layout,
                self.dtype,
                self.bytes,
                self.signs,
                layout.slices_before(start),
                out,
            );
        }
    }
}
