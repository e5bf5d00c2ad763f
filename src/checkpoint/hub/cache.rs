//! One model in the cache that Hugging Face's tools share: `refs` name commits, `snapshots` link into `blobs`.
//!
//! A snapshot is judged by its files, not by the presence of a ref: other tools write the ref first and fetch only what
//! they need. Nothing here knows the network.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::checkpoint::folder::{file_names, what_is_missing};
use crate::checkpoint::placeholder;
use crate::checkpoint::weights::{self, WeightNames};

/// The files that are fetched beside the weights, where the model has them.
pub(super) const SMALL_FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// The cache's folders for one model.
pub(super) struct RepoCache {
    /// `models--org--name`.
    pub(super) folder: PathBuf,
    /// Where the tools keep their locks for this model.
    locks: PathBuf,
}

/// What the cache has of one revision.
pub(super) struct Cached {
    /// The commit that the revision names here.
    pub(super) commit: String,
    /// Its snapshot.
    pub(super) folder: PathBuf,
    /// What makes it unusable, a sentence each.
    pub(super) problems: Vec<String>,
    /// What makes it unusable for a question that needs no weights, a sentence each.
    pub(super) small_problems: Vec<String>,
    /// Whether no optional file can be missing: another tool may have fetched only what it needed itself.
    pub(super) is_certain: bool,
}

