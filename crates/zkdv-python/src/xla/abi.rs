//! The part of XLA's FFI C API that a handler meets: `xla/ffi/api/c_api.h` in the folder that `jax.ffi.include_dir()` names.
//!
//! The layouts below are equal in every release from jax 0.10.2 (API 0.3) to jax 0.12.0 (API 0.5); `layout` states them
//! as numbers, and a test compares those with what a C compiler says about the headers of the installed jax.

#![expect(clippy::struct_field_names, reason = "named as in the header")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// Major version of the API that the layouts below follow.
pub(crate) const API_MAJOR: c_int = 0;
/// Newest minor version that the layouts below were compared with; later ones only append fields.
pub(crate) const API_MINOR: c_int = 5;

pub(crate) const EXTENSION_METADATA: c_int = 1;
pub(crate) const STAGE_EXECUTE: c_int = 3;
pub(crate) const ARGUMENT_BUFFER: c_int = 1;
pub(crate) const RESULT_BUFFER: c_int = 1;
pub(crate) const ATTRIBUTE_SCALAR: c_int = 3;
pub(crate) const ERROR_INVALID_ARGUMENT: c_int = 3;
pub(crate) const ERROR_INTERNAL: c_int = 13;

#[repr(C)]
pub(crate) struct Extension {
    pub(crate) struct_size: usize,
    pub(crate) kind: c_int,
    pub(crate) next: *mut Extension,
}

#[repr(C)]
pub(crate) struct ApiVersion {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut Extension,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
}

#[repr(C)]
pub(crate) struct Metadata {
    pub(crate) struct_size: usize,
    pub(crate) api_version: ApiVersion,
    pub(crate) traits: u32,
    pub(crate) state_type_id: i64,
}

#[repr(C)]
pub(crate) struct MetadataExtension {
    pub(crate) base: Extension,
    pub(crate) metadata: *mut Metadata,
}

#[repr(C)]
pub(crate) struct ErrorCreate {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut Extension,
    pub(crate) message: *const c_char,
    pub(crate) code: c_int,
}

/// An error that belongs to XLA; only its address is known here.
#[repr(C)]
pub(crate) struct Error {
    _opaque: [u8; 0],
}

/// The head of the function table; the functions that follow are not used.
#[repr(C)]
pub(crate) struct Api {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut Extension,
    pub(crate) api_version: ApiVersion,
    pub(crate) internal_api: *const c_void,
    pub(crate) error_create: Option<unsafe extern "C" fn(*mut ErrorCreate) -> *mut Error>,
}

#[repr(C)]
pub(crate) struct ByteSpan {
    pub(crate) pointer: *const u8,
    pub(crate) length: usize,
}

#[repr(C)]
pub(crate) struct Scalar {
    pub(crate) dtype: c_int,
    pub(crate) value: *const c_void,
}

#[repr(C)]
pub(crate) struct Buffer {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut Extension,
    pub(crate) dtype: c_int,
    pub(crate) data: *mut c_void,
    pub(crate) rank: i64,
    pub(crate) dimensions: *const i64,
}

/// `XLA_FFI_Args` and `XLA_FFI_Rets`, which have one layout.
#[repr(C)]
pub(crate) struct Values {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut Extension,
    pub(crate) size: i64,
    pub(crate) types: *const c_int,
    pub(crate) values: *const *mut c_void,
}

#[repr(C)]
pub(crate) struct Attributes {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut Extension,
    pub(crate) size: i64,
    pub(crate) types: *const c_int,
    pub(crate) names: *const *const ByteSpan,
    pub(crate) values: *const *mut c_void,
}

#[repr(C)]
pub(crate) struct CallFrame {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut Extension,
    pub(crate) api: *const Api,
    pub(crate) context: *mut c_void,
    pub(crate) stage: c_int,
    pub(crate) arguments: Values,
    pub(crate) results: Values,
    pub(crate) attributes: Attributes,
    pub(crate) future: *mut c_void,
}

