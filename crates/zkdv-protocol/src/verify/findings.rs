//! Collecting what is found, within bounds.

use std::collections::BTreeSet;

use crate::report::MAX_VIOLATIONS;
use crate::violation::{Code, Place, Violation};

/// Warnings beyond this number add nothing that a reader could use.
const MAX_WARNINGS: usize = 100;

/// What was found so far.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    violations: Vec<Violation>,
    total: u64,
    seen: BTreeSet<Code>,
    warnings: Vec<String>,
}

impl Findings {
    /// Notes a violation in a record.
    pub(crate) fn add(&mut self, code: Code, place: Place, message: impl Into<String>) {
        self.note(code, Some(place), message);
    }

    /// Notes a violation by the transcript as a whole.
    pub(crate) fn add_overall(&mut self, code: Code, message: impl Into<String>) {
        self.note(code, None, message);
    }

    fn note(&mut self, code: Code, place: Option<Place>, message: impl Into<String>) {
        self.total += 1;
        self.seen.insert(code);
        if self.violations.len() < MAX_VIOLATIONS {
            self.violations.push(Violation {
                code,
                place,
                message: message.into(),
            });
        }
    }

    /// Notes what is no violation, and what a reader should know.
    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(warning.into());
        }
    }

    /// Whether there was a violation.
    pub(crate) fn any(&self) -> bool {
        self.total > 0
    }

    /// Whether there was a violation of this kind.
    pub(crate) fn has(&self, code: Code) -> bool {
        self.seen.contains(&code)
    }

    /// The violations in the order of their places, how many there were, and the warnings.
    pub(crate) fn into_parts(mut self) -> (Vec<Violation>, u64, Vec<String>) {
        // What concerns the whole comes last; the sort keeps the order of what was found in one record.
        self.violations
            .sort_by_key(|violation| violation.place.map_or(u64::MAX, |place| place.record));
        (self.violations, self.total, self.warnings)
    }
}
