//! Verification of a transcript, with progress and interruption.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use zkdv_protocol::key::PublicKey;
use zkdv_protocol::verify::{Options, Requirement, verify as verify_transcript};
use zkdv_protocol::violation::Code;

use crate::argument;
use crate::errors::{detached, guarded, native_error};

/// How often Python is asked whether to go on, and told how far it is: often enough for a progress bar and for Ctrl-C.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);

#[pyfunction]
#[pyo3(signature = (path, options, progress = None))]
pub(crate) fn verify<'py>(
    py: Python<'py>,
    path: PathBuf,
    options: &Bound<'py, PyDict>,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let options = guarded(|| read_options(options))?;
    if let Some(progress) = &progress
        && !progress.is_callable()
    {
        return Err(PyTypeError::new_err(
            "progress must be a function of two numbers, or None",
        ));
    }
    let progress = progress.map(Bound::unbind);
    let report = detached(py, || {
        let mut reporter = Reporter {
            progress,
            last: None,
            raised: None,
        };
        let verified = verify_transcript(&path, &options, &mut |done, total| reporter.report(done, total));
        match (reporter.raised, verified) {
            (Some(raised), _) => Err(raised),
            (None, Ok(report)) => Ok(report),
            (None, Err(error)) => Err(native_error(&error)),
        }
    })?;
    guarded(|| pythonize::pythonize(py, &report).map_err(PyErr::from))
}

#[pyfunction]
pub(crate) fn violation_codes() -> Vec<&'static str> {
    Code::ALL.iter().map(|code| code.as_str()).collect()
}

/// Tells Python how far verification is, now and then.
struct Reporter {
    progress: Option<Py<PyAny>>,
    last: Option<Instant>,
    raised: Option<PyErr>,
}

impl Reporter {
    fn report(&mut self, done: u64, total: u64) -> ControlFlow<()> {
        let now = Instant::now();
        let is_due = self
            .last
            .is_none_or(|last| now.duration_since(last) >= PROGRESS_INTERVAL);
        if !is_due && done < total {
            return ControlFlow::Continue(());
        }
        self.last = Some(now);
        let answered = Python::attach(|py| {
            py.check_signals()?;
            self.progress
                .as_ref()
                .map_or(Ok(()), |progress| progress.call1(py, (done, total)).map(drop))
        });
        match answered {
            Ok(()) => ControlFlow::Continue(()),
            Err(raised) => {
                self.raised = Some(raised);
                ControlFlow::Break(())
            }
        }
    }
}

fn read_options(given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let mut options = Options::default();
    for (key, value) in given.iter() {
        let key: String = key
            .extract()
            .map_err(|_| PyTypeError::new_err("options: keys must be str"))?;
        match key.as_str() {
            "identity" if !value.is_none() => {
                let bytes = argument::digest(&value, "options[\"identity\"]")?;
                options.identity = Some(PublicKey::from_bytes(*bytes.as_bytes()));
            }
            "head" if !value.is_none() => options.head = Some(argument::digest(&value, "options[\"head\"]")?),
            "identity" | "head" => {}
            "allow_edits" => {
                options.allow_edits = value
                    .extract()
                    .map_err(|_| PyTypeError::new_err("options[\"allow_edits\"] must be a bool"))?;
            }
            "require" => {
                let conditions: Vec<String> = value
                    .extract()
                    .map_err(|_| PyTypeError::new_err("options[\"require\"] must be a list of str"))?;
                options.require = conditions
                    .iter()
                    .map(|condition| {
                        condition
                            .parse::<Requirement>()
                            .map_err(|error| PyValueError::new_err(error.to_string()))
                    })
                    .collect::<PyResult<_>>()?;
            }
            _ => {
                return Err(PyValueError::new_err(format!(
                    "options has no {key:?}; it takes identity, head, allow_edits and require"
                )));
            }
        }
    }
    Ok(options)
}
