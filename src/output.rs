//! Files of results: names that are safe everywhere, nothing overwritten, nothing half written.
//!
//! A file is written under a temporary name in its folder and then takes its place in one step.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;

/// Longest part of a file name that comes from a model's name, in bytes; file systems take 255 for all of it.
const NAME_BYTES: usize = 80;

/// Writes a new file, whose folder is made if need be: `name.json`, or `name_2.json`, `name_3.json`, … where that is taken.
/// Returns its path.
///
/// # Errors
/// When the folder cannot be made or the file cannot be written; then there is no file.
pub fn write_new(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<PathBuf> {
    let folder = folder_of(path);
    make_folder(folder)?;
    let mut file = write_temporary(folder, write)?;
    for number in 1u32.. {
        let path = match number {
            1 => path.to_owned(),
            _ => numbered(path, number),
        };
        match file.persist_noclobber(&path) {
            Ok(_) => return Ok(path),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => file = error.file,
            Err(error) => {
                return Err(error.error)
                    .with_context(|| format!("{}: cannot be written", path.display()));
            }
        }
    }
    bail!("{}: every name is taken", folder.display())
}

/// Writes a file that may be there already and is then replaced as a whole, with its permissions, at the end of its links;
/// its folder is made if need be.
///
/// # Errors
/// When it cannot be written or is read-only; then the old file is as it was.
pub fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    let linked = path.canonicalize();
    let path = linked.as_deref().unwrap_or(path);
    check_replaceable(path)?;
    let folder = folder_of(path);
    make_folder(folder)?;
    let file = write_temporary(folder, write)?;
    let replaced = || -> io::Result<()> {
        if let Ok(old) = path.metadata() {
            file.as_file().set_permissions(old.permissions())?;
        }
        file.persist(path)?;
        Ok(())
    };
    replaced().with_context(|| format!("{}: cannot be written", path.display()))
}

/// Checks before any work that `path` can become a new file.
///
/// # Errors
/// When there is something of that name already, or a part of its path is no folder.
pub fn check_new(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok() {
        bail!(
            "{}: exists already and is not overwritten (choose another name, or remove it)",
            path.display()
        );
    }
    check_folder(folder_of(path))
}

/// Checks before any work that the file `path` can be replaced.
///
/// # Errors
/// When it is read-only, or nothing can be written beside it.
pub fn check_replaceable(path: &Path) -> Result<()> {
    let is_read_only = path
        .metadata()
        .is_ok_and(|old| old.permissions().readonly());
    ensure!(
        !is_read_only,
        "{}: is read-only and is not replaced (change its permissions, or choose another name)",
        path.display()
    );
    check_folder(folder_of(path))
}

/// Checks before any work that `folder` is one or can be made, and takes files.
///
/// # Errors
/// When something on the way to it is no folder, or nothing can be written there.
pub fn check_folder(folder: &Path) -> Result<()> {
    let here = Path::new(".");
    let existing = folder
        .ancestors()
        .find(|part| part.exists())
        .unwrap_or(here);
    if !existing.is_dir() {
        bail!(
            "{}: is a file (expected a folder for the results)",
            existing.display()
        );
    }
    // a file without a name: nothing is left of it
    tempfile::tempfile_in(existing)
        .with_context(|| format!("{}: nothing can be written there", existing.display()))?;
    Ok(())
}

