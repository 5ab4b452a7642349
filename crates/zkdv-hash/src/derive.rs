//! BLAKE3's key-derivation mode, with the hash of each context string computed once.

use blake3::Hasher;
use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};

use crate::Digest;
use crate::messages::Mode;

/// A context of the key-derivation mode.
pub(crate) struct Context(ContextKey);

impl Context {
    pub(crate) fn new(context: &str) -> Self {
        Self(hash_derive_key_context(context))
    }

    /// The mode of hashing many messages in this context.
    pub(crate) fn mode(&self) -> Mode<'_> {
        Mode::DeriveKey(&self.0)
    }

    /// A hasher in this context.
    pub(crate) fn hasher(&self) -> Hasher {
        Hasher::new_from_context_key(&self.0)
    }

    /// The digest of `data` in this context.
    pub(crate) fn digest(&self, data: &[u8]) -> Digest {
        self.hasher().update(data).finalize().into()
    }
}
