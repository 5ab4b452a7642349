use crate::record::{CloseBody, CloseReason};

/// What a `close` repeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Updates.
    pub updates: u64,
    /// Updates that were sampled.
    pub sampled: u64,
    /// Checks that passed.
    pub passed: u64,
    /// Checks that failed.
    pub failed: u64,
    /// Edits, counted leaf by leaf.
    pub edits: u64,
}

impl Counts {
    /// The body that repeats them.
    pub const fn close(self, reason: CloseReason) -> CloseBody {
        let Self {
            updates,
            sampled,
            passed,
            failed,
            edits,
        } = self;
        CloseBody {
            updates,
            sampled,
            passed,
            failed,
            edits,
            reason,
        }
    }
}
