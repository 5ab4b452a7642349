//! The grammar of bodies: what it lets through comes back unchanged, and each departure is named with its place.
#![allow(clippy::unwrap_used, reason = "a test fails where it can't go on")]

mod sample;

use sample::{
    closed_run, configuration, digest, environment, full_bodies, key, program, root, roots, schema, state, update,
};
use zkdv_hash::Digest;
use zkdv_protocol::cbor::{Item, Value, decode};
use zkdv_protocol::cose::{self, Purpose};
use zkdv_protocol::key::Signer;
use zkdv_protocol::limits::{MAX_LEAVES, MAX_NAME_BYTES};
use zkdv_protocol::reader::RecordReader;
use zkdv_protocol::record::{
    Body, BodyErrorKind, Commit, Configuration, Edit, Payload, PayloadError, RecordType, RootBody, Sampling, Scalar,
    StateReason, Tree,
};

#[test]
fn bodies_of_all_types_come_back_unchanged() {
    let bodies = full_bodies();
    let types: Vec<_> = bodies.iter().map(Body::record_type).collect();
    assert_eq!(types, RecordType::ALL);
    for body in bodies {
        let value = body.to_value();
        assert_eq!(Body::from_value(body.record_type(), &value).unwrap(), body);
        let payload = body.encode_payload(7, &digest("prev"));
        let read = Payload::decode(&payload).unwrap();
        assert_eq!(
            (read.seq, read.prev, read.record_type()),
            (7, digest("prev"), Some(body.record_type()))
        );
        assert_eq!(Body::from_item(body.record_type(), read.body).unwrap(), body);
    }
}

/// All values that are made from `value` by one change at one place: an entry taken out, an entry more, or another type.
fn departures(value: &Value) -> Vec<(String, Value)> {
    let mut found = vec![(" became null".to_owned(), Value::Null)];
    match value {
        Value::Map(map) => {
            for (key, inner) in map {
                let mut without = map.clone();
                without.remove(key);
                found.push((format!(" without {}", key.as_str()), Value::Map(without)));
                for (what, changed) in departures(inner) {
                    let mut with = map.clone();
                    with.insert(key.clone(), changed);
                    found.push((format!(".{}{what}", key.as_str()), Value::Map(with)));
                }
            }
            found.push((
                " with a stranger".to_owned(),
                Value::Map(map.clone()).with("stranger", Some(1_u64)),
            ));
        }
        Value::Array(values) => {
            for (index, inner) in values.iter().enumerate() {
                for (what, changed) in departures(inner) {
                    let mut with = values.clone();
                    with[index] = changed;
                    found.push((format!("[{index}]{what}"), Value::Array(with)));
                }
            }
        }
        Value::Bytes(bytes) if bytes.len() == Digest::LENGTH => {
            found.push((" cut short".to_owned(), Value::Bytes(bytes[1..].to_vec())));
        }
        Value::Text(text) => found.push((" became bytes".to_owned(), Value::Bytes(text.clone().into_bytes()))),
        Value::Unsigned(_) => found.push((" became negative".to_owned(), Value::Negative(0))),
        Value::Float(_) => found.push((" became an integer".to_owned(), Value::Unsigned(0))),
        Value::Bool(_) => found.push((" became an integer".to_owned(), Value::Unsigned(1))),
        _ => {}
    }
    found
}

#[test]
fn a_departure_from_the_grammar_is_refused_or_changes_the_body() {
    for body in full_bodies() {
        // What a prover says of its platform is open.
        if body.record_type() == RecordType::Environment {
            continue;
        }
        for (what, value) in departures(&body.to_value()) {
            // What is optional may be left out, and is then really not there; nothing is ever ignored.
            if let Ok(read) = Body::from_value(body.record_type(), &value) {
                let optional_or_open =
                    what.contains(" without ") || what.contains("scalars") || what.contains(".files with");
                assert!(optional_or_open, "{}{what} was accepted", body.record_type());
                assert_ne!(read, body, "{}{what} changed nothing", body.record_type());
                assert_eq!(read.to_value(), value, "{}{what} lost something", body.record_type());
            }
        }
    }
}

