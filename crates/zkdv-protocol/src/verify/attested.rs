//! What an attest program gave, against what was committed.
//!
//! Its program is another one than the one that trained, and its results are numbers of its own type. They are compared in
//! binary64, and beside the tolerance they may be off by the spacing of the leaf's dtype: that much is lost where a sum or
//! a result is stored in the leaf.

use zkdv_hash::Dtype;

use super::element::{Comparison, Element, compare_numbers, power_of_two};
use crate::record::Tolerance;

/// An attested number beside the one that it stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Agreement {
    /// Whether they are within tolerance.
    pub within: bool,
    /// What the attested number was compared with: how far the update moved the parameter, or the element after it.
    pub expected: f64,
    /// How far they may be apart.
    pub allowed: f64,
}

/// Compares what was added to a parameter, as an attest program has it, with the element before and after the update;
/// none where either does not have the dtype's length. Of a complex element the real part is compared.
pub fn compare_delta(dtype: Dtype, before: &[u8], after: &[u8], delta: f64, tolerance: Tolerance) -> Option<Agreement> {
    let (first, second) = (Element::read(dtype, before)?, Element::read(dtype, after)?);
    let (before, after) = (first.real(), second.real());
    let moved = match (first, second) {
        #[allow(clippy::cast_precision_loss, reason = "the difference is exact, and rounded once")]
        (Element::Exact(before), Element::Exact(after)) => (after - before) as f64,
        _ => after - before,
    };
    if before.is_finite() && after.is_finite() {
        return Some(agreement(
            delta,
            moved,
            spacing(dtype, before.abs().max(after.abs())),
            tolerance,
        ));
    }
    // A difference says nothing here: what counts is where the sum leads.
    let sum = before + delta;
    let overflows = Number::of(dtype).is_some_and(|number| sum.abs() >= number.largest());
    #[allow(clippy::float_cmp, reason = "an infinity agrees with itself alone")]
    let within = (sum.is_nan() && after.is_nan())
        || (overflows && after == f64::INFINITY.copysign(sum))
        || (overflows && after.is_nan() && !Number::of(dtype).is_some_and(|number| number.has_infinity));
    Some(Agreement {
        within,
        expected: moved,
        allowed: tolerance.absolute,
    })
}

/// Compares an element after the update, as an attest program has it, with the committed one; none where that does not
/// have the dtype's length. Of a complex element the real part is compared.
pub fn compare_value(dtype: Dtype, committed: &[u8], value: f64, tolerance: Tolerance) -> Option<Agreement> {
    let committed = Element::read(dtype, committed)?.real();
    Some(agreement(
        value,
        committed,
        spacing(dtype, committed.abs().max(value.abs())),
        tolerance,
    ))
}

fn agreement(attested: f64, expected: f64, spacing: f64, tolerance: Tolerance) -> Agreement {
    let Comparison { distance, .. } = compare_numbers(attested, expected, tolerance);
    let allowed = tolerance.absolute + tolerance.relative * attested.abs().max(expected.abs()) + spacing;
    Agreement {
        within: distance.is_finite() && (distance == 0.0 || distance <= allowed),
        expected,
        allowed,
    }
}

/// The distance between neighbouring numbers of a dtype at a magnitude, or somewhat more; none between integers.
fn spacing(dtype: Dtype, magnitude: f64) -> f64 {
    Number::of(dtype).map_or(0.0, |number| {
        power_of_two(-number.mantissa_bits) * magnitude.max(power_of_two(number.lowest))
    })
}

/// A floating-point format.
#[derive(Clone, Copy, Debug)]
struct Number {
    mantissa_bits: i32,
    /// Exponent of the smallest normal number.
    lowest: i32,
    /// Exponent of the largest number.
    highest: i32,
    /// The largest number's mantissa, less than all ones in the formats that spend its last pattern on NaN.
    unused: u32,
    has_infinity: bool,
}

