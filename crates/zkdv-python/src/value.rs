//! Bodies of records between Python and the protocol: dict, list, bytes, str, int, float, bool and None.

use std::collections::BTreeMap;
use std::fmt;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use zkdv_protocol::cbor::{Item, Key, MAX_DEPTH, Value};

use crate::errors::guarded;

/// Reads a Python value as one of a record.
///
/// # Errors
/// `TypeError` for another type, `ValueError` for an integer beyond 64 bits, nesting beyond the format's limit, and text
/// that is no UTF-8; each names the place, such as `body.after.parameters`.
pub(crate) fn from_python(object: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    let place = Place {
        parent: None,
        step: Step::Name(name),
    };
    guarded(|| convert(object, &place, MAX_DEPTH))
}

/// Gives a value of a record to Python.
pub(crate) fn to_python<'py>(py: Python<'py>, item: &Item<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match item {
        Item::Unsigned(number) => number.into_pyobject(py)?.into_any(),
        Item::Negative(number) => (-1 - i128::from(*number)).into_pyobject(py)?.into_any(),
        Item::Float(number) => PyFloat::new(py, *number).into_any(),
        Item::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Item::Null => py.None().into_bound(py),
        Item::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Item::Text(text) => PyString::new(py, text).into_any(),
        Item::Array(array) => {
            let list = PyList::empty(py);
            for item in array.iter() {
                list.append(to_python(py, &item)?)?;
            }
            list.into_any()
        }
        Item::Map(map) => {
            let dict = PyDict::new(py);
            for (key, item) in map.iter() {
                dict.set_item(to_python(py, &key)?, to_python(py, &item)?)?;
            }
            dict.into_any()
        }
    })
}

fn convert(object: &Bound<'_, PyAny>, place: &Place<'_>, depth_left: usize) -> PyResult<Value> {
    // A bool is an int in Python, so it comes first.
    if object.is_none() {
        Ok(Value::Null)
    } else if let Ok(value) = object.cast::<PyBool>() {
        Ok(Value::Bool(value.is_true()))
    } else if let Ok(number) = object.cast::<PyInt>() {
        integer(number, place)
    } else if let Ok(number) = object.cast::<PyFloat>() {
        Ok(Value::Float(number.value()))
    } else if let Ok(bytes) = object.cast::<PyBytes>() {
        Ok(Value::Bytes(bytes.as_bytes().to_vec()))
    } else if let Ok(string) = object.cast::<PyString>() {
        text(string, place).map(Value::Text)
    } else if let Ok(dict) = object.cast::<PyDict>() {
        let depth_left = deeper(place, depth_left)?;
        let mut map = BTreeMap::new();
        for (key, value) in dict.iter() {
            let Ok(key) = key.cast::<PyString>() else {
                return Err(PyTypeError::new_err(format!(
                    "{place} has a key of type {}; keys are str",
                    type_name(&key)
                )));
            };
            let key = text(key, place)?;
            let value = convert(
                &value,
                &Place {
                    parent: Some(place),
                    step: Step::Key(&key),
                },
                depth_left,
            )?;
            map.insert(Key::from(key), value);
        }
        Ok(Value::Map(map))
    } else if let Ok(list) = object.cast::<PyList>() {
        sequence(list.iter(), place, depth_left)
    } else if let Ok(tuple) = object.cast::<PyTuple>() {
        sequence(tuple.iter(), place, depth_left)
    } else {
        Err(PyTypeError::new_err(format!(
            "{place} is of type {}; a record holds dict, list, bytes, str, int, float, bool and None",
            type_name(object)
        )))
    }
}

fn sequence<'py>(
    items: impl Iterator<Item = Bound<'py, PyAny>>,
    place: &Place<'_>,
    depth_left: usize,
) -> PyResult<Value> {
    let depth_left = deeper(place, depth_left)?;
    items
        .enumerate()
        .map(|(index, item)| {
            convert(
                &item,
                &Place {
                    parent: Some(place),
                    step: Step::Index(index),
                },
                depth_left,
            )
        })
        .collect::<PyResult<_>>()
        .map(Value::Array)
}

fn integer(number: &Bound<'_, PyInt>, place: &Place<'_>) -> PyResult<Value> {
    if let Ok(number) = number.extract::<u64>() {
        return Ok(Value::Unsigned(number));
    }
    number.extract::<i64>().map(Value::from).map_err(|_| {
        PyValueError::new_err(format!(
            "{place} is an integer outside -2^63 … 2^64-1; write it as bytes or str"
        ))
    })
}

fn text(string: &Bound<'_, PyString>, place: &Place<'_>) -> PyResult<String> {
    let text = string.to_str().map_err(|_| {
        PyValueError::new_err(format!(
            "{place} holds text with lone surrogates, which UTF-8 cannot encode"
        ))
    })?;
    Ok(text.to_owned())
}

fn deeper(place: &Place<'_>, depth_left: usize) -> PyResult<usize> {
    depth_left.checked_sub(1).ok_or_else(|| {
        PyValueError::new_err(format!(
            "{place} is nested more than {MAX_DEPTH} deep, which is the limit of the format"
        ))
    })
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object
        .get_type()
        .fully_qualified_name()
        .map_or_else(|_| "unknown".to_owned(), |name| name.to_string())
}

/// Where a value stands, kept as a chain so that the way there is spelled out only for an error.
struct Place<'a> {
    parent: Option<&'a Place<'a>>,
    step: Step<'a>,
}

/// Whether a key reads well without quotes, as the format's own keys do.
fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

enum Step<'a> {
    Name(&'a str),
    Key(&'a str),
    Index(usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(formatter)?;
        }
        match self.step {
            Step::Name(name) => formatter.write_str(name),
            Step::Key(key) if is_plain(key) => write!(formatter, ".{key}"),
            Step::Key(key) => write!(formatter, ".{key:?}"),
            Step::Index(index) => write!(formatter, "[{index}]"),
        }
    }
}
