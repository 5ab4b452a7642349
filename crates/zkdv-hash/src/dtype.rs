//! Element types of leaves.

use std::fmt;
use std::str::FromStr;

use crate::HashError;

macro_rules! dtypes {
    ($($variant:ident $name:literal $bytes:literal $class:ident,)*) => {
        /// The type of a leaf's elements. Names are those of the schema record.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Dtype {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
        }

        impl Dtype {
            /// Every dtype that can be committed to.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in the schema record.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Bytes of one element.
            pub const fn size_bytes(self) -> usize {
                match self { $(Self::$variant => $bytes,)* }
            }

            pub(crate) const fn class(self) -> Class {
                match self { $(Self::$variant => Class::$class,)* }
            }
        }
    };
}

dtypes! {
    Bool "bool" 1 Exact,
    Int8 "int8" 1 Exact,
    Int16 "int16" 2 Exact,
    Int32 "int32" 4 Exact,
    Int64 "int64" 8 Exact,
    Uint8 "uint8" 1 Exact,
    Uint16 "uint16" 2 Exact,
    Uint32 "uint32" 4 Exact,
    Uint64 "uint64" 8 Exact,
    Float16 "float16" 2 Real,
    Bfloat16 "bfloat16" 2 Real,
    Float32 "float32" 4 Real,
    Float64 "float64" 8 Real,
    Complex64 "complex64" 8 Complex,
    Complex128 "complex128" 16 Complex,
    Float8E3m4 "float8_e3m4" 1 Real,
    Float8E4m3 "float8_e4m3" 1 Real,
    Float8E4m3fn "float8_e4m3fn" 1 Real,
    Float8E4m3b11fnuz "float8_e4m3b11fnuz" 1 Real,
    Float8E4m3fnuz "float8_e4m3fnuz" 1 Real,
    Float8E5m2 "float8_e5m2" 1 Real,
    Float8E5m2fnuz "float8_e5m2fnuz" 1 Real,
    Float8E8m0fnu "float8_e8m0fnu" 1 Real,
}

/// How a dtype takes part in probes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Integers and booleans: compared exactly, never probed.
    Exact,
    Real,
    /// Two real numbers an element.
    Complex,
}

/// The number type that a probe is summed and committed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    /// binary32
    F32,
    /// binary64, for `float64` and `complex128`
    F64,
}

impl Dtype {
    /// Whether leaves of this type have probes: floating-point and complex ones do.
    pub const fn is_probed(self) -> bool {
        self.probe_kind().is_some()
    }

    /// The number type of this type's probes, if it has any.
    pub const fn probe_kind(self) -> Option<ProbeKind> {
        match (self.class(), self) {
            (Class::Exact, _) => None,
            (_, Self::Float64 | Self::Complex128) => Some(ProbeKind::F64),
            _ => Some(ProbeKind::F32),
        }
    }

    /// Real numbers in one element: two where it is complex.
    pub const fn reals(self) -> u64 {
        match self.class() {
            Class::Complex => 2,
            Class::Real | Class::Exact => 1,
        }
    }

    /// Bytes of an array of this shape.
    ///
    /// # Errors
    /// [`HashError::ShapeOverflow`] where the product does not fit `u64` or the machine's `usize`.
    pub fn array_bytes(self, shape: &[u64]) -> Result<u64, HashError> {
        let overflow = || HashError::ShapeOverflow {
            shape: shape.to_vec(),
            dtype: self,
        };
        // A zero anywhere makes the array empty, however large its other dimensions are.
        if shape.contains(&0) {
            return Ok(0);
        }
        let bytes = shape.iter().try_fold(self.size_bytes() as u64, |bytes, &dimension| {
            bytes.checked_mul(dimension)
        });
        let bytes = bytes.ok_or_else(overflow)?;
        usize::try_from(bytes).map_err(|_| overflow())?;
        Ok(bytes)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Dtype {
    type Err = HashError;

    fn from_str(name: &str) -> Result<Self, HashError> {
        Self::ALL
            .iter()
            .copied()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| HashError::Dtype {
                name: name.to_owned(),
                reason: if is_packed(name) {
                    "several of its elements share a byte; convert the leaf to a type of whole bytes"
                } else {
                    "the protocol does not have this type"
                },
            })
    }
}

fn is_packed(name: &str) -> bool {
    let digits = name
        .find(|character: char| character.is_ascii_digit())
        .map(|start| &name[start..]);
    let bits = digits.and_then(|digits| digits.split(|character: char| !character.is_ascii_digit()).next());
    matches!(bits, Some("1" | "2" | "3" | "4" | "6"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for &dtype in Dtype::ALL {
            assert_eq!(dtype.name().parse::<Dtype>().unwrap(), dtype);
        }
    }

    #[test]
    fn packed_types_are_refused_by_name() {
        for name in [
            "int4",
            "uint4",
            "int2",
            "uint2",
            "int1",
            "float4_e2m1fn",
            "float6_e3m2fn",
            "float6_e2m3fn",
        ] {
            let message = name.parse::<Dtype>().unwrap_err().to_string();
            assert!(message.contains(name) && message.contains("share a byte"), "{message}");
        }
        let message = "float128".parse::<Dtype>().unwrap_err().to_string();
        assert!(message.contains("does not have"), "{message}");
    }

    #[test]
    fn shapes_that_overflow_are_refused() {
        assert!(Dtype::Float32.array_bytes(&[u64::MAX, 2]).is_err());
        assert!(Dtype::Float64.array_bytes(&[1 << 61]).is_err());
        assert_eq!(Dtype::Float64.array_bytes(&[u64::MAX, u64::MAX, 0]).unwrap(), 0);
        assert_eq!(Dtype::Complex128.array_bytes(&[]).unwrap(), 16);
    }
}
