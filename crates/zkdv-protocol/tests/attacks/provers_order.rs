//! Cheats of a lying prover: what it leaves out, adds and misplaces.

use std::collections::BTreeSet;

use zkdv_hash::Digest;
use zkdv_protocol::cbor::Value;
use zkdv_protocol::key::PublicKey;
use zkdv_protocol::limits::MAX_PROGRAM_BYTES;
use zkdv_protocol::record::{
    Body, CheckpointBody, CloseBody, Commit, ProgramRole, RecordType, ResumeBody, Roots, Sampling, StateBody,
    StateReason, Tree,
};
use zkdv_protocol::report::Report;
use zkdv_protocol::testing::{Model, Resume, Run, Settings, verify_bytes, write_transcript};
use zkdv_protocol::verify::Options;
use zkdv_protocol::violation::Code;

use crate::{assert_once, assert_only, drop_nth, find, lie, lie_in, options, settings};

/// What changes a body.
type Change = Box<dyn Fn(&mut Body)>;

#[test]
fn records_out_of_order() {
    for record_type in [RecordType::Environment, RecordType::Schema] {
        assert_once(Code::OrderInvalid, &drop_nth(settings(), record_type, 0));
    }
    // Every update names a program that is not for replays.
    let attests = lie_in(
        settings(),
        RecordType::Program,
        0,
        change!(Program, body => body.role = ProgramRole::Attest),
    );
    assert_only(Code::ProgramUnknown, &attests);
    let twice = |of: RecordType, nth: usize| {
        let mut seen = 0;
        lie(settings(), move |body| {
            let here = body.record_type() == of;
            seen += usize::from(here);
            if here && seen == nth + 1 {
                vec![body.clone(), body]
            } else {
                vec![body]
            }
        })
    };
    for record_type in [RecordType::Environment, RecordType::Schema, RecordType::State] {
        assert_once(Code::OrderInvalid, &twice(record_type, 0));
    }
    let huge = lie_in(
        settings(),
        RecordType::Program,
        0,
        change!(Program, body => body.length = MAX_PROGRAM_BYTES + 1),
    );
    assert_once(Code::OrderInvalid, &huge);
    let late = lie(settings(), |body| match body {
        Body::Close(close) => vec![
            Body::Checkpoint(CheckpointBody {
                update: 1,
                files: vec![("a".to_owned(), Digest::ZERO)],
            }),
            Body::Close(close),
        ],
        body => vec![body],
    });
    assert_once(Code::OrderInvalid, &late);
    let early = lie(settings(), |body| match body {
        Body::Check(check) if check.update == 7 => {
            let mut other = check.clone();
            other.update = 11;
            vec![Body::Check(check), Body::Check(other)]
        }
        body => vec![body],
    });
    assert_once(Code::OrderInvalid, &early);
    let skipped = lie(
        Settings {
            check_delay: 0,
            ..settings()
        },
        |body| match body {
            Body::Update(update) if update.update == 6 => vec![],
            Body::Check(check) if check.update == 6 => vec![],
            body => vec![body],
        },
    );
    assert_only(Code::UpdateIndex, &skipped);
}

/// An edit that is listed and allowed brings others along, in the tree that no edit of the update touches.
#[test]
fn edits_beside_those_that_an_update_lists() {
    let edited = |tree: Tree, changed: Option<usize>| {
        let settings = Settings {
            commit: Commit::Every,
            large_edits: vec![3],
            ..settings()
        };
        let mut tamper = |mut body| {
            match &mut body {
                Body::Update(update) if update.update == 3 => update.edits[0].tree = tree,
                Body::State(state) if state.reason == StateReason::Edit => {
                    let Roots {
                        parameters,
                        parameter_probes,
                        optimizer,
                        optimizer_probes,
                    } = &mut state.roots;
                    // The run itself edits a parameter.
                    if tree == Tree::Optimizer {
                        let before = after_three_updates();
                        (*parameters, *parameter_probes) = (before.parameters, before.parameter_probes);
                    }
                    let roots = [parameters, parameter_probes, optimizer, optimizer_probes];
                    if let Some(changed) = changed {
                        *roots[changed] = Some(Digest::ZERO);
                    }
                }
                _ => {}
            }
            vec![body]
        };
        let mut run = Run::new(settings, &mut tamper);
        run.train();
        let options = Options {
            allow_edits: true,
            ..options(&run.forge)
        };
        verify_bytes(&run.forge.bytes(), &options)
    };
    for (tree, listed, others) in [(Tree::Parameters, [0, 1], [2, 3]), (Tree::Optimizer, [2, 3], [0, 1])] {
        for changed in std::iter::once(None).chain(listed.map(Some)) {
            assert_eq!(edited(tree, changed).violations, []);
        }
        for changed in others {
            assert_once(Code::StateDiscontinuous, &edited(tree, Some(changed)));
        }
    }
}

