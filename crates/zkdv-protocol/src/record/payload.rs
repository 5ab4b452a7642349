use super::check::CheckBody;
use super::error::BodyError;
use super::events::{ChallengeBody, CheckpointBody, CloseBody, EnvironmentBody, ProgramBody, ResumeBody, StateBody};
use super::fields::text_enum;
use super::root::RootBody;
use super::schema::SchemaBody;
use super::update::UpdateBody;
use crate::cbor::{self, Encoder, EncodingError, Item, Value, quote};
use thiserror::Error;
use zkdv_hash::Digest;

text_enum! {
    /// The record types of version 1.
    RecordType {
        /// First.
        Root = "root",
        /// What the prover says of its platform.
        Environment = "environment",
        /// The layout of state and batch.
        Schema = "schema",
        /// A sealed program.
        Program = "program",
        /// All roots of a state.
        State = "state",
        /// One update.
        Update = "update",
        /// A challenger's receipt.
        Challenge = "challenge",
        /// A sampled update's check.
        Check = "check",
        /// Evidence that was written.
        Checkpoint = "checkpoint",
        /// A run goes on.
        Resume = "resume",
        /// Last.
        Close = "close",
    }
}

impl RecordType {
    /// The type of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::from_item(Item::Text(name)).ok()
    }

    /// Whether the identity key signs it. The session key signs all others.
    pub const fn is_signed_by_identity(self) -> bool {
        matches!(self, Self::Root | Self::Resume)
    }
}

/// The four fields of a record, the last two still to be read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Payload<'a> {
    /// The record's number.
    pub seq: u64,
    /// The digest of the record before it.
    pub prev: Digest,
    /// The name of its type.
    pub type_name: &'a str,
    /// Its body.
    pub body: Item<'a>,
}

/// A payload that is not one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// Not deterministic CBOR.
    #[error("the payload's encoding is wrong {0}")]
    Encoding(#[from] EncodingError),
    /// Not a map of `seq`, `prev`, `type` and `body`.
    #[error("the payload is not a map of 1: unsigned, 2: 32 bytes, 3: text, 4: map, but {got}")]
    Fields {
        /// What it is.
        got: String,
    },
}

impl<'a> Payload<'a> {
    /// Reads a payload, strictly.
    ///
    /// # Errors
    /// [`PayloadError::Encoding`] where the bytes are not one deterministic item, [`PayloadError::Fields`] where that is no payload.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, PayloadError> {
        let item = cbor::decode(bytes)?;
        Self::from_item(item).ok_or_else(|| PayloadError::Fields { got: describe(item) })
    }

    fn from_item(item: Item<'a>) -> Option<Self> {
        let Item::Map(map) = item else { return None };
        let mut pairs = map.iter();
        let (Item::Unsigned(1), Item::Unsigned(seq)) = pairs.next()? else {
            return None;
        };
        let (Item::Unsigned(2), Item::Bytes(prev)) = pairs.next()? else {
            return None;
        };
        let (Item::Unsigned(3), Item::Text(type_name)) = pairs.next()? else {
            return None;
        };
        let (Item::Unsigned(4), body @ Item::Map(_)) = pairs.next()? else {
            return None;
        };
        if pairs.next().is_some() {
            return None;
        }
        Some(Self {
            seq,
            prev: Digest::from_bytes(prev.try_into().ok()?),
            type_name,
            body,
        })
    }

    /// The record's type, where version 1 has it.
    pub fn record_type(&self) -> Option<RecordType> {
        RecordType::from_name(self.type_name)
    }
}

fn describe(item: Item<'_>) -> String {
    const SHOWN: usize = 6;
    let Item::Map(map) = item else { return item.describe() };
    let shown: Vec<_> = map
        .iter()
        .take(SHOWN)
        .map(|(key, value)| {
            let key = if let Item::Text(key) = key {
                quote(key)
            } else {
                key.describe().replace("integer ", "")
            };
            format!("{key}: {}", value.describe())
        })
        .collect();
    format!("a map of {}", shown.join(", "))
}

