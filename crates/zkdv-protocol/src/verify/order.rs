//! Which record may come next, and what must have come before.

use crate::record::{CloseReason, RecordType, StateReason};

/// Whether something was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    No,
    Yes,
    /// Records were lost, and it may have been among them.
    Perhaps,
}

/// Whether an attest program is in force: whether checks carry what it gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attestation {
    None,
    /// The one that was recorded at this `seq`.
    InForce {
        seq: u64,
    },
    /// Its record may be among those that were lost.
    Unknown,
}

/// The grammar of the order of records.
#[derive(Debug)]
pub(crate) struct Order {
    /// No, directly after `root` and `resume`.
    environment: Seen,
    schema: Seen,
    /// Whether a schema may stand here.
    schema_fits: bool,
    attestation: Attestation,
    /// Whether an attest program may stand here.
    attest_fits: bool,
    start: Seen,
    /// No, from a `resume` on until its `state`.
    resumed: Seen,
    /// Whether a `state` for an edit stands since the last update.
    edit: Seen,
    /// Whether the record before is the `state` that comes before `close`.
    closing: Seen,
    /// Whether records were lost since the last update.
    lost: bool,
    next_update: Option<u64>,
}

/// What is wrong with a record's place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Misplaced {
    Order(String),
    StateMissing(String),
    UpdateIndex(String),
}

impl Order {
    /// The order after a root record.
    pub(crate) fn new() -> Self {
        Self {
            environment: Seen::No,
            schema: Seen::No,
            schema_fits: true,
            attestation: Attestation::None,
            attest_fits: false,
            start: Seen::No,
            resumed: Seen::Yes,
            edit: Seen::No,
            closing: Seen::No,
            lost: false,
            next_update: Some(0),
        }
    }

    /// Records were lost.
    pub(crate) fn lose(&mut self) {
        for seen in [&mut self.schema, &mut self.start] {
            if *seen == Seen::No {
                *seen = Seen::Perhaps;
            }
        }
        for seen in [
            &mut self.environment,
            &mut self.resumed,
            &mut self.edit,
            &mut self.closing,
        ] {
            *seen = Seen::Perhaps;
        }
        self.schema_fits = true;
        self.attestation = Attestation::Unknown;
        self.attest_fits = true;
        self.lost = true;
        self.next_update = None;
    }

    /// Whether an attest program is in force.
    pub(crate) fn attestation(&self) -> Attestation {
        self.attestation
    }

    /// An update names a program that is none for replays: which one is the attest program is not known any more.
    pub(crate) fn doubt_attestation(&mut self) {
        self.attestation = Attestation::Unknown;
    }

    /// How many updates led to the present state, where that is known.
    pub(crate) fn updates(&self) -> Option<u64> {
        self.next_update
    }

    /// Any record but a root.
    pub(crate) fn record(&mut self, record_type: RecordType) -> Option<Misplaced> {
        let environment = std::mem::replace(&mut self.environment, Seen::Yes);
        let fits = match record_type {
            RecordType::Environment => environment != Seen::Yes,
            _ => environment != Seen::No,
        };
        if !fits {
            return Some(Misplaced::Order(match record_type {
                RecordType::Environment => {
                    "an environment record stands only directly after root and resume".to_owned()
                }
                other => format!("an environment record must stand directly after root and resume, here is {other}"),
            }));
        }
        match record_type {
            RecordType::Close | RecordType::Resume => {}
            _ if self.closing == Seen::Yes => {
                // What should stand before `close` was there, so that it is not missing as well.
                self.closing = Seen::Perhaps;
                return Some(Misplaced::Order(format!(
                    "only close may follow the state that is recorded before it, here is {record_type}"
                )));
            }
            _ => {}
        }
        None
    }

    pub(crate) fn schema(&mut self) -> Option<Misplaced> {
        let fits = std::mem::replace(&mut self.schema_fits, false);
        self.schema = Seen::Yes;
        (self.attestation, self.attest_fits) = (Attestation::None, true);
        (!fits).then(|| {
            let rule = "a schema stands once before the first state, and after a resume that changes the layout";
            Misplaced::Order(rule.to_owned())
        })
    }

