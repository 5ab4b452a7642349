//! What a verifier looks up beside the stream.

use std::io;

use zkdv_hash::Digest;

/// What a verifier looks up beside the stream: earlier bytes of the transcript, and the files of sealed programs.
pub trait Lookup {
    /// Fills `buffer` with the transcript's bytes from `offset` on, as far as there are any, and gives their number.
    ///
    /// # Errors
    /// Where they cannot be read.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// What is known of the file of a sealed program.
    ///
    /// `name` is made of hexadecimal digits, a point and an extension of lower-case letters and digits.
    fn program(&mut self, name: &str, length: u64) -> ProgramFile;
}

/// What is known of the file of a sealed program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProgramFile {
    /// It is there, has the expected length, and this digest.
    Digest(Digest),
    /// It is there, and has this length.
    OtherLength(u64),
    /// It is not there, or is nothing that may be read: why.
    Missing(String),
    /// There is no folder to look in.
    Unknown,
}

/// A transcript by itself, in memory: there is no folder with programs.
impl Lookup for &[u8] {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let from = usize::try_from(offset)
            .ok()
            .and_then(|offset| self.get(offset..))
            .unwrap_or_default();
        let length = from.len().min(buffer.len());
        buffer[..length].copy_from_slice(&from[..length]);
        Ok(length)
    }

    fn program(&mut self, _name: &str, _length: u64) -> ProgramFile {
        ProgramFile::Unknown
    }
}
