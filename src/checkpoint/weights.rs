//! Which files of a model hold its weights: one answer for a folder, for the hub's cache and for the hub's own listing.
//!
//! The order is that of transformers 5 (`modeling_utils._get_resolved_checkpoint_files`): `model.safetensors` before
//! `model.safetensors.index.json`. After these, what transformers refuses but is found in the wild: another
//! `*.safetensors.index.json`, then every `*.safetensors` in the folder. Shard names are never built from a pattern.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::placeholder;

/// An index: each tensor's name and the name of the file that holds it.
pub type WeightMap = BTreeMap<String, String>;

/// The files among a model's that hold the weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WeightNames {
    /// An index file names them.
    Index(String),
    /// These, sorted.
    Files(Vec<String>),
}

/// Returns where the weights are among the files of these names; `None` where no safetensors file is.
pub fn choose(names: &BTreeSet<String>) -> Option<WeightNames> {
    let single = "model.safetensors";
    if names.contains(single) {
        return Some(WeightNames::Files(vec![single.to_owned()]));
    }
    let ending = |suffix: &str| -> Vec<String> {
        let in_folder = names.iter().filter(|name| !name.contains('/'));
        in_folder
            .filter(|name| name.ends_with(suffix))
            .cloned()
            .collect()
    };
    let indices = ending(".safetensors.index.json");
    let preferred = indices
        .iter()
        .find(|name| *name == "model.safetensors.index.json");
    if let Some(index) = preferred.or(indices.first()) {
        return Some(WeightNames::Index(index.clone()));
    }
    let files = ending(".safetensors");
    (!files.is_empty()).then_some(WeightNames::Files(files))
}

/// Returns the numbered files (`…-00001-of-00003.safetensors`) that these names show to be missing.
pub fn missing_numbers(files: &[String]) -> Vec<String> {
    let mut missing = BTreeSet::new();
    for file in files {
        let Some((stem, total)) = file
            .strip_suffix(".safetensors")
            .and_then(|stem| stem.rsplit_once("-of-"))
        else {
            continue;
        };
        let Some((start, number)) = stem.rsplit_once('-') else {
            continue;
        };
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let Some(count) = total
            .parse()
            .ok()
            .filter(|&n: &u32| n < 10_000 && is_number(number))
        else {
            continue;
        };
        missing.extend((1..=count).map(|n| {
            format!(
                "{start}-{n:0width$}-of-{total}.safetensors",
                width = number.len()
            )
        }));
    }
    missing
        .into_iter()
        .filter(|name| !files.contains(name))
        .collect()
}

/// Reads an index file.
///
/// # Errors
/// When it is no index, or names a file outside the model's folder.
pub fn read_index(path: &Path) -> Result<WeightMap> {
    let bytes = placeholder::read_file(path)?;
    let parsed = parse_index(&bytes);
    parsed.with_context(|| path.display().to_string())
}

fn parse_index(bytes: &[u8]) -> Result<WeightMap> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: WeightMap,
    }
    let index: Index = serde_json::from_slice(bytes).context("not a weight index")?;
    ensure!(!index.weight_map.is_empty(), "weight_map is empty");
    for (tensor, file) in &index.weight_map {
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', ':']);
        if !file.split('/').all(is_part) {
            bail!(
                "weight_map: `{tensor}` is in `{file}` (expected a file inside the model's folder)"
            );
        }
    }
    Ok(index.weight_map)
}

/// Returns the files that an index names, sorted, each once.
pub fn shards(weight_map: &WeightMap) -> Vec<String> {
    let files: BTreeSet<&String> = weight_map.values().collect();
    files.into_iter().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(names: &[&str]) -> Option<WeightNames> {
        choose(&names.iter().map(|&name| name.to_owned()).collect())
    }

    fn files(names: &[&str]) -> WeightNames {
        WeightNames::Files(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn weights_are_chosen_in_the_order_of_transformers() {
        let index = "model.safetensors.index.json";
        assert_eq!(
            chosen(&["a.safetensors", index, "model.safetensors"]),
            Some(files(&["model.safetensors"]))
        );
        assert_eq!(
            chosen(&["a.safetensors.index.json", "b.safetensors", index]),
            Some(WeightNames::Index(index.to_owned()))
        );
        assert_eq!(
            chosen(&["b.safetensors.index.json", "a.safetensors"]),
            Some(WeightNames::Index("b.safetensors.index.json".to_owned()))
        );
        assert_eq!(
            chosen(&[
                "b.safetensors",
                "sub/c.safetensors",
                "a.safetensors",
                "README.md"
            ]),
            Some(files(&["a.safetensors", "b.safetensors"]))
        );
        assert_eq!(
            chosen(&["pytorch_model.bin", "onnx/model.safetensors"]),
            None
        );
    }

    #[test]
    fn numbered_files_betray_a_missing_one() {
        let missing = |names: &[&str]| {
            missing_numbers(
                &names
                    .iter()
                    .map(|&name| name.to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        let one_of_one = "model.safetensors-00001-of-00001.safetensors";
        assert!(missing(&[one_of_one]).is_empty());
        assert_eq!(
            missing(&["m-00002-of-00003.safetensors"]),
            [
                "m-00001-of-00003.safetensors",
                "m-00003-of-00003.safetensors"
            ]
        );
        assert!(
            missing(&[
                "one-of-many.safetensors",
                "x-of-2.safetensors",
                "a.safetensors"
            ])
            .is_empty()
        );
    }

    #[test]
    fn an_index_may_use_any_names_inside_its_folder() {
        let index = br#"{"metadata":{"total_size":4},"weight_map":{"a":"odd name","b":"sub/x","c":"odd name"}}"#;
        let map = parse_index(index).expect("an index");
        assert_eq!(shards(&map), ["odd name", "sub/x"]);
        for file in [
            "../x",
            "/etc/x",
            "a/../../x",
            "a//b",
            "C:\\x",
            "..\\x",
            "",
            ".",
        ] {
            let index = serde_json::json!({"weight_map": {"t": file}}).to_string();
            let error = parse_index(index.as_bytes()).expect_err(file).to_string();
            assert!(error.contains("`t`") && error.contains("inside"), "{error}");
        }
    }

    #[test]
    fn a_damaged_index_is_named_with_the_place() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("model.safetensors.index.json");
        for content in [
            "{\"weight_map\": {\"a\":",
            "{}",
            "[]",
            "{\"weight_map\": {}}",
        ] {
            std::fs::write(&path, content).expect("a file");
            let message = format!("{:#}", read_index(&path).expect_err(content));
            assert!(
                message.contains("model.safetensors.index.json"),
                "{message}"
            );
        }
        std::fs::write(&path, "{\"weight_map\": {\"a\":").expect("a file");
        let message = format!("{:#}", read_index(&path).expect_err("cut off"));
        assert!(message.contains("line 1 column 20"), "{message}");
    }
}
