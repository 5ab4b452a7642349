//! Digests, trees, openings, rolling bases and challenges.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMapping};
use zkdv_hash::challenge::{Draw, Sampling};
use zkdv_hash::rolling::Base;
use zkdv_hash::sharding::Sharding;
use zkdv_hash::tree::TreeKind;
use zkdv_hash::{Digest, challenge, chunk, leaf, tree};

use crate::argument;
use crate::buffer::Bytes;
use crate::errors::{detached, guarded, hash_error};
use crate::pool;

/// Leaves up to this length are hashed by the calling thread: waking the pool takes some 20 microseconds, half of what
/// hashing this much takes.
const SEQUENTIAL_BYTES: usize = 256 * 1024;
/// Openings of leaves up to this length are made by the calling thread.
const POOLED_BYTES: usize = 128 * 1024;
/// Trees of fewer leaves are hashed by the calling thread.
const POOLED_LEAVES: usize = 128;

#[pyfunction]
pub(crate) fn leaf_digest<'py>(py: Python<'py>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let data = Bytes::of(data, "data")?;
    let bytes = data.as_slice();
    let digest = detached(py, || {
        Ok(if bytes.len() > SEQUENTIAL_BYTES && pool::is_parallel() {
            pool::run(|| leaf::digest(bytes))
        } else {
            // The same digest, without `leaf::digest`'s offer to rayon to share the work.
            blake3::hash(bytes).into()
        })
    })?;
    Ok(digest_bytes(py, &digest))
}

#[pyfunction]
pub(crate) fn sharded_leaf_digest<'py>(
    py: Python<'py>,
    shape: Vec<u64>,
    extents: Vec<u64>,
    shards: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyBytes>> {
    let sharding = sharding(&shape, &extents)?;
    let shards = argument::digests(shards, "shards")?;
    let digest = guarded(|| sharding.digest(&shards).map_err(hash_error))?;
    Ok(digest_bytes(py, &digest))
}

#[pyfunction]
pub(crate) fn sharding_locate(shape: Vec<u64>, extents: Vec<u64>, element: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    let sharding = sharding(&shape, &extents)?;
    let element = argument::unsigned(element, "element")?;
    let absent = || PyValueError::new_err(format!("the leaf has no element {element}"));
    let place = guarded(|| Ok(sharding.locate(element)))?.ok_or_else(absent)?;
    Ok((place.shard, place.element))
}

#[pyfunction]
pub(crate) fn sharding_ranges(shape: Vec<u64>, extents: Vec<u64>) -> PyResult<Vec<Vec<(u64, u64)>>> {
    let sharding = sharding(&shape, &extents)?;
    guarded(|| {
        let shards = (0..sharding.count()).filter_map(|shard| sharding.ranges(shard));
        Ok(shards
            .map(|ranges| ranges.iter().map(|range| (range.start, range.end)).collect())
            .collect())
    })
}

#[pyfunction]
pub(crate) fn tree_root<'py>(py: Python<'py>, kind: &str, leaves: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let kind = tree_kind(kind)?;
    let leaves = argument::bytes_list(leaves, "leaves")?;
    let root = detached(py, || {
        Ok(pool::run_if(leaves.len() >= POOLED_LEAVES, || {
            tree::root(kind, &leaves)
        }))
    })?;
    Ok(digest_bytes(py, &root))
}

#[pyfunction]
pub(crate) fn tree_open<'py>(
    py: Python<'py>,
    kind: &str,
    leaves: &Bound<'py, PyAny>,
    index: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyList>> {
    let kind = tree_kind(kind)?;
    let index = argument::length(index, "index")?;
    let leaves = argument::bytes_list(leaves, "leaves")?;
    let path = detached(py, || {
        pool::run_if(leaves.len() >= POOLED_LEAVES, || tree::open(kind, &leaves, index)).map_err(hash_error)
    })?;
    digest_list(py, &path)
}

#[pyfunction]
pub(crate) fn tree_verify(
    kind: &str,
    root: &Bound<'_, PyAny>,
    count: &Bound<'_, PyAny>,
    index: &Bound<'_, PyAny>,
    leaf: &Bound<'_, PyAny>,
    path: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let kind = tree_kind(kind)?;
    let root = argument::digest(root, "root")?;
    let count = argument::unsigned(count, "count")?;
    let index = argument::unsigned(index, "index")?;
    let leaf = argument::bytes(leaf, "leaf")?;
    let path = argument::digests(path, "path")?;
    guarded(|| Ok(tree::verify(kind, &root, count, index, &leaf, &path)))
}

