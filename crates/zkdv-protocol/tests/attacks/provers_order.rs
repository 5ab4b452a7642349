//! Cheats of a lying prover: what it leaves out, adds and misplaces.

use std::collections::BTreeSet;

use zkdv_hash::{Digest, leaf};
use zkdv_protocol::cbor::Value;
use zkdv_protocol::key::PublicKey;
use zkdv_protocol::limits::MAX_PROGRAM_BYTES;
use zkdv_protocol::record::{
    Body, CheckpointBody, CloseBody, Commit, Coordinate, Edit, ProgramBody, ProgramRole, RecordType, ResumeBody, Roots,
    Sampling, StateBody, StateReason, Tree,
};
use zkdv_protocol::report::{Outcome, Report};
use zkdv_protocol::testing::{AttestStyle, Model, PROGRAM, Resume, Run, Settings, verify_bytes, write_transcript};
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

fn attest_program() -> Body {
    Body::Program(ProgramBody {
        role: ProgramRole::Attest,
        format: "test".to_owned(),
        digest: leaf::digest(PROGRAM),
        length: PROGRAM.len() as u64,
        extension: "bin".to_owned(),
        text_digest: Digest::ZERO,
        platforms: vec!["cpu".to_owned()],
        convention: "none".to_owned(),
    })
}

/// Two statements of one update, one that is made when it is known what was trained, and one without a layout.
#[test]
fn attest_programs_out_of_order() {
    let attested = Settings {
        attest: Some(AttestStyle::Agreeing),
        ..settings()
    };
    let is_attest = |body: &Body| matches!(body, Body::Program(program) if program.role == ProgramRole::Attest);
    assert_once(
        Code::OrderInvalid,
        &lie(attested.clone(), |body| {
            if is_attest(&body) {
                vec![body.clone(), body]
            } else {
                vec![body]
            }
        }),
    );
    for settings in [settings(), attested] {
        let late = lie(settings, |body| match body {
            Body::Update(update) if update.update == 3 => vec![Body::Update(update), attest_program()],
            body => vec![body],
        });
        assert_once(Code::OrderInvalid, &late);
    }
    let early = lie(settings(), |body| match body {
        Body::Schema(schema) => vec![attest_program(), Body::Schema(schema)],
        body => vec![body],
    });
    assert_once(Code::OrderInvalid, &early);
}

#[test]
fn attest_programs_hold_until_a_resume() {
    let resumed = |drop: bool| {
        let settings = Settings {
            attest: Some(AttestStyle::Agreeing),
            check_delay: 0,
            resume: Some(Resume { after: 9, keep: 8 }),
            ..settings()
        };
        let mut seen = 0;
        lie(settings, |body| {
            let is_attest = matches!(&body, Body::Program(program) if program.role == ProgramRole::Attest);
            seen += usize::from(is_attest);
            if drop && is_attest && seen == 2 {
                vec![]
            } else {
                vec![body]
            }
        })
    };
    assert_eq!(resumed(false).violations, []);
    assert_only(Code::AttestedUnexpected, &resumed(true));
}

/// An update whose check would have to carry attested values is abandoned, and recorded again under no attest program.
#[test]
fn checks_that_a_resume_frees_of_an_attest_program() {
    let resumed = |kept: Option<Digest>| {
        let settings = Settings {
            attest: Some(AttestStyle::Agreeing),
            resume: Some(Resume { after: 9, keep: 8 }),
            ..settings()
        };
        let mut resumed = false;
        lie(settings, |mut body| {
            resumed |= matches!(body, Body::Resume(_));
            match &mut body {
                Body::Program(program) if resumed => match kept {
                    Some(digest) => program.digest = digest,
                    None => return vec![],
                },
                Body::Check(check) if resumed && kept.is_none() => {
                    for coordinate in [&mut check.parameter, &mut check.optimizer].into_iter().flatten() {
                        *coordinate = Coordinate::bare(coordinate.index);
                    }
                }
                _ => {}
            }
            vec![body]
        })
    };
    let honest = resumed(Some(leaf::digest(PROGRAM)));
    assert_eq!((honest.verdict, honest.checks_unresolved), (Outcome::Passed, 0));
    assert_eq!(
        honest
            .programs
            .iter()
            .map(|program| program.updates)
            .collect::<Vec<_>>(),
        [13, 9, 4]
    );
    for kept in [None, Some(Digest::ZERO)] {
        let report = resumed(kept);
        assert_eq!(report.violations, []);
        assert_eq!((report.verdict, report.checks_unresolved), (Outcome::Incomplete, 1));
    }
}

/// An attest program in front of the schema that ends it is shown to be in force for nothing.
#[test]
fn an_attest_program_that_a_schema_ends_is_in_force_for_no_update() {
    let settings = Settings {
        attest: Some(AttestStyle::Agreeing),
        check_delay: 0,
        resume: Some(Resume { after: 8, keep: 8 }),
        ..settings()
    };
    let (mut resumed, mut schema) = (false, None);
    let report = lie(settings, |mut body| {
        resumed |= matches!(body, Body::Resume(_));
        match &mut body {
            Body::Schema(first) => schema = Some(Body::Schema(first.clone())),
            Body::Program(_) if resumed => return vec![body, schema.clone().expect("came before")],
            Body::Check(check) if resumed => {
                for coordinate in [&mut check.parameter, &mut check.optimizer].into_iter().flatten() {
                    *coordinate = Coordinate::bare(coordinate.index);
                }
            }
            _ => {}
        }
        vec![body]
    });
    assert_eq!((report.violations, report.verdict), (vec![], Outcome::Passed));
    assert_eq!(
        report
            .programs
            .iter()
            .map(|program| program.updates)
            .collect::<Vec<_>>(),
        [12, 8, 0]
    );
}

/// Its bytes stand in the update, and no root that the parameters before it could be opened under.
#[test]
fn parameter_edits_that_an_attest_program_is_not_shown() {
    let edited = |attest| {
        let settings = Settings {
            attest,
            large_edits: vec![3],
            ..settings()
        };
        let mut tamper = |mut body| {
            match &mut body {
                Body::Update(update) if update.update == 3 => update.edits.push(Edit {
                    tree: Tree::Parameters,
                    leaf: 2,
                    digest: leaf::digest(&[0; 20]),
                    value: Some(vec![0; 20]),
                }),
                Body::Close(close) => close.edits += 1,
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
    assert_once(Code::EditInvalid, &edited(Some(AttestStyle::Agreeing)));
    assert_eq!(edited(None).violations, []);
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
