//! Which record may come next.

use super::Counts;
use super::pending::{Checks, Receipts};
use crate::limits::{MAX_PROGRAM_BYTES, MAX_PROGRAMS};
use crate::record::{
    Body, ChallengeBody, CheckBody, CheckpointBody, CloseBody, CloseReason, Configuration, Edit, ProgramBody,
    ProgramRole, Receipt, RecordType, RootBody, Roots, StateBody, StateReason, Tree, UpdateBody, Verdict,
};
use crate::verify::{Attestation, Committed, Layout, judge_check};
use crate::violation::Place;
use ed25519_dalek::VerifyingKey;
use std::borrow::Cow;
use std::collections::HashSet;
use thiserror::Error;
use zkdv_hash::Digest;
use zkdv_hash::challenge::{self, Draw};

/// A record that what was written before does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("a `{record_type}` record can't be written here: expected {expected}, got {got}")]
pub struct OrderError {
    /// The record's type.
    pub record_type: RecordType,
    /// What may come here.
    pub expected: Cow<'static, str>,
    /// What was to be written.
    pub got: String,
}

type Admission = Result<(), Refusal>;

struct Refusal {
    expected: Cow<'static, str>,
    got: String,
}

fn refuse<T>(expected: impl Into<Cow<'static, str>>, got: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        expected: expected.into(),
        got: got.into(),
    })
}

#[derive(Debug)]
pub(super) struct Order {
    root: Digest,
    configuration: Configuration,
    challenger: Option<VerifyingKey>,
    environment: bool,
    layout: Option<Layout>,
    /// The numbers of the program records with role `replay`.
    replay_programs: HashSet<u64>,
    programs: usize,
    program_bytes: u64,
    /// Whether an attest program is in force.
    attestation: Attestation,
    /// Whether the initial state is recorded.
    started: bool,
    /// The roots last recorded; none where an update left one out.
    standing: Roots,
    /// Those before the first state that was recorded for edits of the next update.
    edited_from: Option<Roots>,
    /// The reason of the state record after which no update was written.
    state: Option<StateReason>,
    /// The earliest snapshot that later updates can be replayed from: the state after a large edit is held as one.
    earliest_snapshot: u64,
    receipts: Receipts,
    checks: Checks,
    counts: Counts,
    closed: bool,
}

impl Order {
    pub(super) fn after_root(root: &RootBody) -> Self {
        Self {
            root: Digest::ZERO,
            configuration: root.configuration.clone(),
            challenger: root.challenger.key.and_then(|key| key.to_verifying_key()),
            environment: false,
            layout: None,
            replay_programs: HashSet::new(),
            programs: 0,
            program_bytes: 0,
            attestation: Attestation::None,
            started: false,
            standing: Roots::default(),
            edited_from: None,
            state: None,
            earliest_snapshot: 0,
            receipts: Receipts::default(),
            checks: Checks::default(),
            counts: Counts::default(),
            closed: false,
        }
    }

    pub(super) fn started(self, root: Digest) -> Self {
        Self { root, ..self }
    }

    pub(super) const fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    pub(super) const fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether a record with this body may come next.
    pub(super) fn admit(&self, body: &Body) -> Result<(), OrderError> {
        let record_type = body.record_type();
        self.admit_type(record_type)
            .and_then(|()| match body {
                Body::Root(_) => refuse("a root only at the start of a transcript", "another"),
                Body::Resume(_) => refuse("a resume only at the start of a session", "one within it"),
                Body::Environment(_) => Ok(()),
                Body::Checkpoint(body) => self.admit_checkpoint(body),
                Body::Schema(_) => self.admit_schema(),
                Body::Program(body) => self.admit_program(body),
                Body::State(body) => self.admit_state(body),
                Body::Update(body) => self.admit_update(body),
                Body::Challenge(body) => self.admit_challenge(body),
                Body::Check(body) => self.admit_check(body),
                Body::Close(body) => self.admit_close(*body),
            })
            .map_err(|Refusal { expected, got }| OrderError {
                record_type,
                expected,
                got,
            })
    }

