//! Transcripts of honest runs pass, and what is missing makes them incomplete.

use zkdv_protocol::record::{Commit, Sampling};
use zkdv_protocol::report::{Outcome, Report};
use zkdv_protocol::testing::{
    AttestStyle, CheckStyle, Ending, Forge, Resume, Settings, verify_bytes, write_transcript,
};
use zkdv_protocol::verify::Options;

fn report(settings: &Settings) -> (Report, Forge) {
    let forge = write_transcript(settings);
    let options = Options {
        identity: Some(forge.identity.public()),
        head: Some(forge.prev),
        allow_edits: true,
        require: vec![],
    };
    (verify_bytes(&forge.bytes(), &options), forge)
}

#[track_caller]
fn assert_verdict(settings: &Settings, verdict: Outcome) -> Report {
    let (report, _) = report(settings);
    assert_eq!(report.violations, [], "{settings:?}");
    assert_eq!(report.verdict, verdict, "{:?}", report.incomplete);
    report
}

#[test]
fn finished_runs_pass_under_every_configuration() {
    for commit in [Commit::Parameters, Commit::Every] {
        for sampling in [
            Sampling::Probability(0.0),
            Sampling::Probability(0.5),
            Sampling::Probability(1.0),
            Sampling::Every(3),
        ] {
            for receipts in [false, true] {
                for checks in [CheckStyle::Exact, CheckStyle::Tolerant] {
                    for (interval, check_delay) in [(1, 0), (1, 3), (4, 8), (5, 2)] {
                        let settings = Settings {
                            commit,
                            sampling,
                            receipts,
                            checks,
                            interval,
                            check_delay,
                            ..Settings::default()
                        };
                        let report = assert_verdict(&settings, Outcome::Passed);
                        assert_eq!(report.updates, 12);
                        assert_eq!(report.checks_passed, report.sampled);
                    }
                }
            }
        }
    }
}

#[test]
fn attested_runs_pass_under_every_configuration() {
    for commit in [Commit::Parameters, Commit::Every] {
        for receipts in [false, true] {
            for checks in [CheckStyle::Exact, CheckStyle::Tolerant] {
                for (small_edits, large_edits) in [(vec![], vec![]), (vec![0, 3, 7], vec![2, 3, 11])] {
                    let settings = Settings {
                        commit,
                        receipts,
                        checks,
                        small_edits,
                        large_edits,
                        sampling: Sampling::Probability(1.0),
                        attest: Some(AttestStyle::Agreeing),
                        ..Settings::default()
                    };
                    let report = assert_verdict(&settings, Outcome::Passed);
                    assert_eq!(report.checks_passed, 12);
                    assert_eq!(report.programs.len(), 2);
                }
            }
        }
    }
}

#[test]
fn runs_of_no_update_pass() {
    let report = assert_verdict(
        &Settings {
            updates: 0,
            ..Settings::default()
        },
        Outcome::Passed,
    );
    let said = |report: &Report| report.warnings.iter().any(|warning| warning.contains("no update"));
    assert!(said(&report));
    assert!(!said(&assert_verdict(&Settings::default(), Outcome::Passed)));
}

#[test]
fn allowed_edits_pass_and_are_listed() {
    let settings = Settings {
        small_edits: vec![0, 3, 7],
        large_edits: vec![2, 3, 11],
        ..Settings::default()
    };
    let report = assert_verdict(&settings, Outcome::Passed);
    assert_eq!(report.edits_total, 6);
    assert_eq!(report.edits.len(), 6);
    assert_eq!(report.edits[0].name.as_deref(), Some("learning_rate"));
    assert_eq!(report.edits[0].value.as_deref(), Some("11111111"));
    assert_eq!(report.edits[0].dtype, Some("float32"));
    let elements = report.edits[0].elements.as_deref().unwrap();
    assert_eq!(serde_json::to_string(elements).unwrap(), "[1.1443742e-28]");
}

#[test]
fn a_run_that_no_check_was_drawn_for_passes_with_a_warning() {
    let warned = |probability| {
        let settings = Settings {
            sampling: Sampling::Probability(probability),
            ..Settings::default()
        };
        let report = assert_verdict(&settings, Outcome::Passed);
        report
            .warnings
            .iter()
            .any(|warning| warning.contains("none was re-executed"))
    };
    assert!(warned(1e-12));
    assert!(!warned(1.0));
}

#[test]
fn open_runs_are_incomplete_and_say_what_may_still_come() {
    let settings = Settings {
        ending: Ending::Open,
        sampling: Sampling::Probability(1.0),
        ..Settings::default()
    };
    let report = assert_verdict(&settings, Outcome::Incomplete);
    assert_eq!(
        (report.sampled, report.checks_passed, report.checks_outstanding),
        (12, 10, 2)
    );
    assert!(!report.closed);
}

#[test]
fn unresolved_checks_leave_a_run_incomplete() {
    let settings = Settings {
        checks: CheckStyle::Unresolved,
        ..Settings::default()
    };
    let report = assert_verdict(&settings, Outcome::Incomplete);
    assert_eq!(report.checks_unresolved, report.sampled);
}

#[test]
fn linked_resumes_pass_where_nothing_sampled_was_abandoned() {
    for commit in [Commit::Parameters, Commit::Every] {
        for keep in [0, 4, 8] {
            let settings = Settings {
                commit,
                sampling: Sampling::Probability(0.0),
                resume: Some(Resume { after: 9, keep }),
                ..Settings::default()
            };
            let report = assert_verdict(&settings, Outcome::Passed);
            assert_eq!((report.resumes, report.unlinked), (1, 0));
            assert_eq!(report.updates, 12 + 9 - keep);
        }
    }
}

#[test]
fn unlinked_resumes_leave_a_run_incomplete() {
    let settings = Settings {
        sampling: Sampling::Probability(0.0),
        resume: Some(Resume { after: 9, keep: 6 }),
        ..Settings::default()
    };
    let report = assert_verdict(&settings, Outcome::Incomplete);
    assert_eq!(report.unlinked, 1);
}

/// An abandoned sampled update is unresolved until it is recorded again just as it was, and checked.
#[test]
fn abandoned_updates_are_settled_by_their_twins() {
    for receipts in [false, true] {
        let settings = Settings {
            sampling: Sampling::Probability(1.0),
            check_delay: 3,
            receipts,
            resume: Some(Resume { after: 9, keep: 4 }),
            ..Settings::default()
        };
        let report = assert_verdict(&settings, Outcome::Passed);
        assert_eq!(report.sampled, 12 + 5);
        // Updates 6 to 8 were abandoned before their checks.
        assert_eq!(report.checks_passed, 12 + 2);
    }
}

#[test]
fn the_report_says_who_ran_what() {
    let (report, forge) = report(&Settings::default());
    let identity = report.identity.expect("the root is there");
    assert!(identity.pinned);
    assert_eq!(identity.key, forge.identity.public());
    assert_eq!(report.head, Some(forge.prev));
    assert_eq!(report.run.as_deref(), Some("test"));
    assert_eq!(report.programs.len(), 1);
    assert_eq!(report.programs[0].updates, 12);
    assert_eq!(report.bytes, forge.bytes().len() as u64);
    assert_eq!(report.records, forge.records.len() as u64);
    let json = serde_json::to_value(&report).expect("reports are JSON");
    assert_eq!(json["verdict"], "passed");
    assert_eq!(json["environment"]["flags"], serde_json::json!([-1, "NaN", true]));
    assert_eq!(json["environment"]["nested"]["bytes"], "00ff");
    assert_eq!(json["identity"]["key"], forge.identity.public().to_string());
}
