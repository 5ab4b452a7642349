//! What is fuzzed: each function takes any bytes, and panics where a promise is broken.
//!
//! The fuzzer in `fuzz/` calls them with bytes of its making; an ordinary test calls them with the corpus.

use zkdv_hash::tree::{self, TreeKind};
use zkdv_hash::{Digest, chunk, leaf};

use super::forge::{Forge, TestKey};
use super::membership;
use super::run::write_transcript;
use super::settings::{AttestStyle, CheckStyle, Ending, Resume, Settings};
use super::verify_bytes;
use crate::cbor::{self, Encoder, Item};
use crate::record::{Body, Commit, Payload, RecordType, Sampling};
use crate::report::{MAX_EDITS, MAX_VIOLATIONS, Outcome, Report};
use crate::verify::{Content, Framer, Options};

pub use super::membership::membership_proof;

/// A function that takes any bytes.
pub type Target = fn(&[u8]);

/// Each target under its name, and inputs that show it what well-formed ones look like.
pub fn targets() -> [(&'static str, Target, Vec<Vec<u8>>); 5] {
    [
        ("verify_stream", verify_stream, transcripts()),
        ("cbor_scan", cbor_scan, payloads()),
        ("record_body", record_body, bodies()),
        ("chunk_and_tree_openings", chunk_and_tree_openings, openings()),
        ("membership_proof", membership_proof, membership::seeds()),
    ]
}

/// Any bytes are verified to a report that fits them; so are they when their records are chained and signed again, as by a
/// prover who may write anything.
pub fn verify_stream(data: &[u8]) {
    const MOST_RECORDS: usize = 24;
    let options = Options {
        allow_edits: true,
        ..Options::default()
    };
    let report = verify_bytes(data, &options);
    check_report(&report, data);
    if report.records > 0 && report.records <= MOST_RECORDS as u64 {
        let signed = sign_again(data);
        check_report(&verify_bytes(&signed, &options), &signed);
    }
}

fn check_report(report: &Report, data: &[u8]) {
    assert_eq!(report.bytes, data.len() as u64);
    assert!(report.violations.len() <= MAX_VIOLATIONS && report.edits.len() <= MAX_EDITS);
    assert!(report.violations.len() as u64 <= report.violations_total);
    let expected = match (report.violations_total, report.incomplete.is_empty()) {
        (0, true) => Outcome::Passed,
        (0, false) => Outcome::Incomplete,
        _ => Outcome::Failed,
    };
    assert_eq!(report.verdict, expected);
    assert!(report.verdict != Outcome::Passed || (report.closed && report.root.is_some() && report.torn_bytes == 0));
    assert!(
        report
            .violations
            .iter()
            .filter_map(|violation| violation.place)
            .all(|place| place.offset < report.bytes)
    );
}

/// Takes the records of a file, and chains and signs them with the keys of simulated run number 1.
pub fn sign_again(data: &[u8]) -> Vec<u8> {
    let mut forge = Forge::new(1);
    let mut framer = Framer::new(data);
    while let Some(frame) = framer.next_frame().expect("memory can be read") {
        match frame.content {
            Content::Record { bytes, payload } => sign_payload(&mut forge, &bytes[payload]),
            // What is no record stays what it is.
            Content::Bad(_) | Content::Torn => {
                let start = usize::try_from(frame.offset).expect("in memory");
                forge
                    .records
                    .push(data[start..start + usize::try_from(frame.length).expect("in memory")].to_vec());
            }
        }
    }
    forge.bytes()
}

fn sign_payload(forge: &mut Forge, bytes: &[u8]) {
    let session = forge.session.clone();
    let Ok(payload) = Payload::decode(bytes) else {
        forge.push_payload(bytes, &session);
        return;
    };
    let body = payload
        .record_type()
        .and_then(|record_type| Body::from_item(record_type, payload.body).ok());
    if let Some(body) = body {
        forge.push(&body);
        return;
    }
    let header = |seq: u64, prev: &Digest| {
        let mut encoder = Encoder::new();
        encoder
            .map(4)
            .unsigned(1)
            .unsigned(seq)
            .unsigned(2)
            .bytes(prev.as_bytes());
        encoder.unsigned(3).text(payload.type_name).unsigned(4);
        encoder.into_bytes()
    };
    let body = &bytes[header(payload.seq, &payload.prev).len()..];
    let signer: &TestKey = if payload.record_type().is_some_and(RecordType::is_signed_by_identity) {
        &forge.identity.clone()
    } else {
        &session
    };
    forge.push_payload(&[header(forge.seq, &forge.prev).as_slice(), body].concat(), signer);
}

/// What the strict scan accepts is written back byte for byte.
pub fn cbor_scan(data: &[u8]) {
    let measured = cbor::measure(data);
    let Ok(item) = cbor::decode(data) else { return };
    assert_eq!(measured, Ok(data.len()));
    let mut encoder = Encoder::new();
    write(&mut encoder, item);
    assert_eq!(encoder.into_bytes(), data);
    if let Ok(value) = item.to_value() {
        assert_eq!(value.encode(), data);
    }
}

fn write(encoder: &mut Encoder, item: Item<'_>) {
    match item {
        Item::Unsigned(number) => drop(encoder.unsigned(number)),
        Item::Bytes(bytes) => drop(encoder.bytes(bytes)),
        Item::Text(text) => drop(encoder.text(text)),
        Item::Array(array) => {
            encoder.array(array.len());
            array.iter().for_each(|item| write(encoder, item));
        }
        Item::Map(map) => {
            encoder.map(map.len());
            for (key, value) in map.iter() {
                write(encoder, key);
                write(encoder, value);
            }
        }
        leaf => drop(encoder.value(&leaf.to_value().expect("no map"))),
    }
}

/// What the grammar accepts is written back byte for byte. The first byte chooses the type.
pub fn record_body(data: &[u8]) {
    let Some((&first, data)) = data.split_first() else {
        return;
    };
    let record_type = RecordType::ALL[usize::from(first) % RecordType::ALL.len()];
    let Ok(item) = cbor::decode(data) else { return };
    let Ok(body) = Body::from_item(record_type, item) else {
        return;
    };
    assert_eq!(body.to_value().encode(), data);
    if let Body::Root(root) = &body {
        let _ = root.validate();
    }
}

/// Openings lead to what they were made for, and to nothing else. The input says what is opened and what is changed.
pub fn chunk_and_tree_openings(data: &[u8]) {
    let mut input = Input(data);
    let length = usize::from(input.short()) % 9000;
    let seed = input.byte();
    let bytes: Vec<u8> = (0..length).map(|index| (index % 251) as u8 ^ seed).collect();
    let chunk = u64::from(input.short()) % (length as u64).div_ceil(chunk::CHUNK_BYTES as u64).max(1);
    let digest = leaf::digest(&bytes);
    let opening = chunk::open(&bytes, chunk).expect("there is such a chunk");
    let mut given = (
        digest,
        length as u64,
        chunk,
        opening.bytes.clone(),
        opening.chain.clone(),
    );
    let honest = given.clone();
    input.change_digest(&mut given.0);
    input.change_number(&mut given.1);
    input.change_number(&mut given.2);
    input.change_bytes(&mut given.3);
    input.change_path(&mut given.4);
    let verified = chunk::verify(&given.0, given.1, given.2, &given.3, &given.4);
    // The length of a leaf is the schema's: what opens an earlier chunk may open it in a longer leaf as well.
    let given_but_length = (given.0, length as u64, given.2, given.3, given.4);
    assert!(if given_but_length == honest {
        verified || given.1 != honest.1
    } else {
        !verified
    });

    let count = usize::from(input.byte()) % 70 + 1;
    let index = u64::from(input.byte()) % count as u64;
    let kind = TreeKind::ALL[usize::from(input.byte()) % TreeKind::ALL.len()];
    let leaves: Vec<[u8; 2]> = (0..count).map(|index| [index as u8, seed]).collect();
    let path = tree::open(kind, &leaves, index as usize).expect("there is such a leaf");
    let root = tree::root(kind, &leaves);
    let mut given = (root, count as u64, index, leaves[index as usize].to_vec(), path);
    let honest = given.clone();
    input.change_digest(&mut given.0);
    input.change_number(&mut given.1);
    input.change_number(&mut given.2);
    input.change_bytes(&mut given.3);
    input.change_path(&mut given.4);
    assert_eq!(
        tree::verify(kind, &given.0, given.1, given.2, &given.3, &given.4),
        given == honest
    );
}

/// Reads decisions from bytes; zeros, which change nothing, at the end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        first
    }

    fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn change_digest(&mut self, digest: &mut Digest) {
        let mut bytes = *digest.as_bytes();
        let change = self.byte();
        bytes[usize::from(change) % 32] ^= change;
        *digest = Digest::from_bytes(bytes);
    }

    fn change_number(&mut self, number: &mut u64) {
        match self.byte() {
            0..=127 => {}
            128 => *number = u64::MAX,
            change => *number = number.wrapping_add(u64::from(change)).wrapping_sub(192),
        }
    }

    fn change_bytes(&mut self, bytes: &mut Vec<u8>) {
        match self.byte() {
            0..=127 => {}
            128 => bytes.push(self.byte()),
            129 => drop(bytes.pop()),
            130 => bytes.clear(),
            change => {
                let at = usize::from(self.short());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= change;
                }
            }
        }
    }

    fn change_path(&mut self, path: &mut Vec<Digest>) {
        match self.byte() {
            0..=127 => {}
            128 => path.push(Digest::ZERO),
            129 => drop(path.pop()),
            130 => path.reverse(),
            131 => path.clear(),
            _ => {
                let at = usize::from(self.byte());
                if let Some(digest) = path.get_mut(at) {
                    self.change_digest(digest);
                }
            }
        }
    }
}

