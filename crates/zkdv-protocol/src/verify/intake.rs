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
    pub(crate) names: Names,
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
    /// This key made it.
    By(KeyNumber),
    /// None of the keys that may be in force made it.
    Invalid,
    /// No key is known that may be in force.
    Unjudged,
}

/// Counts the keys that the records of a file name, in the order of the file.
pub(crate) type KeyNumber = u64;

/// The keys that a record names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) identity: Option<KeyNumber>,
    pub(crate) session: Option<KeyNumber>,
}

/// Decodes frames in the order of the file, and follows the keys.
///
/// Which records are to be believed is not known here. So a key that is named does not replace the one before at once: each
/// signature is tried with the two keys that may be in force, and the state machine, which is told which one made it, decides.
#[derive(Debug, Default)]
pub struct Intake {
    identity: Candidates,
    session: Candidates,
    challenger: Option<PublicKey>,
    /// `seq` of the record that named the likelier session key. One from before that does not name a likelier one.
    session_since: u64,
    keys: KeyNumber,
}

/// The keys that may be in force, the likelier one first.
#[derive(Clone, Debug, Default)]
struct Candidates([Option<Candidate>; 2]);

#[derive(Clone, Debug)]
struct Candidate {
    number: KeyNumber,
    public: PublicKey,
    key: Key,
}

impl Candidates {
    /// Takes a key that a record names. Gives its number: that of before, where it is named again.
    fn name(&mut self, public: PublicKey, likelier: bool, keys: &mut KeyNumber) -> KeyNumber {
        let [first, second] = &mut self.0;
        let is_named =
            |candidate: &Option<Candidate>| candidate.as_ref().is_some_and(|candidate| candidate.public == public);
        if is_named(second) && likelier {
            std::mem::swap(first, second);
        }
        if let Some(candidate) = [&*first, &*second]
            .into_iter()
            .find(|candidate| is_named(candidate))
            .into_iter()
            .flatten()
            .next()
        {
            return candidate.number;
        }
        *keys += 1;
        let named = Some(Candidate {
            number: *keys,
            public,
            key: public.into(),
        });
        if likelier {
            *second = std::mem::replace(first, named);
        } else {
            *second = named;
        }
        *keys
    }
}

/// A key that signs.
#[derive(Clone, Debug)]
enum Key {
    Usable(Arc<VerifyingKey>),
    /// Bytes that are no key, with which no signature verifies.
    Unusable,
}

impl From<PublicKey> for Key {
    fn from(key: PublicKey) -> Self {
        key.to_verifying_key()
            .map_or(Self::Unusable, |key| Self::Usable(Arc::new(key)))
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
                let challenger = self.challenger.filter(|_| {
                    matches!(
                        header,
                        Ok(Header {
                            body: Ok(Body::Challenge(_)),
                            ..
                        })
                    )
                });
                let before = self.clone_signers(&header);
                let names = self.follow_keys(&header);
                let signers = match &header {
                    // A root is signed by the identity that it names itself.
                    Ok(Header {
                        body: Ok(Body::Root(_)),
                        ..
                    }) => self.identity.0[..1].to_vec(),
                    _ => before,
                };
                PendingContent::Record(Box::new(Unjudged {
                    bytes,
                    header,
                    names,
                    signers,
                    challenger,
                }))
            }
        };
        Pending {
            offset: frame.offset,
            length: frame.length,
            content,
        }
    }

    /// The keys of which one must have signed the record, if it is no root.
    fn clone_signers(&self, header: &Result<Header, Fault>) -> Signers {
        match header {
            // The identity of an unreadable root is as unreadable.
            Ok(Header { is_root: true, .. }) => Vec::new(),
            Ok(Header {
                body: Ok(Body::Resume(_)),
                ..
            }) => self.identity.0.to_vec(),
            Ok(Header { body: Ok(_), .. }) => self.session.0.to_vec(),
            // A body that cannot be read may be one that the identity key signs.
            Ok(Header { body: Err(_), .. }) | Err(_) => [&self.session.0[..], &self.identity.0].concat(),
        }
    }

    fn follow_keys(&mut self, header: &Result<Header, Fault>) -> Names {
        let mut names = Names::default();
        let Ok(Header {
            seq, body: Ok(body), ..
        }) = header
        else {
            return names;
        };
        let mut likelier = *seq >= self.session_since;
        let session = match body {
            Body::Root(root) => {
                names.identity = Some(self.identity.name(root.identity, true, &mut self.keys));
                self.challenger = root.challenger.key;
                likelier = true;
                root.session_key
            }
            Body::Resume(resume) => resume.session_key,
            Body::Update(update) => match update.next_key {
                Some(key) => key,
                None => return names,
            },
            _ => return names,
        };
        names.session = Some(self.session.name(session, likelier, &mut self.keys));
        if likelier {
            // A root begins the count, whatever number it gives itself.
            self.session_since = if matches!(body, Body::Root(_)) { 0 } else { *seq };
        }
        names
    }
}

type Signers = Vec<Option<Candidate>>;

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
    Record(Box<Unjudged>),
}

/// A decoded record, its signature still to be verified.
#[derive(Debug)]
struct Unjudged {
    bytes: Vec<u8>,
    header: Result<Header, Fault>,
    names: Names,
    signers: Signers,
    challenger: Option<PublicKey>,
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
            PendingContent::Record(record) => ItemContent::Record(Box::new(record.judge())),
        };
        Item {
            offset: self.offset,
            length: self.length,
            content,
        }
    }
}

impl Unjudged {
    fn judge(self) -> Entry {
        let receipt = match (&self.header, self.challenger) {
            (
                Ok(Header {
                    body: Ok(Body::Challenge(challenge)),
                    ..
                }),
                Some(key),
            ) => Some(open_receipt(&challenge.receipt, key)),
            _ => None,
        };
        Entry {
            digest: Digest::from(blake3::hash(&self.bytes)),
            signature: judge_signature(&self.bytes, &self.signers),
            names: self.names,
            header: self.header,
            receipt,
        }
    }
}

fn judge_signature(bytes: &[u8], signers: &Signers) -> Signature {
    let Ok(frame) = cose::Frame::parse(bytes) else {
        return Signature::Invalid;
    };
    let mut judgement = Signature::Unjudged;
    for Candidate { number, key, .. } in signers.iter().flatten() {
        judgement = Signature::Invalid;
        if let Key::Usable(key) = key
            && frame.verify_strict(Purpose::Record, key).is_ok()
        {
            return Signature::By(*number);
        }
    }
    judgement
}

fn open_receipt(bytes: &[u8], key: PublicKey) -> Result<Receipt, String> {
    let key = key
        .to_verifying_key()
        .ok_or("the challenger's key in the root record is no usable Ed25519 key")?;
    Receipt::open(bytes, &key).map_err(|error| error.to_string())
}

fn read_header(payload: &[u8]) -> Result<Header, Fault> {
    let payload = Payload::decode(payload).map_err(|error| {
        let code = match &error {
            PayloadError::Encoding(error) => encoding_code(error.kind),
            _ => Code::RecordMalformed,
        };
        Fault {
            code,
            message: error.to_string(),
        }
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
            Fault {
                code,
                message: format!("{record_type} record: {error}"),
            }
        }),
    };
    Ok(Header {
        seq: payload.seq,
        prev: payload.prev,
        is_root: record_type == Some(RecordType::Root),
        body,
    })
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
