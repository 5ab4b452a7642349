//! The reader takes whole records from any stream, and says where it had to stop.
#![allow(clippy::unwrap_used, reason = "a test fails where it can't go on")]

mod sample;

use proptest::prelude::*;
use sample::{Run, closed_run, root};
use std::io::{self, Read};
use std::sync::LazyLock;
use zkdv_protocol::cose::{FRAME_START, FrameError};
use zkdv_protocol::limits::MAX_RECORD_BYTES;
use zkdv_protocol::reader::{RawRecord, ReadError, RecordReader};

static RUN: LazyLock<Run> = LazyLock::new(closed_run);

fn read(bytes: &[u8]) -> (Vec<RawRecord>, Option<ReadError>) {
    let mut error = None;
    let records = RecordReader::new(bytes)
        .filter_map(|record| record.map_err(|found| error = Some(found)).ok())
        .collect();
    (records, error)
}

/// Gives at most so many bytes at once.
struct Dribble<'a>(&'a [u8], usize);

impl Read for Dribble<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(self.1);
        self.0.read(&mut buffer[..most])
    }
}

#[test]
fn whole_records_are_read_with_their_places() {
    let (records, error) = read(&RUN.bytes);
    assert!(error.is_none());
    let joined: Vec<u8> = records.iter().flat_map(|record| record.bytes.clone()).collect();
    assert_eq!(joined, RUN.bytes);
    let mut offset = 0;
    for (number, record) in records.iter().enumerate() {
        assert_eq!((record.number, record.offset), (number as u64, offset));
        offset += record.bytes.len() as u64;
    }
}

#[test]
fn how_a_stream_is_cut_up_makes_no_difference() {
    let whole = read(&RUN.bytes).0;
    for piece in [1, 2, 7, 63, 4096] {
        let records: Vec<_> = RecordReader::new(Dribble(&RUN.bytes, piece))
            .map(Result::unwrap)
            .collect();
        assert_eq!(records, whole);
    }
}

#[test]
fn a_stream_that_ends_inside_a_record_is_torn_there() {
    let run = Run::start(root());
    let length = run.bytes.len();
    for cut in 1..length {
        match read(&run.bytes[..cut]) {
            (records, Some(ReadError::Torn { offset: 0, length })) if records.is_empty() => {
                assert_eq!(length, cut as u64);
            }
            other => panic!("cut after {cut} bytes: {other:?}"),
        }
    }
    assert!(matches!(read(&[]), (records, None) if records.is_empty()));
}

#[test]
fn bytes_that_are_no_record_are_told_from_a_torn_one() {
    let start = |rest: &[u8]| [&FRAME_START, rest].concat();
    let cases = [
        (vec![0], FrameError::Start),
        (b"{}".to_vec(), FrameError::Start),
        (
            FRAME_START[..6].iter().copied().chain([0xa1]).collect(),
            FrameError::Start,
        ),
        (start(&[0x60]), FrameError::Payload),
        (start(&[0x5f]), FrameError::Payload),
        (start(&[0x58, 0x17]), FrameError::Payload),
        (start(&[0x5a, 0, 0, 0xff, 0xff]), FrameError::Payload),
        (
            start(&[&[0x40][..], &[0x58, 0x3f], &[0; 64]].concat()),
            FrameError::Signature,
        ),
        (
            start(&[0x5a, 0x01, 0, 0, 0]),
            FrameError::TooLarge {
                length: (16 << 20) + 12 + 66,
            },
        ),
        (
            start(&[0x5b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            FrameError::TooLarge { length: u64::MAX },
        ),
    ];
    for (bytes, expected) in cases {
        match read(&[RUN.bytes.as_slice(), &bytes].concat()) {
            (records, Some(ReadError::Frame { offset, source })) => {
                assert_eq!((offset, source), (RUN.bytes.len() as u64, expected), "{bytes:02x?}");
                assert_eq!(records.len() as u64, RUN.chain.records());
            }
            other => panic!("{bytes:02x?}: {other:?}"),
        }
    }
}

#[test]
fn the_longest_record_is_read_and_no_longer_one() {
    let payload = MAX_RECORD_BYTES - 7 - 5 - 2 - 64;
    for (payload, fits) in [(payload, true), (payload + 1, false)] {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let bytes = [
            &FRAME_START[..],
            &[0x5a],
            &length,
            &vec![0; payload],
            &[0x58, 0x40],
            &[0; 64],
        ]
        .concat();
        let (records, error) = read(&bytes);
        assert_eq!((records.len() == 1, error.is_none()), (fits, fits));
    }
}

#[test]
fn an_error_of_the_stream_ends_it() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is gone"))
        }
    }
    let mut records = RecordReader::new(RUN.bytes.chain(Broken));
    let error = records.find_map(Result::err).unwrap();
    assert_eq!(
        error.to_string(),
        format!("reading stopped at byte {}: the disk is gone", RUN.bytes.len())
    );
    assert!(records.next().is_none());
}

proptest! {
    #[test]
    fn any_bytes_after_whole_records_change_nothing_about_those(
        keep in any::<prop::sample::Index>(), noise in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let keep = keep.index(RUN.bytes.len());
        let mut bytes = RUN.bytes[..keep].to_vec();
        bytes.extend(noise);
        let whole = read(&RUN.bytes).0;
        let (records, _) = read(&bytes);
        for (read, written) in records.iter().zip(&whole) {
            if written.offset + written.bytes.len() as u64 <= keep as u64 {
                prop_assert_eq!(read, written);
            }
        }
    }
}
