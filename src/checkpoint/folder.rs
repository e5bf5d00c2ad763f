//! A folder in the hub's layout: the files a model needs, read or listed, and what is missing said at once.
//!
//! No weight is read here, and nothing is computed from the configuration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::placeholder;
use super::weights::{self, WeightMap, WeightNames};
#[cfg(feature = "demo")]
use crate::demo;

/// The files of a model in one folder.
#[derive(Debug)]
pub struct Folder {
    /// The folder.
    pub path: PathBuf,
    /// `config.json`; null where it is missing.
    pub config: Value,
    /// `generation_config.json`.
    pub generation_config: Option<Value>,
    /// `tokenizer_config.json`.
    pub tokenizer_config: Option<Value>,
    /// `tokenizer.json`, not parsed; empty where it is missing.
    pub tokenizer_json: Vec<u8>,
    /// `chat_template.jinja`.
    pub chat_template_file: Option<String>,
    /// `chat_template.json`.
    pub chat_template_json: Option<Value>,
    /// The safetensors files that hold the weights.
    pub weight_files: Vec<PathBuf>,
    /// The index that named them; `None` where there is no index.
    pub weight_map: Option<WeightMap>,
}

impl Folder {
    /// Reads a folder's small files and finds its weight files.
    ///
    /// # Errors
    /// Lists what is missing, or names the file that cannot be read and the place.
    pub fn open(path: &Path) -> Result<Self> {
        let names = file_names(path)?;
        if let Some(message) = what_is_missing(&names) {
            bail!("{}: {message}", path.display());
        }
        let (weight_files, weight_map) = weight_files(path, &names)?;
        Ok(Self {
            weight_files,
            weight_map,
            ..Self::read(path, &names)?
        })
    }

    /// Reads a folder's small files, whether there are weights or not: without `config.json` or `tokenizer.json`, what
    /// needs it fails.
    ///
    /// # Errors
    /// Names the file that cannot be read and the place.
    pub fn open_small(path: &Path) -> Result<Self> {
        Self::read(path, &file_names(path)?)
    }

    fn read(path: &Path, names: &BTreeSet<String>) -> Result<Self> {
        let optional = |name: &str| {
            let present = names.contains(name);
            present.then(|| read_json(&path.join(name))).transpose()
        };
        let template = "chat_template.jinja";
        Ok(Self {
            path: path.to_owned(),
            config: optional("config.json")?.unwrap_or_default(),
            generation_config: optional("generation_config.json")?,
            tokenizer_config: optional("tokenizer_config.json")?,
            tokenizer_json: match names.contains("tokenizer.json") {
                true => placeholder::read_file(&path.join("tokenizer.json"))?,
                false => Vec::new(),
            },
            chat_template_file: names
                .contains(template)
                .then(|| read_text(&path.join(template)))
                .transpose()?,
            chat_template_json: optional("chat_template.json")?,
            weight_files: Vec::new(),
            weight_map: None,
        })
    }
}

#[cfg(feature = "demo")]
impl Folder {
    /// Returns the folder `src/demo` as the program carries it inside; its weights are not among the files.
    ///
    /// # Errors
    /// When its JSON is damaged.
    pub fn demo() -> Result<Self> {
        Ok(Self {
            path: demo::NAME.into(),
            config: serde_json::from_str(demo::CONFIG).context("config.json")?,
            generation_config: None,
            tokenizer_config: Some(
                serde_json::from_str(demo::TOKENIZER_CONFIG).context("tokenizer_config.json")?,
            ),
            tokenizer_json: demo::TOKENIZER.to_vec(),
            chat_template_file: Some(demo::CHAT_TEMPLATE.to_owned()),
            chat_template_json: None,
            weight_files: Vec::new(),
            weight_map: None,
        })
    }
}

/// Returns the names in a folder, broken links among them (reading one says where it points).
///
/// # Errors
/// When the folder cannot be listed.
pub fn file_names(folder: &Path) -> Result<BTreeSet<String>> {
    let cannot_list = || format!("cannot list {}", folder.display());
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).with_context(cannot_list)? {
        let entry = entry.with_context(cannot_list)?;
        if !entry.path().is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.insert(name);
        }
    }
    Ok(names)
}

