//! Cheats of a lying prover who goes on from elsewhere, or answers late.

use std::collections::BTreeMap;

use zkdv_hash::{Digest, leaf};
use zkdv_protocol::record::{
    Body, CheckBody, CloseBody, CloseReason, EnvironmentBody, ProgramBody, ResumeBody, Roots, Sampling, StateBody,
    StateReason, Verdict,
};
use zkdv_protocol::report::{Outcome, Report};
use zkdv_protocol::testing::{
    Ending, Forge, Model, PROGRAM, Resume, Run, Settings, verify_bytes, verify_with, write_transcript,
};
use zkdv_protocol::verify::{Lookup, ProgramFile};
use zkdv_protocol::violation::Code;

use crate::{assert_once, lie, options, settings};

/// Going back far enough empties the ledger; what is checked before that place was checked already, or is late.
#[test]
fn checks_from_before_a_resume_are_late_or_again() {
    let far = Settings {
        updates: 20,
        check_delay: 0,
        resume: Some(Resume { after: 20, keep: 8 }),
        ..settings()
    };
    for verdict in [Verdict::Passed, Verdict::Failed, Verdict::Unresolved] {
        let mut kept: Option<Box<CheckBody>> = None;
        let report = lie(far.clone(), |body| match body {
            Body::Check(check) => {
                if check.update == 5 {
                    kept = Some(check.clone());
                }
                vec![Body::Check(check)]
            }
            Body::State(state) if state.reason == StateReason::Resume => {
                let mut again = kept.clone().expect("came before");
                again.verdict = verdict;
                vec![Body::State(state), Body::Check(again)]
            }
            // A failed check is what poisons a run, after which nothing more is owed.
            Body::Close(mut close) if verdict == Verdict::Failed => {
                close.reason = CloseReason::Poisoned;
                close.failed += 1;
                vec![Body::Close(close)]
            }
            Body::Close(mut close) => {
                close.passed += u64::from(verdict == Verdict::Passed);
                vec![Body::Close(close)]
            }
            body => vec![body],
        });
        if verdict == Verdict::Failed {
            assert_eq!(report.verdict, Outcome::Failed);
        }
        assert!(
            report
                .violations
                .iter()
                .any(|violation| violation.code == Code::CheckLate),
            "{report:#?}"
        );
    }
}

#[test]
fn receipts_from_before_a_resume_are_not_due() {
    let far = Settings {
        updates: 20,
        check_delay: 0,
        receipts: true,
        resume: Some(Resume { after: 20, keep: 8 }),
        ..settings()
    };
    let mut kept = None;
    let report = lie(far, |body| match body {
        Body::Challenge(challenge) => {
            if challenge.update == 5 {
                kept = Some(challenge.clone());
            }
            vec![Body::Challenge(challenge)]
        }
        Body::State(state) if state.reason == StateReason::Resume => {
            vec![Body::State(state), Body::Challenge(kept.clone().expect("came before"))]
        }
        body => vec![body],
    });
    assert_once(Code::ChallengeUnexpected, &report);
}

/// A receipt decides what is checked, and one that may come at any time can be waited for.
#[test]
fn receipts_that_come_late_are_missing() {
    let late = |delay: u64| {
        let receipts = Settings {
            updates: 30,
            receipts: true,
            check_delay: 8,
            ..settings()
        };
        let mut held = None;
        lie(receipts, move |body| match body {
            Body::Challenge(challenge) if challenge.update == 5 => {
                held = Some((5 + delay, Body::Challenge(challenge)));
                vec![]
            }
            Body::Update(update) if held.as_ref().is_some_and(|(due, _)| *due == update.update) => {
                let (_, challenge) = held.take().expect("is there");
                vec![Body::Update(update), challenge]
            }
            body => vec![body],
        })
    };
    assert_eq!(late(1).verdict, Outcome::Passed);
    assert_eq!(late(2).verdict, Outcome::Passed);
    for delay in 3..16 {
        assert_once(Code::ChallengeMissing, &late(delay));
    }
}

/// Eight updates, and the roots of the state after them.
fn eight_updates() -> (Forge, Roots) {
    let forge = write_transcript(&Settings {
        updates: 8,
        sampling: Sampling::Probability(0.0),
        ending: Ending::Open,
        ..settings()
    });
    let mut model = Model::default();
    model.update(7);
    (forge, model.roots([true; 4]))
}

