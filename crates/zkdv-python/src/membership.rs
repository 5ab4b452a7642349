//! Proofs that words are, or are not, in a committed batch.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zkdv_protocol::membership::{self, Claim, CommittedUpdate};

use crate::argument;
use crate::batch::Words;
use crate::buffer::{self, Bytes};
use crate::commitments::digest_bytes;
use crate::errors::{detached, guarded, hash_error};
use crate::pool;

/// A statement about the batch of one update, with what shows it.
#[pyclass(module = "zkdv._native", frozen, eq)]
#[derive(PartialEq)]
pub(crate) struct MembershipProof(membership::MembershipProof);

#[pymethods]
impl MembershipProof {
    #[staticmethod]
    #[expect(
        clippy::too_many_arguments,
        reason = "one keyword for each part of an update's record"
    )]
    #[pyo3(signature = (words, *, run, record, update, batch, rolling_window, row=None, sought=None))]
    fn prove(
        py: Python<'_>,
        words: &Bound<'_, PyAny>,
        run: &Bound<'_, PyAny>,
        record: &Bound<'_, PyAny>,
        update: &Bound<'_, PyAny>,
        batch: &Bound<'_, PyAny>,
        rolling_window: &Bound<'_, PyAny>,
        row: Option<&Bound<'_, PyAny>>,
        sought: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let update = committed(run, record, update, batch, rolling_window)?;
        let words = Words::of(words)?;
        let matrix = words.matrix()?;
        let row = row.map(|row| argument::length(row, "row")).transpose()?;
        let sought = sought.map(|sought| Bytes::of(sought, "sought")).transpose()?;
        let sought = sought.as_ref().map(|sought| sought.as_words("sought")).transpose()?;
        let proof = detached(py, || {
            pool::run(|| match (row, sought) {
                (Some(row), None) => membership::MembershipProof::of_row(&update, &matrix, row).map_err(hash_error),
                (None, Some(sought)) => {
                    membership::MembershipProof::of_words(&update, &matrix, sought).map_err(hash_error)
                }
                _ => Err(PyValueError::new_err("either row or sought must be given")),
            })
        })?;
        Ok(Self(proof))
    }

    #[staticmethod]
    fn decode(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let data = argument::bytes(data, "data")?;
        guarded(|| {
            membership::MembershipProof::decode(&data)
                .map(Self)
                .map_err(|error| PyValueError::new_err(error.to_string()))
        })
    }

    fn encode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = guarded(|| {
            self.0
                .encode()
                .map_err(|error| PyValueError::new_err(error.to_string()))
        })?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// What does not fit, or None.
    #[pyo3(signature = (*, run, record, update, batch, rolling_window))]
    fn verify(
        &self,
        run: &Bound<'_, PyAny>,
        record: &Bound<'_, PyAny>,
        update: &Bound<'_, PyAny>,
        batch: &Bound<'_, PyAny>,
        rolling_window: &Bound<'_, PyAny>,
    ) -> PyResult<Option<String>> {
        let update = committed(run, record, update, batch, rolling_window)?;
        guarded(|| Ok(self.0.verify(&update).err().map(|error| error.to_string())))
    }

    #[getter]
    fn run<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        digest_bytes(py, &self.0.run)
    }

    #[getter]
    fn record(&self) -> u64 {
        self.0.record
    }

    #[getter]
    fn update(&self) -> u64 {
        self.0.update
    }

    #[getter]
    fn batch<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        digest_bytes(py, &self.0.batch.digest())
    }

    #[getter]
    fn claim(&self) -> &'static str {
        match self.0.claim {
            Claim::Row(_) => "row",
            Claim::Window { .. } => "window",
            Claim::Absent { .. } => "absent",
        }
    }

    #[getter]
    fn row(&self) -> Option<u64> {
        match &self.0.claim {
            Claim::Row(opening) => Some(opening.row),
            Claim::Window { opening, .. } => Some(opening.row.row),
            Claim::Absent { .. } => None,
        }
    }

    #[getter]
    fn position(&self) -> Option<u64> {
        match &self.0.claim {
            Claim::Row(_) => None,
            Claim::Window { opening, .. } => Some(opening.position),
            Claim::Absent { position, .. } => Some(*position),
        }
    }

    #[getter]
    fn words<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        buffer::array(py, self.0.words())
    }
}

fn committed(
    run: &Bound<'_, PyAny>,
    record: &Bound<'_, PyAny>,
    update: &Bound<'_, PyAny>,
    batch: &Bound<'_, PyAny>,
    rolling_window: &Bound<'_, PyAny>,
) -> PyResult<CommittedUpdate> {
    Ok(CommittedUpdate {
        run: argument::digest(run, "run")?,
        record: argument::unsigned(record, "record")?,
        update: argument::unsigned(update, "update")?,
        batch: argument::digest(batch, "batch")?,
        rolling_window: argument::unsigned(rolling_window, "rolling_window")?,
    })
}