#[test]
fn errors_say_what_was_expected_where_and_what_stood_there() {
    let message = |body: &Body, change: &dyn Fn(&mut std::collections::BTreeMap<zkdv_protocol::cbor::Key, Value>)| {
        let Value::Map(mut map) = body.to_value() else {
            unreachable!()
        };
        change(&mut map);
        Body::from_value(body.record_type(), &Value::Map(map))
            .unwrap_err()
            .to_string()
    };
    let update = Body::Update(update(&configuration(), 0));
    assert_eq!(
        message(&update, &|map| drop(map.remove(&"batch".into()))),
        "body.batch: expected an entry, got none"
    );
    assert_eq!(
        message(&update, &|map| drop(
            map.insert("after".into(), Value::map([("parameters", Value::from(3_u64))]))
        )),
        "body.after.parameters: expected 32 bytes, got integer 3"
    );
    assert_eq!(
        message(&update, &|map| drop(map.insert("overlap".into(), 3_u64.into()))),
        "body.overlap: expected 0, 1 or 2, got integer 3"
    );
    assert_eq!(
        message(&state(0, StateReason::Start), &|map| drop(
            map.insert("reason".into(), "whim".into())
        )),
        "body.reason: expected one of \"start\" \"resume\" \"edit\" \"close\", got text \"whim\""
    );
    assert!(
        message(&update, &|map| drop(map.insert("stranger".into(), 3_u64.into()))).ends_with("got text \"stranger\"")
    );
    let schema = Body::Schema(schema());
    let leaf = Value::map([
        ("name", Value::from("a")),
        ("dtype", "int4".into()),
        ("shape", Value::Array(vec![])),
    ]);
    assert_eq!(
        message(&schema, &|map| drop(
            map.insert("optimizer".into(), Value::Array(vec![leaf.clone()]))
        )),
        "body.optimizer[0].dtype: expected a dtype of the format, got text \"int4\""
    );
}

#[test]
fn sizes_are_bounded() {
    let refuse = |body: Body| {
        Body::from_value(body.record_type(), &body.to_value())
            .expect_err("accepted")
            .to_string()
    };
    let accept = |body: Body| drop(Body::from_value(body.record_type(), &body.to_value()).unwrap());

    let with_name = |length: usize| {
        let mut schema = schema();
        schema.parameters[0].name = "n".repeat(length);
        Body::Schema(schema)
    };
    accept(with_name(MAX_NAME_BYTES));
    refuse(with_name(MAX_NAME_BYTES + 1));
    refuse(with_name(0));

    let with_shape = |shape: &[u64]| {
        let mut schema = schema();
        schema.parameters[0].shape = shape.to_vec();
        schema.parameters[0].sharding = None;
        Body::Schema(schema)
    };
    accept(with_shape(&[1; 32]));
    refuse(with_shape(&[1; 33]));
    accept(with_shape(&[u64::MAX / 2]));
    refuse(with_shape(&[1 << 32, 1 << 32]));
    refuse(with_shape(&[0, 1 << 32, 1 << 32]));
    // Together with the other leaf of 128 elements.
    refuse(with_shape(&[u64::MAX - 127]));

    let with_shards = |shape: &[u64], extents: &[u64]| {
        let mut schema = schema();
        schema.parameters[0].shape = shape.to_vec();
        schema.parameters[0].sharding = Some(extents.to_vec());
        Body::Schema(schema)
    };
    accept(with_shards(&[65_536, 2], &[1, 2]));
    accept(with_shards(&[u64::MAX / 2], &[u64::MAX / 3]));
    for (shape, extents) in [
        (&[65_537, 2][..], &[1, 2][..]),
        (&[u64::MAX / 2], &[1]),
        (&[4, 4], &[4, 4]),
        (&[4, 4], &[5, 2]),
        (&[4, 4], &[0, 2]),
        (&[4, 0], &[2, 0]),
        (&[4, 4], &[2]),
        (&[4, 4], &[]),
        (&[], &[]),
    ] {
        assert!(refuse(with_shards(shape, extents)).contains("cannot lie in shards"));
    }
    refuse(with_shards(&[4; 33], &[2; 33]));

    let with_leaves = |count: usize| {
        let mut schema = schema();
        schema.optimizer = vec![schema.optimizer[0].clone(); count];
        Body::Schema(schema)
    };
    accept(with_leaves(MAX_LEAVES));
    refuse(with_leaves(MAX_LEAVES + 1));

    let with_aliases = |count: usize| {
        let mut schema = schema();
        schema.parameters[0].aliases = vec!["a".to_owned(); count - 1];
        schema.optimizer[0].aliases = vec!["a".to_owned()];
        Body::Schema(schema)
    };
    accept(with_aliases(MAX_LEAVES));
    refuse(with_aliases(MAX_LEAVES + 1));

    let with_scalar = |length: usize| {
        let mut update = update(&configuration(), 0);
        update.scalars = vec![("k".to_owned(), Scalar::Bytes(vec![0; length]))];
        Body::Update(update)
    };
    accept(with_scalar(256 - 1 - 2 - 2));
    assert!(refuse(with_scalar(256 - 1 - 2 - 1)).contains("256 bytes"));

    let with_edit = |length: usize| {
        let mut update = update(&configuration(), 0);
        update.edits = vec![Edit {
            tree: Tree::Parameters,
            leaf: 0,
            digest: digest("x"),
            value: Some(vec![0; length]),
        }];
        Body::Update(update)
    };
    accept(with_edit(64));
    refuse(with_edit(65));

    let with_values = |count: usize| {
        let Body::Environment(mut body) = environment() else {
            unreachable!()
        };
        body.entries.clear();
        body.entries
            .insert("list".into(), Value::Array(vec![true.into(); count]));
        Body::Environment(body)
    };
    accept(with_values(MAX_LEAVES - 2));
    refuse(with_values(MAX_LEAVES - 1));
}

