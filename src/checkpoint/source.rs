//! What `--model` names: a folder, a GGUF file or a model on the hub.
//!
//! Only the spelling and the local disk decide; the network is never asked. What looks like a path is never taken for a
//! hub id, so that a mistyped folder says "no such directory" instead of a puzzle about repository names.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// Where a model's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A folder in the hub's layout.
    Folder(PathBuf),
    /// A GGUF file.
    Gguf(PathBuf),
    /// The model inside the program.
    #[cfg(feature = "demo")]
    Demo,
    /// A model on the hub, perhaps already in the cache.
    Hub {
        /// `name` or `org/name`.
        id: String,
        /// Branch, tag or commit; `None` is `main`.
        revision: Option<String>,
    },
}

impl Source {
    /// Returns what `model` means. `demo` is the built-in model (a folder of that name is `./demo`); a folder wins over a
    /// hub id of the same spelling.
    ///
    /// # Errors
    /// When a path does not exist or is of no use, the id cannot be one, or a revision is given for local files.
    pub fn locate(model: &OsStr, revision: Option<&str>) -> Result<Self> {
        ensure!(!model.is_empty(), "--model is empty ({EXPECTED})");
        #[cfg(feature = "demo")]
        if model == crate::demo::NAME {
            ensure!(
                revision.is_none(),
                "--revision is for a model on the hub, but `demo` is built in"
            );
            return Ok(Self::Demo);
        }
        let path = Path::new(model);
        let source = match std::fs::metadata(path) {
            Ok(found) if found.is_dir() => Self::Folder(path.to_owned()),
            Ok(found) if found.is_file() => gguf_file(path)?,
            Ok(_) => bail!("`{}` is neither a folder nor a file", path.display()),
            Err(error) if is_absence(error.kind()) => hub_model(model, revision)?,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read `{}`", path.display()));
            }
        };
        if let (Some(revision), Self::Folder(path) | Self::Gguf(path)) = (revision, &source) {
            bail!(
                "--revision {revision} is for a model on the hub, but `{}` is on this machine",
                path.display()
            );
        }
        Ok(source)
    }

    /// Adds to an error of opening a model on the hub that there is one which needs no download.
    pub(crate) fn with_way_out(&self, error: anyhow::Error) -> anyhow::Error {
        match self {
            #[cfg(feature = "demo")]
            Self::Hub { .. } => {
                anyhow::anyhow!("{error:#} (--model demo is built in and needs no download)")
            }
            _ => error,
        }
    }
}

const EXPECTED: &str =
    "expected a folder, a .gguf file, `demo`, or a hub id such as `Qwen/Qwen3.5-2B` or `gpt2`";

/// Refuses what cannot be the id of a model on the hub.
///
/// # Errors
/// Says what an id looks like.
pub fn check_id(id: &str) -> Result<()> {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with(['-', '.'])
            && !name.ends_with(['-', '.'])
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
    };
    // The hub forbids `--` as well: its cache writes `org/name` as `org--name`.
    ensure!(
        id.len() <= 96
            && id.split('/').count() <= 2
            && id.split('/').all(is_name)
            && !id.contains("..")
            && !id.contains("--"),
        "`{id}` is no model id ({EXPECTED}: letters, digits, `-`, `_`, `.`, at most 96)"
    );
    Ok(())
}

/// Refuses what cannot be a branch, tag or commit; the name becomes part of a path and of a URL.
///
/// # Errors
/// Says what a revision looks like.
pub fn check_revision(revision: &str) -> Result<()> {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.+@".contains(&byte))
    };
    ensure!(
        revision.split('/').all(is_part) && !revision.contains(".."),
        "--revision `{revision}` is no branch, tag or commit (expected e.g. `main`, `v1.0`, `refs/pr/3`)"
    );
    Ok(())
}

fn is_absence(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename
    )
}

fn gguf_file(path: &Path) -> Result<Source> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let suffix = path.extension().map(OsStr::to_ascii_lowercase);
    match suffix.as_ref().and_then(|suffix| suffix.to_str()) {
        Some("gguf") => Ok(Source::Gguf(path.to_owned())),
        Some("safetensors" | "bin" | "json" | "pt" | "pth") => bail!(
            "`{}` is one file of a model: name the folder, `--model {}`",
            path.display(),
            folder.display()
        ),
        _ => bail!("`{}` is a file, but no model ({EXPECTED})", path.display()),
    }
}