/// Goes on from the last record, with these further records, and closes.
fn resume_and_close(mut forge: Forge, further: Vec<Body>, roots: Roots) -> Report {
    let last = forge.records.last().expect("some").len();
    forge.push(&Body::Resume(ResumeBody {
        torn: 0,
        updates: 8,
        record: forge.seq - 1,
        offset: (forge.bytes().len() - last) as u64,
        linked: true,
        session_key: forge.next_session().public(),
        ranks: None,
    }));
    let entries = BTreeMap::new();
    forge.push(&Body::Environment(EnvironmentBody { entries }));
    for body in further {
        forge.push(&body);
    }
    for reason in [StateReason::Resume, StateReason::Close] {
        forge.push(&state(reason, roots));
    }
    forge.push(&Body::Close(CloseBody {
        updates: 8,
        sampled: 0,
        passed: 0,
        failed: 0,
        edits: 0,
        reason: CloseReason::Finished,
    }));
    verify_bytes(&forge.bytes(), &options(&forge))
}

fn state(reason: StateReason, roots: Roots) -> Body {
    Body::State(StateBody {
        updates: 8,
        reason,
        roots,
    })
}

#[test]
fn a_resume_from_a_state_that_awaits_its_edit_hides_the_edit() {
    let (mut forge, roots) = eight_updates();
    let edited = Roots {
        parameters: Some(Digest::ZERO),
        ..roots
    };
    assert_eq!(resume_and_close(forge.clone(), vec![], roots).verdict, Outcome::Passed);
    assert_once(
        Code::StateDiscontinuous,
        &resume_and_close(forge.clone(), vec![], edited),
    );
    forge.push(&state(StateReason::Edit, edited));
    assert_once(Code::ResumeInvalid, &resume_and_close(forge, vec![], edited));
}

#[test]
fn a_schema_after_a_resume_hides_no_other_state() {
    let (forge, roots) = eight_updates();
    let schema = Model::default().schema();
    let edited = Roots {
        optimizer: Some(Digest::ZERO),
        ..roots
    };
    let again = |roots| resume_and_close(forge.clone(), vec![Body::Schema(schema.clone())], roots);
    assert_eq!(again(roots).verdict, Outcome::Passed);
    assert_once(Code::StateDiscontinuous, &again(edited));
    // Another layout has other roots: whether the state is the same one, nothing here shows.
    let mut other = schema.clone();
    other.optimizer[1].shape.reverse();
    let changed = |roots| resume_and_close(forge.clone(), vec![Body::Schema(other.clone())], roots);
    let report = changed(edited);
    assert_eq!(report.violations, []);
    assert_eq!(report.verdict, Outcome::Incomplete);
    assert_eq!(report.unlinked, 1);
    // The tree that keeps its layout keeps its roots.
    let edited = Roots {
        parameters: Some(Digest::ZERO),
        ..roots
    };
    assert_once(Code::StateDiscontinuous, &changed(edited));
}

/// One file, whose length is stated in two ways.
#[test]
fn programs_of_one_digest_and_two_lengths() {
    let mut tamper = |body| match body {
        Body::Program(program) => {
            let other = ProgramBody {
                length: program.length + 1,
                ..program.clone()
            };
            vec![Body::Program(program), Body::Program(other)]
        }
        body => vec![body],
    };
    let mut run = Run::new(settings(), &mut tamper);
    run.train();
    let options = options(&run.forge);
    let report = verify_with(&run.forge.bytes(), &options, &mut OneFile);
    assert_once(Code::ProgramDigest, &report);
}

struct OneFile;

impl Lookup for OneFile {
    fn read_at(&mut self, _offset: u64, _buffer: &mut [u8]) -> std::io::Result<usize> {
        Ok(0)
    }

    fn program(&mut self, _name: &str, length: u64) -> ProgramFile {
        if length == PROGRAM.len() as u64 {
            ProgramFile::Digest(leaf::digest(PROGRAM))
        } else {
            ProgramFile::OtherLength(PROGRAM.len() as u64)
        }
    }
}
