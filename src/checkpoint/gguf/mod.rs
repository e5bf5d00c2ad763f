//! A model in one GGUF file, as llama.cpp's converter writes it, read as if it were the Hugging Face folder it came from.
//!
//! [`GgufFile`] gives the configuration, the tokenizer and the template; [`GgufWeights`] gives the tensors under Hugging
//! Face's names, dequantised to f32, with what the converter changed undone. Every number of the file is checked before it
//! is used. Refused by name: other architectures, mixtures of experts, scaled rotary embeddings, SentencePiece tokenizers,
//! storage types that candle cannot read, split files. A file that is shortened while it is mapped ends the program.

mod config;
mod cursor;
mod names;
mod reader;
#[cfg(test)]
mod sample;
mod tensors;
mod tokenizer;
mod types;
mod values;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tokenizers::Tokenizer;

pub use self::tensors::GgufWeights;

use self::reader::{Header, TensorInfo};
use super::mapping::{self, FileBytes};
use crate::model::config::DecoderConfig;

/// A GGUF file whose header has been read and checked.
pub struct GgufFile {
    path: PathBuf,
    bytes: FileBytes,
    header: Header,
}

impl GgufFile {
    /// Opens a file and reads its header; weights stay on the disk until they are asked for.
    ///
    /// # Errors
    /// When it cannot be read, is not a whole GGUF file of version 2 or 3, or is one part of several.
    pub fn open(path: &Path) -> Result<Self> {
        mapping::map(path)
            .and_then(|bytes| Self::from_bytes(path, bytes))
            .with_context(|| path.display().to_string())
    }

    fn from_bytes(path: &Path, bytes: FileBytes) -> Result<Self> {
        let header = Header::parse(&bytes)?;
        let parts = header.number("split.count")?.unwrap_or(1);
        ensure!(
            parts <= 1,
            "one part of a model in {parts} files is not supported (join them with `llama-gguf-split --merge`)"
        );
        let path = path.to_owned();
        Ok(Self {
            path,
            bytes,
            header,
        })
    }

    /// Returns the hyper-parameters.
    ///
    /// # Errors
    /// Names the architecture, key or tensor that is missing, contradictory or not supported.
    pub fn config(&self) -> Result<DecoderConfig> {
        config::read(self).with_context(|| self.path.display().to_string())
    }

    /// Returns the tokenizer, as the model's `tokenizer.json` would give it.
    ///
    /// # Errors
    /// When the file has none, or one that cannot be rebuilt exactly.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        tokenizer::build(self).with_context(|| self.path.display().to_string())
    }

    /// Returns the tensors of the model that `config` (this file's own) describes.
    pub fn into_weights(self, config: DecoderConfig) -> GgufWeights {
        GgufWeights::new(self, config)
    }

    /// Returns where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what the file calls the model.
    pub fn name(&self) -> Option<&str> {
        self.header.text("general.name").ok().flatten()
    }

    /// Returns the chat template; templates for special purposes (`tokenizer.chat_template.NAME`) are not looked at.
    pub fn chat_template(&self) -> Option<&str> {
        self.header.text("tokenizer.chat_template").ok().flatten()
    }

    /// Returns the ids that end a reply, ascending: end of text, of a turn, of a message.
    pub fn stop_ids(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = ["eos", "eot", "eom"]
            .iter()
            .filter_map(|name| tokenizer::special_id(self, name))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Returns the text of a token that chat templates know by name: `bos_token` or `eos_token`.
    pub fn special_token(&self, name: &str) -> Option<String> {
        let id = tokenizer::special_id(self, name.strip_suffix("_token")?)?;
        let tokens = tokenizer::tokens(self).ok()?;
        Some((*tokens.get(id as usize)?).to_owned())
    }

    /// Returns the storage type that holds most bytes of the text model, in lower case: `q4_1`.
    pub fn weights_dtype(&self) -> String {
        let mut sizes = std::collections::BTreeMap::new();
        for (_, info) in self.text_tensors() {
            *sizes.entry(info.code).or_insert(0) += info.at.len();
        }
        let largest = sizes.into_iter().max_by_key(|(_, size)| *size);
        largest.map_or(String::new(), |(code, _)| types::name(code).to_lowercase())
    }

    /// Returns the bytes that the text model's weights take in the file.
    pub fn stored_bytes(&self) -> u64 {
        self.text_tensors()
            .map(|(_, info)| info.at.len() as u64)
            .sum()
    }

    /// Returns the bytes that the text model's weights take in memory at most: f32, whatever they are stored as.
    pub fn memory_bytes(&self) -> u64 {
        self.text_tensors()
            .map(|(_, info)| info.num_elements() as u64)
            .fold(0, |bytes, elements| {
                bytes.saturating_add(elements.saturating_mul(4))
            })
    }

    /// Returns the tensors of the text model, leaving out what is never loaded.
    fn text_tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        let model_type = config::model_type(self).unwrap_or_default();
        let num_layers = config::num_layers(self).unwrap_or(0);
        let tensors = self.header.tensors().iter();
        let tensors = tensors.map(|(name, info)| (name.as_str(), info));
        tensors.filter(move |(name, _)| names::is_text(name, model_type, num_layers))
    }
}

