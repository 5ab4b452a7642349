//! Cheats of a lying prover: attest programs, and what its checks say that they gave.

use zkdv_hash::{Digest, leaf};
use zkdv_protocol::record::{
    Body, CheckBody, Coordinate, Edit, ProgramBody, ProgramRole, Sampling, StateReason, Tree, Verdict,
};
use zkdv_protocol::report::Outcome;
use zkdv_protocol::testing::{AttestStyle, CheckStyle, Ending, PROGRAM, Resume, Run, Settings, verify_bytes};
use zkdv_protocol::verify::Options;
use zkdv_protocol::violation::Code;

use crate::provers_checks::{assert_misstated, before_opening, parameter};
use crate::{assert_once, assert_only, lie, options, settings};

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

/// Without the values of the attest program, wherever they are.
fn without_attested(body: &mut CheckBody) {
    for coordinate in [&mut body.parameter, &mut body.optimizer].into_iter().flatten() {
        coordinate.attested = None;
        (coordinate.before, coordinate.before_opening) = (None, None);
        if body.exact {
            (coordinate.committed, coordinate.opening) = (None, None);
        }
    }
}

fn attested(style: AttestStyle) -> Settings {
    Settings {
        attest: Some(style),
        ..settings()
    }
}

#[test]
fn attest_programs_that_disagree_fail_the_check_and_say_by_how_much() {
    for checks in [CheckStyle::Exact, CheckStyle::Tolerant] {
        let report = lie(
            Settings {
                checks,
                sampling: Sampling::Every(12),
                ending: Ending::Poisoned,
                ..attested(AttestStyle::Disagreeing)
            },
            |body| vec![body],
        );
        assert_once(Code::CheckFailed, &report);
        let message = &report.violations[0].message;
        assert!(
            message.contains("the attest program disagrees with update 11 at element"),
            "{message}"
        );
        assert!(message.contains("it gives a delta of"), "{message}");
    }
}

#[test]
fn attested_checks_of_a_prover_who_leaves_them_out_or_adds_them() {
    for checks in [CheckStyle::Exact, CheckStyle::Tolerant] {
        let without = Settings { checks, ..settings() };
        let with = Settings {
            checks,
            ..attested(AttestStyle::Agreeing)
        };
        assert_misstated(
            &with,
            Code::AttestedMissing,
            &[
                without_attested,
                |body| parameter(body).attested = None,
                |body| body.optimizer.as_mut().expect("drawn").attested = None,
            ],
        );
        assert_misstated(
            &without,
            Code::AttestedUnexpected,
            &[
                |body| parameter(body).attested = Some(0.0),
                |body| body.optimizer.as_mut().expect("drawn").attested = Some(f64::NAN),
            ],
        );
        // The program itself is left out, or there without what it gives.
        let no_program = lie(with.clone(), |body| match body {
            Body::Program(program) if program.role == ProgramRole::Attest => vec![],
            body => vec![body],
        });
        assert_only(Code::AttestedUnexpected, &no_program);
        let no_values = lie(with, |mut body| {
            if let Body::Check(check) = &mut body {
                without_attested(check);
            }
            vec![body]
        });
        assert_only(Code::AttestedMissing, &no_values);
    }
}

