//! What a run was configured to do, as its root says.

use super::error::{BodyError, BodyErrorKind};
use super::fields::{Fields, Parsed, boolean, float, text_enum, unsigned};
use crate::cbor::{Item, Value};
use crate::limits::{MAX_IN_FLIGHT, MAX_REPLAY_SNAPSHOT_INTERVAL};
use zkdv_hash::challenge::Sampling;

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

impl Configuration {
    pub(super) fn from_item(item: Item<'_>) -> Parsed<Self> {
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

    pub(super) fn to_value(&self) -> Value {
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

    pub(super) fn validate(&self) -> Parsed<()> {
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
