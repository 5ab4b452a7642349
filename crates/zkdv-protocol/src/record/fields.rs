//! Reading maps with known keys, and the small types of the grammar.

use super::error::BodyError;
use crate::cbor::{Item, Value};
use crate::key::PublicKey;
use crate::limits::MAX_NAME_BYTES;
use zkdv_hash::Digest;

pub(crate) type Parsed<T> = Result<T, BodyError>;

/// The entries of a map whose keys the grammar names.
pub(crate) struct Fields<'a> {
    /// Those that were not taken yet.
    entries: Vec<(Item<'a>, Item<'a>)>,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(item: Item<'a>) -> Parsed<Self> {
        /// More than any map of the grammar has: reading a map that has more would be wasted work.
        const MOST: u64 = 32;
        match item {
            Item::Map(map) if map.len() <= MOST => Ok(Self {
                entries: map.iter().collect(),
            }),
            other => Err(BodyError::item(format!("a map of at most {MOST}"), &other)),
        }
    }

    pub(crate) fn required<T>(&mut self, key: &'static str, read: impl FnOnce(Item<'a>) -> Parsed<T>) -> Parsed<T> {
        self.optional(key, read)?
            .ok_or_else(|| BodyError::new("an entry", "none").within(key))
    }

    pub(crate) fn optional<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(Item<'a>) -> Parsed<T>,
    ) -> Parsed<Option<T>> {
        let Some(index) = self.entries.iter().position(|(name, _)| *name == Item::Text(key)) else {
            return Ok(None);
        };
        let (_, item) = self.entries.swap_remove(index);
        read(item).map(Some).map_err(|error| error.within(key))
    }

    /// Refuses entries that were not taken: all but those that `known` names.
    pub(crate) fn finish(self, known: &[&str]) -> Parsed<()> {
        match self.entries.first() {
            Some((key, _)) => Err(BodyError::item(format!("no entries but {}", known.join(", ")), key)),
            None => Ok(()),
        }
    }
}

pub(crate) fn unsigned(item: Item<'_>) -> Parsed<u64> {
    match item {
        Item::Unsigned(number) => Ok(number),
        other => Err(BodyError::item("an unsigned integer", &other)),
    }
}

pub(crate) fn float(item: Item<'_>) -> Parsed<f64> {
    match item {
        Item::Float(number) => Ok(number),
        other => Err(BodyError::item("a float", &other)),
    }
}

pub(crate) fn boolean(item: Item<'_>) -> Parsed<bool> {
    match item {
        Item::Bool(value) => Ok(value),
        other => Err(BodyError::item("true or false", &other)),
    }
}

pub(crate) fn text(item: Item<'_>) -> Parsed<&str> {
    match item {
        Item::Text(text) => Ok(text),
        other => Err(BodyError::item("text", &other)),
    }
}

/// Text of 1 to `MAX_NAME_BYTES` bytes.
pub(crate) fn name(item: Item<'_>) -> Parsed<String> {
    text_of(1, MAX_NAME_BYTES)(item)
}

pub(crate) fn text_of(shortest: usize, longest: usize) -> impl Fn(Item<'_>) -> Parsed<String> {
    move |item| match item {
        Item::Text(text) if (shortest..=longest).contains(&text.len()) => Ok(text.to_owned()),
        other => Err(BodyError::item(
            format!("text of {shortest} to {longest} bytes"),
            &other,
        )),
    }
}

pub(crate) fn bytes(longest: usize) -> impl Fn(Item<'_>) -> Parsed<Vec<u8>> {
    move |item| match item {
        Item::Bytes(bytes) if bytes.len() <= longest => Ok(bytes.to_vec()),
        other => Err(BodyError::item(format!("at most {longest} bytes"), &other)),
    }
}

fn array<const N: usize>(item: Item<'_>) -> Parsed<[u8; N]> {
    match item {
        Item::Bytes(bytes) => bytes
            .try_into()
            .map_err(|_| BodyError::item(format!("{N} bytes"), &item)),
        other => Err(BodyError::item(format!("{N} bytes"), &other)),
    }
}

pub(crate) fn digest(item: Item<'_>) -> Parsed<Digest> {
    array(item).map(Digest::from_bytes)
}

pub(crate) fn public_key(item: Item<'_>) -> Parsed<PublicKey> {
    array(item).map(PublicKey::from_bytes)
}

/// A list of at most `most` elements.
pub(crate) fn list<'a, T>(most: usize, read: impl Fn(Item<'a>) -> Parsed<T>) -> impl Fn(Item<'a>) -> Parsed<Vec<T>> {
    move |item| match item {
        Item::Array(array) if array.len() <= most as u64 => array
            .iter()
            .enumerate()
            .map(|(index, item)| read(item).map_err(|error| error.within_index(index)))
            .collect(),
        other => Err(BodyError::item(format!("a list of at most {most}"), &other)),
    }
}

pub(crate) fn non_empty<'a, T>(read: impl Fn(Item<'a>) -> Parsed<Vec<T>>) -> impl Fn(Item<'a>) -> Parsed<Vec<T>> {
    move |item| {
        let list = read(item)?;
        if list.is_empty() {
            Err(BodyError::item("a list of at least one", &item))
        } else {
            Ok(list)
        }
    }
}

/// A map of at most `most` names to what `read` reads.
pub(crate) fn named<'a, T>(
    most: usize,
    read: impl Fn(Item<'a>) -> Parsed<T>,
) -> impl Fn(Item<'a>) -> Parsed<Vec<(String, T)>> {
    move |item| match item {
        Item::Map(map) if map.len() <= most as u64 => map
            .iter()
            .map(|(key, value)| {
                let key = name(key)?;
                let value = read(value).map_err(|error| error.within(&crate::cbor::quote(&key)))?;
                Ok((key, value))
            })
            .collect(),
        other => Err(BodyError::item(format!("a map of at most {most}"), &other)),
    }
}

pub(crate) fn digests(digests: &[Digest]) -> Value {
    Value::Array(digests.iter().map(digest_value).collect())
}

pub(crate) fn digest_value(digest: &Digest) -> Value {
    Value::Bytes(digest.as_bytes().to_vec())
}

/// An enumeration whose members the grammar writes as text.
macro_rules! text_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$member_doc:meta])* $member:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$member_doc])* $member,)+ }

        impl $name {
            /// All members.
            pub const ALL: &[Self] = &[$(Self::$member),+];

            /// The name that stands in a record.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$member => $text,)+ }
            }

            pub(crate) fn from_item(item: $crate::cbor::Item<'_>) -> Result<Self, $crate::record::BodyError> {
                match item {
                    $($crate::cbor::Item::Text($text) => Ok(Self::$member),)+
                    other => Err($crate::record::BodyError::item(concat!("one of", $(" \"", $text, "\"",)+), &other)),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str(self.as_str())
            }
        }

        impl From<$name> for $crate::cbor::Value {
            fn from(member: $name) -> Self {
                member.as_str().into()
            }
        }
    };
}
pub(crate) use text_enum;
