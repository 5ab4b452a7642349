//! Cheats of people without keys: they can only change bytes.

use std::collections::BTreeSet;

use zkdv_hash::{Digest, leaf};
use zkdv_protocol::cbor::Encoder;
use zkdv_protocol::cose::{self, Purpose};
use zkdv_protocol::record::{Body, CheckpointBody, Payload};
use zkdv_protocol::report::Outcome;
use zkdv_protocol::testing::{CheckStyle, Ending, Forge, Settings, TestKey, verify_bytes, write_transcript};
use zkdv_protocol::verify::{Options, Requirement};
use zkdv_protocol::violation::Code;

use crate::{assert_once, assert_only, options, settings};

/// Every single-bit change of every record but the last is found, once, and explained by one code of those that a change of
/// bytes can have.
#[test]
fn every_flipped_bit_gives_one_code() {
    let tolerant = Settings {
        updates: 2,
        interval: 2,
        checks: CheckStyle::Tolerant,
        small_edits: vec![1],
        ..settings()
    };
    let forge = write_transcript(&tolerant);
    let options = Options {
        allow_edits: true,
        ..options(&forge)
    };
    let bytes = forge.bytes();
    let last = bytes.len() - forge.records.last().expect("some").len();
    let allowed = BTreeSet::from([
        Code::SignatureInvalid,
        Code::RecordDamaged,
        Code::RecordMalformed,
        Code::RecordTooLarge,
        Code::EncodingNotDeterministic,
        // In a root record, whose key cannot be known when it cannot be read.
        Code::EncodingDuplicateKey,
        Code::EncodingTrailingBytes,
        Code::EncodingTooDeep,
        Code::TypeUnknown,
        Code::BodyInvalid,
        Code::ProtocolUnsupported,
        Code::IdentityMismatch,
    ]);
    // One bit of each byte, and all bits where the structure is: the first bytes of each record.
    let starts = forge.records.iter().scan(0, |end, record| {
        *end += record.len();
        Some(*end - record.len())
    });
    let heads: Vec<usize> = starts.flat_map(|start| start * 8..(start + 16) * 8).collect();
    for bit in (0..last)
        .map(|byte| byte * 8 + byte % 8)
        .chain(heads)
        .filter(|&bit| bit < last * 8)
    {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let report = verify_bytes(&changed, &options);
        assert_eq!(report.verdict, Outcome::Failed, "bit {bit}");
        let codes: BTreeSet<Code> = report.violations.iter().map(|violation| violation.code).collect();
        assert_eq!(codes.len(), 1, "bit {bit}: {:#?}", report.violations);
        assert_eq!(report.violations.len(), 1, "bit {bit}: {:#?}", report.violations);
        assert!(codes.is_subset(&allowed), "bit {bit}: {codes:?}");
    }
}

#[test]
fn flipped_bits_in_the_last_record_never_pass() {
    let forge = write_transcript(&Settings {
        updates: 1,
        interval: 1,
        ..settings()
    });
    let bytes = forge.bytes();
    let last = bytes.len() - forge.records.last().expect("some").len();
    for bit in last * 8..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let report = verify_bytes(&changed, &options(&forge));
        assert_ne!(report.verdict, Outcome::Passed, "bit {bit}");
        assert!(report.violations.len() <= 1, "bit {bit}: {:#?}", report.violations);
    }
}

/// Dropping, doubling and exchanging records, wherever they stand.
#[test]
fn moved_records_break_the_sequence_and_nothing_else() {
    for settings in [
        settings(),
        Settings {
            receipts: true,
            ..settings()
        },
    ] {
        let forge = write_transcript(&settings);
        let last = forge.records.len() - 1;
        for index in 0..last {
            let changed = |change: &dyn Fn(&mut Vec<Vec<u8>>)| {
                let mut records = forge.records.clone();
                change(&mut records);
                verify_bytes(&records.concat(), &options(&forge))
            };
            assert_only(Code::SequenceBroken, &changed(&|records| drop(records.remove(index))));
            let twice = changed(&|records| records.insert(index, records[index].clone()));
            assert_once(Code::SequenceBroken, &twice);
            let far = changed(&|records| records.insert(last, records[index].clone()));
            assert_once(Code::SequenceBroken, &far);
            if index + 1 < last {
                let swapped = changed(&|records| records.swap(index, index + 1));
                let codes: BTreeSet<Code> = swapped.violations.iter().map(|violation| violation.code).collect();
                // An exchanged root is a root that does not stand first.
                let expected = if index == 0 {
                    vec![Code::OrderInvalid, Code::SequenceBroken]
                } else {
                    vec![Code::SequenceBroken]
                };
                assert!(
                    codes.iter().all(|code| expected.contains(code)),
                    "{index}: {:#?}",
                    swapped.violations
                );
            }
        }
    }
}

