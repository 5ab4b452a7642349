use std::fs::File;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long the background waits before it forces new records to disk. Forcing itself may take as long again before they are
/// more than a second behind.
const SYNC_DELAY: Duration = Duration::from_millis(500);

/// A file that only grows by whole records, and what is known of its being on disk.
#[derive(Debug)]
pub(super) struct Disk {
    shared: Arc<Shared>,
    background: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    file: File,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    written: u64,
    durable: u64,
    failure: Option<String>,
    stopping: bool,
}

impl Disk {
    /// `file` is open for appending, and empty. With `background`, a thread forces it to disk.
    pub(super) fn new(file: File, background: bool) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            file,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let background = background
            .then(|| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name("zkdv-sync".to_owned())
                    .spawn(move || shared.sync_in_background())
            })
            .transpose()?;
        Ok(Self { shared, background })
    }

    /// Appends a record with one write. Where that fails, the file is cut back to where it was.
    pub(super) fn append(&self, record: &[u8]) -> Result<(), String> {
        let mut file = &self.shared.file;
        let before = self.shared.lock().written;
        if let Err(error) = file.write_all(record) {
            return Err(match file.set_len(before) {
                Ok(()) => error.to_string(),
                Err(uncut) => {
                    format!(
                        "{error} (and a part of the last record may be left behind, for cutting it off failed: {uncut})"
                    )
                }
            });
        }
        let mut state = self.shared.lock();
        state.written = before + record.len() as u64;
        if state.durable == before {
            self.shared.changed.notify_all();
        }
        Ok(())
    }

    /// Forces everything that was appended to disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.shared.sync()
    }

    /// What went wrong in the background.
    pub(super) fn failure(&self) -> Option<String> {
        self.shared.lock().failure.clone()
    }

    /// How many bytes were appended, and how many of them were forced to disk.
    pub(super) fn length(&self) -> (u64, u64) {
        let state = self.shared.lock();
        (state.written, state.durable)
    }

    /// Ends the background. What it has not forced to disk stays the system's to write.
    pub(super) fn stop(&mut self) {
        if let Some(background) = self.background.take() {
            self.shared.lock().stopping = true;
            self.shared.changed.notify_all();
            // It ends by returning, whatever the disk does.
            let _ = background.join();
        }
    }

    /// Leaves the background to the process that this one was forked from.
    pub(super) fn forget(&mut self) {
        self.background = None;
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock; were it so, the state would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sync(&self) -> io::Result<()> {
        let written = self.lock().written;
        let synced = self.file.sync_data();
        let mut state = self.lock();
        match &synced {
            Ok(()) => state.durable = state.durable.max(written),
            // After a failure the system may have dropped what it could not write: trying again would prove nothing.
            Err(error) => state.failure = Some(error.to_string()),
        }
        synced
    }

    fn sync_in_background(&self) {
        loop {
            let state = self.lock();
            let idle = |state: &mut State| !state.stopping && state.durable == state.written;
            let state = self
                .changed
                .wait_while(state, idle)
                .unwrap_or_else(PoisonError::into_inner);
            let waiting = |state: &mut State| !state.stopping;
            let (state, _) = self
                .changed
                .wait_timeout_while(state, SYNC_DELAY, waiting)
                .unwrap_or_else(PoisonError::into_inner);
            if state.stopping {
                return;
            }
            drop(state);
            if self.sync().is_err() {
                return;
            }
        }
    }
}
