//! Memory grows with what was read, never with a number that only stands in a file.
#![allow(clippy::unwrap_used, reason = "a test fails where it can't go on")]

use peak_alloc::PeakAlloc;
use zkdv_protocol::cbor::decode;
use zkdv_protocol::cose::FRAME_START;
use zkdv_protocol::reader::RecordReader;
use zkdv_protocol::record::{Body, RecordType};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// The most bytes that were allocated beyond those at the start.
fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let result = work();
    (MEMORY.peak_usage() - before, result)
}

/// One test, because tests that run at once would count each other's memory.
#[test]
fn memory_is_bounded_by_what_was_read() {
    const MEBIBYTE: usize = 1 << 20;

    // A record that declares almost 16 MiB and ends at once.
    let torn = [&FRAME_START[..], &[0x5a, 0x00, 0xff, 0xff, 0x00], &[0; 100]].concat();
    let (bytes, records) = peak(|| RecordReader::new(torn.as_slice()).count());
    assert_eq!(records, 1);
    assert!(bytes < MEBIBYTE, "{bytes} bytes for a record of {}", torn.len());

    // Arrays and strings that declare more than there is.
    for head in [0x5b, 0x7b, 0x9b, 0xbb] {
        let mut declared = vec![head];
        declared.extend(u64::MAX.to_be_bytes());
        let (bytes, decoded) = peak(|| decode(&declared).is_ok());
        assert_eq!((bytes, decoded), (0, false));
    }

    // The scan allocates nothing, however much there is.
    let many = 4 * MEBIBYTE;
    let mut wide = vec![0x9a];
    wide.extend(u32::try_from(many).unwrap().to_be_bytes());
    wide.resize(wide.len() + many, 0xa0);
    let (bytes, decoded) = peak(|| decode(&wide).is_ok());
    assert_eq!((bytes, decoded), (0, true));

    // Bodies that are all tiny items, which would take forty times their bytes when owned.
    let name = |name: &str| [&[0x60 | u8::try_from(name.len()).unwrap()], name.as_bytes()].concat();
    let environment = [&[0xa1][..], &name("list"), &wide].concat();
    let schema = [&[0xa1][..], &name("scalars"), &wide].concat();
    let program = [&[0xa1][..], &name("platforms"), &wide].concat();
    for (record_type, body) in [
        (RecordType::Environment, environment),
        (RecordType::Schema, schema),
        (RecordType::Program, program),
    ] {
        let (bytes, refused) = peak(|| Body::from_item(record_type, decode(&body).unwrap()).is_err());
        assert!(refused);
        assert!(bytes < MEBIBYTE, "{record_type}: {bytes} bytes");
    }
}
