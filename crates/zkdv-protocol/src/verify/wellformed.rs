//! What bytes that are no record are instead: other CBOR, or nothing that can be read.

use crate::cbor::MAX_DEPTH;

/// What a stretch of bytes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wellformed {
    /// CBOR items, deterministically encoded as far as lengths go.
    Deterministic,
    /// CBOR items, some with longer heads than needed or of indefinite length.
    NotDeterministic,
    /// Items nested deeper than the format allows.
    TooDeep,
    /// No CBOR items, or none that resemble a record.
    No,
}

/// Judges bytes that may be CBOR items one after another, of which the first is an array or a tagged item.
///
/// Lenient where the codec is strict: tags and indefinite lengths are read, to be able to say what was found. Takes one pass
/// and memory for [`MAX_DEPTH`] levels.
pub(crate) fn judge(bytes: &[u8]) -> Wellformed {
    if !matches!(bytes.first(), Some(0x80..=0x9f | 0xc0..=0xdb)) {
        return Wellformed::No;
    }
    let mut walk = Walk {
        bytes,
        at: 0,
        deterministic: true,
        levels: Vec::with_capacity(MAX_DEPTH),
    };
    while walk.at < bytes.len() {
        match walk.item() {
            Ok(()) => {}
            Err(Stop::TooDeep) => return Wellformed::TooDeep,
            Err(Stop::Unreadable) => return Wellformed::No,
        }
    }
    if walk.deterministic {
        Wellformed::Deterministic
    } else {
        Wellformed::NotDeterministic
    }
}

enum Stop {
    TooDeep,
    Unreadable,
}

/// What is still to come inside an item that has begun.
enum Level {
    /// That many items.
    Items(u64),
    /// Items up to a break.
    Indefinite,
    /// Pieces of a string of this major type up to a break.
    Pieces(u8),
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    deterministic: bool,
    levels: Vec<Level>,
}

impl Walk<'_> {
    /// Passes over one item and all that is in it.
    fn item(&mut self) -> Result<(), Stop> {
        loop {
            self.head()?;
            while let Some(Level::Items(0)) = self.levels.last() {
                self.levels.pop();
            }
            if self.levels.is_empty() {
                return Ok(());
            }
        }
    }

    fn head(&mut self) -> Result<(), Stop> {
        let initial = *self.bytes.get(self.at).ok_or(Stop::Unreadable)?;
        self.at += 1;
        if initial == 0xff {
            return match self.levels.pop() {
                Some(Level::Indefinite | Level::Pieces(_)) => Ok(()),
                _ => Err(Stop::Unreadable),
            };
        }
        let (major, info) = (initial >> 5, initial & 0x1f);
        match self.levels.last_mut() {
            Some(Level::Items(left)) => *left -= 1,
            Some(Level::Pieces(of)) if *of != major || info == 31 => return Err(Stop::Unreadable),
            _ => {}
        }
        if info == 31 {
            self.deterministic = false;
            return self.enter(match major {
                2 | 3 => Level::Pieces(major),
                4 | 5 => Level::Indefinite,
                _ => return Err(Stop::Unreadable),
            });
        }
        let number = self.argument(major, info)?;
        match major {
            2 | 3 => {
                let end = usize::try_from(number)
                    .ok()
                    .and_then(|length| self.at.checked_add(length));
                self.at = end.filter(|&end| end <= self.bytes.len()).ok_or(Stop::Unreadable)?;
                Ok(())
            }
            4 => self.enter(Level::Items(number)),
            5 => self.enter(Level::Items(number.checked_mul(2).ok_or(Stop::Unreadable)?)),
            // A tag has one item in it. Counted as a level, a chain of tags is bounded like everything else.
            6 => self.enter(Level::Items(1)),
            _ => Ok(()),
        }
    }

    fn argument(&mut self, major: u8, info: u8) -> Result<u64, Stop> {
        let width = match info {
            0..=23 => return Ok(u64::from(info)),
            24..=27 => 1 << (info - 24),
            _ => return Err(Stop::Unreadable),
        };
        let end = self.at + width;
        let bytes = self.bytes.get(self.at..end).ok_or(Stop::Unreadable)?;
        self.at = end;
        let number = bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte));
        let shortest = if width == 1 {
            number > 23
        } else {
            number >> (width * 4) != 0
        };
        // The argument of major type 7 is a float's bits, which have no shorter form to compare with here.
        self.deterministic &= shortest || major == 7;
        Ok(number)
    }

    fn enter(&mut self, level: Level) -> Result<(), Stop> {
        // The tag and the array of a record stand outside its payload, which may itself be nested to the limit.
        if self.levels.len() >= MAX_DEPTH + 2 {
            return Err(Stop::TooDeep);
        }
        self.levels.push(level);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_items_are_told_from_garbage() {
        assert_eq!(judge(&[0xd2, 0x80]), Wellformed::Deterministic);
        assert_eq!(judge(&[0xd8, 0x12, 0x80]), Wellformed::NotDeterministic);
        assert_eq!(
            judge(&[0xd2, 0x9f, 0x5f, 0x41, 0x00, 0xff, 0xff]),
            Wellformed::NotDeterministic
        );
        assert_eq!(judge(&[0x82, 0x01]), Wellformed::No);
        assert_eq!(judge(&[0x80, 0xff]), Wellformed::No);
        assert_eq!(judge(&[0x81, 0x5f, 0x61, 0x00, 0xff]), Wellformed::No);
        assert_eq!(judge(&[0x00; 100]), Wellformed::No);
        assert_eq!(
            judge(&[0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            Wellformed::No
        );
        assert_eq!(judge(&vec![0x81; 1 << 20]), Wellformed::TooDeep);
        assert_eq!(judge(&vec![0xc1; 1 << 20]), Wellformed::TooDeep);
    }

    #[test]
    fn every_input_of_three_bytes_is_judged() {
        for number in 0..1_u32 << 24 {
            judge(&number.to_be_bytes()[1..]);
        }
    }
}
