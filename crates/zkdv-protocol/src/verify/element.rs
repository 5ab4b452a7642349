//! Elements of leaves as numbers, and when two of them agree.

use half::{bf16, f16};
use zkdv_hash::Dtype;

use crate::record::Tolerance;
use crate::report::Shown;

/// How a committed element compares with a replayed one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// Whether they are within tolerance.
    pub(crate) within: bool,
    /// `|a - b|`; infinite where only one of them is a number.
    pub(crate) distance: f64,
}

/// Compares two elements, given as they lie in a leaf; none where either does not have the dtype's length.
///
/// All arithmetic is binary64, but for the difference of integers, which is exact and then rounded. A complex element
/// counts as two, its real and its imaginary part.
pub(crate) fn compare(dtype: Dtype, committed: &[u8], replayed: &[u8], tolerance: Tolerance) -> Option<Comparison> {
    let (committed, replayed) = (Element::read(dtype, committed)?, Element::read(dtype, replayed)?);
    Some(match (committed, replayed) {
        (Element::Exact(a), Element::Exact(b)) => {
            #[allow(clippy::cast_precision_loss, reason = "rounded once, to binary64")]
            let distance = (a - b).abs() as f64;
            Comparison {
                within: a == b,
                distance,
            }
        }
        (Element::Real(a), Element::Real(b)) => compare_numbers(a, b, tolerance),
        (Element::Complex(a), Element::Complex(b)) => {
            let [real, imaginary] = [0, 1].map(|part| compare_numbers(a[part], b[part], tolerance));
            Comparison {
                within: real.within && imaginary.within,
                distance: real.distance.max(imaginary.distance),
            }
        }
        // One dtype gives one kind of element.
        _ => return None,
    })
}

/// The elements that `bytes` of a leaf hold, for people; none where they end inside of one.
pub(crate) fn shown(dtype: Dtype, bytes: &[u8]) -> Option<Vec<Shown>> {
    let elements = bytes.chunks(dtype.size_bytes());
    elements
        .map(|element| Some(Element::read(dtype, element)?.shown(dtype)))
        .collect()
}

pub(super) fn compare_numbers(a: f64, b: f64, tolerance: Tolerance) -> Comparison {
    #[allow(clippy::float_cmp, reason = "an infinity agrees with itself alone")]
    let same = (a.is_nan() && b.is_nan()) || a == b;
    if same {
        return Comparison {
            within: true,
            distance: 0.0,
        };
    }
    if !(a.is_finite() && b.is_finite()) {
        return Comparison {
            within: false,
            distance: f64::INFINITY,
        };
    }
    let distance = (a - b).abs();
    Comparison {
        within: distance <= tolerance.absolute + tolerance.relative * a.abs().max(b.abs()),
        distance,
    }
}

/// An element's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Element {
    /// An integer or a truth value.
    Exact(i128),
    Real(f64),
    Complex([f64; 2]),
}

impl Element {
    fn shown(self, dtype: Dtype) -> Shown {
        match self {
            Self::Exact(number) if dtype == Dtype::Bool => Shown::Bool(number != 0),
            Self::Exact(number) => u64::try_from(number)
                .map(Shown::Unsigned)
                .or_else(|_| i64::try_from(number).map(Shown::Signed))
                .unwrap_or_else(|_| Shown::Text(number.to_string())),
            Self::Real(number) => shown_number(dtype, number),
            Self::Complex(parts) => Shown::List(parts.map(|part| shown_number(dtype, part)).into()),
        }
    }

    /// Its real part, rounded once to binary64.
    pub(super) fn real(self) -> f64 {
        match self {
            #[allow(clippy::cast_precision_loss, reason = "rounded once, to binary64")]
            Self::Exact(value) => value as f64,
            Self::Real(value) | Self::Complex([value, _]) => value,
        }
    }