/// A record's body.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// What a run declares when it starts.
    Root(Box<RootBody>),
    /// What the prover says of its platform.
    Environment(EnvironmentBody),
    /// The layout of state and batch.
    Schema(SchemaBody),
    /// A sealed program.
    Program(ProgramBody),
    /// All roots of a state.
    State(StateBody),
    /// One update.
    Update(UpdateBody),
    /// A challenger's receipt.
    Challenge(ChallengeBody),
    /// A sampled update's check.
    Check(Box<CheckBody>),
    /// Evidence that was written.
    Checkpoint(CheckpointBody),
    /// A run goes on.
    Resume(ResumeBody),
    /// The end of a run.
    Close(CloseBody),
}

impl Body {
    /// Reads a body by the grammar of its type.
    ///
    /// # Errors
    /// The first place where it departs from the grammar. What the grammar leaves open in a root,
    /// [`RootBody::validate`] checks.
    pub fn from_item(record_type: RecordType, item: Item<'_>) -> Result<Self, BodyError> {
        match record_type {
            RecordType::Root => RootBody::from_item(item).map(|body| Self::Root(Box::new(body))),
            RecordType::Environment => EnvironmentBody::from_item(item).map(Self::Environment),
            RecordType::Schema => SchemaBody::from_item(item).map(Self::Schema),
            RecordType::Program => ProgramBody::from_item(item).map(Self::Program),
            RecordType::State => StateBody::from_item(item).map(Self::State),
            RecordType::Update => UpdateBody::from_item(item).map(Self::Update),
            RecordType::Challenge => ChallengeBody::from_item(item).map(Self::Challenge),
            RecordType::Check => CheckBody::from_item(item).map(|body| Self::Check(Box::new(body))),
            RecordType::Checkpoint => CheckpointBody::from_item(item).map(Self::Checkpoint),
            RecordType::Resume => ResumeBody::from_item(item).map(Self::Resume),
            RecordType::Close => CloseBody::from_item(item).map(Self::Close),
        }
    }

    /// Reads a body by the grammar of its type.
    ///
    /// # Errors
    /// As [`Body::from_item`]; an encoding that is too deep is an error of the grammar here.
    pub fn from_value(record_type: RecordType, value: &Value) -> Result<Self, BodyError> {
        let bytes = value.encode();
        let item =
            cbor::decode(&bytes).map_err(|error| BodyError::new("a value that can be encoded", error.to_string()))?;
        Self::from_item(record_type, item)
    }

    /// The map that stands in the record.
    pub fn to_value(&self) -> Value {
        match self {
            Self::Root(body) => body.to_value(),
            Self::Environment(body) => body.to_value(),
            Self::Schema(body) => body.to_value(),
            Self::Program(body) => body.to_value(),
            Self::State(body) => body.to_value(),
            Self::Update(body) => body.to_value(),
            Self::Challenge(body) => body.to_value(),
            Self::Check(body) => body.to_value(),
            Self::Checkpoint(body) => body.to_value(),
            Self::Resume(body) => body.to_value(),
            Self::Close(body) => body.to_value(),
        }
    }

    /// Its type.
    pub const fn record_type(&self) -> RecordType {
        match self {
            Self::Root(_) => RecordType::Root,
            Self::Environment(_) => RecordType::Environment,
            Self::Schema(_) => RecordType::Schema,
            Self::Program(_) => RecordType::Program,
            Self::State(_) => RecordType::State,
            Self::Update(_) => RecordType::Update,
            Self::Challenge(_) => RecordType::Challenge,
            Self::Check(_) => RecordType::Check,
            Self::Checkpoint(_) => RecordType::Checkpoint,
            Self::Resume(_) => RecordType::Resume,
            Self::Close(_) => RecordType::Close,
        }
    }

    /// The payload of the record with this body.
    pub fn encode_payload(&self, seq: u64, prev: &Digest) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder
            .map(4)
            .unsigned(1)
            .unsigned(seq)
            .unsigned(2)
            .bytes(prev.as_bytes());
        encoder
            .unsigned(3)
            .text(self.record_type().as_str())
            .unsigned(4)
            .value(&self.to_value());
        encoder.into_bytes()
    }
}