impl RepoCache {
    pub(super) fn new(cache: &Path, id: &str) -> Self {
        let name = format!("models--{}", id.replace('/', "--"));
        Self {
            folder: cache.join(&name),
            locks: cache.join(".locks").join(name),
        }
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    pub(super) fn lock(&self, etag: &str) -> PathBuf {
        self.locks.join(format!("{etag}.lock"))
    }

    /// Returns what is here of a branch, tag or commit; `None` where that revision was never fetched.
    pub(super) fn cached(&self, revision: &str) -> Option<Cached> {
        let named = std::fs::read_to_string(self.reference(revision)).ok();
        let commit = named.map_or_else(|| revision.to_owned(), |commit| commit.trim().to_owned());
        let folder = self.snapshot(&commit);
        if !is_commit(&commit) || !folder.is_dir() {
            return None;
        }
        let tokenizer_config = "tokenizer_config.json";
        Some(Cached {
            problems: problems(&folder),
            small_problems: small_problems(&folder),
            is_certain: folder.join(tokenizer_config).exists()
                || self.absence(&commit, tokenizer_config).exists(),
            commit,
            folder,
        })
    }

    /// Notes what a branch or tag names, as the last step of a fetch.
    pub(super) fn write_reference(&self, revision: &str, commit: &str) -> io::Result<()> {
        // hf-hub leaves a ref named after the commit.
        match std::fs::remove_file(self.reference(commit)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        if revision == commit {
            return Ok(());
        }
        let reference = self.reference(revision);
        create_parent(&reference)?;
        std::fs::write(reference, commit)
    }

    /// Notes that a commit has no such file, as huggingface_hub does.
    pub(super) fn note_absence(&self, commit: &str, file: &str) -> io::Result<()> {
        let mark = self.absence(commit, file);
        create_parent(&mark)?;
        std::fs::write(mark, "")
    }

    /// Returns the bytes that any process has written so far towards a blob.
    pub(super) fn bytes_on_the_way(&self, etag: &str) -> u64 {
        let Ok(entries) = std::fs::read_dir(self.folder.join("blobs")) else {
            return 0;
        };
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(etag))
            .filter_map(|entry| Some(entry.metadata().ok()?.len()))
            .sum()
    }

    fn reference(&self, revision: &str) -> PathBuf {
        self.folder.join("refs").join(revision)
    }

    fn absence(&self, commit: &str, file: &str) -> PathBuf {
        self.folder.join(".no_exist").join(commit).join(file)
    }
}

/// Returns whether a text can be a commit's name; it becomes part of a path.
pub(super) fn is_commit(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Puts a blob into a snapshot: as a link, or where the file system has none, as the file itself.
///
/// # Errors
/// When neither is possible.
pub(super) fn place(blob: &Path, pointer: &Path) -> Result<()> {
    place_with(blob, pointer, symlink)
}

fn place_with(
    blob: &Path,
    pointer: &Path,
    symlink: impl Fn(&Path, &Path) -> io::Result<()>,
) -> Result<()> {
    let placed = create_parent(pointer).and_then(|()| {
        symlink(&relative_target(blob, pointer), pointer)
            .or_else(|_| std::fs::hard_link(blob, pointer))
            .or_else(|_| std::fs::rename(blob, pointer))
    });
    placed.with_context(|| format!("cannot link {} to {}", pointer.display(), blob.display()))
}

/// Returns the blob as seen from the pointer's folder; both are below the same model's folder.
fn relative_target(blob: &Path, pointer: &Path) -> PathBuf {
    let mut above = PathBuf::new();
    for folder in pointer.ancestors().skip(1) {
        if let Ok(rest) = blob.strip_prefix(folder) {
            return above.join(rest);
        }
        above.push("..");
    }
    blob.to_owned()
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

pub(super) fn create_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// Returns why a snapshot cannot be used.
fn problems(folder: &Path) -> Vec<String> {
    let mut names = match file_names(folder) {
        Ok(names) => names,
        Err(error) => return vec![format!("{error:#}")],
    };
    let is_wanted = |name: &str| {
        SMALL_FILES.contains(&name)
            || name.ends_with(".safetensors")
            || name.ends_with(".safetensors.index.json")
    };
    let mut problems = Vec::new();
    names.retain(|name| {
        let broken = placeholder::broken_link(&folder.join(name));
        if let Some(target) = broken.as_ref().filter(|_| is_wanted(name)) {
            problems.push(broken_link(name, target));
        }
        broken.is_none()
    });
    let missing = match weights::choose(&names) {
        Some(WeightNames::Index(index)) => match weights::read_index(&folder.join(index)) {
            Ok(weight_map) => {
                let is_absent = |file: &String| !folder.join(file).exists();
                weights::shards(&weight_map)
                    .into_iter()
                    .filter(is_absent)
                    .collect()
            }
            Err(error) => {
                problems.push(format!("{error:#}"));
                Vec::new()
            }
        },
        Some(WeightNames::Files(files)) => weights::missing_numbers(&files),
        None => Vec::new(),
    };
    if !missing.is_empty() {
        problems.push(format!("missing weight files {}", missing.join(", ")));
    }
    problems.extend(what_is_missing(&names));
    problems
}

/// Returns why a snapshot cannot be used where no weights are asked for.
fn small_problems(folder: &Path) -> Vec<String> {
    let mut problems = Vec::new();
    for name in SMALL_FILES {
        let path = folder.join(name);
        let is_needed = ["config.json", "tokenizer.json"].contains(&name);
        match placeholder::broken_link(&path) {
            Some(target) => problems.push(broken_link(name, &target)),
            None if is_needed && !path.exists() => problems.push(format!("missing {name}")),
            None => {}
        }
    }
    problems
}

fn broken_link(name: &str, target: &Path) -> String {
    format!("{name} links to {}, which does not exist", target.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, content: &str) {
        create_parent(path).expect("a folder");
        std::fs::write(path, content).expect("a file");
    }

    fn model(folder: &Path) -> RepoCache {
        let cache = RepoCache::new(folder, "org/m");
        for file in [
            "config.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "model.safetensors",
        ] {
            write(&cache.snapshot("abc").join(file), "{}");
        }
        write(&cache.reference("main"), "abc\n");
        cache
    }

    #[test]
    fn a_revision_is_a_ref_or_a_commit() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = model(folder.path());
        assert_eq!(cache.folder, folder.path().join("models--org--m"));
        for revision in ["main", "abc"] {
            let cached = cache.cached(revision).expect("in the cache");
            assert_eq!(cached.commit, "abc");
            assert!(cached.problems.is_empty() && cached.is_certain);
        }
        assert!(cache.cached("v2").is_none());
        write(&cache.reference("evil"), "../../..");
        assert!(cache.cached("evil").is_none());
    }

    #[test]
    fn half_a_model_is_never_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = model(folder.path());
        let snapshot = cache.snapshot("abc");
        let problems = || {
            cache
                .cached("main")
                .expect("in the cache")
                .problems
                .join("; ")
        };
        std::fs::remove_file(snapshot.join("tokenizer.json")).expect("it was there");
        assert!(problems().contains("missing tokenizer.json"));
        write(&snapshot.join("tokenizer.json"), "{}");
        std::fs::rename(
            snapshot.join("model.safetensors"),
            snapshot.join("model-00001-of-00002.safetensors"),
        )
        .expect("it was there");
        assert_eq!(
            problems(),
            "missing weight files model-00002-of-00002.safetensors"
        );
        let index =
            r#"{"weight_map":{"a":"one.safetensors","b":"model-00001-of-00002.safetensors"}}"#;
        write(&snapshot.join("model.safetensors.index.json"), index);
        assert_eq!(problems(), "missing weight files one.safetensors");
        write(&snapshot.join("model.safetensors.index.json"), "{");
        assert!(problems().contains("not a weight index"));
    }

    #[test]
    fn a_snapshot_of_another_tool_is_doubted_until_the_absence_is_noted() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = model(folder.path());
        std::fs::remove_file(cache.snapshot("abc").join("tokenizer_config.json")).expect("there");
        assert!(!cache.cached("main").expect("in the cache").is_certain);
        cache
            .note_absence("abc", "tokenizer_config.json")
            .expect("a mark");
        assert!(cache.cached("main").expect("in the cache").is_certain);
    }

