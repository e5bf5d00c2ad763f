//! What a model's small files say of it: sizes, tokenizer, template. The weights are neither fetched nor opened.
//!
//! Each part is read when it is asked for, so that a folder with only a tokenizer can still say how it cuts a text, and
//! one with only a `config.json` what the model would need.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::folder::{Folder, NO_OTHER_TOKENIZER};
use super::gguf::GgufFile;
use super::hub::{self, HubOptions, Part};
use super::{Source, name_of, stop_ids_of};
#[cfg(feature = "demo")]
use crate::demo;
use crate::model::config::DecoderConfig;
use crate::text::chat::ChatTemplate;
use crate::text::tokenizer::TextTokenizer;

/// A model without its weights.
pub struct Description {
    /// What records call the model.
    pub id: String,
    /// Commit on the hub.
    pub revision: Option<String>,
    /// What a reader of the results must know of the model.
    pub note: Option<&'static str>,
    files: Files,
}

enum Files {
    Folder(Box<Folder>),
    Gguf(Box<GgufFile>),
}

/// How a model's weights are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// The type of most of them, in lower case: `bf16`, `q4_1`.
    pub dtype: String,
    /// Their bytes, where the header that was read says so.
    pub bytes: Option<u64>,
}

impl Description {
    /// Finds a model's small files, fetching them first where they are on the hub.
    ///
    /// # Errors
    /// Names the file that is missing or damaged, and what to do.
    pub fn open(source: &Source, options: &HubOptions) -> Result<Self> {
        let folder = |path: &Path| Folder::open_small(path).map(Box::new).map(Files::Folder);
        let (id, files) = match source {
            Source::Folder(path) => (name_of(path), folder(path)?),
            #[cfg(feature = "demo")]
            Source::Demo => {
                let files = Files::Folder(Box::new(Folder::demo()?));
                return Ok(Self {
                    note: Some(demo::NOTE),
                    ..Self::new(demo::NAME.to_owned(), files)
                });
            }
            Source::Gguf(path) => {
                let file = GgufFile::open(path)?;
                (name_of(path), Files::Gguf(Box::new(file)))
            }
            Source::Hub { id, revision } => {
                let snapshot = hub::fetch(id, revision.as_deref(), Part::SmallFiles, options)?;
                let files = folder(&snapshot.folder)?;
                return Ok(Self {
                    revision: snapshot.revision,
                    ..Self::new(id.clone(), files)
                });
            }
        };
        Ok(Self::new(id, files))
    }

    fn new(id: String, files: Files) -> Self {
        Self {
            id,
            revision: None,
            note: None,
            files,
        }
    }

    /// Returns the hyper-parameters.
    ///
    /// # Errors
    /// When there are none, or the decoder cannot compute them.
    pub fn config(&self) -> Result<DecoderConfig> {
        match &self.files {
            Files::Folder(folder) => folder.decoder_config(),
            Files::Gguf(file) => file.config(),
        }
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// When there is none, or one that is not supported.
    pub fn tokenizer(&self) -> Result<TextTokenizer> {
        match &self.files {
            Files::Folder(folder) => folder.tokenizer(),
            Files::Gguf(file) => TextTokenizer::new(file.tokenizer()?),
        }
    }

    /// Returns the chat template, where the model has one.
    ///
    /// # Errors
    /// When it cannot be understood.
    pub fn template(&self) -> Result<Option<ChatTemplate>> {
        match &self.files {
            Files::Folder(folder) => folder.template(),
            Files::Gguf(file) => file.template(),
        }
    }

    /// Returns the ids that end a reply, ascending; `tokenizer` is the model's.
    pub fn stop_ids(&self, tokenizer: &TextTokenizer) -> Vec<u32> {
        match &self.files {
            Files::Folder(folder) => folder.stop_ids(&|name| tokenizer.id_of(name)),
            Files::Gguf(file) => stop_ids_of(file, tokenizer),
        }
    }

    /// Returns the rows of the model's output layer; `None` where no file says so. Also for families that the decoder
    /// cannot compute.
    pub fn head_rows(&self) -> Option<usize> {
        match &self.files {
            Files::Folder(folder) => {
                let rows = text_key(&folder.config, "vocab_size")?.as_u64()?;
                usize::try_from(rows).ok()
            }
            Files::Gguf(file) => file.config().ok().map(|config| config.vocab_size),
        }
    }

    /// Returns how the weights are stored, as far as the small files say; `None` where they do not.
    pub fn storage(&self) -> Option<Storage> {
        match &self.files {
            Files::Folder(folder) => {
                let keys = ["dtype", "torch_dtype"];
                let named = keys.iter().find_map(|key| text_key(&folder.config, key))?;
                Some(Storage {
                    dtype: short_dtype(named.as_str()?),
                    bytes: None,
                })
            }
            Files::Gguf(file) => Some(Storage {
                dtype: file.weights_dtype(),
                bytes: Some(file.stored_bytes()),
            }),
        }
    }
}

/// A key of the text model's configuration, which a model that also sees images has below `text_config`.
fn text_key<'a>(config: &'a Value, key: &str) -> Option<&'a Value> {
    let levels = [config.get("text_config"), Some(config)];
    let mut found = levels
        .into_iter()
        .flatten()
        .filter_map(|level| level.get(key));
    found.find(|value| !value.is_null())
}

