use super::configuration::Tolerance;
use super::fields::{
    Fields, Parsed, boolean, bytes, digest, digest_value, digests, float, list, non_empty, text_enum, unsigned,
};
use crate::cbor::{Item, Value};
use crate::limits::{MAX_CHUNK_BYTES, MAX_ELEMENT_BYTES, MAX_PATH, MAX_SHARDS};
use zkdv_hash::Digest;

/// What the prover's own re-execution of a sampled update gave.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckBody {
    /// The update.
    pub update: u64,
    /// The update before which the state was held that the replay started from.
    pub snapshot: u64,
    /// Whether every due root of every rebuilt update was equal.
    pub exact: bool,
    /// What follows.
    pub verdict: Verdict,
    /// The tolerance that was applied.
    pub tolerance: Tolerance,
    /// The coordinate drawn among the parameters.
    pub parameter: Option<Coordinate>,
    /// The coordinate drawn in the optimizer state.
    pub optimizer: Option<Coordinate>,
    /// The largest distance over coordinates and scaled probes, where not exact.
    pub distance: Option<f64>,
    /// Whether every probe was within tolerance, where not exact.
    pub probes: Option<bool>,
}

text_enum! {
    /// What a check found.
    Verdict {
        /// Exact, or within tolerance.
        Passed = "passed",
        /// Beyond the tolerance.
        Failed = "failed",
        /// The production values were gone.
        Unresolved = "unresolved",
    }
}

/// One element of a tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Coordinate {
    /// Its index among all elements of the tree.
    pub index: u64,
    /// Its bytes after the update.
    pub committed: Option<Vec<u8>>,
    /// Its bytes after the replay.
    pub replayed: Option<Vec<u8>>,
    /// Shows that the committed bytes stand under the committed root.
    pub opening: Option<Opening>,
    /// What the attest program gave: of a parameter what was added to it, of the optimizer state the element after the
    /// update.
    pub attested: Option<f64>,
    /// The bytes of a parameter before the update, where it was attested.
    pub before: Option<Vec<u8>>,
    /// Shows that those bytes stand under the root before the update.
    pub before_opening: Option<Opening>,
}

impl Coordinate {
    /// The coordinate by itself, as an exact check names it.
    pub const fn bare(index: u64) -> Self {
        Self {
            index,
            committed: None,
            replayed: None,
            opening: None,
            attested: None,
            before: None,
            before_opening: None,
        }
    }
}

/// Shows that a chunk of bytes stands in a leaf under a root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Of the leaf.
    pub digest: Digest,
    /// Siblings in the tree, from the leaf upwards.
    pub path: Vec<Digest>,
    /// Of all shards of the leaf, where it is spread over devices; empty where it is not.
    pub shards: Vec<Digest>,
    /// The index of the chunk in the leaf, or in the shard that holds the element.
    pub chunk: u64,
    /// The chunk.
    pub bytes: Vec<u8>,
    /// Chaining values beside the chunk, from the bottom up.
    pub chain: Vec<Digest>,
}

impl CheckBody {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let body = Self {
            update: fields.required("update", unsigned)?,
            snapshot: fields.required("snapshot", unsigned)?,
            exact: fields.required("exact", boolean)?,
            verdict: fields.required("verdict", Verdict::from_item)?,
            tolerance: fields.required("tolerance", Tolerance::from_item)?,
            parameter: fields.optional("parameter", Coordinate::from_item)?,
            optimizer: fields.optional("optimizer", Coordinate::from_item)?,
            distance: fields.optional("distance", float)?,
            probes: fields.optional("probes", boolean)?,
        };
        fields.finish(&[
            "update",
            "snapshot",
            "exact",
            "verdict",
            "tolerance",
            "parameter",
            "optimizer",
            "distance",
            "probes",
        ])?;
        Ok(body)
    }

    pub(super) fn to_value(&self) -> Value {
        Value::map([
            ("update", self.update.into()),
            ("snapshot", self.snapshot.into()),
            ("exact", self.exact.into()),
            ("verdict", self.verdict.into()),
            ("tolerance", self.tolerance.to_value()),
        ])
        .with("parameter", self.parameter.as_ref().map(Coordinate::to_value))
        .with("optimizer", self.optimizer.as_ref().map(Coordinate::to_value))
        .with("distance", self.distance)
        .with("probes", self.probes)
    }
}

impl Coordinate {
    fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let coordinate = Self {
            index: fields.required("index", unsigned)?,
            committed: fields.optional("committed", bytes(MAX_ELEMENT_BYTES))?,
            replayed: fields.optional("replayed", bytes(MAX_ELEMENT_BYTES))?,
            opening: fields.optional("opening", Opening::from_item)?,
            attested: fields.optional("attested", float)?,
            before: fields.optional("before", bytes(MAX_ELEMENT_BYTES))?,
            before_opening: fields.optional("before-opening", Opening::from_item)?,
        };
        fields.finish(&[
            "index",
            "committed",
            "replayed",
            "opening",
            "attested",
            "before",
            "before-opening",
        ])?;
        Ok(coordinate)
    }

    fn to_value(&self) -> Value {
        Value::map([("index", self.index.into())])
            .with("committed", self.committed.as_deref())
            .with("replayed", self.replayed.as_deref())
            .with("opening", self.opening.as_ref().map(Opening::to_value))
            .with("attested", self.attested)
            .with("before", self.before.as_deref())
            .with("before-opening", self.before_opening.as_ref().map(Opening::to_value))
    }
}

impl Opening {
    fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let opening = Self {
            digest: fields.required("digest", digest)?,
            path: fields.required("path", list(MAX_PATH, digest))?,
            shards: fields
                .optional("shards", non_empty(list(MAX_SHARDS, digest)))?
                .unwrap_or_default(),
            chunk: fields.required("chunk", unsigned)?,
            bytes: fields.required("bytes", bytes(MAX_CHUNK_BYTES))?,
            chain: fields.required("chain", list(MAX_PATH, digest))?,
        };
        fields.finish(&["digest", "path", "shards", "chunk", "bytes", "chain"])?;
        Ok(opening)
    }

    fn to_value(&self) -> Value {
        Value::map([
            ("digest", digest_value(&self.digest)),
            ("path", digests(&self.path)),
            ("chunk", self.chunk.into()),
            ("bytes", self.bytes.as_slice().into()),
            ("chain", digests(&self.chain)),
        ])
        .with("shards", (!self.shards.is_empty()).then(|| digests(&self.shards)))
    }
}
