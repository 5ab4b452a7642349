//! Bytes of Python's buffers and arrays, read where they lie.

use pyo3::buffer::{Element as BufferElement, PyUntypedBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

/// The memory of a Python object, held until this is dropped.
///
/// As with `hashlib`, the caller must not write to the memory while a call reads it.
pub(crate) struct Bytes {
    buffer: PyUntypedBuffer,
}

impl Bytes {
    /// The memory of an object with the buffer protocol, or of a NumPy array of any dtype (those of `ml_dtypes` do not
    /// speak the buffer protocol, but their bytes do).
    pub(crate) fn of(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Self> {
        let py = object.py();
        let buffer = match PyUntypedBuffer::get(object) {
            Ok(buffer) => buffer,
            Err(refused) => {
                if !object.hasattr("__array_interface__")? {
                    return Err(PyTypeError::new_err(format!(
                        "{name} must be bytes, a buffer or an array, not {}",
                        object.get_type().fully_qualified_name()?
                    )));
                }
                let numpy = py.import("numpy")?;
                let array = numpy.call_method1("asarray", (object,))?;
                if !array.getattr("flags")?.getattr("c_contiguous")?.extract::<bool>()? {
                    return Err(not_contiguous(name));
                }
                if array.getattr("dtype")?.getattr("hasobject")?.extract::<bool>()? {
                    return Err(refused);
                }
                let bytes = array.call_method1("reshape", (-1,))?.call_method1("view", ("u1",))?;
                PyUntypedBuffer::get(&bytes)?
            }
        };
        if !buffer.is_c_contiguous() {
            return Err(not_contiguous(name));
        }
        let format = buffer.format().to_bytes();
        if buffer.item_size() > 1 && format.iter().any(|character| matches!(character, b'>' | b'!')) {
            return Err(PyValueError::new_err(format!(
                "{name} holds big-endian elements; committed bytes are little-endian: convert it with .astype(dtype.newbyteorder(\"<\"))"
            )));
        }
        if format.contains(&b'O') {
            return Err(PyTypeError::new_err(format!(
                "{name} holds Python objects, whose memory is no data"
            )));
        }
        Ok(Self { buffer })
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        let length = self.buffer.len_bytes();
        let pointer = self.buffer.buf_ptr().cast::<u8>();
        if length == 0 || pointer.is_null() {
            return &[];
        }
        // SAFETY: a C-contiguous buffer holds `length` bytes from its start, and its owner keeps them in place until the
        // view is released, which happens when `self` is dropped. That nobody writes to them meanwhile is the caller's part,
        // stated in the documentation of every function that takes a buffer.
        unsafe { std::slice::from_raw_parts(pointer, length) }
    }

    pub(crate) fn shape(&self) -> &[usize] {
        self.buffer.shape()
    }

    /// The memory as 32-bit words: what NumPy calls `uint32`.
    pub(crate) fn as_words(&self, name: &str) -> PyResult<&[u32]> {
        let format = self.buffer.format();
        if self.buffer.item_size() != 4 || !u32::is_compatible_format(format) {
            let format = format.to_string_lossy();
            return Err(PyTypeError::new_err(format!(
                "{name} must be an array of uint32; its format is {format:?}"
            )));
        }
        let bytes = self.as_slice();
        // An empty array may point anywhere.
        if bytes.is_empty() {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(bytes)
            .map_err(|_| PyValueError::new_err(format!("{name} is not aligned to 4 bytes; pass a copy of it")))
    }
}

fn not_contiguous(name: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{name} is not C-contiguous, as a transposed or sliced view is not; pass numpy.ascontiguousarray(…) of it"
    ))
}

/// Number types of the arrays that are given to Python.
pub(crate) trait Element: bytemuck::NoUninit {
    /// The name of NumPy's dtype.
    const DTYPE: &'static str;
}

impl Element for u32 {
    const DTYPE: &'static str = "<u4";
}

impl Element for f32 {
    const DTYPE: &'static str = "<f4";
}

impl Element for f64 {
    const DTYPE: &'static str = "<f8";
}

/// A one-dimensional NumPy array of these numbers.
pub(crate) fn array<'py, T: Element>(py: Python<'py>, numbers: &[T]) -> PyResult<Bound<'py, PyAny>> {
    let bytes = PyByteArray::new(py, bytemuck::cast_slice(numbers));
    py.import("numpy")?.call_method1("frombuffer", (bytes, T::DTYPE))
}
