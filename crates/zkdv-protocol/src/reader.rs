//! Reading records one after another, up to the first byte that belongs to none.
//!
//! What is read is framed like records, and nothing more is said of it: whether a transcript is sound, the verifier finds out.

use crate::cose::{FRAME_START, Frame, FrameError, SIGNATURE_BYTES, SIGNATURE_HEAD, payload_length};
use crate::limits::MAX_RECORD_BYTES;
use std::io::{self, BufReader, Read};
use thiserror::Error;
use zkdv_hash::{Digest, leaf};

/// Reads the records of a stream. Memory grows with what was read, never with a length that was only declared.
#[derive(Debug)]
pub struct RecordReader<R> {
    source: BufReader<R>,
    number: u64,
    offset: u64,
    done: bool,
}

/// The bytes of a record and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawRecord {
    /// Which record of the file it is, counted from 0.
    pub number: u64,
    /// Offset of its first byte.
    pub offset: u64,
    /// All of its bytes.
    pub bytes: Vec<u8>,
}

impl RawRecord {
    /// The record's digest.
    pub fn digest(&self) -> Digest {
        leaf::digest(&self.bytes)
    }

    /// Its payload and signature.
    ///
    /// # Errors
    /// Never for a record that [`RecordReader`] gave.
    pub fn frame(&self) -> Result<Frame<'_>, FrameError> {
        Frame::parse(&self.bytes)
    }
}

/// The end of what can be read, where that is not the end of the stream.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The stream gave an error.
    #[error("reading stopped at byte {offset}: {source}")]
    Io {
        /// Offset of the record that was being read.
        offset: u64,
        /// Why.
        source: io::Error,
    },
    /// The stream ends inside a record: what a crash leaves behind.
    #[error("the record at byte {offset} is cut off after {length} bytes")]
    Torn {
        /// Offset of the record.
        offset: u64,
        /// How many bytes of it are there.
        length: u64,
    },
    /// The bytes are no record.
    #[error("the bytes from {offset} on are no record: {source}")]
    Frame {
        /// Offset of the first byte that belongs to no record.
        offset: u64,
        /// What is wrong with them.
        source: FrameError,
    },
}

impl<R: Read> RecordReader<R> {
    /// Reads from the start of a transcript. There is no need to buffer `source`.
    pub fn new(source: R) -> Self {
        Self {
            source: BufReader::with_capacity(128 << 10, source),
            number: 0,
            offset: 0,
            done: false,
        }
    }

    /// Offset of the first byte that was not given as part of a record.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    fn read(&mut self) -> Result<Option<RawRecord>, ReadError> {
        let offset = self.offset;
        let not_framed = |source| ReadError::Frame { offset, source };
        let mut bytes = Vec::new();
        let start = self.extend(&mut bytes, FRAME_START.len())?;
        if start == 0 {
            return Ok(None);
        }
        // Compared before the length: bytes that are no record are not called a torn one.
        if bytes != FRAME_START[..start] {
            return Err(not_framed(FrameError::Start));
        }
        self.require(&mut bytes, 1)?;
        let width = match bytes[FRAME_START.len()] & 0x1f {
            24 => 1,
            25 => 2,
            26 => 4,
            27 => 8,
            _ => 0,
        };
        self.require(&mut bytes, width)?;
        let (declared, _) = payload_length(&bytes[FRAME_START.len()..]).ok_or(not_framed(FrameError::Payload))?;
        let rest = declared.saturating_add((SIGNATURE_HEAD.len() + SIGNATURE_BYTES) as u64);
        let length = rest.saturating_add(bytes.len() as u64);
        if length > MAX_RECORD_BYTES as u64 {
            return Err(not_framed(FrameError::TooLarge { length }));
        }
        self.require(
            &mut bytes,
            usize::try_from(rest).map_err(|_| not_framed(FrameError::Payload))?,
        )?;
        Frame::parse(&bytes).map_err(not_framed)?;
        let record = RawRecord {
            number: self.number,
            offset,
            bytes,
        };
        self.number += 1;
        self.offset += length;
        Ok(Some(record))
    }

    /// Reads that many more bytes.
    fn require(&mut self, bytes: &mut Vec<u8>, more: usize) -> Result<(), ReadError> {
        let got = self.extend(bytes, more)?;
        if got == more {
            Ok(())
        } else {
            Err(ReadError::Torn {
                offset: self.offset,
                length: bytes.len() as u64,
            })
        }
    }

    /// Reads at most that many more bytes, fewer at the end of the stream only.
    fn extend(&mut self, bytes: &mut Vec<u8>, more: usize) -> Result<usize, ReadError> {
        self.source
            .by_ref()
            .take(more as u64)
            .read_to_end(bytes)
            .map_err(|source| ReadError::Io {
                offset: self.offset,
                source,
            })
    }
}

impl<R: Read> Iterator for RecordReader<R> {
    type Item = Result<RawRecord, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let record = self.read().transpose();
        self.done = !matches!(record, Some(Ok(_)));
        record
    }
}
