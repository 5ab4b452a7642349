//! `zkdv._native`: the one native access point of the Python packages.

#[pyo3::pymodule]
mod _native {}
