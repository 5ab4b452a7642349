//! Speed of commitments, each beside a yardstick measured in the same process, alternating with it.
//!
//! `cargo bench -p zkdv-hash` runs everything; words after `--` select by name. `RAYON_NUM_THREADS` sets the threads.
//! Every line gives the median time, the rate, and the median of the ratios to the yardstick.
#![allow(clippy::unwrap_used, clippy::cast_precision_loss, clippy::cast_possible_truncation)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use zkdv_hash::batch::{self, Matrix};
use zkdv_hash::commit::{self, LeafInput, Outputs};
use zkdv_hash::probe::{self, ProbedTree};
use zkdv_hash::rolling::Base;
use zkdv_hash::{Digest, Dtype, leaf};

const RATIO: f64 = 0.01;
const ROUNDS: usize = 15;

fn main() {
    println!("{} threads", rayon::current_num_threads());
    for mebibytes in [1, 40, 256] {
        run(&format!("leaf digest, {mebibytes} MiB"), || {
            let bytes = noise(mebibytes << 20);
            let digest = || leaf::digest(&bytes);
            let yardstick = || blake3::Hasher::new().update_rayon(&bytes).finalize();
            compare(bytes.len(), digest, ("blake3::Hasher::update_rayon", yardstick));
        });
    }
    for dtype in [
        Dtype::Float32,
        Dtype::Bfloat16,
        Dtype::Float16,
        Dtype::Float64,
        Dtype::Float8E4m3fn,
    ] {
        for width in [768, 100] {
            let rows = (40 << 20) / dtype.size_bytes() / width;
            let name = format!("leaf digest and probe, {dtype} ({rows}, {width})");
            run(&name, || {
                Leaves::new(dtype, &[&[rows as u64, width as u64]], 1, RATIO).compare();
            });
        }
    }
    for width in [1u64, 3, 8, 10, 16, 31] {
        let rows = 10_000_000 / width;
        let name = format!("narrow leaf digest and probe, float32 ({rows}, {width})");
        run(&name, || {
            Leaves::new(Dtype::Float32, &[&[rows, width]], 1, RATIO).compare();
        });
    }
    for ratio in [0.001, 0.1, 0.3, 1.0] {
        let name = format!("leaf digest and probe, float32 (10000, 1000), ratio {ratio}");
        run(&name, || {
            Leaves::new(Dtype::Float32, &[&[10_000, 1000]], 1, ratio).compare();
        });
    }
    let float32 = |name, shapes: &[&[u64]], times| {
        run(name, || Leaves::new(Dtype::Float32, shapes, times, RATIO).compare());
    };
    float32(
        "small perceptron, 5 leaves",
        &[&[784, 128], &[128], &[128, 10], &[10], &[]],
        1,
    );
    let block: [&[u64]; 6] = [&[512, 512], &[512], &[512, 2048], &[2048], &[2048, 512], &[512]];
    float32("transformer, 48 leaves", &block, 8);
    float32("1,000 leaves of 16 KiB and 256 B", &[&[64, 64], &[64]], 500);
    float32("10,000 leaves of 256 B and 4 B", &[&[64], &[]], 5000);
    for (rows, width, window) in [
        (32, 785, 32),
        (32, 785, 4),
        (512, 785, 32),
        (8, 129, 4),
        (64, 1024, 32),
        (1, 262_144, 32),
        (4096, 64, 32),
    ] {
        let noise: Vec<u32> = noise(rows * width * 4)
            .as_chunks()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word))
            .collect();
        // As in images of strokes: greys in the middle of rows of 28, zeros around them.
        let pixel = |(index, noise): (usize, &u32)| {
            let is_stroke = (10..18).contains(&(index % width % 28)) && noise % 3 > 0;
            if is_stroke { noise % 255 + 1 } else { 0 }
        };
        let sparse = noise.iter().enumerate().map(pixel).collect();
        for (what, words) in [("noise", noise), ("mostly zeros", sparse)] {
            batch(what, &words, rows, width, window);
        }
    }
}

fn batch(what: &str, words: &[u32], rows: usize, width: usize, window: usize) {
    let base = Base::from_root(&Digest::ZERO);
    let matrix = Matrix::new(words, rows, width).unwrap();
    let name = format!("batch commitment, {rows} x {width}, windows of {window}, {what}");
    let windows = rows * (width + 1 - window);
    run(&name, || {
        let numbers: Vec<u64> = noise(windows * 8)
            .as_chunks()
            .0
            .iter()
            .map(|number| u64::from_le_bytes(*number))
            .collect();
        let sort = || {
            let mut numbers = numbers.clone();
            numbers.sort_unstable();
            numbers
        };
        let name = "sorting as many numbers";
        measure(windows, || batch::commit(&matrix, window, &base), (name, sort));
    });
}

/// Leaves to commit together.
struct Leaves {
    ratio: f64,
    arrays: Vec<(Dtype, Vec<u64>, Vec<u8>)>,
    signs: Vec<u32>,
    length32: usize,
    length64: usize,
}