/// Small runs of every kind.
fn runs() -> Vec<Settings> {
    let all = Settings {
        updates: 2,
        interval: 2,
        sampling: Sampling::Probability(1.0),
        ..Settings::default()
    };
    let tolerant = Settings {
        checks: CheckStyle::Tolerant,
        ..all.clone()
    };
    vec![
        all.clone(),
        Settings {
            receipts: true,
            ..all.clone()
        },
        Settings {
            small_edits: vec![0],
            large_edits: vec![1],
            ..tolerant.clone()
        },
        Settings {
            commit: Commit::Every,
            checks: CheckStyle::Failing,
            ending: Ending::Poisoned,
            ..tolerant
        },
        Settings {
            checks: CheckStyle::Unresolved,
            ending: Ending::Open,
            ..all.clone()
        },
        Settings {
            attest: Some(AttestStyle::Agreeing),
            large_edits: vec![1],
            ..all.clone()
        },
        Settings {
            attest: Some(AttestStyle::Disagreeing),
            commit: Commit::Every,
            checks: CheckStyle::Tolerant,
            ending: Ending::Poisoned,
            ..all.clone()
        },
        Settings {
            resume: Some(Resume { after: 2, keep: 2 }),
            sampling: Sampling::Every(2),
            ..all.clone()
        },
        Settings {
            resume: Some(Resume { after: 2, keep: 1 }),
            check_delay: 2,
            ..all.clone()
        },
        Settings {
            sharded: true,
            checks: CheckStyle::Tolerant,
            ..all
        },
    ]
}

