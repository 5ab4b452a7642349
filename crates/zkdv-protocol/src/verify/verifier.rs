//! The verifier as a state machine: records in their order in, one report out.

use zkdv_hash::Digest;

use super::boundaries::Boundaries;
use super::findings::Findings;
use super::frame::Bad;
use super::intake::{Entry, Fault, Header, Item, ItemContent, KeyNumber, Names, Signature};
use super::layout::Layout;
use super::ledger::Ledger;
use super::linkage::{Line, Relation};
use super::lookup::Lookup;
use super::options::Options;
use super::order::Order;
use super::programs::Programs;
use crate::limits::MAX_RECORD_BYTES;
use crate::record::{Body, CloseReason, RootBody, Roots};
use crate::report::{EditReport, Shown};
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
    /// The first state that is recorded for edits of the next update, and the roots before it.
    pub(super) edited_from: Option<(Place, Roots)>,
    /// Whether the last resume, if any, goes on from a state that is shown to be the one that stood there.
    pub(super) linked: bool,
    /// The earliest snapshot that can still be in memory.
    pub(super) earliest_snapshot: u64,
    pub(super) ledger: Ledger,
    pub(super) programs: Programs,
    pub(super) boundaries: Boundaries,
    /// A second root record, until the next record shows whether another transcript begins with it.
    second: Option<SecondRoot>,
    number: u64,
}

/// A root record that does not stand first.
struct SecondRoot {
    place: Place,
    digest: Digest,
    body: Option<(Box<RootBody>, Names)>,
}

/// Whether a signature was made by the key in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    Good,
    Bad,
    Unknown,
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
    pub(super) checks_passed: u64,
    pub(super) checks_failed: u64,
    pub(super) checks_unresolved: u64,
    pub(super) edits: Vec<EditReport>,
    pub(super) edits_total: u64,
    pub(super) first_edit: Option<Place>,
    pub(super) resumes: u64,
    pub(super) unlinked: u64,
    pub(super) ranks: Option<u64>,
}

