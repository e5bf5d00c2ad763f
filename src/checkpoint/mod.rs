//! A model's files, from wherever they are, as the parts that the rest of the program needs.
//!
//! A [`Source`] says where (folder, GGUF file, hub id); [`Checkpoint::open`] reads configuration, tokenizer, template and
//! the list of tensors, and refuses what is not supported before any weight is read. Nothing here computes.

pub mod folder;
pub mod gguf;
pub mod hub;
pub mod placeholder;
pub mod safetensors;
pub mod source;
pub mod tokens;
pub mod weights;

pub use source::Source;

use crate::model::TensorSource;
use crate::model::config::DecoderConfig;
use crate::text::chat::ChatTemplate;
use crate::text::tokenizer::TextTokenizer;

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
    /// Bytes that the text model's weights take in f32.
    pub f32_bytes: u64,
    /// Text to ids and back.
    pub tokenizer: TextTokenizer,
    /// Chat template, where the model has one.
    pub template: Option<ChatTemplate>,
    /// Ids that end a reply, ascending; empty where no file names one.
    pub stop_ids: Vec<u32>,
    /// The tensors.
    pub weights: Box<dyn TensorSource + Send + Sync>,
    /// What the user should know about these files, a sentence each.
    pub notes: Vec<String>,
}