impl Leaves {
    /// Leaves of these shapes, over and over.
    fn new(dtype: Dtype, shapes: &[&[u64]], times: usize, ratio: f64) -> Self {
        let mut new = Self {
            ratio,
            arrays: Vec::new(),
            signs: Vec::new(),
            length32: 0,
            length64: 0,
        };
        for (index, shape) in shapes.iter().cycle().take(shapes.len() * times).enumerate() {
            let bytes = usize::try_from(dtype.array_bytes(shape).unwrap()).unwrap();
            let words = probe::sign_words(shape, dtype).unwrap();
            new.signs.extend(probe::signs(
                &Digest::ZERO,
                ProbedTree::Parameters,
                index as u64,
                words * 32,
            ));
            let length = probe::length(shape, dtype, ratio).unwrap();
            let total = if dtype == Dtype::Float64 {
                &mut new.length64
            } else {
                &mut new.length32
            };
            *total += length;
            // Exponents of moderate size, as weights have: subnormal numbers would be slow to add.
            let mut data = noise(bytes);
            for byte in &mut data {
                *byte = *byte & 0x8f | 0x30;
            }
            new.arrays.push((dtype, shape.to_vec(), data));
        }
        new
    }

    /// Commits with probes, beside plain digests of the same leaves.
    fn compare(&self) {
        let inputs: Vec<LeafInput<'_>> = self
            .arrays
            .iter()
            .map(|(dtype, shape, bytes)| LeafInput {
                dtype: *dtype,
                shape,
                bytes,
                due: true,
            })
            .collect();
        let mut digests = vec![[0; 32]; inputs.len()];
        let mut probe_digests = digests.clone();
        let (mut probes32, mut probes64) = (vec![0.0; self.length32], vec![0.0; self.length64]);
        let bytes = inputs.iter().map(|input| input.bytes.len()).sum();
        let work = || {
            let outputs = Outputs {
                digests: &mut digests,
                probe_digests: &mut probe_digests,
                probes32: &mut probes32,
                probes64: &mut probes64,
            };
            commit::leaves(&inputs, self.ratio, &self.signs, outputs)
        };
        compare(
            bytes,
            work,
            ("blake3 of each leaf", || {
                for input in &inputs {
                    black_box(blake3::Hasher::new().update_rayon(input.bytes).finalize());
                }
            }),
        );
    }
}

fn run(name: &str, benchmark: impl FnOnce()) {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    if words.is_empty() || words.iter().any(|word| name.contains(word.as_str())) {
        print!("{name:<68}");
        benchmark();
    }
}

fn compare<T, U>(bytes: usize, mut work: impl FnMut() -> T, (name, mut yardstick): (&str, impl FnMut() -> U)) {
    let repeats = repeats(&mut work);
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (own, other) = (time(repeats, &mut work), time(repeats, &mut yardstick));
        times.push(own.as_secs_f64());
        ratios.push(other.as_secs_f64() / own.as_secs_f64());
    }
    let fastest = bytes as f64 / times.iter().copied().fold(f64::INFINITY, f64::min) / 1e9;
    let (seconds, ratio) = (median(times), median(ratios));
    let rate = bytes as f64 / seconds / 1e9;
    println!(
        "{:>10.1} us {rate:>6.2} GB/s, fastest {fastest:.2}; {ratio:.2} of the speed of {name}",
        seconds * 1e6
    );
}

fn measure<T, U>(windows: usize, mut work: impl FnMut() -> T, (name, mut yardstick): (&str, impl FnMut() -> U)) {
    let repeats = repeats(&mut work);
    let (mut times, mut ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (own, other) = (time(repeats, &mut work), time(repeats, &mut yardstick));
        times.push(own.as_secs_f64());
        ratios.push(own.as_secs_f64() / other.as_secs_f64());
    }
    let fastest = times.iter().copied().fold(f64::INFINITY, f64::min) * 1e9 / windows as f64;
    let (seconds, ratio) = (median(times), median(ratios));
    let each = seconds * 1e9 / windows as f64;
    println!(
        "{:>10.1} us {each:>6.1} ns per window, fastest {fastest:.1}; {ratio:.2} of the time of {name}",
        seconds * 1e6
    );
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn repeats<T>(work: &mut impl FnMut() -> T) -> u32 {
    let once = time(1, work).min(time(1, work)).max(Duration::from_nanos(100));
    u32::try_from(Duration::from_millis(10).as_nanos() / once.as_nanos())
        .unwrap_or(u32::MAX)
        .max(1)
}

fn time<T>(repeats: u32, work: &mut impl FnMut() -> T) -> Duration {
    let start = Instant::now();
    for _ in 0..repeats {
        black_box(work());
    }
    start.elapsed() / repeats
}

/// Bytes without a pattern.
fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new_derive_key("zkdv benchmark noise")
        .finalize_xof()
        .fill(&mut bytes);
    bytes
}