    /// A program with role `attest`.
    pub(crate) fn attest_program(&mut self, seq: u64) -> Option<Misplaced> {
        if std::mem::replace(&mut self.attest_fits, self.lost) {
            self.attestation = Attestation::InForce { seq };
            return None;
        }
        // Whether checks follow it is not to be held against them as well.
        if self.attestation == Attestation::None {
            self.attestation = Attestation::Unknown;
        }
        let rule = "an attest program stands once after the schema or a resume, before the next update";
        Some(Misplaced::Order(rule.to_owned()))
    }

    pub(crate) fn state(&mut self, reason: StateReason, updates: u64) -> Option<Misplaced> {
        let mut wrong = None;
        if self.schema == Seen::No {
            self.schema = Seen::Perhaps;
            wrong = Some("a state stands after the schema, here is none".to_owned());
        }
        self.schema_fits = self.lost;
        let fits = match reason {
            StateReason::Start => std::mem::replace(&mut self.start, Seen::Yes) != Seen::Yes,
            StateReason::Resume => std::mem::replace(&mut self.resumed, Seen::Yes) != Seen::Yes,
            StateReason::Edit => {
                self.edit = Seen::Yes;
                true
            }
            StateReason::Close => {
                self.closing = Seen::Yes;
                true
            }
        };
        if !fits {
            wrong.get_or_insert(format!("a state with reason {reason} does not stand here"));
        }
        if let Some(expected) = self.next_update
            && expected != updates
        {
            wrong.get_or_insert(format!(
                "{expected} updates stand before this state, it names {updates}"
            ));
        }
        wrong.map(Misplaced::Order)
    }

    pub(crate) fn update(&mut self, update: u64, has_large_edit: bool) -> Vec<Misplaced> {
        let mut wrong = Vec::new();
        if self.schema == Seen::No {
            wrong.push(Misplaced::Order(
                "an update stands after the schema, here is none".to_owned(),
            ));
        }
        if self.start == Seen::No {
            wrong.push(Misplaced::StateMissing(
                "no state with reason start stands before the first update".to_owned(),
            ));
        }
        if self.resumed == Seen::No {
            wrong.push(Misplaced::StateMissing(
                "no state with reason resume stands between the resume and this update".to_owned(),
            ));
        }
        if has_large_edit && self.edit == Seen::No {
            wrong.push(Misplaced::StateMissing(format!(
                "update {update} lists an edit without the leaf's bytes, and no state with reason edit stands before it"
            )));
        }
        if !has_large_edit && self.edit == Seen::Yes {
            wrong.push(Misplaced::Order(format!(
                "a state with reason edit stands before update {update}, which lists no edit without the leaf's bytes"
            )));
        }
        if let Some(expected) = self.next_update
            && expected != update
        {
            wrong.push(Misplaced::UpdateIndex(format!(
                "expected update {expected}, got update {update}"
            )));
        }
        // What was missing is said once.
        for seen in [&mut self.schema, &mut self.start, &mut self.resumed] {
            *seen = Seen::Yes;
        }
        self.edit = Seen::No;
        self.closing = Seen::No;
        self.schema_fits = false;
        self.attest_fits = false;
        self.lost = false;
        self.next_update = update.checked_add(1);
        wrong
    }

    pub(crate) fn resume(&mut self, updates: u64) {
        self.environment = Seen::No;
        self.schema_fits = true;
        (self.attestation, self.attest_fits) = (Attestation::None, true);
        self.resumed = Seen::No;
        self.edit = Seen::No;
        self.closing = Seen::No;
        self.lost = false;
        self.next_update = Some(updates);
    }

    pub(crate) fn close(&mut self, reason: CloseReason) -> Vec<Misplaced> {
        let mut wrong = Vec::new();
        let state_due = reason == CloseReason::Finished && self.schema == Seen::Yes;
        if self.resumed == Seen::No && state_due {
            wrong.push(Misplaced::StateMissing(
                "no state with reason resume stands after the resume".to_owned(),
            ));
        } else if self.closing == Seen::No && state_due {
            wrong.push(Misplaced::StateMissing(
                "no state with reason close stands directly before the close".to_owned(),
            ));
        }
        if self.edit == Seen::Yes && reason == CloseReason::Finished {
            wrong.push(Misplaced::Order(
                "a state with reason edit stands before the close, and no update after it".to_owned(),
            ));
        }
        wrong
    }
}
