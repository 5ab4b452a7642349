use super::error::{EncodingError, EncodingErrorKind as Kind};
use super::head::{self, Head};
use super::{Item, MAX_DEPTH};
use std::cmp::Ordering;
use std::ops::Range;

/// Checks that `bytes` are exactly one deterministic item, and gives a view of it.
///
/// Takes time linear in the length and allocates nothing.
///
/// # Errors
/// Names the first thing that is wrong and the offset of the item at which it is.
pub fn decode(bytes: &[u8]) -> Result<Item<'_>, EncodingError> {
    let end = measure(bytes)?;
    if end != bytes.len() {
        return Err(Kind::TrailingBytes.at(end));
    }
    Item::read(bytes, 0).map(|(item, _)| item)
}

/// Checks that `bytes` start with one deterministic item, and gives its length in bytes.
///
/// # Errors
/// As [`decode`], without the complaint about bytes after the item.
pub fn measure(bytes: &[u8]) -> Result<usize, EncodingError> {
    let mut open = Open {
        levels: [const { None }; MAX_DEPTH],
        depth: 0,
    };
    let mut at = 0;
    loop {
        let start = at;
        let (head, after_head) = head::read(bytes, at)?;
        at = after_head;
        let mut opened = None;
        match head {
            Head::Bytes(length) => at = skip(bytes, start, at, length)?,
            Head::Text(length) => {
                let end = skip(bytes, start, at, length)?;
                if std::str::from_utf8(&bytes[at..end]).is_err() {
                    return Err(Kind::InvalidText.at(start));
                }
                at = end;
            }
            Head::Array(count) => {
                opened = Some(Level {
                    items: count,
                    map: None,
                });
            }
            // Twice as many items as pairs: no file holds a map whose count would overflow here.
            Head::Map(count) => {
                opened = Some(Level {
                    items: count.saturating_mul(2),
                    map: Some(LastKey(None)),
                });
            }
            _ => {}
        }
        open.check_key(bytes, start..at, &head)?;
        open.count_item();
        if let Some(level) = opened {
            open.enter(level, start)?;
        }
        if open.leave_finished() {
            return Ok(at);
        }
    }
}

fn skip(bytes: &[u8], start: usize, at: usize, length: u64) -> Result<usize, EncodingError> {
    usize::try_from(length)
        .ok()
        .and_then(|length| at.checked_add(length))
        .filter(|&end| end <= bytes.len())
        .ok_or(Kind::Truncated.at(start))
}

/// The arrays and maps around the place that is being read.
struct Open {
    levels: [Option<Level>; MAX_DEPTH],
    depth: usize,
}

struct Level {
    /// Items still to come; in a map a key and a value are two.
    items: u64,
    map: Option<LastKey>,
}

struct LastKey(Option<Range<usize>>);

impl Open {
    fn innermost(&mut self) -> Option<&mut Level> {
        self.depth.checked_sub(1).and_then(|index| self.levels[index].as_mut())
    }

    fn check_key(&mut self, bytes: &[u8], key: Range<usize>, head: &Head) -> Result<(), EncodingError> {
        let Some(Level { items, map: Some(last) }) = self.innermost() else {
            return Ok(());
        };
        if *items % 2 == 1 {
            return Ok(());
        }
        if !matches!(head, Head::Unsigned(_) | Head::Text(_)) {
            return Err(Kind::KeyType.at(key.start));
        }
        if let Some(last) = &last.0 {
            match bytes[last.clone()].cmp(&bytes[key.clone()]) {
                Ordering::Less => {}
                Ordering::Equal => return Err(Kind::DuplicateKey.at(key.start)),
                Ordering::Greater => return Err(Kind::KeyOrder.at(key.start)),
            }
        }
        last.0 = Some(key);
        Ok(())
    }

    fn count_item(&mut self) {
        if let Some(level) = self.innermost() {
            level.items -= 1;
        }
    }

    fn enter(&mut self, level: Level, start: usize) -> Result<(), EncodingError> {
        *self.levels.get_mut(self.depth).ok_or(Kind::TooDeep.at(start))? = Some(level);
        self.depth += 1;
        Ok(())
    }

    /// Whether the outermost item is complete.
    fn leave_finished(&mut self) -> bool {
        while let Some(level) = self.innermost() {
            if level.items > 0 {
                return false;
            }
            self.depth -= 1;
        }
        true
    }
}
