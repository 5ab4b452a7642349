//! XLA's element types, named as JAX names them.

use std::ffi::c_int;
use std::fmt;

use zkdv_hash::Dtype;

/// Rows of the table below: variant, number in XLA, name, bytes of one element (none for types that pack several
/// elements into a byte, or hold none), and the dtype of the transcript.
macro_rules! element_types {
    ($($variant:ident = $number:literal, $name:literal, $size:expr, $dtype:expr;)*) => {
        /// An element type of XLA (`XLA_FFI_DataType`).
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(super) enum ElementType {
            $($variant,)*
        }

        impl ElementType {
            /// Every name with its number in XLA.
            pub(super) const ALL: &[(&str, c_int)] = &[$(($name, $number),)*];

            pub(super) fn from_xla(number: c_int) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Bytes of one element; none for packed types and for tokens.
            pub(super) fn size_bytes(self) -> Option<usize> {
                match self {
                    $(Self::$variant => $size,)*
                }
            }

            /// The transcript's dtype; none where the transcript has none.
            pub(super) fn dtype(self) -> Option<Dtype> {
                match self {
                    $(Self::$variant => $dtype,)*
                }
            }

            fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

element_types! {
    Bool = 1, "bool", Some(1), Some(Dtype::Bool);
    S8 = 2, "int8", Some(1), Some(Dtype::Int8);
    S16 = 3, "int16", Some(2), Some(Dtype::Int16);
    S32 = 4, "int32", Some(4), Some(Dtype::Int32);
    S64 = 5, "int64", Some(8), Some(Dtype::Int64);
    U8 = 6, "uint8", Some(1), Some(Dtype::Uint8);
    U16 = 7, "uint16", Some(2), Some(Dtype::Uint16);
    U32 = 8, "uint32", Some(4), Some(Dtype::Uint32);
    U64 = 9, "uint64", Some(8), Some(Dtype::Uint64);
    F16 = 10, "float16", Some(2), Some(Dtype::Float16);
    F32 = 11, "float32", Some(4), Some(Dtype::Float32);
    F64 = 12, "float64", Some(8), Some(Dtype::Float64);
    C64 = 15, "complex64", Some(8), Some(Dtype::Complex64);
    Bf16 = 16, "bfloat16", Some(2), Some(Dtype::Bfloat16);
    Token = 17, "token", None, None;
    C128 = 18, "complex128", Some(16), Some(Dtype::Complex128);
    F8E5M2 = 19, "float8_e5m2", Some(1), Some(Dtype::Float8E5m2);
    F8E4M3Fn = 20, "float8_e4m3fn", Some(1), Some(Dtype::Float8E4m3fn);
    S4 = 21, "int4", None, None;
    U4 = 22, "uint4", None, None;
    F8E4M3B11Fnuz = 23, "float8_e4m3b11fnuz", Some(1), Some(Dtype::Float8E4m3b11fnuz);
    F8E5M2Fnuz = 24, "float8_e5m2fnuz", Some(1), Some(Dtype::Float8E5m2fnuz);
    F8E4M3Fnuz = 25, "float8_e4m3fnuz", Some(1), Some(Dtype::Float8E4m3fnuz);
    S2 = 26, "int2", None, None;
    U2 = 27, "uint2", None, None;
    F8E4M3 = 28, "float8_e4m3", Some(1), Some(Dtype::Float8E4m3);
    F8E3M4 = 29, "float8_e3m4", Some(1), Some(Dtype::Float8E3m4);
    S1 = 30, "int1", None, None;
    U1 = 31, "uint1", None, None;
    F4E2M1Fn = 32, "float4_e2m1fn", None, None;
    F8E8M0Fnu = 33, "float8_e8m0fnu", Some(1), Some(Dtype::Float8E8m0fnu);
}

impl fmt::Display for ElementType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
