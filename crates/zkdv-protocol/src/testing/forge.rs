use ed25519_dalek::{Signer as _, SigningKey};
use zkdv_hash::Digest;

use crate::cose::{self, Purpose};
use crate::key::{PublicKey, Signer, SignerError};
use crate::record::Body;

/// A key that follows from a number.
#[derive(Clone, Debug)]
pub struct TestKey(SigningKey);

impl TestKey {
    /// The key of this number and purpose.
    pub fn new(purpose: &str, number: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("zkdv 1 keys for tests");
        hasher.update(&number.to_le_bytes()).update(purpose.as_bytes());
        Self(SigningKey::from_bytes(hasher.finalize().as_bytes()))
    }

    /// Its public half.
    pub fn public(&self) -> PublicKey {
        self.0.verifying_key().into()
    }
}

impl Signer for TestKey {
    fn public_key(&self) -> PublicKey {
        self.public()
    }

    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignerError> {
        Ok(self.0.sign(message).to_bytes())
    }
}

/// Chains and signs whatever it is given.
#[derive(Clone, Debug)]
pub struct Forge {
    /// Signs roots and resumes.
    pub identity: TestKey,
    /// Signs everything else.
    pub session: TestKey,
    /// Number of the next record.
    pub seq: u64,
    /// Digest of the last record.
    pub prev: Digest,
    /// The records, in their order.
    pub records: Vec<Vec<u8>>,
    /// Session keys that were replaced.
    pub rotations: u64,
    number: u64,
}

impl Forge {
    /// A forge whose keys follow from a number.
    pub fn new(number: u64) -> Self {
        Self {
            identity: TestKey::new("identity", number),
            session: TestKey::new("session", number),
            seq: 0,
            prev: Digest::ZERO,
            records: Vec::new(),
            rotations: 0,
            number,
        }
    }

    /// The key that follows the present session key.
    pub fn next_session(&self) -> TestKey {
        TestKey::new(&format!("session {}", self.rotations), self.number)
    }

    /// Signs and chains a body with the key that is in force, and takes over the next key that it names.
    pub fn push(&mut self, body: &Body) -> Digest {
        let payload = body.encode_payload(self.seq, &self.prev);
        let next = self.next_session();
        let signer = if body.record_type().is_signed_by_identity() {
            self.identity.clone()
        } else {
            self.session.clone()
        };
        let digest = self.push_payload(&payload, &signer);
        let named = match body {
            Body::Update(update) => update.next_key,
            Body::Resume(resume) => Some(resume.session_key),
            _ => None,
        };
        if named == Some(next.public()) {
            self.session = next;
            self.rotations += 1;
        }
        digest
    }

    /// Signs and chains any payload with any key.
    pub fn push_payload(&mut self, payload: &[u8], signer: &TestKey) -> Digest {
        let record = cose::seal(Purpose::Record, payload, signer).expect("a key in memory signs");
        self.prev = Digest::from(blake3::hash(&record));
        self.seq += 1;
        self.records.push(record);
        self.prev
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        self.records.concat()
    }
}
