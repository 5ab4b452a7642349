//! Signed sums over slices.
#![expect(
    clippy::inline_always,
    reason = "code that is compiled for an instruction set must be inlined to where it is chosen"
)]

use pulp::{Arch, NullaryFnOnce};

use super::element::{
    Bfloat16, Element, Float8E3m4, Float8E4m3, Float8E4m3b11fnuz, Float8E4m3fn, Float8E4m3fnuz, Float8E5m2,
    Float8E5m2fnuz, Float8E8m0fnu, Float16, Float32, Float64, LANES, Sum,
};
use super::{Layout, ProbeOut};
use crate::Dtype;

/// Slices of fewer elements are added one by one.
const SHORT_SLICE: usize = 8;

/// Writes as many numbers of a leaf's probe as there is room for, from number `first` on.
///
/// `bytes` is the whole leaf. The order of additions follows from the lengths of the slices alone.
pub(crate) fn sum(layout: &Layout, dtype: Dtype, bytes: &[u8], signs: &[u32], first: usize, out: ProbeOut<'_>) {
    let job = Job {
        layout,
        bytes,
        signs,
        first,
    };
    match (dtype, out) {
        (Dtype::Float32 | Dtype::Complex64, ProbeOut::F32(out)) => job.run::<Float32>(out),
        (Dtype::Bfloat16, ProbeOut::F32(out)) => job.run::<Bfloat16>(out),
        (Dtype::Float16, ProbeOut::F32(out)) => job.run::<Float16>(out),
        (Dtype::Float64 | Dtype::Complex128, ProbeOut::F64(out)) => job.run::<Float64>(out),
        (Dtype::Float8E3m4, ProbeOut::F32(out)) => job.run::<Float8E3m4>(out),
        (Dtype::Float8E4m3, ProbeOut::F32(out)) => job.run::<Float8E4m3>(out),
        (Dtype::Float8E4m3fn, ProbeOut::F32(out)) => job.run::<Float8E4m3fn>(out),
        (Dtype::Float8E4m3b11fnuz, ProbeOut::F32(out)) => job.run::<Float8E4m3b11fnuz>(out),
        (Dtype::Float8E4m3fnuz, ProbeOut::F32(out)) => job.run::<Float8E4m3fnuz>(out),
        (Dtype::Float8E5m2, ProbeOut::F32(out)) => job.run::<Float8E5m2>(out),
        (Dtype::Float8E5m2fnuz, ProbeOut::F32(out)) => job.run::<Float8E5m2fnuz>(out),
        (Dtype::Float8E8m0fnu, ProbeOut::F32(out)) => job.run::<Float8E8m0fnu>(out),
        // The kinds were matched when the layout was checked, and leaves without a probe have no room for one.
        _ => {}
    }
}

#[derive(Clone, Copy)]
struct Job<'a> {
    layout: &'a Layout,
    bytes: &'a [u8],
    signs: &'a [u32],
    first: usize,
}

impl Job<'_> {
    fn run<E: Element>(self, out: &mut [E::Sum]) {
        if self.layout.sign_words() == 0 {
            for (out, element) in out.iter_mut().zip(self.bytes.chunks_exact(E::BYTES)) {
                *out = E::first(element);
            }
        } else {
            Arch::new().dispatch(Vectorized::<E> { job: self, out });
        }
    }
}

/// The loop over slices, compiled for every instruction set that is chosen from at run time.
struct Vectorized<'a, E: Element> {
    job: Job<'a>,
    out: &'a mut [E::Sum],
}

impl<E: Element> NullaryFnOnce for Vectorized<'_, E> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Job {
            layout: &Layout { dimension, kept, .. },
            bytes,
            signs,
            first,
        } = self.job;
        // Slice j of a row starts at floor(j * dimension / kept); the remainder of that division is carried along.
        let (mut row, mut slice) = (first / kept, first % kept);
        let product = slice as u128 * dimension as u128;
        // A start is below the dimension, a remainder below `kept`.
        let (mut start, mut remainder) = ((product / kept as u128) as usize, (product % kept as u128) as usize);
        for out in self.out {
            let mut stop = start + dimension / kept;
            remainder += dimension % kept;
            if remainder >= kept {
                remainder -= kept;
                stop += 1;
            }
            let from = (row * dimension + start) * E::BYTES;
            *out = sum_slice::<E>(bytes.get(from..).unwrap_or_default(), signs, start, stop - start);
            slice += 1;
            start = stop;
            if slice == kept {
                // The remainder is 0 again, as `kept` times the dimension is divided by `kept`.
                (row, slice, start) = (row + 1, 0, 0);
            }
        }
    }
}

/// The signed sum over the first `length` elements of `bytes`, whose first column is `column`.
#[inline(always)]
fn sum_slice<E: Element>(bytes: &[u8], signs: &[u32], column: usize, length: usize) -> E::Sum {
    if length < SHORT_SLICE {
        let negative = sign_bits(signs, column);
        let mut sum = E::first(bytes).signed(negative & 1);
        for element in 1..length {
            sum += E::first(bytes.get(element * E::BYTES..).unwrap_or_default()).signed(negative >> element & 1);
        }
        return sum;
    }
    let mut sums = [E::Sum::ZERO; LANES];
    let mut done = 0;
    while length - done >= LANES {
        let rest = bytes.get(done * E::BYTES..).unwrap_or_default();
        E::add(&mut sums, rest, sign_bits(signs, column + done), LANES);
        done += LANES;
    }
    if done < length {
        let rest = bytes.get(done * E::BYTES..).unwrap_or_default();
        E::add(&mut sums, rest, sign_bits(signs, column + done), length - done);
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            let other = sums[lane + width];
            sums[lane] += other;
        }
    }
    sums[0]
}

/// The signs of 32 columns from `column` on; zeros beyond the end.
#[inline(always)]
fn sign_bits(signs: &[u32], column: usize) -> u32 {
    let word = column / 32;
    let low = signs.get(word).copied().unwrap_or(0);
    let high = signs.get(word + 1).copied().unwrap_or(0);
    #[expect(clippy::cast_possible_truncation, reason = "the low word is what is asked for")]
    let bits = ((u64::from(high) << 32 | u64::from(low)) >> (column % 32)) as u32;
    bits
}
