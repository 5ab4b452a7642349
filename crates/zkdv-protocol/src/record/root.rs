use super::error::{BodyError, BodyErrorKind};
use super::fields::{
    Fields, Parsed, boolean, digest, digest_value, float, name, public_key, text_enum, text_of, unsigned,
};
use super::payload::{Body, RecordType};
use crate::cbor::{Item, Value};
use crate::key::PublicKey;
use crate::limits::{MAX_IN_FLIGHT, MAX_REPLAY_SNAPSHOT_INTERVAL, MAX_RUN_NAME_BYTES};
use zkdv_hash::Digest;
use zkdv_hash::challenge::Sampling;

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

/// What a run was configured to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// Which updates are checked.
    pub sampling: Sampling,
    /// How far a replay may lie from what was committed.
    pub tolerance: Tolerance,
    /// Which roots every update commits to.
    pub commit: Commit,
    /// When records are forced to disk.
    pub durability: Durability,
    /// Updates from one snapshot to the next.
    pub replay_snapshot_interval: u64,
    /// The most updates that are not resolved.
    pub max_in_flight: u64,
    /// How many update records may stand between an update and its check.
    pub max_check_lag: u64,
    /// Words in a window of the rolling hash.
    pub rolling_window: u64,
    /// The part of each leaf's last dimension that a probe keeps.
    pub probe_ratio: f64,
    /// What is kept beside the transcript.
    pub evidence: Evidence,
}

/// The distance `|a - b| ≤ absolute + relative · max(|a|, |b|)` that a replay may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Independent of the values.
    pub absolute: f64,
    /// In proportion to the larger value.
    pub relative: f64,
}

text_enum! {
    /// Which roots every update commits to.
    Commit {
        /// Those of the parameters; those of the optimizer at snapshots.
        Parameters = "parameters",
        /// All.
        Every = "every",
    }
}

text_enum! {
    /// When records are forced to disk.
    Durability {
        /// At most a second after they were written.
        Interval = "interval",
        /// Each, before the next.
        Record = "record",
        /// All, when the transcript is closed.
        Close = "close",
    }
}

/// What is kept beside the transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// Every batch.
    pub batches: bool,
    /// The leaf digests and probes of every update.
    pub components: bool,
    /// State, batch and components of every sampled update.
    pub sampled: bool,
    /// Updates from one checkpoint to the next.
    pub checkpoint_interval: Option<u64>,
    /// How many checkpoints are kept.
    pub keep: Option<u64>,
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

