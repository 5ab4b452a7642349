//! The transcript in its folder: one writer at a time, one write for each record, nothing ever overwritten.

mod disk;
mod error;
mod existing;
mod lock;

pub use error::FileError;
pub use existing::Existing;
pub use lock::Holder;

use crate::cbor::Value;
use crate::chain::{Chain, ChainError, Sealed};
use crate::key::{PublicKey, SessionKey, Signer};
use crate::record::{Body, BodyError, Durability, RecordType, RootBody};
use disk::Disk;
use lock::FolderLock;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;
use zkdv_hash::Digest;

/// The name of the transcript in a run's folder.
pub const RECORDS_FILE: &str = "records.cborl";

/// A transcript that is being written.
///
/// Dropping it leaves the transcript open on disk, as [`TranscriptFile::release`] does.
#[derive(Debug)]
pub struct TranscriptFile {
    path: PathBuf,
    chain: Chain,
    durability: Durability,
    disk: Disk,
    lock: Option<FolderLock>,
    set_aside: Option<PathBuf>,
    /// What went wrong. Nothing is written after that.
    failure: Option<String>,
    /// The process that made this: in another one, which was forked from it, it is inert.
    process: u32,
}

impl TranscriptFile {
    /// Starts a transcript in `folder`, which is made where it is missing, and writes its root.
    ///
    /// `root` is the body of the root without its two keys: `identity` is that of the signer, and `session-key` is drawn
    /// here. A transcript of a run that ended before anything of it was recorded does not stand in the way: see
    /// [`TranscriptFile::set_aside`].
    ///
    /// # Errors
    /// Where the body is wrong, where the folder holds a transcript or can't be written, and where another writer has it.
    pub fn create(folder: &Path, root: &Value, identity: &dyn Signer) -> Result<Self, FileError> {
        let session = random_key()?;
        let root = root_body(root, identity.public_key(), session.public_key()).map_err(|source| ChainError::Body {
            record_type: RecordType::Root,
            source,
        })?;
        let durability = root.configuration.durability;
        create_folder(folder)?;
        let lock = FolderLock::acquire(folder)?;
        let path = folder.join(RECORDS_FILE);
        let (file, set_aside) = create_records(folder, &path)?;
        let written = Chain::start(root, identity, session)
            .map_err(FileError::from)
            .and_then(|(chain, root)| {
                let disk =
                    Disk::new(file, durability == Durability::Interval).map_err(|error| write_error(&path, &error))?;
                disk.append(root.bytes()).map_err(|cause| FileError::Write {
                    path: path.clone(),
                    cause,
                })?;
                disk.sync()
                    .and_then(|()| sync_folder(folder))
                    .map_err(|error| write_error(&path, &error))?;
                Ok((chain, disk))
            });
        let (chain, disk) = written.inspect_err(|_| {
            // A transcript without a root is none: nothing is left that would stand in the way of another attempt.
            let _ = fs::remove_file(&path);
        })?;
        Ok(Self {
            path,
            chain,
            durability,
            disk,
            lock: Some(lock),
            set_aside,
            failure: None,
            process: std::process::id(),
        })
    }

    /// Appends a record. See [`TranscriptFile::append`].
    ///
    /// # Errors
    /// Also where the grammar does not allow the body.
    pub fn append_value(&mut self, record_type: RecordType, body: &Value) -> Result<Appended, FileError> {
        let body = Body::from_value(record_type, body).map_err(|source| ChainError::Body { record_type, source })?;
        self.append(body)
    }

    /// Checks, signs and appends a record: one write, on disk as the run's durability says. A `close` releases the folder.
    ///
    /// # Errors
    /// Where the record may not come next: nothing is written, and another may be tried. Where writing fails: the file is cut
    /// back to its last whole record, and nothing can be appended any more.
    pub fn append(&mut self, body: Body) -> Result<Appended, FileError> {
        self.usable()?;
        let next_key = if self.chain.next_key_is_due(&body) {
            Some(random_key()?)
        } else {
            None
        };
        let sealed = self.chain.seal(body, next_key)?;
        let appended = Appended {
            seq: sealed.seq(),
            digest: sealed.digest(),
        };
        self.write(sealed)?;
        Ok(appended)
    }

    fn write(&mut self, sealed: Sealed) -> Result<(), FileError> {
        let record_type = sealed.record_type();
        if let Err(cause) = self.disk.append(sealed.bytes()) {
            self.failure = Some(cause.clone());
            return Err(FileError::Write {
                path: self.path.clone(),
                cause,
            });
        }
        self.chain.advance(sealed);
        let now = match self.durability {
            Durability::Record => true,
            Durability::Interval => matches!(record_type, RecordType::Check | RecordType::Close),
            Durability::Close => record_type == RecordType::Close,
        };
        if now {
            self.sync()?;
        }
        if self.is_closed() {
            self.let_go();
        }
        Ok(())
    }

    /// Forces everything that was appended to disk.
    ///
    /// # Errors
    /// Where the disk fails, now or before.
    pub fn sync(&mut self) -> Result<(), FileError> {
        self.usable()?;
        self.disk.sync().map_err(|error| {
            self.failure = Some(error.to_string());
            write_error(&self.path, &error)
        })
    }

