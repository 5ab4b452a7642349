//! Frames against an independent COSE library, and against those who would bend them.
#![allow(clippy::unwrap_used, reason = "a test fails where it can't go on")]

mod sample;

use coset::{CborSerializable, CoseSign1Builder, HeaderBuilder, TaggedCborSerializable, iana};
use ed25519_dalek::Verifier;
use sample::{digest, key, verifying_key};
use zkdv_protocol::cose::{self, FRAME_START, Frame, FrameError, Purpose};
use zkdv_protocol::key::Signer;
use zkdv_protocol::limits::MAX_RECORD_BYTES;
use zkdv_protocol::record::{Receipt, ReceiptError};

const PURPOSES: [(Purpose, &[u8]); 3] = [
    (Purpose::Record, b"zkdv 1 record"),
    (Purpose::Receipt, b"zkdv 1 receipt"),
    (Purpose::Statement, b"zkdv 1 statement"),
];

#[test]
fn an_independent_library_reads_and_verifies_what_is_sealed() {
    let signer = key(5);
    for length in [0, 1, 23, 24, 255, 256, 65_535, 65_536] {
        let payload = vec![0x5a; length];
        for (purpose, aad) in PURPOSES {
            let sealed = cose::seal(purpose, &payload, &signer).unwrap();
            let message = coset::CoseSign1::from_tagged_slice(&sealed).unwrap();
            assert_eq!(message.payload.as_deref(), Some(payload.as_slice()));
            assert_eq!(
                message.protected.header.alg,
                Some(coset::Algorithm::Assigned(iana::Algorithm::EdDSA))
            );
            assert!(message.unprotected.is_empty());
            message
                .verify_signature(aad, |signature, data| {
                    verifying_key(&signer).verify(data, &signature.try_into().unwrap())
                })
                .unwrap();
        }
    }
}

#[test]
fn an_independent_library_seals_the_same_bytes() {
    let signer = key(5);
    let payload = b"payload".to_vec();
    for (purpose, aad) in PURPOSES {
        let message = CoseSign1Builder::new()
            .protected(HeaderBuilder::new().algorithm(iana::Algorithm::EdDSA).build())
            .payload(payload.clone())
            .create_signature(aad, |data| signer.sign(data).unwrap().to_vec())
            .build();
        assert_eq!(
            message.clone().to_tagged_vec().unwrap(),
            cose::seal(purpose, &payload, &signer).unwrap()
        );
        assert_eq!(
            Frame::parse(&message.to_vec().unwrap()),
            Err(FrameError::Start),
            "the tag is required"
        );
    }
}

#[test]
fn a_frame_gives_back_what_was_sealed() {
    let signer = key(5);
    let sealed = cose::seal(Purpose::Record, b"payload", &signer).unwrap();
    let frame = Frame::parse(&sealed).unwrap();
    assert_eq!(frame.payload, b"payload");
    frame.verify_strict(Purpose::Record, &verifying_key(&signer)).unwrap();
}

#[test]
fn one_purpose_never_stands_for_another() {
    let signer = key(5);
    for (sealed_for, _) in PURPOSES {
        let sealed = cose::seal(sealed_for, b"payload", &signer).unwrap();
        for (verified_for, _) in PURPOSES {
            let verified = Frame::parse(&sealed)
                .unwrap()
                .verify_strict(verified_for, &verifying_key(&signer));
            assert_eq!(verified.is_ok(), sealed_for == verified_for);
        }
    }
}

#[test]
fn every_changed_bit_is_noticed() {
    let signer = key(5);
    let sealed = cose::seal(Purpose::Record, b"payload", &signer).unwrap();
    for place in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[place / 8] ^= 1 << (place % 8);
        let verified = Frame::parse(&changed)
            .is_ok_and(|frame| frame.verify_strict(Purpose::Record, &verifying_key(&signer)).is_ok());
        assert!(!verified, "bit {place}");
    }
}

#[test]
fn another_key_does_not_verify() {
    let sealed = cose::seal(Purpose::Record, b"payload", &key(5)).unwrap();
    assert!(
        Frame::parse(&sealed)
            .unwrap()
            .verify_strict(Purpose::Record, &verifying_key(&key(6)))
            .is_err()
    );
}

