//! Keys: the user's long-lived identity, the sessions' short-lived ones, and signers that live elsewhere.

use crate::cbor::Value;
use ed25519_dalek::VerifyingKey;
use std::fmt;
use thiserror::Error;

/// An Ed25519 public key (RFC 8032), as its 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// The key of these bytes. Whether they are a point of the curve shows in [`PublicKey::to_verifying_key`].
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key's bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key, ready to verify. Worth keeping where it verifies much.
    pub fn to_verifying_key(&self) -> Option<VerifyingKey> {
        VerifyingKey::from_bytes(&self.0).ok().filter(|key| !key.is_weak())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PublicKey({self})")
    }
}

impl From<PublicKey> for Value {
    fn from(key: PublicKey) -> Self {
        Self::Bytes(key.0.to_vec())
    }
}

/// Signs with a key that may live elsewhere.
pub trait Signer: Send + Sync {
    /// The key that verifies what this signs.
    fn public_key(&self) -> PublicKey;

    /// Signs `message` with Ed25519 (RFC 8032, not prehashed).
    ///
    /// # Errors
    /// Where the signer fails.
    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignerError>;
}

/// A signer that failed.
#[derive(Debug, Error)]
#[error("the signer failed: {0}")]
pub struct SignerError(Box<dyn std::error::Error + Send + Sync>);

impl SignerError {
    /// An error with this cause.
    pub fn new(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(cause.into())
    }
}
