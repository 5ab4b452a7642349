use super::Holder;
use super::existing::Existing;
use crate::chain::ChainError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A transcript that can't be started or continued.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// The folder holds a transcript.
    #[error("{} holds a transcript already, {existing}; {}", folder.display(), existing.what_to_do())]
    Exists {
        /// The run's folder.
        folder: PathBuf,
        /// What is there.
        existing: Existing,
    },
    /// Another writer has the folder.
    #[error("{} is being written by {holder}; wait until that run is done, or choose another path", folder.display())]
    Locked {
        /// The run's folder.
        folder: PathBuf,
        /// Who has it.
        holder: Holder,
    },
    /// The folder can't be locked.
    #[error("{} can't be locked for writing: {source}", path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The path is no folder.
    #[error("{} is a file; a run is kept in a folder of its own: choose another path", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The folder can't be made or written.
    #[error("no transcript can be written in {}: {source}", path.display())]
    Folder {
        /// The run's folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Writing failed.
    #[error("writing to {} failed: {cause}; the records before are whole, and nothing more is written", path.display())]
    Write {
        /// The transcript.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// Writing failed before.
    #[error("nothing more is written to {}, because writing failed before: {cause}", path.display())]
    Failed {
        /// The transcript.
        path: PathBuf,
        /// Why.
        cause: String,
    },
    /// The folder was released.
    #[error("{} was released by this writer, and nothing more is written", path.display())]
    Released {
        /// The transcript.
        path: PathBuf,
    },
    /// This process was forked from the one that writes.
    #[error("{} is written by process {owner}, from which this one was forked; only that one may append", path.display())]
    OtherProcess {
        /// The transcript.
        path: PathBuf,
        /// The process that may append.
        owner: u32,
    },
    /// The record may not come next, or can't be signed.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The operating system gives no randomness.
    #[error("the operating system gives no randomness for a session key: {0}")]
    Randomness(#[from] getrandom::Error),
}
