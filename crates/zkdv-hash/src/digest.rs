//! The digest type.

use std::fmt;
use std::str::FromStr;

use crate::HashError;

/// A BLAKE3-256 digest.
///
/// It says nothing of what was hashed or how; the name of its scheme does, and travels with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Length in bytes.
    pub const LENGTH: usize = 32;

    /// Thirty-two zero bytes: the predecessor of a transcript's first record.
    pub const ZERO: Self = Self([0; 32]);

    /// The digest that these bytes are.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes of the digest.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl AsRef<[u8]> for Digest {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl From<Digest> for [u8; 32] {
    fn from(digest: Digest) -> Self {
        digest.0
    }
}

impl From<blake3::Hash> for Digest {
    fn from(hash: blake3::Hash) -> Self {
        Self(*hash.as_bytes())
    }
}

impl TryFrom<&[u8]> for Digest {
    type Error = HashError;

    fn try_from(bytes: &[u8]) -> Result<Self, HashError> {
        bytes
            .try_into()
            .map(Self)
            .map_err(|_| HashError::DigestLength { got: bytes.len() })
    }
}

/// Lower-case hexadecimal.
impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0 {
            write!(formatter, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Digest({self})")
    }
}

/// Reads exactly what [`Display`](fmt::Display) writes: 64 hexadecimal digits in lower case.
impl FromStr for Digest {
    type Err = HashError;

    fn from_str(text: &str) -> Result<Self, HashError> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let refused = || HashError::DigestText { length: text.len() };
        if pairs.len() != Self::LENGTH || !rest.is_empty() {
            return Err(refused());
        }
        let mut bytes = [0; Self::LENGTH];
        for (byte, &[high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = hex_digit(high).ok_or_else(refused)? << 4 | hex_digit(low).ok_or_else(refused)?;
        }
        Ok(Self(bytes))
    }
}

fn hex_digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        let digest = Digest::from(blake3::hash(b"text"));
        assert_eq!(digest.to_string().parse::<Digest>().unwrap(), digest);
        assert_eq!(digest.to_string(), blake3::hash(b"text").to_hex().to_string());
    }

    #[test]
    fn other_text_forms_are_refused() {
        let text = Digest::from(blake3::hash(b"text")).to_string();
        for refused in [
            String::new(),
            text[1..].to_owned(),
            text.to_uppercase(),
            format!("{text}0"),
            format!("{}g", &text[1..]),
            "é".repeat(32),
        ] {
            assert!(refused.parse::<Digest>().is_err(), "{refused}");
        }
    }

    #[test]
    fn other_lengths_are_refused() {
        assert!(Digest::try_from([0; 31].as_slice()).is_err());
        assert!(Digest::try_from([0; 33].as_slice()).is_err());
        assert_eq!(Digest::try_from([0; 32].as_slice()).unwrap(), Digest::ZERO);
    }
}
