use super::{PublicKey, Signer, SignerError};
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey, EncodePrivateKey, KeypairBytes};
use ed25519_dalek::{Signer as _, SigningKey};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use thiserror::Error;
use zeroize::Zeroizing;

/// The user's long-lived key, kept in a file as PKCS#8 PEM (RFC 8410).
pub struct IdentityKey(SigningKey);

/// A key file that cannot be used or made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KeyError {
    /// There is no such file.
    #[error("there is no identity key at {}: create one there, or name the file that holds it", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file can't be read.
    #[error("the identity key {} can't be read: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others than its owner can read or write the file.
    #[error(
        "the identity key {} is open to others than its owner (mode {mode:04o}): run `chmod 600 {}`, and replace the key if anyone else may have read it",
        path.display(), path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file holds something else.
    #[error("{} holds no Ed25519 private key in PKCS#8 PEM form (`-----BEGIN PRIVATE KEY-----`): {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it. Says nothing of the content.
        reason: String,
    },
    /// The file that was to be made is there.
    #[error("{} is there already and is not overwritten: use it as it is, or choose another path", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file can't be made.
    #[error("the identity key {} can't be created: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The operating system gives no randomness.
    #[error("the operating system gives no randomness for a key: {0}")]
    Randomness(#[from] getrandom::Error),
}

impl IdentityKey {
    /// Reads a key file.
    ///
    /// # Errors
    /// Where it is missing, unreadable or no Ed25519 key, or where others than its owner may read or write it.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        // A PKCS#8 Ed25519 key is 119 bytes long, and some hundred more with its public half and remarks around it.
        const LONGEST_BYTES: u64 = 16 << 10;
        let failed = |source| KeyError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => KeyError::Missing { path: path.to_owned() },
            _ => failed(error),
        })?;
        refuse_exposed(path, &file.metadata().map_err(failed)?)?;
        let mut text = Zeroizing::new(String::with_capacity(1 << 10));
        file.take(LONGEST_BYTES + 1)
            .read_to_string(&mut text)
            .map_err(|error| match error.kind() {
                io::ErrorKind::InvalidData => format_error(path, "it is not text"),
                _ => failed(error),
            })?;
        if text.len() as u64 > LONGEST_BYTES {
            return Err(format_error(path, "it is too long"));
        }
        SigningKey::from_pkcs8_pem(&text)
            .map(Self)
            .map_err(|error| format_error(path, &error.to_string()))
    }

    /// Makes a key from the operating system's randomness and writes it to a new file with mode 0600. Folders that are missing
    /// are made with mode 0700.
    ///
    /// The file appears with its whole content or not at all.
    ///
    /// # Errors
    /// Where the file is there already, or can't be made.
    pub fn generate(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Create {
            path: path.to_owned(),
            source,
        };
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(seed.as_mut_slice())?;
        let key = SigningKey::from_bytes(&seed);
        // Without the public half, which other libraries refuse to read: PKCS#8 version 1, as RFC 8410 has it first.
        let text = KeypairBytes {
            secret_key: *seed,
            public_key: None,
        }
        .to_pkcs8_pem(LineEnding::LF)
        .map_err(|error| failed(io::Error::other(error)))?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        create_private_folder(folder).map_err(failed)?;
        // Temporary files are made exclusively and with mode 0600.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
        file.write_all(text.as_bytes())
            .and_then(|()| file.as_file().sync_all())
            .map_err(failed)?;
        file.persist_noclobber(path).map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => KeyError::Exists { path: path.to_owned() },
            _ => failed(error.error),
        })?;
        Ok(Self(key))
    }
}

impl Signer for IdentityKey {
    fn public_key(&self) -> PublicKey {
        self.0.verifying_key().into()
    }

    fn sign(&self, message: &[u8]) -> Result<[u8; 64], SignerError> {
        Ok(self.0.sign(message).to_bytes())
    }
}

/// Shows the public key alone.
impl fmt::Debug for IdentityKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("IdentityKey").field(&self.public_key()).finish()
    }
}

fn format_error(path: &Path, reason: &str) -> KeyError {
    KeyError::Format {
        path: path.to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(unix)]
fn refuse_exposed(path: &Path, metadata: &fs::Metadata) -> Result<(), KeyError> {
    use std::os::unix::fs::PermissionsExt;
    const OTHERS: u32 = 0o077;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & OTHERS == 0 {
        Ok(())
    } else {
        Err(KeyError::Exposed {
            path: path.to_owned(),
            mode,
        })
    }
}

#[cfg(not(unix))]
fn refuse_exposed(_path: &Path, _metadata: &fs::Metadata) -> Result<(), KeyError> {
    Ok(())
}

fn create_private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}
