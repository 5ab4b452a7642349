//! Commitments to batches, and what can be shown about them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use zkdv_hash::batch::{self, AbsenceOpening, BlockOpening, Matrix, RowOpening, WindowOpening};
use zkdv_hash::rolling::Base;

use crate::argument;
use crate::buffer::Bytes;
use crate::commitments::{digest_bytes, digest_list};
use crate::errors::{detached, guarded, hash_error};
use crate::pool;

/// A committed batch; with it, openings are made from the batch's words and verified without them.
#[pyclass(module = "zkdv._native", frozen)]
pub(crate) struct BatchCommitment {
    fields: batch::BatchCommitment,
    rolling_window: usize,
    base: Base,
}

/// Index, bytes and path of a block in the list of window hashes.
type Block<'py> = (u64, Bound<'py, PyBytes>, Bound<'py, PyList>);

#[pyfunction]
pub(crate) fn batch_commit(
    py: Python<'_>,
    words: &Bound<'_, PyAny>,
    rolling_window: &Bound<'_, PyAny>,
    base: &Bound<'_, PyAny>,
) -> PyResult<BatchCommitment> {
    let words = Words::of(words)?;
    let rolling_window = argument::length(rolling_window, "rolling_window")?;
    let base = rolling_base(base)?;
    let matrix = words.matrix()?;
    let fields = detached(py, || {
        pool::run_if(!matrix.is_small(), || batch::commit(&matrix, rolling_window, &base)).map_err(hash_error)
    })?;
    Ok(BatchCommitment {
        fields,
        rolling_window,
        base,
    })
}

#[pymethods]
impl BatchCommitment {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "one keyword for each part of the commitment")]
    #[pyo3(signature = (*, rows, width, matrix, row_root, window_root, window_count, rolling_window, base))]
    fn new(
        rows: &Bound<'_, PyAny>,
        width: &Bound<'_, PyAny>,
        matrix: &Bound<'_, PyAny>,
        row_root: &Bound<'_, PyAny>,
        window_root: &Bound<'_, PyAny>,
        window_count: &Bound<'_, PyAny>,
        rolling_window: &Bound<'_, PyAny>,
        base: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let fields = batch::BatchCommitment {
            rows: argument::unsigned(rows, "rows")?,
            width: argument::unsigned(width, "width")?,
            matrix: argument::digest(matrix, "matrix")?,
            row_root: argument::digest(row_root, "row_root")?,
            window_root: argument::digest(window_root, "window_root")?,
            window_count: argument::unsigned(window_count, "window_count")?,
        };
        let rolling_window = argument::length(rolling_window, "rolling_window")?;
        Ok(Self {
            fields,
            rolling_window,
            base: rolling_base(base)?,
        })
    }

    #[getter]
    fn digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        digest_bytes(py, &self.fields.digest())
    }

    #[getter]
    fn matrix<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        digest_bytes(py, &self.fields.matrix)
    }

    #[getter]
    fn row_root<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        digest_bytes(py, &self.fields.row_root)
    }

    #[getter]
    fn window_root<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        digest_bytes(py, &self.fields.window_root)
    }

    #[getter]
    fn rows(&self) -> u64 {
        self.fields.rows
    }

    #[getter]
    fn width(&self) -> u64 {
        self.fields.width
    }

    #[getter]
    fn window_count(&self) -> u64 {
        self.fields.window_count
    }

    #[getter]
    fn rolling_window(&self) -> usize {
        self.rolling_window
    }

    #[getter]
    fn base(&self) -> u64 {
        self.base.value()
    }

    fn open_row<'py>(
        &self,
        py: Python<'py>,
        words: &Bound<'py, PyAny>,
        row: &Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyList>)> {
        let words = Words::of(words)?;
        let matrix = self.matrix_of(&words)?;
        let row = argument::length(row, "row")?;
        let opening = detached(py, || pool::run(|| batch::open_row(&matrix, row)).map_err(hash_error))?;
        Ok((words_bytes(py, &opening.words), digest_list(py, &opening.path)?))
    }

    fn verify_row(&self, row: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>, path: &Bound<'_, PyAny>) -> PyResult<bool> {
        let opening = row_opening(row, data, path)?;
        guarded(|| Ok(batch::verify_row(&self.fields.digest(), &self.fields, &opening)))
    }

    fn open_window<'py>(
        &self,
        py: Python<'py>,
        words: &Bound<'py, PyAny>,
        window: &Bound<'py, PyAny>,
    ) -> PyResult<(u64, u64, Bound<'py, PyBytes>, Bound<'py, PyList>)> {
        let words = Words::of(words)?;
        let matrix = self.matrix_of(&words)?;
        let window = Bytes::of(window, "window")?;
        let window = window.as_words("window")?;
        let opening = detached(py, || {
            pool::run(|| batch::open_window(&matrix, window)).map_err(hash_error)
        })?;
        let WindowOpening { row, position } = opening;
        Ok((
            row.row,
            position,
            words_bytes(py, &row.words),
            digest_list(py, &row.path)?,
        ))
    }

    fn verify_window(
        &self,
        window: &Bound<'_, PyAny>,
        row: &Bound<'_, PyAny>,
        position: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
        path: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let window = Bytes::of(window, "window")?;
        let window = window.as_words("window")?;
        let position = argument::unsigned(position, "position")?;
        let opening = WindowOpening {
            row: row_opening(row, data, path)?,
            position,
        };
        guarded(|| {
            Ok(batch::verify_window(
                &self.fields.digest(),
                &self.fields,
                window,
                &opening,
            ))
        })
    }

    fn open_absence<'py>(
        &self,
        py: Python<'py>,
        words: &Bound<'py, PyAny>,
        window: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Block<'py>>> {
        let words = Words::of(words)?;
        let matrix = self.matrix_of(&words)?;
        let window = Bytes::of(window, "window")?;
        let window = window.as_words("window")?;
        let AbsenceOpening { lower, upper } = detached(py, || {
            pool::run(|| batch::open_absent(&matrix, self.rolling_window, &self.base, window)).map_err(hash_error)
        })?;
        std::iter::once(lower)
            .chain(upper)
            .map(|block| {
                Ok((
                    block.block,
                    PyBytes::new(py, &block.bytes),
                    digest_list(py, &block.path)?,
                ))
            })
            .collect()
    }

    fn verify_absence(
        &self,
        window: &Bound<'_, PyAny>,
        blocks: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>)>,
    ) -> PyResult<bool> {
        let window = Bytes::of(window, "window")?;
        let window = window.as_words("window")?;
        let mut blocks = blocks
            .iter()
            .map(|(block, bytes, path)| {
                Ok(BlockOpening {
                    block: argument::unsigned(block, "block")?,
                    bytes: argument::bytes(bytes, "bytes")?.to_vec(),
                    path: argument::digests(path, "path")?,
                })
            })
            .collect::<PyResult<Vec<_>>>()?
            .into_iter();
        let (Some(lower), upper, None) = (blocks.next(), blocks.next(), blocks.next()) else {
            return Err(PyValueError::new_err("blocks must hold one block or two neighbours"));
        };
        let opening = AbsenceOpening { lower, upper };
        if window.len() != self.rolling_window {
            return Err(PyValueError::new_err(format!(
                "windows of this batch have {} words, this one has {}",
                self.rolling_window,
                window.len()
            )));
        }
        guarded(|| {
            Ok(batch::verify_absent(
                &self.fields.digest(),
                &self.fields,
                &self.base,
                window,
                &opening,
            ))
        })
    }

    fn __repr__(&self) -> String {
        format!(
            "BatchCommitment(rows={}, width={}, digest={})",
            self.fields.rows,
            self.fields.width,
            self.fields.digest()
        )
    }
}

