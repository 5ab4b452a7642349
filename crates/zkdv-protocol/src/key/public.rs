use crate::cbor::Value;
use ed25519_dalek::VerifyingKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePublicKey, EncodePublicKey};
use std::fmt;

/// An Ed25519 public key (RFC 8032), as its 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// The key of these bytes. Whether they are a point of the curve shows in [`PublicKey::to_verifying_key`].
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key in a PEM text with the label `PUBLIC KEY` (RFC 8410), if it is one.
    pub fn from_pem(text: &str) -> Option<Self> {
        VerifyingKey::from_public_key_pem(text)
            .ok()
            .map(|key| Self(key.to_bytes()))
    }

    /// The key's bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key, ready to verify; none where the bytes are no point, or one of small order, under which anything verifies.
    ///
    /// Takes the time of a fifth of a verification, so that it is worth keeping where it verifies much.
    pub fn to_verifying_key(&self) -> Option<VerifyingKey> {
        VerifyingKey::from_bytes(&self.0).ok().filter(|key| !key.is_weak())
    }

    /// The key as PEM text with the label `PUBLIC KEY` (RFC 8410), if its bytes are a point.
    pub fn to_pem(&self) -> Option<String> {
        self.to_verifying_key()?.to_public_key_pem(LineEnding::LF).ok()
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

impl From<VerifyingKey> for PublicKey {
    fn from(key: VerifyingKey) -> Self {
        Self(key.to_bytes())
    }
}

impl From<PublicKey> for Value {
    fn from(key: PublicKey) -> Self {
        Self::Bytes(key.0.to_vec())
    }
}