fn transcripts() -> Vec<Vec<u8>> {
    runs()
        .iter()
        .map(|settings| write_transcript(settings).bytes())
        .collect()
}

/// The payloads of all records, one for each type and length.
fn payloads() -> Vec<Vec<u8>> {
    let mut payloads = std::collections::BTreeMap::new();
    for settings in runs() {
        for record in write_transcript(&settings).records {
            let frame = crate::cose::Frame::parse(&record).expect("a record");
            let payload = Payload::decode(frame.payload).expect("a payload");
            payloads.insert(
                (payload.type_name.to_owned(), frame.payload.len() / 64),
                frame.payload.to_vec(),
            );
        }
    }
    payloads.into_values().collect()
}

fn bodies() -> Vec<Vec<u8>> {
    payloads()
        .iter()
        .map(|payload| {
            let payload = Payload::decode(payload).expect("a payload");
            let record_type = payload.record_type().expect("a type");
            let number = RecordType::ALL
                .iter()
                .position(|known| *known == record_type)
                .expect("listed");
            let body = Body::from_item(record_type, payload.body).expect("a body");
            [&[number as u8][..], &body.to_value().encode()].concat()
        })
        .collect()
}

fn openings() -> Vec<Vec<u8>> {
    [0_u16, 1, 1023, 1024, 1025, 2048, 3000, 8192, 8999]
        .iter()
        .flat_map(|length| {
            let [low, high] = length.to_le_bytes();
            [
                vec![low, high, 1, 2, 0],
                vec![low, high, 1, 2, 0, 0, 192, 193, 131, 5, 0, 132, 1],
            ]
        })
        .collect()
}
