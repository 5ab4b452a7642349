//! What a verifier can find wrong with a transcript.

use std::fmt;

use serde::{Serialize, Serializer};

macro_rules! codes {
    ($($variant:ident $name:literal $meaning:literal,)*) => {
        /// A violation's stable name. The page "Verification" of the protocol lists the same names with the same meanings.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $(#[doc = $meaning] $variant,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in reports.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What was found, in a few words.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $meaning,)* }
            }
        }
    };
}

codes! {
    EmptyTranscript "empty-transcript" "the file has no records",
    RecordDamaged "record-damaged" "bytes that are no record",
    RecordMalformed "record-malformed" "a CBOR array or tagged item that is not a `COSE_Sign1` with the fixed headers, or a payload that is not a map of seq, prev, type and body",
    RecordTooLarge "record-too-large" "a declared length above the limit",
    EncodingTooDeep "encoding-too-deep" "nesting above the limit",
    EncodingNotDeterministic "encoding-not-deterministic" "a longer integer, length or float than needed, indefinite lengths, keys out of order, another NaN, a tag or simple value that the format does not have",
    EncodingDuplicateKey "encoding-duplicate-key" "a key twice in one map",
    EncodingTrailingBytes "encoding-trailing-bytes" "bytes after the payload's map",
    SignatureInvalid "signature-invalid" "a signature that the key in force did not make",
    SequenceBroken "sequence-broken" "`seq` is not one more than the last",
    ChainBroken "chain-broken" "`prev` is not the digest of the record before",
    TypeUnknown "type-unknown" "a record type that version 1 does not have",
    BodyInvalid "body-invalid" "a body that does not follow the grammar",
    ProtocolUnsupported "protocol-unsupported" "another protocol version",
    SchemeUnsupported "scheme-unsupported" "a scheme name that version 1 does not have",
    ConfigurationInvalid "configuration-invalid" "values out of range, or a `max-check-lag` that is not the one prescribed",
    IdentityMismatch "identity-mismatch" "another identity than the pinned one",
    HeadMismatch "head-mismatch" "another head than the pinned one",
    OrderInvalid "order-invalid" "a record where the order of records does not allow it",
    RecordAfterClose "record-after-close" "anything after `close`",
    UpdateIndex "update-index" "an update that is not the next one",
    ProgramUnknown "program-unknown" "an update that names no program record of role `replay` before it",
    ProgramMissing "program-missing" "a sealed program's file is not in the folder",
    ProgramDigest "program-digest" "a sealed program's file has other bytes than committed",
    RootsDue "roots-due" "a root that is due is missing, or one that is not due is there",
    NextKeyDue "next-key-due" "the next session key is missing where it is due, or there where it is not",
    StateMissing "state-missing" "no `state` before update 0, after a resume, before a finished close, or before an edit above 64 bytes",
    StateDiscontinuous "state-discontinuous" "a `state` whose roots are not the last ones recorded, or one for edits that changed a tree in which the update lists none",
    EditInvalid "edit-invalid" "an edit of a leaf that does not exist, twice in one update, whose bytes do not have the digest or length of the leaf, or of a parameter with its bytes where an attest program is in force",
    EditNotAllowed "edit-not-allowed" "an edit, and edits were not allowed",
    ChallengeMissing "challenge-missing" "no receipt for an update where the challenger gives receipts",
    ChallengeUnexpected "challenge-unexpected" "a receipt where none is due",
    ChallengeInvalid "challenge-invalid" "a receipt that does not verify, or is for another record",
    CheckMissing "check-missing" "a sampled update without its check",
    CheckLate "check-late" "a check after the allowed lag",
    CheckDuplicate "check-duplicate" "a second check of one update",
    CheckUnexpected "check-unexpected" "a check of an update that was not sampled",
    CheckCoordinates "check-coordinates" "other coordinates than those drawn",
    CheckSnapshot "check-snapshot" "a snapshot that the update could not be replayed from",
    CheckOpening "check-opening" "an opening that does not lead to the committed root, or whose element is not the committed one",
    CheckTolerance "check-tolerance" "another tolerance than the configuration's, or a verdict that does not follow from the values",
    AttestedMissing "attested-missing" "a check without the values of the attest program that is in force",
    AttestedUnexpected "attested-unexpected" "a check with values of an attest program, where none is in force",
    CheckFailed "check-failed" "a check that failed, as its record says",
    ClosedPoisoned "closed-poisoned" "a run that was closed because it had failed",
    CountMismatch "count-mismatch" "counts in `close` that are not those of the transcript",
    ResumeInvalid "resume-invalid" "a resume that names a record that is not there, or another number of updates than stood there",
    RequirementUnmet "requirement-unmet" "a condition given with `--require`",
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// Where something stands in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Number of the record in the file, from 0. A stretch of bytes that are no record counts as one.
    pub record: u64,
    /// Offset of its first byte in the file.
    pub offset: u64,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Its stable name.
    pub code: Code,
    /// The record it was found in; none where it concerns the transcript as a whole.
    #[serde(flatten, serialize_with = "place_or_nulls")]
    pub place: Option<Place>,
    /// What was expected and what was found, in plain words.
    pub message: String,
}

/// Keeps the report's shape the same whether or not there is a place.
#[allow(clippy::ref_option, reason = "the signature that serde calls")]
fn place_or_nulls<S: Serializer>(place: &Option<Place>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Fields {
        record: Option<u64>,
        offset: Option<u64>,
    }
    Fields {
        record: place.map(|place| place.record),
        offset: place.map(|place| place.offset),
    }
    .serialize(serializer)
}

impl fmt::Display for Violation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(Place { record, offset }) => {
                write!(
                    formatter,
                    "{}: record {record}, byte {offset}: {}",
                    self.code, self.message
                )
            }
            None => write!(formatter, "{}: {}", self.code, self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/protocol/verification.md");

    #[test]
    fn page_lists_exactly_these_codes_with_their_meanings() {
        let listed: Vec<(String, String)> = PAGE
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
            .map(|(name, rest)| (name.to_owned(), rest.trim_end_matches(" |").to_owned()))
            .collect();
        let ours: Vec<(String, String)> = Code::ALL
            .iter()
            .map(|code| (code.as_str().to_owned(), code.meaning().to_owned()))
            .collect();
        assert_eq!(listed, ours);
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::BTreeSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
    }
}
