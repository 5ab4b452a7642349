//! The strict codec against a general one that knows nothing of determinism, and against RFC 8949's own examples.
#![allow(clippy::unwrap_used, reason = "a test fails where it can't go on")]

use ciborium::value::Value as General;
use proptest::prelude::*;
use zkdv_protocol::cbor::{EncodingErrorKind as Kind, Item, MAX_DEPTH, Value, decode, measure};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .filter_map(|digit| digit.to_digit(16))
        .map(|digit| u8::try_from(digit).unwrap())
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

#[test]
fn shortest_examples_of_rfc_8949_are_read_and_written_back() {
    let accepted = [
        "00",
        "01",
        "0a",
        "17",
        "1818",
        "1819",
        "1864",
        "1903e8",
        "1a000f4240",
        "1b000000e8d4a51000",
        "1bffffffffffffffff",
        "3bffffffffffffffff",
        "20",
        "29",
        "3863",
        "3903e7",
        "f90000",
        "f98000",
        "f93c00",
        "fb3ff199999999999a",
        "f93e00",
        "f97bff",
        "fa47c35000",
        "fa7f7fffff",
        "fb7e37e43c8800759c",
        "f90001",
        "f90400",
        "f9c400",
        "fbc010666666666666",
        "f97c00",
        "f97e00",
        "f9fc00",
        "f4",
        "f5",
        "f6",
        "40",
        "4401020304",
        "60",
        "6161",
        "6449455446",
        "62225c",
        "62c3bc",
        "63e6b0b4",
        "64f0908591",
        "80",
        "83010203",
        "8301820203820405",
        "a0",
        "a26161016162820203",
        "826161a161626163",
        "98190102030405060708090a0b0c0d0e0f101112131415161718181819",
    ];
    for hex in accepted {
        let bytes = bytes(hex);
        let item = decode(&bytes).unwrap_or_else(|error| panic!("{hex}: {error}"));
        assert_eq!(item.to_value().unwrap().encode(), bytes, "{hex}");
    }
}

#[test]
fn each_rule_refuses_what_breaks_it() {
    let refused = [
        ("", Kind::Truncated, 0),
        ("18", Kind::Truncated, 0),
        ("82 01", Kind::Truncated, 2),
        ("a1 6161", Kind::Truncated, 3),
        ("44 010203", Kind::Truncated, 0),
        ("5b ffffffffffffffff 00", Kind::Truncated, 0),
        ("9b ffffffffffffffff 00", Kind::Truncated, 10),
        ("bb ffffffffffffffff 00 00", Kind::Truncated, 11),
        ("1800", Kind::LongInteger, 0),
        ("1817", Kind::LongInteger, 0),
        ("1900ff", Kind::LongInteger, 0),
        ("1a0000ffff", Kind::LongInteger, 0),
        ("1b00000000ffffffff", Kind::LongInteger, 0),
        ("3817", Kind::LongInteger, 0),
        ("5801 00", Kind::LongInteger, 0),
        ("7801 61", Kind::LongInteger, 0),
        ("81 9801 00", Kind::LongInteger, 1),
        ("b801 00 00", Kind::LongInteger, 0),
        ("fa3f800000", Kind::LongFloat, 0),
        ("fb3ff0000000000000", Kind::LongFloat, 0),
        ("fb47c3500000000000", Kind::LongFloat, 0),
        ("fb7ff0000000000000", Kind::LongFloat, 0),
        ("fa00000000", Kind::LongFloat, 0),
        ("f97e01", Kind::OtherNan, 0),
        ("f9fe00", Kind::OtherNan, 0),
        ("f97c01", Kind::OtherNan, 0),
        ("fa7fc00000", Kind::OtherNan, 0),
        ("fb7ff8000000000000", Kind::OtherNan, 0),
        ("5f 4101 ff", Kind::Indefinite, 0),
        ("7f 6161 ff", Kind::Indefinite, 0),
        ("9f 01 ff", Kind::Indefinite, 0),
        ("bf 01 01 ff", Kind::Indefinite, 0),
        ("ff", Kind::Undefined, 0),
        ("1c", Kind::Undefined, 0),
        ("fc", Kind::Undefined, 0),
        ("c0 00", Kind::Tag, 0),
        ("81 d2 80", Kind::Tag, 1),
        ("f7", Kind::Simple, 0),
        ("e0", Kind::Simple, 0),
        ("f8ff", Kind::Simple, 0),
        ("f814", Kind::Simple, 0),
        ("61ff", Kind::InvalidText, 0),
        ("62 c328", Kind::InvalidText, 0),
        ("a2 6162 00 6161 00", Kind::KeyOrder, 4),
        ("a2 626161 00 6162 00", Kind::KeyOrder, 5),
        ("a2 6161 00 00 00", Kind::KeyOrder, 4),
        ("a2 6161 00 6161 00", Kind::DuplicateKey, 4),
        ("a2 01 00 01 00", Kind::DuplicateKey, 3),
        ("a1 20 00", Kind::KeyType, 1),
        ("a1 4161 00", Kind::KeyType, 1),
        ("a1 80 00", Kind::KeyType, 1),
        ("a1 f4 00", Kind::KeyType, 1),
        ("00 00", Kind::TrailingBytes, 1),
        ("80 f6", Kind::TrailingBytes, 1),
    ];
    for (hex, kind, offset) in refused {
        let error = decode(&bytes(hex)).expect_err(hex);
        assert_eq!((error.kind, error.offset), (kind, offset), "{hex}");
    }
}

