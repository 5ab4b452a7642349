use super::Value;
use super::error::{EncodingError, EncodingErrorKind as Kind};
use super::head::{self, Head};

/// A view of one item in bytes that were checked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Item<'a> {
    /// An integer from 0 on.
    Unsigned(u64),
    /// The integer `-1 - n`.
    Negative(u64),
    /// A float.
    Float(f64),
    /// False or true.
    Bool(bool),
    /// Null.
    Null,
    /// A byte string.
    Bytes(&'a [u8]),
    /// Text.
    Text(&'a str),
    /// An array.
    Array(Array<'a>),
    /// A map.
    Map(Map<'a>),
}

/// A view of an array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    /// From the first element on; may go on after the last.
    bytes: &'a [u8],
    count: u64,
}

/// A view of a map. Keys come in bytewise order of their encoding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Map<'a> {
    bytes: &'a [u8],
    count: u64,
}

impl<'a> Array<'a> {
    /// How many elements there are.
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The elements, in order.
    pub fn iter(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        items(self.bytes, self.count)
    }
}

impl<'a> Map<'a> {
    /// How many pairs there are.
    pub const fn len(&self) -> u64 {
        self.count
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Item<'a>, Item<'a>)> + use<'a> {
        let mut items = items(self.bytes, self.count.saturating_mul(2));
        std::iter::from_fn(move || Some((items.next()?, items.next()?)))
    }
}

fn items(bytes: &[u8], count: u64) -> impl Iterator<Item = Item<'_>> {
    let mut left = count;
    let mut at = 0;
    std::iter::from_fn(move || {
        left = left.checked_sub(1)?;
        // The bytes were checked before a view of them was made.
        let (item, next) = Item::read(bytes, at).ok()?;
        at = next;
        Some(item)
    })
}

impl<'a> Item<'a> {
    /// Reads the item at `at`, and gives the offset after it. Nested items are only skipped: the scan checks them.
    pub(super) fn read(bytes: &'a [u8], at: usize) -> Result<(Self, usize), EncodingError> {
        let (head, next) = head::read(bytes, at)?;
        Ok(match head {
            Head::Unsigned(number) => (Self::Unsigned(number), next),
            Head::Negative(number) => (Self::Negative(number), next),
            Head::Float(number) => (Self::Float(number), next),
            Head::Bool(value) => (Self::Bool(value), next),
            Head::Null => (Self::Null, next),
            Head::Bytes(length) => {
                let content = content(bytes, next, length)?;
                (Self::Bytes(content), next + content.len())
            }
            Head::Text(length) => {
                let content = content(bytes, next, length)?;
                let text = std::str::from_utf8(content).map_err(|_| Kind::InvalidText.at(at))?;
                (Self::Text(text), next + content.len())
            }
            Head::Array(count) => (
                Self::Array(Array {
                    bytes: &bytes[next..],
                    count,
                }),
                skip(bytes, next, count)?,
            ),
            Head::Map(count) => (
                Self::Map(Map {
                    bytes: &bytes[next..],
                    count,
                }),
                skip(bytes, next, count.saturating_mul(2))?,
            ),
        })
    }

    /// What it is, in a few words, for messages.
    pub fn describe(&self) -> String {
        match self {
            Self::Unsigned(number) => format!("integer {number}"),
            Self::Negative(number) => format!("integer {}", -1 - i128::from(*number)),
            Self::Float(number) => format!("float {number:?}"),
            Self::Bool(value) => format!("{value}"),
            Self::Null => "null".to_owned(),
            Self::Bytes(bytes) => format!("{} bytes", bytes.len()),
            Self::Text(text) => format!("text {}", quote(text)),
            Self::Array(array) => format!("a list of {}", array.len()),
            Self::Map(map) => format!("a map of {}", map.len()),
        }
    }

    /// A copy that owns what it holds.
    ///
    /// An item of one byte takes some forty when owned; who reads foreign bytes counts them first.
    ///
    /// # Errors
    /// Gives the first map key that is no text.
    pub fn to_value(&self) -> Result<Value, Item<'a>> {
        Ok(match self {
            Self::Unsigned(number) => Value::Unsigned(*number),
            Self::Negative(number) => Value::Negative(*number),
            Self::Float(number) => Value::Float(*number),
            Self::Bool(value) => Value::Bool(*value),
            Self::Null => Value::Null,
            Self::Bytes(bytes) => Value::Bytes(bytes.to_vec()),
            Self::Text(text) => Value::Text((*text).to_owned()),
            Self::Array(array) => Value::Array(array.iter().map(|item| item.to_value()).collect::<Result<_, _>>()?),
            Self::Map(map) => Value::Map(
                map.iter()
                    .map(|(key, value)| match key {
                        Self::Text(key) => Ok((key.into(), value.to_value()?)),
                        other => Err(other),
                    })
                    .collect::<Result<_, _>>()?,
            ),
        })
    }
}

/// Text in quotes, on one line and cut to what a message can hold.
pub(crate) fn quote(text: &str) -> String {
    const SHOWN_CHARACTERS: usize = 64;
    let shown: String = text.chars().take(SHOWN_CHARACTERS).collect();
    if shown.len() < text.len() {
        format!("{shown:?}…")
    } else {
        format!("{shown:?}")
    }
}

fn content(bytes: &[u8], at: usize, length: u64) -> Result<&[u8], EncodingError> {
    usize::try_from(length)
        .ok()
        .and_then(|length| bytes.get(at..)?.get(..length))
        .ok_or(Kind::Truncated.at(at))
}

/// Skips that many items, and what is inside them.
fn skip(bytes: &[u8], mut at: usize, mut items: u64) -> Result<usize, EncodingError> {
    while items > 0 {
        let (head, next) = head::read(bytes, at)?;
        items -= 1;
        at = match head {
            Head::Bytes(length) | Head::Text(length) => next + content(bytes, next, length)?.len(),
            Head::Array(count) => {
                items = items.saturating_add(count);
                next
            }
            Head::Map(count) => {
                items = items.saturating_add(count.saturating_mul(2));
                next
            }
            _ => next,
        };
    }
    Ok(at)
}
