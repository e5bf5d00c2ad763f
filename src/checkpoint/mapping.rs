//! The bytes of a weight file, mapped into memory so that only what is asked for is read from the disk.
//!
//! A program that shortens the file while it is mapped ends this one with a bus error: no code can prevent that.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use memmap2::{Mmap, MmapMut};

/// Maps a file; where the file system cannot map it, reads it whole.
///
/// # Errors
/// When it cannot be opened, is empty, or can be neither mapped nor read.
pub(super) fn map(path: &Path) -> Result<Mmap> {
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
        Ok(bytes) => Ok(bytes),
        Err(why) => read(file, size).with_context(|| format!("cannot map the file ({why})")),
    }
}

/// Reads a file into anonymous memory, which is aligned to pages as a map is.
fn read(mut file: File, size: usize) -> Result<Mmap> {
    let mut memory =
        MmapMut::map_anon(size).with_context(|| format!("no room for {size} bytes"))?;
    file.read_exact(&mut memory)
        .context("cannot read it either")?;
    Ok(memory.make_read_only()?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_that_cannot_be_mapped_is_read_to_the_same_bytes() {
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        let bytes: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
        file.write_all(&bytes).expect("written");
        let mapped = map(file.path()).expect("mapped");
        let again = read(file.reopen().expect("opened"), bytes.len()).expect("read");
        assert_eq!(mapped[..], bytes[..]);
        assert_eq!(again[..], bytes[..]);
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_an_error() {
        let missing = map(Path::new("no/such/file.gguf")).expect_err("nothing is there");
        assert!(format!("{missing:#}").starts_with("cannot open the file: "));
    }

    #[test]
    fn an_empty_file_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let error = map(file.path()).expect_err("nothing to map");
        assert!(error.to_string().contains("0 bytes"));
    }
}