#[test]
fn nesting_is_limited_and_costs_no_stack() {
    let nested = |depth: usize| [vec![0x81; depth - 1], vec![0x80]].concat();
    assert!(decode(&nested(MAX_DEPTH)).is_ok());
    let error = decode(&nested(MAX_DEPTH + 1)).unwrap_err();
    assert_eq!((error.kind, error.offset), (Kind::TooDeep, MAX_DEPTH));
    assert_eq!(decode(&nested(1 << 20)).unwrap_err().kind, Kind::TooDeep);
    let maps = [[0xa1, 0x00].repeat(MAX_DEPTH), vec![0xa0]].concat();
    assert_eq!(decode(&maps).unwrap_err().kind, Kind::TooDeep);
}

#[test]
fn an_item_is_measured_without_what_follows() {
    assert_eq!(measure(&bytes("83 01 6161 a1 01 02 ff ff")).unwrap(), 7);
}

#[test]
fn views_give_what_was_written() {
    let value = Value::map([
        (
            "list",
            Value::Array(vec![1_u64.into(), Value::Array(vec![]), "text".into()]),
        ),
        ("map", Value::map([("b", true.into()), ("a", Value::Null)])),
        ("n", (-5_i64).into()),
    ]);
    let bytes = value.encode();
    let Item::Map(map) = decode(&bytes).unwrap() else {
        panic!("no map")
    };
    let keys: Vec<_> = map.iter().map(|(key, _)| key).collect();
    assert_eq!(
        keys,
        [Item::Text("n"), Item::Text("map"), Item::Text("list")],
        "shorter keys come first"
    );
    let Some((_, Item::Array(list))) = map.iter().nth(2) else {
        panic!("no list")
    };
    assert_eq!(list.iter().count(), 3);
    assert_eq!(list.iter().last(), Some(Item::Text("text")));
}

