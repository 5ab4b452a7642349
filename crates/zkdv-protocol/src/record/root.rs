use super::configuration::Configuration;
use super::error::{BodyError, BodyErrorKind};
use super::fields::{Fields, Parsed, digest, digest_value, name, public_key, text_enum, text_of, unsigned};
use super::payload::{Body, RecordType};
use crate::cbor::{Item, Value};
use crate::key::PublicKey;
use crate::limits::MAX_RUN_NAME_BYTES;
use zkdv_hash::Digest;

/// The version of the protocol that this crate reads and writes.
pub const PROTOCOL_VERSION: u64 = 1;

/// What a run declares when it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct RootBody {
    /// Which program wrote the transcript.
    pub prover: Prover,
    /// The run's name.
    pub run: String,
    /// Milliseconds since 1970-01-01T00:00:00Z, by the prover's clock.
    pub time: u64,
    /// The key that signs this record and every resume.
    pub identity: PublicKey,
    /// The key that signs the records after this one.
    pub session_key: PublicKey,
    /// How many processes train together.
    pub ranks: u64,
    /// Who draws the sample.
    pub challenger: Challenger,
    /// How everything is committed.
    pub schemes: Schemes,
    /// What was configured.
    pub configuration: Configuration,
    /// The head of the closed run that this one continues.
    pub parent: Option<Digest>,
}

text_enum! {
    /// The program that wrote a transcript.
    Prover {
        /// The JAX frontend.
        Jax = "whitebox-jax",
        /// The Torch frontend.
        Torch = "whitebox-torch",
    }
}

/// Who supplies the randomness of the sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenger {
    /// [`Challenger::TRANSCRIPT`], or the name of a challenger that gives receipts.
    pub name: String,
    /// The key that signs its receipts.
    pub key: Option<PublicKey>,
}

impl Challenger {
    /// The challenger that is none: the sample follows from the transcript alone.
    pub const TRANSCRIPT: &str = "transcript";
}

/// The names of the schemes by which things are committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schemes {
    /// Of a leaf.
    pub leaf: String,
    /// Of a leaf that is spread over devices.
    pub sharded_leaf: String,
    /// Of a Merkle tree.
    pub tree: String,
    /// Of a batch.
    pub batch: String,
    /// Of a probe.
    pub probe: String,
    /// Of the sample.
    pub challenge: String,
}

impl RootBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        fields.required("protocol", |item| match item {
            Item::Unsigned(PROTOCOL_VERSION) => Ok(()),
            other => Err(BodyError::item("protocol version 1", &other).kind(BodyErrorKind::Protocol)),
        })?;
        let body = Self {
            prover: fields.required("prover", Prover::from_item)?,
            run: fields.required("run", text_of(1, MAX_RUN_NAME_BYTES))?,
            time: fields.required("time", unsigned)?,
            identity: fields.required("identity", public_key)?,
            session_key: fields.required("session-key", public_key)?,
            ranks: fields.required("ranks", ranks)?,
            challenger: fields.required("challenger", Challenger::from_item)?,
            schemes: fields.required("schemes", Schemes::from_item)?,
            configuration: fields.required("configuration", Configuration::from_item)?,
            parent: fields.optional("parent", digest)?,
        };
        fields.finish(&[
            "protocol",
            "prover",
            "run",
            "time",
            "identity",
            "session-key",
            "ranks",
            "challenger",
            "schemes",
            "configuration",
            "parent",
        ])?;
        Ok(body)
    }

    pub(super) fn to_value(&self) -> Value {
        Value::map([
            ("protocol", PROTOCOL_VERSION.into()),
            ("prover", self.prover.into()),
            ("run", self.run.as_str().into()),
            ("time", self.time.into()),
            ("identity", self.identity.into()),
            ("session-key", self.session_key.into()),
            ("ranks", self.ranks.into()),
            (
                "challenger",
                Value::map([("name", self.challenger.name.as_str())].map(|(key, name)| (key, name.into())))
                    .with("key", self.challenger.key),
            ),
            ("schemes", self.schemes.to_value()),
            ("configuration", self.configuration.to_value()),
        ])
        .with("parent", self.parent.as_ref().map(digest_value))
    }

    /// Reads the body of a root by its grammar.
    ///
    /// # Errors
    /// The first place where it departs from it.
    pub fn from_value(value: &Value) -> Result<Self, BodyError> {
        match Body::from_value(RecordType::Root, value)? {
            Body::Root(body) => Ok(*body),
            other => Err(BodyError::new("a root", other.record_type().as_str())),
        }
    }

    /// Checks what the grammar leaves open: the challenger's key, schemes, and the ranges of the configuration.
    ///
    /// # Errors
    /// The first thing that is out of range, with its kind.
    pub fn validate(&self) -> Result<(), BodyError> {
        if let Some(key) = self.challenger.key
            && key.to_verifying_key().is_none()
        {
            return Err(BodyError::new("an Ed25519 key that can verify", key.to_string())
                .kind(BodyErrorKind::Configuration)
                .within("key")
                .within("challenger"));
        }
        self.schemes.validate().map_err(|error| error.within("schemes"))?;
        self.configuration
            .validate()
            .map_err(|error| error.within("configuration"))
    }
}

