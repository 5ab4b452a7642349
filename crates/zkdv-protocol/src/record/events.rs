//! The shorter bodies: environment, program, state, challenge, checkpoint, resume and close.

use super::error::BodyError;
use super::fields::{
    Fields, Parsed, boolean, bytes, digest, digest_value, list, name, named, non_empty, public_key, text, text_enum,
    text_of, unsigned,
};
use super::root::ranks;
use super::schema::names;
use super::update::Roots;
use crate::cbor::{Item, Key, Value};
use crate::key::PublicKey;
use crate::limits::{MAX_LEAVES, MAX_RECORD_BYTES};
use std::collections::BTreeMap;
use zkdv_hash::Digest;

/// What the prover says of its platform.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvironmentBody {
    /// Names and values, in the order of their encoding.
    pub entries: BTreeMap<Key, Value>,
}

impl EnvironmentBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let Item::Map(map) = item else {
            return Err(BodyError::item("a map", &item));
        };
        // Owned values take far more room than their bytes, so that they are counted before they are copied.
        if count_values(item, MAX_LEAVES) > MAX_LEAVES {
            return Err(BodyError::new(format!("at most {MAX_LEAVES} values in all"), "more"));
        }
        let mut entries = BTreeMap::new();
        for (key, value) in map.iter() {
            let key = name(key)?;
            let value = environment_value(value).map_err(|error| error.within(&crate::cbor::quote(&key)))?;
            entries.insert(key.into(), value);
        }
        Ok(Self { entries })
    }

    pub(super) fn to_value(&self) -> Value {
        Value::Map(self.entries.clone())
    }
}

/// How many items there are; gives up soon after `most`.
fn count_values(item: Item<'_>, most: usize) -> usize {
    let add = |count: usize, item| {
        if count > most {
            count
        } else {
            count + count_values(item, most - count)
        }
    };
    match item {
        Item::Array(array) if array.len() > most as u64 => most + 1,
        Item::Map(map) if map.len() > most as u64 => most + 1,
        Item::Array(array) => array.iter().fold(1, add),
        Item::Map(map) => map.iter().fold(1, |count, (_, value)| add(count, value)),
        _ => 1,
    }
}

fn environment_value(item: Item<'_>) -> Parsed<Value> {
    match item {
        Item::Null => Err(BodyError::item("a value other than null", &item)),
        Item::Array(array) => array
            .iter()
            .enumerate()
            .map(|(index, item)| environment_value(item).map_err(|error| error.within_index(index)))
            .collect::<Parsed<_>>()
            .map(Value::Array),
        Item::Map(map) => map
            .iter()
            .map(|(key, value)| {
                let key = name(key)?;
                let value = environment_value(value).map_err(|error| error.within(&crate::cbor::quote(&key)))?;
                Ok((key.into(), value))
            })
            .collect::<Parsed<_>>()
            .map(Value::Map),
        Item::Unsigned(number) => Ok(Value::Unsigned(number)),
        Item::Negative(number) => Ok(Value::Negative(number)),
        Item::Float(number) => Ok(Value::Float(number)),
        Item::Bool(value) => Ok(Value::Bool(value)),
        Item::Bytes(bytes) => Ok(Value::Bytes(bytes.to_vec())),
        Item::Text(text) => Ok(Value::Text(text.to_owned())),
    }
}

/// A sealed program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramBody {
    /// What it is for.
    pub role: ProgramRole,
    /// How it is encoded; for one, `jax-export`.
    pub format: String,
    /// The digest of its file.
    pub digest: Digest,
    /// The length of its file, in bytes.
    pub length: u64,
    /// The extension of its file's name: lower-case letters and digits.
    pub extension: String,
    /// The digest of a stable text form.
    pub text_digest: Digest,
    /// The platforms that it runs on.
    pub platforms: Vec<String>,
    /// How arguments and results are ordered.
    pub convention: String,
}

text_enum! {
    /// What a program is for.
    ProgramRole {
        /// Takes the state before an update to the state after it.
        Replay = "replay",
        /// The user's own program for a check's coordinates.
        Attest = "attest",
        /// A compiled native package.
        Aoti = "aoti",
    }
}

impl ProgramBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let body = Self {
            role: fields.required("role", ProgramRole::from_item)?,
            format: fields.required("format", name)?,
            digest: fields.required("digest", digest)?,
            length: fields.required("length", unsigned)?,
            extension: fields.required("extension", extension)?,
            text_digest: fields.required("text-digest", digest)?,
            platforms: fields.required("platforms", non_empty(list(MAX_LEAVES, name)))?,
            convention: fields.required("convention", text_of(0, MAX_RECORD_BYTES))?,
        };
        fields.finish(&[
            "role",
            "format",
            "digest",
            "length",
            "extension",
            "text-digest",
            "platforms",
            "convention",
        ])?;
        Ok(body)
    }

    pub(super) fn to_value(&self) -> Value {
        Value::map([
            ("role", self.role.into()),
            ("format", self.format.as_str().into()),
            ("digest", digest_value(&self.digest)),
            ("length", self.length.into()),
            ("extension", self.extension.as_str().into()),
            ("text-digest", digest_value(&self.text_digest)),
            ("platforms", names(&self.platforms)),
            ("convention", self.convention.as_str().into()),
        ])
    }

    /// The name of its file in the folder `programs`.
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.digest, self.extension)
    }
}

