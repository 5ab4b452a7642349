//! Which checks and receipts are owed.
//!
//! An update enters when it is recorded and leaves once its check or receipt can no longer come in time, so that memory is
//! bounded by the configured lag, which the format bounds. What is overdue is kept apart for a while: a check that comes
//! late is one violation, and a check that never comes is another.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use zkdv_hash::Digest;
use zkdv_hash::challenge::Draw;

use super::order::Attestation;
use crate::limits::{MAX_IN_FLIGHT, MAX_REPLAY_SNAPSHOT_INTERVAL};
use crate::violation::Place;

/// Overdue checks and receipts that are remembered, in case they come late.
const MAX_OVERDUE: usize = 4096;
/// Abandoned updates that are remembered, in case they are recorded and checked again.
const MAX_ABANDONED: usize = 65_536;
/// The longest lag that the format allows, receipts' included.
const MAX_LAG: u64 = MAX_REPLAY_SNAPSHOT_INTERVAL + 3 * MAX_IN_FLIGHT;

/// What a later check or receipt is compared with.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    pub(crate) place: Place,
    pub(crate) seq: u64,
    pub(crate) update: u64,
    pub(crate) digest: Digest,
    /// Roots over the parameters and the optimizer state after it, where they were due.
    pub(crate) parameters: Option<Digest>,
    pub(crate) optimizer: Option<Digest>,
    /// Root over the parameters before it, where that is known.
    pub(crate) parameters_before: Option<Digest>,
    /// Whether its check carries what an attest program gave.
    pub(crate) attestation: Attestation,
    /// The earliest snapshot that it can be replayed from.
    pub(crate) earliest_snapshot: u64,
    /// What it did: equal for an update that is recorded again, after a resume, just as it was.
    pub(crate) fingerprint: Digest,
}

/// A check that is due.
#[derive(Clone, Debug)]
pub(crate) struct Owed {
    pub(crate) committed: Committed,
    pub(crate) draw: Draw,
    /// The number of update records up to which it is in time.
    deadline: u64,
}

#[derive(Debug)]
enum Status {
    NotSampled,
    Owed(Box<Owed>),
    /// The receipt that decides is still to come.
    AwaitsReceipt(Box<Committed>),
    Checked,
    /// What happened to it cannot be known any more.
    Unknown,
}

#[derive(Debug)]
struct Entry {
    status: Status,
    /// The number of update records from which on nothing can come in time.
    until: u64,
}

/// What the ledger knows of an update whose check has come.
#[derive(Debug)]
pub(crate) enum Due {
    InTime(Box<Owed>),
    Late(Box<Owed>),
    /// So long after the update that it is late, whatever it says.
    LongLate,
    Duplicate,
    NotSampled,
    BeforeReceipt,
    BeforeUpdate,
    Unknown,
}

/// What the ledger knows of an update whose receipt has come.
#[derive(Debug)]
pub(crate) enum Answered {
    Due(Box<Committed>),
    Late(Box<Committed>),
    NotDue,
    BeforeUpdate,
    Unknown,
}

/// An update that is owed something, and will not get it.
#[derive(Debug)]
pub(crate) enum Missed {
    Check(Place, u64),
    Receipt(Place, u64),
}

/// Which checks and receipts are owed.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: VecDeque<Entry>,
    /// The update that the first entry is of.
    first: u64,
    /// Update records so far.
    records: u64,
    overdue: BTreeMap<u64, Box<Owed>>,
    /// Updates whose receipt did not come in time, as was said.
    unanswered: BTreeSet<u64>,
    /// Nothing can be said of updates below this one that are not in the ledger.
    unknown_below: u64,
    /// Whether records were lost since the last update.
    lost: bool,
    abandoned: BTreeMap<u64, Vec<Digest>>,
    abandoned_count: u64,
}

