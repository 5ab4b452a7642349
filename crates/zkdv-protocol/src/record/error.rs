use crate::cbor::Item;
use std::borrow::Cow;
use thiserror::Error;

/// A body that does not follow the grammar, or that says what this version does not support.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: expected {expected}, got {got}")]
pub struct BodyError {
    /// Which rule it breaks.
    pub kind: BodyErrorKind,
    /// Where: the keys that lead there, such as `body.after.parameters`.
    pub place: String,
    /// What is allowed there.
    pub expected: Cow<'static, str>,
    /// What stands there.
    pub got: String,
}

/// The kinds of [`BodyError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BodyErrorKind {
    /// A body that does not follow the grammar.
    Grammar,
    /// Another version of the protocol.
    Protocol,
    /// A scheme of which this version knows nothing.
    Scheme,
    /// A configuration with values out of range.
    Configuration,
}

impl BodyError {
    pub(crate) fn new(expected: impl Into<Cow<'static, str>>, got: impl Into<String>) -> Self {
        Self {
            kind: BodyErrorKind::Grammar,
            place: "body".to_owned(),
            expected: expected.into(),
            got: got.into(),
        }
    }

    /// An entry that is not the caller's to give.
    pub(crate) fn filled_in(key: &str) -> Self {
        Self::new("no entry, as it is filled in", "one").within(key)
    }

    pub(crate) fn item(expected: impl Into<Cow<'static, str>>, got: &Item<'_>) -> Self {
        Self::new(expected, got.describe())
    }

    pub(crate) fn kind(self, kind: BodyErrorKind) -> Self {
        Self { kind, ..self }
    }

    /// The same error, one level further out.
    pub(crate) fn within(mut self, key: &str) -> Self {
        self.place.insert_str("body".len(), &format!(".{key}"));
        self
    }

    pub(crate) fn within_index(mut self, index: usize) -> Self {
        self.place.insert_str("body".len(), &format!("[{index}]"));
        self
    }
}