#[test]
fn configurations_out_of_range_are_read_and_not_valid() {
    type Change = fn(&mut RootBody);
    let changes: [(&str, Change); 16] = [
        ("sampling", |root| {
            root.configuration.sampling = Sampling::Probability(1.5);
        }),
        ("sampling", |root| {
            root.configuration.sampling = Sampling::Probability(-0.1);
        }),
        ("sampling", |root| {
            root.configuration.sampling = Sampling::Probability(f64::NAN);
        }),
        ("sampling", |root| {
            root.configuration.sampling = Sampling::Every(0);
        }),
        ("tolerance.absolute", |root| {
            root.configuration.tolerance.absolute = -1.0;
        }),
        ("tolerance.relative", |root| {
            root.configuration.tolerance.relative = f64::INFINITY;
        }),
        ("replay-snapshot-interval", |root| {
            root.configuration.replay_snapshot_interval = 0;
        }),
        ("replay-snapshot-interval", |root| {
            root.configuration.replay_snapshot_interval = 65_537;
        }),
        ("max-in-flight", |root| {
            root.configuration.max_in_flight = 0;
        }),
        ("max-in-flight", |root| {
            root.configuration.max_in_flight = 1025;
        }),
        ("max-check-lag", |root| {
            root.configuration.max_check_lag = 9;
        }),
        ("rolling-window", |root| {
            root.configuration.rolling_window = 0;
        }),
        ("probe-ratio", |root| {
            root.configuration.probe_ratio = 0.0;
        }),
        ("probe-ratio", |root| {
            root.configuration.probe_ratio = 1.1;
        }),
        ("probe-ratio", |root| {
            root.configuration.probe_ratio = f64::NAN;
        }),
        ("tolerance.absolute", |root| {
            root.configuration.tolerance.absolute = f64::NAN;
        }),
    ];
    for (place, change) in changes {
        let mut root = root();
        root.validate().unwrap();
        change(&mut root);
        let read = RootBody::from_value(&Body::Root(Box::new(root)).to_value()).unwrap();
        let error = read.validate().unwrap_err();
        assert_eq!(error.kind, BodyErrorKind::Configuration);
        assert_eq!(error.place, format!("body.configuration.{place}"));
    }
}

#[test]
fn other_protocols_and_schemes_are_told_apart() {
    let value = Body::Root(Box::new(root())).to_value().with("protocol", Some(2_u64));
    assert_eq!(RootBody::from_value(&value).unwrap_err().kind, BodyErrorKind::Protocol);
    let mut other = root();
    other.schemes.probe = "zkdv-probe-2".to_owned();
    let error = other.validate().unwrap_err();
    assert_eq!(
        (error.kind, error.place.as_str()),
        (BodyErrorKind::Scheme, "body.schemes.probe")
    );
}

#[test]
fn a_challenger_has_a_key_exactly_where_it_gives_receipts() {
    let mut named = root();
    named.challenger.name = "remote".to_owned();
    assert!(RootBody::from_value(&Body::Root(Box::new(named.clone())).to_value()).is_err());
    named.challenger.key = Some(key(9).public_key());
    RootBody::from_value(&Body::Root(Box::new(named.clone())).to_value())
        .unwrap()
        .validate()
        .unwrap();
    // A point of small order: any signature would verify under it.
    named.challenger.key = Some(zkdv_protocol::key::PublicKey::from_bytes({
        let mut identity = [0; 32];
        identity[0] = 1;
        identity
    }));
    assert_eq!(named.validate().unwrap_err().kind, BodyErrorKind::Configuration);
}

#[test]
fn the_check_lag_follows_from_interval_and_flight() {
    assert_eq!(Configuration::check_lag(4, 2), configuration().max_check_lag);
    assert_eq!(Configuration::check_lag(u64::MAX, u64::MAX), u64::MAX);
}

