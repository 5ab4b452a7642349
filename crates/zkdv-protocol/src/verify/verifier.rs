//! The verifier as a state machine: records in their order in, one report out.

use zkdv_hash::Digest;

use super::boundaries::Boundaries;
use super::findings::Findings;
use super::frame::Bad;
use super::intake::{Entry, Fault, Header, Item, ItemContent, Signature};
use super::layout::Layout;
use super::ledger::Ledger;
use super::linkage::{Line, Relation};
use super::lookup::Lookup;
use super::options::Options;
use super::order::Order;
use super::programs::Programs;
use crate::limits::MAX_RECORD_BYTES;
use crate::record::{Body, CloseReason, Roots, RootBody};
use crate::report::{EditsReport, Shown};
use crate::violation::{Code, Place};

/// The verifier as a state machine.
///
/// Give it the items of a file in their order, as [`Intake`](super::Intake) makes them, then [`finish`](Self::finish) it.
///
/// Whatever follows from a violation is not reported again. To that end everything that the machine knows of the run has a
/// value for "not known", and a violation that may hide records sets it: `lose`.
pub struct Verifier<'a> {
    pub(super) options: &'a Options,
    pub(super) lookup: &'a mut dyn Lookup,
    pub(super) findings: Findings,
    pub(super) totals: Totals,
    /// The first root record, by which the run is named.
    pub(super) root: Option<RootFacts>,
    pub(super) environment: Option<Shown>,
    pub(super) head: Option<Digest>,
    pub(super) torn_bytes: u64,
    pub(super) closed: Option<CloseReason>,
    pub(super) trust: Trust,
    line: Line,
    pub(super) order: Order,
    /// The root record of the transcript that is being read, where its terms can be relied on.
    pub(super) terms: Option<Terms>,
    pub(super) layout: Option<Layout>,
    /// The roots of the present state, as far as they were recorded last.
    pub(super) roots: Roots,
    /// The earliest snapshot that can still be in memory.
    pub(super) earliest_snapshot: u64,
    pub(super) ledger: Ledger,
    pub(super) programs: Programs,
    pub(super) boundaries: Boundaries,
    number: u64,
}

/// The terms of a run, from its root record.
#[derive(Debug)]
pub(super) struct Terms {
    /// The root record's digest.
    pub(super) root: Digest,
    pub(super) body: RootBody,
}

/// What the report says of the first root record.
#[derive(Debug)]
pub(super) struct RootFacts {
    pub(super) digest: Digest,
    pub(super) body: RootBody,
}

/// What was counted.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) bytes: u64,
    pub(super) records: u64,
    pub(super) updates: u64,
    pub(super) sampled: u64,
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) unresolved: u64,
    pub(super) edits: EditsReport,
    pub(super) first_edit: Option<Place>,
    pub(super) resumes: u64,
    pub(super) unlinked: u64,
    pub(super) ranks: Option<u64>,
}

/// How far what the machine knows can be relied on.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// Whether a record that named a key may have been lost, so that a signature by another key says nothing.
    key_may_be_lost: bool,
    /// The same for the identity.
    identity_may_be_lost: bool,
    /// Whether it was said that some signatures cannot be judged.
    said_unjudged: bool,
    /// Whether records may have been lost, so that counts say nothing.
    pub(super) records_lost: bool,
    /// Whether another violation explains other counts than those in `close`.
    pub(super) counts_differ: bool,
    /// A `close` was seen and not believed.
    pub(super) perhaps_closed: bool,
    /// Another protocol version: nothing is known of its records.
    foreign: bool,
    said_after_close: bool,
}

impl<'a> Verifier<'a> {
    /// A verifier before the first item.
    pub fn new(options: &'a Options, lookup: &'a mut dyn Lookup) -> Self {
        Self {
            options,
            lookup,
            findings: Findings::default(),
            totals: Totals::default(),
            root: None,
            environment: None,
            head: None,
            torn_bytes: 0,
            closed: None,
            trust: Trust::default(),
            line: Line::new(),
            order: Order::new(),
            terms: None,
            layout: None,
            roots: Roots::default(),
            earliest_snapshot: 0,
            ledger: Ledger::default(),
            programs: Programs::default(),
            boundaries: Boundaries::new(),
            number: 0,
        }
    }

    /// Takes the next item of the file.
    pub fn push(&mut self, item: Item) {
        let place = Place { record: self.number, offset: item.offset };
        self.number += 1;
        self.totals.bytes = item.offset + item.length;
        if self.closed.is_some() {
            if !std::mem::replace(&mut self.trust.said_after_close, true) {
                self.findings.add(Code::RecordAfterClose, place, "nothing may follow the close record, here are further bytes");
            }
            return;
        }
        match item.content {
            ItemContent::Torn => self.torn_bytes = item.length,
            ItemContent::Bad(bad) => {
                let (code, message) = describe_bad(bad, item.length);
                self.findings.add(code, place, message);
                self.line.lose();
                self.lose();
            }
            ItemContent::Record(entry) => self.record(place, *entry),
        }
    }

    /// Records may have been lost here: from now on nothing is expected that they may have brought or changed.
    pub(super) fn lose(&mut self) {
        self.trust.key_may_be_lost = true;
        self.trust.records_lost = true;
        self.trust.counts_differ = true;
        self.order.lose();
        self.ledger.lose();
        self.programs.lose();
        self.roots = Roots::default();
        self.earliest_snapshot = 0;
    }

