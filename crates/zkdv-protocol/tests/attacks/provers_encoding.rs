//! Cheats of a lying prover: what it encodes, chains and declares.

use zkdv_hash::Digest;
use zkdv_protocol::cbor::{Encoder, Value};
use zkdv_protocol::cose::{self, Purpose};
use zkdv_protocol::record::{Body, CheckpointBody, Payload, RecordType, RootBody, Sampling};
use zkdv_protocol::testing::{Ending, Forge, Settings, verify_bytes, write_transcript};
use zkdv_protocol::violation::Code;

use crate::{assert_once, assert_only, lie_in, options, settings};

#[test]
fn payloads_of_a_prover_who_encodes_otherwise() {
    let body = Value::map([("update", Value::from(0_u64))]);
    let prefix = |seq: u64, prev: &Digest| {
        let mut encoder = Encoder::new();
        encoder
            .map(4)
            .unsigned(1)
            .unsigned(seq)
            .unsigned(2)
            .bytes(prev.as_bytes())
            .unsigned(3)
            .text("check")
            .unsigned(4);
        encoder.into_bytes()
    };
    let cases: Vec<(Code, Vec<u8>)> = vec![
        (Code::EncodingNotDeterministic, b"\xa1\x61a\x18\x01".to_vec()),
        (Code::EncodingNotDeterministic, b"\xa2\x61b\x01\x61a\x01".to_vec()),
        (
            Code::EncodingNotDeterministic,
            b"\xa1\x61a\xfb\x7f\xf8\0\0\0\0\0\0".to_vec(),
        ),
        (Code::EncodingNotDeterministic, b"\xa1\x61a\xf9\x7e\x01".to_vec()),
        (Code::EncodingNotDeterministic, b"\xa1\x61a\xfa\x3f\x80\0\0".to_vec()),
        (Code::EncodingNotDeterministic, b"\xa1\x61a\xc1\x01".to_vec()),
        (Code::EncodingNotDeterministic, b"\xa1\x61a\xf7".to_vec()),
        (Code::EncodingNotDeterministic, b"\xbf\x61a\x01\xff".to_vec()),
        (Code::EncodingDuplicateKey, b"\xa2\x61a\x01\x61a\x01".to_vec()),
        (Code::EncodingTrailingBytes, b"\xa1\x61a\x01\x00".to_vec()),
        (
            Code::EncodingTooDeep,
            [b"\xa1\x61a".as_slice(), &[0x81; 20], &[0x01]].concat(),
        ),
        (
            Code::EncodingTooDeep,
            [b"\xa1\x61a".as_slice(), &[0x81; 100_000], &[0x01]].concat(),
        ),
        (
            Code::RecordMalformed,
            b"\xa1\x61a\x9b\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(),
        ),
        (Code::RecordMalformed, b"\xa1\x61a\x62\xff\xff".to_vec()),
        (Code::RecordMalformed, b"\x01".to_vec()),
        (Code::BodyInvalid, body.encode()),
    ];
    for (code, encoded_body) in cases {
        let mut forge = write_transcript(&Settings {
            ending: Ending::Open,
            ..settings()
        });
        let payload = [prefix(forge.seq, &forge.prev), encoded_body].concat();
        let session = forge.session.clone();
        forge.push_payload(&payload, &session);
        let checkpoint = CheckpointBody {
            update: 0,
            files: vec![("a".to_owned(), Digest::ZERO)],
        };
        forge.push(&Body::Checkpoint(checkpoint));
        let report = verify_bytes(&forge.bytes(), &options(&forge));
        assert_once(code, &report);
        assert_eq!(
            report.violations[0].place.expect("a place").record,
            forge.records.len() as u64 - 2
        );
    }
}