impl Number {
    /// Of the real part, for complex dtypes; none for integers and booleans.
    fn of(dtype: Dtype) -> Option<Self> {
        let (mantissa_bits, lowest, highest, unused, has_infinity) = match dtype {
            Dtype::Float16 => (10, -14, 15, 0, true),
            Dtype::Bfloat16 => (7, -126, 127, 0, true),
            Dtype::Float32 | Dtype::Complex64 => (23, -126, 127, 0, true),
            Dtype::Float64 | Dtype::Complex128 => (52, -1022, 1023, 0, true),
            Dtype::Float8E3m4 => (4, -2, 3, 0, true),
            Dtype::Float8E4m3 => (3, -6, 7, 0, true),
            Dtype::Float8E4m3fn => (3, -6, 8, 1, false),
            Dtype::Float8E4m3b11fnuz => (3, -10, 4, 0, false),
            Dtype::Float8E4m3fnuz => (3, -7, 7, 0, false),
            Dtype::Float8E5m2 => (2, -14, 15, 0, true),
            Dtype::Float8E5m2fnuz => (2, -15, 15, 0, false),
            Dtype::Float8E8m0fnu => (0, -127, 127, 0, false),
            _ => return None,
        };
        Some(Self {
            mantissa_bits,
            lowest,
            highest,
            unused,
            has_infinity,
        })
    }

    fn largest(self) -> f64 {
        let last = power_of_two(-self.mantissa_bits);
        (2.0 - last * f64::from(1 + self.unused)) * power_of_two(self.highest)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Vectors {
        values: Vec<Vector>,
    }

    #[derive(Deserialize)]
    struct Vector {
        dtype: String,
        before: String,
        after: String,
        delta: String,
        element: String,
        tolerance: [f64; 2],
        delta_agrees: bool,
        element_agrees: bool,
    }

    fn bytes(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text
            .chars()
            .map(|digit| digit.to_digit(16).unwrap().try_into().unwrap())
            .collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    fn number(bits: &str) -> f64 {
        f64::from_bits(u64::from_str_radix(bits, 16).unwrap())
    }

    #[test]
    fn values_agree_where_the_reference_says_so() {
        let vectors: Vectors = serde_json::from_str(include_str!("../../../../tests/vectors/attested.json")).unwrap();
        for vector in &vectors.values {
            let dtype: Dtype = vector.dtype.parse().unwrap();
            let [absolute, relative] = vector.tolerance;
            let tolerance = Tolerance { absolute, relative };
            let (before, after) = (bytes(&vector.before), bytes(&vector.after));
            let delta = compare_delta(dtype, &before, &after, number(&vector.delta), tolerance).unwrap();
            let value = compare_value(dtype, &after, number(&vector.element), tolerance).unwrap();
            assert_eq!(
                (delta.within, value.within),
                (vector.delta_agrees, vector.element_agrees),
                "{dtype} {} to {}, {} and {}: {delta:?}, {value:?}",
                vector.before,
                vector.after,
                number(&vector.delta),
                number(&vector.element)
            );
        }
        assert_eq!(
            vectors
                .values
                .iter()
                .map(|vector| &vector.dtype)
                .collect::<std::collections::BTreeSet<_>>()
                .len(),
            Dtype::ALL.len()
        );
    }

    #[test]
    fn elements_of_another_length_are_none() {
        let tolerance = Tolerance {
            absolute: 1.0,
            relative: 1.0,
        };
        for &dtype in Dtype::ALL {
            for length in (0..=17).filter(|&length| length != dtype.size_bytes()) {
                let (short, right) = (vec![0; length], vec![0; dtype.size_bytes()]);
                assert_eq!(compare_delta(dtype, &short, &right, 0.0, tolerance), None);
                assert_eq!(compare_delta(dtype, &right, &short, 0.0, tolerance), None);
                assert_eq!(compare_value(dtype, &short, 0.0, tolerance), None);
            }
        }
    }

    #[test]
    fn a_bfloat16_parameter_may_be_off_by_its_own_spacing_and_no_more() {
        let exact = Tolerance {
            absolute: 0.0,
            relative: 0.0,
        };
        let [before, after] = [1.0_f32, 1.0 + 1.0 / 128.0].map(|value| half::bf16::from_f32(value).to_le_bytes());
        let within = |delta| {
            compare_delta(Dtype::Bfloat16, &before, &after, delta, exact)
                .unwrap()
                .within
        };
        assert!(within(1.0 / 128.0));
        assert!(within(0.005));
        assert!(!within(0.016));
        assert!(!within(-0.001));
    }
}
