//! What each type of record must say, given all that came before it; of updates and what they are owed see `updates`.

use std::fmt;

use zkdv_hash::Digest;

use super::MAX_RESUMES;
use super::layout::Layout;
use super::ledger::Missed;
use super::order::{Misplaced, Order};
use super::verifier::{RootFacts, Terms, Verifier};
use crate::limits::{MAX_PROGRAM_BYTES, MAX_PROGRAMS};
use crate::record::{
    Body, CheckpointBody, CloseBody, CloseReason, EnvironmentBody, ProgramBody, ProgramRole, Receipt, ResumeBody,
    RootBody, Roots, SchemaBody, StateBody, StateReason, Tree,
};
use crate::report::{MAX_ENVIRONMENT_BYTES, Shown};
use crate::violation::{Code, Place};

impl Verifier<'_> {
    /// Reads a record that stands on the line.
    pub(super) fn content(
        &mut self,
        place: Place,
        seq: u64,
        digest: Digest,
        body: Body,
        receipt: Option<Result<Receipt, String>>,
    ) {
        if !matches!(body, Body::Root(_)) {
            let misplaced = self.order.record(body.record_type());
            self.misplaced(place, misplaced);
        }
        match body {
            Body::Root(_) if self.root.is_some() => {
                self.findings
                    .add(Code::OrderInvalid, place, "a root record stands first, and only there");
                self.lose();
            }
            Body::Root(body) => self.root(place, digest, *body),
            Body::Environment(body) => self.environment(&body),
            Body::Schema(body) => self.schema(place, body),
            Body::Program(body) => self.program(place, seq, &body),
            Body::State(body) => self.state(place, &body),
            Body::Update(body) => self.update(place, seq, digest, &body),
            Body::Challenge(body) => self.challenge(place, &body, receipt),
            Body::Check(body) => self.check(place, &body),
            Body::Checkpoint(body) => self.checkpoint(place, &body),
            Body::Resume(body) => self.resume(place, &body),
            Body::Close(body) => self.close(place, body),
        }
    }

    pub(super) fn misplaced(&mut self, place: Place, misplaced: impl IntoIterator<Item = Misplaced>) {
        for misplaced in misplaced {
            let (code, message) = match misplaced {
                Misplaced::Order(message) => (Code::OrderInvalid, message),
                Misplaced::StateMissing(message) => (Code::StateMissing, message),
                Misplaced::UpdateIndex(message) => {
                    self.trust.counts_differ = true;
                    (Code::UpdateIndex, message)
                }
            };
            self.findings.add(code, place, message);
        }
    }

    pub(super) fn missed(&mut self, missed: impl IntoIterator<Item = Missed>) {
        for missed in missed {
            self.trust.counts_differ = true;
            match missed {
                Missed::Check(place, update) => {
                    let message = format!("update {update} was sampled, and its check is missing");
                    self.findings.add(Code::CheckMissing, place, message);
                }
                Missed::Receipt(place, update) => {
                    let message =
                        format!("the challenger gives receipts, and the one for update {update} did not come in time");
                    self.findings.add(Code::ChallengeMissing, place, message);
                }
            }
        }
    }

    pub(super) fn root(&mut self, place: Place, digest: Digest, body: RootBody) {
        self.order = Order::new();
        let pinned = self.options.identity.filter(|pinned| *pinned != body.identity);
        if let Some(pinned) = pinned
            && self.root.is_none()
        {
            let message = format!(
                "expected the identity {pinned}, the transcript is signed by {}",
                body.identity
            );
            self.findings.add(Code::IdentityMismatch, place, message);
        }
        let valid = body.validate();
        if let Err(error) = &valid {
            let code = match error.kind {
                crate::record::BodyErrorKind::Scheme => Code::SchemeUnsupported,
                _ => Code::ConfigurationInvalid,
            };
            self.findings.add(code, place, format!("root record: {error}"));
        }
        self.totals.ranks.get_or_insert(body.ranks);
        if self.root.is_none() {
            self.root = Some(RootFacts {
                digest,
                body: body.clone(),
            });
        }
        self.terms = valid.is_ok().then_some(Terms { root: digest, body });
        self.earliest_snapshot = 0;
        self.edited_from = None;
    }

    fn environment(&mut self, body: &EnvironmentBody) {
        if self.environment.is_none() {
            let value = crate::cbor::Value::Map(body.entries.clone());
            if value.encode().len() <= MAX_ENVIRONMENT_BYTES {
                self.environment = Some(Shown::from(&value));
            }
        }
    }

    fn schema(&mut self, place: Place, body: SchemaBody) {
        let misplaced = self.order.schema();
        self.misplaced(place, misplaced);
        let layout = Layout::new(body);
        if let Some(before) = &self.layout {
            let same = |tree| layout.tree(tree).has_roots_of(before.tree(tree));
            let (parameters, optimizer) = (same(Tree::Parameters), same(Tree::Optimizer));
            // Roots of another layout cannot be compared with those before.
            if !parameters {
                (self.roots.parameters, self.roots.parameter_probes) = (None, None);
            }
            if !optimizer {
                (self.roots.optimizer, self.roots.optimizer_probes) = (None, None);
            }
            if !(parameters && optimizer) {
                self.unlink();
            }
        }
        self.layout = Some(layout);
    }

    /// Counts the last resume as one that goes on from a state of which nothing shows that it is the one that stood there.
    fn unlink(&mut self) {
        self.totals.unlinked += u64::from(std::mem::replace(&mut self.linked, false));
    }

    fn program(&mut self, place: Place, seq: u64, body: &ProgramBody) {
        if body.role == ProgramRole::Attest {
            let misplaced = self.order.attest_program(seq);
            self.misplaced(place, misplaced);
        }
        if !self.programs.add(place, seq, body) {
            let message = format!(
                "a transcript has at most {MAX_PROGRAMS} program records, of files of at most {MAX_PROGRAM_BYTES} bytes in all"
            );
            self.findings.add(Code::OrderInvalid, place, message);
            self.programs.lose();
        }
    }

    fn state(&mut self, place: Place, body: &StateBody) {
        let misplaced = self.order.state(body.reason, body.updates);
        self.misplaced(place, misplaced);
        self.judge_roots_due(
            place,
            &body.roots,
            [true; 4],
            format_args!("a state with reason {}", body.reason),
        );
        let mut continuous = true;
        if body.reason == StateReason::Edit {
            self.edited_from.get_or_insert((place, self.roots));
        } else {
            for ((name, last), (_, now)) in self.roots.entries().into_iter().zip(body.roots.entries()) {
                if let (Some(last), Some(now)) = (last, now)
                    && last != now
                {
                    let message = format!("the root {name} was last recorded as {last}, this state has {now}");
                    self.findings.add(Code::StateDiscontinuous, place, message);
                    continuous = false;
                    break;
                }
            }
        }
        self.roots = body.roots;
        if !continuous {
            // Which of the two the next update started from is not known.
            self.roots.parameters = None;
        }
    }

    pub(super) fn judge_roots_due(&mut self, place: Place, roots: &Roots, due: [bool; 4], what: fmt::Arguments<'_>) {
        let names = roots.entries().map(|(name, _)| name);
        for ((name, present), due) in names.into_iter().zip(roots.present()).zip(due) {
            if present != due {
                let message = if due {
                    format!("the root {name} is due in {what}, and missing")
                } else {
                    format!("the root {name} is not due in {what}, and there")
                };
                self.findings.add(Code::RootsDue, place, message);
                return;
            }
        }
    }

    fn checkpoint(&mut self, place: Place, body: &CheckpointBody) {
        if let Some(updates) = self.order.updates()
            && body.update > updates
        {
            let message = format!("a checkpoint of update {} stands after {updates} updates", body.update);
            self.findings.add(Code::OrderInvalid, place, message);
        }
    }

    fn resume(&mut self, place: Place, body: &ResumeBody) {
        self.totals.resumes += 1;
        self.linked = true;
        if !body.linked {
            self.unlink();
        }
        if let Some(ranks) = body.ranks {
            self.totals.ranks = Some(ranks);
        }
        let standing = self.standing(place, body);
        let missed = self.ledger.rewind(body.updates);
        self.missed(missed);
        self.order.resume(body.updates);
        self.earliest_snapshot = body.updates;
        self.edited_from = None;
        self.roots = match standing {
            Ok(roots) => roots,
            Err(None) => Roots::default(),
            Err(Some(message)) => {
                self.findings.add(Code::ResumeInvalid, place, message);
                self.lose();
                Roots::default()
            }
        };
        if !body.linked {
            self.roots.optimizer = None;
            self.roots.optimizer_probes = None;
        }
    }

    /// The roots that stood where a run goes on, or what is wrong with that; nothing, where it cannot be known.
    fn standing(&mut self, place: Place, body: &ResumeBody) -> Result<Roots, Option<String>> {
        if self.totals.resumes > MAX_RESUMES {
            return Err(Some(format!("a transcript has at most {MAX_RESUMES} resume records")));
        }
        if self.order.updates().is_some_and(|updates| body.updates > updates) {
            return Err(Some(format!(
                "it keeps {} updates, there are fewer before it",
                body.updates
            )));
        }
        let found = if body.offset < place.offset {
            self.boundaries.standing_at(body.offset, self.lookup)
        } else {
            Ok(None)
        };
        let standing = match found {
            Ok(Some(standing)) => standing,
            Ok(None) if self.trust.records_lost => return Err(None),
            Ok(None) => {
                return Err(Some(format!(
                    "no update or state record starts at byte {} before it",
                    body.offset
                )));
            }
            Err(error) => {
                self.findings
                    .warn(format!("byte {} could not be read again: {error}", body.offset));
                return Err(Some(format!(
                    "the record at byte {} could not be read again",
                    body.offset
                )));
            }
        };
        if standing.seq != body.record {
            return Err(Some(format!(
                "the record at byte {} has seq {}, it names {}",
                body.offset, standing.seq, body.record
            )));
        }
        if standing.updates != body.updates {
            return Err(Some(format!(
                "{} updates stood at seq {}, it keeps {}",
                standing.updates, body.record, body.updates
            )));
        }
        if body.linked && standing.roots.optimizer.is_none() {
            return Err(Some(format!(
                "no optimizer state is committed at seq {}, and it calls itself linked",
                body.record
            )));
        }
        Ok(standing.roots)
    }

    fn close(&mut self, place: Place, body: CloseBody) {
        let misplaced = self.order.close(body.reason);
        self.misplaced(place, misplaced);
        self.closed = Some(body.reason);
        if body.reason == CloseReason::Finished {
            let (missed, _) = self.ledger.finish(true);
            self.missed(missed);
        } else if self.totals.checks_failed == 0 && !self.trust.records_lost {
            let message = "the run was closed because it had failed";
            self.findings.add(Code::ClosedPoisoned, place, message);
        }
        if self.trust.counts_differ {
            return;
        }
        let totals = &self.totals;
        for (name, counted, given) in [
            ("updates", totals.updates, body.updates),
            ("sampled updates", totals.sampled, body.sampled),
            ("passed checks", totals.checks_passed, body.passed),
            ("failed checks", totals.checks_failed, body.failed),
            ("edits", totals.edits_total, body.edits),
        ] {
            if counted != given {
                let message = format!("there are {counted} {name}, the close record counts {given}");
                self.findings.add(Code::CountMismatch, place, message);
                return;
            }
        }
    }
}