/// How far what the machine knows can be relied on.
#[derive(Debug, Default)]
pub(super) struct Trust {
    /// The session key in force. None where the record that named it may have been lost: then a signature by another key
    /// says nothing, and one by a key that some record named says that this one is in force.
    session: Option<KeyNumber>,
    /// The identity, likewise.
    identity: Option<KeyNumber>,
    /// Whether records may have been lost, so that counts say nothing.
    pub(super) records_lost: bool,
    /// Whether another violation explains other counts than those in `close`.
    pub(super) counts_differ: bool,
    /// A `close` was seen and not believed.
    pub(super) perhaps_closed: bool,
    /// The first record of which it cannot be told whether the key in force signed it.
    pub(super) unjudged_from: Option<u64>,
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
            edited_from: None,
            linked: true,
            earliest_snapshot: 0,
            ledger: Ledger::default(),
            programs: Programs::default(),
            boundaries: Boundaries::new(),
            second: None,
            number: 0,
        }
    }

    /// Takes the next item of the file.
    pub fn push(&mut self, item: Item) {
        let place = Place {
            record: self.number,
            offset: item.offset,
        };
        self.number += 1;
        self.totals.bytes = item.offset + item.length;
        if self.closed.is_some() {
            if !self.findings.has(Code::RecordAfterClose) {
                self.findings.add(
                    Code::RecordAfterClose,
                    place,
                    "nothing may follow the close record, here are further bytes",
                );
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

    /// Records may have been lost here: from now on nothing is expected that they may have brought or changed. There is
    /// always a violation that says why; [`finish`](Self::finish) adds one otherwise.
    pub(super) fn lose(&mut self) {
        self.doubt_key();
        self.trust.records_lost = true;
        self.order.lose();
        self.ledger.lose();
        self.programs.lose();
        self.roots = Roots::default();
        self.edited_from = None;
        self.earliest_snapshot = 0;
    }

    /// Another key than the one that was named may sign from here on.
    pub(super) fn doubt_key(&mut self) {
        self.trust.session = None;
        // The records after it may be those of another writer, who counts otherwise.
        self.trust.counts_differ = true;
    }

    fn record(&mut self, place: Place, entry: Entry) {
        self.totals.records += 1;
        self.head = Some(entry.digest);
        self.boundaries.add(place.offset);
        let second = self.second.take();
        let header = match entry.header {
            Ok(header) => header,
            Err(fault) => return self.unreadable(place, entry.signature, fault),
        };
        if let Some(second) = second
            && header.seq == 1
            && header.prev == second.digest
        {
            self.begin_again(second);
        }
        if header.is_root && header.seq == 0 && self.totals.records > 1 && !self.is_root_of_run(entry.digest) {
            return self.second_root(place, entry.digest, header, entry.signature, entry.names);
        }
        let judgement = self.judge(&header, entry.signature);
        if !self.link(place, &header, judgement, entry.digest) {
            return;
        }
        if self.totals.records == 1 && !header.is_root && header.seq == 0 && header.body.is_ok() {
            self.findings.add(
                Code::OrderInvalid,
                place,
                "a transcript begins with a root record, this one does not",
            );
            self.lose();
        }
        if judgement == Judgement::Good {
            self.trust.session = entry.names.session.or(self.trust.session);
            self.trust.identity = entry.names.identity.or(self.trust.identity);
        }
        match header.body {
            Ok(body) if judgement == Judgement::Unknown => self.disbelieve(place, &body),
            Ok(body) => self.content(place, header.seq, entry.digest, body, entry.receipt),
            // Bodies of another version need not follow this one's grammar.
            Err(_) if self.findings.has(Code::ProtocolUnsupported) => {}
            Err(fault) => {
                self.findings.add(fault.code, place, fault.message);
                self.lose();
            }
        }
    }

    fn is_root_of_run(&self, digest: Digest) -> bool {
        self.root.as_ref().is_some_and(|root| root.digest == digest)
    }

    /// Judges a signature against the key in force. Where that is not known, a key that made it is.
    fn judge(&mut self, header: &Header, signature: Signature) -> Judgement {
        let Trust { session, identity, .. } = &mut self.trust;
        let (in_force, or) = match header.body {
            // A root's identity is its own.
            Ok(Body::Root(_)) => (&mut None, &None),
            Ok(Body::Resume(_)) => (identity, &None),
            Ok(_) => (session, &None),
            Err(_) => (session, &*identity),
        };
        match (signature, &*in_force) {
            (Signature::By(number), Some(known)) if *known == number || *or == Some(number) => Judgement::Good,
            (Signature::By(number), None) => {
                if *or != Some(number) {
                    *in_force = Some(number);
                }
                Judgement::Good
            }
            (Signature::Invalid, None) if !matches!(header.body, Ok(Body::Root(_))) => Judgement::Unknown,
            (Signature::By(_) | Signature::Invalid, _) => Judgement::Bad,
            (Signature::Unjudged, _) => Judgement::Unknown,
        }
    }

    /// A record without a readable payload stands somewhere on the line.
    fn unreadable(&mut self, place: Place, signature: Signature, fault: Fault) {
        if signature == Signature::Invalid && self.trust.session.is_some() {
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

    /// A root record that does not stand first. Whether another transcript begins with it, the next record shows.
    fn second_root(&mut self, place: Place, digest: Digest, header: Header, signature: Signature, names: Names) {
        self.findings.add(
            Code::OrderInvalid,
            place,
            "a root record stands first, and only there: another transcript was put here",
        );
        let body = match (header.body, signature) {
            (Ok(Body::Root(body)), Signature::By(_)) => Some((body, names)),
            _ => None,
        };
        self.second = Some(SecondRoot { place, digest, body });
    }

    /// Reads on in another transcript, by itself.
    fn begin_again(&mut self, second: SecondRoot) {
        self.lose();
        self.line = Line::new();
        self.line.advance(0, Some(second.digest));
        self.terms = None;
        self.layout = None;
        self.ledger = Ledger::default();
        self.programs.begin_again();
        self.trust.identity = None;
        if let Some((body, names)) = second.body {
            self.trust.identity = names.identity;
            self.trust.session = names.session;
            self.root(second.place, second.digest, *body);
        }
    }

    /// Judges `seq` and `prev`. Says whether the record stands on the line.
    fn link(&mut self, place: Place, header: &Header, judgement: Judgement, digest: Digest) -> bool {
        let relation = self.line.relation(header.seq, &header.prev);
        if judgement == Judgement::Bad {
            self.reject(place, header, relation, digest);
            return false;
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
        self.line
            .advance(header.seq, (judgement == Judgement::Good).then_some(digest));
        true
    }

    /// A record on the line by a key that cannot be told: what it says is not taken for true.
    fn disbelieve(&mut self, place: Place, body: &Body) {
        self.trust.unjudged_from.get_or_insert(place.record);
        self.lose();
        self.trust.perhaps_closed |= matches!(body, Body::Close(_));
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
                    Ok(Body::Root(_)) => self.trust.identity = None,
                    Ok(Body::Close(_)) => self.trust.perhaps_closed = true,
                    _ => {}
                }
            }
        }
    }

    fn sequence_broken(&mut self, place: Place, got: u64) {
        let expected = self
            .line
            .expected_seq()
            .map_or_else(|| "none".to_owned(), |seq| seq.to_string());
        self.findings.add(
            Code::SequenceBroken,
            place,
            format!("expected seq {expected}, got seq {got}"),
        );
    }
}

fn describe_bad(bad: Bad, length: u64) -> (Code, String) {
    match bad {
        Bad::Damaged => (Code::RecordDamaged, format!("{length} bytes are no record")),
        Bad::Malformed => (
            Code::RecordMalformed,
            format!(
                "{length} bytes of CBOR are no COSE_Sign1 with tag 18, protected header {{1: -8}} and empty unprotected header"
            ),
        ),
        Bad::NotDeterministic => (
            Code::EncodingNotDeterministic,
            format!("{length} bytes of CBOR are not in deterministic encoding, so they are no record"),
        ),
        Bad::TooDeep => (
            Code::EncodingTooDeep,
            format!("{length} bytes of CBOR are nested too deep to be a record"),
        ),
        Bad::TooLarge { declared } => (
            Code::RecordTooLarge,
            format!("a payload of {declared} bytes is declared, a whole record has at most {MAX_RECORD_BYTES}"),
        ),
    }
}