impl BatchCommitment {
    fn matrix_of<'a>(&self, words: &'a Words) -> PyResult<Matrix<'a>> {
        let matrix = words.matrix()?;
        let (rows, width) = (matrix.rows() as u64, matrix.width() as u64);
        if (rows, width) != (self.fields.rows, self.fields.width) {
            return Err(PyValueError::new_err(format!(
                "words have shape ({rows}, {width}), the committed batch has ({}, {})",
                self.fields.rows, self.fields.width
            )));
        }
        Ok(matrix)
    }
}

/// The words of a batch: an array of shape (rows, width), uint32.
pub(crate) struct Words(Bytes);

impl Words {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        Bytes::of(object, "words").map(Self)
    }

    pub(crate) fn matrix(&self) -> PyResult<Matrix<'_>> {
        let &[rows, width] = self.0.shape() else {
            return Err(PyValueError::new_err(format!(
                "words must have shape (rows, width), they have {} dimensions",
                self.0.shape().len()
            )));
        };
        Matrix::new(self.0.as_words("words")?, rows, width).map_err(hash_error)
    }
}

fn row_opening(row: &Bound<'_, PyAny>, data: &Bound<'_, PyAny>, path: &Bound<'_, PyAny>) -> PyResult<RowOpening> {
    let data = argument::bytes(data, "data")?;
    let (words, rest) = data.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(PyValueError::new_err(format!(
            "data must be whole words of 4 bytes, it has {} bytes",
            data.len()
        )));
    }
    Ok(RowOpening {
        row: argument::unsigned(row, "row")?,
        words: words.iter().map(|word| u32::from_le_bytes(*word)).collect(),
        path: argument::digests(path, "path")?,
    })
}

fn rolling_base(object: &Bound<'_, PyAny>) -> PyResult<Base> {
    let value = object
        .extract::<u64>()
        .map_err(|_| PyValueError::new_err("base must be an integer from 2^32 to 2^61-2, as rolling_base gives it"))?;
    Base::from_value(value).map_err(hash_error)
}

fn words_bytes<'py>(py: Python<'py>, words: &[u32]) -> Bound<'py, PyBytes> {
    PyBytes::new(py, bytemuck::cast_slice(words))
}