    #[cfg(unix)]
    #[test]
    fn a_broken_link_is_a_problem_with_its_target() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = model(folder.path());
        let link = cache.snapshot("abc").join("generation_config.json");
        symlink(Path::new("../../blobs/gone"), &link).expect("a link");
        let problems = cache
            .cached("main")
            .expect("in the cache")
            .problems
            .join("; ");
        assert!(
            problems.starts_with("generation_config.json links to /"),
            "{problems}"
        );
        assert!(
            problems.ends_with("../../blobs/gone, which does not exist"),
            "{problems}"
        );
    }

    #[test]
    fn a_blob_is_linked_or_moved_where_links_are_impossible() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = RepoCache::new(folder.path(), "m");
        let blob = cache.blob("e");
        for (pointer, target) in [("a", "../../blobs/e"), ("sub/a", "../../../blobs/e")] {
            let pointer = cache.snapshot("abc").join(pointer);
            assert_eq!(relative_target(&blob, &pointer), Path::new(target));
            for can_link in [true, false] {
                write(&blob, "content");
                let link = |target: &Path, pointer: &Path| match can_link {
                    true => symlink(target, pointer),
                    false => Err(io::ErrorKind::Unsupported.into()),
                };
                place_with(&blob, &pointer, link).expect("placed");
                assert_eq!(
                    std::fs::read_to_string(&pointer).expect("a file"),
                    "content"
                );
                std::fs::remove_file(&pointer).expect("it was there");
            }
        }
    }

    #[test]
    fn the_ref_of_a_branch_is_written_and_that_of_a_commit_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = model(folder.path());
        write(&cache.reference("abc"), "abc");
        cache.write_reference("refs/pr/1", "abc").expect("written");
        assert!(!cache.reference("abc").exists());
        assert_eq!(
            cache.cached("refs/pr/1").expect("in the cache").commit,
            "abc"
        );
        cache
            .write_reference("abc", "abc")
            .expect("nothing to write");
        assert!(!cache.reference("abc").exists());
    }
}
