//! Values of a GGUF file's metadata: numbers, flags, texts, and lists of them that stay in the file until asked for.
//!
//! A list is walked once when the file is opened, so reading it later cannot run past the end; it takes no memory before,
//! which keeps a small hostile file from becoming a large allocation.

use std::ops::Range;

use anyhow::{Context, Result, bail};

use super::cursor::Cursor;

/// A value of the metadata.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    /// A whole number, signed or not, of any width.
    Integer(i128),
    /// A floating point number.
    Float(f64),
    /// A boolean.
    Flag(bool),
    /// A text; bytes that are not UTF-8 are replaced.
    Text(String),
    /// Values of one kind.
    List(List),
}

/// Where in the file the elements of a list lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct List {
    kind: Kind,
    count: usize,
    at: Range<usize>,
}

/// What a value is, with the bytes of its width.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Unsigned(usize),
    Signed(usize),
    Float(usize),
    Flag,
    Text,
    List,
}

impl Kind {
    fn from_code(code: u32) -> Result<Self> {
        Ok(match code {
            0 => Self::Unsigned(1),
            1 => Self::Signed(1),
            2 => Self::Unsigned(2),
            3 => Self::Signed(2),
            4 => Self::Unsigned(4),
            5 => Self::Signed(4),
            6 => Self::Float(4),
            7 => Self::Flag,
            8 => Self::Text,
            9 => Self::List,
            10 => Self::Unsigned(8),
            11 => Self::Signed(8),
            12 => Self::Float(8),
            _ => bail!("value type {code} is unknown (expected 0 to 12): the file is damaged"),
        })
    }
}

impl Value {
    /// Reads a value with the code of its type in front.
    ///
    /// # Errors
    /// When the type is unknown, the value does not fit the file, or it is a list of lists.
    pub(super) fn read(cursor: &mut Cursor) -> Result<Self> {
        let kind = Kind::from_code(cursor.u32()?)?;
        Ok(match kind {
            Kind::Unsigned(width) | Kind::Signed(width) => {
                Self::Integer(integer(kind, cursor.take(width)?))
            }
            Kind::Float(4) => Self::Float(widened(f32::from_le_bytes(cursor.fixed()?))),
            Kind::Float(_) => Self::Float(f64::from_le_bytes(cursor.fixed()?)),
            Kind::Flag => Self::Flag(cursor.take(1)? != [0]),
            Kind::Text => Self::Text(String::from_utf8_lossy(cursor.text()?).into_owned()),
            Kind::List => Self::List(List::read(cursor)?),
        })
    }

    /// Returns what kind of value this is, for messages.
    pub(super) fn described(&self) -> String {
        match self {
            Self::Integer(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Flag(flag) => flag.to_string(),
            Self::Text(text) => format!("`{text}`"),
            Self::List(list) => format!("a list of {}", list.count),
        }
    }
}

impl List {
    fn read(cursor: &mut Cursor) -> Result<Self> {
        let kind = Kind::from_code(cursor.u32()?)?;
        let count = cursor.size()?;
        let start = cursor.position();
        let width = match kind {
            Kind::Unsigned(width) | Kind::Signed(width) | Kind::Float(width) => width,
            Kind::Flag => 1,
            Kind::Text => {
                for _ in 0..count {
                    cursor.text()?;
                }
                0
            }
            Kind::List => bail!("a list of lists is not supported"),
        };
        cursor.take(count.saturating_mul(width))?;
        let at = start..cursor.position();
        Ok(Self { kind, count, at })
    }

    /// Returns the number of elements.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the elements of a list of texts; `bytes` is the whole file.
    ///
    /// # Errors
    /// When it is a list of something else, or one is not UTF-8.
    pub(super) fn texts<'a>(&self, bytes: &'a [u8]) -> Result<Vec<&'a str>> {
        if self.kind != Kind::Text {
            bail!("not a list of texts");
        }
        let mut cursor = Cursor::new(&bytes[self.at.clone()]);
        (0..self.count)
            .map(|index| {
                let text = cursor.text()?;
                std::str::from_utf8(text).with_context(|| format!("entry {index} is not UTF-8"))
            })
            .collect()
    }

    /// Returns the elements of a list of whole numbers or flags (0 and 1); `bytes` is the whole file.
    ///
    /// # Errors
    /// When it is a list of something else.
    pub(super) fn integers<'a>(&self, bytes: &'a [u8]) -> Result<impl Iterator<Item = i128> + 'a> {
        let kind = self.kind;
        let width = match kind {
            Kind::Unsigned(width) | Kind::Signed(width) => width,
            Kind::Flag => 1,
            _ => bail!("not a list of whole numbers"),
        };
        let elements = bytes[self.at.clone()].chunks_exact(width);
        Ok(elements.map(move |raw| integer(kind, raw)))
    }
}

fn integer(kind: Kind, raw: &[u8]) -> i128 {
    let unsigned = raw
        .iter()
        .rev()
        .fold(0, |number, byte| (number << 8) | i128::from(*byte));
    let half = 1_i128 << (8 * raw.len() - 1);
    match kind {
        Kind::Signed(_) if unsigned >= half => unsigned - 2 * half,
        _ => unsigned,
    }
}

/// The number that was meant: 1e-5 is stored as 9.99999974e-6 in f32, and would stay that in f64.
fn widened(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8]) -> Result<Value> {
        Value::read(&mut Cursor::new(bytes))
    }

    #[test]
    fn whole_numbers_of_every_width_keep_their_sign() {
        for (bytes, number) in [
            (&[0, 0, 0, 0, 255][..], 255),
            (&[1, 0, 0, 0, 255], -1),
            (&[2, 0, 0, 0, 1, 2], 513),
            (&[3, 0, 0, 0, 0, 128], -32_768),
            (&[5, 0, 0, 0, 254, 255, 255, 255], -2),
            (
                &[10, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255],
                u64::MAX.into(),
            ),
            (&[11, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255], -1),
        ] {
            assert_eq!(value(bytes).expect("a number"), Value::Integer(number));
        }
    }

    #[test]
    fn a_float_is_the_decimal_that_was_written() {
        let mut bytes = vec![6, 0, 0, 0];
        bytes.extend(1e-5_f32.to_le_bytes());
        assert_eq!(value(&bytes).expect("a number"), Value::Float(1e-5));
    }

    #[test]
    fn a_list_longer_than_the_file_is_refused() {
        for kind in [0, 6, 7, 8, 10] {
            let mut bytes = vec![9, 0, 0, 0, kind, 0, 0, 0];
            bytes.extend((u64::MAX / 2).to_le_bytes());
            assert!(value(&bytes).is_err(), "kind {kind}");
        }
    }

    #[test]
    fn a_list_of_lists_and_an_unknown_type_are_refused() {
        let nested = [9, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let error = value(&nested).expect_err("nested");
        assert_eq!(error.to_string(), "a list of lists is not supported");
        let error = value(&[13, 0, 0, 0]).expect_err("unknown");
        assert!(error.to_string().starts_with("value type 13 is unknown"));
    }
}
