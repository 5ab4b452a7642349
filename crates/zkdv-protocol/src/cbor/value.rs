use std::collections::BTreeMap;

/// An item to be written: a tree that owns what it holds, with text as keys of maps.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer from 0 on.
    Unsigned(u64),
    /// The integer `-1 - n`.
    Negative(u64),
    /// A float. Stays a float when it is a whole number.
    Float(f64),
    /// False or true.
    Bool(bool),
    /// Null.
    Null,
    /// A byte string.
    Bytes(Vec<u8>),
    /// Text.
    Text(String),
    /// An array.
    Array(Vec<Value>),
    /// A map.
    Map(BTreeMap<Key, Value>),
}

/// A text key. Keys are ordered as deterministic encoding orders them: shorter ones first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0.len(), &self.0).cmp(&(other.0.len(), &other.0))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Value {
    /// The map of these pairs; a later pair replaces an earlier one with the same key.
    pub fn map<K: Into<Key>>(pairs: impl IntoIterator<Item = (K, Self)>) -> Self {
        Self::Map(pairs.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// Sets an entry of a map where there is a value. Does nothing to what is no map.
    #[must_use]
    pub fn with(mut self, key: &str, value: Option<impl Into<Self>>) -> Self {
        if let (Self::Map(map), Some(value)) = (&mut self, value) {
            map.insert(key.into(), value.into());
        }
        self
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Unsigned(number)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        u64::try_from(number).map_or_else(|_| Self::Negative(!number.cast_unsigned()), Self::Unsigned)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Float(number)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Self::Bytes(bytes.to_vec())
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}