fn extension(item: Item<'_>) -> Parsed<String> {
    let extension = text(item)?;
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    if (1..=16).contains(&extension.len()) && extension.bytes().all(allowed) {
        return Ok(extension.to_owned());
    }
    Err(BodyError::item("1 to 16 lower-case letters and digits", &item))
}

/// All roots of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateBody {
    /// How many updates led to it.
    pub updates: u64,
    /// Why it is recorded.
    pub reason: StateReason,
    /// All four.
    pub roots: Roots,
}

text_enum! {
    /// Why a state is recorded.
    StateReason {
        /// It is the initial one.
        Start = "start",
        /// A run goes on from it.
        Resume = "resume",
        /// The next update lists an edit without its bytes.
        Edit = "edit",
        /// The run ends with it.
        Close = "close",
    }
}

impl StateBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let body = Self {
            updates: fields.required("updates", unsigned)?,
            reason: fields.required("reason", StateReason::from_item)?,
            roots: fields.required("roots", Roots::from_item)?,
        };
        fields.finish(&["updates", "reason", "roots"])?;
        Ok(body)
    }

    pub(super) fn to_value(&self) -> Value {
        Value::map([
            ("updates", self.updates.into()),
            ("reason", self.reason.into()),
            ("roots", self.roots.to_value()),
        ])
    }
}

/// A challenger's receipt for an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChallengeBody {
    /// The update.
    pub update: u64,
    /// The encoded receipt; see [`Receipt`](super::Receipt).
    pub receipt: Vec<u8>,
}

impl ChallengeBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let body = Self {
            update: fields.required("update", unsigned)?,
            receipt: fields.required("receipt", bytes(MAX_RECORD_BYTES))?,
        };
        fields.finish(&["update", "receipt"])?;
        Ok(body)
    }

    pub(super) fn to_value(&self) -> Value {
        Value::map([
            ("update", self.update.into()),
            ("receipt", self.receipt.as_slice().into()),
        ])
    }
}

/// Evidence that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointBody {
    /// The update that it belongs to.
    pub update: u64,
    /// Files in the run's folder, and their digests.
    pub files: Vec<(String, Digest)>,
}

impl CheckpointBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let body = Self {
            update: fields.required("update", unsigned)?,
            files: fields.required("files", non_empty(named(MAX_LEAVES, digest)))?,
        };
        fields.finish(&["update", "files"])?;
        Ok(body)
    }

    pub(super) fn to_value(&self) -> Value {
        let files = self
            .files
            .iter()
            .map(|(name, digest)| (name.as_str(), digest_value(digest)));
        Value::map([("update", self.update.into()), ("files", Value::map(files))])
    }
}

/// A run goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResumeBody {
    /// Bytes set aside.
    pub torn: u64,
    /// Updates kept.
    pub updates: u64,
    /// The `seq` of the record from which the run goes on.
    pub record: u64,
    /// The byte offset of that record in the file.
    pub offset: u64,
    /// Whether the optimizer state is a committed one.
    pub linked: bool,
    /// The key that signs the records after this one.
    pub session_key: PublicKey,
    /// How many processes train together from here on, where that changes.
    pub ranks: Option<u64>,
}

impl ResumeBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let body = Self {
            torn: fields.required("torn", unsigned)?,
            updates: fields.required("updates", unsigned)?,
            record: fields.required("record", unsigned)?,
            offset: fields.required("offset", unsigned)?,
            linked: fields.required("linked", boolean)?,
            session_key: fields.required("session-key", public_key)?,
            ranks: fields.optional("ranks", ranks)?,
        };
        fields.finish(&["torn", "updates", "record", "offset", "linked", "session-key", "ranks"])?;
        Ok(body)
    }

    pub(super) fn to_value(&self) -> Value {
        Value::map([
            ("torn", self.torn.into()),
            ("updates", self.updates.into()),
            ("record", self.record.into()),
            ("offset", self.offset.into()),
            ("linked", self.linked.into()),
            ("session-key", self.session_key.into()),
        ])
        .with("ranks", self.ranks)
    }
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseBody {
    /// Updates.
    pub updates: u64,
    /// Updates that were sampled.
    pub sampled: u64,
    /// Checks that passed.
    pub passed: u64,
    /// Checks that failed.
    pub failed: u64,
    /// Edits.
    pub edits: u64,
    /// Why it ended.
    pub reason: CloseReason,
}

text_enum! {
    /// Why a run ended.
    CloseReason {
        /// It was done.
        Finished = "finished",
        /// It had failed.
        Poisoned = "poisoned",
    }
}

impl CloseBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let body = Self {
            updates: fields.required("updates", unsigned)?,
            sampled: fields.required("sampled", unsigned)?,
            passed: fields.required("passed", unsigned)?,
            failed: fields.required("failed", unsigned)?,
            edits: fields.required("edits", unsigned)?,
            reason: fields.required("reason", CloseReason::from_item)?,
        };
        fields.finish(&["updates", "sampled", "passed", "failed", "edits", "reason"])?;
        Ok(body)
    }

    pub(super) fn to_value(self) -> Value {
        Value::map([
            ("updates", self.updates.into()),
            ("sampled", self.sampled.into()),
            ("passed", self.passed.into()),
            ("failed", self.failed.into()),
            ("edits", self.edits.into()),
            ("reason", self.reason.into()),
        ])
    }
}
