//! A model's files, from wherever they are, as the parts that the rest of the program needs.
//!
//! A [`Source`] says where (folder, GGUF file, hub id); [`Checkpoint::open`] reads configuration, tokenizer, template and
//! the list of tensors, and refuses what is not supported before any weight is read. Nothing here computes.

pub mod description;
pub mod folder;
pub mod gguf;
pub mod hub;
mod mapping;
pub mod placeholder;
pub mod safetensors;
pub mod source;
pub mod tokens;
pub mod weights;

pub use source::Source;

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Result, ensure};

#[cfg(feature = "demo")]
use crate::demo;
use crate::model::TensorSource;
use crate::model::config::DecoderConfig;
use crate::text::chat::ChatTemplate;
use crate::text::tokenizer::TextTokenizer;
use folder::Folder;
use gguf::GgufFile;
use hub::{HubOptions, Part};
use safetensors::SafetensorsFiles;

/// Tokens that end a reply by their name alone: a GGUF file holds one end id where the model's own files name several
/// (Qwen3.5: `<|im_end|>`, but not `<|endoftext|>`). llama.cpp goes by names too.
const GGUF_STOP_TOKENS: [&str; 5] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
];

/// A model's files, opened and checked; weights are read when they are asked for.
pub struct Checkpoint {
    /// What the record calls the model: the hub id, or the name of the folder or file.
    pub id: String,
    /// Commit on the hub.
    pub revision: Option<String>,
    /// Hyper-parameters.
    pub config: DecoderConfig,
    /// How most weights are stored, in lower case: `bf16`, `q4_1`.
    pub weights_dtype: String,
    /// Bytes that the text model's weights take in the CPU's memory, at most.
    pub memory_bytes: u64,
    /// Text to ids and back.
    pub tokenizer: TextTokenizer,
    /// Chat template, where the model has one.
    pub template: Option<ChatTemplate>,
    /// Ids that end a reply, ascending; empty where no file names one.
    pub stop_ids: Vec<u32>,
    /// The tensors.
    pub weights: Box<dyn TensorSource + Send + Sync>,
    /// What a reader of the results must know of the model.
    pub note: Option<&'static str>,
    /// What the user should know about these files, a sentence each.
    pub notes: Vec<String>,
}

impl Checkpoint {
    /// Opens a model, fetching its files first where they are on the hub.
    ///
    /// # Errors
    /// Names the file or key that is missing, damaged or not supported, and what to do.
    pub fn open(source: &Source, options: &HubOptions) -> Result<Self> {
        let checkpoint = match source {
            Source::Folder(path) => Self::from_path(path, name_of(path))?,
            #[cfg(feature = "demo")]
            Source::Demo => {
                let weights = SafetensorsFiles::built_in("model.safetensors", demo::WEIGHTS)?;
                let note = Some(demo::NOTE);
                Self {
                    note,
                    ..Self::from_folder(Folder::demo()?, weights, demo::NAME.to_owned())?
                }
            }
            Source::Gguf(path) => Self::from_gguf(path)?,
            Source::Hub { id, revision } => {
                let snapshot = hub::fetch(id, revision.as_deref(), Part::Whole, options)?;
                let checkpoint = Self::from_path(&snapshot.folder, id.clone())?;
                Self {
                    revision: snapshot.revision,
                    ..checkpoint
                }
            }
        };
        checkpoint.checked()
    }

    fn from_path(path: &Path, id: String) -> Result<Self> {
        let folder = Folder::open(path)?;
        let weights = SafetensorsFiles::open(&folder.weight_files, folder.weight_map.as_ref())?;
        Self::from_folder(folder, weights, id)
    }

    fn from_folder(folder: Folder, weights: SafetensorsFiles, id: String) -> Result<Self> {
        let config = folder.decoder_config()?;
        let tokenizer = folder.tokenizer()?;
        let template = folder.template()?;
        let mut notes = Vec::new();
        if config.tie_word_embeddings == Some(true) && weights.contains("lm_head.weight") {
            notes.push("config.json ties the head to the embedding: the checkpoint's own lm_head.weight is not used".into());
        }
        Ok(Self {
            id,
            revision: None,
            weights_dtype: weights.weights_dtype(),
            memory_bytes: weights.memory_bytes(),
            stop_ids: folder.stop_ids(&|name| tokenizer.id_of(name)),
            tokenizer,
            template,
            config,
            weights: Box::new(weights),
            note: None,
            notes,
        })
    }

    fn from_gguf(path: &Path) -> Result<Self> {
        let file = GgufFile::open(path)?;
        let config = file.config()?;
        let template = file.template()?;
        let tokenizer = TextTokenizer::new(file.tokenizer()?)?;
        Ok(Self {
            id: name_of(path),
            revision: None,
            weights_dtype: file.weights_dtype(),
            memory_bytes: file.memory_bytes(),
            stop_ids: stop_ids_of(&file, &tokenizer),
            tokenizer,
            template,
            weights: Box::new(file.into_weights(config.clone())),
            config,
            note: None,
            notes: Vec::new(),
        })
    }

    /// Checks what only shows when all parts are there.
    fn checked(mut self) -> Result<Self> {
        let vocab_size = self.config.vocab_size;
        ensure!(
            self.config.tie_word_embeddings != Some(false)
                || self.weights.contains("lm_head.weight"),
            "{}: lm_head.weight is missing, and the config says that the head is not tied to the embedding (the files are not complete)",
            self.id
        );
        self.stop_ids.retain(|&id| (id as usize) < vocab_size);
        if self.stop_ids.is_empty() {
            self.notes.push("no file of the model names a token that ends a reply: every reply runs to the limit".into());
        }
        Ok(self)
    }
}

/// Returns the ids that end a reply by a GGUF file, ascending.
fn stop_ids_of(file: &GgufFile, tokenizer: &TextTokenizer) -> Vec<u32> {
    let named = GGUF_STOP_TOKENS
        .iter()
        .filter_map(|name| tokenizer.id_of(name));
    let stop_ids: BTreeSet<u32> = file.stop_ids().into_iter().chain(named).collect();
    stop_ids.into_iter().collect()
}

/// The last part of a path, as the record names the model: never the whole path.
fn name_of(path: &Path) -> String {
    let name = |path: &Path| {
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
    };
    let resolved = || path.canonicalize().ok().and_then(|path| name(&path));
    name(path)
        .or_else(resolved)
        .unwrap_or_else(|| "model".to_owned())
}
