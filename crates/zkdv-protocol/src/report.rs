//! What a verifier concludes, in the shape that `zkdv verify --json` prints.
//!
//! Every list has a bound, whatever the transcript holds; totals stand beside the lists that are cut.

use serde::Serialize;
use zkdv_hash::Digest;

use crate::cbor::Value;
use crate::key::PublicKey;
use crate::violation::Violation;

/// How many violations a report lists.
pub const MAX_VIOLATIONS: usize = 1000;
/// How many edits a report lists.
pub const MAX_EDITS: usize = 100;
/// The largest environment, in bytes of its encoding, that a report repeats.
pub const MAX_ENVIRONMENT_BYTES: usize = 64 * 1024;

/// What a verifier concludes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The conclusion.
    pub verdict: Outcome,
    /// The exit code that goes with it: 0 passed, 1 failed, 3 incomplete.
    pub exit_code: u8,
    /// The level of assurance. What is shown here is always "record".
    pub level: &'static str,
    /// Whether the transcript ends with a `close` record.
    pub closed: bool,
    /// Whether that record says that the run had failed.
    pub poisoned: bool,
    /// Bytes of a last record that is not whole.
    pub torn_bytes: u64,
    /// Whole records in the file.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// `update` records.
    pub updates: u64,
    /// Updates for which a check is due.
    pub sampled: u64,
    /// Checks that passed.
    pub checks_passed: u64,
    /// Checks that failed.
    pub checks_failed: u64,
    /// Checks whose production values were gone, and sampled updates that were abandoned unchecked.
    pub checks_unresolved: u64,
    /// Sampled updates whose check may still come.
    pub checks_outstanding: u64,
    /// Changes of the state by other means than updates: the first [`MAX_EDITS`].
    pub edits: Vec<EditReport>,
    /// How many there are.
    pub edits_total: u64,
    /// The digest of the last record.
    #[serde(serialize_with = "as_text")]
    pub head: Option<Digest>,
    /// The digest of the first record, by which the run is named.
    #[serde(serialize_with = "as_text")]
    pub root: Option<Digest>,
    /// The run's name.
    pub run: Option<String>,
    /// The program that wrote the transcript.
    pub prover: Option<&'static str>,
    /// When the run started, in milliseconds since 1970-01-01T00:00:00Z, by the prover's clock.
    pub time: Option<u64>,
    /// The head of the closed run that this one continues.
    #[serde(serialize_with = "as_text")]
    pub parent: Option<Digest>,
    /// Who signed the run.
    pub identity: Option<IdentityReport>,
    /// Processes that train together.
    pub ranks: Option<u64>,
    /// The probability with which each update is checked.
    pub probability: Option<f64>,
    /// For finding faults: every so-manyth update is checked.
    pub every: Option<u64>,
    /// How far a replay may lie from what was committed, whatever the values.
    pub tolerance_absolute: Option<f64>,
    /// The same in proportion to the larger value.
    pub tolerance_relative: Option<f64>,
    /// Which roots every update commits to.
    pub commit: Option<&'static str>,
    /// Updates from one snapshot to the next.
    pub replay_snapshot_interval: Option<u64>,
    /// Who drew the sample.
    pub challenger: Option<ChallengerReport>,
    /// The sealed programs, and how many updates each ran.
    pub programs: Vec<ProgramReport>,
    /// `resume` records.
    pub resumes: u64,
    /// Those that go on from an optimizer state that is committed nowhere, or in another layout.
    pub unlinked: u64,
    /// What is wrong: the first [`MAX_VIOLATIONS`].
    pub violations: Vec<Violation>,
    /// How much is wrong in all.
    pub violations_total: u64,
    /// What is missing for a transcript that passes, where nothing is wrong with it.
    pub incomplete: Vec<String>,
    /// What a reader should know all the same.
    pub warnings: Vec<String>,
    /// What the prover says of its platform; none where it takes more than [`MAX_ENVIRONMENT_BYTES`].
    pub environment: Option<Shown>,
}

