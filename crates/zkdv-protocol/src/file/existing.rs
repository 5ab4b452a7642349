//! What is in a transcript, for people who are about to write one: read off the records, and not verified.

use crate::reader::{ReadError, RecordReader};
use crate::record::{Body, Payload, RecordType};
use std::fmt;
use std::io::{self, Read};
use zkdv_hash::Digest;

/// A transcript that stands where one was to be started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// How many records can be read.
    pub records: u64,
    /// How many updates the run has behind it; those that a resume gave up are not counted.
    pub updates: u64,
    /// Whether it ends with a `close`.
    pub closed: bool,
    /// The digest of the first record, by which the run is named.
    pub root: Option<Digest>,
    /// Whether there is a record beyond those that are written when a run is opened.
    pub begun: bool,
    /// Offset of the first byte that belongs to no whole record, where there is one.
    pub unreadable: Option<u64>,
}

impl Existing {
    /// Reads a transcript from its start.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn read(source: impl Read) -> io::Result<Self> {
        let mut existing = Self::default();
        let mut records = RecordReader::new(source);
        for record in &mut records {
            match record {
                Ok(record) => {
                    existing.root.get_or_insert(record.digest());
                    existing.count(
                        record
                            .frame()
                            .ok()
                            .and_then(|frame| Payload::decode(frame.payload).ok()),
                    );
                }
                Err(ReadError::Io { source, .. }) => return Err(source),
                Err(_) => existing.unreadable = Some(0),
            }
        }
        existing.unreadable = existing.unreadable.map(|_| records.offset());
        Ok(existing)
    }

    fn count(&mut self, payload: Option<Payload<'_>>) {
        self.records += 1;
        let record_type = payload.and_then(|payload| payload.record_type());
        self.closed = record_type == Some(RecordType::Close);
        self.begun |= !matches!(record_type, Some(RecordType::Root | RecordType::Environment));
        match record_type {
            Some(RecordType::Update) => self.updates += 1,
            Some(record_type @ RecordType::Resume) => {
                if let Some(Ok(Body::Resume(body))) = payload.map(|payload| Body::from_item(record_type, payload.body))
                {
                    self.updates = body.updates;
                }
            }
            _ => {}
        }
    }

    /// The run's name, where it ended before anything of it was recorded: whole records that open it, and nothing more.
    pub(super) fn unused(&self) -> Option<Digest> {
        self.root.filter(|_| !self.begun && self.unreadable.is_none())
    }

    /// What somebody can do who wants to train here.
    pub(super) const fn what_to_do(&self) -> &'static str {
        if self.updates == 0 && self.unreadable.is_none() {
            "nothing was trained under it: choose another path, or remove this folder"
        } else if self.closed {
            "a closed run is not continued: choose another path"
        } else {
            "choose another path; to go on with it (resume=True) is not in this version"
        }
    }
}

impl fmt::Display for Existing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let Self { records, updates, .. } = self;
        let closed = if self.closed { "closed" } else { "not closed" };
        write!(
            formatter,
            "{closed}, of {updates} update{} in {records} record{}",
            plural(*updates),
            plural(*records)
        )?;
        match self.unreadable {
            Some(offset) => write!(formatter, ", with bytes from {offset} on that are no whole record"),
            None => Ok(()),
        }
    }
}
