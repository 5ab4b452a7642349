//! Proofs that words are, or are not, in the batch of one update: what a prover hands out, and a verifier holds against the
//! records of a transcript.
//!
//! The grammar is `docs/protocol/membership.cddl`. A proof is one deterministically encoded CBOR item; [`MembershipProof::decode`]
//! accepts exactly what [`MembershipProof::encode`] writes.

use crate::cbor::{self, EncodingError, Item, Value};
use crate::limits::{MAX_BLOCK_BYTES, MAX_MEMBERSHIP_BYTES, MAX_PATH};
use crate::record::BodyError;
use crate::record::fields::{Fields, Parsed, digest, digest_value, digests, list, unsigned};
use thiserror::Error;
use zkdv_hash::batch::{
    self, AbsenceOpening, BatchCommitment, BlockOpening, Matrix, RowOpening, WindowOpening, open_absent_part,
};
use zkdv_hash::rolling::Base;
use zkdv_hash::{Digest, HashError};

/// The version of the format.
pub const MEMBERSHIP_VERSION: u64 = 1;

const VERSION_KEY: &str = "zkdv-membership";
const WORD_BYTES: usize = 4;

/// An update as the records of a verified transcript have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommittedUpdate {
    /// The digest of the run's root record.
    pub run: Digest,
    /// The number of the update's record.
    pub record: u64,
    /// The update's index.
    pub update: u64,
    /// The batch digest in that record.
    pub batch: Digest,
    /// Words of a window, as the root record has it.
    pub rolling_window: u64,
}

/// A statement about the batch of one update, with what shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipProof {
    /// The digest of the run's root record.
    pub run: Digest,
    /// The number of the update's record.
    pub record: u64,
    /// The update's index.
    pub update: u64,
    /// What the batch digest is made of.
    pub batch: BatchCommitment,
    /// What is stated and shown.
    pub claim: Claim,
}

/// What a proof states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// These words are a row of the batch.
    Row(RowOpening),
    /// So many words from a position of a row on stand in the batch.
    Window {
        /// The row that holds them, and where they start.
        opening: WindowOpening,
        /// How many there are.
        length: u64,
    },
    /// These words stand in no row of the batch, one after the other: one window of them is not in the list. That the list is
    /// complete is the prover's word, unless the batch was audited.
    Absent {
        /// The words.
        words: Vec<u32>,
        /// Words before the window that is not in the list.
        position: u64,
        /// The neighbours between which it would stand.
        opening: AbsenceOpening,
    },
}

/// Bytes that are no proof of membership.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MembershipFormatError {
    /// Longer than the format allows.
    #[error("{length} bytes, more than the {MAX_MEMBERSHIP_BYTES} that a proof of membership may have")]
    TooLarge {
        /// Its length.
        length: usize,
    },
    /// Not deterministic CBOR.
    #[error("no deterministic CBOR: {0}")]
    Encoding(#[from] EncodingError),
    /// Another version, or no proof of membership at all.
    #[error("no proof of membership of version {MEMBERSHIP_VERSION}")]
    Version,
    /// Not what the grammar says.
    #[error("no proof of membership: in its {0}")]
    Grammar(#[from] BodyError),
}

/// Why a proof does not show what it states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// It is about another run.
    #[error("it is about another run")]
    OtherRun,
    /// It is about another update, or another record of it.
    #[error("it is about another record")]
    OtherRecord,
    /// Its parts are not those of the committed batch.
    #[error("its batch is not the one that the record commits to")]
    OtherBatch,
    /// The opening of the row does not lead to the batch.
    #[error("its row is not in the batch")]
    Row,
    /// The words do not stand where it says, or their row is not in the batch.
    #[error("its words do not stand in that row of the batch")]
    Window,
    /// There is no window where it says.
    #[error("its words hold no window of the run's length at that position")]
    Position,
    /// The blocks do not show that the window is absent.
    #[error("its blocks do not show that the window is not in the list")]
    Absent,
}

impl MembershipProof {
    /// Shows a row.
    ///
    /// # Errors
    /// [`HashError::Index`] where there is no such row, and where the window holds no words.
    pub fn of_row(update: &CommittedUpdate, matrix: &Matrix<'_>, row: usize) -> Result<Self, HashError> {
        Self::of(update, matrix, Claim::Row(batch::open_row(matrix, row)?))
    }

    /// Shows that words are in the batch, where they stand in a row of it, or that they are not.
    ///
    /// # Errors
    /// Where there are no words, and where they are absent and their absence cannot be shown: [`HashError::AbsenceTooShort`],
    /// [`HashError::EveryWindowPresent`].
    pub fn of_words(update: &CommittedUpdate, matrix: &Matrix<'_>, words: &[u32]) -> Result<Self, HashError> {
        let claim = match batch::open_window(matrix, words) {
            Ok(opening) if words.len() == matrix.width() => Claim::Row(opening.row),
            Ok(opening) => Claim::Window {
                opening,
                length: words.len() as u64,
            },
            Err(HashError::WindowAbsent) => {
                let base = Base::from_root(&update.run);
                let (position, opening) = open_absent_part(matrix, update.window(), &base, words)?;
                Claim::Absent {
                    words: words.to_vec(),
                    position,
                    opening,
                }
            }
            Err(error) => return Err(error),
        };
        Self::of(update, matrix, claim)
    }

