use super::{PublicKey, Signer, SignerError};
use ed25519_dalek::{Signer as _, SigningKey};
use std::fmt;
use zeroize::Zeroizing;

/// A key that lives in memory for a part of a run, and is overwritten when it is dropped.
pub struct SessionKey(SigningKey);

impl SessionKey {
    /// The key that follows from 32 random bytes.
    pub fn from_seed(seed: &Zeroizing<[u8; 32]>) -> Self {
        Self(SigningKey::from_bytes(seed))
    }
}

impl Signer for SessionKey {
    fn public_key(&self) -> PublicKey {
        self.0.verifying_key().into()
    }

    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignerError> {
        Ok(self.0.sign(message).to_bytes())
    }
}

/// Shows the public key alone.
impl fmt::Debug for SessionKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("SessionKey").field(&self.public_key()).finish()
    }
}