#[cfg(test)]
mod tests {
    use super::sample::{Sample, fixture};
    use super::*;
    use crate::model::TensorSource;

    #[test]
    fn a_file_says_what_it_is() {
        let file = fixture("qwen35");
        assert_eq!(file.name(), Some("Tiny qwen35"));
        assert_eq!(file.weights_dtype(), "f32");
        assert_eq!(file.stop_ids(), [297]);
        assert_eq!(
            file.special_token("eos_token").as_deref(),
            Some("<|im_end|>")
        );
        assert_eq!(file.special_token("bos_token"), None);
        assert!(
            file.chat_template()
                .is_some_and(|text| text.contains("enable_thinking"))
        );
        assert_eq!(fixture("smollm-q8_0").weights_dtype(), "q8_0");
        assert_eq!(
            fixture("llama").special_token("bos_token").as_deref(),
            Some("<|endoftext|>")
        );
    }

    #[test]
    fn bytes_in_f32_leave_out_the_drafting_block_and_rope_frequencies() {
        // Embedding, norm and head; two layers of q and o, k and v, the SwiGLU layer and two norms.
        let layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64;
        let llama = 2 * 320 * 64 + 64 + 2 * layer;
        assert_eq!(fixture("llama").memory_bytes(), 4 * llama);
        let file = fixture("qwen35");
        let all: usize = file
            .header
            .tensors()
            .values()
            .map(TensorInfo::num_elements)
            .sum();
        let is_drafting = |name: &&String| name.starts_with("blk.4.");
        let drafting = file
            .header
            .tensors()
            .iter()
            .filter(|(name, _)| is_drafting(name));
        let drafting: usize = drafting.map(|(_, info)| info.num_elements()).sum();
        assert_eq!(file.memory_bytes(), 4 * (all - drafting) as u64);
    }

    #[test]
    fn stop_ids_are_sorted_and_named_once() {
        let sample = Sample::new()
            .texts("tokenizer.ggml.tokens", &["a", "b", "c"])
            .number("tokenizer.ggml.eos_token_id", 2)
            .number("tokenizer.ggml.eot_token_id", 0)
            .number("tokenizer.ggml.eom_token_id", 2)
            .number("tokenizer.ggml.bos_token_id", 3);
        let file = sample.open().expect("a good file");
        assert_eq!(file.stop_ids(), [0, 2]);
        assert_eq!(
            file.special_token("bos_token"),
            None,
            "no token has this id"
        );
    }

    #[test]
    fn templates_for_special_purposes_are_not_the_chat_template() {
        let sample = Sample::new().text("tokenizer.chat_template.rerank", "{{ x }}");
        assert_eq!(sample.open().expect("a good file").chat_template(), None);
    }

    #[test]
    fn errors_start_with_the_name_of_the_file() {
        let missing = GgufFile::open(Path::new("no/such/model.gguf")).map(|_| ());
        let missing = missing.expect_err("nothing is there");
        assert!(format!("{missing:#}").starts_with("no/such/model.gguf: cannot open the file: "));
        let file = Sample::new().open().expect("a good file");
        let config = format!("{:#}", file.config().expect_err("nothing is there"));
        assert!(
            config.starts_with("sample.gguf: `general.architecture` is missing"),
            "{config}"
        );
    }

    #[test]
    fn a_part_of_a_split_model_is_refused() {
        let error = Sample::new().number("split.count", 3).open().map(|_| ());
        let error = error.expect_err("one of three");
        assert!(
            error
                .to_string()
                .starts_with("one part of a model in 3 files")
        );
    }

    /// Every byte of a small file's header, replaced by several others: an error or other numbers, but no panic.
    #[test]
    fn no_damaged_byte_makes_anything_panic() {
        let good = Sample::tiny_llama().bytes();
        for position in 0..good.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff, good[position] ^ 1] {
                let mut bytes = good.clone();
                bytes[position] = byte;
                let Ok(file) = sample::open(&bytes) else {
                    continue;
                };
                let _ = file.tokenizer();
                let _ = (file.stop_ids(), file.memory_bytes(), file.weights_dtype());
                if let Ok(config) = file.config() {
                    let weights = file.into_weights(config);
                    let _ = weights.tensor("embed_tokens.weight", &[8, 4]);
                }
            }
        }
    }
}
