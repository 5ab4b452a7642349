//! Updates whose receipt or check is still to come.

use crate::verify::Committed;
use std::collections::{BTreeMap, BTreeSet};
use zkdv_hash::challenge::Draw;

/// What updates still need, and since when: how many update records there were when it became due.
#[derive(Debug)]
pub(super) struct Pending<T> {
    by_update: BTreeMap<u64, (u64, T)>,
    by_age: BTreeSet<(u64, u64)>,
}

/// An update that waits for its receipt.
pub(super) type Receipts = Pending<Committed>;
/// A sampled update that waits for its check.
pub(super) type Checks = Pending<(Committed, Draw)>;

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self {
            by_update: BTreeMap::new(),
            by_age: BTreeSet::new(),
        }
    }
}

impl<T> Pending<T> {
    pub(super) fn insert(&mut self, update: u64, since: u64, what: T) {
        self.by_update.insert(update, (since, what));
        self.by_age.insert((since, update));
    }

    pub(super) fn get(&self, update: u64) -> Option<&T> {
        self.by_update.get(&update).map(|(_, what)| what)
    }

    pub(super) fn remove(&mut self, update: u64) -> Option<T> {
        let (since, what) = self.by_update.remove(&update)?;
        self.by_age.remove(&(since, update));
        Some(what)
    }

    /// The first update that waits.
    pub(super) fn first(&self) -> Option<u64> {
        self.by_update.keys().next().copied()
    }

    /// The update that would have waited too long, were there one more update record than `updates`.
    pub(super) fn overdue(&self, updates: u64, lag: u64) -> Option<u64> {
        self.by_age
            .first()
            .filter(|(since, _)| updates - since >= lag)
            .map(|&(_, update)| update)
    }
}