/// Returns a model's name as part of a file name on any system: letters, digits, `.`, `-` and `_`, at most 80 bytes. A name
/// that had to be changed gets a piece of its hash, so that no two models share one.
pub fn safe_name(model: &str) -> String {
    let model = model.rsplit('/').next().unwrap_or(model);
    let mut name = String::new();
    for c in model.chars() {
        let c = if c.is_alphanumeric() || matches!(c, '.' | '-' | '_') {
            c
        } else {
            '_'
        };
        if name.len() + c.len_utf8() > NAME_BYTES {
            break;
        }
        name.push(c);
    }
    if name == model && !name.is_empty() && !name.chars().all(|c| c == '.') {
        return name;
    }
    let hash = Sha256::digest(model.as_bytes());
    let hash: String = hash[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{hash}", name.trim_matches('.'))
}

/// `a/name.json` as `a/name_2.json`, byte for byte.
fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("_{number}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)
        .with_context(|| format!("{}: the folder cannot be made", folder.display()))
}

fn write_temporary(
    folder: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".logprobs-").suffix(".part");
    #[cfg(unix)]
    {
        // as any new file: what the umask leaves
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let written = || -> io::Result<NamedTempFile> {
        let file = builder.tempfile_in(folder)?;
        let mut buffered = BufWriter::new(file);
        write(&mut buffered)?;
        let file = buffered.into_inner()?;
        file.as_file().sync_all()?;
        Ok(file)
    };
    written().with_context(|| format!("{}: the results cannot be written", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("the folder is there");
        let mut names: Vec<String> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_name_that_is_taken_gets_a_number_and_nothing_is_overwritten() -> Result<()> {
        let folder = tempfile::tempdir()?;
        for text in ["first", "second", "third"] {
            write_new(&folder.path().join("new/r.x.JSON"), |file| {
                file.write_all(text.as_bytes())
            })?;
        }
        let folder = folder.path().join("new");
        assert_eq!(names(&folder), ["r.x.JSON", "r.x_2.JSON", "r.x_3.JSON"]);
        assert_eq!(std::fs::read_to_string(folder.join("r.x.JSON"))?, "first");
        Ok(())
    }

    #[test]
    fn writers_that_start_together_all_keep_their_file() -> Result<()> {
        let folder = tempfile::tempdir()?;
        std::thread::scope(|scope| {
            for index in 0..8 {
                let path = folder.path().join("r.json");
                scope.spawn(move || write_new(&path, |file| writeln!(file, "{index}")));
            }
        });
        let mut texts: Vec<String> = names(folder.path())
            .iter()
            .filter_map(|name| std::fs::read_to_string(folder.path().join(name)).ok())
            .collect();
        texts.sort();
        assert_eq!(
            texts,
            (0..8).map(|index| format!("{index}\n")).collect::<Vec<_>>()
        );
        Ok(())
    }

    #[test]
    fn a_write_that_fails_leaves_the_old_file_and_nothing_else() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("r.json");
        replace(&path, |file| file.write_all(b"old"))?;
        let failed = replace(&path, |file| {
            file.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(failed.is_err());
        assert_eq!(std::fs::read_to_string(&path)?, "old");
        assert_eq!(names(folder.path()), ["r.json"]);
        Ok(())
    }

    #[cfg(unix)]
    #[test]
    fn what_is_replaced_keeps_its_permissions_and_its_links() -> Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir()?;
        let (path, link) = (
            folder.path().join("r.json"),
            folder.path().join("link.json"),
        );
        std::fs::write(&path, "old")?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        std::os::unix::fs::symlink(&path, &link)?;
        replace(&link, |file| file.write_all(b"new"))?;
        assert_eq!(std::fs::read_to_string(&path)?, "new");
        assert!(link.symlink_metadata()?.is_symlink());
        assert_eq!(path.metadata()?.permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444))?;
        let refused = replace(&path, |file| file.write_all(b"newer"));
        let error = refused.expect_err("read-only").to_string();
        assert!(error.contains("is read-only"), "{error}");
        assert_eq!(std::fs::read_to_string(&path)?, "new");
        Ok(())
    }

    #[test]
    fn a_model_name_becomes_a_safe_file_name_of_its_own() {
        assert_eq!(safe_name("Qwen/Qwen3.5-2B"), "Qwen3.5-2B");
        assert_eq!(safe_name("模型.Q4_1.gguf"), "模型.Q4_1.gguf");
        let long = "é".repeat(240);
        let strange = [
            "a:b*c?",
            "a_b_c_",
            "..",
            ".",
            "-x\n",
            "",
            "a\\b",
            &long,
            &(long.clone() + "x"),
        ];
        let names: Vec<String> = strange.iter().map(|name| safe_name(name)).collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!name.is_empty() && name.len() <= 100, "{name}");
            assert!(
                name.chars()
                    .all(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_')),
                "{name}"
            );
            assert!(!names[index + 1..].contains(name), "{name}");
        }
    }

    #[test]
    fn what_cannot_become_a_file_is_refused_before_any_work() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("file");
        std::fs::write(&file, "")?;
        for (result, expected) in [
            (check_new(&file), "exists already"),
            (check_new(&file.join("r.json")), "is a file"),
            (check_folder(&file.join("results")), "is a file"),
        ] {
            let error = result.expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
        check_folder(&folder.path().join("a/b"))?;
        check_folder(Path::new("not-there-yet"))?;
        if cfg!(target_os = "linux") {
            let error = check_folder(Path::new("/proc/results")).expect_err("no place for files");
            assert!(
                error
                    .to_string()
                    .contains("/proc: nothing can be written there"),
                "{error}"
            );
        }
        check_new(Path::new("certainly-not-there.json"))
    }
}
