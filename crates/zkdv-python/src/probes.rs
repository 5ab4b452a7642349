//! Probes, and digest and probe of a leaf on the host.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use zkdv_hash::dtype::ProbeKind;
use zkdv_hash::probe::{self, ProbeOut, ProbedTree};
use zkdv_hash::{Dtype, commit};

use crate::argument;
use crate::buffer::{Bytes, Element, array};
use crate::commitments::digest_bytes;
use crate::errors::{detached, hash_error};
use crate::pool;

/// Columns whose signs take 4 GiB; more is a mistake, not a leaf.
const COLUMNS_MAX: usize = 1 << 35;
/// Leaves up to this length are committed to by the calling thread.
const POOLED_BYTES: usize = 128 * 1024;

#[pyfunction]
pub(crate) fn probe_kept(dimension: &Bound<'_, PyAny>, ratio: &Bound<'_, PyAny>) -> PyResult<u64> {
    let dimension = argument::unsigned(dimension, "dimension")?;
    probe::kept(dimension, argument::float(ratio, "ratio")?).map_err(hash_error)
}

#[pyfunction]
pub(crate) fn probe_length(shape: Vec<u64>, dtype: &str, ratio: &Bound<'_, PyAny>) -> PyResult<usize> {
    let dtype: Dtype = dtype.parse().map_err(hash_error)?;
    probe::length(&shape, dtype, argument::float(ratio, "ratio")?).map_err(hash_error)
}

#[pyfunction]
pub(crate) fn probe_sign_words(shape: Vec<u64>, dtype: &str) -> PyResult<usize> {
    let dtype: Dtype = dtype.parse().map_err(hash_error)?;
    probe::sign_words(&shape, dtype).map_err(hash_error)
}

#[pyfunction]
pub(crate) fn probe_signs<'py>(
    py: Python<'py>,
    root_digest: &Bound<'py, PyAny>,
    tree: &Bound<'py, PyAny>,
    leaf: &Bound<'py, PyAny>,
    dimension: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let root = argument::digest(root_digest, "root_digest")?;
    let tree = argument::unsigned(tree, "tree")?;
    let tree = u8::try_from(tree)
        .map_err(|_| PyValueError::new_err(format!("tree must be 0 (parameters) or 1 (optimizer), not {tree}")))?;
    let tree = ProbedTree::try_from(tree).map_err(hash_error)?;
    let leaf = argument::unsigned(leaf, "leaf")?;
    let dimension = argument::length(dimension, "dimension")?;
    if dimension > COLUMNS_MAX {
        return Err(PyValueError::new_err(format!(
            "dimension must be at most {COLUMNS_MAX}, not {dimension}"
        )));
    }
    let signs = detached(py, || Ok(probe::signs(&root, tree, leaf, dimension)))?;
    array(py, &signs)
}

#[pyfunction]
pub(crate) fn commit_leaf<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    dtype: &str,
    shape: Vec<u64>,
    ratio: &Bound<'py, PyAny>,
    signs: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyBytes>, Option<Bound<'py, PyAny>>)> {
    let dtype: Dtype = dtype.parse().map_err(hash_error)?;
    let ratio = argument::float(ratio, "ratio")?;
    let data = Bytes::of(data, "data")?;
    let signs = Bytes::of(signs, "signs")?;
    let (bytes, signs) = (data.as_slice(), signs.as_words("signs")?);
    let expected = dtype.array_bytes(&shape).map_err(hash_error)?;
    if bytes.len() as u64 != expected {
        return Err(PyValueError::new_err(format!(
            "an array of shape {shape:?} and dtype {dtype} has {expected} bytes, data has {}",
            bytes.len()
        )));
    }
    // No longer than the data, so that nothing is allocated by a number alone.
    let length = probe::length(&shape, dtype, ratio).map_err(hash_error)?;
    match dtype.probe_kind().filter(|_| length > 0) {
        None => {
            let digest = detached(py, || run(dtype, bytes, &shape, ratio, signs, ProbeOut::None))?;
            Ok((digest_bytes(py, &digest), None))
        }
        Some(ProbeKind::F32) => probed(py, length, |out: &mut [f32]| {
            run(dtype, bytes, &shape, ratio, signs, ProbeOut::F32(out))
        }),
        Some(ProbeKind::F64) => probed(py, length, |out: &mut [f64]| {
            run(dtype, bytes, &shape, ratio, signs, ProbeOut::F64(out))
        }),
    }
}

fn run(
    dtype: Dtype,
    bytes: &[u8],
    shape: &[u64],
    ratio: f64,
    signs: &[u32],
    out: ProbeOut<'_>,
) -> PyResult<zkdv_hash::Digest> {
    pool::run_if(bytes.len() >= POOLED_BYTES, || {
        commit::leaf(dtype, bytes, shape, ratio, signs, out)
    })
    .map_err(hash_error)
}

fn probed<T: Element + Default + Send>(
    py: Python<'_>,
    length: usize,
    commit: impl FnOnce(&mut [T]) -> PyResult<zkdv_hash::Digest> + Send,
) -> PyResult<(Bound<'_, PyBytes>, Option<Bound<'_, PyAny>>)> {
    let (digest, probe) = detached(py, || {
        let mut probe = vec![T::default(); length];
        commit(&mut probe).map(|digest| (digest, probe))
    })?;
    Ok((digest_bytes(py, &digest), Some(array(py, &probe)?)))
}
