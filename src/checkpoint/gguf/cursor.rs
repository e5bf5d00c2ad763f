//! Little-endian reading of bytes that nobody has checked: every step is bounded by the end of the file.

use anyhow::{Context, Result, ensure};

/// A place in the bytes of a file.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl<'a> Cursor<'a> {
    /// Returns a cursor at the first byte.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, position: 0 }
    }

    /// Returns how many bytes lie before the cursor.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Returns the next `size` bytes and steps over them.
    ///
    /// # Errors
    /// When the file has fewer.
    pub(super) fn take(&mut self, size: usize) -> Result<&'a [u8]> {
        let rest = &self.bytes[self.position..];
        let taken = rest.get(..size).with_context(|| {
            format!(
                "{size} bytes at byte {} do not fit the file of {} bytes, which is cut short or damaged (download it again)",
                self.position,
                self.bytes.len()
            )
        })?;
        self.position += size;
        Ok(taken)
    }

    /// Returns the next `N` bytes as an array.
    ///
    /// # Errors
    /// When the file has fewer.
    pub(super) fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("as many bytes as were asked for"))
    }

    /// Reads a whole number of four bytes.
    ///
    /// # Errors
    /// When the file ends before.
    pub(super) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.fixed()?))
    }

    /// Reads a count, length or offset of eight bytes.
    ///
    /// # Errors
    /// When the file ends before, or this machine cannot count so far.
    pub(super) fn size(&mut self) -> Result<usize> {
        let size = u64::from_le_bytes(self.fixed()?);
        usize::try_from(size).with_context(|| format!("{size} is more than this machine can count"))
    }

    /// Reads the number of `what` that follow, each of `least` bytes or more.
    ///
    /// # Errors
    /// When the rest of the file has no room for so many.
    pub(super) fn count(&mut self, what: &str, least: usize) -> Result<usize> {
        let count = self.size()?;
        let rest = self.bytes.len() - self.position;
        ensure!(
            count <= rest / least,
            "{count} {what} announced, but only {rest} bytes follow: the file is cut short or damaged (download it again)"
        );
        Ok(count)
    }

    /// Reads a text: its length, then its bytes.
    ///
    /// # Errors
    /// When it does not fit the file.
    pub(super) fn text(&mut self) -> Result<&'a [u8]> {
        let size = self.size()?;
        self.take(size)
    }
}