/// The conclusion of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Closed, and nothing is wrong.
    Passed,
    /// Something is wrong.
    Failed,
    /// Nothing is wrong, but something is missing.
    Incomplete,
}

impl Outcome {
    /// The exit code of a program that reports it.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Passed => 0,
            Self::Failed => 1,
            Self::Incomplete => 3,
        }
    }
}

/// A leaf that was changed by other means than an update.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EditReport {
    /// The update before which it was changed.
    pub update: u64,
    /// Number of that update's record in the file.
    pub record: u64,
    /// The tree.
    pub tree: &'static str,
    /// Index of the leaf in the tree.
    pub leaf: u64,
    /// The leaf's name, where it has one of at most a kilobyte in the schema.
    pub name: Option<String>,
    /// Its new digest.
    #[serde(serialize_with = "digest_as_text")]
    pub digest: Digest,
    /// The leaf's dtype, where the schema is known.
    pub dtype: Option<&'static str>,
    /// Its new elements as numbers, where they are few; a complex one is a list of its two parts.
    pub elements: Option<Vec<Shown>>,
    /// Its new bytes in hexadecimal, where they are few.
    pub value: Option<String>,
}

/// Who signed the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct IdentityReport {
    /// The public key.
    #[serde(serialize_with = "key_as_text")]
    pub key: PublicKey,
    /// Whether the verifier knew beforehand that it is this key.
    pub pinned: bool,
}

/// Who drew the sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChallengerReport {
    /// Its name.
    pub name: String,
    /// Its public key; none where the sample follows from the transcript itself.
    #[serde(serialize_with = "optional_key_as_text")]
    pub key: Option<PublicKey>,
}

/// A sealed program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramReport {
    /// Number of its record in the file.
    pub record: u64,
    /// The digest of its file.
    #[serde(serialize_with = "digest_as_text")]
    pub digest: Digest,
    /// What it is for.
    pub role: &'static str,
    /// Updates that name it; of an attest program, those that it was in force for.
    pub updates: u64,
}

/// A value as it is shown to people: bytes in hexadecimal, numbers that JSON does not have as text.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Shown {
    /// Null.
    Null,
    /// False or true.
    Bool(bool),
    /// An integer from 0 on.
    Unsigned(u64),
    /// A negative integer.
    Signed(i64),
    /// A finite number.
    Float(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Shown>),
    /// A map, in its own order.
    Map(ShownMap),
}

/// Entries of a map in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct ShownMap(pub Vec<(String, Shown)>);

impl Serialize for ShownMap {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

impl From<&Value> for Shown {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Unsigned(number) => Self::Unsigned(*number),
            Value::Negative(number) => i64::try_from(*number).map_or_else(
                |_| Self::Text(format!("-{}", u128::from(*number) + 1)),
                |number| Self::Signed(-1 - number),
            ),
            Value::Float(number) if number.is_finite() => Self::Float(*number),
            Value::Float(number) => Self::Text(number.to_string()),
            Value::Text(text) => Self::Text(text.clone()),
            Value::Bytes(bytes) => Self::Text(hexadecimal(bytes)),
            Value::Array(values) => Self::List(values.iter().map(Self::from).collect()),
            Value::Map(entries) => Self::Map(ShownMap(
                entries
                    .iter()
                    .map(|(key, value)| (key.as_str().to_owned(), Self::from(value)))
                    .collect(),
            )),
        }
    }
}

pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            // Writing to a string does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[allow(clippy::ref_option, reason = "the signature that serde calls")]
fn as_text<S: serde::Serializer>(digest: &Option<Digest>, serializer: S) -> Result<S::Ok, S::Error> {
    digest.map(|digest| digest.to_string()).serialize(serializer)
}

fn digest_as_text<S: serde::Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(digest)
}

fn key_as_text<S: serde::Serializer>(key: &PublicKey, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(key)
}

#[allow(clippy::ref_option, reason = "the signature that serde calls")]
fn optional_key_as_text<S: serde::Serializer>(key: &Option<PublicKey>, serializer: S) -> Result<S::Ok, S::Error> {
    key.map(|key| key.to_string()).serialize(serializer)
}