#[test]
fn a_signature_has_one_form_only() {
    // The group order, little-endian: adding it to S gives a second signature that a lenient verifier takes.
    const ORDER: [u8; 32] = [
        0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
    ];
    let signer = key(5);
    let mut sealed = cose::seal(Purpose::Record, b"payload", &signer).unwrap();
    let start = sealed.len() - 32;
    let mut carry = 0_u16;
    for (byte, order) in sealed[start..].iter_mut().zip(ORDER) {
        let sum = u16::from(*byte) + u16::from(order) + carry;
        *byte = sum.to_le_bytes()[0];
        carry = sum >> 8;
    }
    assert!(
        Frame::parse(&sealed)
            .unwrap()
            .verify_strict(Purpose::Record, &verifying_key(&signer))
            .is_err()
    );
}

#[test]
fn other_frames_are_refused_for_what_is_wrong_with_them() {
    let frame = |payload: &[u8], signature: &[u8]| [&FRAME_START, payload, signature].concat();
    let signature = [&[0x58, 0x40][..], &[0; 64]].concat();
    assert!(Frame::parse(&frame(&[0x41, 0], &signature)).is_ok());
    let refused = [
        (Vec::new(), FrameError::Start),
        (FRAME_START[..6].to_vec(), FrameError::Start),
        (frame(&[], &[]), FrameError::Payload),
        (frame(&[0x58, 0x01, 0], &signature), FrameError::Payload),
        (frame(&[0x5f, 0x41, 0, 0xff], &signature), FrameError::Payload),
        (frame(&[0x61, 0x61], &signature), FrameError::Payload),
        (frame(&[0xf6], &signature), FrameError::Payload),
        (
            frame(&[0x5b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &signature),
            FrameError::Payload,
        ),
        (frame(&[0x41, 0], &signature[..65]), FrameError::Signature),
        (
            frame(&[0x41, 0], &[&[0x58, 0x3f][..], &[0; 63]].concat()),
            FrameError::Signature,
        ),
        (
            frame(&[0x41, 0], &[&[0x59, 0x00, 0x40][..], &[0; 64]].concat()),
            FrameError::Signature,
        ),
        (
            frame(&[0x41, 0], &[&signature[..], &[0]].concat()),
            FrameError::Signature,
        ),
        (
            vec![0xd2; MAX_RECORD_BYTES + 1],
            FrameError::TooLarge {
                length: MAX_RECORD_BYTES as u64 + 1,
            },
        ),
    ];
    for (bytes, error) in refused {
        assert_eq!(Frame::parse(&bytes), Err(error));
    }
    let es256 = [&[0xd2, 0x84, 0x43, 0xa1, 0x01, 0x26, 0xa0, 0x41, 0x00][..], &signature].concat();
    let unprotected = [
        &[0xd2, 0x84, 0x43, 0xa1, 0x01, 0x27, 0xa1, 0x04, 0x40, 0x41, 0x00][..],
        &signature,
    ]
    .concat();
    assert_eq!(Frame::parse(&es256), Err(FrameError::Start));
    assert_eq!(Frame::parse(&unprotected), Err(FrameError::Start));
}

#[test]
fn receipts_open_under_the_key_that_sealed_them_only() {
    let challenger = key(9);
    let receipt = Receipt {
        root: digest("root"),
        seq: 17,
        record: digest("record"),
        randomness: [3; 32],
        time: 1_700_000_000_000,
    };
    let sealed = receipt.seal(&challenger).unwrap();
    assert_eq!(Receipt::open(&sealed, &verifying_key(&challenger)).unwrap(), receipt);
    assert!(matches!(
        Receipt::open(&sealed, &verifying_key(&key(8))),
        Err(ReceiptError::Signature(_))
    ));
    let payload = Frame::parse(&sealed).unwrap().payload;
    let as_record = cose::seal(Purpose::Record, payload, &challenger).unwrap();
    assert!(matches!(
        Receipt::open(&as_record, &verifying_key(&challenger)),
        Err(ReceiptError::Signature(_))
    ));
    let shorter = cose::seal(Purpose::Receipt, &[0xa1, 0x02, 0x00], &challenger).unwrap();
    assert!(matches!(
        Receipt::open(&shorter, &verifying_key(&challenger)),
        Err(ReceiptError::Fields)
    ));
}
