use super::Value;
use super::head::{self, Head};

/// Writes deterministic items one after another.
///
/// Keys of a map are the caller's to give in order; [`Encoder::value`] does so by itself.
#[derive(Clone, Debug, Default)]
pub struct Encoder {
    out: Vec<u8>,
}

impl Encoder {
    /// An encoder that has written nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.out
    }

    /// An integer from 0 on.
    pub fn unsigned(&mut self, number: u64) -> &mut Self {
        self.head(Head::Unsigned(number))
    }

    /// A byte string.
    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.head(Head::Bytes(bytes.len() as u64));
        self.out.extend_from_slice(bytes);
        self
    }

    /// Text.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.head(Head::Text(text.len() as u64));
        self.out.extend_from_slice(text.as_bytes());
        self
    }

    /// The head of an array; its elements follow.
    pub fn array(&mut self, count: u64) -> &mut Self {
        self.head(Head::Array(count))
    }

    /// The head of a map; its pairs follow.
    pub fn map(&mut self, count: u64) -> &mut Self {
        self.head(Head::Map(count))
    }

    /// A value with all that is in it.
    pub fn value(&mut self, value: &Value) -> &mut Self {
        match value {
            Value::Unsigned(number) => self.unsigned(*number),
            Value::Negative(number) => self.head(Head::Negative(*number)),
            Value::Float(number) => self.head(Head::Float(*number)),
            Value::Bool(value) => self.head(Head::Bool(*value)),
            Value::Null => self.head(Head::Null),
            Value::Bytes(bytes) => self.bytes(bytes),
            Value::Text(text) => self.text(text),
            Value::Array(values) => {
                self.array(values.len() as u64);
                values.iter().fold(self, |encoder, value| encoder.value(value))
            }
            Value::Map(map) => {
                self.map(map.len() as u64);
                map.iter()
                    .fold(self, |encoder, (key, value)| encoder.text(key.as_str()).value(value))
            }
        }
    }

    fn head(&mut self, head: Head) -> &mut Self {
        head::write(head, &mut self.out);
        self
    }
}

impl Value {
    /// The value's deterministic encoding.
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::new();
        encoder.value(self);
        encoder.into_bytes()
    }
}