    fn of(update: &CommittedUpdate, matrix: &Matrix<'_>, claim: Claim) -> Result<Self, HashError> {
        let batch = batch::commit(matrix, update.window(), &Base::from_root(&update.run))?;
        Ok(Self {
            run: update.run,
            record: update.record,
            update: update.update,
            batch,
            claim,
        })
    }

    /// The words that the statement is about.
    pub fn words(&self) -> &[u32] {
        match &self.claim {
            Claim::Row(opening) => &opening.words,
            Claim::Window { opening, length } => {
                window(&opening.row.words, opening.position, *length).unwrap_or_default()
            }
            Claim::Absent { words, .. } => words,
        }
    }

    /// Whether it shows what it states about this update.
    ///
    /// # Errors
    /// Names the first thing that does not fit.
    pub fn verify(&self, update: &CommittedUpdate) -> Result<(), MembershipError> {
        let require = |holds: bool, error| if holds { Ok(()) } else { Err(error) };
        require(self.run == update.run, MembershipError::OtherRun)?;
        require(
            (self.record, self.update) == (update.record, update.update),
            MembershipError::OtherRecord,
        )?;
        require(self.batch.digest() == update.batch, MembershipError::OtherBatch)?;
        match &self.claim {
            Claim::Row(opening) => require(
                batch::verify_row(&update.batch, &self.batch, opening),
                MembershipError::Row,
            ),
            Claim::Window { opening, .. } => require(
                batch::verify_window(&update.batch, &self.batch, self.words(), opening),
                MembershipError::Window,
            ),
            Claim::Absent {
                words,
                position,
                opening,
            } => {
                let window = window(words, *position, update.rolling_window).ok_or(MembershipError::Position)?;
                let base = Base::from_root(&update.run);
                require(
                    batch::verify_absent(&update.batch, &self.batch, &base, window, opening),
                    MembershipError::Absent,
                )
            }
        }
    }

    /// The proof as a file holds it.
    ///
    /// # Errors
    /// [`MembershipFormatError::TooLarge`] where its words take more than a proof may have.
    pub fn encode(&self) -> Result<Vec<u8>, MembershipFormatError> {
        let bytes = self.to_value().encode();
        if bytes.len() > MAX_MEMBERSHIP_BYTES {
            return Err(MembershipFormatError::TooLarge { length: bytes.len() });
        }
        Ok(bytes)
    }

    fn to_value(&self) -> Value {
        let claim = match &self.claim {
            Claim::Row(opening) => ("row", row_value(opening)),
            Claim::Window { opening, length } => (
                "window",
                Value::map([
                    ("row", row_value(&opening.row)),
                    ("position", opening.position.into()),
                    ("length", (*length).into()),
                ]),
            ),
            Claim::Absent {
                words,
                position,
                opening,
            } => (
                "absent",
                Value::map([
                    ("words", words_value(words)),
                    ("position", (*position).into()),
                    (
                        "blocks",
                        Value::Array(
                            std::iter::once(&opening.lower)
                                .chain(&opening.upper)
                                .map(block_value)
                                .collect(),
                        ),
                    ),
                ]),
            ),
        };
        Value::map([
            (VERSION_KEY, MEMBERSHIP_VERSION.into()),
            ("run", digest_value(&self.run)),
            ("record", self.record.into()),
            ("update", self.update.into()),
            ("batch", batch_value(&self.batch)),
            claim,
        ])
    }

    /// Reads a proof. Nothing of it is verified.
    ///
    /// # Errors
    /// Where the bytes are not exactly what [`encode`](Self::encode) writes for a proof.
    pub fn decode(bytes: &[u8]) -> Result<Self, MembershipFormatError> {
        if bytes.len() > MAX_MEMBERSHIP_BYTES {
            return Err(MembershipFormatError::TooLarge { length: bytes.len() });
        }
        let item = cbor::decode(bytes)?;
        let version = match item {
            Item::Map(map) => map.iter().find(|(key, _)| *key == Item::Text(VERSION_KEY)),
            _ => None,
        };
        if version.map(|(_, version)| version) != Some(Item::Unsigned(MEMBERSHIP_VERSION)) {
            return Err(MembershipFormatError::Version);
        }
        Ok(Self::from_item(item)?)
    }

