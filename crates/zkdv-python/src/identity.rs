//! Identity keys: from files, and held elsewhere.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zkdv_protocol::key::{ExternalSigner, IdentityKey, PublicKey, Signer};

use crate::argument;
use crate::errors::{detached, key_error, native_error};

/// The key that signs the root of a run.
#[pyclass(module = "zkdv._native", frozen)]
pub(crate) struct Identity {
    signer: Arc<dyn Signer>,
}

#[pymethods]
impl Identity {
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        detached(py, || IdentityKey::load(&path).map_err(key_error)).map(Self::new)
    }

    #[staticmethod]
    fn generate(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        detached(py, || IdentityKey::generate(&path).map_err(key_error)).map(Self::new)
    }

    #[staticmethod]
    fn external(public_key: &Bound<'_, PyAny>, sign: Bound<'_, PyAny>) -> PyResult<Self> {
        let public_key = PublicKey::from_bytes(*argument::digest(public_key, "public_key")?.as_bytes());
        if !sign.is_callable() {
            return Err(PyTypeError::new_err(
                "sign must be a function that takes bytes and returns a signature",
            ));
        }
        let sign = sign.unbind();
        let signer = ExternalSigner::new(public_key, move |message| {
            Python::attach(|py| {
                let signature = sign.call1(py, (PyBytes::new(py, message),))?;
                Ok(argument::bytes(signature.bind(py), "what the signer returns")?.to_vec())
            })
        })
        .map_err(|error| native_error(&error))?;
        Ok(Self::new(signer))
    }

    #[getter]
    fn public_key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.signer.public_key().as_bytes())
    }

    fn public_pem(&self) -> PyResult<String> {
        let public_key = self.signer.public_key();
        public_key
            .to_pem()
            .ok_or_else(|| native_error(&format_args!("{public_key} is no Ed25519 public key")))
    }

    /// Shows the public key alone.
    fn __repr__(&self) -> String {
        format!("Identity(public_key={})", self.signer.public_key())
    }
}

impl Identity {
    fn new(signer: impl Signer + 'static) -> Self {
        Self {
            signer: Arc::new(signer),
        }
    }

    pub(crate) fn signer(&self) -> Arc<dyn Signer> {
        Arc::clone(&self.signer)
    }
}
