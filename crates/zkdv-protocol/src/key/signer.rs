use super::PublicKey;
use ed25519_dalek::{Signature, VerifyingKey};
use std::error::Error as StdError;
use thiserror::Error;

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
#[non_exhaustive]
pub enum SignerError {
    /// It gave an error of its own.
    #[error("the signer failed: {0}")]
    Failed(#[source] Box<dyn StdError + Send + Sync>),
    /// It gave something other than a signature.
    #[error("the signer gave {got} bytes where a signature has 64")]
    Length {
        /// How many bytes it gave.
        got: usize,
    },
    /// Its signature does not verify under its public key.
    #[error("the signer gave a signature that its public key {public_key} does not verify; it may hold another key")]
    Mismatch {
        /// The public key that it was said to have.
        public_key: PublicKey,
    },
    /// Its public key is none that can verify.
    #[error("the signer's public key {public_key} is no Ed25519 key that can verify signatures")]
    PublicKey {
        /// The key.
        public_key: PublicKey,
    },
}

type SignFunction = dyn Fn(&[u8]) -> Result<Vec<u8>, Box<dyn StdError + Send + Sync>> + Send + Sync;

/// A key that is held by something else: a hardware token, an agent, a key service.
pub struct ExternalSigner {
    public_key: PublicKey,
    verifying_key: VerifyingKey,
    sign: Box<SignFunction>,
}

impl ExternalSigner {
    /// The signer whose signatures `sign` gives and `public_key` verifies.
    ///
    /// # Errors
    /// Where `public_key` is no key.
    pub fn new(
        public_key: PublicKey,
        sign: impl Fn(&[u8]) -> Result<Vec<u8>, Box<dyn StdError + Send + Sync>> + Send + Sync + 'static,
    ) -> Result<Self, SignerError> {
        let verifying_key = public_key
            .to_verifying_key()
            .ok_or(SignerError::PublicKey { public_key })?;
        Ok(Self {
            public_key,
            verifying_key,
            sign: Box::new(sign),
        })
    }
}

impl Signer for ExternalSigner {
    fn public_key(&self) -> PublicKey {
        self.public_key
    }

    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignerError> {
        let signature = (self.sign)(message).map_err(SignerError::Failed)?;
        let signature: [u8; 64] = signature
            .try_into()
            .map_err(|got: Vec<u8>| SignerError::Length { got: got.len() })?;
        // What is foreign is checked here: in a transcript, a wrong signature would show only when somebody verifies it.
        match self
            .verifying_key
            .verify_strict(message, &Signature::from_bytes(&signature))
        {
            Ok(()) => Ok(signature),
            Err(_) => Err(SignerError::Mismatch {
                public_key: self.public_key,
            }),
        }
    }
}
