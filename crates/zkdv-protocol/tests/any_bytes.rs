//! Whatever the bytes, verification ends with a report that fits them.

use proptest::prelude::*;
use proptest::sample::Index;
use zkdv_protocol::record::Sampling;
use zkdv_protocol::report::{MAX_VIOLATIONS, Outcome, Report};
use zkdv_protocol::testing::{CheckStyle, Resume, Settings, verify_bytes, write_transcript};
use zkdv_protocol::verify::Options;

/// A change of a transcript's bytes.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Copy(Index, usize, Index),
    Truncate(Index),
}

impl Change {
    fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Self::Set(at, byte)),
            (any::<Index>(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(at, bytes)| Self::Insert(at, bytes)),
            (any::<Index>(), 1..2000_usize).prop_map(|(at, length)| Self::Remove(at, length)),
            (any::<Index>(), 1..2000_usize, any::<Index>()).prop_map(|(from, length, to)| Self::Copy(from, length, to)),
            any::<Index>().prop_map(Self::Truncate),
        ]
    }

    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        let stretch = |at: &Index, length: usize, bytes: &[u8]| {
            let start = at.index(bytes.len());
            start..(start + length).min(bytes.len())
        };
        match self {
            Self::Set(at, byte) => *at.get_mut(bytes) = *byte,
            Self::Insert(at, new) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, new.iter().copied());
            }
            Self::Remove(at, length) => drop(bytes.drain(stretch(at, *length, bytes))),
            Self::Copy(from, length, to) => {
                let copy = bytes[stretch(from, *length, bytes)].to_vec();
                let to = to.index(bytes.len());
                bytes.splice(to..to, copy);
            }
            Self::Truncate(at) => bytes.truncate(at.index(bytes.len())),
        }
    }
}

fn transcripts() -> Vec<Vec<u8>> {
    let all = Settings {
        updates: 5,
        sampling: Sampling::Probability(1.0),
        ..Settings::default()
    };
    [
        all.clone(),
        Settings {
            receipts: true,
            ..all.clone()
        },
        Settings {
            checks: CheckStyle::Tolerant,
            small_edits: vec![1],
            large_edits: vec![3],
            ..all.clone()
        },
        Settings {
            resume: Some(Resume { after: 5, keep: 4 }),
            ..all
        },
    ]
    .iter()
    .map(|settings| write_transcript(settings).bytes())
    .collect()
}

fn assert_consistent(bytes: &[u8], report: &Report) {
    assert_eq!(report.bytes, bytes.len() as u64);
    assert!(report.violations.len() <= MAX_VIOLATIONS);
    assert!(report.violations.len() as u64 <= report.violations_total);
    assert_eq!(report.verdict == Outcome::Failed, report.violations_total > 0);
    assert_eq!(
        report.verdict == Outcome::Passed,
        report.violations_total == 0 && report.incomplete.is_empty()
    );
    for place in report.violations.iter().filter_map(|violation| violation.place) {
        assert!(place.offset < report.bytes);
    }
    serde_json::to_string(report).expect("every report is JSON");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_bytes_are_no_transcript(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
        let report = verify_bytes(&bytes, &Options::default());
        assert_consistent(&bytes, &report);
        prop_assert_eq!(report.verdict, Outcome::Failed);
    }

    #[test]
    fn changed_transcripts_pass_only_where_nothing_changed(
        which in any::<Index>(),
        changes in prop::collection::vec(Change::any(), 1..4),
    ) {
        let transcripts = transcripts();
        let original = which.get(&transcripts);
        let mut changed = original.clone();
        for change in &changes {
            change.apply(&mut changed);
        }
        let options = Options { allow_edits: true, ..Options::default() };
        let report = verify_bytes(&changed, &options);
        assert_consistent(&changed, &report);
        let is_prefix = original.starts_with(&changed);
        prop_assert!(report.verdict != Outcome::Passed || changed == *original);
        prop_assert!(report.verdict != Outcome::Incomplete || is_prefix || may_be_torn(original, &changed));
    }
}

/// A change in the last record that is left may make it look like one that was never finished.
fn may_be_torn(original: &[u8], changed: &[u8]) -> bool {
    let torn = verify_bytes(
        changed,
        &Options {
            allow_edits: true,
            ..Options::default()
        },
    )
    .torn_bytes;
    let whole = changed.len() - usize::try_from(torn).expect("in memory");
    torn > 0 && original.starts_with(&changed[..whole])
}