impl Ledger {
    /// Makes room for the next update, and gives what has become impossible with it.
    ///
    /// Updates that were skipped, or that were lost, are not known.
    pub(crate) fn advance(&mut self, update: u64) -> Vec<Missed> {
        self.records += 1;
        let end = self.end();
        if update > end && update - end <= MAX_LAG && self.lost {
            let until = self.records + MAX_LAG;
            self.entries.extend((end..update).map(|_| Entry {
                status: Status::Unknown,
                until,
            }));
        } else if update != end {
            self.entries.clear();
            self.first = update;
            self.unknown_below = self.unknown_below.max(update);
        }
        self.lost = false;
        let mut missed = Vec::new();
        while self.entries.front().is_some_and(|entry| entry.until < self.records) {
            let Some(entry) = self.entries.pop_front() else { break };
            self.first = self.first.saturating_add(1);
            match entry.status {
                Status::Owed(owed) => missed.extend(self.put_overdue(owed)),
                Status::AwaitsReceipt(committed) => {
                    self.unanswered.insert(committed.update);
                    missed.push(Missed::Receipt(committed.place, committed.update));
                }
                Status::NotSampled | Status::Checked | Status::Unknown => {}
            }
        }
        while self.unanswered.len() > MAX_OVERDUE {
            self.unanswered.pop_first();
        }
        missed
    }

    fn put_overdue(&mut self, owed: Box<Owed>) -> Option<Missed> {
        self.overdue.insert(owed.committed.update, owed);
        if self.overdue.len() <= MAX_OVERDUE {
            return None;
        }
        let (update, owed) = self.overdue.pop_first()?;
        self.unknown_below = self.unknown_below.max(update.saturating_add(1));
        Some(Missed::Check(owed.committed.place, update))
    }

    /// Enters the update that [`Ledger::advance`] made room for, of which nothing more is to be judged.
    pub(crate) fn enter_unknown(&mut self) {
        self.entries.push_back(Entry {
            status: Status::Unknown,
            until: self.records + MAX_LAG,
        });
    }

    /// Enters it with what was drawn for it. An update that repeats an abandoned one is owed a check in any case. Says
    /// whether a check is owed.
    pub(crate) fn enter_drawn(&mut self, committed: Committed, draw: Draw, lag: u64) -> bool {
        let until = self.records.saturating_add(lag);
        let owed = draw.sampled || self.repeats_abandoned(&committed);
        let status = if owed {
            Status::Owed(Box::new(Owed {
                committed,
                draw,
                deadline: until,
            }))
        } else {
            Status::NotSampled
        };
        self.entries.push_back(Entry { status, until });
        owed
    }

    /// Enters it as awaiting the receipt that decides.
    pub(crate) fn enter_awaiting(&mut self, committed: Committed, max_in_flight: u64) {
        let until = self.records.saturating_add(max_in_flight);
        self.entries.push_back(Entry {
            status: Status::AwaitsReceipt(Box::new(committed)),
            until,
        });
    }

    fn repeats_abandoned(&self, committed: &Committed) -> bool {
        self.abandoned
            .get(&committed.update)
            .is_some_and(|prints| prints.contains(&committed.fingerprint))
    }

    fn entry(&mut self, update: u64) -> Option<&mut Entry> {
        let index = usize::try_from(update.checked_sub(self.first)?).ok()?;
        self.entries.get_mut(index)
    }

    /// The update after the last one that was entered.
    fn end(&self) -> u64 {
        self.first.saturating_add(self.entries.len() as u64)
    }

    /// Takes the receipt of an update.
    pub(crate) fn answer(&mut self, update: u64) -> Answered {
        let (records, lost) = (self.records, self.lost);
        if let Some(entry) = self.entry(update) {
            return match std::mem::replace(&mut entry.status, Status::Unknown) {
                Status::AwaitsReceipt(committed) if entry.until < records => {
                    self.unanswered.insert(update);
                    Answered::Late(committed)
                }
                Status::AwaitsReceipt(committed) => Answered::Due(committed),
                Status::Unknown => Answered::Unknown,
                other => {
                    entry.status = other;
                    Answered::NotDue
                }
            };
        }
        if self.unanswered.contains(&update) {
            return Answered::Unknown;
        }
        match update >= self.end() {
            true if lost => Answered::Unknown,
            true => Answered::BeforeUpdate,
            false if update < self.unknown_below => Answered::Unknown,
            false => Answered::NotDue,
        }
    }

    /// Replaces an update's awaited receipt by what was drawn with it. Says whether a check is owed.
    pub(crate) fn draw_answered(&mut self, committed: Committed, draw: Draw, lag: u64) -> bool {
        let until = self.records.saturating_add(lag);
        let owed = draw.sampled || self.repeats_abandoned(&committed);
        if let Some(entry) = self.entry(committed.update) {
            entry.until = until;
            entry.status = if owed {
                Status::Owed(Box::new(Owed {
                    committed,
                    draw,
                    deadline: until,
                }))
            } else {
                Status::NotSampled
            };
        }
        owed
    }

