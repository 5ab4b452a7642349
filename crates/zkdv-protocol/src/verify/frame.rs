//! Cutting a file into records, and finding the next one after damage.
//!
//! A record announces its length, so a sound file is cut without looking inside. Where bytes are no record, the next one is
//! searched for by the fixed bytes that every record starts with. Each candidate is judged by a handful of bytes, however
//! long it claims to be, so the work is linear in the file, and at most two records of the greatest size are in memory.

use std::io::{self, Read};
use std::ops::Range;

use memchr::memmem::Finder;

use super::wellformed::{self, Wellformed};
use crate::cose::{FRAME_START, SIGNATURE_BYTES, SIGNATURE_HEAD};
use crate::limits::MAX_RECORD_BYTES;

const READ_BYTES: usize = 128 * 1024;

/// A stretch of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// What it holds.
    pub content: Content,
}

/// What a stretch of the file holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A whole record.
    Record {
        /// All of its bytes.
        bytes: Vec<u8>,
        /// Where in them the payload is.
        payload: Range<usize>,
    },
    /// Bytes that are no record.
    Bad(Bad),
    /// A last record that ends before its declared length.
    Torn,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// They are nothing that the format knows.
    Damaged,
    /// They are other CBOR items.
    Malformed,
    /// They are CBOR items that are not deterministically encoded.
    NotDeterministic,
    /// They are CBOR items nested too deep.
    TooDeep,
    /// They start like a record of more bytes than the format allows.
    TooLarge {
        /// Length of the payload as declared.
        declared: u64,
    },
}

/// Cuts a stream into frames.
pub struct Framer<R> {
    window: Window<R>,
    finder: Finder<'static>,
    at: u64,
}

impl<R: Read> Framer<R> {
    /// Reads from the start of a transcript.
    pub fn new(reader: R) -> Self {
        Self {
            window: Window::new(reader),
            finder: Finder::new(&FRAME_START),
            at: 0,
        }
    }

    /// The next frame, or none at the end of the file.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        let offset = self.at;
        self.window.discard(offset);
        self.window.reach(offset + 1)?;
        if self.window.from(offset).is_empty() {
            return Ok(None);
        }
        let parsed = self.parse(offset)?;
        let (length, content) = if let Parsed::Record { payload, length } = parsed {
            let bytes = self.window.from(offset)[..length].to_vec();
            (length as u64, Content::Record { bytes, payload })
        } else {
            self.skip(offset, &parsed)?
        };
        self.at = offset + length;
        Ok(Some(Frame {
            offset,
            length,
            content,
        }))
    }

    /// Passes over bytes that are no record.
    fn skip(&mut self, offset: u64, parsed: &Parsed) -> io::Result<(u64, Content)> {
        let next = self.search(offset)?;
        let length = next.unwrap_or_else(|| self.window.end()) - offset;
        let content = match *parsed {
            Parsed::TooLarge { declared } => Content::Bad(Bad::TooLarge { declared }),
            Parsed::Short { .. } if next.is_none() => Content::Torn,
            // What is longer than any record was let go during the search.
            _ if length > MAX_RECORD_BYTES as u64 => Content::Bad(Bad::Damaged),
            _ => {
                let region = &self.window.from(offset)[..usize::try_from(length).unwrap_or(MAX_RECORD_BYTES)];
                Content::Bad(match wellformed::judge(region) {
                    Wellformed::Deterministic => Bad::Malformed,
                    Wellformed::NotDeterministic => Bad::NotDeterministic,
                    Wellformed::TooDeep => Bad::TooDeep,
                    Wellformed::No => Bad::Damaged,
                })
            }
        };
        Ok((length, content))
    }

    /// Offset of the first whole record after `offset`. The bytes from `offset` on stay in the window while they are fewer
    /// than the longest record has.
    fn search(&mut self, offset: u64) -> io::Result<Option<u64>> {
        let mut at = offset + 1;
        loop {
            if at - offset > MAX_RECORD_BYTES as u64 {
                self.window.discard(at);
            }
            if let Some(found) = self.finder.find(self.window.from(at)) {
                let candidate = at + found as u64;
                if let Parsed::Record { payload, .. } = self.parse(candidate)?
                    && starts_like_a_payload(&self.window.from(candidate)[payload])
                {
                    return Ok(Some(candidate));
                }
                at = candidate + 1;
            } else {
                // The opening may have begun in the last bytes that were read.
                at = at.max((self.window.end() + 1).saturating_sub(FRAME_START.len() as u64));
                if !self.window.read_more()? {
                    return Ok(None);
                }
            }
        }
    }

    fn parse(&mut self, offset: u64) -> io::Result<Parsed> {
        loop {
            let parsed = parse(self.window.from(offset));
            match parsed {
                Parsed::Short { needed } if self.window.reach(offset + needed as u64)? => {}
                parsed => return Ok(parsed),
            }
        }
    }
}

/// How many bytes of a record show its length.
pub(crate) const LONGEST_HEAD_BYTES: usize = FRAME_START.len() + 9;

