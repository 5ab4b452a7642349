//! Where records start, for a `resume` that names an earlier one.
//!
//! A sparse index of places that were read as records bounds the memory; from the nearest one, record after record is passed
//! over by its declared length. So no bytes inside a record can pose as one. With at most [`MAX_RESUMES`](super::MAX_RESUMES)
//! resumes and each record read at most once, the work stays linear in the file.

use std::collections::BTreeMap;
use std::io;

use super::frame::{self, LONGEST_HEAD_BYTES};
use super::lookup::Lookup;
use crate::cose::Frame;
use crate::limits::MAX_RECORD_BYTES;
use crate::record::{Body, Payload, Roots, StateReason};

const MAX_PLACES: usize = 4096;

/// The state that stood at a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The record's number in the chain.
    pub(crate) seq: u64,
    /// Updates that led to it.
    pub(crate) updates: u64,
    /// The roots recorded for it.
    pub(crate) roots: Roots,
}

/// A sparse index of where records start.
#[derive(Debug)]
pub(crate) struct Boundaries {
    places: Vec<u64>,
    /// Every so-manyth record is in the index.
    stride: u64,
    records: u64,
    /// What was found at places that were looked up.
    known: BTreeMap<u64, Option<Standing>>,
}

impl Boundaries {
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            stride: 1,
            records: 0,
            known: BTreeMap::new(),
        }
    }

    /// Notes that a record starts here. Places are given in order.
    pub(crate) fn add(&mut self, offset: u64) {
        if self.records.is_multiple_of(self.stride) {
            if self.places.len() == MAX_PLACES {
                let mut keep = false;
                self.places.retain(|_| {
                    keep = !keep;
                    keep
                });
                self.stride *= 2;
            }
            if self.records.is_multiple_of(self.stride) {
                self.places.push(offset);
            }
        }
        self.records += 1;
    }

    /// The state that stood at the record that starts at `offset`; none where no record starts there, or one that records
    /// no state that a run can go on from.
    ///
    /// # Errors
    /// Those of reading.
    pub(crate) fn standing_at(&mut self, offset: u64, lookup: &mut dyn Lookup) -> io::Result<Option<Standing>> {
        if let Some(standing) = self.known.get(&offset) {
            return Ok(*standing);
        }
        let standing = self.find(offset, lookup)?;
        self.known.insert(offset, standing);
        Ok(standing)
    }

    fn find(&self, offset: u64, lookup: &mut dyn Lookup) -> io::Result<Option<Standing>> {
        let after = self.places.partition_point(|&place| place <= offset);
        let Some(mut at) = after.checked_sub(1).map(|index| self.places[index]) else {
            return Ok(None);
        };
        let mut head = [0; LONGEST_HEAD_BYTES];
        loop {
            let got = lookup.read_at(at, &mut head)?;
            let Some(length) = frame::declared_length(&head[..got]) else {
                return Ok(None);
            };
            if at == offset {
                let mut bytes = vec![0; length];
                let got = lookup.read_at(offset, &mut bytes)?;
                return Ok(if got == length { standing(&bytes) } else { None });
            }
            at += length as u64;
            if at > offset {
                return Ok(None);
            }
        }
    }
}

fn standing(bytes: &[u8]) -> Option<Standing> {
    debug_assert!(bytes.len() <= MAX_RECORD_BYTES, "longer records are not framed");
    let frame = Frame::parse(bytes).ok()?;
    let payload = Payload::decode(frame.payload).ok()?;
    let (updates, roots) = match Body::from_item(payload.record_type()?, payload.body).ok()? {
        Body::Update(update) => (update.update.checked_add(1)?, update.after),
        // What an edit makes of the state counts once an update has listed the edit.
        Body::State(state) if state.reason != StateReason::Edit => (state.updates, state.roots),
        _ => return None,
    };
    Some(Standing {
        seq: payload.seq,
        updates,
        roots,
    })
}