    fn admit_type(&self, record_type: RecordType) -> Admission {
        if self.closed {
            return refuse("nothing after `close`", format!("`{record_type}`"));
        }
        if (record_type == RecordType::Environment) == self.environment {
            return refuse(
                "`environment` once, directly after the root",
                format!("`{record_type}`"),
            );
        }
        if self.state == Some(StateReason::Close) && record_type != RecordType::Close {
            return refuse(
                "`close` directly after the state with reason `close`",
                format!("`{record_type}`"),
            );
        }
        Ok(())
    }

    fn admit_schema(&self) -> Admission {
        if self.layout.is_some() {
            refuse("one schema", "a second")
        } else {
            Ok(())
        }
    }

    fn admit_program(&self, body: &ProgramBody) -> Admission {
        if self.programs >= MAX_PROGRAMS {
            return refuse(format!("at most {MAX_PROGRAMS} programs"), "one more");
        }
        let bytes = self.program_bytes.saturating_add(body.length);
        if bytes > MAX_PROGRAM_BYTES {
            let expected = format!("programs of at most {MAX_PROGRAM_BYTES} bytes in all");
            return refuse(expected, format!("{bytes} bytes with this one"));
        }
        if body.role == ProgramRole::Attest {
            match () {
                () if matches!(self.attestation, Attestation::InForce { .. }) => {
                    return refuse("one program with role `attest`", "a second");
                }
                () if self.layout.is_none() => return refuse("a schema before a program with role `attest`", "none"),
                () if self.counts.updates > 0 => {
                    return refuse("a program with role `attest` before any update", "one after an update");
                }
                () => {}
            }
        }
        Ok(())
    }

    fn admit_state(&self, body: &StateBody) -> Admission {
        if self.layout.is_none() {
            return refuse("a schema before any state", "none");
        }
        if body.updates != self.counts.updates {
            return refuse(format!("updates = {}", self.counts.updates), body.updates.to_string());
        }
        let present = body.roots.present();
        if let Some(missing) = present.iter().position(|present| !present) {
            return refuse("all four roots", format!("no `{}`", body.roots.entries()[missing].0));
        }
        match body.reason {
            StateReason::Start if self.started => return refuse("one state with reason `start`", "a second"),
            StateReason::Start => return Ok(()),
            _ if !self.started => return refuse("a state with reason `start` first", format!("`{}`", body.reason)),
            StateReason::Resume => return refuse("a state with reason `resume` only after a resume", "none"),
            StateReason::Edit => return Ok(()),
            StateReason::Close => {}
        }
        self.nothing_pending()?;
        self.no_edit_announced()?;
        for ((name, root), (_, standing)) in body.roots.entries().into_iter().zip(self.standing.entries()) {
            if standing.is_some() && root != standing {
                return refuse(format!("the `{name}` root last recorded"), "another");
            }
        }
        Ok(())
    }

    fn admit_update(&self, body: &UpdateBody) -> Admission {
        let Some(layout) = self.layout.as_ref().filter(|_| self.started) else {
            return refuse("a schema and a state with reason `start` before any update", "none");
        };
        if body.update != self.counts.updates {
            return refuse(
                format!("update {}", self.counts.updates),
                format!("update {}", body.update),
            );
        }
        if !self.replay_programs.contains(&body.program) {
            let got = format!("record {}", body.program);
            return refuse("the number of a `program` record with role `replay`", got);
        }
        let due = Roots::due(&self.configuration, body.update);
        for ((name, root), due) in body.after.entries().into_iter().zip(due) {
            match (root, due) {
                (None, true) => return refuse(format!("the `{name}` root, which is due"), "none"),
                (Some(_), false) => return refuse(format!("no `{name}` root, which is not due"), "one"),
                _ => {}
            }
        }
        admit_edits(layout, &body.edits, self.attestation)?;
        match (body.has_large_edit(), self.state) {
            (true, Some(StateReason::Edit)) => {}
            (true, _) => {
                return refuse(
                    "a state with reason `edit` before an edit that leaves out the leaf's bytes",
                    "none",
                );
            }
            (false, _) => self.no_edit_announced()?,
        }
        if let Some(before) = &self.edited_from
            && let Some(name) = body.unedited_root_that_differs(before, &self.standing)
        {
            let expected = format!("an edit of a leaf under the `{name}` root, which the state before it changed");
            return refuse(expected, "none");
        }
        let (in_flight, lag) = (self.configuration.max_in_flight, self.configuration.max_check_lag);
        if let Some(update) = self.receipts.overdue(self.counts.updates, in_flight) {
            let expected = format!("the challenge of update {update}, which may come at most {in_flight} updates late");
            return refuse(expected, "another update");
        }
        if let Some(update) = self.checks.overdue(self.counts.updates, lag) {
            let expected = format!("the check of update {update}, which may come at most {lag} updates late");
            return refuse(expected, "another update");
        }
        Ok(())
    }

