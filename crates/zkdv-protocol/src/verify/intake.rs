//! From frames to items: decoding, and which key must have signed.
//!
//! [`Intake::take`] follows the file in order, because each key is named by an earlier record. What it gives, a [`Pending`], is
//! judged by itself, on any thread: digest and signatures take nearly all of the time.

use std::sync::Arc;

use ed25519_dalek::VerifyingKey;
use zkdv_hash::Digest;

use super::frame::{Bad, Content, Frame};
use crate::cbor::EncodingErrorKind;
use crate::cose::{self, Purpose};
use crate::key::PublicKey;
use crate::record::{Body, BodyErrorKind, Payload, PayloadError, Receipt, RecordType};
use crate::violation::Code;

/// A stretch of the file, ready for [`Verifier::push`](super::Verifier::push).
#[derive(Debug)]
pub struct Item {
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    pub(crate) content: ItemContent,
}

#[derive(Debug)]
pub(crate) enum ItemContent {
    Record(Box<Entry>),
    Bad(Bad),
    Torn,
}

/// A whole record.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) digest: Digest,
    pub(crate) signature: Signature,
    pub(crate) header: Result<Header, Fault>,
    pub(crate) receipt: Option<Result<Receipt, String>>,
}

/// A payload that could be read.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) seq: u64,
    pub(crate) prev: Digest,
    pub(crate) is_root: bool,
    pub(crate) body: Result<Body, Fault>,
}

/// Why something could not be read.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) message: String,
}

/// What the strict verification of a signature said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signature {
    Valid,
    Invalid,
    /// The key in force is not known.
    Unjudged,
}

/// Decodes frames in the order of the file, and follows the keys.
#[derive(Debug, Default)]
pub struct Intake {
    identity: Key,
    session: Key,
    challenger: Option<PublicKey>,
    /// `seq` of the record that named the session key. A record from before does not name a key any more.
    session_since: u64,
}

/// A key that signs, as far as it is known.
#[derive(Clone, Debug, Default)]
enum Key {
    #[default]
    Unknown,
    Usable(Arc<VerifyingKey>),
    /// Bytes that are no key, with which no signature verifies.
    Unusable,
}

impl From<PublicKey> for Key {
    fn from(key: PublicKey) -> Self {
        key.to_verifying_key().map_or(Self::Unusable, |key| Self::Usable(Arc::new(key)))
    }
}

impl Intake {
    /// An intake before the first frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decodes the next frame of the file.
    pub fn take(&mut self, frame: Frame) -> Pending {
        let content = match frame.content {
            Content::Bad(bad) => PendingContent::Ready(ItemContent::Bad(bad)),
            Content::Torn => PendingContent::Ready(ItemContent::Torn),
            Content::Record { bytes, payload } => {
                let header = read_header(&bytes[payload]);
                let signers = self.signers(&header);
                let challenger = self.challenger.filter(|_| matches!(header, Ok(Header { body: Ok(Body::Challenge(_)), .. })));
                self.follow_keys(&header);
                PendingContent::Record { bytes, header, signers, challenger }
            }
        };
        Pending { offset: frame.offset, length: frame.length, content }
    }

    /// The keys of which one must have signed the record.
    fn signers(&self, header: &Result<Header, Fault>) -> [Key; 2] {
        match header {
            Ok(Header { body: Ok(Body::Root(root)), .. }) => [root.identity.into(), Key::Unusable],
            // The identity of an unreadable root is as unreadable.
            Ok(Header { is_root: true, .. }) => [Key::Unknown, Key::Unknown],
            Ok(Header { body: Ok(Body::Resume(_)), .. }) => [self.identity.clone(), Key::Unusable],
            Ok(Header { body: Ok(_), .. }) => [self.session.clone(), Key::Unusable],
            // A body that cannot be read may be one that the identity key signs.
            Ok(Header { body: Err(_), .. }) | Err(_) => [self.session.clone(), self.identity.clone()],
        }
    }

    fn follow_keys(&mut self, header: &Result<Header, Fault>) {
        let Ok(Header { seq, body: Ok(body), .. }) = header else { return };
        let session = match body {
            Body::Root(root) => {
                self.identity = root.identity.into();
                self.challenger = root.challenger.key;
                // A second root begins a transcript of its own.
                self.session_since = 0;
                root.session_key
            }
            Body::Resume(resume) => resume.session_key,
            Body::Update(update) => match update.next_key {
                Some(key) => key,
                None => return,
            },
            _ => return,
        };
        if *seq >= self.session_since {
            self.session = session.into();
            self.session_since = *seq;
        }
    }
}