    pub(super) fn read(dtype: Dtype, bytes: &[u8]) -> Option<Self> {
        Some(match dtype {
            Dtype::Bool | Dtype::Uint8 => Self::Exact(u8::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Uint16 => Self::Exact(u16::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Uint32 => Self::Exact(u32::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Uint64 => Self::Exact(u64::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Int8 => Self::Exact(i8::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Int16 => Self::Exact(i16::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Int32 => Self::Exact(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Int64 => Self::Exact(i64::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Float16 => Self::Real(f16::from_le_bytes(bytes.try_into().ok()?).to_f64()),
            Dtype::Bfloat16 => Self::Real(bf16::from_le_bytes(bytes.try_into().ok()?).to_f64()),
            Dtype::Float32 => Self::Real(f32::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Float64 => Self::Real(f64::from_le_bytes(bytes.try_into().ok()?)),
            Dtype::Complex64 => {
                let (parts, []) = bytes.as_chunks::<4>() else {
                    return None;
                };
                let parts: [[u8; 4]; 2] = parts.try_into().ok()?;
                Self::Complex(parts.map(|part| f32::from_le_bytes(part).into()))
            }
            Dtype::Complex128 => {
                let (parts, []) = bytes.as_chunks::<8>() else {
                    return None;
                };
                let parts: [[u8; 8]; 2] = parts.try_into().ok()?;
                Self::Complex(parts.map(f64::from_le_bytes))
            }
            _ => {
                let &[byte] = bytes else { return None };
                Self::Real(float8(dtype, byte)?)
            }
        })
    }
}

/// A number with the fewest digits that stand for it in its own type: 0.1 and not 0.10000000149011612 for a `float32`.
fn shown_number(dtype: Dtype, number: f64) -> Shown {
    if !number.is_finite() {
        return Shown::Text(number.to_string());
    }
    if matches!(dtype, Dtype::Float64 | Dtype::Complex128) {
        return Shown::Float(number);
    }
    #[allow(clippy::cast_possible_truncation, reason = "every other type is part of binary32")]
    let short = (number as f32).to_string();
    Shown::Float(short.parse().unwrap_or(number))
}

/// Where a kind of 8-bit float keeps its infinities and NaNs.
#[derive(Clone, Copy)]
enum Special {
    /// As IEEE 754: the highest exponent is theirs.
    Ieee,
    /// No infinities; all bits after the sign set is NaN.
    Finite,
    /// No infinities and no negative zero, whose bits are the NaN.
    FiniteUnsignedZero,
}

/// The value of an 8-bit float (the formats of the OCP 8-bit floating point and microscaling specifications, and the
/// `fnuz` ones of arXiv:2206.02915).
fn float8(dtype: Dtype, pattern: u8) -> Option<f64> {
    let (mantissa_bits, bias, special) = match dtype {
        Dtype::Float8E3m4 => (4, 3, Special::Ieee),
        Dtype::Float8E4m3 => (3, 7, Special::Ieee),
        Dtype::Float8E4m3fn => (3, 7, Special::Finite),
        Dtype::Float8E4m3b11fnuz => (3, 11, Special::FiniteUnsignedZero),
        Dtype::Float8E4m3fnuz => (3, 8, Special::FiniteUnsignedZero),
        Dtype::Float8E5m2 => (2, 15, Special::Ieee),
        Dtype::Float8E5m2fnuz => (2, 16, Special::FiniteUnsignedZero),
        Dtype::Float8E8m0fnu if pattern == 0xff => return Some(f64::NAN),
        Dtype::Float8E8m0fnu => return Some(power_of_two(i32::from(pattern) - 127)),
        _ => return None,
    };
    let magnitude = pattern & 0x7f;
    let mantissa = magnitude & ((1 << mantissa_bits) - 1);
    let exponent = magnitude >> mantissa_bits;
    let highest = 0x7f >> mantissa_bits;
    let value = match special {
        Special::FiniteUnsignedZero if pattern == 0x80 => f64::NAN,
        Special::Finite if magnitude == 0x7f => f64::NAN,
        Special::Ieee if exponent == highest && mantissa == 0 => f64::INFINITY,
        Special::Ieee if exponent == highest => f64::NAN,
        _ if exponent == 0 => f64::from(mantissa) * power_of_two(1 - bias - mantissa_bits),
        _ => {
            let implicit = f64::from(mantissa) + f64::from(1 << mantissa_bits);
            implicit * power_of_two(i32::from(exponent) - bias - mantissa_bits)
        }
    };
    Some(if pattern & 0x80 == 0 { value } else { -value })
}

/// `2^exponent`, exactly, for exponents of normal numbers.
pub(super) fn power_of_two(exponent: i32) -> f64 {
    const BIAS: i32 = 1023;
    f64::from_bits(u64::from((exponent + BIAS).unsigned_abs()) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXACT: Tolerance = Tolerance {
        absolute: 0.0,
        relative: 0.0,
    };
    const LOOSE: Tolerance = Tolerance {
        absolute: 0.5,
        relative: 0.25,
    };

    fn within(a: f64, b: f64, tolerance: Tolerance) -> bool {
        let comparison = compare(Dtype::Float64, &a.to_le_bytes(), &b.to_le_bytes(), tolerance).unwrap();
        let mirrored = compare(Dtype::Float64, &b.to_le_bytes(), &a.to_le_bytes(), tolerance).unwrap();
        assert_eq!(comparison, mirrored);
        comparison.within
    }

    #[test]
    fn nan_agrees_with_nan_alone_and_infinity_with_itself() {
        assert!(within(f64::NAN, f64::from_bits(f64::NAN.to_bits() | 1), EXACT));
        assert!(!within(f64::NAN, 0.0, LOOSE));
        assert!(within(f64::INFINITY, f64::INFINITY, EXACT));
        assert!(!within(f64::INFINITY, f64::NEG_INFINITY, LOOSE));
        assert!(!within(f64::INFINITY, f64::MAX, LOOSE));
        assert!(within(0.0, -0.0, EXACT));
    }

    #[test]
    fn tolerance_counts_the_larger_magnitude() {
        assert!(within(4.0, 2.5, LOOSE));
        assert!(!within(4.0, 2.4, LOOSE));
        assert!(within(-4.0, -2.5, LOOSE));
        assert!(!within(1.0, 1.0 + f64::EPSILON, EXACT));
    }

    #[test]
    fn integers_and_booleans_agree_only_exactly() {
        for (dtype, bytes) in [
            (Dtype::Bool, 1),
            (Dtype::Int8, 1),
            (Dtype::Uint64, 8),
            (Dtype::Int64, 8),
        ] {
            let (zeros, mut other) = (vec![0; bytes], vec![0; bytes]);
            other[0] = 1;
            let generous = Tolerance {
                absolute: 10.0,
                relative: 10.0,
            };
            assert!(compare(dtype, &zeros, &zeros, EXACT).unwrap().within);
            let differing = compare(dtype, &zeros, &other, generous).unwrap();
            assert!(!differing.within);
            assert!((differing.distance - 1.0).abs() < f64::EPSILON);
        }
    }

    #[test]
    fn complex_numbers_compare_by_parts() {
        let element = |real: f32, imaginary: f32| [real.to_le_bytes(), imaginary.to_le_bytes()].concat();
        let compare = |a: &[u8], b: &[u8]| compare(Dtype::Complex64, a, b, LOOSE).unwrap();
        assert!(compare(&element(4.0, -4.0), &element(2.5, -2.5)).within);
        assert!(!compare(&element(4.0, -4.0), &element(4.0, -2.0)).within);
        assert!(!compare(&element(4.0, f32::NAN), &element(4.0, 0.0)).within);
    }

    #[test]
    fn elements_are_shown_as_numbers_of_their_type() {
        let shown = |dtype, bytes: &[u8]| serde_json::to_string(&shown(dtype, bytes).unwrap()).unwrap();
        let floats = [0.1_f32, -1e-8, f32::INFINITY].map(f32::to_le_bytes).concat();
        assert_eq!(shown(Dtype::Float32, &floats), r#"[0.1,-1e-8,"inf"]"#);
        assert_eq!(shown(Dtype::Float64, &0.1_f64.to_le_bytes()), "[0.1]");
        assert_eq!(shown(Dtype::Bfloat16, &[0x80, 0x3f]), "[1.0]");
        assert_eq!(shown(Dtype::Float8E8m0fnu, &[0xff]), r#"["NaN"]"#);
        assert_eq!(shown(Dtype::Int64, &i64::MIN.to_le_bytes()), "[-9223372036854775808]");
        assert_eq!(shown(Dtype::Uint64, &[0xff; 8]), "[18446744073709551615]");
        assert_eq!(shown(Dtype::Bool, &[0, 1]), "[false,true]");
        assert_eq!(shown(Dtype::Complex64, &[0, 0, 0, 0, 0, 0, 0x80, 0x3f]), "[[0.0,1.0]]");
        assert_eq!(shown(Dtype::Int8, &[]), "[]");
        assert_eq!(super::shown(Dtype::Int16, &[1, 2, 3]), None);
    }

    #[test]
    fn elements_of_another_length_are_none() {
        for &dtype in Dtype::ALL {
            for length in 0..=17 {
                let comparison = compare(dtype, &vec![0; length], &vec![0; length], EXACT);
                assert_eq!(
                    comparison.is_some(),
                    length == dtype.size_bytes(),
                    "{dtype} of {length} bytes"
                );
            }
        }
    }

    /// `tests/vectors/float8.json` lists the binary64 bits of every value, as a framework's own types give them.
    #[test]
    fn eight_bit_floats_have_the_values_of_the_shared_vectors() {
        let vectors: std::collections::BTreeMap<String, Vec<String>> =
            serde_json::from_str(include_str!("../../../../tests/vectors/float8.json")).unwrap();
        assert_eq!(vectors.len(), 8);
        for (name, values) in vectors {
            let dtype: Dtype = name.parse().unwrap();
            assert_eq!(values.len(), 256);
            for (bits, expected) in (0..=u8::MAX).zip(values) {
                let got = float8(dtype, bits).unwrap();
                let got = if got.is_nan() {
                    "nan".to_owned()
                } else {
                    format!("{:016x}", got.to_bits())
                };
                assert_eq!(got, expected, "{name} {bits:#04x}");
            }
        }
    }
}
