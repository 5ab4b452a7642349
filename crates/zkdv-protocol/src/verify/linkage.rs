//! The line of records: which `seq` and `prev` come next, and how to find back to the line after a break.

use std::ops::Range;

use zkdv_hash::Digest;

/// The next record, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Next {
    seq: Option<u64>,
    prev: Option<Digest>,
}

/// How a record stands to the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relation {
    /// The next one.
    Next,
    /// In the next one's place, after another record than the last one.
    OtherPrev,
    /// Some records are missing before it.
    Ahead,
    /// It stood earlier in the line.
    Behind,
    /// One of those that were missing.
    Missing,
    /// The next one after the last record is set aside as inserted.
    Rejoins,
}

/// The line of records.
#[derive(Debug)]
pub(crate) struct Line {
    next: Next,
    /// What was next before the last record, where that one may have been inserted.
    before: Option<Next>,
    /// Numbers that were passed over at the last gap.
    missing: Range<u64>,
}

impl Line {
    /// The line before the first record.
    pub(crate) fn new() -> Self {
        Self {
            next: Next {
                seq: Some(0),
                prev: Some(Digest::ZERO),
            },
            before: None,
            missing: 0..0,
        }
    }

    /// What is expected next, for messages.
    pub(crate) fn expected_seq(&self) -> Option<u64> {
        self.next.seq
    }

    /// Where a record with these fields stands.
    pub(crate) fn relation(&self, seq: u64, prev: &Digest) -> Relation {
        let Next {
            seq: next_seq,
            prev: next_prev,
        } = self.next;
        let same_prev = next_prev.is_none_or(|next| next == *prev);
        match next_seq {
            None => Relation::Next,
            Some(next) if next == seq && same_prev => Relation::Next,
            _ if self
                .before
                .is_some_and(|before| before.seq == Some(seq) && before.prev == Some(*prev)) =>
            {
                Relation::Rejoins
            }
            Some(next) if next == seq => Relation::OtherPrev,
            Some(_) if self.missing.contains(&seq) => Relation::Missing,
            Some(next) if seq < next => Relation::Behind,
            Some(_) => Relation::Ahead,
        }
    }

    /// Whether a record follows the last one by its digest.
    pub(crate) fn follows_by_digest(&self, prev: &Digest) -> bool {
        self.next.prev == Some(*prev)
    }

    /// Goes on after a record on the line. Its digest is given where its bytes are those that were signed.
    pub(crate) fn advance(&mut self, seq: u64, digest: Option<Digest>) {
        if let Some(next) = self.next.seq
            && seq > next
        {
            self.missing = next..seq;
        }
        self.next = Next {
            seq: seq.checked_add(1),
            prev: digest,
        };
        self.before = None;
    }

    /// Goes on after a record that stands in the next one's place, or was inserted before it, and is not what was signed.
    pub(crate) fn step_over(&mut self) {
        self.before = Some(self.next);
        self.next = Next {
            seq: self.next.seq.and_then(|seq| seq.checked_add(1)),
            prev: None,
        };
    }

    /// Goes on after a record that is not believed and claims a place further on.
    pub(crate) fn jump(&mut self, seq: u64, digest: Digest) {
        self.before = Some(self.next);
        self.next = Next {
            seq: seq.checked_add(1),
            prev: Some(digest),
        };
    }

    /// Goes on after bytes that held nobody knows how many records.
    pub(crate) fn lose(&mut self) {
        self.before = None;
        self.next = Next { seq: None, prev: None };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Digest = Digest::from_bytes([1; 32]);
    const B: Digest = Digest::from_bytes([2; 32]);

    fn line_before(seq: u64, prev: Digest) -> Line {
        Line {
            next: Next {
                seq: Some(seq),
                prev: Some(prev),
            },
            before: None,
            missing: 0..0,
        }
    }

    #[test]
    fn swapped_records_break_the_line_once() {
        let mut line = line_before(5, A);
        assert_eq!(line.relation(6, &B), Relation::Ahead);
        line.advance(6, Some(A));
        assert_eq!(line.relation(5, &A), Relation::Missing);
        assert_eq!(line.relation(7, &A), Relation::Next);
    }

    #[test]
    fn an_inserted_record_breaks_the_line_once() {
        let mut line = line_before(5, A);
        line.step_over();
        assert_eq!(line.relation(5, &A), Relation::Rejoins);
        line.advance(5, Some(B));
        assert_eq!(line.relation(6, &B), Relation::Next);
    }

    #[test]
    fn a_changed_record_stands_in_its_place() {
        let mut line = line_before(5, A);
        line.step_over();
        assert_eq!(line.relation(6, &B), Relation::Next);
        assert_eq!(line.relation(7, &B), Relation::Ahead);
    }

    #[test]
    fn the_last_possible_number_is_followed_by_anything() {
        let mut line = line_before(u64::MAX, A);
        line.advance(u64::MAX, Some(B));
        assert_eq!(line.relation(0, &B), Relation::Next);
    }
}