/// What RFC 8949 §4.2.1 makes of a value: an independent statement of the rules, over the general library's model.
fn deterministic(value: &General, depth: usize) -> Option<Vec<u8>> {
    fn head(major: u8, number: u64) -> Vec<u8> {
        let number = number.to_be_bytes();
        let zeros = number.iter().take_while(|&&byte| byte == 0).count();
        match 8 - zeros {
            0 => vec![major << 5],
            1 if number[7] < 24 => vec![major << 5 | number[7]],
            1 => vec![major << 5 | 0x18, number[7]],
            2 => [&[major << 5 | 0x19], &number[6..]].concat(),
            3 | 4 => [&[major << 5 | 0x1a], &number[4..]].concat(),
            _ => [&[major << 5 | 0x1b], &number[..]].concat(),
        }
    }
    if depth > MAX_DEPTH {
        return None;
    }
    Some(match value {
        General::Integer(number) => match i128::from(*number) {
            number @ 0.. => head(0, u64::try_from(number).ok()?),
            number => head(1, u64::try_from(-1 - number).ok()?),
        },
        General::Bytes(bytes) => [head(2, bytes.len() as u64), bytes.clone()].concat(),
        General::Text(text) => [head(3, text.len() as u64), text.clone().into_bytes()].concat(),
        General::Bool(false) => vec![0xf4],
        General::Bool(true) => vec![0xf5],
        General::Null => vec![0xf6],
        General::Float(number) if number.is_nan() => vec![0xf9, 0x7e, 0x00],
        General::Float(_) => {
            let mut bytes = Vec::new();
            ciborium::into_writer(value, &mut bytes).ok()?;
            bytes
        }
        General::Array(values) => {
            let mut bytes = head(4, values.len() as u64);
            for value in values {
                bytes.extend(deterministic(value, depth + 1)?);
            }
            bytes
        }
        General::Map(pairs) => {
            let mut encoded = Vec::new();
            for (key, value) in pairs {
                if !(key.is_text() || key.as_integer().is_some_and(|key| i128::from(key) >= 0)) {
                    return None;
                }
                encoded.push((deterministic(key, depth + 1)?, deterministic(value, depth + 1)?));
            }
            encoded.sort();
            if encoded.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                return None;
            }
            encoded
                .into_iter()
                .fold(head(5, pairs.len() as u64), |bytes, (key, value)| {
                    [bytes, key, value].concat()
                })
        }
        _ => return None,
    })
}

/// Whether bytes are one deterministic item, judged by decoding leniently, encoding canonically and comparing.
fn is_deterministic(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    // What the general library can't read at all ends here as well.
    let Ok(value) = ciborium::from_reader::<General, _>(&mut rest) else {
        return false;
    };
    rest.is_empty() && deterministic(&value, 1).is_some_and(|encoded| encoded == bytes)
}

fn general() -> impl Strategy<Value = General> {
    let scalar = prop_oneof![
        any::<u64>().prop_map(General::from),
        (0_u64..300).prop_map(General::from),
        any::<i64>().prop_map(General::from),
        any::<f64>().prop_map(General::Float),
        any::<f32>().prop_map(|number| General::Float(number.into())),
        (-100_i16..100).prop_map(|number| General::Float(number.into())),
        any::<bool>().prop_map(General::Bool),
        Just(General::Null),
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(General::Bytes),
        "\\PC{0,30}".prop_map(General::Text),
    ];
    scalar.prop_recursive(5, 60, 8, |inner| {
        let key = prop_oneof![
            "[a-c]{0,3}".prop_map(General::Text),
            (0_u64..40).prop_map(General::from)
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..8).prop_map(General::Array),
            proptest::collection::vec((key, inner), 0..8).prop_map(General::Map),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_deterministic_encoding_of_anything_is_accepted(value in general()) {
        if let Some(bytes) = deterministic(&value, 1) {
            prop_assert_eq!(decode(&bytes).map(|_| ()), Ok(()));
        }
    }

    #[test]
    fn a_changed_byte_is_judged_as_by_decoding_and_encoding_again(
        value in general(), place in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        let Some(mut bytes) = deterministic(&value, 1) else { return Ok(()) };
        let place = place.index(bytes.len());
        bytes[place] = byte;
        prop_assert_eq!(decode(&bytes).is_ok(), is_deterministic(&bytes), "{:02x?}", bytes);
    }

    #[test]
    fn what_a_general_library_writes_is_judged_as_by_encoding_again(value in general()) {
        let mut bytes = Vec::new();
        ciborium::into_writer(&value, &mut bytes).unwrap();
        prop_assert_eq!(decode(&bytes).is_ok(), is_deterministic(&bytes), "{:02x?}", bytes);
    }

    #[test]
    fn arbitrary_bytes_are_judged_as_by_decoding_and_encoding_again(
        bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0xa1), Just(0x82), Just(0x61), Just(0x00)], 0..24),
    ) {
        prop_assert_eq!(decode(&bytes).is_ok(), is_deterministic(&bytes), "{:02x?}", bytes);
    }

    #[test]
    fn what_is_accepted_is_written_back_byte_for_byte(value in general()) {
        let Some(bytes) = deterministic(&value, 1) else { return Ok(()) };
        if let Ok(owned) = decode(&bytes).unwrap().to_value() {
            prop_assert_eq!(owned.encode(), bytes);
        }
    }
}
