//! XLA custom calls, written against XLA's FFI C API.
//!
//! [`abi`] lays out what XLA hands over, [`frame`] turns it into checked values, [`element`] names element types, and
//! [`commit`] is the call itself.

mod abi;
mod commit;
mod element;
mod frame;

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

/// The name under which XLA's own Python bindings wrap handlers.
const CAPSULE_NAME: &CStr = c"xla._CUSTOM_CALL_TARGET";

#[pyfunction]
pub(crate) fn xla_ffi_handler(py: Python<'_>) -> PyResult<Bound<'_, PyCapsule>> {
    let handler: extern "C" fn(*mut abi::CallFrame) -> *mut abi::Error = commit::zkdv_commit;
    let Some(pointer) = NonNull::new(handler as *mut c_void) else {
        unreachable!("a function has an address")
    };
    // SAFETY: a function lives as long as the process, since Python never unloads extension modules.
    unsafe { PyCapsule::new_with_pointer(py, pointer, CAPSULE_NAME) }
}

#[pyfunction]
pub(crate) fn xla_ffi_layout(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let layout = PyDict::new(py);
    for (structure, member, bytes) in abi::LAYOUT {
        let place = if member.is_empty() {
            (*structure).to_owned()
        } else {
            format!("{structure}.{member}")
        };
        layout.set_item(place, bytes)?;
    }
    Ok(layout)
}

#[pyfunction]
pub(crate) fn xla_ffi_element_types(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let types = PyDict::new(py);
    for (name, number) in element::ElementType::ALL {
        types.set_item(name, number)?;
    }
    Ok(types)
}
