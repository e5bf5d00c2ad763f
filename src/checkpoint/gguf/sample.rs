//! GGUF files for tests: written value by value, or from the fixtures.

use std::path::{Path, PathBuf};

use anyhow::Result;
use memmap2::MmapMut;

use super::super::mapping::FileBytes;

use super::GgufFile;

/// A GGUF file in the making; what it does not say is left out.
#[derive(Clone, Default)]
pub(super) struct Sample {
    values: Vec<Vec<u8>>,
    tensors: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Sample {
    /// Where the data of the tiny model ends.
    pub(super) const TINY_SIZE: u64 = 4 * 64 + 128;

    pub(super) fn new() -> Self {
        Self::default()
    }

    /// The smallest complete model and tokenizer of the architecture `llama`: 8 rows, width 4, one layer of one head.
    pub(super) fn tiny_llama() -> Self {
        let tokens = ["a", "b", "ab", "c", "\u{120}", "<s>", "</s>", "[PAD7]"];
        let types = [1, 1, 1, 1, 1, 3, 3, 5];
        let mut sample = Self::new()
            .text("general.architecture", "llama")
            .number("llama.block_count", 1)
            .number("llama.context_length", 16)
            .number("llama.embedding_length", 4)
            .number("llama.feed_forward_length", 8)
            .number("llama.attention.head_count", 1)
            .float("llama.attention.layer_norm_rms_epsilon", 1e-5)
            .text("tokenizer.ggml.model", "gpt2")
            .text("tokenizer.ggml.pre", "gpt-2")
            .texts("tokenizer.ggml.tokens", &tokens)
            .numbers("tokenizer.ggml.token_type", &types)
            .texts("tokenizer.ggml.merges", &["a b"])
            .number("tokenizer.ggml.bos_token_id", 5)
            .number("tokenizer.ggml.eos_token_id", 6);
        for (name, rows) in [
            ("attn_q", 4),
            ("attn_k", 4),
            ("attn_v", 4),
            ("attn_output", 4),
        ] {
            sample = sample.zeros(&format!("blk.0.{name}.weight"), &[rows, 4]);
        }
        sample.zeros("token_embd.weight", &[8, 4])
    }

    pub(super) fn text(self, key: &str, text: &str) -> Self {
        self.value(key, 8, &spelled(text))
    }

    pub(super) fn number(self, key: &str, number: u32) -> Self {
        self.value(key, 4, &number.to_le_bytes())
    }

    pub(super) fn float(self, key: &str, number: f32) -> Self {
        self.value(key, 6, &number.to_le_bytes())
    }

    pub(super) fn flag(self, key: &str, flag: bool) -> Self {
        self.value(key, 7, &[u8::from(flag)])
    }

    pub(super) fn texts(self, key: &str, texts: &[&str]) -> Self {
        let elements: Vec<u8> = texts.iter().flat_map(|text| spelled(text)).collect();
        self.list(key, 8, texts.len(), &elements)
    }

    pub(super) fn numbers(self, key: &str, numbers: &[i32]) -> Self {
        let elements: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        self.list(key, 5, numbers.len(), &elements)
    }

    pub(super) fn list(self, key: &str, kind: u32, count: usize, elements: &[u8]) -> Self {
        let mut value = kind.to_le_bytes().to_vec();
        value.extend((count as u64).to_le_bytes());
        value.extend(elements);
        self.value(key, 9, &value)
    }

    pub(super) fn value(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let mut entry = spelled(key);
        entry.extend(kind.to_le_bytes());
        entry.extend(value);
        self.values.push(entry);
        self
    }

    /// Adds an f32 tensor; its shape is outermost first.
    pub(super) fn tensor(mut self, name: &str, shape: &[u64], numbers: &[f32]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(32), 0);
        let offset = self.data.len() as u64;
        self.data
            .extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        self.entry(name, shape, 0, offset)
    }

    pub(super) fn zeros(self, name: &str, shape: &[u64]) -> Self {
        let numbers = vec![0.0; shape.iter().product::<u64>() as usize];
        self.tensor(name, shape, &numbers)
    }

    /// Adds what the header says of a tensor, true or not.
    pub(super) fn entry(mut self, name: &str, shape: &[u64], code: u32, offset: u64) -> Self {
        let mut entry = spelled(name);
        entry.extend((shape.len() as u32).to_le_bytes());
        entry.extend(shape.iter().rev().flat_map(|size| size.to_le_bytes()));
        entry.extend(code.to_le_bytes());
        entry.extend(offset.to_le_bytes());
        self.tensors.push(entry);
        self
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = head(3, self.tensors.len() as u64, self.values.len() as u64);
        bytes.extend(self.values.concat());
        bytes.extend(self.tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.data);
        bytes
    }

    pub(super) fn open(&self) -> Result<GgufFile> {
        open(&self.bytes())
    }
}

/// The first 24 bytes of a file.
pub(super) fn head(version: u32, num_tensors: u64, num_values: u64) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(num_tensors.to_le_bytes());
    bytes.extend(num_values.to_le_bytes());
    bytes
}

/// Opens bytes as if they were the file `sample.gguf`.
pub(super) fn open(bytes: &[u8]) -> Result<GgufFile> {
    let mut memory = MmapMut::map_anon(bytes.len().max(1))?;
    memory[..bytes.len()].copy_from_slice(bytes);
    GgufFile::from_bytes(
        Path::new("sample.gguf"),
        FileBytes::from_memory(memory.make_read_only()?),
    )
}

/// Returns a path below `tests/fixtures`.
pub(super) fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Opens `tests/fixtures/gguf/NAME.gguf`.
pub(super) fn fixture(name: &str) -> GgufFile {
    GgufFile::open(&path(&format!("gguf/{name}.gguf"))).expect("a fixture that can be opened")
}

fn spelled(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}