#[test]
fn records_signed_again_by_another_key_are_found() {
    let forge = write_transcript(&settings());
    let stranger = TestKey::new("stranger", 7);
    for index in 0..forge.records.len() {
        let mut records = forge.records.clone();
        let frame = cose::Frame::parse(&records[index]).expect("a record");
        records[index] = cose::seal(Purpose::Record, frame.payload, &stranger).expect("signs");
        assert_once(
            Code::SignatureInvalid,
            &verify_bytes(&records.concat(), &options(&forge)),
        );
    }
}

#[test]
fn records_chained_again_with_a_new_key_are_found() {
    let forge = write_transcript(&settings());
    let stranger = TestKey::new("stranger", 7);
    for start in [1, 5, 9, 20] {
        let mut forged = forge.clone();
        forged.records.truncate(start);
        forged.seq = start as u64;
        forged.prev = leaf::digest(&forge.records[start - 1]);
        for record in &forge.records[start..] {
            let frame = cose::Frame::parse(record).expect("a record");
            let payload = Payload::decode(frame.payload).expect("a payload");
            let record_type = payload.record_type().expect("a type");
            let body = Body::from_item(record_type, payload.body).expect("a body");
            let payload = body.encode_payload(forged.seq, &forged.prev);
            forged.push_payload(&payload, &stranger);
        }
        assert_only(Code::SignatureInvalid, &verify_bytes(&forged.bytes(), &options(&forge)));
    }
}

#[test]
fn inserted_records_are_found_once() {
    let forge = write_transcript(&settings());
    let stranger = Forge::new(99);
    let body = Body::Checkpoint(CheckpointBody {
        update: 0,
        files: vec![("a".to_owned(), Digest::ZERO)],
    });
    for index in 1..forge.records.len() {
        let prev = leaf::digest(&forge.records[index - 1]);
        for (seq, prev, code) in [
            (index as u64, prev, Code::SignatureInvalid),
            (index as u64, Digest::ZERO, Code::SignatureInvalid),
            (index as u64 + 1000, prev, Code::SignatureInvalid),
            (index as u64 + 1000, Digest::ZERO, Code::SequenceBroken),
            (0, Digest::ZERO, Code::SequenceBroken),
        ] {
            let payload = body.encode_payload(seq, &prev);
            let mut records = forge.records.clone();
            records.insert(
                index,
                cose::seal(Purpose::Record, &payload, &stranger.session).expect("signs"),
            );
            assert_once(code, &verify_bytes(&records.concat(), &options(&forge)));
        }
    }
}

#[test]
fn concatenated_transcripts_are_found() {
    let forge = write_transcript(&settings());
    let other = write_transcript(&Settings {
        number: 2,
        ..settings()
    });
    let joined = [forge.bytes(), other.bytes()].concat();
    assert_once(Code::RecordAfterClose, &verify_bytes(&joined, &options(&forge)));
    let open = write_transcript(&Settings {
        ending: Ending::Open,
        ..settings()
    });
    let joined = [open.bytes(), other.bytes()].concat();
    assert_once(Code::OrderInvalid, &verify_bytes(&joined, &options(&open)));
}

#[test]
fn dropped_tails_are_incomplete_and_a_pinned_head_finds_them() {
    let forge = write_transcript(&settings());
    for kept in 1..forge.records.len() {
        let bytes = forge.records[..kept].concat();
        let report = verify_bytes(&bytes, &options(&forge));
        assert_eq!(report.verdict, Outcome::Incomplete);
        assert_eq!(report.violations, []);
        let pinned = Options {
            head: Some(forge.prev),
            ..options(&forge)
        };
        assert_once(Code::HeadMismatch, &verify_bytes(&bytes, &pinned));
        let required = Options {
            require: vec![Requirement::Closed],
            ..options(&forge)
        };
        assert_once(Code::RequirementUnmet, &verify_bytes(&bytes, &required));
    }
}