    fn from_item(item: Item<'_>) -> Parsed<Self> {
        let mut fields = Fields::of(item)?;
        fields.required(VERSION_KEY, unsigned)?;
        let (run, record) = (fields.required("run", digest)?, fields.required("record", unsigned)?);
        let (update, batch) = (
            fields.required("update", unsigned)?,
            fields.required("batch", batch_of)?,
        );
        let row = fields.optional("row", row_of)?.map(Claim::Row);
        let window = fields.optional("window", window_of)?;
        let absent = fields.optional("absent", absent_of)?;
        fields.finish(&[
            VERSION_KEY,
            "run",
            "record",
            "update",
            "batch",
            "row",
            "window",
            "absent",
        ])?;
        let mut claims = row.into_iter().chain(window).chain(absent);
        let (Some(claim), None) = (claims.next(), claims.next()) else {
            return Err(BodyError::item("one of \"row\", \"window\", \"absent\"", &item));
        };
        Ok(Self {
            run,
            record,
            update,
            batch,
            claim,
        })
    }
}

impl CommittedUpdate {
    /// Words of a window as a length in memory. Rows are in memory: none has a window that is longer.
    fn window(&self) -> usize {
        usize::try_from(self.rolling_window).unwrap_or(usize::MAX)
    }
}

/// So many words from a position on, where there are so many.
fn window(words: &[u32], position: u64, length: u64) -> Option<&[u32]> {
    let (position, length) = (usize::try_from(position).ok()?, usize::try_from(length).ok()?);
    words.get(position..)?.get(..length)
}

fn batch_value(batch: &BatchCommitment) -> Value {
    Value::map([
        ("rows", batch.rows.into()),
        ("width", batch.width.into()),
        ("matrix", digest_value(&batch.matrix)),
        ("row-root", digest_value(&batch.row_root)),
        ("window-root", digest_value(&batch.window_root)),
        ("window-count", batch.window_count.into()),
    ])
}

fn batch_of(item: Item<'_>) -> Parsed<BatchCommitment> {
    let mut fields = Fields::of(item)?;
    let batch = BatchCommitment {
        rows: fields.required("rows", unsigned)?,
        width: fields.required("width", unsigned)?,
        matrix: fields.required("matrix", digest)?,
        row_root: fields.required("row-root", digest)?,
        window_root: fields.required("window-root", digest)?,
        window_count: fields.required("window-count", unsigned)?,
    };
    fields.finish(&["rows", "width", "matrix", "row-root", "window-root", "window-count"])?;
    Ok(batch)
}

fn row_value(opening: &RowOpening) -> Value {
    Value::map([
        ("row", opening.row.into()),
        ("words", words_value(&opening.words)),
        ("path", digests(&opening.path)),
    ])
}

fn row_of(item: Item<'_>) -> Parsed<RowOpening> {
    let mut fields = Fields::of(item)?;
    let opening = RowOpening {
        row: fields.required("row", unsigned)?,
        words: fields.required("words", words_of)?,
        path: fields.required("path", list(MAX_PATH, digest))?,
    };
    fields.finish(&["row", "words", "path"])?;
    Ok(opening)
}

fn window_of(item: Item<'_>) -> Parsed<Claim> {
    let mut fields = Fields::of(item)?;
    let opening = WindowOpening {
        row: fields.required("row", row_of)?,
        position: fields.required("position", unsigned)?,
    };
    let length = fields.required("length", unsigned)?;
    fields.finish(&["row", "position", "length"])?;
    if length == 0 || window(&opening.row.words, opening.position, length).is_none() {
        return Err(BodyError::item("a position and length inside of the row", &item));
    }
    Ok(Claim::Window { opening, length })
}

fn absent_of(item: Item<'_>) -> Parsed<Claim> {
    let mut fields = Fields::of(item)?;
    let (words, position) = (
        fields.required("words", words_of)?,
        fields.required("position", unsigned)?,
    );
    let blocks = fields.required("blocks", list(2, block_of))?;
    fields.finish(&["words", "position", "blocks"])?;
    let mut blocks = blocks.into_iter();
    let Some(lower) = blocks.next() else {
        return Err(BodyError::item("one or two blocks", &item));
    };
    let opening = AbsenceOpening {
        lower,
        upper: blocks.next(),
    };
    Ok(Claim::Absent {
        words,
        position,
        opening,
    })
}

fn block_value(opening: &BlockOpening) -> Value {
    Value::map([
        ("block", opening.block.into()),
        ("numbers", opening.bytes.as_slice().into()),
        ("path", digests(&opening.path)),
    ])
}

fn block_of(item: Item<'_>) -> Parsed<BlockOpening> {
    let mut fields = Fields::of(item)?;
    let opening = BlockOpening {
        block: fields.required("block", unsigned)?,
        bytes: fields.required("numbers", crate::record::fields::bytes(MAX_BLOCK_BYTES))?,
        path: fields.required("path", list(MAX_PATH, digest))?,
    };
    fields.finish(&["block", "numbers", "path"])?;
    Ok(opening)
}

fn words_value(words: &[u32]) -> Value {
    Value::Bytes(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}

fn words_of(item: Item<'_>) -> Parsed<Vec<u32>> {
    match item {
        Item::Bytes(bytes) if bytes.len().is_multiple_of(WORD_BYTES) => {
            let words = bytes.as_chunks::<WORD_BYTES>().0.iter();
            Ok(words.map(|word| u32::from_le_bytes(*word)).collect())
        }
        other => Err(BodyError::item("words of 4 bytes", &other)),
    }
}
