//! Each cheat gives its own code and no other.
//!
//! Outsiders change the bytes of a finished transcript. A lying prover has all keys: its bodies are changed before they are
//! signed, and the rest of its transcript is consistent with what it did.

use std::collections::BTreeSet;

use zkdv_protocol::cose;
use zkdv_protocol::record::{Body, Payload, RecordType, Sampling};
use zkdv_protocol::report::{Outcome, Report};
use zkdv_protocol::testing::{Forge, Run, Settings, verify_bytes};
use zkdv_protocol::verify::Options;
use zkdv_protocol::violation::Code;

/// Changes a body of one kind in place.
macro_rules! change {
    ($variant:ident, $body:ident => $change:expr) => {
        |body: &mut Body| {
            let Body::$variant($body) = body else {
                panic!("another body")
            };
            $change;
        }
    };
}

mod outsiders;
mod provers_attested;
mod provers_checks;
mod provers_encoding;
mod provers_order;
mod provers_resumes;
mod verifiers;

/// All updates are checked, so that every check is a fixed number of records after its update.
fn settings() -> Settings {
    Settings {
        sampling: Sampling::Probability(1.0),
        ..Settings::default()
    }
}

fn options(forge: &Forge) -> Options {
    Options {
        identity: Some(forge.identity.public()),
        ..Options::default()
    }
}

#[track_caller]
fn assert_only(code: Code, report: &Report) {
    let codes: BTreeSet<Code> = report.violations.iter().map(|violation| violation.code).collect();
    assert_eq!(codes, BTreeSet::from([code]), "{:#?}", report.violations);
    assert_eq!(report.verdict, Outcome::Failed);
    assert_eq!(report.exit_code, 1);
}

#[track_caller]
fn assert_once(code: Code, report: &Report) {
    assert_only(code, report);
    assert_eq!(report.violations.len(), 1, "{:#?}", report.violations);
}

/// Runs with bodies changed before they are signed.
fn lie(settings: Settings, mut tamper: impl FnMut(Body) -> Vec<Body>) -> Report {
    let mut tamper = |body| tamper(body);
    let mut run = Run::new(settings, &mut tamper);
    run.train();
    let options = options(&run.forge);
    verify_bytes(&run.forge.bytes(), &options)
}

/// The same, changing one kind of body in place; says which by its count from 0.
fn lie_in(settings: Settings, record_type: RecordType, nth: usize, change: impl Fn(&mut Body)) -> Report {
    let mut seen = 0;
    lie(settings, |mut body| {
        if body.record_type() == record_type {
            if seen == nth {
                change(&mut body);
            }
            seen += 1;
        }
        vec![body]
    })
}

fn drop_nth(settings: Settings, record_type: RecordType, nth: usize) -> Report {
    let mut seen = 0;
    lie(settings, |body| {
        let here = body.record_type() == record_type;
        seen += usize::from(here);
        if here && seen == nth + 1 { vec![] } else { vec![body] }
    })
}

/// Index of a record by type, counted from 0.
fn find(forge: &Forge, record_type: RecordType, nth: usize) -> usize {
    let is_type = |record: &Vec<u8>| {
        let frame = cose::Frame::parse(record).expect("a record");
        let payload = Payload::decode(frame.payload).expect("a payload");
        payload.record_type() == Some(record_type)
    };
    forge
        .records
        .iter()
        .enumerate()
        .filter(|(_, record)| is_type(record))
        .nth(nth)
        .expect("there is one")
        .0
}

#[test]
fn every_code_has_an_attack() {
    let attacks = [
        include_str!("outsiders.rs"),
        include_str!("provers_attested.rs"),
        include_str!("provers_checks.rs"),
        include_str!("provers_encoding.rs"),
        include_str!("provers_order.rs"),
        include_str!("provers_resumes.rs"),
        include_str!("verifiers.rs"),
    ]
    .concat();
    for code in Code::ALL {
        assert!(
            attacks.contains(&format!("Code::{code:?}")),
            "no attack triggers {code}"
        );
    }
}