/// The layouts as `(C type, C member, offset in bytes)`, and with an empty member the size of the whole type.
pub(crate) const LAYOUT: &[(&str, &str, usize)] = &[
    ("XLA_FFI_Api_Version", "", size_of::<ApiVersion>()),
    (
        "XLA_FFI_Api_Version",
        "extension_start",
        offset_of!(ApiVersion, extension_start),
    ),
    ("XLA_FFI_Api_Version", "major_version", offset_of!(ApiVersion, major)),
    ("XLA_FFI_Api_Version", "minor_version", offset_of!(ApiVersion, minor)),
    ("XLA_FFI_Metadata", "", size_of::<Metadata>()),
    ("XLA_FFI_Metadata", "api_version", offset_of!(Metadata, api_version)),
    ("XLA_FFI_Metadata", "traits", offset_of!(Metadata, traits)),
    ("XLA_FFI_Metadata", "state_type_id", offset_of!(Metadata, state_type_id)),
    (
        "XLA_FFI_Metadata_Extension",
        "extension_base",
        offset_of!(MetadataExtension, base),
    ),
    (
        "XLA_FFI_Metadata_Extension",
        "extension_base.type",
        offset_of!(MetadataExtension, base.kind),
    ),
    (
        "XLA_FFI_Metadata_Extension",
        "extension_base.next",
        offset_of!(MetadataExtension, base.next),
    ),
    (
        "XLA_FFI_Metadata_Extension",
        "metadata",
        offset_of!(MetadataExtension, metadata),
    ),
    ("XLA_FFI_Error_Create_Args", "", size_of::<ErrorCreate>()),
    ("XLA_FFI_Error_Create_Args", "message", offset_of!(ErrorCreate, message)),
    ("XLA_FFI_Error_Create_Args", "errc", offset_of!(ErrorCreate, code)),
    ("XLA_FFI_Api", "api_version", offset_of!(Api, api_version)),
    ("XLA_FFI_Api", "internal_api", offset_of!(Api, internal_api)),
    ("XLA_FFI_Api", "XLA_FFI_Error_Create", offset_of!(Api, error_create)),
    ("XLA_FFI_ByteSpan", "", size_of::<ByteSpan>()),
    ("XLA_FFI_ByteSpan", "ptr", offset_of!(ByteSpan, pointer)),
    ("XLA_FFI_ByteSpan", "len", offset_of!(ByteSpan, length)),
    ("XLA_FFI_Scalar", "", size_of::<Scalar>()),
    ("XLA_FFI_Scalar", "dtype", offset_of!(Scalar, dtype)),
    ("XLA_FFI_Scalar", "value", offset_of!(Scalar, value)),
    ("XLA_FFI_Buffer", "", size_of::<Buffer>()),
    ("XLA_FFI_Buffer", "dtype", offset_of!(Buffer, dtype)),
    ("XLA_FFI_Buffer", "data", offset_of!(Buffer, data)),
    ("XLA_FFI_Buffer", "rank", offset_of!(Buffer, rank)),
    ("XLA_FFI_Buffer", "dims", offset_of!(Buffer, dimensions)),
    ("XLA_FFI_Args", "", size_of::<Values>()),
    ("XLA_FFI_Args", "size", offset_of!(Values, size)),
    ("XLA_FFI_Args", "types", offset_of!(Values, types)),
    ("XLA_FFI_Args", "args", offset_of!(Values, values)),
    ("XLA_FFI_Rets", "", size_of::<Values>()),
    ("XLA_FFI_Rets", "size", offset_of!(Values, size)),
    ("XLA_FFI_Rets", "types", offset_of!(Values, types)),
    ("XLA_FFI_Rets", "rets", offset_of!(Values, values)),
    ("XLA_FFI_Attrs", "", size_of::<Attributes>()),
    ("XLA_FFI_Attrs", "size", offset_of!(Attributes, size)),
    ("XLA_FFI_Attrs", "types", offset_of!(Attributes, types)),
    ("XLA_FFI_Attrs", "names", offset_of!(Attributes, names)),
    ("XLA_FFI_Attrs", "attrs", offset_of!(Attributes, values)),
    ("XLA_FFI_CallFrame", "", size_of::<CallFrame>()),
    (
        "XLA_FFI_CallFrame",
        "extension_start",
        offset_of!(CallFrame, extension_start),
    ),
    ("XLA_FFI_CallFrame", "api", offset_of!(CallFrame, api)),
    ("XLA_FFI_CallFrame", "ctx", offset_of!(CallFrame, context)),
    ("XLA_FFI_CallFrame", "stage", offset_of!(CallFrame, stage)),
    ("XLA_FFI_CallFrame", "args", offset_of!(CallFrame, arguments)),
    ("XLA_FFI_CallFrame", "rets", offset_of!(CallFrame, results)),
    ("XLA_FFI_CallFrame", "attrs", offset_of!(CallFrame, attributes)),
    ("XLA_FFI_CallFrame", "future", offset_of!(CallFrame, future)),
];
