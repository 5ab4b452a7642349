//! Probes of leaves (scheme `zkdv-probe-1`): a small, fixed, orthogonal projection along the last dimension.
//!
//! With last dimension `d` a probe keeps `k` numbers of each row, each the signed sum over a slice of its own, so the
//! slices' signed indicator vectors are orthogonal. Signs follow from the root record. Probes are for comparison across
//! platforms and for plots; being public, they find accidents, not adversaries.
//!
//! Sums are accumulated in the type of [`Dtype::probe_kind`] in an order that depends on the slice's length alone, never
//! on threads or instruction sets. The rounding and subnormal modes are those of the threads that add.

mod element;
mod sums;

use std::sync::LazyLock;

use crate::derive::Context;
use crate::dtype::ProbeKind;
use crate::{Digest, Dtype, HashError};

pub(crate) use sums::sum;

/// A tree whose leaves have probes; its number is part of what signs follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ProbedTree {
    /// Tree 0.
    Parameters = 0,
    /// Tree 1.
    Optimizer = 1,
}

impl TryFrom<u8> for ProbedTree {
    type Error = HashError;

    fn try_from(number: u8) -> Result<Self, HashError> {
        match number {
            0 => Ok(Self::Parameters),
            1 => Ok(Self::Optimizer),
            _ => Err(HashError::ProbeTree { number }),
        }
    }
}

/// How many numbers a probe keeps of a last dimension: `max(1, ceil(ratio * dimension))`.
///
/// `dimension` counts real numbers: it is doubled for complex leaves.
///
/// # Errors
/// For a ratio outside (0, 1], and a dimension above 2^53, where the product would be rounded twice.
pub fn kept(dimension: u64, ratio: f64) -> Result<u64, HashError> {
    if !(ratio > 0.0 && ratio <= 1.0) {
        return Err(HashError::ProbeRatio { ratio });
    }
    if dimension > 1 << f64::MANTISSA_DIGITS {
        return Err(HashError::ProbeDimension { dimension });
    }
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the dimension is exact in binary64, and the product is between 0 and the dimension"
    )]
    Ok(((ratio * dimension as f64).ceil() as u64).max(1))
}

/// How many numbers the probe of a leaf has: none for integers, booleans and leaves without elements.
///
/// # Errors
/// As [`kept`], and [`HashError::ShapeOverflow`].
pub fn length(shape: &[u64], dtype: Dtype, ratio: f64) -> Result<usize, HashError> {
    Ok(Layout::new(shape, dtype, ratio)?.map_or(0, |layout| layout.length()))
}

/// How many sign words a leaf takes where those of several leaves are joined: one for each 32 columns or part of
/// them, none for leaves without a probe and for scalars, whose sign is always +1.
///
/// # Errors
/// [`HashError::ShapeOverflow`].
pub fn sign_words(shape: &[u64], dtype: Dtype) -> Result<usize, HashError> {
    Ok(Layout::new(shape, dtype, 1.0)?.map_or(0, |layout| layout.sign_words()))
}

/// The signs of a leaf's columns: bit `i mod 32` of word `i div 32` is set where column `i` counts as negative.
///
/// `leaf_index` is the leaf's place in its tree; `dimension` counts real numbers, so it is doubled for complex leaves.
/// There are as many words as hold `dimension` bits, all of them allocated, so the caller bounds the dimension; the last
/// word is filled from the stream.
pub fn signs(root: &Digest, tree: ProbedTree, leaf_index: u64, dimension: usize) -> Vec<u32> {
    static CONTEXT: LazyLock<Context> = LazyLock::new(|| Context::new("zkdv 1 probe signs"));
    let mut words = vec![0; dimension.div_ceil(32)];
    let mut hasher = CONTEXT.hasher();
    hasher
        .update(root.as_bytes())
        .update(&[tree as u8])
        .update(&leaf_index.to_le_bytes());
    hasher.finalize_xof().fill(bytemuck::cast_slice_mut(&mut words));
    words
}

/// The probe of a leaf, alone. [`commit::leaf`](crate::commit::leaf) gives the digest with it.
///
/// # Errors
/// As [`commit::leaf`](crate::commit::leaf).
pub fn probe(
    dtype: Dtype,
    bytes: &[u8],
    shape: &[u64],
    ratio: f64,
    signs: &[u32],
    out: ProbeOut<'_>,
) -> Result<(), HashError> {
    if let Some(layout) = Layout::checked(dtype, bytes, shape, ratio, signs, &out)? {
        sum(&layout, dtype, bytes, signs, 0, out);
    }
    Ok(())
}