/// What to do where there is no `tokenizer.json`.
pub(super) const NO_OTHER_TOKENIZER: &str = "other tokenizer files are not read: save it with transformers' AutoTokenizer, which writes tokenizer.json";

/// Returns one sentence on what a model of these files lacks, with the way out where the files show one.
pub fn what_is_missing(names: &BTreeSet<String>) -> Option<String> {
    let has_ending = |suffix: &str| names.iter().find(|name| name.ends_with(suffix));
    let mut missing: Vec<&str> = ["config.json", "tokenizer.json"]
        .into_iter()
        .filter(|&name| !names.contains(name))
        .collect();
    let has_weights = weights::choose(names).is_some();
    if !has_weights {
        missing.push("weights (*.safetensors)");
    }
    if missing.is_empty() {
        return None;
    }
    let hint = if let Some(gguf) = has_ending(".gguf").filter(|_| !has_weights) {
        format!(
            "; a GGUF model is named by its file: download `{gguf}` and give its path to --model"
        )
    } else if let Some(bin) = has_ending(".bin").filter(|_| !has_weights) {
        format!("; `{bin}` is PyTorch's own format, which is not read: convert it to safetensors")
    } else if names.contains("adapter_config.json") {
        "; an adapter alone is no model: merge it into its base model".to_owned()
    } else if missing == ["tokenizer.json"] {
        format!("; {NO_OTHER_TOKENIZER}")
    } else {
        String::new()
    };
    Some(format!("missing {}{hint}", missing.join(", ")))
}

fn weight_files(
    folder: &Path,
    names: &BTreeSet<String>,
) -> Result<(Vec<PathBuf>, Option<WeightMap>)> {
    let (files, weight_map, missing) = match weights::choose(names) {
        Some(WeightNames::Index(index)) => {
            let weight_map = weights::read_index(&folder.join(index))?;
            let files = weights::shards(&weight_map);
            let is_absent = |file: &&String| std::fs::symlink_metadata(folder.join(file)).is_err();
            let missing = files.iter().filter(is_absent).cloned().collect();
            (files, Some(weight_map), missing)
        }
        Some(WeightNames::Files(files)) => {
            let missing = weights::missing_numbers(&files);
            (files, None, missing)
        }
        None => bail!("{}: missing weights (*.safetensors)", folder.display()),
    };
    ensure!(
        missing.is_empty(),
        "{}: missing {} of its weight files: {}; fetch the model again",
        folder.display(),
        missing.len(),
        missing.join(", ")
    );
    let paths = files.iter().map(|file| folder.join(file)).collect();
    Ok((paths, weight_map))
}

