//! One file's content in the cache: checked against what the hub said of it, and locked against other processes.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hf_hub::api::Progress;
use sha2::{Digest, Sha256};

use super::cache::create_parent;

/// What the hub says of a file's content.
#[derive(Debug)]
pub(super) struct Expected {
    /// The blob's name: of large files the SHA-256 in hex, of others something to compare only.
    pub(super) etag: String,
    /// Bytes.
    pub(super) size: u64,
}

impl Expected {
    /// Returns whether `path` holds this content: by size, and by hash where the hub told one.
    ///
    /// # Errors
    /// When the file is there but cannot be read.
    pub(super) fn is_in(&self, path: &Path, progress: &mut impl Progress) -> io::Result<bool> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() != self.size {
            return Ok(false);
        }
        if !self.has_sha256() {
            return Ok(true);
        }
        progress.init(self.size as usize, "checking the SHA-256");
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let read = file.read(&mut buffer)?;
            if read == 0 {
                break;
            }
            hash.update(&buffer[..read]);
            progress.update(read);
        }
        progress.finish();
        let digest = hash.finalize();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(hex.eq_ignore_ascii_case(&self.etag))
    }

    fn has_sha256(&self) -> bool {
        self.etag.len() == 64 && self.etag.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

/// How long another process may stand still before we give up on it.
pub(super) struct Patience {
    limit: Duration,
    bytes: u64,
    since: Instant,
}

impl Patience {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            bytes: 0,
            since: Instant::now(),
        }
    }

    /// Returns whether to go on waiting, given how far the other process has come.
    pub(super) fn lasts(&mut self, bytes: u64) -> bool {
        if bytes != self.bytes {
            self.bytes = bytes;
            self.since = Instant::now();
        }
        self.since.elapsed() < self.limit
    }
}

/// Waits until no other process holds the lock file, and holds it until the result is dropped.
///
/// `bytes_on_the_way` tells how far the other process has come; it is asked about ten times a second.
///
/// # Errors
/// When the lock file cannot be made, or the other process stood still for `limit`.
pub(super) fn lock(
    path: &Path,
    limit: Duration,
    mut bytes_on_the_way: impl FnMut() -> u64,
) -> Result<File> {
    create_parent(path)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)?;
    let mut patience = Patience::new(limit);
    loop {
        match file.try_lock() {
            // A file system without locks: the worst is that two processes fetch the same.
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(file),
            Err(TryLockError::WouldBlock) => {}
        }
        if !patience.lasts(bytes_on_the_way()) {
            bail!(
                "another process holds {} and has not come further for {} s; end it and try again",
                path.display(),
                limit.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // printf abc | sha256sum
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn content_is_told_by_size_and_by_hash_where_there_is_one() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("blob");
        let is_in = |etag: &str, size| {
            let expected = Expected {
                etag: etag.to_owned(),
                size,
            };
            expected.is_in(&path, &mut ()).expect("readable")
        };
        assert!(!is_in(ABC, 3), "nothing there");
        std::fs::write(&path, "abc").expect("a file");
        assert!(is_in(ABC, 3) && is_in("a git hash", 3));
        assert!(!is_in(ABC, 4) && !is_in("a git hash", 4));
        std::fs::write(&path, "abd").expect("a file");
        assert!(!is_in(ABC, 3) && is_in("a git hash", 3));
    }

    #[test]
    fn a_lock_waits_for_a_process_that_moves_and_not_for_one_that_stands() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("locks/blob.lock");
        let limit = Duration::from_millis(250);
        let mut held = Some(lock(&path, limit, || 0).expect("nobody holds it"));
        let error = lock(&path, limit, || 7)
            .expect_err("it stands still")
            .to_string();
        assert!(error.contains("another process holds"), "{error}");
        let mut asked = 0;
        let moving = lock(&path, limit, || {
            asked += 1;
            if asked == 6 {
                held = None;
            }
            asked
        });
        moving.expect("it moved until it was done");
        assert_eq!(asked, 6);
    }
}