/// Where the numbers of a probe are written.
#[derive(Debug)]
pub enum ProbeOut<'a> {
    /// The leaf has no probe.
    None,
    /// binary32 numbers.
    F32(&'a mut [f32]),
    /// binary64 numbers.
    F64(&'a mut [f64]),
}

impl ProbeOut<'_> {
    /// How many numbers there is room for.
    pub const fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::F32(out) => out.len(),
            Self::F64(out) => out.len(),
        }
    }

    /// Whether there is no room.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers as bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::F32(out) => bytemuck::cast_slice(out),
            Self::F64(out) => bytemuck::cast_slice(out),
        }
    }

    pub(crate) fn split_at(self, middle: usize) -> (Self, Self) {
        match self {
            Self::None => (Self::None, Self::None),
            Self::F32(out) => {
                let (left, right) = out.split_at_mut(middle);
                (Self::F32(left), Self::F32(right))
            }
            Self::F64(out) => {
                let (left, right) = out.split_at_mut(middle);
                (Self::F64(left), Self::F64(right))
            }
        }
    }

    pub(crate) fn reborrow(&mut self) -> ProbeOut<'_> {
        match self {
            Self::None => ProbeOut::None,
            Self::F32(out) => ProbeOut::F32(out),
            Self::F64(out) => ProbeOut::F64(out),
        }
    }

    pub(crate) fn clear(&mut self) {
        match self {
            Self::None => {}
            Self::F32(out) => out.fill(0.0),
            Self::F64(out) => out.fill(0.0),
        }
    }

    const fn kind(&self) -> Option<ProbeKind> {
        match self {
            Self::None => None,
            Self::F32(_) => Some(ProbeKind::F32),
            Self::F64(_) => Some(ProbeKind::F64),
        }
    }
}

/// How a leaf is cut into slices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) kind: ProbeKind,
    /// Rows: the product of all dimensions but the last.
    rows: usize,
    /// Real numbers in a row.
    pub(crate) dimension: usize,
    /// Numbers kept of a row.
    pub(crate) kept: usize,
    /// A scalar is its own probe, without signs.
    is_scalar: bool,
    /// Bytes of one real number.
    pub(crate) real_bytes: usize,
}

impl Layout {
    /// The layout of a leaf's probe, if it has one.
    pub(crate) fn new(shape: &[u64], dtype: Dtype, ratio: f64) -> Result<Option<Self>, HashError> {
        let bytes = dtype.array_bytes(shape)?;
        kept(1, ratio)?;
        let Some(kind) = dtype.probe_kind().filter(|_| bytes > 0) else {
            return Ok(None);
        };
        let overflow = || HashError::ShapeOverflow {
            shape: shape.to_vec(),
            dtype,
        };
        let (dimension, kept, rows) = match shape.split_last() {
            None => (dtype.reals(), dtype.reals(), 1),
            // Neither product can overflow, as that of all of them with the size of an element does not.
            Some((last, rest)) => (
                last * dtype.reals(),
                kept(last * dtype.reals(), ratio)?,
                rest.iter().product(),
            ),
        };
        let fit = |number: u64| usize::try_from(number).map_err(|_| overflow());
        let reals = if dtype.reals() == 2 { 2 } else { 1 };
        Ok(Some(Self {
            kind,
            rows: fit(rows)?,
            dimension: fit(dimension)?,
            kept: fit(kept)?,
            is_scalar: shape.is_empty(),
            real_bytes: dtype.size_bytes() / reals,
        }))
    }

    /// The layout, once bytes, signs and output have the lengths that it calls for.
    pub(crate) fn checked(
        dtype: Dtype,
        bytes: &[u8],
        shape: &[u64],
        ratio: f64,
        signs: &[u32],
        out: &ProbeOut<'_>,
    ) -> Result<Option<Self>, HashError> {
        let layout = Self::new(shape, dtype, ratio)?;
        let expected = dtype.array_bytes(shape)?;
        if bytes.len() as u64 != expected {
            return Err(HashError::ByteCount {
                shape: shape.to_vec(),
                dtype,
                expected,
                got: bytes.len(),
            });
        }
        let words = layout.map_or(0, |layout| layout.sign_words());
        if signs.len() != words {
            return Err(HashError::SignWords {
                expected: words,
                got: signs.len(),
            });
        }
        let length = layout.map_or(0, |layout| layout.length());
        let kind = layout.map(|layout| layout.kind);
        if out.len() != length || (length > 0 && out.kind() != kind) {
            let what = match kind {
                Some(ProbeKind::F64) => "a binary64 probe",
                Some(ProbeKind::F32) => "a binary32 probe",
                None => "the probe of a leaf that has none",
            };
            let got = if kind.is_none() || out.kind() == kind {
                out.len()
            } else {
                0
            };
            return Err(HashError::OutputLength {
                what,
                expected: length,
                got,
            });
        }
        Ok(layout)
    }

    pub(crate) const fn length(&self) -> usize {
        self.rows * self.kept
    }

    pub(crate) const fn sign_words(&self) -> usize {
        if self.is_scalar { 0 } else { self.dimension.div_ceil(32) }
    }

    /// How many slices start before the real number at this byte of the leaf.
    pub(crate) fn slices_before(&self, byte: usize) -> usize {
        let real = byte / self.real_bytes;
        let (row, column) = (real / self.dimension, real % self.dimension);
        // Slice j starts at floor(j * d / k), which is before the column exactly where j * d / k is.
        let slices = (column as u128 * self.kept as u128).div_ceil(self.dimension as u128);
        // At most `kept`, as the column is below the dimension.
        row * self.kept + slices as usize
    }
}
