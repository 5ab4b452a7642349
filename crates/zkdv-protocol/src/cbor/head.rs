use super::error::{EncodingError, EncodingErrorKind as Kind};
use half::f16;

/// The head of an item: its type and, where it has one, its number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Head {
    Unsigned(u64),
    /// The integer `-1 - n`.
    Negative(u64),
    Bytes(u64),
    Text(u64),
    Array(u64),
    /// A map and how many pairs it has.
    Map(u64),
    Bool(bool),
    Null,
    Float(f64),
}

/// Reads the head at `at`, strictly. Gives it with the offset of the byte after it.
pub(crate) fn read(bytes: &[u8], at: usize) -> Result<(Head, usize), EncodingError> {
    let initial = *bytes.get(at).ok_or(Kind::Truncated.at(at))?;
    let (major, info) = (initial >> 5, initial & 0x1f);
    if major == 7 {
        return read_simple(bytes, at, info);
    }
    let (number, next) = read_number(bytes, at, info)?;
    let head = match major {
        0 => Head::Unsigned(number),
        1 => Head::Negative(number),
        2 => Head::Bytes(number),
        3 => Head::Text(number),
        4 => Head::Array(number),
        5 => Head::Map(number),
        _ => return Err(Kind::Tag.at(at)),
    };
    Ok((head, next))
}

fn read_number(bytes: &[u8], at: usize, info: u8) -> Result<(u64, usize), EncodingError> {
    let (number, width) = match info {
        0..=23 => return Ok((u64::from(info), at + 1)),
        24 => (u64::from(argument::<1>(bytes, at)?[0]), 1),
        25 => (u64::from(u16::from_be_bytes(argument(bytes, at)?)), 2),
        26 => (u64::from(u32::from_be_bytes(argument(bytes, at)?)), 4),
        27 => (u64::from_be_bytes(argument(bytes, at)?), 8),
        31 => return Err(Kind::Indefinite.at(at)),
        _ => return Err(Kind::Undefined.at(at)),
    };
    if width != number_width(number) {
        return Err(Kind::LongInteger.at(at));
    }
    Ok((number, at + 1 + width))
}

/// How many bytes a number takes after its initial byte.
const fn number_width(number: u64) -> usize {
    match number {
        0..=23 => 0,
        24..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xffff_ffff => 4,
        _ => 8,
    }
}

fn read_simple(bytes: &[u8], at: usize, info: u8) -> Result<(Head, usize), EncodingError> {
    let (value, width) = match info {
        20 => return Ok((Head::Bool(false), at + 1)),
        21 => return Ok((Head::Bool(true), at + 1)),
        22 => return Ok((Head::Null, at + 1)),
        25 => (f16::from_be_bytes(argument(bytes, at)?).to_f64(), 2),
        26 => (f64::from(f32::from_be_bytes(argument(bytes, at)?)), 4),
        27 => (f64::from_be_bytes(argument(bytes, at)?), 8),
        28..=31 => return Err(Kind::Undefined.at(at)),
        _ => return Err(Kind::Simple.at(at)),
    };
    let next = at + 1 + width;
    if value.is_nan() {
        if bytes[at..next] != NAN {
            return Err(Kind::OtherNan.at(at));
        }
    } else if width != FloatForm::of(value).width() {
        return Err(Kind::LongFloat.at(at));
    }
    Ok((Head::Float(value), next))
}

/// The `N` bytes after the initial byte at `at`.
fn argument<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], EncodingError> {
    bytes
        .get(at + 1..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .ok_or(Kind::Truncated.at(at))
}

const NAN: [u8; 3] = [0xf9, 0x7e, 0x00];

/// Writes the shortest head.
pub(crate) fn write(head: Head, out: &mut Vec<u8>) {
    match head {
        Head::Unsigned(number) => write_number(0, number, out),
        Head::Negative(number) => write_number(1, number, out),
        Head::Bytes(number) => write_number(2, number, out),
        Head::Text(number) => write_number(3, number, out),
        Head::Array(number) => write_number(4, number, out),
        Head::Map(number) => write_number(5, number, out),
        Head::Bool(false) => out.push(0xf4),
        Head::Bool(true) => out.push(0xf5),
        Head::Null => out.push(0xf6),
        Head::Float(value) if value.is_nan() => out.extend_from_slice(&NAN),
        Head::Float(value) => match FloatForm::of(value) {
            FloatForm::Half(value) => {
                out.push(0xf9);
                out.extend_from_slice(&value.to_be_bytes());
            }
            FloatForm::Single(value) => {
                out.push(0xfa);
                out.extend_from_slice(&value.to_be_bytes());
            }
            FloatForm::Double(value) => {
                out.push(0xfb);
                out.extend_from_slice(&value.to_be_bytes());
            }
        },
    }
}

#[allow(
    clippy::cast_possible_truncation,
    reason = "each arm's number fits the width it is written in"
)]
fn write_number(major: u8, number: u64, out: &mut Vec<u8>) {
    let initial = major << 5;
    match number_width(number) {
        0 => out.push(initial | number as u8),
        1 => out.extend_from_slice(&[initial | 0x18, number as u8]),
        2 => {
            out.push(initial | 0x19);
            out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        4 => {
            out.push(initial | 0x1a);
            out.extend_from_slice(&(number as u32).to_be_bytes());
        }
        _ => {
            out.push(initial | 0x1b);
            out.extend_from_slice(&number.to_be_bytes());
        }
    }
}

/// The shortest form that holds a number (not NaN) exactly.
enum FloatForm {
    Half(f16),
    Single(f32),
    Double(f64),
}

impl FloatForm {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::float_cmp,
        reason = "exact comparison shows whether narrowing lost anything"
    )]
    fn of(value: f64) -> Self {
        let single = value as f32;
        if f64::from(single) != value {
            return Self::Double(value);
        }
        let half = f16::from_f32(single);
        if half.to_f32() == single {
            Self::Half(half)
        } else {
            Self::Single(single)
        }
    }

    const fn width(&self) -> usize {
        match self {
            Self::Half(_) => 2,
            Self::Single(_) => 4,
            Self::Double(_) => 8,
        }
    }
}