/// torch's name of a type in ours: `bfloat16` is `bf16`.
fn short_dtype(name: &str) -> String {
    let name = name.strip_prefix("torch.").unwrap_or(name);
    match name {
        "bfloat16" => "bf16".to_owned(),
        "float16" | "half" => "f16".to_owned(),
        "float32" | "float" => "f32".to_owned(),
        other => other.to_lowercase(),
    }
}

impl Folder {
    /// Returns the hyper-parameters.
    ///
    /// # Errors
    /// When there are none, or the decoder cannot compute them.
    pub fn decoder_config(&self) -> Result<DecoderConfig> {
        ensure!(
            !self.config.is_null(),
            "{}: missing config.json",
            self.path.display()
        );
        DecoderConfig::from_hf(&self.config)
            .with_context(|| self.path.join("config.json").display().to_string())
    }

    /// Returns the tokenizer.
    ///
    /// # Errors
    /// When there is none, or one that is not supported.
    pub fn tokenizer(&self) -> Result<TextTokenizer> {
        ensure!(
            !self.tokenizer_json.is_empty(),
            "{}: tokenizer.json is missing or empty; {NO_OTHER_TOKENIZER}",
            self.path.display()
        );
        TextTokenizer::from_json(&self.tokenizer_json, self.tokenizer_config.as_ref())
            .with_context(|| self.path.display().to_string())
    }

    /// Returns the chat template, where the model has one.
    ///
    /// # Errors
    /// When it cannot be understood.
    pub fn template(&self) -> Result<Option<ChatTemplate>> {
        let found = self.chat_template()?;
        found
            .map(|(source, text)| ChatTemplate::new(source, &text, self.special_tokens()))
            .transpose()
    }
}

impl GgufFile {
    /// Returns the chat template, where the file has one.
    ///
    /// # Errors
    /// When it cannot be understood.
    pub fn template(&self) -> Result<Option<ChatTemplate>> {
        let special = ["bos_token", "eos_token"].into_iter();
        let special_tokens = special
            .filter_map(|name| Some((name, self.special_token(name)?)))
            .collect();
        let source = || "tokenizer.chat_template".to_owned();
        self.chat_template()
            .map(|text| ChatTemplate::new(source(), text, special_tokens))
            .transpose()
            .with_context(|| self.path().display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(files: &[(&str, &str)]) -> (tempfile::TempDir, Description) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, content) in files {
            std::fs::write(folder.path().join(name), content).expect("a file");
        }
        let source = Source::Folder(folder.path().to_owned());
        let description = Description::open(&source, &HubOptions::default()).expect("a folder");
        (folder, description)
    }

    #[test]
    fn a_folder_without_weights_says_what_its_files_say() {
        let config = r#"{"model_type": "gemma", "vocab_size": 7, "torch_dtype": "float16"}"#;
        let weights = ("model.safetensors", "damaged");
        let (_folder, description) = open(&[("config.json", config), weights]);
        assert_eq!(description.head_rows(), Some(7));
        let storage = description.storage().expect("a dtype");
        assert_eq!((storage.dtype.as_str(), storage.bytes), ("f16", None));
        let refusal = |result: Result<()>| format!("{:#}", result.expect_err("must be refused"));
        assert!(refusal(description.config().map(drop)).contains("model_type `gemma`"));
        let tokenizer = refusal(description.tokenizer().map(drop));
        assert!(tokenizer.contains("tokenizer.json is missing or empty; other tokenizer files"));
        assert!(description.template().expect("no template").is_none());
    }

    #[test]
    fn the_text_models_keys_win_and_an_empty_folder_says_what_is_missing() {
        let config = r#"{"vocab_size": 7, "text_config": {"vocab_size": 9, "dtype": "bfloat16"}}"#;
        let (_folder, description) = open(&[("config.json", config)]);
        assert_eq!(description.head_rows(), Some(9));
        assert_eq!(description.storage().expect("a dtype").dtype, "bf16");
        let (_folder, description) = open(&[]);
        assert_eq!(
            (description.head_rows(), description.storage()),
            (None, None)
        );
        let error = description.config().expect_err("nothing there").to_string();
        assert!(error.ends_with("missing config.json"), "{error}");
    }
}