fn hub_model(model: &OsStr, revision: Option<&str>) -> Result<Source> {
    let shown = Path::new(model).display();
    if let Ok(target) = std::fs::read_link(model) {
        bail!(
            "`{shown}` is a link to `{}`, which does not exist",
            target.display()
        );
    }
    let Some(id) = model.to_str() else {
        bail!("no such directory: `{shown}` (the name is not UTF-8, so it is no hub id either)");
    };
    ensure!(
        !id.contains("://"),
        "`{id}` is an address ({EXPECTED}; HF_ENDPOINT names another hub)"
    );
    if looks_like_path(id) {
        let what = if is_weight_file(id) {
            "file"
        } else {
            "directory"
        };
        let hint = match id.strip_prefix('~') {
            Some(_) => "; the shell expands `~` only outside quotes and at the start of a word",
            None => "",
        };
        bail!("no such {what}: `{id}`{hint}");
    }
    check_id(id)?;
    revision.map(check_revision).transpose()?;
    Ok(Source::Hub {
        id: id.to_owned(),
        revision: revision.map(str::to_owned),
    })
}

fn is_weight_file(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    [".gguf", ".safetensors", ".bin"]
        .iter()
        .any(|suffix| name.ends_with(suffix))
}

fn looks_like_path(model: &str) -> bool {
    let has_drive = matches!(model.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    model.starts_with(['.', '/', '~'])
        || has_drive
        || model.contains('\\')
        || model.ends_with('/')
        || model.matches('/').count() > 1
        || is_weight_file(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(model: impl AsRef<OsStr>) -> String {
        let source = Source::locate(model.as_ref(), None);
        format!("{:#}", source.expect_err("must be refused"))
    }

    #[test]
    fn a_missing_path_is_never_taken_for_a_hub_id() {
        for path in [
            "./modles/x",
            "/no/such",
            "C:\\m\\x",
            "C:/m",
            "a/b/c",
            "a\\b",
            "models/",
        ] {
            assert_eq!(refusal(path), format!("no such directory: `{path}`"));
        }
        for path in [
            "m.gguf",
            "org/m-Q8_0.GGUF",
            "model.safetensors",
            "x/pytorch_model.bin",
        ] {
            assert_eq!(refusal(path), format!("no such file: `{path}`"));
        }
    }

    #[test]
    fn a_quoted_home_gets_a_hint() {
        assert!(refusal("~/m").contains("no such directory: `~/m`; the shell expands `~` only"));
    }

    #[test]
    fn ids_are_taken_as_written() {
        for id in [
            "gpt2",
            "Qwen/Qwen3.5-2B",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
            "a/b_c",
        ] {
            let source = Source::locate(id.as_ref(), Some("refs/pr/3")).expect("an id");
            let expected = Source::Hub {
                id: id.to_owned(),
                revision: Some("refs/pr/3".to_owned()),
            };
            assert_eq!(source, expected);
        }
    }

    #[test]
    fn what_cannot_be_an_id_is_refused_with_an_example() {
        let long = "x".repeat(97);
        for id in [
            "a b",
            "org/na..me",
            "org/-x",
            "org/a--b",
            "modèle",
            "org/m:Q4",
            &long,
        ] {
            let message = refusal(id);
            assert!(
                message.contains(id) && message.contains("Qwen/Qwen3.5-2B"),
                "{message}"
            );
        }
        assert!(refusal("https://huggingface.co/gpt2").contains("is an address"));
        assert!(refusal("").contains("--model is empty"));
    }

    #[test]
    fn folders_and_gguf_files_are_found_and_other_files_explained() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, "x").expect("a file");
            path
        };
        assert_eq!(
            Source::locate(folder.path().as_os_str(), None).expect("a folder"),
            Source::Folder(folder.path().to_owned())
        );
        let gguf = file("m.GGUF");
        let found = Source::locate(gguf.as_os_str(), None).expect("a file");
        assert_eq!(found, Source::Gguf(gguf));
        assert!(refusal(file("model.safetensors")).contains("name the folder, `--model /"));
        assert!(refusal(file("notes.txt")).contains("is a file, but no model"));
    }

    #[test]
    fn a_revision_belongs_to_the_hub() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = Source::locate(folder.path().as_os_str(), Some("main")).expect_err("refused");
        assert!(
            error
                .to_string()
                .contains("--revision main is for a model on the hub")
        );
        for revision in ["", "a b", "../x", "/main", "a//b", "x\ny", "a?b"] {
            assert!(
                Source::locate("gpt2".as_ref(), Some(revision)).is_err(),
                "{revision}"
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn names_that_are_not_utf8_and_broken_links_are_said() {
        use std::os::unix::ffi::OsStrExt;
        assert!(refusal(OsStr::from_bytes(b"/tmp/m\xff")).contains("no such directory"));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let link = folder.path().join("m");
        std::os::unix::fs::symlink("gone", &link).expect("a link");
        assert!(refusal(link).contains("is a link to `gone`, which does not exist"));
    }
}
