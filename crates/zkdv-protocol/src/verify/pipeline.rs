//! Verification on all cores: one thread reads and decodes, one for each core judges signatures, and the caller's runs the
//! state machine. Pieces of work keep their order, and a bound on the bytes under way bounds the memory.

use std::io::{self, Read};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crossbeam_channel::{Receiver, Sender, bounded};
use thiserror::Error;

use super::folder::{Folder, UnreadableError};
use super::frame::{Frame, Framer};
use super::intake::{Intake, Item, Pending};
use super::lookup::Lookup;
use super::options::Options;
use super::verifier::Verifier;
use crate::report::Report;

/// Records in one piece of work, at most.
const PIECE_RECORDS: usize = 32;
/// Bytes in one piece of work, unless a single record has more.
const PIECE_BYTES: u64 = 32 * 1024;
/// Pieces of work under way, for each core.
const PIECES_UNDER_WAY: usize = 4;
/// Bytes of records under way. A record of more than a piece is under way alone: decoded, it may take many times its bytes.
const BYTES_UNDER_WAY: u64 = 8 * 1024 * 1024;

/// Is told how many bytes are verified, and of how many; may stop the verification.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// Why there is no report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The transcript could not be read.
    #[error(transparent)]
    Unreadable(#[from] UnreadableError),
    /// [`Progress`] asked to stop.
    #[error("verification was stopped")]
    Stopped,
}

/// Verifies a transcript: a run's folder, or a file of records by itself.
///
/// # Errors
/// Where the file cannot be read. What is wrong with what it holds is no error, and stands in the report.
pub fn verify(path: &Path, options: &Options, progress: Progress<'_>) -> Result<Report, VerifyError> {
    let (mut folder, source) = Folder::open(path)?;
    let (records, length) = (folder.records().to_owned(), folder.length());
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    let mut total = |done| progress(done, length);
    match verify_stream(source, workers, options, &mut folder, &mut total) {
        Ok(report) => Ok(report),
        Err(Stop::Progress) => Err(VerifyError::Stopped),
        Err(Stop::Reading(source)) => Err(UnreadableError { path: records, source }.into()),
    }
}

/// Why verification ended before the stream did.
#[derive(Debug)]
enum Stop {
    Progress,
    Reading(io::Error),
}

