//! The exceptions of `zkdv._native`, and how the crates' errors become them.
//!
//! What is wrong with an argument is a `ValueError` or `TypeError`, as anywhere in Python; what is wrong with the world (a
//! path, a lock, a disk, a key) is a `NativeError`. Panics become a `NativeError` that asks for a report, since Python code
//! that catches `Exception` would not catch PyO3's own `PanicException`.

use std::any::Any;
use std::fmt::Display;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOSError, PyValueError};
use pyo3::prelude::*;
use zkdv_hash::HashError;
use zkdv_protocol::chain::ChainError;
use zkdv_protocol::file::FileError;
use zkdv_protocol::key::{KeyError, SignerError};

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

/// What is wrong with a key file.
pub(crate) fn key_error(error: KeyError) -> PyErr {
    native_error(&error)
}

/// Why a transcript could not be made or written.
pub(crate) fn file_error(error: FileError) -> PyErr {
    let message = error.to_string();
    match error {
        FileError::Exists { .. } => TranscriptExistsError::new_err(message),
        FileError::Locked { .. } => TranscriptLockedError::new_err(message),
        FileError::Write { .. } | FileError::Failed { .. } => TranscriptWriteError::new_err(message),
        FileError::Chain(ChainError::Signer(SignerError::Failed(cause))) => signer_error(message, cause),
        _ => NativeError::new_err(message),
    }
}

/// A failure of the world without a class of its own.
pub(crate) fn native_error(message: &impl Display) -> PyErr {
    NativeError::new_err(message.to_string())
}

/// The `OSError` that Python itself would raise for this path.
pub(crate) fn os_error(error: io::Error, path: &Path) -> PyErr {
    match error.raw_os_error() {
        // With these arguments the class is the one that belongs to the number, such as `FileNotFoundError`.
        Some(number) => {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            PyOSError::new_err((number, text, path.as_os_str().to_owned()))
        }
        None => io::Error::new(error.kind(), format!("{}: {error}", path.display())).into(),
    }
}

/// A signer written in Python failed: its exception becomes the cause, or is raised itself where it is none to handle, such
/// as `KeyboardInterrupt`.
fn signer_error(message: String, cause: Box<dyn std::error::Error + Send + Sync>) -> PyErr {
    match cause.downcast::<PyErr>() {
        Ok(cause) => Python::attach(|py| {
            if !cause.is_instance_of::<PyException>(py) {
                return *cause;
            }
            let error = NativeError::new_err(message);
            error.set_cause(py, Some(*cause));
            error
        }),
        Err(_) => NativeError::new_err(message),
    }
}