impl Configuration {
    fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let configuration = Self {
            sampling: fields.required("sampling", sampling)?,
            tolerance: fields.required("tolerance", Tolerance::from_item)?,
            commit: fields.required("commit", Commit::from_item)?,
            durability: fields.required("durability", Durability::from_item)?,
            replay_snapshot_interval: fields.required("replay-snapshot-interval", unsigned)?,
            max_in_flight: fields.required("max-in-flight", unsigned)?,
            max_check_lag: fields.required("max-check-lag", unsigned)?,
            rolling_window: fields.required("rolling-window", unsigned)?,
            probe_ratio: fields.required("probe-ratio", float)?,
            evidence: fields.required("evidence", Evidence::from_item)?,
        };
        fields.finish(&[
            "sampling",
            "tolerance",
            "commit",
            "durability",
            "replay-snapshot-interval",
            "max-in-flight",
            "max-check-lag",
            "rolling-window",
            "probe-ratio",
            "evidence",
        ])?;
        Ok(configuration)
    }

    fn to_value(&self) -> Value {
        Value::map([
            ("sampling", sampling_value(self.sampling)),
            ("tolerance", self.tolerance.to_value()),
            ("commit", self.commit.into()),
            ("durability", self.durability.into()),
            ("replay-snapshot-interval", self.replay_snapshot_interval.into()),
            ("max-in-flight", self.max_in_flight.into()),
            ("max-check-lag", self.max_check_lag.into()),
            ("rolling-window", self.rolling_window.into()),
            ("probe-ratio", self.probe_ratio.into()),
            ("evidence", self.evidence.to_value()),
        ])
    }

    /// The `max-check-lag` that goes with an interval and a number of updates in flight.
    pub const fn check_lag(replay_snapshot_interval: u64, max_in_flight: u64) -> u64 {
        replay_snapshot_interval.saturating_add(max_in_flight.saturating_mul(2))
    }

    /// Whether update `update` is the last before a snapshot: where optimizer roots and a next session key are due.
    pub const fn is_snapshot_point(&self, update: u64) -> bool {
        // `checked_rem` stands for "no" where a transcript sets the interval to 0.
        match update.wrapping_add(1).checked_rem(self.replay_snapshot_interval) {
            Some(remainder) => remainder == 0,
            None => false,
        }
    }

    fn validate(&self) -> Parsed<()> {
        let out_of_range = |key: &str, expected: String, got: String| {
            Err(BodyError::new(expected, got)
                .kind(BodyErrorKind::Configuration)
                .within(key))
        };
        let integer = |key: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            out_of_range(key, format!("{least} to {most}"), value.to_string())
        };
        match self.sampling {
            Sampling::Probability(probability) if (0.0..=1.0).contains(&probability) => {}
            Sampling::Probability(probability) => {
                return out_of_range(
                    "sampling",
                    "a probability from 0 to 1".to_owned(),
                    format!("{probability:?}"),
                );
            }
            Sampling::Every(interval) => integer("sampling", interval, 1, u64::MAX)?,
        }
        for (key, value) in [
            ("absolute", self.tolerance.absolute),
            ("relative", self.tolerance.relative),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                let error = out_of_range(key, "a finite number of at least 0".to_owned(), format!("{value:?}"));
                return error.map_err(|error: BodyError| error.within("tolerance"));
            }
        }
        integer(
            "replay-snapshot-interval",
            self.replay_snapshot_interval,
            1,
            MAX_REPLAY_SNAPSHOT_INTERVAL,
        )?;
        integer("max-in-flight", self.max_in_flight, 1, MAX_IN_FLIGHT)?;
        let lag = Self::check_lag(self.replay_snapshot_interval, self.max_in_flight);
        integer("max-check-lag", self.max_check_lag, lag, lag)?;
        integer("rolling-window", self.rolling_window, 1, u64::MAX)?;
        if !(self.probe_ratio > 0.0 && self.probe_ratio <= 1.0) {
            let got = format!("{:?}", self.probe_ratio);
            return out_of_range("probe-ratio", "a number above 0 and at most 1".to_owned(), got);
        }
        Ok(())
    }
}

fn sampling(item: Item<'_>) -> Parsed<Sampling> {
    let mut fields = Fields::of(item)?;
    let probability = fields.optional("probability", float)?;
    let every = fields.optional("every", unsigned)?;
    fields.finish(&["probability", "every"])?;
    match (probability, every) {
        (Some(probability), None) => Ok(Sampling::Probability(probability)),
        (None, Some(every)) => Ok(Sampling::Every(every)),
        _ => Err(BodyError::item("exactly one of probability, every", &item)),
    }
}

fn sampling_value(sampling: Sampling) -> Value {
    match sampling {
        Sampling::Probability(probability) => Value::map([("probability", probability.into())]),
        Sampling::Every(every) => Value::map([("every", every.into())]),
    }
}

impl Tolerance {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let tolerance = Self {
            absolute: fields.required("absolute", float)?,
            relative: fields.required("relative", float)?,
        };
        fields.finish(&["absolute", "relative"])?;
        Ok(tolerance)
    }

    pub(super) fn to_value(self) -> Value {
        Value::map([("absolute", self.absolute.into()), ("relative", self.relative.into())])
    }
}

impl Evidence {
    fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        let evidence = Self {
            batches: fields.required("batches", boolean)?,
            components: fields.required("components", boolean)?,
            sampled: fields.required("sampled", boolean)?,
            checkpoint_interval: fields.optional("checkpoint-interval", unsigned)?,
            keep: fields.optional("keep", unsigned)?,
        };
        fields.finish(&["batches", "components", "sampled", "checkpoint-interval", "keep"])?;
        Ok(evidence)
    }

    fn to_value(self) -> Value {
        Value::map([
            ("batches", self.batches.into()),
            ("components", self.components.into()),
            ("sampled", self.sampled.into()),
        ])
        .with("checkpoint-interval", self.checkpoint_interval)
        .with("keep", self.keep)
    }
}
