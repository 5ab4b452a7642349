//! The signed frame of a record: a `COSE_Sign1` (RFC 9052) with fixed headers.
//!
//! A general COSE library accepts many encodings of one message. Here each message has exactly one, so that a digest over the bytes
//! names it, and reading comes down to comparing with what would have been written.

use crate::cbor::Encoder;
use crate::key::{Signer, SignerError};
use crate::limits::MAX_RECORD_BYTES;
use ed25519_dalek::{Signature, VerifyingKey};
use thiserror::Error;

/// Tag 18, an array of four, the protected header {1: -8} and an empty unprotected header.
pub const FRAME_START: [u8; 7] = [0xd2, 0x84, 0x43, 0xa1, 0x01, 0x27, 0xa0];
/// The head of the signature's byte string.
pub(crate) const SIGNATURE_HEAD: [u8; 2] = [0x58, 0x40];
/// The length of an Ed25519 signature.
pub const SIGNATURE_BYTES: usize = 64;

const PROTECTED_HEADER: [u8; 3] = [0xa1, 0x01, 0x27];

/// What a signature is for: its `external_aad`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// A record of a transcript.
    Record,
    /// A challenger's receipt.
    Receipt,
    /// A challenger's statement about a session.
    Statement,
}

impl Purpose {
    const fn external_aad(self) -> &'static [u8] {
        match self {
            Self::Record => b"zkdv 1 record",
            Self::Receipt => b"zkdv 1 receipt",
            Self::Statement => b"zkdv 1 statement",
        }
    }

    /// The `Sig_structure` (RFC 9052 §4.4): the bytes that are signed.
    fn signed_bytes(self, payload: &[u8]) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder
            .array(4)
            .text("Signature1")
            .bytes(&PROTECTED_HEADER)
            .bytes(self.external_aad())
            .bytes(payload);
        encoder.into_bytes()
    }
}

/// Signs a payload and frames it.
///
/// # Errors
/// Where the signer fails, or gives a signature that does not verify under its public key.
pub fn seal(purpose: Purpose, payload: &[u8], signer: &dyn Signer) -> Result<Vec<u8>, SignerError> {
    let signature = signer.sign(&purpose.signed_bytes(payload))?;
    let mut encoder = Encoder::new();
    encoder.bytes(payload);
    let payload = encoder.into_bytes();
    let mut frame = Vec::with_capacity(FRAME_START.len() + payload.len() + SIGNATURE_HEAD.len() + SIGNATURE_BYTES);
    for part in [&FRAME_START[..], &payload, &SIGNATURE_HEAD, &signature] {
        frame.extend_from_slice(part);
    }
    Ok(frame)
}

/// The two parts of a frame that vary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What was signed.
    pub payload: &'a [u8],
    /// The signature.
    pub signature: &'a [u8; SIGNATURE_BYTES],
}

/// Bytes that are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Another beginning than the fixed one.
    #[error(
        "the bytes do not begin with a COSE_Sign1 (tag 18), protected header {{1: -8}} and empty unprotected header"
    )]
    Start,
    /// The payload's byte string has no shortest length, or goes on past the end.
    #[error("the payload is not a byte string of shortest length that ends before the signature")]
    Payload,
    /// The signature is no byte string of 64 bytes, or something follows it.
    #[error("the signature is not a byte string of 64 bytes that ends the record")]
    Signature,
    /// Longer than the format allows.
    #[error("{length} bytes, more than the {MAX_RECORD_BYTES} that a record may have")]
    TooLarge {
        /// Its length.
        length: u64,
    },
}

impl<'a> Frame<'a> {
    /// Takes a frame apart. It must be all of `bytes`.
    ///
    /// # Errors
    /// Names the first part that is wrong.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FrameError> {
        if bytes.len() > MAX_RECORD_BYTES {
            return Err(FrameError::TooLarge {
                length: bytes.len() as u64,
            });
        }
        let rest = bytes.strip_prefix(&FRAME_START).ok_or(FrameError::Start)?;
        let (length, head) = payload_length(rest).ok_or(FrameError::Payload)?;
        let length = usize::try_from(length).map_err(|_| FrameError::Payload)?;
        let (payload, rest) = rest[head..].split_at_checked(length).ok_or(FrameError::Payload)?;
        let signature = rest
            .strip_prefix(&SIGNATURE_HEAD)
            .and_then(|signature| signature.try_into().ok())
            .ok_or(FrameError::Signature)?;
        Ok(Self { payload, signature })
    }

    /// Verifies the signature strictly: no small-order keys, no malleable forms.
    ///
    /// # Errors
    /// Where `key` did not make it for this purpose.
    pub fn verify_strict(&self, purpose: Purpose, key: &VerifyingKey) -> Result<(), SignatureError> {
        key.verify_strict(
            &purpose.signed_bytes(self.payload),
            &Signature::from_bytes(self.signature),
        )
        .map_err(|_| SignatureError)
    }
}

/// A signature that the key did not make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the signature was not made by the key in force")]
pub struct SignatureError;

/// The length of the byte string that starts here and that of its head, where it has the shortest form.
pub(crate) fn payload_length(bytes: &[u8]) -> Option<(u64, usize)> {
    match crate::cbor::read_head(bytes) {
        Some((crate::cbor::Head::Bytes(length), head)) => Some((length, head)),
        _ => None,
    }
}