pub(super) fn ranks(item: Item<'_>) -> Parsed<u64> {
    match item {
        Item::Unsigned(ranks) if ranks > 0 => Ok(ranks),
        other => Err(BodyError::item("an integer of at least 1", &other)),
    }
}

impl Challenger {
    fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let challenger = Self {
            name: fields.required("name", name)?,
            key: fields.optional("key", public_key)?,
        };
        fields.finish(&["name", "key"])?;
        if (challenger.name == Self::TRANSCRIPT) != challenger.key.is_none() {
            let expected = "a key, except for the challenger \"transcript\", which has none";
            return Err(BodyError::item(expected, &item));
        }
        Ok(challenger)
    }

    /// Whether it gives a receipt for every update.
    pub const fn gives_receipts(&self) -> bool {
        self.key.is_some()
    }
}

impl Schemes {
    /// Those of version 1, the only ones.
    pub fn version_1() -> Self {
        Self {
            leaf: "blake3-256".to_owned(),
            sharded_leaf: "zkdv-sharded-leaf-1".to_owned(),
            tree: "zkdv-tree-1".to_owned(),
            batch: "zkdv-batch-1".to_owned(),
            probe: "zkdv-probe-1".to_owned(),
            challenge: "zkdv-challenge-1".to_owned(),
        }
    }

    fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let schemes = Self {
            leaf: fields.required("leaf", name)?,
            sharded_leaf: fields.required("sharded-leaf", name)?,
            tree: fields.required("tree", name)?,
            batch: fields.required("batch", name)?,
            probe: fields.required("probe", name)?,
            challenge: fields.required("challenge", name)?,
        };
        fields.finish(&["leaf", "sharded-leaf", "tree", "batch", "probe", "challenge"])?;
        Ok(schemes)
    }

    fn entries(&self) -> [(&'static str, &str); 6] {
        [
            ("leaf", &self.leaf),
            ("sharded-leaf", &self.sharded_leaf),
            ("tree", &self.tree),
            ("batch", &self.batch),
            ("probe", &self.probe),
            ("challenge", &self.challenge),
        ]
    }

    fn to_value(&self) -> Value {
        Value::map(self.entries().map(|(kind, scheme)| (kind, scheme.into())))
    }

    fn validate(&self) -> Parsed<()> {
        for ((kind, scheme), (_, known)) in self.entries().into_iter().zip(Self::version_1().entries()) {
            if scheme != known {
                return Err(BodyError::item(format!("\"{known}\""), &Item::Text(scheme))
                    .kind(BodyErrorKind::Scheme)
                    .within(kind));
            }
        }
        Ok(())
    }
}