#[test]
fn payloads_have_exactly_four_fields() {
    let good = program().encode_payload(3, &digest("prev"));
    assert!(Payload::decode(&good).is_ok());
    let mut trailing = good.clone();
    trailing.push(0);
    assert!(matches!(Payload::decode(&trailing), Err(PayloadError::Encoding(_))));
    for bytes in [vec![0xa0], vec![0x80], vec![0xa4, 1, 0, 2, 0x40, 3, 0x60, 4, 0xa0]] {
        assert!(decode(&bytes).is_ok());
        assert!(
            matches!(Payload::decode(&bytes), Err(PayloadError::Fields { .. })),
            "{bytes:02x?}"
        );
    }
}

#[test]
fn an_unchecked_update_is_small_on_disk() {
    const UNCHECKED_BYTES: usize = 420;
    const KEY_CHANGE_BYTES: usize = 480;
    // A learning rate travels with it, as float32 numbers do in CBOR.
    let scalars = vec![("learning_rate".to_owned(), Scalar::Float(f64::from(3.1e-4_f32)))];
    for commit in [Commit::Parameters, Commit::Every] {
        let configuration = Configuration {
            replay_snapshot_interval: 12,
            commit,
            ..configuration()
        };
        for index in [0, 10, 11, 999_999, 1_199_999] {
            let key_changes = configuration.is_snapshot_point(index);
            let mut update = update(&configuration, index);
            update.scalars.clone_from(&scalars);
            update.next_key = key_changes.then(|| key(3).public_key());
            let payload = Body::Update(update).encode_payload(2 * index + 4, &digest("prev"));
            let length = cose::seal(Purpose::Record, &payload, &key(2)).unwrap().len();
            println!("update {index} with commit `{commit}` takes {length} bytes");
            // With commit `every`, two more roots are 95 bytes more.
            let small = !key_changes && commit == Commit::Parameters;
            let limit = if small { UNCHECKED_BYTES } else { KEY_CHANGE_BYTES };
            assert!(length <= limit, "update {index}: {length} bytes");
        }
    }
}

#[test]
fn all_records_of_a_run_are_read_back() {
    let run = closed_run();
    let mut prev = Digest::ZERO;
    let mut types = Vec::new();
    for (index, record) in RecordReader::new(run.bytes.as_slice()).enumerate() {
        let record = record.unwrap();
        let payload = Payload::decode(record.frame().unwrap().payload).unwrap();
        assert_eq!(
            (payload.seq, payload.prev, record.number),
            (index as u64, prev, index as u64)
        );
        let record_type = payload.record_type().unwrap();
        Body::from_item(record_type, payload.body).unwrap();
        types.push(record_type);
        prev = record.digest();
    }
    assert_eq!(prev, run.chain.head());
    assert_eq!(types.len() as u64, run.chain.records());
    assert_eq!(
        types
            .iter()
            .filter(|&&record_type| record_type == RecordType::Check)
            .count(),
        3
    );
    assert_eq!(types.last(), Some(&RecordType::Close));
}

#[test]
fn roots_are_due_as_the_configuration_says() {
    let configuration = configuration();
    assert_eq!(update(&configuration, 2).after.present(), [true, true, false, false]);
    assert_eq!(update(&configuration, 3).after.present(), [true; 4]);
    let every = Configuration {
        commit: zkdv_protocol::record::Commit::Every,
        ..configuration
    };
    assert_eq!(update(&every, 2).after, roots(3));
}

#[test]
fn names_in_maps_are_bounded_like_all_names() {
    let body = |key: &str| {
        Value::map([
            ("update", Value::from(1_u64)),
            (
                "files",
                Value::map([(key, Value::from(digest("f").as_bytes().as_slice()))]),
            ),
        ])
    };
    assert!(Body::from_value(RecordType::Checkpoint, &body(&"k".repeat(MAX_NAME_BYTES))).is_ok());
    for key in [String::new(), "k".repeat(MAX_NAME_BYTES + 1)] {
        assert!(Body::from_value(RecordType::Checkpoint, &body(&key)).is_err());
    }
    let integer_key = [
        0xa2, 0x65, b'f', b'i', b'l', b'e', b's', 0xa1, 0x01, 0x40, 0x66, b'u', b'p', b'd', b'a', b't', b'e', 0x01,
    ];
    let item = decode(&integer_key).unwrap();
    assert!(matches!(item, Item::Map(_)));
    assert!(Body::from_item(RecordType::Checkpoint, item).is_err());
}