/// A frame that was decoded and is still to be judged.
#[derive(Debug)]
pub struct Pending {
    offset: u64,
    length: u64,
    content: PendingContent,
}

#[derive(Debug)]
enum PendingContent {
    Ready(ItemContent),
    Record { bytes: Vec<u8>, header: Result<Header, Fault>, signers: [Key; 2], challenger: Option<PublicKey> },
}

impl Pending {
    /// How many bytes of the file it covers.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Computes the digest and verifies the signatures, strictly.
    pub fn judge(self) -> Item {
        let content = match self.content {
            PendingContent::Ready(content) => content,
            PendingContent::Record { bytes, header, signers, challenger } => {
                let receipt = match (&header, challenger) {
                    (Ok(Header { body: Ok(Body::Challenge(challenge)), .. }), Some(key)) => {
                        Some(open_receipt(&challenge.receipt, key))
                    }
                    _ => None,
                };
                ItemContent::Record(Box::new(Entry {
                    digest: Digest::from(blake3::hash(&bytes)),
                    signature: judge_signature(&bytes, &signers),
                    header,
                    receipt,
                }))
            }
        };
        Item { offset: self.offset, length: self.length, content }
    }
}

fn judge_signature(bytes: &[u8], signers: &[Key; 2]) -> Signature {
    let Ok(frame) = cose::Frame::parse(bytes) else { return Signature::Invalid };
    let mut judgement = Signature::Invalid;
    for signer in signers {
        match signer {
            Key::Usable(key) if frame.verify_strict(Purpose::Record, key).is_ok() => return Signature::Valid,
            Key::Unknown => judgement = Signature::Unjudged,
            Key::Usable(_) | Key::Unusable => {}
        }
    }
    judgement
}

fn open_receipt(bytes: &[u8], key: PublicKey) -> Result<Receipt, String> {
    let key = key.to_verifying_key().ok_or("the challenger's key in the root record is no usable Ed25519 key")?;
    Receipt::open(bytes, &key).map_err(|error| error.to_string())
}

fn read_header(payload: &[u8]) -> Result<Header, Fault> {
    let payload = Payload::decode(payload).map_err(|error| {
        let code = match &error {
            PayloadError::Encoding(error) => encoding_code(error.kind),
            _ => Code::RecordMalformed,
        };
        Fault { code, message: error.to_string() }
    })?;
    let record_type = payload.record_type();
    let body = match record_type {
        None => Err(Fault {
            code: Code::TypeUnknown,
            message: format!("version 1 has no record type {}", crate::cbor::quote(payload.type_name)),
        }),
        Some(record_type) => Body::from_item(record_type, payload.body).map_err(|error| {
            let code = match error.kind {
                BodyErrorKind::Grammar => Code::BodyInvalid,
                BodyErrorKind::Protocol => Code::ProtocolUnsupported,
                BodyErrorKind::Scheme => Code::SchemeUnsupported,
                BodyErrorKind::Configuration => Code::ConfigurationInvalid,
            };
            Fault { code, message: format!("{record_type} record: {error}") }
        }),
    };
    Ok(Header { seq: payload.seq, prev: payload.prev, is_root: record_type == Some(RecordType::Root), body })
}

fn encoding_code(kind: EncodingErrorKind) -> Code {
    match kind {
        EncodingErrorKind::TooDeep => Code::EncodingTooDeep,
        EncodingErrorKind::DuplicateKey => Code::EncodingDuplicateKey,
        EncodingErrorKind::TrailingBytes => Code::EncodingTrailingBytes,
        EncodingErrorKind::LongInteger
        | EncodingErrorKind::LongFloat
        | EncodingErrorKind::OtherNan
        | EncodingErrorKind::Indefinite
        | EncodingErrorKind::Tag
        | EncodingErrorKind::Simple
        | EncodingErrorKind::KeyOrder => Code::EncodingNotDeterministic,
        // Nothing that can be read at all: bytes missing, heads that CBOR does not define, text that is none.
        _ => Code::RecordMalformed,
    }
}
