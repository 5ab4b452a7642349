use crate::cbor::{self, Encoder, EncodingError, Item};
use crate::cose::{self, Frame, FrameError, Purpose, SignatureError};
use crate::key::{Signer, SignerError};
use ed25519_dalek::VerifyingKey;
use thiserror::Error;
use zkdv_hash::Digest;

/// A challenger's answer to a record: randomness that the prover could not know when it wrote the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The digest of the run's root record.
    pub root: Digest,
    /// The record's number.
    pub seq: u64,
    /// The record's digest.
    pub record: Digest,
    /// What the sample is drawn from.
    pub randomness: [u8; 32],
    /// Milliseconds since 1970-01-01T00:00:00Z, by the challenger's clock.
    pub time: u64,
}

/// Bytes that are no receipt.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// No `COSE_Sign1` with the fixed headers.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Not deterministic CBOR.
    #[error("the receipt's encoding is wrong {0}")]
    Encoding(#[from] EncodingError),
    /// Not a map of the five fields.
    #[error("the receipt is not a map of 1: 32 bytes, 2: unsigned, 3: 32 bytes, 4: 32 bytes, 5: unsigned")]
    Fields,
    /// Not signed by that key.
    #[error(transparent)]
    Signature(#[from] SignatureError),
}

impl Receipt {
    /// Signs the receipt.
    ///
    /// # Errors
    /// Where the signer fails.
    pub fn seal(&self, signer: &dyn Signer) -> Result<Vec<u8>, SignerError> {
        let mut encoder = Encoder::new();
        encoder
            .map(5)
            .unsigned(1)
            .bytes(self.root.as_bytes())
            .unsigned(2)
            .unsigned(self.seq);
        encoder
            .unsigned(3)
            .bytes(self.record.as_bytes())
            .unsigned(4)
            .bytes(&self.randomness);
        encoder.unsigned(5).unsigned(self.time);
        cose::seal(Purpose::Receipt, &encoder.into_bytes(), signer)
    }

    /// Reads a receipt and verifies its signature.
    ///
    /// # Errors
    /// Where the bytes are no receipt, or `key` did not sign it.
    pub fn open(bytes: &[u8], key: &VerifyingKey) -> Result<Self, ReceiptError> {
        let frame = Frame::parse(bytes)?;
        let receipt = Self::from_item(cbor::decode(frame.payload)?).ok_or(ReceiptError::Fields)?;
        frame.verify_strict(Purpose::Receipt, key)?;
        Ok(receipt)
    }

    fn from_item(item: Item<'_>) -> Option<Self> {
        let Item::Map(map) = item else { return None };
        let mut pairs = map.iter();
        let (Item::Unsigned(1), Item::Bytes(root)) = pairs.next()? else {
            return None;
        };
        let (Item::Unsigned(2), Item::Unsigned(seq)) = pairs.next()? else {
            return None;
        };
        let (Item::Unsigned(3), Item::Bytes(record)) = pairs.next()? else {
            return None;
        };
        let (Item::Unsigned(4), Item::Bytes(randomness)) = pairs.next()? else {
            return None;
        };
        let (Item::Unsigned(5), Item::Unsigned(time)) = pairs.next()? else {
            return None;
        };
        if pairs.next().is_some() {
            return None;
        }
        Some(Self {
            root: Digest::from_bytes(root.try_into().ok()?),
            seq,
            record: Digest::from_bytes(record.try_into().ok()?),
            randomness: randomness.try_into().ok()?,
            time,
        })
    }
}
