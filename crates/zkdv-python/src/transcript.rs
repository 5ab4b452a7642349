//! A transcript that is being written.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zkdv_protocol::file::{FileError, TranscriptFile};
use zkdv_protocol::record::RecordType;

use crate::commitments::digest_bytes;
use crate::errors::{detached, file_error};
use crate::identity::Identity;
use crate::value;

/// A transcript that is being written; may be used from any thread.
#[pyclass(module = "zkdv._native", frozen)]
pub(crate) struct Transcript {
    file: Mutex<TranscriptFile>,
    path: PathBuf,
    root_digest: zkdv_hash::Digest,
    /// The process that made this. A process that was forked from it while a thread held the mutex would wait for ever.
    process: u32,
}

#[pymethods]
impl Transcript {
    #[staticmethod]
    fn create(
        py: Python<'_>,
        folder: PathBuf,
        root: &Bound<'_, PyAny>,
        identity: &Bound<'_, Identity>,
    ) -> PyResult<Self> {
        let root = value::from_python(root, "root")?;
        let signer = identity.get().signer();
        let file = detached(py, || {
            TranscriptFile::create(&folder, &root, &*signer).map_err(file_error)
        })?;
        Ok(Self {
            path: file.path().to_owned(),
            root_digest: file.root(),
            process: process::id(),
            file: Mutex::new(file),
        })
    }

    #[getter]
    fn root_digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        digest_bytes(py, &self.root_digest)
    }

    #[getter]
    fn head<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let head = self.with_file(py, |file| Ok(file.head()))?;
        Ok(digest_bytes(py, &head))
    }

    #[getter]
    fn records(&self, py: Python<'_>) -> PyResult<u64> {
        self.with_file(py, |file| Ok(file.records()))
    }

    #[getter]
    fn set_aside(&self, py: Python<'_>) -> PyResult<Option<OsString>> {
        self.with_file(py, |file| Ok(file.set_aside().map(|path| path.as_os_str().to_owned())))
    }

    #[getter]
    fn path(&self) -> &OsStr {
        self.path.as_os_str()
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> PyResult<bool> {
        self.with_file(py, |file| Ok(file.is_closed()))
    }

    fn append<'py>(
        &self,
        py: Python<'py>,
        record_type: &str,
        body: &Bound<'py, PyAny>,
    ) -> PyResult<(u64, Bound<'py, PyBytes>)> {
        let record_type = RecordType::from_name(record_type)
            .ok_or_else(|| PyValueError::new_err(format!("there is no record type {record_type:?}")))?;
        let body = value::from_python(body, "body")?;
        let appended = self.with_file(py, |file| file.append_value(record_type, &body))?;
        Ok((appended.seq, digest_bytes(py, &appended.digest)))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.with_file(py, TranscriptFile::sync)
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        if self.process == process::id() {
            self.with_file(py, TranscriptFile::release)
        } else {
            Ok(())
        }
    }

    fn __repr__(&self) -> String {
        format!("Transcript({}, root={})", self.path.display(), self.root_digest)
    }
}

impl Transcript {
    /// Waits for the file without the GIL: the thread that has the file may need the GIL to go on.
    fn with_file<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut TranscriptFile) -> Result<T, FileError> + Send,
    ) -> PyResult<T> {
        if self.process != process::id() {
            return Err(file_error(FileError::OtherProcess {
                path: self.path.clone(),
                owner: self.process,
            }));
        }
        detached(py, || {
            // A panic inside leaves the file as the last whole record left it.
            let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
            work(&mut file).map_err(file_error)
        })
    }
}