fn read_json(path: &Path) -> Result<Value> {
    let bytes = placeholder::read_file(path)?;
    let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
    serde_json::from_slice(text).with_context(|| format!("{}: not JSON", path.display()))
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = placeholder::read_file(path)?;
    String::from_utf8(bytes).with_context(|| format!("{}: not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).expect("a file");
        }
        folder
    }

    fn refusal(files: &[(&str, &str)]) -> String {
        let folder = folder(files);
        let message = format!(
            "{:#}",
            Folder::open(folder.path()).expect_err("must be refused")
        );
        message.replace(&folder.path().display().to_string(), "F")
    }

    const CONFIG: (&str, &str) = ("config.json", "{\"a\": 1}");
    const TOKENIZER: (&str, &str) = ("tokenizer.json", "{}");

    #[test]
    fn all_that_is_missing_is_listed_in_one_sentence() {
        assert_eq!(
            refusal(&[]),
            "F: missing config.json, tokenizer.json, weights (*.safetensors)"
        );
        assert_eq!(
            refusal(&[TOKENIZER, ("model.safetensors", "")]),
            "F: missing config.json"
        );
        let message = refusal(&[CONFIG, ("vocab.json", ""), ("model.safetensors", "")]);
        assert!(message.contains("missing tokenizer.json; other tokenizer files are not read"));
        let message = refusal(&[CONFIG, TOKENIZER, ("pytorch_model.bin", "")]);
        assert!(message.contains("convert it to safetensors"), "{message}");
        let message = refusal(&[("m-Q8_0.gguf", "")]);
        assert!(message.contains("named by its file"), "{message}");
        let message = refusal(&[
            ("adapter_config.json", ""),
            ("adapter_model.safetensors", ""),
        ]);
        assert!(
            message.contains("merge it into its base model"),
            "{message}"
        );
    }

    #[test]
    fn a_folder_opens_with_what_it_has() {
        let folder = folder(&[
            CONFIG,
            TOKENIZER,
            ("chat_template.jinja", "{{ x }}"),
            ("generation_config.json", "\u{feff}{\"eos_token_id\": 1}"),
            ("b.safetensors", ""),
            ("a.safetensors", ""),
        ]);
        let files = Folder::open(folder.path()).expect("a model");
        assert_eq!(files.config["a"], 1);
        assert_eq!(files.stop_ids(&|_| None), [1]);
        assert!(files.tokenizer_config.is_none() && files.weight_map.is_none());
        assert_eq!(files.chat_template_file.as_deref(), Some("{{ x }}"));
        let expected = ["a.safetensors", "b.safetensors"].map(|name| folder.path().join(name));
        assert_eq!(files.weight_files, expected);
    }

    #[test]
    fn an_index_names_its_files_and_strays_are_ignored() {
        let index = r#"{"weight_map": {"x": "odd", "y": "two.safetensors"}}"#;
        let mut files = vec![
            CONFIG,
            TOKENIZER,
            ("model.safetensors.index.json", index),
            ("junk.safetensors", "junk"),
        ];
        assert_eq!(
            refusal(&files),
            "F: missing 2 of its weight files: odd, two.safetensors; fetch the model again"
        );
        files.extend([("odd", ""), ("two.safetensors", "")]);
        let folder = folder(&files);
        let opened = Folder::open(folder.path()).expect("a model");
        let expected = ["odd", "two.safetensors"].map(|name| folder.path().join(name));
        assert_eq!(opened.weight_files, expected);
        assert_eq!(opened.weight_map.expect("the index")["x"], "odd");
    }

    #[test]
    fn a_missing_numbered_file_is_noticed_without_an_index() {
        let message = refusal(&[CONFIG, TOKENIZER, ("m-00002-of-00002.safetensors", "")]);
        assert!(message.contains("missing 1 of its weight files: m-00001-of-00002.safetensors"));
    }

    #[test]
    fn a_file_that_is_not_what_it_should_be_is_named_with_the_place() {
        let weights = ("model.safetensors", "");
        let message = refusal(&[("config.json", "{\n  \"a\": }"), TOKENIZER, weights]);
        assert!(
            message.starts_with("F/config.json: not JSON: expected value at line 2 column 8"),
            "{message}"
        );
        let message = refusal(&[
            CONFIG,
            (
                "tokenizer.json",
                "version https://git-lfs.github.com/spec/v1\n",
            ),
            weights,
        ]);
        assert!(
            message.contains("F/tokenizer.json: a Git LFS pointer"),
            "{message}"
        );
        let message = refusal(&[
            CONFIG,
            TOKENIZER,
            weights,
            ("tokenizer_config.json", "<html></html>"),
        ]);
        assert!(
            message.contains("F/tokenizer_config.json: a web page"),
            "{message}"
        );
        let message = refusal(&[CONFIG, TOKENIZER, weights, ("generation_config.json", "")]);
        assert!(
            message.contains("F/generation_config.json: not JSON: EOF"),
            "{message}"
        );
    }

    #[test]
    fn a_folder_that_cannot_be_listed_is_named() {
        let error = Folder::open(Path::new("/no/such")).expect_err("nothing there");
        assert!(format!("{error:#}").starts_with("cannot list /no/such"));
    }
}
