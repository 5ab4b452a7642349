//! Reading elements of every probed dtype as binary32 or binary64 numbers.
//!
//! Everything is integer arithmetic on lanes and, for numbers that are subnormal in a narrow type, one exact subtraction
//! of normal numbers, so that a thread that flushes subnormals to zero reads the same values.
#![expect(
    clippy::inline_always,
    reason = "code that is compiled for an instruction set must be inlined to where it is chosen"
)]

/// Elements that are read and added side by side.
pub(super) const LANES: usize = 32;

/// The type that a probe is summed in.
pub(super) trait Sum: Copy + std::ops::AddAssign {
    const ZERO: Self;

    /// Negates where `negative` is 1; it is 0 or 1.
    fn signed(self, negative: u32) -> Self;
}

impl Sum for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn signed(self, negative: u32) -> Self {
        Self::from_bits(self.to_bits() ^ negative << 31)
    }
}

impl Sum for f64 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn signed(self, negative: u32) -> Self {
        Self::from_bits(self.to_bits() ^ u64::from(negative) << 63)
    }
}

/// A real number as it lies in memory.
pub(super) trait Element {
    type Sum: Sum;
    const BYTES: usize;

    /// The element that `bytes` start with; zero where they are too few.
    fn first(bytes: &[u8]) -> Self::Sum;

    /// Adds the first elements of `bytes`, one to each sum: zeros where there are fewer bytes, and elements from `count`
    /// on not at all. Bit `i` of `negative` negates element `i`.
    fn add(sums: &mut [Self::Sum; LANES], bytes: &[u8], negative: u32, count: usize);
}

macro_rules! elements {
    ($($name:ident: $raw:ty => $sum:ty, $decode:expr;)*) => {$(
        pub(super) struct $name;

        impl Element for $name {
            type Sum = $sum;
            const BYTES: usize = size_of::<$raw>();

            #[inline(always)]
            fn first(bytes: &[u8]) -> $sum {
                let decode: fn($raw) -> $sum = $decode;
                decode(bytes.first_chunk().map_or(0, |element| <$raw>::from_le_bytes(*element)))
            }

            #[inline(always)]
            fn add(sums: &mut [$sum; LANES], bytes: &[u8], negative: u32, count: usize) {
                let decode: fn($raw) -> $sum = $decode;
                let mut padded = [0; LANES * size_of::<$raw>()];
                let bytes: &[u8; LANES * size_of::<$raw>()] = bytes.first_chunk().unwrap_or_else(|| {
                    padded[..bytes.len()].copy_from_slice(bytes);
                    &padded
                });
                let elements = bytes.as_chunks().0;
                for lane in 0..LANES {
                    let value = decode(<$raw>::from_le_bytes(elements[lane])).signed(negative >> lane & 1);
                    sums[lane] += if lane < count { value } else { <$sum>::ZERO };
                }
            }
        }
    )*};
}

elements! {
    Float32: u32 => f32, f32::from_bits;
    Float64: u64 => f64, f64::from_bits;
    Bfloat16: u16 => f32, |bits| f32::from_bits(u32::from(bits) << 16);
    Float16: u16 => f32, |bits| decode::<5, 10, 15, IEEE>(u32::from(bits));
    Float8E3m4: u8 => f32, |bits| decode::<3, 4, 3, IEEE>(u32::from(bits));
    Float8E4m3: u8 => f32, |bits| decode::<4, 3, 7, IEEE>(u32::from(bits));
    Float8E4m3fn: u8 => f32, |bits| decode::<4, 3, 7, FINITE>(u32::from(bits));
    Float8E4m3b11fnuz: u8 => f32, |bits| decode::<4, 3, 11, FINITE_UNSIGNED_ZERO>(u32::from(bits));
    Float8E4m3fnuz: u8 => f32, |bits| decode::<4, 3, 8, FINITE_UNSIGNED_ZERO>(u32::from(bits));
    Float8E5m2: u8 => f32, |bits| decode::<5, 2, 15, IEEE>(u32::from(bits));
    Float8E5m2fnuz: u8 => f32, |bits| decode::<5, 2, 16, FINITE_UNSIGNED_ZERO>(u32::from(bits));
    Float8E8m0fnu: u8 => f32, |bits| decode_power_of_two(u32::from(bits));
}

/// Infinities and NaNs where the exponent is all ones, as in IEEE 754.
const IEEE: u8 = 0;
/// No infinities; NaN where exponent and mantissa are all ones (`fn`).
const FINITE: u8 = 1;
/// No infinities and no negative zero, whose bits are the only NaN (`fnuz`).
const FINITE_UNSIGNED_ZERO: u8 = 2;

/// The value of a narrow floating-point number with a sign, exponent and mantissa.
///
/// The types are those of the OCP 8-bit floating point specification (OFP8), of IEEE 754 and of the `fnuz` proposal of
/// Noune et al., "8-bit numerical formats for deep neural networks", 2022.
#[inline(always)]
fn decode<const EXPONENT_BITS: u32, const MANTISSA_BITS: u32, const BIAS: u32, const SPECIAL: u8>(bits: u32) -> f32 {
    let sign_bit = 1 << (EXPONENT_BITS + MANTISSA_BITS);
    let magnitude = bits & (sign_bit - 1);
    let sign = if bits & sign_bit == 0 { 0 } else { 1 << 31 };
    let aligned = magnitude << (23 - MANTISSA_BITS);
    // With exponent field 0 the mantissa counts from 0 at the scale of field 1: add a leading one, then subtract it.
    let smallest_normal = (128 - BIAS) << 23;
    let subnormal = f32::from_bits(smallest_normal | aligned) - f32::from_bits(smallest_normal);
    let normal = aligned + ((127 - BIAS) << 23);
    let is_subnormal = magnitude < 1 << MANTISSA_BITS;
    let finite = if is_subnormal { subnormal.to_bits() } else { normal };
    let value = match SPECIAL {
        IEEE if magnitude >= ((1 << EXPONENT_BITS) - 1) << MANTISSA_BITS => 0x7f80_0000 | aligned,
        FINITE if magnitude == sign_bit - 1 => f32::NAN.to_bits(),
        FINITE_UNSIGNED_ZERO if bits == sign_bit => f32::NAN.to_bits(),
        _ => finite,
    };
    f32::from_bits(value | sign)
}

/// The value of an exponent alone, the scale type of the OCP microscaling formats: `2^(bits - 127)`, NaN for 255.
#[inline(always)]
fn decode_power_of_two(bits: u32) -> f32 {
    f32::from_bits(match bits {
        0 => 1 << 22,
        255 => f32::NAN.to_bits(),
        _ => bits << 23,
    })
}