    /// Takes the check of an update.
    pub(crate) fn check(&mut self, update: u64) -> Due {
        if let Some(owed) = self.overdue.remove(&update) {
            return Due::Late(owed);
        }
        let (records, lost) = (self.records, self.lost);
        if let Some(entry) = self.entry(update) {
            return match std::mem::replace(&mut entry.status, Status::Checked) {
                Status::Owed(owed) if owed.deadline < records => Due::Late(owed),
                Status::Owed(owed) => Due::InTime(owed),
                Status::Checked => Due::Duplicate,
                other => {
                    let due = match other {
                        Status::NotSampled => Due::NotSampled,
                        Status::AwaitsReceipt(_) => Due::BeforeReceipt,
                        _ => Due::Unknown,
                    };
                    entry.status = other;
                    due
                }
            };
        }
        if self.unanswered.contains(&update) {
            return Due::Unknown;
        }
        match update >= self.end() {
            true if lost => Due::Unknown,
            true => Due::BeforeUpdate,
            false if update < self.unknown_below => Due::Unknown,
            false => Due::LongLate,
        }
    }

    /// Notes that a check has settled what an abandoned twin of its update was owed.
    pub(crate) fn settle_abandoned(&mut self, committed: &Committed) {
        let Some(prints) = self.abandoned.get_mut(&committed.update) else {
            return;
        };
        let before = prints.len();
        prints.retain(|print| *print != committed.fingerprint);
        self.abandoned_count -= (before - prints.len()) as u64;
    }

    /// Records were lost: what was owed may have been among them.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
        for entry in &mut self.entries {
            if let Status::Owed(_) | Status::AwaitsReceipt(_) = entry.status {
                entry.status = Status::Unknown;
            }
        }
    }

    /// Goes back to the state before an update. Later ones are abandoned: what they are owed can only be made good by
    /// recording and checking them again. Gives the receipts that should have been there.
    pub(crate) fn rewind(&mut self, update: u64) -> Vec<Missed> {
        let kept = usize::try_from(update.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let abandoned = self.entries.split_off(kept.min(self.entries.len()));
        // What is older than the ledger was settled or is overdue, and stays so.
        self.first = self.first.min(update);
        let overdue = self.overdue.split_off(&update).into_values();
        let mut missed = Vec::new();
        let mut owed: Vec<Committed> = overdue.map(|owed| owed.committed).collect();
        for entry in abandoned {
            match entry.status {
                Status::Owed(entry) => owed.push(entry.committed),
                Status::AwaitsReceipt(committed) => missed.push(Missed::Receipt(committed.place, committed.update)),
                Status::NotSampled | Status::Checked | Status::Unknown => {}
            }
        }
        for committed in owed {
            self.abandoned_count += 1;
            if self.abandoned_count <= MAX_ABANDONED as u64 {
                self.abandoned
                    .entry(committed.update)
                    .or_default()
                    .push(committed.fingerprint);
            }
        }
        missed
    }

    /// Sampled updates that were abandoned unchecked.
    pub(crate) fn abandoned(&self) -> u64 {
        self.abandoned_count
    }

    /// Ends the run. Gives what is owed: all of it where nothing can come any more, else only what is overdue.
    pub(crate) fn finish(&mut self, closed: bool) -> (Vec<Missed>, u64) {
        let mut missed: Vec<Missed> = std::mem::take(&mut self.overdue)
            .into_values()
            .map(|owed| Missed::Check(owed.committed.place, owed.committed.update))
            .collect();
        let mut outstanding = 0;
        for entry in self.entries.drain(..) {
            let late = closed || entry.until < self.records;
            match entry.status {
                Status::Owed(owed) if late => missed.push(Missed::Check(owed.committed.place, owed.committed.update)),
                Status::AwaitsReceipt(committed) if late => {
                    missed.push(Missed::Receipt(committed.place, committed.update));
                }
                Status::Owed(_) => outstanding += 1,
                Status::AwaitsReceipt(_) | Status::NotSampled | Status::Checked | Status::Unknown => {}
            }
        }
        (missed, outstanding)
    }
}
