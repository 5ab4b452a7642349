//! A run's folder on disk, read as something that a stranger sent.
//!
//! No name in the transcript becomes a path but that of a sealed program, which is made of a digest and an extension of letters
//! and digits. No link is followed inside the folder, and only regular files are read.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::lookup::{Lookup, ProgramFile};
use crate::file::RECORDS_FILE;

/// The folder of sealed programs in a run's folder.
const PROGRAMS_FOLDER: &str = "programs";

/// A transcript that cannot be read.
#[derive(Debug, Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct UnreadableError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// A transcript on disk: a run's folder, or a file of records by itself.
#[derive(Debug)]
pub struct Folder {
    records: PathBuf,
    programs: Option<PathBuf>,
    length: u64,
    /// For reading earlier records again, with a position of its own.
    again: File,
}

impl Folder {
    /// Opens a run's folder, or a file of records. Gives the file to read as well.
    ///
    /// # Errors
    /// Where there is no such file, or it is not a regular one, or it may not be read.
    pub fn open(path: &Path) -> Result<(Self, impl Read + Send + use<>), UnreadableError> {
        let (records, programs) = if path.is_dir() {
            (path.join(RECORDS_FILE), Some(path.join(PROGRAMS_FOLDER)))
        } else {
            (path.to_owned(), None)
        };
        let open = || -> io::Result<(File, File, u64)> {
            // A path that a person typed may be a link; one inside a folder that somebody sent may not.
            let open = if programs.is_some() {
                open_regular
            } else {
                open_followed
            };
            let file = open(&records)?;
            let length = file.metadata()?.len();
            Ok((file, open(&records)?, length))
        };
        let (file, again, length) = open().map_err(|source| UnreadableError {
            path: records.clone(),
            source: explain(source, path),
        })?;
        // What is appended meanwhile is left for the next time: a file that grows as fast as it is read has no end.
        Ok((
            Self {
                records,
                programs,
                length,
                again,
            },
            file.take(length),
        ))
    }

    /// The file of records.
    pub fn records(&self) -> &Path {
        &self.records
    }

    /// Its length in bytes when it was opened.
    pub fn length(&self) -> u64 {
        self.length
    }
}

fn explain(error: io::Error, path: &Path) -> io::Error {
    if error.kind() != io::ErrorKind::NotFound {
        return error;
    }
    let missing = if path.is_dir() {
        "the folder holds no transcript"
    } else {
        "there is no such file or folder"
    };
    io::Error::new(
        error.kind(),
        format!("{missing}; name a run's folder or its {RECORDS_FILE}"),
    )
}

impl Lookup for Folder {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.again.seek(SeekFrom::Start(offset))?;
        let mut filled = 0;
        while filled < buffer.len() {
            match self.again.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn program(&mut self, name: &str, length: u64) -> ProgramFile {
        let Some(folder) = &self.programs else {
            return ProgramFile::Unknown;
        };
        read_program(folder, name, length).unwrap_or_else(|error| {
            ProgramFile::Missing(match error.kind() {
                io::ErrorKind::NotFound => "is not there".to_owned(),
                _ => format!("cannot be read: {error}"),
            })
        })
    }
}

fn read_program(folder: &Path, name: &str, length: u64) -> io::Result<ProgramFile> {
    if !fs::symlink_metadata(folder)?.is_dir() {
        return Err(io::Error::other("the folder programs is a link or a file"));
    }
    let file = open_regular(&folder.join(name))?;
    let found = file.metadata()?.len();
    if found != length {
        return Ok(ProgramFile::OtherLength(found));
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file.take(length))?;
    Ok(ProgramFile::Digest(hasher.finalize().into()))
}

/// Opens a regular file that is no link.
fn open_regular(path: &Path) -> io::Result<File> {
    if fs::symlink_metadata(path)?.is_symlink() {
        return Err(io::Error::other("it is a link, which is not followed"));
    }
    open_followed(path)
}

/// Opens a regular file, and nothing that would wait for a writer.
fn open_followed(path: &Path) -> io::Result<File> {
    let regular = |metadata: fs::Metadata| {
        if metadata.is_file() {
            Ok(())
        } else {
            Err(io::Error::other("it is not a regular file"))
        }
    };
    regular(fs::metadata(path)?)?;
    let file = File::open(path)?;
    regular(file.metadata()?)?;
    Ok(file)
}
