//! What a verifier knows and asks for beforehand.

use std::str::FromStr;

use thiserror::Error;
use zkdv_hash::Digest;

use crate::key::PublicKey;

/// What a verifier knows and asks for beforehand.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// The identity that must have signed the transcript.
    pub identity: Option<PublicKey>,
    /// The digest that its last record must have.
    pub head: Option<Digest>,
    /// Whether edits are accepted.
    pub allow_edits: bool,
    /// Further conditions.
    pub require: Vec<Requirement>,
}

/// A condition on a transcript, written as for `zkdv verify --require`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Requirement {
    /// `closed`: the transcript ends with a `close` record.
    Closed,
    /// `no-edits`: no state leaf was changed by other means than updates.
    NoEdits,
    /// `identity`: the verifier pinned the identity.
    Identity,
    /// `level=…`: this level of assurance or a higher one.
    Level(Level),
    /// `probability>=…`: every update is checked with at least this probability.
    Probability(f64),
}

/// A level of assurance, from the lowest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// One unbroken chain of records by the declared identity.
    Record,
    /// A pinned challenger drew the sample as well.
    Checked,
    /// An auditor re-executed updates as well.
    Audited,
}

impl Level {
    /// The level's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Checked => "checked",
            Self::Audited => "audited",
        }
    }
}

/// A condition that there is not.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "cannot require {condition:?}: conditions are closed, no-edits, identity, level=record|checked|audited and probability>=NUMBER, the number from 0 to 1"
)]
pub struct RequirementError {
    /// The condition as it was written.
    pub condition: String,
}

impl FromStr for Requirement {
    type Err = RequirementError;

    fn from_str(text: &str) -> Result<Self, RequirementError> {
        let levels = [Level::Record, Level::Checked, Level::Audited];
        let known = match text {
            "closed" => Some(Self::Closed),
            "no-edits" => Some(Self::NoEdits),
            "identity" => Some(Self::Identity),
            _ => None,
        };
        known
            .or_else(|| {
                let name = text.strip_prefix("level=")?;
                levels.into_iter().find(|level| level.as_str() == name).map(Self::Level)
            })
            .or_else(|| {
                let number = text.strip_prefix("probability>=")?.parse().ok()?;
                (0.0..=1.0).contains(&number).then_some(Self::Probability(number))
            })
            .ok_or_else(|| RequirementError {
                condition: text.to_owned(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read() {
        assert_eq!("closed".parse(), Ok(Requirement::Closed));
        assert_eq!("no-edits".parse(), Ok(Requirement::NoEdits));
        assert_eq!("identity".parse(), Ok(Requirement::Identity));
        assert_eq!("level=checked".parse(), Ok(Requirement::Level(Level::Checked)));
        assert_eq!("probability>=0.25".parse(), Ok(Requirement::Probability(0.25)));
    }

    #[test]
    fn other_conditions_are_refused_by_name() {
        for text in [
            "",
            "open",
            "level=",
            "level=Record",
            "probability>=",
            "probability>=2",
            "probability>=nan",
            "closed ",
        ] {
            let error = text.parse::<Requirement>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