    fn no_edit_announced(&self) -> Admission {
        if self.state == Some(StateReason::Edit) {
            return refuse(
                "an update with an edit that leaves out the leaf's bytes, after its state",
                "none",
            );
        }
        Ok(())
    }

    fn nothing_pending(&self) -> Admission {
        let waiting = self.receipts.first().map(|update| (update, "challenge"));
        match waiting.or_else(|| self.checks.first().map(|update| (update, "check"))) {
            Some((update, what)) => refuse(format!("the {what} of update {update}"), "an end without it"),
            None => Ok(()),
        }
    }

    fn admit_checkpoint(&self, body: &CheckpointBody) -> Admission {
        if body.update > self.counts.updates {
            return refuse(
                format!("an update up to {}", self.counts.updates),
                body.update.to_string(),
            );
        }
        Ok(())
    }

    fn admit_challenge(&self, body: &ChallengeBody) -> Admission {
        let Some(challenger) = &self.challenger else {
            return refuse("no receipts, as the challenger gives none", "one");
        };
        let Some(committed) = self.receipts.get(body.update) else {
            return refuse(
                "an update that waits for its challenge",
                format!("update {}", body.update),
            );
        };
        match Receipt::open(&body.receipt, challenger) {
            Err(error) => refuse("a receipt of the challenger that the root names", error.to_string()),
            Ok(receipt) if receipt.root != self.root => refuse("a receipt for this run", "one for another"),
            Ok(receipt) if (receipt.seq, receipt.record) != (committed.seq, committed.digest) => refuse(
                format!("a receipt for record {}", committed.seq),
                format!("one for another, {}", receipt.seq),
            ),
            Ok(_) => Ok(()),
        }
    }

    fn admit_check(&self, body: &CheckBody) -> Admission {
        let Some((committed, draw)) = self.checks.get(body.update) else {
            return refuse(
                "a sampled update that waits for its check",
                format!("update {}", body.update),
            );
        };
        match judge_check(body, committed, *draw, &self.configuration, self.layout.as_ref())
            .into_iter()
            .next()
        {
            Some((code, message)) => refuse(
                "a check that a verifier finds sound",
                format!("{}: {message}", code.as_str()),
            ),
            None => Ok(()),
        }
    }

    fn admit_close(&self, body: CloseBody) -> Admission {
        let counted = self.counts.close(body.reason);
        if body != counted {
            return refuse(format!("{counted:?}"), format!("{body:?}"));
        }
        if body.reason == CloseReason::Finished && self.layout.is_some() && self.state != Some(StateReason::Close) {
            return refuse("a state with reason `close` directly before", "none");
        }
        Ok(())
    }

