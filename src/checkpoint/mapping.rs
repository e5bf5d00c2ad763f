//! The bytes of a weight file, mapped into memory so that only what is asked for is read from the disk.
//!
//! A program that shortens the file while it is mapped ends this one with a bus error: no code can prevent that.

use std::fs::File;
use std::io::Read;
use std::ops::{Deref, Range};
use std::path::Path;

use anyhow::{Context, Result};
use memmap2::{Mmap, MmapMut};

/// A file's bytes, aligned to pages.
pub(super) struct FileBytes {
    bytes: Mmap,
    is_mapped: bool,
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl FileBytes {
    /// Takes anonymous memory for a file's.
    pub(super) fn from_memory(bytes: Mmap) -> Self {
        Self {
            bytes,
            is_mapped: false,
        }
    }

    /// Lets the system take back the memory of a part of a mapped file: it is read again where it is asked for again.
    #[cfg(unix)]
    #[allow(unsafe_code, reason = "such advice destroys what only memory holds")]
    pub(super) fn release(&self, part: Range<usize>) {
        if self.is_mapped {
            let advice = memmap2::UncheckedAdvice::DontNeed;
            // SAFETY: the map is read-only and of a file: its pages hold nothing that the file does not.
            let _ = unsafe {
                self.bytes
                    .unchecked_advise_range(advice, part.start, part.len())
            };
        }
    }

    /// Does nothing: this system has no such advice.
    #[cfg(not(unix))]
    pub(super) fn release(&self, _: Range<usize>) {}
}

/// Maps a file; where the file system cannot map it, reads it whole.
///
/// # Errors
/// When it cannot be opened, is empty, or can be neither mapped nor read.
pub(super) fn map(path: &Path) -> Result<FileBytes> {
    let file = File::open(path).context("cannot open the file")?;
    let size = file
        .metadata()
        .context("cannot read the file's size")?
        .len();
    let size = usize::try_from(size).context("the file is larger than this machine's memory")?;
    anyhow::ensure!(size > 0, "the file is empty: 0 bytes (download it again)");
    // SAFETY: the map is read-only, and weight files are written once, then only read; the module's text names the rest.
    #[allow(unsafe_code, reason = "memory mapping cannot be expressed without it")]
    let mapped = unsafe { Mmap::map(&file) };
    match mapped {
        Ok(bytes) => Ok(FileBytes {
            bytes,
            is_mapped: true,
        }),
        Err(why) => read(file, size).with_context(|| format!("cannot map the file ({why})")),
    }
}

/// Reads a file into anonymous memory, which is aligned to pages as a map is.
fn read(mut file: File, size: usize) -> Result<FileBytes> {
    let mut memory =
        MmapMut::map_anon(size).with_context(|| format!("no room for {size} bytes"))?;
    file.read_exact(&mut memory)
        .context("cannot read it either")?;
    Ok(FileBytes::from_memory(memory.make_read_only()?))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_mapped_is_read_to_the_same_bytes_and_keeps_them() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        let bytes: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
        file.write_all(&bytes).expect("written");
        let mapped = map(file.path()).expect("mapped");
        let again = read(file.reopen().expect("opened"), bytes.len()).expect("read");
        for file in [mapped, again] {
            assert_eq!(file[..], bytes[..]);
            file.release(0..bytes.len());
            assert_eq!(file[..], bytes[..]);
        }
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error() {
        let missing = map(Path::new("no/such/file.gguf"));
        let missing = missing.err().expect("nothing is there");
        assert!(format!("{missing:#}").starts_with("cannot open the file: "));
    }

    #[test]
    fn an_empty_file_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let error = map(file.path()).err().expect("nothing to map");
        assert!(error.to_string().contains("0 bytes"));
    }
}
