//! The place of one file in the cache: the blob, what has come of it so far, and the snapshot's link to it.

use std::io;
use std::path::PathBuf;

use anyhow::Result;

use super::blob::Expected;
use super::cache;
use super::progress::Bar;
use crate::checkpoint::placeholder;

/// The place of one file in the cache.
pub(super) struct Slot {
    /// Where the content is kept.
    pub(super) blob: PathBuf,
    /// Where the snapshot has it.
    pub(super) pointer: PathBuf,
    /// What the content must be.
    pub(super) expected: Expected,
}

impl Slot {
    /// Returns whether the snapshot has the file with the right content, linking a blob that is already here and
    /// removing what is wrong.
    pub(super) fn is_filled(&self, bar: &mut Bar) -> Result<bool> {
        if self.expected.is_in(&self.pointer, bar)? {
            return Ok(true);
        }
        if self.pointer.exists() || placeholder::broken_link(&self.pointer).is_some() {
            std::fs::remove_file(&self.pointer)?;
        }
        if !self.blob.exists() && self.part_bytes() == self.expected.size {
            // Ended between the last byte and the renaming.
            std::fs::rename(self.part(), &self.blob).or_else(unless_absent)?;
        }
        if self.expected.is_in(&self.blob, bar)? {
            cache::place(&self.blob, &self.pointer)?;
            return Ok(true);
        }
        std::fs::remove_file(&self.blob).or_else(unless_absent)?;
        Ok(false)
    }

    /// Returns whether a transfer that ended without an error brought too little; what came is kept to go on from.
    pub(super) fn was_cut(&self) -> io::Result<bool> {
        let is_short = std::fs::metadata(&self.blob)?.len() < self.expected.size;
        if is_short {
            std::fs::rename(&self.blob, self.part())?;
        }
        Ok(is_short)
    }

    /// Returns the bytes that have come so far.
    pub(super) fn part_bytes(&self) -> u64 {
        std::fs::metadata(self.part()).map_or(0, |part| part.len())
    }

    /// Throws away what has come so far.
    pub(super) fn start_over(&self) -> io::Result<()> {
        std::fs::remove_file(self.part()).or_else(unless_absent)
    }

    /// Where hf-hub keeps what has come so far.
    fn part(&self) -> PathBuf {
        self.blob.with_extension("part")
    }
}

fn unless_absent(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}