    /// Forces everything to disk, except with durability `close`, and lets another writer have the folder. The transcript
    /// stays open on disk where no `close` was appended. Does nothing the second time.
    ///
    /// # Errors
    /// Where the disk fails. The folder is released all the same.
    pub fn release(&mut self) -> Result<(), FileError> {
        if self.lock.is_none() || self.process != std::process::id() {
            return Ok(());
        }
        let synced = if self.failure.is_none() && self.durability != Durability::Close {
            self.sync()
        } else {
            Ok(())
        };
        self.let_go();
        synced
    }

    fn let_go(&mut self) {
        self.disk.stop();
        self.lock = None;
    }

    fn usable(&mut self) -> Result<(), FileError> {
        let path = || self.path.clone();
        if self.process != std::process::id() {
            return Err(FileError::OtherProcess {
                path: path(),
                owner: self.process,
            });
        }
        if self.lock.is_none() && !self.is_closed() {
            return Err(FileError::Released { path: path() });
        }
        if self.failure.is_none() {
            self.failure = self.disk.failure();
        }
        match &self.failure {
            Some(cause) => Err(FileError::Failed {
                path: path(),
                cause: cause.clone(),
            }),
            None => Ok(()),
        }
    }

    /// The file that the records stand in.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the transcript was moved to that stood here: one that only opens a run, of which nothing else was recorded.
    pub fn set_aside(&self) -> Option<&Path> {
        self.set_aside.as_deref()
    }

    /// The digest of the root record: the run's name.
    pub const fn root(&self) -> Digest {
        self.chain.root()
    }

    /// The digest of the last record.
    pub const fn head(&self) -> Digest {
        self.chain.head()
    }

    /// How many records there are.
    pub const fn records(&self) -> u64 {
        self.chain.records()
    }

    /// Whether a `close` was appended.
    pub const fn is_closed(&self) -> bool {
        self.chain.is_closed()
    }

    /// The chain as far as it is written.
    pub const fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The length of the file in bytes, and how many of them were forced to disk.
    pub fn length(&self) -> (u64, u64) {
        self.disk.length()
    }
}

impl Drop for TranscriptFile {
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // Whoever wants to know of a failure calls `release`.
            let _ = self.release();
        } else {
            // The lock and the thread belong to the process that this one was forked from.
            self.disk.forget();
            if let Some(lock) = self.lock.take() {
                lock.forget();
            }
        }
    }
}

/// The place of a record that was appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The record's number.
    pub seq: u64,
    /// The record's digest.
    pub digest: Digest,
}

fn random_key() -> Result<SessionKey, FileError> {
    let mut seed = Zeroizing::new([0; 32]);
    getrandom::fill(seed.as_mut_slice())?;
    Ok(SessionKey::from_seed(&seed))
}

fn root_body(root: &Value, identity: PublicKey, session: PublicKey) -> Result<RootBody, BodyError> {
    let mut root = root.clone();
    if let Value::Map(entries) = &mut root {
        for (name, key) in [("identity", identity), ("session-key", session)] {
            if entries.insert(name.into(), key.into()).is_some() {
                return Err(BodyError::filled_in(name));
            }
        }
    }
    let root = RootBody::from_value(&root)?;
    root.validate()?;
    Ok(root)
}

fn create_folder(folder: &Path) -> Result<(), FileError> {
    fs::create_dir_all(folder).map_err(|source| match fs::metadata(folder) {
        Ok(metadata) if !metadata.is_dir() => FileError::NotAFolder {
            path: folder.to_owned(),
        },
        _ => FileError::Folder {
            path: folder.to_owned(),
            source,
        },
    })
}

/// Makes the file of the records, or takes one that is there and empty. One that only opens a run is moved aside, never
/// deleted; gives where to.
fn create_records(folder: &Path, path: &Path) -> Result<(File, Option<PathBuf>), FileError> {
    let refused = |source| FileError::Folder {
        path: folder.to_owned(),
        source,
    };
    match OpenOptions::new().append(true).create_new(true).open(path) {
        Ok(file) => Ok((file, None)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            // What a crash between making the file and writing its root leaves behind is no transcript.
            if fs::metadata(path).map_err(refused)?.len() == 0 {
                let file = OpenOptions::new().append(true).open(path).map_err(refused)?;
                return Ok((file, None));
            }
            let existing = Existing::read(File::open(path).map_err(refused)?).map_err(refused)?;
            if let Some(root) = existing.unused() {
                let aside = folder.join(format!("{RECORDS_FILE}.unused-{root}"));
                if fs::symlink_metadata(&aside).is_err() {
                    fs::rename(path, &aside).map_err(refused)?;
                    let file = OpenOptions::new()
                        .append(true)
                        .create_new(true)
                        .open(path)
                        .map_err(refused)?;
                    return Ok((file, Some(aside)));
                }
            }
            Err(FileError::Exists {
                folder: folder.to_owned(),
                existing,
            })
        }
        Err(error) => Err(refused(error)),
    }
}

/// Forces the name of a new file to disk, where the system has that.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(not(unix)) {
        return Ok(());
    }
    match File::open(folder).and_then(|folder| folder.sync_all()) {
        Err(error) if !matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => Err(error),
        _ => Ok(()),
    }
}

fn write_error(path: &Path, error: &io::Error) -> FileError {
    FileError::Write {
        path: path.to_owned(),
        cause: error.to_string(),
    }
}
