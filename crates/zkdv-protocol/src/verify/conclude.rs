//! From what was found to a report.

use super::options::{Level, Requirement};
use super::verifier::Verifier;
use crate::record::{Challenger, CloseReason, Sampling};
use crate::report::{ChallengerReport, IdentityReport, MAX_ENVIRONMENT_BYTES, Outcome, Report};
use crate::violation::Code;

/// What `verify` shows by itself.
const LEVEL: Level = Level::Record;

impl Verifier<'_> {
    /// Ends the file, looks at the files of sealed programs, and concludes.
    #[must_use]
    pub fn finish(mut self) -> Report {
        let (missed, outstanding) = self.ledger.finish(false);
        self.missed(missed);
        let abandoned = self.ledger.abandoned();
        self.totals.checks_unresolved += abandoned;
        self.judge_whole();
        self.judge_programs();
        self.judge_requirements();
        self.fail_closed();
        self.warn();
        let incomplete = self.incomplete(outstanding, abandoned);
        let verdict = match () {
            () if self.findings.any() => Outcome::Failed,
            () if incomplete.is_empty() => Outcome::Passed,
            () => Outcome::Incomplete,
        };
        self.report(verdict, incomplete, outstanding)
    }

    fn judge_whole(&mut self) {
        if self.totals.records == 0 && !self.findings.any() {
            let message = match self.torn_bytes {
                0 => "the file is empty".to_owned(),
                torn => format!("the file has {torn} bytes, in which no record ends"),
            };
            self.findings.add_overall(Code::EmptyTranscript, message);
            return;
        }
        if let (Some(place), false) = (self.totals.first_edit, self.options.allow_edits) {
            let edits = self.totals.edits_total;
            let recorded = if edits == 1 {
                "change of a state leaf between updates is"
            } else {
                "changes of state leaves between updates are"
            };
            let message = format!(
                "{edits} {recorded} recorded, the first in this record; where that was meant to be, allow edits (--allow-edits)"
            );
            self.findings.add(Code::EditNotAllowed, place, message);
        }
        // Other bytes have another digest: that follows from what was found.
        if let Some(pinned) = self.options.head
            && self.head != Some(pinned)
            && !self.trust.records_lost
            && !self.findings.has(Code::RecordAfterClose)
        {
            let head = self.head.map_or_else(|| "none".to_owned(), |head| head.to_string());
            self.findings.add_overall(
                Code::HeadMismatch,
                format!("expected the head {pinned}, the last record has {head}"),
            );
        }
    }

    fn judge_programs(&mut self) {
        let findings = &mut self.findings;
        let looked = self
            .programs
            .check_files(self.lookup, |code, place, message| findings.add(code, place, message));
        if !looked {
            findings.warn("sealed programs were not looked at: the transcript was given without its folder");
        }
    }

    fn judge_requirements(&mut self) {
        for requirement in &self.options.require {
            let unmet = match requirement {
                Requirement::Closed => (self.closed.is_none() && !self.trust.perhaps_closed)
                    .then(|| "closed is required, the transcript has no close record".to_owned()),
                // Where edits are not allowed anyway, that was reported.
                Requirement::NoEdits => (self.totals.edits_total > 0 && self.options.allow_edits)
                    .then(|| format!("no-edits is required, there are {}", self.totals.edits_total)),
                Requirement::Identity => self
                    .options
                    .identity
                    .is_none()
                    .then(|| "identity is required, and none was given to compare with".to_owned()),
                Requirement::Level(level) => (*level > LEVEL).then(|| {
                    format!("level {} is required, what was verified here shows level {}", level.as_str(), LEVEL.as_str())
                }),
                Requirement::Probability(least) => self.root.as_ref().and_then(|root| match root.body.configuration.sampling {
                    Sampling::Probability(probability) if probability >= *least => None,
                    Sampling::Probability(probability) => {
                        Some(format!("probability>={least} is required, the run was configured with {probability}"))
                    }
                    Sampling::Every(every) => Some(format!(
                        "probability>={least} is required, the run checked every {every} updates, which is no probability"
                    )),
                }),
            };
            if let Some(message) = unmet {
                self.findings.add_overall(Code::RequirementUnmet, message);
            }
        }
    }

    /// Passing needs more than that nothing was found: what was set aside because of a violation is set aside without one
    /// only by a fault of the verifier, and what must never pass does not, whatever else was overlooked.
    fn fail_closed(&mut self) {
        if self.findings.any() {
            return;
        }
        let trust = &self.trust;
        let set_aside =
            trust.records_lost || trust.counts_differ || trust.perhaps_closed || trust.unjudged_from.is_some();
        let (code, message) = match () {
            () if set_aside => (
                Code::RecordDamaged,
                "parts of the transcript were not verified, and nothing says why: please report this fault of the verifier",
            ),
            () if self.closed == Some(CloseReason::Poisoned) => {
                (Code::ClosedPoisoned, "the run was closed because it had failed")
            }
            () if self.totals.checks_failed > 0 => (Code::CheckFailed, "a check failed, as its record says"),
            () if self.closed.is_some() && self.terms.is_none() => (
                Code::OrderInvalid,
                "the transcript has no root record that could be relied on",
            ),
            () => return,
        };
        self.findings.add_overall(code, message);
    }

    fn warn(&mut self) {
        if let Some(record) = self.trust.unjudged_from {
            self.findings.warn(format!(
                "the record that names the key in force was lost or changed: what is signed from record {record} on cannot be judged until a later record names a key"
            ));
        }
        let Some(root) = &self.root else { return };
        if self.totals.updates == 0 && !self.trust.records_lost {
            self.findings
                .warn("the transcript holds no update: nothing was trained under it");
        }
        match root.body.configuration.sampling {
            Sampling::Every(every) => self.findings.warn(format!(
                "every {every} updates one was checked: a setting for finding faults, which the prover knows beforehand"
            )),
            Sampling::Probability(0.0) => self.findings.warn("no update was checked: the check probability is 0"),
            Sampling::Probability(_) if self.totals.sampled == 0 && self.totals.updates > 0 => {
                self.findings.warn("no update was sampled, so none was re-executed");
            }
            Sampling::Probability(_) => {}
        }
        if root.body.challenger.name == Challenger::TRANSCRIPT {
            self.findings.warn(
                "the sample follows from the transcript itself, so that checks find accidents; a prover who wants to can choose what is sampled",
            );
        }
        if self.options.identity.is_none() {
            self.findings
                .warn("the identity is not pinned: anyone could have made this transcript");
        }
        if self.environment.is_none() && !self.findings.any() && self.totals.records > 1 {
            self.findings.warn(format!(
                "the environment takes more than {MAX_ENVIRONMENT_BYTES} bytes and is not repeated here"
            ));
        }
    }

    fn incomplete(&self, outstanding: u64, abandoned: u64) -> Vec<String> {
        let mut reasons = Vec::new();
        if self.closed.is_none() {
            reasons.push(match outstanding {
                0 => "the transcript is open: it has no close record, so the run goes on or ended without being closed".to_owned(),
                _ => format!(
                    "the transcript is open: it has no close record, so the run goes on or ended without being closed, and {} may still come",
                    counted(outstanding, "check")
                ),
            });
        }
        if self.torn_bytes > 0 {
            reasons.push(format!(
                "the last {} bytes are a record that is not whole",
                self.torn_bytes
            ));
        }
        if self.totals.checks_unresolved > abandoned {
            let unresolved = self.totals.checks_unresolved - abandoned;
            reasons.push(match unresolved {
                1 => "1 check is unresolved".to_owned(),
                _ => format!("{unresolved} checks are unresolved"),
            });
        }
        if abandoned > 0 {
            reasons.push(format!(
                "{} abandoned unchecked by a resume",
                counted(abandoned, "sampled update")
            ));
        }
        if self.totals.unlinked > 0 {
            reasons.push(format!(
                "{} resumes go on from a state that is committed nowhere, or in another layout; an audit that replays across them settles that",
                self.totals.unlinked
            ));
        }
        reasons
    }

    fn report(self, verdict: Outcome, incomplete: Vec<String>, outstanding: u64) -> Report {
        let totals = self.totals;
        let (violations, violations_total, warnings) = self.findings.into_parts();
        let root = self.root.as_ref();
        let body = root.map(|root| &root.body);
        let configuration = body.map(|body| &body.configuration);
        let sampling = configuration.map(|configuration| configuration.sampling);
        let tolerance = configuration.map(|configuration| configuration.tolerance);
        Report {
            verdict,
            exit_code: verdict.exit_code(),
            level: LEVEL.as_str(),
            closed: self.closed.is_some(),
            poisoned: self.closed == Some(CloseReason::Poisoned),
            torn_bytes: self.torn_bytes,
            records: totals.records,
            bytes: totals.bytes,
            updates: totals.updates,
            sampled: totals.sampled,
            checks_passed: totals.checks_passed,
            checks_failed: totals.checks_failed,
            checks_unresolved: totals.checks_unresolved,
            checks_outstanding: outstanding,
            edits: totals.edits,
            edits_total: totals.edits_total,
            head: self.head,
            root: root.map(|root| root.digest),
            run: body.map(|body| body.run.clone()),
            prover: body.map(|body| body.prover.as_str()),
            time: body.map(|body| body.time),
            parent: body.and_then(|body| body.parent),
            identity: body.map(|body| IdentityReport {
                key: body.identity,
                pinned: self.options.identity == Some(body.identity),
            }),
            ranks: totals.ranks,
            probability: sampling.and_then(|sampling| match sampling {
                Sampling::Probability(probability) => Some(probability).filter(|probability| probability.is_finite()),
                Sampling::Every(_) => None,
            }),
            every: sampling.and_then(|sampling| match sampling {
                Sampling::Every(every) => Some(every),
                Sampling::Probability(_) => None,
            }),
            // JSON has no other numbers than finite ones.
            tolerance_absolute: tolerance
                .map(|tolerance| tolerance.absolute)
                .filter(|number| number.is_finite()),
            tolerance_relative: tolerance
                .map(|tolerance| tolerance.relative)
                .filter(|number| number.is_finite()),
            commit: configuration.map(|configuration| configuration.commit.as_str()),
            replay_snapshot_interval: configuration.map(|configuration| configuration.replay_snapshot_interval),
            challenger: body.map(|body| ChallengerReport {
                name: body.challenger.name.clone(),
                key: body.challenger.key,
            }),
            programs: self.programs.report(),
            resumes: totals.resumes,
            unlinked: totals.unlinked,
            violations,
            violations_total,
            incomplete,
            warnings,
            environment: self.environment,
        }
    }
}

fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(all(test, feature = "testing"))]
mod tests {
    use super::*;
    use crate::testing::{Settings, write_transcript};
    use crate::verify::{Framer, Intake, Options};

    /// Verifies an honest run with a verifier that something goes wrong in.
    fn verify(spoil: fn(&mut Verifier<'_>)) -> Report {
        let bytes = write_transcript(&Settings {
            sampling: Sampling::Probability(1.0),
            ..Settings::default()
        })
        .bytes();
        let options = Options::default();
        let mut lookup = bytes.as_slice();
        let mut verifier = Verifier::new(&options, &mut lookup);
        let (mut framer, mut intake) = (Framer::new(bytes.as_slice()), Intake::new());
        let mut records = 0;
        while let Some(frame) = framer.next_frame().expect("memory can be read") {
            verifier.push(intake.take(frame).judge());
            records += 1;
            if records == 12 {
                spoil(&mut verifier);
            }
        }
        verifier.finish()
    }

    #[test]
    fn what_is_set_aside_without_a_reason_fails() {
        assert_eq!(verify(|_| {}).verdict, Outcome::Passed);
        for spoil in [
            (|verifier| verifier.lose()) as fn(&mut Verifier<'_>),
            |verifier| verifier.trust.counts_differ = true,
            |verifier| verifier.trust.perhaps_closed = true,
            |verifier| verifier.trust.unjudged_from = Some(3),
            |verifier| verifier.terms = None,
            |verifier| verifier.layout = None,
            |verifier| verifier.ledger.lose(),
            |verifier| verifier.doubt_key(),
        ] {
            assert_eq!(verify(spoil).verdict, Outcome::Failed);
        }
    }
}
