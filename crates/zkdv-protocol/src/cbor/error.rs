use thiserror::Error;

/// Bytes that are not deterministic CBOR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("at byte {offset}: {kind}")]
pub struct EncodingError {
    /// What is wrong.
    pub kind: EncodingErrorKind,
    /// Where the offending item starts, counted from the first byte that was given.
    pub offset: usize,
}

/// What can be wrong with an encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum EncodingErrorKind {
    /// The bytes end inside an item.
    #[error("the bytes end inside an item")]
    Truncated,
    /// An additional-information value that CBOR reserves, or a lone "break".
    #[error("a head that CBOR does not define")]
    Undefined,
    /// Text that is not UTF-8.
    #[error("text that is not UTF-8")]
    InvalidText,
    /// Arrays and maps nested deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
    #[error("arrays and maps nested more than {} deep", super::MAX_DEPTH)]
    TooDeep,
    /// An integer or a length in more bytes than it needs.
    #[error("an integer or length in more bytes than it needs")]
    LongInteger,
    /// A float in more bytes than it needs.
    #[error("a float in more bytes than it needs")]
    LongFloat,
    /// A NaN other than `F97E00`.
    #[error("a NaN other than F97E00")]
    OtherNan,
    /// An item of indefinite length.
    #[error("an item of indefinite length")]
    Indefinite,
    /// A tag.
    #[error("a tag, which the format does not have here")]
    Tag,
    /// A simple value other than false, true and null.
    #[error("a simple value other than false, true and null")]
    Simple,
    /// A map key that is neither an unsigned integer nor text.
    #[error("a map key that is neither an unsigned integer nor text")]
    KeyType,
    /// Map keys that are not in bytewise order of their encoding.
    #[error("map keys that are not in bytewise order of their encoding")]
    KeyOrder,
    /// One key twice in a map.
    #[error("a key that stands twice in one map")]
    DuplicateKey,
    /// Bytes after the item.
    #[error("bytes after the end of the item")]
    TrailingBytes,
}

impl EncodingErrorKind {
    pub(crate) const fn at(self, offset: usize) -> EncodingError {
        EncodingError { kind: self, offset }
    }
}