/// The length of the record that starts with these bytes.
pub(crate) fn declared_length(head: &[u8]) -> Option<usize> {
    match parse(head) {
        Parsed::Record { length, .. } => Some(length),
        Parsed::Short { needed } if head.len() >= LONGEST_HEAD_BYTES => Some(needed),
        _ => None,
    }
}

/// What the bytes at some place are, as far as their outermost structure shows.
#[derive(Debug, PartialEq, Eq)]
enum Parsed {
    Record {
        payload: Range<usize>,
        length: usize,
    },
    /// They could become a record: `needed` bytes from the start on would show more.
    Short {
        needed: usize,
    },
    TooLarge {
        declared: u64,
    },
    Other,
}

fn parse(bytes: &[u8]) -> Parsed {
    let seen = bytes.len().min(FRAME_START.len());
    if bytes[..seen] != FRAME_START[..seen] {
        return Parsed::Other;
    }
    let Some(&initial) = bytes.get(FRAME_START.len()) else {
        return Parsed::Short {
            needed: FRAME_START.len() + 1,
        };
    };
    let width = match initial {
        0x40..=0x57 => 0,
        0x58 => 1,
        0x59 => 2,
        0x5a => 4,
        0x5b => 8,
        _ => return Parsed::Other,
    };
    let start = FRAME_START.len() + 1 + width;
    let Some(argument) = bytes.get(FRAME_START.len() + 1..start) else {
        return Parsed::Short { needed: start };
    };
    let declared = match width {
        0 => u64::from(initial - 0x40),
        _ => argument.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)),
    };
    let shortest = match width {
        0 => true,
        1 => declared > 23,
        width => declared >> (width * 4) != 0,
    };
    if !shortest {
        return Parsed::Other;
    }
    let longest = MAX_RECORD_BYTES - start - SIGNATURE_HEAD.len() - SIGNATURE_BYTES;
    let Some(payload_bytes) = usize::try_from(declared).ok().filter(|&declared| declared <= longest) else {
        return Parsed::TooLarge { declared };
    };
    let payload = start..start + payload_bytes;
    let length = payload.end + SIGNATURE_HEAD.len() + SIGNATURE_BYTES;
    let head = bytes.get(payload.end..).unwrap_or_default();
    let seen = head.len().min(SIGNATURE_HEAD.len());
    if head[..seen] != SIGNATURE_HEAD[..seen] {
        return Parsed::Other;
    }
    if bytes.len() < length {
        return Parsed::Short { needed: length };
    }
    Parsed::Record { payload, length }
}

/// Whether these are the first bytes of a record's payload: a map of four, `seq`, `prev` and then `type`. A receipt, which
/// is framed like a record and stands inside one, is told apart by this.
fn starts_like_a_payload(payload: &[u8]) -> bool {
    let Some(rest) = payload.strip_prefix(&[0xa4, 0x01]) else {
        return false;
    };
    let width = match rest.first() {
        Some(0x00..=0x17) => 0,
        Some(0x18) => 1,
        Some(0x19) => 2,
        Some(0x1a) => 4,
        Some(0x1b) => 8,
        _ => return false,
    };
    let rest = rest
        .get(1 + width..)
        .and_then(|rest| rest.strip_prefix(&[0x02, 0x58, 0x20]));
    rest.and_then(|rest| rest.get(32)) == Some(&0x03)
}

/// The part of a stream that is in memory, addressed by offsets in the stream.
struct Window<R> {
    reader: R,
    data: Vec<u8>,
    /// Offset of the first byte of `data`.
    base: u64,
    /// How many bytes of `data` are no longer needed.
    spent: usize,
    finished: bool,
}

impl<R: Read> Window<R> {
    fn new(reader: R) -> Self {
        Self {
            reader,
            data: Vec::new(),
            base: 0,
            spent: 0,
            finished: false,
        }
    }

    /// Offset after the last byte read.
    fn end(&self) -> u64 {
        self.base + self.data.len() as u64
    }

    /// The bytes in memory from this offset on.
    fn from(&self, offset: u64) -> &[u8] {
        let start = usize::try_from(offset.saturating_sub(self.base)).unwrap_or(usize::MAX);
        self.data.get(start..).unwrap_or_default()
    }

    /// Lets go of what lies before this offset.
    fn discard(&mut self, offset: u64) {
        let spent = usize::try_from(offset.saturating_sub(self.base)).unwrap_or(usize::MAX);
        self.spent = spent.clamp(self.spent, self.data.len());
    }

    /// Reads on until the byte before this offset is in memory. Says whether it is.
    fn reach(&mut self, offset: u64) -> io::Result<bool> {
        while self.end() < offset {
            if !self.read_more()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a piece. Says whether there was anything to read.
    fn read_more(&mut self) -> io::Result<bool> {
        if self.finished {
            return Ok(false);
        }
        // Moving at most as many bytes as were let go keeps the moves linear in the stream.
        if self.spent * 2 >= self.data.len() {
            self.data.drain(..self.spent);
            self.base += self.spent as u64;
            self.spent = 0;
        }
        let got = self
            .reader
            .by_ref()
            .take(READ_BYTES as u64)
            .read_to_end(&mut self.data)?;
        self.finished = got < READ_BYTES;
        Ok(got > 0)
    }
}