#[test]
fn every_truncation_is_incomplete_or_empty() {
    let forge = write_transcript(&Settings {
        updates: 2,
        interval: 2,
        receipts: true,
        checks: CheckStyle::Tolerant,
        ..settings()
    });
    let bytes = forge.bytes();
    let root = forge.records[0].len();
    for length in 0..bytes.len() {
        let report = verify_bytes(&bytes[..length], &options(&forge));
        if length < root {
            assert_once(Code::EmptyTranscript, &report);
            continue;
        }
        assert_eq!(report.violations, [], "{length} bytes");
        assert_eq!(report.verdict, Outcome::Incomplete, "{length} bytes");
        let whole: usize = forge
            .records
            .iter()
            .map(Vec::len)
            .scan(0, |sum, length| {
                *sum += length;
                Some(*sum)
            })
            .take_while(|&end| end <= length)
            .last()
            .expect("the root");
        assert_eq!(report.torn_bytes, (length - whole) as u64, "{length} bytes");
    }
}

#[test]
fn bytes_between_records_are_damage() {
    let forge = write_transcript(&settings());
    for index in 0..forge.records.len() {
        for garbage in [
            &[0][..],
            &[0; 100],
            b"\xd2\x84\x43\xa1\x01\x27\xa0",
            b"\xd2\x84\x43\xa1\x01\x27\xa0\x5a\x00\xff\xff\x00",
            b"text",
            b"\xff\xff",
        ] {
            let mut records = forge.records.clone();
            records.insert(index, garbage.to_vec());
            assert_once(Code::RecordDamaged, &verify_bytes(&records.concat(), &options(&forge)));
        }
    }
}

#[test]
fn bytes_after_the_close_are_found() {
    let forge = write_transcript(&settings());
    for tail in [&[0][..], &forge.records[3], &forge.records[3][..20]] {
        let bytes = [&forge.bytes(), tail].concat();
        assert_once(Code::RecordAfterClose, &verify_bytes(&bytes, &options(&forge)));
    }
}

#[test]
fn garbage_at_the_end_of_an_open_transcript_is_damage() {
    let forge = write_transcript(&Settings {
        ending: Ending::Open,
        ..settings()
    });
    let bytes = [&forge.bytes()[..], &[0; 512]].concat();
    assert_once(Code::RecordDamaged, &verify_bytes(&bytes, &options(&forge)));
}

#[test]
fn other_frames_are_malformed() {
    let forge = write_transcript(&settings());
    let index = 8;
    let record = &forge.records[index];
    let frame = cose::Frame::parse(record).expect("a record");
    let signature = [&[0x58, 0x40][..], frame.signature].concat();
    let mut encoder = Encoder::new();
    encoder.bytes(frame.payload);
    let payload = encoder.into_bytes();
    let join = |start: &[u8], payload: &[u8], signature: &[u8]| [start, payload, signature].concat();
    let long = [&[0x5b][..], &(frame.payload.len() as u64).to_be_bytes(), frame.payload].concat();
    let indefinite = [&[0x5f][..], &payload, &[0xff]].concat();
    let too_large = [
        &[0xd2, 0x84, 0x43, 0xa1, 0x01, 0x27, 0xa0, 0x5b][..],
        &u64::MAX.to_be_bytes(),
    ]
    .concat();
    let start = &record[..7];
    for (code, item) in [
        (
            Code::RecordMalformed,
            join(b"\xd3\x84\x43\xa1\x01\x27\xa0", &payload, &signature),
        ),
        (
            Code::RecordMalformed,
            join(b"\x84\x43\xa1\x01\x27\xa0", &payload, &signature),
        ),
        (
            Code::RecordMalformed,
            join(b"\xd2\x84\x43\xa1\x01\x26\xa0", &payload, &signature),
        ),
        (
            Code::RecordMalformed,
            join(b"\xd2\x84\x43\xa1\x01\x27\xa1\x01\x02", &payload, &signature),
        ),
        (Code::RecordMalformed, join(start, &payload, b"\x40")),
        (Code::RecordMalformed, join(start, b"\xf6", &signature)),
        (
            Code::EncodingNotDeterministic,
            join(b"\xd8\x12\x84\x43\xa1\x01\x27\xa0", &payload, &signature),
        ),
        (Code::EncodingNotDeterministic, join(start, &long, &signature)),
        (Code::EncodingNotDeterministic, join(start, &indefinite, &signature)),
        (Code::EncodingTooDeep, [&[0x81; 40][..], &[0]].concat()),
        (Code::RecordTooLarge, join(&too_large, frame.payload, &signature)),
    ] {
        for replaces in [true, false] {
            let mut records = forge.records.clone();
            if replaces {
                records[index] = item.clone();
            } else {
                records.insert(index, item.clone());
            }
            let report = verify_bytes(&records.concat(), &options(&forge));
            assert_once(code, &report);
            assert_eq!(report.violations[0].place.expect("a place").record, index as u64);
        }
    }
}