#[pyfunction]
pub(crate) fn chunk_open<'py>(
    py: Python<'py>,
    data: &Bound<'py, PyAny>,
    chunk: &Bound<'py, PyAny>,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyList>)> {
    let chunk = argument::unsigned(chunk, "chunk")?;
    let data = Bytes::of(data, "data")?;
    let bytes = data.as_slice();
    let opening = detached(py, || {
        pool::run_if(bytes.len() > POOLED_BYTES, || chunk::open(bytes, chunk)).map_err(hash_error)
    })?;
    Ok((PyBytes::new(py, &opening.bytes), digest_list(py, &opening.chain)?))
}

#[pyfunction]
pub(crate) fn chunk_verify(
    digest: &Bound<'_, PyAny>,
    length: &Bound<'_, PyAny>,
    chunk: &Bound<'_, PyAny>,
    data: &Bound<'_, PyAny>,
    chain: &Bound<'_, PyAny>,
) -> PyResult<bool> {
    let digest = argument::digest(digest, "digest")?;
    let length = argument::unsigned(length, "length")?;
    let chunk = argument::unsigned(chunk, "chunk")?;
    let data = argument::bytes(data, "data")?;
    let chain = argument::digests(chain, "chain")?;
    guarded(|| Ok(chunk::verify(&digest, length, chunk, &data, &chain)))
}

#[pyfunction]
pub(crate) fn rolling_base(root_digest: &Bound<'_, PyAny>) -> PyResult<u64> {
    Ok(Base::from_root(&argument::digest(root_digest, "root_digest")?).value())
}

#[pyfunction]
pub(crate) fn draw(
    record_digest: &Bound<'_, PyAny>,
    randomness: &Bound<'_, PyAny>,
    sampling: &Bound<'_, PyAny>,
    update: &Bound<'_, PyAny>,
    parameters: &Bound<'_, PyAny>,
    optimizer: &Bound<'_, PyAny>,
) -> PyResult<(bool, Option<u64>, Option<u64>)> {
    let record_digest = argument::digest(record_digest, "record_digest")?;
    let randomness = argument::bytes(randomness, "randomness")?;
    let sampling = sampling_rule(sampling)?;
    let update = argument::unsigned(update, "update")?;
    let parameters = argument::unsigned(parameters, "parameters")?;
    let optimizer = argument::unsigned(optimizer, "optimizer")?;
    guarded(|| {
        let Draw {
            sampled,
            parameter,
            optimizer,
        } = challenge::draw(&record_digest, &randomness, &sampling, update, parameters, optimizer)
            .map_err(hash_error)?;
        Ok((sampled, parameter, optimizer))
    })
}

fn sharding(shape: &[u64], extents: &[u64]) -> PyResult<Sharding> {
    Sharding::new(shape, extents).map_err(hash_error)
}

/// `{"probability": float}` or `{"every": int}`, as in the root record.
fn sampling_rule(object: &Bound<'_, PyAny>) -> PyResult<Sampling> {
    let wanted = "sampling must be {\"probability\": float} or {\"every\": int}";
    let mapping = object.cast::<PyMapping>().map_err(|_| PyTypeError::new_err(wanted))?;
    let only = |key| Ok::<_, PyErr>(mapping.len()? == 1 && mapping.contains(key)?);
    if only("probability")? {
        argument::float(&mapping.get_item("probability")?, "sampling[\"probability\"]").map(Sampling::Probability)
    } else if only("every")? {
        argument::unsigned(&mapping.get_item("every")?, "sampling[\"every\"]").map(Sampling::Every)
    } else {
        Err(PyValueError::new_err(wanted))
    }
}

fn tree_kind(name: &str) -> PyResult<TreeKind> {
    name.parse().map_err(hash_error)
}

pub(crate) fn digest_bytes<'py>(py: Python<'py>, digest: &Digest) -> Bound<'py, PyBytes> {
    PyBytes::new(py, digest.as_bytes())
}

pub(crate) fn digest_list<'py>(py: Python<'py>, digests: &[Digest]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, digests.iter().map(|digest| digest_bytes(py, digest)))
}