/// The roots of every simulated run after its third update.
fn after_three_updates() -> Roots {
    let mut model = Model::default();
    model.update(2);
    model.roots([true; 4])
}

#[test]
fn updates_of_a_prover_who_leaves_things_out() {
    let cases: Vec<(Code, Change)> = vec![
        (
            Code::RootsDue,
            Box::new(change!(Update, body => body.after.parameters = None)),
        ),
        (
            Code::RootsDue,
            Box::new(change!(Update, body => body.after.optimizer = Some(Digest::ZERO))),
        ),
        (
            Code::NextKeyDue,
            Box::new(change!(Update, body => body.next_key = Some(PublicKey::from_bytes([1; 32])))),
        ),
        (
            Code::ProgramUnknown,
            Box::new(change!(Update, body => body.program = 2)),
        ),
        (
            Code::ProgramUnknown,
            Box::new(change!(Update, body => body.program = u64::MAX)),
        ),
    ];
    for (code, change) in cases {
        let report = lie_in(settings(), RecordType::Update, 5, change);
        assert_only(code, &report);
    }
    assert_only(
        Code::NextKeyDue,
        &lie_in(
            settings(),
            RecordType::Update,
            3,
            change!(Update, body => body.next_key = None),
        ),
    );
    assert_only(
        Code::RootsDue,
        &lie_in(
            settings(),
            RecordType::Update,
            3,
            change!(Update, body => body.after.optimizer = None),
        ),
    );
    let every = Settings {
        commit: Commit::Every,
        ..settings()
    };
    assert_once(
        Code::RootsDue,
        &lie_in(
            every,
            RecordType::Update,
            5,
            change!(Update, body => body.after.optimizer_probes = None),
        ),
    );
    assert_only(
        Code::UpdateIndex,
        &lie_in(
            settings(),
            RecordType::Update,
            5,
            change!(Update, body => body.update = 6),
        ),
    );
}

#[test]
fn states_of_a_prover_who_leaves_things_out() {
    // States: start and close.
    for nth in [0, 1] {
        assert_once(Code::StateMissing, &drop_nth(settings(), RecordType::State, nth));
        assert_once(
            Code::RootsDue,
            &lie_in(
                settings(),
                RecordType::State,
                nth,
                change!(State, body => body.roots.optimizer_probes = None),
            ),
        );
    }
    assert_once(
        Code::StateDiscontinuous,
        &lie_in(
            settings(),
            RecordType::State,
            1,
            change!(State, body => body.roots.parameters = Some(Digest::ZERO)),
        ),
    );
    let edited = Settings {
        large_edits: vec![5],
        ..settings()
    };
    let allow = |report: Report| {
        report
            .violations
            .into_iter()
            .filter(|violation| violation.code != Code::EditNotAllowed)
            .collect::<Vec<_>>()
    };
    let violations = allow(drop_nth(edited.clone(), RecordType::State, 1));
    assert_eq!(violations.len(), 1, "{violations:#?}");
    assert_eq!(violations[0].code, Code::StateMissing);
    let resumed = Settings {
        sampling: Sampling::Probability(0.0),
        resume: Some(Resume { after: 9, keep: 8 }),
        ..settings()
    };
    assert_once(Code::StateMissing, &drop_nth(resumed.clone(), RecordType::State, 1));
    assert_once(
        Code::StateDiscontinuous,
        &lie_in(
            resumed,
            RecordType::State,
            1,
            change!(State, body => body.roots.optimizer = Some(Digest::ZERO)),
        ),
    );
    assert_once(
        Code::OrderInvalid,
        &lie_in(
            settings(),
            RecordType::State,
            1,
            change!(State, body => body.updates = 3),
        ),
    );
    assert_only(
        Code::OrderInvalid,
        &lie(settings(), |body| match body {
            Body::State(state) if state.reason == StateReason::Close => {
                vec![
                    Body::State(StateBody {
                        reason: StateReason::Edit,
                        ..state.clone()
                    }),
                    Body::State(state),
                ]
            }
            body => vec![body],
        }),
    );
}

