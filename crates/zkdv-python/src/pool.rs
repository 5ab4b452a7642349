//! The threads that hash: one pool for the whole process, whoever calls.
//!
//! XLA's worker threads, Python threads and the frontends' own threads all hand their work to this pool and wait, so that
//! no more threads hash than there are processors, and nothing in the pool ever waits for its callers. It has as many
//! threads as the process may use processors, or as `RAYON_NUM_THREADS` says.

use std::process;
use std::sync::OnceLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::floats;

/// A pool belongs to the process that made it: in a forked child its threads are gone, and the child makes its own.
struct Generation {
    process: u32,
    pool: ThreadPool,
    next: OnceLock<Box<Generation>>,
}

static FIRST: OnceLock<Box<Generation>> = OnceLock::new();

/// Runs `work` in the pool and waits for it. Must not be called with the GIL held where `work` takes long.
pub(crate) fn run<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    match pool() {
        Some(pool) => pool.install(work),
        // No thread could be started; the caller's own does the work.
        None => floats::with_default_environment(work),
    }
}

/// Runs `work` in the pool where it is large, else in the calling thread, which then must be enough for it.
pub(crate) fn run_if<T: Send>(large: bool, work: impl FnOnce() -> T + Send) -> T {
    if large {
        run(work)
    } else {
        floats::with_default_environment(work)
    }
}

/// Whether the pool has more than one thread, so that it can be faster than its caller.
pub(crate) fn is_parallel() -> bool {
    pool().is_some_and(|pool| pool.current_num_threads() > 1)
}

fn pool() -> Option<&'static ThreadPool> {
    let process = process::id();
    let mut slot = &FIRST;
    loop {
        let generation = if let Some(generation) = slot.get() {
            generation
        } else {
            // Built outside of the cell, so that a fork in between finds it unlocked.
            let pool = ThreadPoolBuilder::new()
                .thread_name(|index| format!("zkdv-hash-{index}"))
                .start_handler(|_| floats::set_default_environment())
                .build()
                .ok()?;
            slot.get_or_init(|| {
                Box::new(Generation {
                    process,
                    pool,
                    next: OnceLock::new(),
                })
            })
        };
        if generation.process == process {
            return Some(&generation.pool);
        }
        slot = &generation.next;
    }
}
