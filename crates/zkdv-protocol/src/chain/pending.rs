//! Updates whose challenge or check is still to come.

use std::collections::{BTreeMap, BTreeSet};
use zkdv_hash::Digest;
use zkdv_hash::challenge::Draw;

/// The place of an update's record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) seq: u64,
    pub(super) digest: Digest,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    challenges: BTreeMap<u64, Place>,
    checks: BTreeMap<u64, (Draw, u64)>,
    /// How many updates there were when a check became due, and of which update it is.
    due_since: BTreeSet<(u64, u64)>,
}

impl Pending {
    pub(super) fn expect_challenge(&mut self, update: u64, place: Place) {
        self.challenges.insert(update, place);
    }

    pub(super) fn expect_check(&mut self, update: u64, draw: Draw, updates: u64) {
        self.checks.insert(update, (draw, updates));
        self.due_since.insert((updates, update));
    }

    pub(super) fn challenge(&self, update: u64) -> Option<Place> {
        self.challenges.get(&update).copied()
    }

    pub(super) fn check(&self, update: u64) -> Option<Draw> {
        self.checks.get(&update).map(|(draw, _)| *draw)
    }

    pub(super) fn challenged(&mut self, update: u64) {
        self.challenges.remove(&update);
    }

    pub(super) fn checked(&mut self, update: u64) {
        if let Some((_, updates)) = self.checks.remove(&update) {
            self.due_since.remove(&(updates, update));
        }
    }

    /// The update whose check has been due longest, and how many updates there were when it became due.
    pub(super) fn oldest_check(&self) -> Option<(u64, u64)> {
        self.due_since.first().map(|&(updates, update)| (update, updates))
    }

    /// The first update that waits for something, and for what.
    pub(super) fn first(&self) -> Option<(u64, &'static str)> {
        let challenge = self.challenges.keys().next().map(|&update| (update, "challenge"));
        challenge.or_else(|| self.checks.keys().next().map(|&update| (update, "check")))
    }
}
