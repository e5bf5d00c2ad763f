//! What lies in a model file's place when the real one did not come: a Git LFS pointer, a web page, a broken link.
//!
//! Each has an everyday cause and a remedy, which a parser's complaint about byte 0 does not tell.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

/// Reads a whole file that belongs to a model.
///
/// # Errors
/// When it cannot be read or is only a placeholder, with its path and what to do.
pub fn read_file(path: &Path) -> Result<Vec<u8>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => match broken_link(path) {
            Some(target) => bail!(
                "{}: the link points to {}, which does not exist; fetch the model again",
                path.display(),
                target.display()
            ),
            None => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        },
    };
    refuse(path, &bytes)?;
    Ok(bytes)
}

/// Refuses the content of `path` if its first bytes are those of a placeholder.
///
/// # Errors
/// Names the file, what it is and how to get the real one.
pub fn refuse(path: &Path, content: &[u8]) -> Result<()> {
    let text = content.trim_ascii_start();
    let starts_with = |prefix: &str| {
        text.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    if starts_with("version https://git-lfs") {
        bail!(
            "{}: a Git LFS pointer of {} bytes, not the file itself; run `git lfs pull` in its folder, or download the file",
            path.display(),
            content.len()
        );
    }
    if ["<!doctype", "<html", "<?xml"].into_iter().any(starts_with) {
        bail!(
            "{}: a web page, not the file itself (a download that met a login or an error); download it again",
            path.display()
        );
    }
    Ok(())
}

/// Returns where a symbolic link points if nothing is there.
pub fn broken_link(path: &Path) -> Option<PathBuf> {
    let target = std::fs::read_link(path).ok()?;
    let is_broken = std::fs::metadata(path).is_err();
    is_broken.then(|| {
        path.parent()
            .map_or(target.clone(), |folder| folder.join(&target))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(content: &str) -> String {
        let refused = refuse(Path::new("m/tokenizer.json"), content.as_bytes());
        format!("{:#}", refused.expect_err("must be refused"))
    }

    #[test]
    fn a_pointer_and_a_page_are_told_from_the_file() {
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
        let message = refusal(pointer);
        assert!(
            message.starts_with("m/tokenizer.json: a Git LFS pointer of 63 bytes"),
            "{message}"
        );
        assert!(message.contains("git lfs pull"));
        for page in [
            "<!DOCTYPE html><html>",
            "\n  <HTML lang=en>",
            "<?xml version='1.0'?><Error>",
        ] {
            assert!(refusal(page).contains("a web page"));
        }
        refuse(Path::new("config.json"), b"{}").expect("JSON is what it should be");
        refuse(Path::new("config.json"), b"").expect("emptiness is the parser's affair");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read_file(Path::new("/no/such/config.json")).expect_err("nothing there");
        assert!(format!("{error:#}").contains("cannot read /no/such/config.json"));
    }

    #[cfg(unix)]
    #[test]
    fn a_broken_link_is_reported_with_its_target() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let link = folder.path().join("config.json");
        std::os::unix::fs::symlink("../../blobs/abc", &link).expect("a link");
        let message = format!("{:#}", read_file(&link).expect_err("a broken link"));
        assert!(
            message.contains("../../blobs/abc, which does not exist"),
            "{message}"
        );
    }
}
