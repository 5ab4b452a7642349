use crate::record::{Commit, Configuration, Durability, Evidence, Sampling, Tolerance};

/// What a simulated run does.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number that keys follow from.
    pub number: u64,
    /// Updates.
    pub updates: u64,
    /// Which are checked.
    pub sampling: Sampling,
    /// Which roots are committed.
    pub commit: Commit,
    /// Updates between snapshots.
    pub interval: u64,
    /// Updates in flight.
    pub max_in_flight: u64,
    /// Whether a challenger gives receipts.
    pub receipts: bool,
    /// How checks end.
    pub checks: CheckStyle,
    /// Whether there is an attest program, and what it says.
    pub attest: Option<AttestStyle>,
    /// Update records that may come between an update and its check.
    pub check_delay: u64,
    /// Whether leaves are spread over devices.
    pub sharded: bool,
    /// Updates that are preceded by an edit with its bytes.
    pub small_edits: Vec<u64>,
    /// Updates that are preceded by an edit without its bytes.
    pub large_edits: Vec<u64>,
    /// Where the run goes on after an interruption.
    pub resume: Option<Resume>,
    /// How it ends.
    pub ending: Ending,
}

/// How checks end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStyle {
    /// The replay is equal.
    Exact,
    /// The replay is within tolerance.
    Tolerant,
    /// The replay is beyond tolerance.
    Failing,
    /// The production values were gone.
    Unresolved,
}

/// What an attest program says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttestStyle {
    /// That the update is the one that it gives.
    Agreeing,
    /// Something else.
    Disagreeing,
}

/// An interruption.
#[derive(Clone, Copy, Debug)]
pub struct Resume {
    /// Updates after which the run was interrupted.
    pub after: u64,
    /// Updates that are kept.
    pub keep: u64,
}

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Closed as finished.
    Finished,
    /// Closed as failed.
    Poisoned,
    /// Not at all.
    Open,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            number: 1,
            updates: 12,
            sampling: Sampling::Probability(0.5),
            commit: Commit::Parameters,
            interval: 4,
            max_in_flight: 2,
            receipts: false,
            checks: CheckStyle::Exact,
            attest: None,
            check_delay: 2,
            sharded: false,
            small_edits: vec![],
            large_edits: vec![],
            resume: None,
            ending: Ending::Finished,
        }
    }
}

impl Settings {
    pub(super) fn configuration(&self) -> Configuration {
        Configuration {
            sampling: self.sampling,
            tolerance: Tolerance {
                absolute: 1e-6,
                relative: 1e-5,
            },
            commit: self.commit,
            durability: Durability::Close,
            replay_snapshot_interval: self.interval,
            max_in_flight: self.max_in_flight,
            max_check_lag: Configuration::check_lag(self.interval, self.max_in_flight),
            rolling_window: 8,
            probe_ratio: 0.1,
            evidence: Evidence {
                batches: false,
                components: false,
                sampled: true,
                checkpoint_interval: None,
                keep: None,
            },
        }
    }
}
