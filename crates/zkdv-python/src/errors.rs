//! The exceptions of `zkdv._native`, and how the crates' errors become them.
//!
//! What is wrong with an argument is a `ValueError` or `TypeError`, as anywhere in Python; what is wrong with the world (a
//! path, a lock, a disk, a key) is a `NativeError`. Panics become a `NativeError` that asks for a report, since Python code
//! that catches `Exception` would not catch PyO3's own `PanicException`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use zkdv_hash::HashError;

create_exception!(
    zkdv._native,
    NativeError,
    PyException,
    "A failure in the native part of zkdv."
);
create_exception!(
    zkdv._native,
    TranscriptExistsError,
    NativeError,
    "The folder holds a transcript already."
);
create_exception!(
    zkdv._native,
    TranscriptLockedError,
    NativeError,
    "Another process writes the transcript."
);
create_exception!(
    zkdv._native,
    TranscriptWriteError,
    NativeError,
    "The transcript could not be written."
);

/// Runs `work` without the GIL; a panic becomes a `NativeError`.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> PyResult<T> + Send) -> PyResult<T> {
    py.detach(|| guarded(work))
}

/// Runs `work` with the GIL; a panic becomes a `NativeError`.
pub(crate) fn guarded<T>(work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    // What `work` left half done is dropped with it, or stays behind a mutex that is then poisoned.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        Err(NativeError::new_err(format!(
            "internal error, please report it: {}",
            panic_message(&*panic)
        )))
    })
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message")
}

/// What is wrong with what the caller asked to hash, open or draw.
pub(crate) fn hash_error(error: HashError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
