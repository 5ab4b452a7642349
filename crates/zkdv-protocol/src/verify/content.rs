//! What each type of record must say, given all that came before it.

use std::collections::BTreeSet;

use zkdv_hash::Digest;
use zkdv_hash::challenge::{self, Draw};

use super::MAX_RESUMES;
use super::check;
use super::element;
use super::layout::Layout;
use super::ledger::{Answered, Committed, Due, Missed};
use super::order::{Attestation, Misplaced, Order};
use super::verifier::{RootFacts, Terms, Verifier};
use crate::limits::{MAX_PROGRAM_BYTES, MAX_PROGRAMS};
use crate::record::{
    Body, ChallengeBody, CheckBody, CheckpointBody, CloseBody, CloseReason, EnvironmentBody, ProgramBody, ProgramRole,
    Receipt, ResumeBody, RootBody, Roots, Sampling, SchemaBody, StateBody, StateReason, Tree, UpdateBody, Verdict,
};
use crate::report::{EditReport, MAX_EDITS, MAX_ENVIRONMENT_BYTES, Shown, hexadecimal};
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

    fn misplaced(&mut self, place: Place, misplaced: impl IntoIterator<Item = Misplaced>) {
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
            &format!("a state with reason {}", body.reason),
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

    fn judge_roots_due(&mut self, place: Place, roots: &Roots, due: [bool; 4], what: &str) {
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

    fn update(&mut self, place: Place, seq: u64, digest: Digest, body: &UpdateBody) {
        let update = body.update;
        let misplaced = self.order.update(update, body.has_large_edit());
        self.misplaced(place, misplaced);
        self.totals.updates += 1;
        if !self.programs.run(body.program) {
            let message = format!(
                "update {update} names seq {} as its program, where no program with role replay is recorded",
                body.program
            );
            self.findings.add(Code::ProgramUnknown, place, message);
            self.order.doubt_attestation();
        }
        let mut next_key_wrong = false;
        if let Some(terms) = &self.terms {
            let configuration = &terms.body.configuration;
            let due = Roots::due(configuration, update);
            let key_due = configuration.is_snapshot_point(update);
            self.judge_roots_due(place, &body.after, due, &format!("update {update}"));
            if body.next_key.is_some() != key_due {
                let message = if key_due {
                    format!("a next session key is due in update {update}, and missing")
                } else {
                    format!("no next session key is due in update {update}, and there is one")
                };
                self.findings.add(Code::NextKeyDue, place, message);
                next_key_wrong = true;
            }
        }
        if next_key_wrong {
            self.doubt_key();
        }
        if !body.edits.is_empty() {
            self.edits(place, body);
        }
        let attest_program = match self.order.attestation() {
            Attestation::InForce { seq } => self.programs.attest(seq),
            Attestation::None | Attestation::Unknown => None,
        };
        let fingerprint = self.fingerprint(body, attest_program);
        self.edited_from = None;
        let before = std::mem::replace(&mut self.roots, body.after);
        let missed = self.ledger.advance(update);
        self.missed(missed);
        let committed = Committed {
            place,
            seq,
            update,
            digest,
            parameters: body.after.parameters,
            optimizer: body.after.optimizer,
            parameters_before: before.parameters,
            attestation: self.order.attestation(),
            earliest_snapshot: self.earliest_snapshot,
            fingerprint,
        };
        match &self.terms {
            None => {
                self.trust.counts_differ = true;
                self.ledger.enter_unknown();
            }
            Some(terms) if terms.body.challenger.gives_receipts() => {
                self.ledger
                    .enter_awaiting(committed, terms.body.configuration.max_in_flight);
            }
            Some(terms) => {
                let lag = terms.body.configuration.max_check_lag;
                if let Some(draw) = self.draw(terms, &committed, &[]) {
                    self.totals.sampled += u64::from(self.ledger.enter_drawn(committed, draw, lag));
                } else {
                    self.trust.counts_differ = true;
                    self.ledger.enter_unknown();
                }
            }
        }
    }

    /// What an update did, for comparing it with one that is recorded again after a resume.
    fn fingerprint(&self, body: &UpdateBody, attest_program: Option<Digest>) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for (_, root) in self.roots.entries().into_iter().chain(body.after.entries()) {
            hasher.update(root.unwrap_or(Digest::ZERO).as_bytes());
        }
        hasher.update(body.batch.as_bytes()).update(&body.program.to_le_bytes());
        // What is owed under an attest program is not settled by a check that carries none of its values.
        hasher.update(attest_program.unwrap_or(Digest::ZERO).as_bytes());
        hasher.finalize().into()
    }

    fn draw(&self, terms: &Terms, committed: &Committed, randomness: &[u8]) -> Option<Draw> {
        let layout = self.layout.as_ref()?;
        let sampling = match terms.body.configuration.sampling {
            Sampling::Probability(probability) => challenge::Sampling::Probability(probability),
            Sampling::Every(every) => challenge::Sampling::Every(every),
        };
        let [parameters, optimizer] = [Tree::Parameters, Tree::Optimizer].map(|tree| layout.tree(tree).elements());
        challenge::draw(
            &committed.digest,
            randomness,
            &sampling,
            committed.update,
            parameters,
            optimizer,
        )
        .ok()
    }

    fn edits(&mut self, place: Place, body: &UpdateBody) {
        self.totals.first_edit.get_or_insert(place);
        self.totals.edits_total += body.edits.len() as u64;
        if body.has_large_edit() {
            // The state after the edit is held as a snapshot of its own.
            self.earliest_snapshot = body.update;
        }
        self.unlisted_edits(body);
        let attested = matches!(self.order.attestation(), Attestation::InForce { .. });
        let mut seen = BTreeSet::new();
        let mut wrong = None;
        for edit in &body.edits {
            let leaf = self
                .layout
                .as_ref()
                .map(|layout| layout.tree(edit.tree).leaf(edit.leaf));
            if self.totals.edits.len() < MAX_EDITS {
                self.totals.edits.push(EditReport {
                    update: body.update,
                    record: place.record,
                    tree: edit.tree.as_str(),
                    leaf: edit.leaf,
                    name: leaf.flatten().map(|leaf| leaf.name.clone()),
                    digest: edit.digest,
                    dtype: leaf.flatten().map(|leaf| leaf.dtype.name()),
                    elements: leaf
                        .flatten()
                        .zip(edit.value.as_deref())
                        .and_then(|(leaf, bytes)| element::shown(leaf.dtype, bytes)),
                    value: edit.value.as_deref().map(hexadecimal),
                });
            }
            if !seen.insert((edit.tree as u8, edit.leaf)) {
                wrong.get_or_insert(format!(
                    "leaf {} of {} is edited twice in update {}",
                    edit.leaf, edit.tree, body.update
                ));
            }
            if attested && edit.tree == Tree::Parameters && edit.value.is_some() {
                wrong.get_or_insert(format!(
                    "leaf {} of {} is edited with its bytes where an attest program is in force, and a state is due in their place",
                    edit.leaf, edit.tree
                ));
            }
            match (leaf, &edit.value) {
                (Some(None), _) => {
                    wrong.get_or_insert(format!("there is no leaf {} in {}", edit.leaf, edit.tree));
                }
                (Some(Some(leaf)), Some(value)) if leaf.bytes() != Some(value.len() as u64) => {
                    wrong.get_or_insert(format!(
                        "leaf {} of {} has another number of bytes than the {} of its edit",
                        edit.leaf,
                        edit.tree,
                        value.len()
                    ));
                }
                (Some(Some(leaf)), Some(value)) if leaf.digest(value) != Some(edit.digest) => {
                    wrong.get_or_insert(format!(
                        "the bytes of the edit of leaf {} of {} do not have its digest {}",
                        edit.leaf, edit.tree, edit.digest
                    ));
                }
                _ => {}
            }
        }
        if let Some(message) = wrong {
            self.findings.add(Code::EditInvalid, place, message);
        }
    }

    /// Whether the state that is recorded for the edits of an update changed in a tree that they do not touch.
    fn unlisted_edits(&mut self, body: &UpdateBody) {
        let Some((place, before)) = self.edited_from.filter(|_| body.has_large_edit()) else {
            return;
        };
        if let Some(name) = body.unedited_root_that_differs(&before, &self.roots) {
            let message = format!(
                "the root {name} is another than the one last recorded, and update {} edits no leaf that it is over",
                body.update
            );
            self.findings.add(Code::StateDiscontinuous, place, message);
        }
    }

    fn challenge(&mut self, place: Place, body: &ChallengeBody, receipt: Option<Result<Receipt, String>>) {
        let update = body.update;
        let Some(terms) = &self.terms else { return };
        if !terms.body.challenger.gives_receipts() {
            let message = format!(
                "the challenger \"{}\" gives no receipts, here is one",
                terms.body.challenger.name
            );
            self.findings.add(Code::ChallengeUnexpected, place, message);
            return;
        }
        let committed = match self.ledger.answer(update) {
            Answered::Due(committed) => *committed,
            Answered::Late(committed) => {
                let missed = Missed::Receipt(committed.place, update);
                self.missed([missed]);
                return;
            }
            Answered::Unknown => {
                self.trust.counts_differ = true;
                return;
            }
            Answered::NotDue => {
                let message = format!("update {update} has its receipt already, or it did not come in time");
                self.findings.add(Code::ChallengeUnexpected, place, message);
                return;
            }
            Answered::BeforeUpdate => {
                let message = format!("a receipt for update {update} stands before the update");
                self.findings.add(Code::OrderInvalid, place, message);
                return;
            }
        };
        let wrong = match receipt {
            Some(Ok(receipt)) => match () {
                () if receipt.root != terms.root => Err(format!("it is for the run {}", receipt.root)),
                () if receipt.seq != committed.seq => Err(format!(
                    "it is for seq {}, the update is at {}",
                    receipt.seq, committed.seq
                )),
                () if receipt.record != committed.digest => Err(format!("it is for the record {}", receipt.record)),
                () => Ok(receipt),
            },
            Some(Err(why)) => Err(why),
            None => Err("its signature could not be verified".to_owned()),
        };
        match wrong {
            Err(why) => {
                self.trust.counts_differ = true;
                self.findings.add(
                    Code::ChallengeInvalid,
                    place,
                    format!("the receipt for update {update}: {why}"),
                );
            }
            Ok(receipt) => {
                let lag = terms.body.configuration.max_check_lag;
                if let Some(draw) = self.draw(terms, &committed, &receipt.randomness) {
                    self.totals.sampled += u64::from(self.ledger.draw_answered(committed, draw, lag));
                }
            }
        }
    }

    fn check(&mut self, place: Place, body: &CheckBody) {
        let update = body.update;
        let count = match body.verdict {
            Verdict::Passed => &mut self.totals.checks_passed,
            Verdict::Failed => &mut self.totals.checks_failed,
            Verdict::Unresolved => &mut self.totals.checks_unresolved,
        };
        *count += 1;
        let (code, message) = match self.ledger.check(update) {
            Due::InTime(owed) => {
                self.ledger.settle_abandoned(&owed.committed);
                let Some(terms) = &self.terms else { return };
                let wrong = check::judge(
                    body,
                    &owed.committed,
                    owed.draw,
                    &terms.body.configuration,
                    self.layout.as_ref(),
                );
                let sound = wrong.is_empty();
                for (code, message) in wrong {
                    self.findings.add(code, place, message);
                }
                if sound && body.verdict == Verdict::Failed {
                    let message =
                        check::describe_failure(body, terms.body.configuration.tolerance, self.layout.as_ref());
                    self.findings.add(Code::CheckFailed, place, message);
                }
                return;
            }
            Due::Unknown => {
                self.trust.counts_differ = true;
                return;
            }
            Due::Late(owed) => {
                self.ledger.settle_abandoned(&owed.committed);
                (
                    Code::CheckLate,
                    format!(
                        "the check of update {update} (record {}) comes after the allowed lag",
                        owed.committed.place.record
                    ),
                )
            }
            Due::LongLate => (
                Code::CheckLate,
                format!("the check of update {update} comes after the allowed lag"),
            ),
            Due::Duplicate => (
                Code::CheckDuplicate,
                format!("update {update} has been checked already"),
            ),
            Due::NotSampled => (
                Code::CheckUnexpected,
                format!("update {update} was not sampled, here is a check of it"),
            ),
            Due::BeforeReceipt => (
                Code::OrderInvalid,
                format!("a check of update {update} stands before its receipt"),
            ),
            Due::BeforeUpdate => (
                Code::OrderInvalid,
                format!("a check of update {update} stands before the update"),
            ),
        };
        self.trust.counts_differ |= code != Code::CheckLate;
        self.findings.add(code, place, message);
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