#[test]
fn attested_checks_of_a_prover_who_misstates_them() {
    for checks in [CheckStyle::Exact, CheckStyle::Tolerant] {
        let honest = Settings {
            checks,
            ..attested(AttestStyle::Agreeing)
        };
        assert_misstated(
            &honest,
            Code::CheckTolerance,
            &[
                |body| *parameter(body).attested.as_mut().expect("given") += 0.5,
                |body| parameter(body).attested = Some(f64::NAN),
                |body| body.optimizer.as_mut().expect("drawn").attested = Some(-1.0),
                |body| body.verdict = Verdict::Failed,
                |body| body.verdict = Verdict::Unresolved,
            ],
        );
        assert_misstated(
            &honest,
            Code::CheckOpening,
            &[
                |body| parameter(body).before.as_mut().expect("given")[0] ^= 1,
                |body| parameter(body).before = Some(vec![]),
                |body| parameter(body).before = Some(vec![0; 16]),
                |body| parameter(body).before = parameter(body).committed.clone(),
                |body| parameter(body).before_opening = parameter(body).opening.clone(),
                |body| before_opening(body).digest = Digest::ZERO,
                |body| before_opening(body).chunk ^= 1,
                |body| before_opening(body).bytes[0] ^= 1,
                |body| before_opening(body).path.clear(),
                |body| before_opening(body).chain.clear(),
                |body| parameter(body).committed.as_mut().expect("given")[0] ^= 1,
                |body| parameter(body).opening = None,
                |body| body.optimizer.as_mut().expect("drawn").opening = None,
            ],
        );
        assert_misstated(
            &honest,
            Code::BodyInvalid,
            &[
                |body| parameter(body).before = None,
                |body| parameter(body).before_opening = None,
                |body| parameter(body).committed = None,
                |body| {
                    let (before, opening) = (parameter(body).before.clone(), parameter(body).before_opening.clone());
                    let optimizer = body.optimizer.as_mut().expect("drawn");
                    (optimizer.before, optimizer.before_opening) = (before, opening);
                },
            ],
        );
    }
    // What an attested value is compared with may be gone only where the replay is not exact, and is unresolved then.
    let gone: fn(&mut CheckBody) = |body| (parameter(body).before, parameter(body).before_opening) = (None, None);
    assert_misstated(&attested(AttestStyle::Agreeing), Code::BodyInvalid, &[gone]);
    let tolerant = Settings {
        checks: CheckStyle::Tolerant,
        ..attested(AttestStyle::Agreeing)
    };
    assert_misstated(&tolerant, Code::CheckTolerance, &[gone]);
    let resolved = lie(tolerant, |mut body| {
        match &mut body {
            Body::Check(check) if check.update == 7 => {
                gone(check);
                check.verdict = Verdict::Unresolved;
            }
            Body::Close(close) => close.passed -= 1,
            _ => {}
        }
        vec![body]
    });
    assert_eq!((resolved.verdict, resolved.checks_unresolved), (Outcome::Incomplete, 1));
}

#[test]
fn failures_of_the_attest_program_passed_off_as_passed() {
    for checks in [CheckStyle::Exact, CheckStyle::Tolerant] {
        let disagreeing = Settings {
            checks,
            sampling: Sampling::Every(12),
            ..attested(AttestStyle::Disagreeing)
        };
        let passed = lie(disagreeing, |mut body| {
            match &mut body {
                Body::Check(check) => check.verdict = Verdict::Passed,
                Body::Close(close) => (close.passed, close.failed) = (1, 0),
                _ => {}
            }
            vec![body]
        });
        assert_once(Code::CheckTolerance, &passed);
    }
}

/// The parameters before an update are those of the record before it, whatever the update's own record says.
#[test]
fn parameters_that_another_state_had_before_the_update() {
    let states = |reason: StateReason| {
        lie(attested(AttestStyle::Agreeing), move |mut body| {
            match &mut body {
                Body::State(state) if state.reason == reason => state.roots.parameters = Some(Digest::ZERO),
                _ => {}
            }
            vec![body]
        })
    };
    assert_once(Code::CheckOpening, &states(StateReason::Start));
    let edited = Settings {
        large_edits: vec![3],
        ..attested(AttestStyle::Agreeing)
    };
    let report = lie(edited, |mut body| {
        match &mut body {
            Body::State(state) if state.reason == StateReason::Edit => state.roots.parameters = Some(Digest::ZERO),
            _ => {}
        }
        vec![body]
    });
    assert!(
        report
            .violations
            .iter()
            .any(|violation| violation.code == Code::CheckOpening)
    );
}
