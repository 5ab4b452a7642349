//! What verification takes: update records a second, against bare signature verification on as many threads; whether time is
//! linear in the records; and the peak of memory.
//!
//! `cargo bench -p zkdv-protocol --bench verify` takes a few minutes and 500 MB of disk; `-- 10000 100000` chooses other
//! numbers of update records. Each number is verified in a process of its own, for the sake of its peak of memory.

#![allow(clippy::unwrap_used, reason = "a benchmark stops where it can't go on")]

use std::fs::File;
use std::io::BufWriter;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use zkdv_protocol::cose::{Frame, Purpose};
use zkdv_protocol::key::{PublicKey, Signer};
use zkdv_protocol::record::Sampling;
use zkdv_protocol::report::Outcome;
use zkdv_protocol::testing::{Settings, TestKey, stream_transcript};
use zkdv_protocol::verify::{Options, verify};

const DEFAULT_UPDATES: [u64; 3] = [10_000, 100_000, 1_000_000];
const ROUNDS: usize = 5;
/// The first argument of a process that verifies one file.
const ONE_FILE: &str = "--one-file";

fn main() {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    if let [flag, path] = &arguments[..]
        && flag == ONE_FILE
    {
        return verify_one(Path::new(path));
    }
    let chosen: Vec<u64> = arguments.iter().map(|argument| argument.parse().unwrap()).collect();
    let updates = if chosen.is_empty() {
        DEFAULT_UPDATES.to_vec()
    } else {
        chosen
    };
    let threads = thread::available_parallelism().unwrap();
    println!("{threads} threads; medians of {ROUNDS} rounds, verification and bare signatures in turn\n");
    println!(
        "{:>10} {:>10} {:>10} {:>10} {:>10} {:>12} {:>10} {:>10}",
        "updates", "records", "bytes", "seconds", "updates/s", "cpu us/update", "of bare", "peak MiB"
    );
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for updates in updates {
        measure(updates, &write(folder.path(), updates));
    }
}

fn write(folder: &Path, updates: u64) -> PathBuf {
    let path = folder.join("records.cborl");
    let settings = Settings {
        updates,
        sampling: Sampling::Probability(0.02),
        interval: 32,
        max_in_flight: 8,
        ..Settings::default()
    };
    stream_transcript(&settings, BufWriter::new(File::create(&path).unwrap())).unwrap();
    path
}

fn measure(updates: u64, path: &Path) {
    let mut rounds: Vec<(f64, f64, f64, u64, u64)> = (0..ROUNDS)
        .map(|_| {
            let output = Command::new(std::env::current_exe().unwrap())
                .arg(ONE_FILE)
                .arg(path)
                .output()
                .unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).unwrap();
            let mut numbers = text.split_whitespace();
            let mut next = || numbers.next().unwrap().parse::<f64>().unwrap();
            let (seconds, cpu, records, peak) = (next(), next(), next(), next());
            let bare = bare_signatures(records).as_secs_f64();
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole numbers")]
            (seconds, bare / seconds, cpu, records as u64, peak as u64)
        })
        .collect();
    rounds.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (seconds, _, _, records, peak) = rounds[ROUNDS / 2];
    rounds.sort_by(|a, b| a.1.total_cmp(&b.1));
    let ratio = rounds[ROUNDS / 2].1;
    rounds.sort_by(|a, b| a.2.total_cmp(&b.2));
    let cpu = rounds[ROUNDS / 2].2;
    let bytes = path.metadata().unwrap().len();
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let (rate, cpu, peak) = (
        updates as f64 / seconds,
        cpu * 1e6 / updates as f64,
        peak as f64 / 1024.0,
    );
    println!(
        "{updates:>10} {records:>10} {bytes:>10} {seconds:>10.3} {rate:>10.0} {cpu:>13.1} {ratio:>10.2} {peak:>10.1}"
    );
}

/// Verifies one file, and prints seconds, seconds of CPU time, records and the peak of memory in KiB.
fn verify_one(path: &Path) {
    let start = Instant::now();
    let report = verify(path, &Options::default(), &mut |_, _| ControlFlow::Continue(())).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(report.verdict, Outcome::Passed, "{:?}", report.violations);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    println!(
        "{seconds} {} {} {}",
        cpu_seconds(),
        report.records,
        peak.trim().trim_end_matches(" kB")
    );
}

/// CPU time of this process: clock ticks of which Linux counts 100 a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name of the command, in parentheses, may hold spaces.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let (user, system): (f64, f64) = (fields[11].parse().unwrap(), fields[12].parse().unwrap());
    (user + system) / 100.0
}

/// How long that many signatures of the kind take by themselves, on all threads, scaled up from some.
fn bare_signatures(records: f64) -> Duration {
    const SAMPLE: u32 = 20_000;
    let threads = u32::try_from(thread::available_parallelism().unwrap().get()).unwrap();
    let key = TestKey::new("session", 1);
    let record = zkdv_protocol::cose::seal(Purpose::Record, &[7; 280], &key).unwrap();
    let frame = Frame::parse(&record).unwrap();
    let public = PublicKey::from_bytes(*key.public_key().as_bytes())
        .to_verifying_key()
        .unwrap();
    let start = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for _ in 0..SAMPLE / threads {
                    frame.verify_strict(Purpose::Record, &public).unwrap();
                }
            });
        }
    });
    start.elapsed().mul_f64(records / f64::from(SAMPLE / threads * threads))
}
