//! Probes, and digest and probe of a leaf on the host.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use zkdv_hash::commit::{LeafInput, Outputs};
use zkdv_hash::dtype::ProbeKind;
use zkdv_hash::probe::{self, ProbeOut, ProbedTree};
use zkdv_hash::{Digest, Dtype, commit};

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
    refuse_other_length(dtype, &shape, bytes)?;
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

fn run(dtype: Dtype, bytes: &[u8], shape: &[u64], ratio: f64, signs: &[u32], out: ProbeOut<'_>) -> PyResult<Digest> {
    pool::run_if(bytes.len() >= POOLED_BYTES, || {
        commit::leaf(dtype, bytes, shape, ratio, signs, out)
    })
    .map_err(hash_error)
}

fn probed<T: Element + Default + Send>(
    py: Python<'_>,
    length: usize,
    commit: impl FnOnce(&mut [T]) -> PyResult<Digest> + Send,
) -> PyResult<(Bound<'_, PyBytes>, Option<Bound<'_, PyAny>>)> {
    let (digest, probe) = detached(py, || {
        let mut probe = vec![T::default(); length];
        commit(&mut probe).map(|digest| (digest, probe))
    })?;
    Ok((digest_bytes(py, &digest), Some(array(py, &probe)?)))
}

/// What a caller gives of one leaf: its elements, dtype and shape.
type GivenLeaf<'py> = (Bound<'py, PyAny>, String, Vec<u64>);

#[pyfunction]
pub(crate) fn commit_leaves<'py>(
    py: Python<'py>,
    leaves: Vec<GivenLeaf<'py>>,
    ratio: &Bound<'py, PyAny>,
    signs: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyList>, Bound<'py, PyList>, Bound<'py, PyList>)> {
    let ratio = argument::float(ratio, "ratio")?;
    let signs = Bytes::of(signs, "signs")?;
    let mut held = Vec::with_capacity(leaves.len());
    let (mut length32, mut length64) = (0, 0);
    for (index, (data, dtype, shape)) in leaves.iter().enumerate() {
        let data = Bytes::of(data, &format!("leaves[{index}]"))?;
        let dtype: Dtype = dtype.parse().map_err(hash_error)?;
        // Checked first, so that no more is allocated than the data is long.
        refuse_other_length(dtype, shape, data.as_slice())?;
        let length = probe::length(shape, dtype, ratio).map_err(hash_error)?;
        let kind = dtype.probe_kind().filter(|_| length > 0);
        match kind {
            None => {}
            Some(ProbeKind::F32) => length32 += length,
            Some(ProbeKind::F64) => length64 += length,
        }
        held.push((data, dtype, shape, kind.map(|kind| (kind, length))));
    }
    let inputs: Vec<LeafInput<'_>> = held
        .iter()
        .map(|(data, dtype, shape, _)| LeafInput {
            dtype: *dtype,
            shape,
            bytes: data.as_slice(),
            due: true,
        })
        .collect();
    let words = signs.as_words("signs")?;
    let (digests, probe_digests, probes32, probes64) = detached(py, || {
        let mut digests = vec![[0; Digest::LENGTH]; inputs.len()];
        let mut probe_digests = digests.clone();
        let (mut probes32, mut probes64) = (vec![0.0f32; length32], vec![0.0f64; length64]);
        let outputs = Outputs {
            digests: &mut digests,
            probe_digests: &mut probe_digests,
            probes32: &mut probes32,
            probes64: &mut probes64,
        };
        pool::run_if(!commit::is_small(&inputs), || {
            commit::leaves(&inputs, ratio, words, outputs)
        })
        .map_err(hash_error)?;
        Ok((digests, probe_digests, probes32, probes64))
    })?;
    let probes = PyList::empty(py);
    let (mut rest32, mut rest64) = (probes32.as_slice(), probes64.as_slice());
    for (_, _, _, probe) in &held {
        match *probe {
            None => probes.append(py.None())?,
            Some((ProbeKind::F32, length)) => probes.append(array(py, split_off(&mut rest32, length))?)?,
            Some((ProbeKind::F64, length)) => probes.append(array(py, split_off(&mut rest64, length))?)?,
        }
    }
    let list =
        |digests: &[[u8; Digest::LENGTH]]| PyList::new(py, digests.iter().map(|digest| PyBytes::new(py, digest)));
    Ok((list(&digests)?, list(&probe_digests)?, probes))
}

/// Takes the first numbers off; all, where there are fewer.
fn split_off<'a, T>(rest: &mut &'a [T], length: usize) -> &'a [T] {
    let (first, others) = rest.split_at(length.min(rest.len()));
    *rest = others;
    first
}

fn refuse_other_length(dtype: Dtype, shape: &[u64], bytes: &[u8]) -> PyResult<()> {
    let expected = dtype.array_bytes(shape).map_err(hash_error)?;
    if bytes.len() as u64 == expected {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "an array of shape {shape:?} and dtype {dtype} has {expected} bytes, data has {}",
        bytes.len()
    )))
}
