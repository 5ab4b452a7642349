//! Arguments of the Python functions, refused with their names.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use zkdv_hash::Digest;

/// An integer from 0 to 2^64 - 1.
pub(crate) fn unsigned(object: &Bound<'_, PyAny>, name: &str) -> PyResult<u64> {
    // `__index__` admits the integers of NumPy and refuses floats.
    object
        .extract::<u64>()
        .map_err(|_| refused(object, name, "an integer from 0 to 2^64-1"))
}

/// An integer from 0 to the largest length of an array.
pub(crate) fn length(object: &Bound<'_, PyAny>, name: &str) -> PyResult<usize> {
    object
        .extract::<usize>()
        .map_err(|_| refused(object, name, "an integer from 0 to 2^64-1"))
}

/// A number as binary64.
pub(crate) fn float(object: &Bound<'_, PyAny>, name: &str) -> PyResult<f64> {
    object.extract::<f64>().map_err(|_| refused(object, name, "a number"))
}

/// Thirty-two bytes.
pub(crate) fn digest(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Digest> {
    to_digest(&bytes(object, name)?, name)
}

/// A list of digests.
pub(crate) fn digests(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<Digest>> {
    bytes_list(object, name)?
        .iter()
        .enumerate()
        .map(|(index, bytes)| to_digest(bytes, &format!("{name}[{index}]")))
        .collect()
}

/// Bytes, without a copy.
pub(crate) fn bytes(object: &Bound<'_, PyAny>, name: &str) -> PyResult<PyBackedBytes> {
    object
        .extract::<PyBackedBytes>()
        .map_err(|_| refused(object, name, "bytes"))
}

/// A list of bytes, without copies.
pub(crate) fn bytes_list(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Vec<PyBackedBytes>> {
    if object.is_instance_of::<PyBytes>() {
        return Err(refused(object, name, "a sequence of bytes"));
    }
    object
        .try_iter()
        .map_err(|_| refused(object, name, "a sequence of bytes"))?
        .enumerate()
        .map(|(index, item)| bytes(&item?, &format!("{name}[{index}]")))
        .collect()
}

fn to_digest(bytes: &[u8], name: &str) -> PyResult<Digest> {
    Digest::try_from(bytes)
        .map_err(|_| PyValueError::new_err(format!("{name} must have 32 bytes, not {}", bytes.len())))
}

fn refused(object: &Bound<'_, PyAny>, name: &str, wanted: &str) -> PyErr {
    let kind = object
        .get_type()
        .fully_qualified_name()
        .map_or_else(|_| "unknown".to_owned(), |name| name.to_string());
    // An integer is of the right type, so that what is wrong is its value.
    if object.is_instance_of::<pyo3::types::PyInt>() && wanted.contains("integer") {
        return PyValueError::new_err(format!("{name} must be {wanted}"));
    }
    PyTypeError::new_err(format!("{name} must be {wanted}, not {kind}"))
}
