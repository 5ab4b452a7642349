//! Probes, and digest and probe of a leaf on the host.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use zkdv_hash::commit::{LeafInput, Outputs};
use zkdv_hash::dtype::ProbeKind;
use zkdv_hash::probe::{self, ProbedTree};
use zkdv_hash::{Digest, Dtype, commit};

use crate::argument;
use crate::buffer::{Bytes, array};
use crate::errors::{detached, hash_error};
use crate::pool;

/// Columns whose signs take 4 GiB; more is a mistake, not a leaf.
const COLUMNS_MAX: usize = 1 << 35;

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
) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    let ratio = argument::float(ratio, "ratio")?;
    let leaf = HostLeaf::of(data, "data", dtype, shape, ratio)?;
    let (digests, _, probes) = commit_held(py, &[leaf], ratio, signs)?;
    Ok((digests.get_item(0)?, probes.get_item(0)?))
}

/// What a caller gives of one leaf: its elements, dtype and shape.
type GivenLeaf<'py> = (Bound<'py, PyAny>, String, Vec<u64>);

#[pyfunction]
pub(crate) fn commit_leaves<'py>(
    py: Python<'py>,
    leaves: Vec<GivenLeaf<'py>>,
    ratio: &Bound<'py, PyAny>,
    signs: &Bound<'py, PyAny>,
) -> PyResult<Committed<'py>> {
    let ratio = argument::float(ratio, "ratio")?;
    let leaves = leaves
        .into_iter()
        .enumerate()
        .map(|(index, (data, dtype, shape))| HostLeaf::of(&data, &format!("leaves[{index}]"), &dtype, shape, ratio))
        .collect::<PyResult<Vec<_>>>()?;
    commit_held(py, &leaves, ratio, signs)
}

/// A leaf whose data has the length that dtype and shape call for.
struct HostLeaf {
    data: Bytes,
    dtype: Dtype,
    shape: Vec<u64>,
    /// The numbers of its probe; none where it has none.
    probe: Option<(ProbeKind, usize)>,
}

impl HostLeaf {
    fn of(data: &Bound<'_, PyAny>, name: &str, dtype: &str, shape: Vec<u64>, ratio: f64) -> PyResult<Self> {
        let data = Bytes::of(data, name)?;
        let dtype: Dtype = dtype.parse().map_err(hash_error)?;
        let (expected, got) = (dtype.array_bytes(&shape).map_err(hash_error)?, data.as_slice().len());
        // Checked first: a probe is no longer than the data, so that nothing is allocated by a number alone.
        if got as u64 != expected {
            return Err(PyValueError::new_err(format!(
                "an array of shape {shape:?} and dtype {dtype} has {expected} bytes, {name} has {got}"
            )));
        }
        let length = probe::length(&shape, dtype, ratio).map_err(hash_error)?;
        let probe = dtype.probe_kind().filter(|_| length > 0).map(|kind| (kind, length));
        Ok(Self {
            data,
            dtype,
            shape,
            probe,
        })
    }
}

/// The digest of each leaf, that of each probe, and the probes, None where there is none.
type Committed<'py> = (Bound<'py, PyList>, Bound<'py, PyList>, Bound<'py, PyList>);

fn commit_held<'py>(
    py: Python<'py>,
    leaves: &[HostLeaf],
    ratio: f64,
    signs: &Bound<'py, PyAny>,
) -> PyResult<Committed<'py>> {
    let signs = Bytes::of(signs, "signs")?;
    let words = signs.as_words("signs")?;
    let length_of = |sought: ProbeKind| -> usize {
        let lengths = leaves.iter().filter_map(|leaf| leaf.probe);
        lengths
            .filter(|(kind, _)| *kind == sought)
            .map(|(_, length)| length)
            .sum()
    };
    let (length32, length64) = (length_of(ProbeKind::F32), length_of(ProbeKind::F64));
    let inputs: Vec<LeafInput<'_>> = leaves
        .iter()
        .map(|leaf| LeafInput {
            dtype: leaf.dtype,
            shape: &leaf.shape,
            bytes: leaf.data.as_slice(),
            due: true,
        })
        .collect();
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
    for leaf in leaves {
        match leaf.probe {
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
