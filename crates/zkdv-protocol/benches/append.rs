//! What an update record costs the writer, beside the two things that it can't do without: a signature and a write.
//!
//! `cargo bench -p zkdv-protocol --bench append` writes below the system's temporary folder; `TMPDIR` names another disk.

#![allow(clippy::unwrap_used, reason = "a benchmark stops where it can't go on")]

#[path = "../tests/sample/mod.rs"]
mod sample;

use sample::{configuration, environment, key, program, root, root_without_keys, schema, state, update};
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};
use zkdv_protocol::cbor;
use zkdv_protocol::file::TranscriptFile;
use zkdv_protocol::key::Signer;
use zkdv_protocol::record::{Body, Durability, Payload, RecordType, Sampling, StateReason};

const ROUNDS: usize = 15;
/// Updates in one measurement.
const UPDATES: u32 = 2000;
/// Fewer, where each of them waits for the disk.
const FORCED_UPDATES: u32 = 100;

fn main() {
    let configuration = configuration();
    let payload = Body::Update(update(&configuration, 1_000_000)).encode_payload(2_000_000, &sample::digest("prev"));
    println!("an update's payload has {} bytes", payload.len());

    compare(
        "scan and grammar",
        || repeat(UPDATES, || black_box(read(&payload))),
        "scan",
        || repeat(UPDATES, || black_box(cbor::decode(&payload).is_ok())),
    );

    let folder = tempfile::tempdir().unwrap();
    let signer = key(2);
    let record = vec![0; payload.len() + 76];
    for (durability, updates) in [
        (Durability::Interval, UPDATES),
        (Durability::Close, UPDATES),
        (Durability::Record, FORCED_UPDATES),
    ] {
        let mut plain = File::create(folder.path().join("plain")).unwrap();
        let mut file = ready(&folder.path().join(durability.as_str()), durability);
        let append = || {
            let mut index = file.chain().counts().updates;
            repeat(updates, || {
                // Every fourth makes a key, and names it.
                file.append(Body::Update(update(&configuration, index))).unwrap();
                index += 1;
            })
        };
        let force = durability == Durability::Record;
        let floor = || {
            repeat(updates, || {
                black_box(signer.sign(&payload).unwrap());
                plain.write_all(&record).unwrap();
                if force {
                    plain.sync_data().unwrap();
                }
            })
        };
        let parts = if force {
            "a signature, a write, a sync"
        } else {
            "a signature, a write"
        };
        compare(&format!("append, durability `{durability}`"), append, parts, floor);
    }
}

fn read(payload: &[u8]) -> Body {
    Body::from_item(RecordType::Update, Payload::decode(payload).unwrap().body).unwrap()
}

fn ready(folder: &std::path::Path, durability: Durability) -> TranscriptFile {
    let mut root = root();
    root.configuration.durability = durability;
    root.configuration.sampling = Sampling::Probability(0.0);
    let mut file = TranscriptFile::create(folder, &root_without_keys(root), &key(1)).unwrap();
    for body in [
        environment(),
        Body::Schema(schema()),
        program(),
        state(0, StateReason::Start),
    ] {
        file.append(body).unwrap();
    }
    file
}

/// The time that one of so many takes.
fn repeat<T>(times: u32, mut work: impl FnMut() -> T) -> Duration {
    let start = Instant::now();
    for _ in 0..times {
        black_box(work());
    }
    start.elapsed() / times
}

/// Measures in turn, so that whatever else the machine does falls on both.
fn compare(what: &str, mut work: impl FnMut() -> Duration, yardstick: &str, mut reference: impl FnMut() -> Duration) {
    let rounds: Vec<_> = (0..ROUNDS)
        .map(|_| (work().as_secs_f64(), reference().as_secs_f64()))
        .collect();
    let time = median(rounds.iter().map(|(time, _)| *time));
    let ratio = median(rounds.iter().map(|(time, reference)| time / reference));
    println!(
        "{what:<32} {:>7.1} µs {:>9.0} a second, {ratio:.2} times {yardstick}",
        time * 1e6,
        1.0 / time
    );
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
