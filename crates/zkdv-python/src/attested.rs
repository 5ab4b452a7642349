//! Values of an attest program against what was committed, compared as a verifier does.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use zkdv_hash::Dtype;
use zkdv_protocol::record::Tolerance;
use zkdv_protocol::verify::{Agreement, compare_delta, compare_value};

use crate::argument;
use crate::errors::{guarded, hash_error};
use crate::floats;

/// Whether they agree, what was expected, and how far they may be apart.
type Compared = (bool, f64, f64);

#[pyfunction]
pub(crate) fn attested_delta(
    dtype: &str,
    before: &Bound<'_, PyAny>,
    after: &Bound<'_, PyAny>,
    delta: &Bound<'_, PyAny>,
    absolute: &Bound<'_, PyAny>,
    relative: &Bound<'_, PyAny>,
) -> PyResult<Compared> {
    let (before, after) = (argument::bytes(before, "before")?, argument::bytes(after, "after")?);
    let delta = argument::float(delta, "delta")?;
    compared(dtype, absolute, relative, |dtype, tolerance| {
        compare_delta(dtype, &before, &after, delta, tolerance)
    })
}

#[pyfunction]
pub(crate) fn attested_element(
    dtype: &str,
    committed: &Bound<'_, PyAny>,
    element: &Bound<'_, PyAny>,
    absolute: &Bound<'_, PyAny>,
    relative: &Bound<'_, PyAny>,
) -> PyResult<Compared> {
    let committed = argument::bytes(committed, "committed")?;
    let element = argument::float(element, "element")?;
    compared(dtype, absolute, relative, |dtype, tolerance| {
        compare_value(dtype, &committed, element, tolerance)
    })
}

fn compared(
    dtype: &str,
    absolute: &Bound<'_, PyAny>,
    relative: &Bound<'_, PyAny>,
    compare: impl FnOnce(Dtype, Tolerance) -> Option<Agreement>,
) -> PyResult<Compared> {
    let dtype: Dtype = dtype.parse().map_err(hash_error)?;
    let tolerance = Tolerance {
        absolute: argument::float(absolute, "absolute")?,
        relative: argument::float(relative, "relative")?,
    };
    guarded(|| {
        floats::with_default_environment(|| compare(dtype, tolerance))
            .map(|agreement| (agreement.within, agreement.expected, agreement.allowed))
            .ok_or_else(|| {
                PyValueError::new_err(format!("an element of dtype {dtype} has {} bytes", dtype.size_bytes()))
            })
    })
}