#[test]
fn types_and_payloads_that_are_none() {
    for (code, type_name, extra) in [
        (Code::TypeUnknown, "chekc", false),
        (Code::RecordMalformed, "check", true),
    ] {
        let mut forge = write_transcript(&Settings {
            ending: Ending::Open,
            ..settings()
        });
        let mut encoder = Encoder::new();
        encoder
            .map(if extra { 5 } else { 4 })
            .unsigned(1)
            .unsigned(forge.seq)
            .unsigned(2)
            .bytes(forge.prev.as_bytes());
        encoder.unsigned(3).text(type_name).unsigned(4).map(0);
        if extra {
            encoder.unsigned(5).unsigned(0);
        }
        let session = forge.session.clone();
        forge.push_payload(&encoder.into_bytes(), &session);
        assert_once(code, &verify_bytes(&forge.bytes(), &options(&forge)));
    }
}

#[test]
fn chain_of_a_prover_who_replaced_a_record() {
    let forge = write_transcript(&settings());
    for index in 1..forge.records.len() - 1 {
        // The same place in the same run, signed by the same key, with another `prev`.
        let mut signer = Forge::new(1);
        let mut keys = vec![signer.session.clone()];
        for rotations in 0..forge.rotations {
            signer.rotations = rotations;
            keys.push(signer.next_session());
        }
        let frame = cose::Frame::parse(&forge.records[index]).expect("a record");
        let mut payload = frame.payload.to_vec();
        let at = payload
            .windows(3)
            .position(|window| window == [0x02, 0x58, 0x20])
            .expect("prev")
            + 3;
        payload[at] ^= 1;
        let session = keys.iter().find(|key| {
            let resealed = cose::seal(Purpose::Record, frame.payload, *key).expect("signs");
            resealed == forge.records[index]
        });
        let mut records = forge.records.clone();
        records[index] = cose::seal(Purpose::Record, &payload, session.expect("one of them signed")).expect("signs");
        let report = verify_bytes(&records.concat(), &options(&forge));
        assert_only(Code::ChainBroken, &report);
    }
}

#[test]
fn roots_of_a_prover_who_configures_otherwise() {
    assert_once(
        Code::ConfigurationInvalid,
        &lie_in(
            settings(),
            RecordType::Root,
            0,
            change!(Root, body => body.configuration.max_check_lag = 1 << 40),
        ),
    );
    for change in [
        (|body| body.configuration.replay_snapshot_interval = 0) as fn(&mut RootBody),
        |body| body.configuration.sampling = Sampling::Every(0),
        |body| body.configuration.sampling = Sampling::Probability(f64::NAN),
        |body| body.configuration.sampling = Sampling::Probability(-1.0),
        |body| body.configuration.tolerance.absolute = f64::INFINITY,
        |body| body.configuration.probe_ratio = 0.0,
        |body| body.configuration.max_in_flight = u64::MAX,
    ] {
        let report = lie_in(settings(), RecordType::Root, 0, change!(Root, body => change(body)));
        assert_once(Code::ConfigurationInvalid, &report);
    }
    assert_once(
        Code::SchemeUnsupported,
        &lie_in(
            settings(),
            RecordType::Root,
            0,
            change!(Root, body => body.schemes.tree = "zkdv-tree-2".to_owned()),
        ),
    );
}

#[test]
fn roots_of_another_protocol_version() {
    let forge = write_transcript(&settings());
    let mut changed = Forge::new(1);
    let frame = cose::Frame::parse(&forge.records[0]).expect("a record");
    let at = frame
        .payload
        .windows(8)
        .position(|window| window == b"protocol")
        .expect("the key")
        + 8;
    let mut payload = frame.payload.to_vec();
    assert_eq!(payload[at], 1);
    payload[at] = 2;
    let identity = changed.identity.clone();
    changed.push_payload(&payload, &identity);
    for record in &forge.records[1..] {
        let frame = cose::Frame::parse(record).expect("a record");
        let payload = Payload::decode(frame.payload).expect("a payload");
        let body = Body::from_item(payload.record_type().expect("a type"), payload.body).expect("a body");
        changed.push(&body);
    }
    assert_once(
        Code::ProtocolUnsupported,
        &verify_bytes(&changed.bytes(), &options(&changed)),
    );
}