    /// Takes an admitted record as written.
    pub(super) fn advance(&mut self, body: &Body, seq: u64, digest: Digest) {
        match body {
            Body::Root(_) | Body::Resume(_) | Body::Checkpoint(_) => {}
            Body::Environment(_) => self.environment = true,
            Body::Schema(body) => self.layout = Some(Layout::new(body.clone())),
            Body::Program(body) => {
                self.programs += 1;
                self.program_bytes += body.length;
                match body.role {
                    ProgramRole::Replay => {
                        self.replay_programs.insert(seq);
                    }
                    ProgramRole::Attest => self.attestation = Attestation::InForce { seq },
                    ProgramRole::Aoti => {}
                }
            }
            Body::State(body) => {
                self.started = true;
                self.state = Some(body.reason);
                if body.reason == StateReason::Edit {
                    self.edited_from.get_or_insert(self.standing);
                }
                self.standing = body.roots;
            }
            Body::Update(body) => self.updated(body, seq, digest),
            Body::Challenge(body) => self.challenged(body),
            Body::Check(body) => {
                self.checks.remove(body.update);
                match body.verdict {
                    Verdict::Passed => self.counts.passed += 1,
                    Verdict::Failed => self.counts.failed += 1,
                    Verdict::Unresolved => {}
                }
            }
            Body::Close(_) => self.closed = true,
        }
    }

    fn updated(&mut self, body: &UpdateBody, seq: u64, digest: Digest) {
        self.state = None;
        let before = std::mem::replace(&mut self.standing, body.after);
        self.edited_from = None;
        self.counts.updates += 1;
        self.counts.edits += body.edits.len() as u64;
        if body.has_large_edit() {
            self.earliest_snapshot = body.update;
        }
        let committed = Committed {
            place: Place { record: seq, offset: 0 },
            seq,
            update: body.update,
            digest,
            parameters: body.after.parameters,
            optimizer: body.after.optimizer,
            parameters_before: before.parameters,
            attestation: self.attestation,
            earliest_snapshot: self.earliest_snapshot,
            fingerprint: Digest::ZERO,
        };
        if self.challenger.is_some() {
            self.receipts.insert(body.update, self.counts.updates, committed);
        } else {
            self.sample(committed, &[]);
        }
    }

    fn challenged(&mut self, body: &ChallengeBody) {
        let receipt = self
            .challenger
            .and_then(|challenger| Receipt::open(&body.receipt, &challenger).ok());
        if let (Some(receipt), Some(committed)) = (receipt, self.receipts.remove(body.update)) {
            self.sample(committed, &receipt.randomness);
        }
    }

    fn sample(&mut self, committed: Committed, randomness: &[u8]) {
        let Some(layout) = &self.layout else { return };
        let [parameters, optimizer] = [Tree::Parameters, Tree::Optimizer].map(|tree| layout.tree(tree).elements());
        let (update, sampling) = (committed.update, &self.configuration.sampling);
        // The rule was validated with the root.
        let draw = challenge::draw(&committed.digest, randomness, sampling, update, parameters, optimizer);
        if let Ok(draw @ Draw { sampled: true, .. }) = draw {
            self.counts.sampled += 1;
            self.checks.insert(update, self.counts.updates, (committed, draw));
        }
    }
}

fn admit_edits(layout: &Layout, edits: &[Edit], attestation: Attestation) -> Admission {
    let mut seen = HashSet::new();
    for edit in edits {
        let name = format!("leaf {} of `{}`", edit.leaf, edit.tree);
        let Some(leaf) = layout.tree(edit.tree).leaf(edit.leaf) else {
            return refuse("an edit of a leaf that the schema has", name);
        };
        if !seen.insert((edit.tree, edit.leaf)) {
            return refuse("one edit of a leaf", format!("two of {name}"));
        }
        let Some(value) = &edit.value else { continue };
        if matches!(attestation, Attestation::InForce { .. }) && edit.tree == Tree::Parameters {
            let expected =
                format!("no bytes for {name}, as an attest program is in force, but a state before the update");
            return refuse(expected, "bytes");
        }
        if leaf.bytes() != Some(value.len() as u64) {
            let expected = leaf
                .bytes()
                .map_or_else(|| "no bytes".to_owned(), |length| format!("{length} bytes"));
            return refuse(format!("{expected} for {name}"), value.len().to_string());
        }
        if leaf.digest(value) != Some(edit.digest) {
            return refuse(format!("the digest of the bytes for {name}"), "another");
        }
    }
    Ok(())
}