#[test]
fn edits_of_a_prover_who_misstates_them() {
    let edited = Settings {
        small_edits: vec![5],
        ..settings()
    };
    let honest = write_transcript(&edited);
    assert_once(Code::EditNotAllowed, &verify_bytes(&honest.bytes(), &options(&honest)));
    let cases: Vec<Change> = vec![
        Box::new(change!(Update, body => body.edits[0].leaf = 3)),
        Box::new(change!(Update, body => body.edits[0].leaf = u64::MAX)),
        Box::new(change!(Update, body => body.edits[0].value = Some(vec![0; 4]))),
        Box::new(change!(Update, body => body.edits[0].value = Some(vec![0x11; 5]))),
        Box::new(change!(Update, body => body.edits.push(body.edits[0].clone()))),
    ];
    for change in cases {
        let mut tamper_seen = 0;
        let mut tamper = |mut body: Body| {
            if body.record_type() == RecordType::Update {
                if tamper_seen == 5 {
                    change(&mut body);
                }
                tamper_seen += 1;
            }
            if let Body::Close(close) = &mut body {
                close.edits = 1;
            }
            vec![body]
        };
        let mut run = Run::new(edited.clone(), &mut tamper);
        run.train();
        let options = Options {
            allow_edits: true,
            ..options(&run.forge)
        };
        let report = verify_bytes(&run.forge.bytes(), &options);
        let others: Vec<_> = report
            .violations
            .iter()
            .filter(|violation| violation.code != Code::CountMismatch)
            .collect();
        assert_eq!(others.len(), 1, "{:#?}", report.violations);
        assert_eq!(others[0].code, Code::EditInvalid);
    }
}

#[test]
fn counts_that_are_not_those_of_the_transcript() {
    for change in [
        (|close| close.updates += 1) as fn(&mut CloseBody),
        |close| close.sampled += 1,
        |close| close.passed -= 1,
        |close| close.failed += 1,
        |close| close.edits += 1,
    ] {
        let report = lie_in(settings(), RecordType::Close, 0, change!(Close, body => change(body)));
        assert_once(Code::CountMismatch, &report);
    }
}

#[test]
fn resumes_from_where_nothing_stood() {
    let resumed = Settings {
        sampling: Sampling::Probability(0.0),
        resume: Some(Resume { after: 9, keep: 8 }),
        ..settings()
    };
    for change in [
        (|resume| resume.offset += 1) as fn(&mut ResumeBody),
        |resume| resume.offset = 0,
        |resume| resume.offset = u64::MAX,
        |resume| resume.record += 1,
        |resume| resume.updates += 100,
        |resume| resume.updates += 1,
        |resume| resume.updates -= 1,
    ] {
        let report = lie_in(
            resumed.clone(),
            RecordType::Resume,
            0,
            change!(Resume, body => change(body)),
        );
        let codes: BTreeSet<Code> = report.violations.iter().map(|violation| violation.code).collect();
        // Where another number of updates is kept, the updates after it do not follow on it either.
        let explained = BTreeSet::from([Code::ResumeInvalid]);
        assert!(
            codes.is_subset(&explained) && codes.contains(&Code::ResumeInvalid),
            "{:#?}",
            report.violations
        );
    }
    let unlinked = Settings {
        resume: Some(Resume { after: 9, keep: 6 }),
        ..resumed
    };
    assert_once(
        Code::ResumeInvalid,
        &lie_in(
            unlinked,
            RecordType::Resume,
            0,
            change!(Resume, body => body.linked = true),
        ),
    );
}

/// A record inside another record's bytes does not stand in the transcript.
#[test]
fn resumes_from_a_record_inside_a_record() {
    let honest = write_transcript(&Settings {
        updates: 1,
        ..settings()
    });
    let inner = honest.records[find(&honest, RecordType::Update, 0)].clone();
    let resumed = Settings {
        sampling: Sampling::Probability(0.0),
        resume: Some(Resume { after: 9, keep: 8 }),
        ..settings()
    };
    let mut offset = 0;
    let mut sum = 0;
    let mut tamper = |body: Body| match body {
        Body::Environment(mut environment) => {
            environment.entries.insert("inner".into(), Value::Bytes(inner.clone()));
            vec![Body::Environment(environment)]
        }
        body => vec![body],
    };
    let mut run = Run::new(resumed.clone(), &mut tamper);
    run.train();
    for record in &run.forge.records {
        if let Some(at) = record.windows(inner.len()).position(|window| window == inner) {
            offset = sum + at;
            break;
        }
        sum += record.len();
    }
    assert!(offset > 0);
    let report = lie(resumed, |body| match body {
        Body::Environment(mut environment) => {
            environment.entries.insert("inner".into(), Value::Bytes(inner.clone()));
            vec![Body::Environment(environment)]
        }
        Body::Resume(mut resume) => {
            resume.offset = offset as u64;
            resume.record = 5;
            vec![Body::Resume(resume)]
        }
        body => vec![body],
    });
    assert_only(Code::ResumeInvalid, &report);
}
