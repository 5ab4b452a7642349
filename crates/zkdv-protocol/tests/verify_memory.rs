//! Verification takes the same memory however long a transcript is, and whatever it holds.

use peak_alloc::PeakAlloc;
use zkdv_protocol::cose::FRAME_START;
use zkdv_protocol::record::{Body, Sampling};
use zkdv_protocol::report::{MAX_VIOLATIONS, Outcome, Report};
use zkdv_protocol::testing::{Ending, Run, Settings, stream_transcript, verify_bytes};
use zkdv_protocol::verify::Options;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const KIBIBYTE: usize = 1 << 10;
const MEBIBYTE: usize = 1 << 20;

/// Verifies, and gives the most bytes that were allocated beyond those at the start.
fn verify(bytes: &[u8]) -> (usize, Report) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let report = verify_bytes(bytes, &Options::default());
    (MEMORY.peak_usage() - before, report)
}

fn long_run(updates: u64) -> Vec<u8> {
    let settings = Settings {
        updates,
        sampling: Sampling::Probability(0.1),
        ..Settings::default()
    };
    let mut bytes = Vec::new();
    stream_transcript(&settings, &mut bytes).expect("memory can be written");
    bytes
}

/// Updates that are all sampled, and not checked.
fn unchecked_run(updates: u64) -> Vec<u8> {
    let settings = Settings {
        updates,
        sampling: Sampling::Probability(1.0),
        interval: 1,
        max_in_flight: 1,
        ending: Ending::Open,
        ..Settings::default()
    };
    let mut tamper = |body| match body {
        Body::Check(_) => vec![],
        body => vec![body],
    };
    let mut run = Run::new(settings, &mut tamper);
    run.train();
    run.forge.bytes()
}

/// One test, because tests that run at once would count each other's memory.
#[test]
fn memory_does_not_grow_with_the_transcript() {
    let short = long_run(1000);
    let long = long_run(8000);
    let (for_short, report) = verify(&short);
    assert_eq!(report.verdict, Outcome::Passed);
    let (for_long, report) = verify(&long);
    assert_eq!(report.verdict, Outcome::Passed);
    // The sparse index of records is full after 4096 of them: that is 64 KiB.
    assert!(
        for_long < for_short + 80 * KIBIBYTE,
        "{for_short} bytes for 1000 updates, {for_long} for 8000"
    );
    assert!(for_long < MEBIBYTE, "{for_long}");

    // Something is wrong with every record.
    let mut damaged = long.clone();
    damaged.iter_mut().step_by(150).for_each(|byte| *byte ^= 0x10);
    let (bytes, report) = verify(&damaged);
    assert!(report.violations_total > MAX_VIOLATIONS as u64);
    assert_eq!(report.violations.len(), MAX_VIOLATIONS);
    assert!(bytes < 2 * MEBIBYTE, "{bytes}");

    // More is owed than is remembered.
    let (bytes, report) = verify(&unchecked_run(5000));
    assert!(report.violations_total > 4990, "{}", report.violations_total);
    assert!(bytes < 6 * MEBIBYTE, "{bytes}");

    // Lengths that are only declared, one after another.
    let declared = [&FRAME_START[..], &[0x5a, 0x00, 0xff, 0xff, 0x00]]
        .concat()
        .repeat(1000);
    let (bytes, report) = verify(&declared);
    assert_eq!(report.verdict, Outcome::Failed);
    assert!(bytes < MEBIBYTE, "{bytes}");
}
