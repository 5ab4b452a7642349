use super::FileError;
use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

/// The name of the lock file in a run's folder.
const LOCK_FILE: &str = ".lock";

/// The right to write in a folder, until it is dropped.
///
/// The lock is the operating system's, on a file that stays: it ends with the process, however that ends. The file's content
/// only says who has it.
#[derive(Debug)]
pub(super) struct FolderLock {
    file: Option<File>,
}

impl FolderLock {
    pub(super) fn acquire(folder: &Path) -> Result<Self, FileError> {
        let path = folder.join(LOCK_FILE);
        let failed = |source: io::Error| FileError::Lock {
            path: path.clone(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(FileError::Locked {
                    folder: folder.to_owned(),
                    holder: Holder::read(&mut file),
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let lock = Self { file: Some(file) };
        lock.write(&Holder::current()).map_err(failed)?;
        Ok(lock)
    }

    fn write(&self, holder: &Holder) -> io::Result<()> {
        let Some(mut file) = self.file.as_ref() else {
            return Ok(());
        };
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("{holder}\n").as_bytes())
    }

    /// Leaves the lock to the process that this one was forked from: closing the file here does not end it, unlocking would.
    pub(super) fn forget(mut self) {
        self.file = None;
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // The name of a machine has no place in a folder that is sent to others.
            let _ = file.set_len(0);
            let _ = file.unlock();
        }
    }
}

/// Who writes a transcript, as the lock file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder(String);

impl Holder {
    fn current() -> Self {
        Self(format!(
            "process {} on {}",
            std::process::id(),
            gethostname::gethostname().display()
        ))
    }

    fn read(file: &mut File) -> Self {
        const LONGEST_BYTES: u64 = 512;
        let mut text = Vec::new();
        let _ = file.take(LONGEST_BYTES).read_to_end(&mut text);
        let text: String = String::from_utf8_lossy(&text)
            .trim()
            .chars()
            .filter(|letter| !letter.is_control())
            .collect();
        Self(if text.is_empty() {
            "another process".to_owned()
        } else {
            text
        })
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}