    fn record(&mut self, place: Place, entry: Entry) {
        self.totals.records += 1;
        self.head = Some(entry.digest);
        self.boundaries.add(place.offset);
        let header = match entry.header {
            Ok(header) => header,
            Err(fault) => return self.unreadable(place, entry.signature, fault),
        };
        if header.is_root && header.seq == 0 && place.record > 0 {
            self.begin_again(place);
        }
        if !self.link(place, &header, entry.signature, entry.digest) {
            return;
        }
        match header.body {
            Ok(body) => self.content(place, header.seq, entry.digest, body, entry.receipt),
            Err(_) if self.trust.foreign => {}
            Err(fault) => {
                self.trust.foreign = fault.code == Code::ProtocolUnsupported;
                self.findings.add(fault.code, place, fault.message);
                self.lose();
            }
        }
    }

    /// A record without a readable payload stands somewhere on the line.
    fn unreadable(&mut self, place: Place, signature: Signature, fault: Fault) {
        if signature == Signature::Invalid && !self.trust.key_may_be_lost {
            self.invalid_signature(place);
        } else {
            self.findings.add(fault.code, place, fault.message);
        }
        self.line.step_over();
        self.lose();
    }

    fn invalid_signature(&mut self, place: Place) {
        let message = "the key in force did not sign this record: it was changed, or made by someone else";
        self.findings.add(Code::SignatureInvalid, place, message);
    }

    /// A second root record: another transcript was appended. It is read by itself.
    fn begin_again(&mut self, place: Place) {
        self.findings.add(Code::OrderInvalid, place, "a second root record: another transcript begins here");
        self.line = Line::new();
        self.lose();
        self.terms = None;
        self.layout = None;
        self.ledger = Ledger::default();
        self.programs.begin_again();
        self.trust.key_may_be_lost = false;
        self.trust.identity_may_be_lost = false;
        self.trust.foreign = false;
    }

    /// Judges signature, `seq` and `prev`. Says whether the record's content is to be read.
    fn link(&mut self, place: Place, header: &Header, signature: Signature, digest: Digest) -> bool {
        let relation = self.line.relation(header.seq, &header.prev);
        let by_identity = matches!(header.body, Ok(Body::Root(_) | Body::Resume(_)));
        let doubtful = match by_identity {
            true => self.trust.identity_may_be_lost,
            false => self.trust.key_may_be_lost,
        };
        if signature == Signature::Invalid && !doubtful {
            self.reject(place, header, relation, digest);
            return false;
        }
        match signature {
            Signature::Valid if !by_identity => self.trust.key_may_be_lost = false,
            Signature::Valid => {}
            Signature::Invalid | Signature::Unjudged => self.say_unjudged(place),
        }
        match relation {
            Relation::Next | Relation::Rejoins => {}
            Relation::OtherPrev => {
                let message = format!("prev is {}, which is not the digest of the record before", header.prev);
                self.findings.add(Code::ChainBroken, place, message);
                self.lose();
            }
            Relation::Ahead => {
                self.sequence_broken(place, header.seq);
                self.lose();
            }
            Relation::Behind => {
                self.sequence_broken(place, header.seq);
                return false;
            }
            Relation::Missing => return false,
        }
        self.line.advance(header.seq, digest);
        true
    }

    /// A record that the key in force did not sign. That is the finding, unless the record shows by both `seq` and `prev` that
    /// it does not belong here: then another key may have been in force where it did.
    fn reject(&mut self, place: Place, header: &Header, relation: Relation, digest: Digest) {
        let foreign = !self.line.follows_by_digest(&header.prev);
        match relation {
            Relation::Missing => {}
            Relation::Behind if foreign => self.sequence_broken(place, header.seq),
            Relation::Ahead if foreign => {
                self.sequence_broken(place, header.seq);
                self.line.jump(header.seq, digest);
                self.lose();
            }
            _ => {
                self.invalid_signature(place);
                self.line.step_over();
                self.lose();
                match header.body {
                    Ok(Body::Root(_)) => self.trust.identity_may_be_lost = true,
                    Ok(Body::Close(_)) => self.trust.perhaps_closed = true,
                    _ => {}
                }
            }
        }
    }

    fn sequence_broken(&mut self, place: Place, got: u64) {
        let expected = self.line.expected_seq().map_or_else(|| "none".to_owned(), |seq| seq.to_string());
        self.findings.add(Code::SequenceBroken, place, format!("expected seq {expected}, got seq {got}"));
    }

    fn say_unjudged(&mut self, place: Place) {
        if !std::mem::replace(&mut self.trust.said_unjudged, true) {
            self.findings.warn(format!(
                "the record that names the key in force was lost or changed: signatures from record {} on cannot be judged until a later record names a key",
                place.record
            ));
        }
    }
}

fn describe_bad(bad: Bad, length: u64) -> (Code, String) {
    match bad {
        Bad::Damaged => (Code::RecordDamaged, format!("{length} bytes are no record")),
        Bad::Malformed => (
            Code::RecordMalformed,
            format!("{length} bytes of CBOR are no COSE_Sign1 with tag 18, protected header {{1: -8}} and empty unprotected header"),
        ),
        Bad::NotDeterministic => (
            Code::EncodingNotDeterministic,
            format!("{length} bytes of CBOR are not in deterministic encoding, so they are no record"),
        ),
        Bad::TooDeep => (Code::EncodingTooDeep, format!("{length} bytes of CBOR are nested too deep to be a record")),
        Bad::TooLarge { declared } => (
            Code::RecordTooLarge,
            format!("a payload of {declared} bytes is declared, a whole record has at most {MAX_RECORD_BYTES}"),
        ),
    }
}