fn verify_stream(
    source: impl Read + Send,
    workers: usize,
    options: &Options,
    lookup: &mut dyn Lookup,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Report, Stop> {
    let budget = Budget::new();
    let (work, to_judge) = bounded::<Piece>(workers * PIECES_UNDER_WAY);
    let (order, awaited) = bounded(workers * PIECES_UNDER_WAY);
    thread::scope(|scope| {
        for _ in 0..workers {
            let to_judge = to_judge.clone();
            scope.spawn(move || to_judge.iter().for_each(Piece::judge));
        }
        drop(to_judge);
        let cutter = Cutter {
            work,
            order,
            budget: &budget,
            pending: Vec::new(),
            bytes: 0,
        };
        scope.spawn(move || cutter.run(source));
        let report = conclude(&awaited, &budget, options, lookup, progress);
        // Ends the reading thread where it waits for room, and with it the others.
        budget.close();
        drop(awaited);
        report
    })
}

/// Gives the state machine what was judged, in the order of the file.
fn conclude(
    awaited: &Receiver<io::Result<Awaited>>,
    budget: &Budget,
    options: &Options,
    lookup: &mut dyn Lookup,
    progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Report, Stop> {
    let mut verifier = Verifier::new(options, lookup);
    for next in awaited {
        let Awaited { judged, cost } = next.map_err(Stop::Reading)?;
        let mut done = 0;
        for item in judged.into_iter().flatten() {
            done = item.offset + item.length;
            verifier.push(item);
        }
        budget.give_back(cost);
        if progress(done).is_break() {
            return Err(Stop::Progress);
        }
    }
    Ok(verifier.finish())
}

/// Frames that follow one another, and the way back for what they become.
struct Piece {
    pending: Vec<Pending>,
    judged: Sender<Vec<Item>>,
}

impl Piece {
    fn judge(self) {
        // Whoever waited for it may have stopped.
        let _ = self.judged.send(self.pending.into_iter().map(Pending::judge).collect());
    }
}

/// What comes next in the order of the file.
struct Awaited {
    judged: Receiver<Vec<Item>>,
    cost: u64,
}

/// Cuts a stream into pieces of work.
struct Cutter<'a> {
    work: Sender<Piece>,
    order: Sender<io::Result<Awaited>>,
    budget: &'a Budget,
    pending: Vec<Pending>,
    bytes: u64,
}

impl Cutter<'_> {
    fn run(mut self, source: impl Read) {
        let mut framer = Framer::new(source);
        let mut intake = Intake::new();
        loop {
            let flow = match framer.next_frame() {
                Ok(Some(frame)) => self.add(frame, &mut intake),
                Ok(None) => {
                    let _ = self.hand_over(self.bytes);
                    return;
                }
                Err(error) => {
                    let _ = self.order.send(Err(error));
                    return;
                }
            };
            if flow.is_break() {
                return;
            }
        }
    }

    fn add(&mut self, frame: Frame, intake: &mut Intake) -> ControlFlow<()> {
        let length = frame.length;
        if self.bytes + length > PIECE_BYTES || self.pending.len() == PIECE_RECORDS {
            self.hand_over(self.bytes)?;
        }
        if length > PIECE_BYTES {
            self.budget.await_all()?;
            self.pending.push(intake.take(frame));
            return self.hand_over(BYTES_UNDER_WAY);
        }
        self.bytes += length;
        self.pending.push(intake.take(frame));
        ControlFlow::Continue(())
    }

    fn hand_over(&mut self, cost: u64) -> ControlFlow<()> {
        let pending = std::mem::take(&mut self.pending);
        self.bytes = 0;
        if pending.is_empty() {
            return ControlFlow::Continue(());
        }
        self.budget.take(cost)?;
        let (judged, result) = bounded(1);
        let sent = self.order.send(Ok(Awaited { judged: result, cost })).is_ok()
            && self.work.send(Piece { pending, judged }).is_ok();
        if sent {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    }
}

/// Bytes that may be under way.
struct Budget {
    left: Mutex<Option<u64>>,
    changed: Condvar,
}

impl Budget {
    fn new() -> Self {
        Self {
            left: Mutex::new(Some(BYTES_UNDER_WAY)),
            changed: Condvar::new(),
        }
    }

    fn left(&self) -> MutexGuard<'_, Option<u64>> {
        // A number is whole whoever panicked.
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until that much is left. Breaks where the budget was closed.
    fn await_left(&self, bytes: u64) -> ControlFlow<(), MutexGuard<'_, Option<u64>>> {
        let is_short = |left: &mut Option<u64>| left.is_some_and(|left| left < bytes);
        let left = self
            .changed
            .wait_while(self.left(), is_short)
            .unwrap_or_else(PoisonError::into_inner);
        if left.is_some() {
            ControlFlow::Continue(left)
        } else {
            ControlFlow::Break(())
        }
    }

    fn await_all(&self) -> ControlFlow<()> {
        self.await_left(BYTES_UNDER_WAY).map_continue(drop)
    }

    fn take(&self, bytes: u64) -> ControlFlow<()> {
        let mut left = self.await_left(bytes)?;
        *left = left.map(|left| left - bytes);
        ControlFlow::Continue(())
    }

    fn give_back(&self, bytes: u64) {
        let mut left = self.left();
        *left = left.map(|left| left + bytes);
        self.changed.notify_all();
    }

    fn close(&self) {
        *self.left() = None;
        self.changed.notify_all();
    }
}
