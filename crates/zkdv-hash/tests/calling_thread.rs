//! Small work is done by whoever asks for it.
#![allow(clippy::unwrap_used, reason = "what cannot be committed to fails the test")]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rayon::ThreadPoolBuilder;
use zkdv_hash::batch::{self, Matrix};
use zkdv_hash::commit::{self, LeafInput, Outputs};
use zkdv_hash::rolling::Base;
use zkdv_hash::{Digest, Dtype};

/// Time after which work waits for the pool; it takes a few milliseconds.
const HANGING: Duration = Duration::from_secs(60);

#[test]
fn small_work_does_not_wait_for_a_busy_pool() {
    // The pool's only thread waits until the end of the test.
    ThreadPoolBuilder::new().num_threads(1).build_global().unwrap();
    let (release, released) = mpsc::channel::<()>();
    rayon::spawn(move || {
        let _ = released.recv();
    });
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        for (rows, width, window) in [(8, 129, 4), (63, 130, 32), (1, 8192, 2), (4096, 2, 1), (4096, 0, 1)] {
            let words: Vec<u32> = (0..).take(rows * width).collect();
            let matrix = Matrix::new(&words, rows, width).unwrap();
            assert!(matrix.is_small());
            batch::commit(&matrix, window, &Base::from_root(&Digest::ZERO)).unwrap();
        }
        for (count, bytes) in [(200, 4), (12, 10_000), (1, 130_000)] {
            let bytes = vec![1; bytes];
            let shape = [bytes.len() as u64];
            let input = LeafInput {
                dtype: Dtype::Uint8,
                shape: &shape,
                bytes: &bytes,
                due: true,
            };
            let inputs = vec![input; count];
            assert!(commit::is_small(&inputs));
            let (mut digests, mut probe_digests) = (vec![[0; 32]; count], vec![[0; 32]; count]);
            let outputs = Outputs {
                digests: &mut digests,
                probe_digests: &mut probe_digests,
                ..Outputs::default()
            };
            commit::leaves(&inputs, 0.01, &[], outputs).unwrap();
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(HANGING).unwrap();
    drop(release);
}

#[test]
fn large_work_is_known_as_such() {
    let words = vec![0; 3 * 4096];
    for (rows, width) in [(3, 4096), (4097, 0), (4097, 1)] {
        assert!(!Matrix::new(&words[..rows * width], rows, width).unwrap().is_small());
    }
    let bytes = vec![1; 131_072];
    let leaf = |bytes, due| LeafInput {
        dtype: Dtype::Uint8,
        shape: &[],
        bytes,
        due,
    };
    assert!(!commit::is_small(&[leaf(&bytes, true)]));
    assert!(!commit::is_small(&vec![leaf(&bytes[..4], true); 300]));
    assert!(commit::is_small(&[leaf(&bytes, false)]));
}
