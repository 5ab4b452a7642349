//! What an update must say, and the receipt and check that it is owed.

use std::collections::BTreeSet;

use zkdv_hash::Digest;
use zkdv_hash::challenge::{self, Draw};

use super::check;
use super::element;
use super::ledger::{Answered, Committed, Due, Missed};
use super::order::Attestation;
use super::verifier::{Terms, Verifier};
use crate::record::{ChallengeBody, CheckBody, Receipt, Roots, Sampling, Tree, UpdateBody, Verdict};
use crate::report::{EditReport, MAX_EDITS, hexadecimal};
use crate::violation::{Code, Place};
impl Verifier<'_> {
    pub(super) fn update(&mut self, place: Place, seq: u64, digest: Digest, body: &UpdateBody) {
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
            self.judge_roots_due(place, &body.after, due, format_args!("update {update}"));
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

    pub(super) fn challenge(&mut self, place: Place, body: &ChallengeBody, receipt: Option<Result<Receipt, String>>) {
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

    pub(super) fn check(&mut self, place: Place, body: &CheckBody) {
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
}
