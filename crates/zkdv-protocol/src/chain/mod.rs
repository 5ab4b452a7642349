//! The writing side without files: which record may come next, what it is chained to, and which key signs it.
//!
//! Each record takes two steps. [`Chain::seal`] checks a body against what was written so far and gives the signed bytes;
//! [`Chain::advance`] takes the record as written. A record that could not be stored is sealed, and never advanced.

mod counts;
mod order;
mod pending;

pub use counts::Counts;
pub use order::OrderError;

use crate::cose::{self, Purpose};
use crate::key::{SessionKey, Signer, SignerError};
use crate::limits::MAX_RECORD_BYTES;
use crate::record::{Body, BodyError, RecordType, RootBody};
use order::Order;
use thiserror::Error;
use zkdv_hash::{Digest, leaf};

/// A transcript as far as it is written.
#[derive(Debug)]
pub struct Chain {
    root: Digest,
    head: Digest,
    /// The number of the next record.
    seq: u64,
    session: SessionKey,
    order: Order,
}

/// A signed record that is not written yet.
#[derive(Debug)]
#[must_use = "a record counts once it was written and `Chain::advance` was told"]
pub struct Sealed {
    seq: u64,
    digest: Digest,
    bytes: Vec<u8>,
    body: Body,
    next_key: Option<SessionKey>,
}

impl Sealed {
    /// The record's number.
    pub const fn seq(&self) -> u64 {
        self.seq
    }

    /// The record's digest.
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// The record.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The type of its body.
    pub const fn record_type(&self) -> RecordType {
        self.body.record_type()
    }
}

/// A record that can't be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChainError {
    /// The grammar does not allow the body.
    #[error("a `{record_type}` record can't be written with this body: {source}")]
    Body {
        /// The record's type.
        record_type: RecordType,
        /// What is wrong with the body.
        source: BodyError,
    },
    /// What was written before does not allow the record.
    #[error(transparent)]
    Order(#[from] OrderError),
    /// The record could not be signed.
    #[error(transparent)]
    Signer(#[from] SignerError),
    /// The record would be longer than the format allows.
    #[error(
        "a `{record_type}` record would have {length} bytes, more than the {MAX_RECORD_BYTES} that a record may have"
    )]
    TooLarge {
        /// The record's type.
        record_type: RecordType,
        /// How long it would be.
        length: usize,
    },
    /// A next session key where none is due, or none where one is.
    #[error("a next session key is handed over exactly where `Chain::next_key_is_due` says so")]
    NextKey,
}

impl Chain {
    /// Seals the root. Its two keys are those of `identity` and `session`, whatever stands in `root`.
    ///
    /// The chain that is returned takes the root as written.
    ///
    /// # Errors
    /// Where the configuration is out of range, or the signer fails.
    pub fn start(mut root: RootBody, identity: &dyn Signer, session: SessionKey) -> Result<(Self, Sealed), ChainError> {
        root.identity = identity.public_key();
        root.session_key = session.public_key();
        root.validate().map_err(|source| ChainError::Body {
            record_type: RecordType::Root,
            source,
        })?;
        let order = Order::after_root(&root);
        let sealed = seal(Body::Root(Box::new(root)), 0, &Digest::ZERO, identity, None)?;
        let root = sealed.digest;
        Ok((
            Self {
                root,
                head: root,
                seq: 1,
                session,
                order: order.started(root),
            },
            sealed,
        ))
    }

    /// Whether a record with this body names the next session key.
    pub fn next_key_is_due(&self, body: &Body) -> bool {
        matches!(body, Body::Update(body) if self.order.configuration().is_snapshot_point(body.update))
    }

    /// Checks a body against everything written so far, and signs it. An update's `next-key` is that of `next_key`.
    ///
    /// # Errors
    /// Where the body may not come next: an honest writer can't make an invalid transcript.
    pub fn seal(&self, mut body: Body, next_key: Option<SessionKey>) -> Result<Sealed, ChainError> {
        if self.next_key_is_due(&body) != next_key.is_some() {
            return Err(ChainError::NextKey);
        }
        if let Body::Update(update) = &mut body {
            update.next_key = next_key.as_ref().map(Signer::public_key);
        }
        self.order.admit(&body)?;
        seal(body, self.seq, &self.head, &self.session, next_key)
    }

    /// Takes a record as written.
    pub fn advance(&mut self, sealed: Sealed) {
        debug_assert_eq!(
            sealed.seq, self.seq,
            "records advance in the order in which they are sealed"
        );
        self.order.advance(&sealed.body, sealed.seq, sealed.digest);
        self.head = sealed.digest;
        self.seq = sealed.seq + 1;
        if let Some(next_key) = sealed.next_key {
            self.session = next_key;
        }
    }

    /// The digest of the root record: the run's name.
    pub const fn root(&self) -> Digest {
        self.root
    }

    /// The digest of the last record.
    pub const fn head(&self) -> Digest {
        self.head
    }

    /// How many records there are.
    pub const fn records(&self) -> u64 {
        self.seq
    }

    /// Whether the last record is a `close`.
    pub const fn is_closed(&self) -> bool {
        self.order.is_closed()
    }

    /// What a `close` has to say at this place.
    pub const fn counts(&self) -> Counts {
        self.order.counts()
    }
}

fn seal(
    body: Body,
    seq: u64,
    prev: &Digest,
    signer: &dyn Signer,
    next_key: Option<SessionKey>,
) -> Result<Sealed, ChainError> {
    let bytes = cose::seal(Purpose::Record, &body.encode_payload(seq, prev), signer)?;
    if bytes.len() > MAX_RECORD_BYTES {
        return Err(ChainError::TooLarge {
            record_type: body.record_type(),
            length: bytes.len(),
        });
    }
    Ok(Sealed {
        seq,
        digest: leaf::digest(&bytes),
        bytes,
        body,
        next_key,
    })
}
