//! Reading a transcript record by record.

use std::io::Read;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use zkdv_hash::Digest;
use zkdv_protocol::reader::{RawRecord, ReadError, RecordReader as Records};
use zkdv_protocol::record::Payload;
use zkdv_protocol::verify::Folder;

use crate::commitments::digest_bytes;
use crate::errors::{detached, os_error};
use crate::value;

/// Reads the records of a transcript, up to the first byte that belongs to none.
#[pyclass(module = "zkdv._native", frozen)]
pub(crate) struct RecordReader {
    state: Mutex<State>,
}

struct State {
    records: Records<Box<dyn Read + Send>>,
    error: Option<ReadError>,
}

#[pymethods]
impl RecordReader {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        detached(py, || {
            let (_, source) = Folder::open(&path).map_err(|error| os_error(error.source, &error.path))?;
            Ok(Self {
                state: Mutex::new(State {
                    records: Records::new(Box::new(source)),
                    error: None,
                }),
            })
        })
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let record = self.with_state(py, |state| match state.records.next()? {
            Ok(record) => {
                let digest = record.digest();
                Some((record, digest))
            }
            Err(error) => {
                state.error = Some(error);
                None
            }
        })?;
        record.map(|(record, digest)| to_dict(py, &record, &digest)).transpose()
    }

    /// Offset of the first byte that was not given as part of a record.
    #[getter]
    fn offset(&self, py: Python<'_>) -> PyResult<u64> {
        self.with_state(py, |state| state.records.offset())
    }

    /// Why reading stopped before the end of the file.
    #[getter]
    fn error(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.with_state(py, |state| state.error.as_ref().map(ToString::to_string))
    }

    /// Whether reading stopped inside a record that ends before its declared length.
    #[getter]
    fn torn(&self, py: Python<'_>) -> PyResult<bool> {
        self.with_state(py, |state| matches!(state.error, Some(ReadError::Torn { .. })))
    }
}

impl RecordReader {
    fn with_state<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut State) -> T + Send) -> PyResult<T> {
        detached(py, || {
            Ok(work(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner)))
        })
    }
}

fn to_dict<'py>(py: Python<'py>, record: &RawRecord, digest: &Digest) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("number", record.number)?;
    dict.set_item("offset", record.offset)?;
    dict.set_item("length", record.bytes.len())?;
    dict.set_item("digest", digest_bytes(py, digest))?;
    let none = || py.None().into_bound(py);
    let (mut seq, mut prev, mut kind, mut body, mut signature, mut error) =
        (none(), none(), none(), none(), none(), none());
    match record.frame() {
        Ok(frame) => {
            signature = PyBytes::new(py, frame.signature).into_any();
            match Payload::decode(frame.payload) {
                Ok(payload) => {
                    seq = payload.seq.into_pyobject(py)?.into_any();
                    prev = digest_bytes(py, &payload.prev).into_any();
                    kind = payload.type_name.into_pyobject(py)?.into_any();
                    body = value::to_python(py, &payload.body)?;
                }
                Err(refused) => error = refused.to_string().into_pyobject(py)?.into_any(),
            }
        }
        Err(refused) => error = refused.to_string().into_pyobject(py)?.into_any(),
    }
    for (name, value) in [
        ("seq", seq),
        ("prev", prev),
        ("type", kind),
        ("body", body),
        ("signature", signature),
        ("error", error),
    ] {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}
