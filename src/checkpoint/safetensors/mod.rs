//! The tensors of a model in safetensors files: mapped into memory, found by name, given out as f32.
//!
//! Only the text model is seen: names lose the prefix that multimodal checkpoints put before it, vision and
//! multi-token-prediction tensors are passed over. A file that another program cuts short while it is mapped ends this
//! program with a bus error: that is how mapping works, and no check beforehand can prevent it.

mod header;

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use candle_core::{Device, Tensor};
use rayon::prelude::*;

use super::mapping::{self, FileBytes};
use super::placeholder;
use super::weights::WeightMap;
use crate::kernels::linear::Format;
use crate::model::{Stored, TensorSource};
use header::TensorInfo;

/// Where the text model's tensors are, most specific first; the embedding decides.
const PREFIXES: [&str; 4] = [
    "model.language_model.",
    "language_model.model.",
    "model.",
    "",
];

/// The tensors of a text model, under their names without prefix.
pub struct SafetensorsFiles {
    files: Vec<WeightFile>,
    tensors: BTreeMap<String, StoredTensor>,
    num_skipped: usize,
}

struct WeightFile {
    path: PathBuf,
    content: Content,
}

struct StoredTensor {
    file: usize,
    stored_name: String,
    dtype: String,
    shape: Vec<usize>,
    bytes: Range<usize>,
}

enum Content {
    Mapped(FileBytes),
    Read(Vec<u8>),
    BuiltIn(&'static [u8]),
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Read(bytes) => bytes,
            Self::BuiltIn(bytes) => bytes,
        }
    }
}

impl SafetensorsFiles {
    /// Maps the files and checks their headers; `index` is the weight map that named them, if one did.
    ///
    /// # Errors
    /// Names the file and what is wrong with it, the tensors that the index promises but its files lack, a tensor that
    /// two files hold, or that there is no embedding under any known prefix.
    pub fn open(paths: &[PathBuf], index: Option<&WeightMap>) -> Result<Self> {
        let contents = paths
            .iter()
            .map(|path| Ok((path.clone(), read_or_map(path)?)));
        Self::from_contents(contents, index)
    }

    /// Checks the header of a file that the program carries inside; `name` is what errors call it.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn built_in(name: &str, bytes: &'static [u8]) -> Result<Self> {
        let contents = std::iter::once(Ok((PathBuf::from(name), Content::BuiltIn(bytes))));
        Self::from_contents(contents, None)
    }

    fn from_contents(
        contents: impl Iterator<Item = Result<(PathBuf, Content)>>,
        index: Option<&WeightMap>,
    ) -> Result<Self> {
        let mut files = Vec::new();
        let mut stored: BTreeMap<String, StoredTensor> = BTreeMap::new();
        for content in contents {
            let (path, content) = content?;
            let path = path.as_path();
            placeholder::refuse(path, &content[..content.len().min(1024)])?;
            let tensors = header::read(&content).with_context(|| path.display().to_string())?;
            for tensor in tensors {
                let is_elsewhere = index
                    .and_then(|index| index.get(&tensor.name))
                    .is_some_and(|file| !path.ends_with(file));
                if is_elsewhere {
                    continue;
                }
                let name = tensor.name.clone();
                if let Some(other) = stored.insert(name, StoredTensor::new(files.len(), tensor)) {
                    let WeightFile { path: first, .. } = &files[other.file];
                    bail!(
                        "tensor `{}` is in both {} and {}",
                        other.stored_name,
                        first.display(),
                        path.display()
                    );
                }
            }
            files.push(WeightFile {
                path: path.to_owned(),
                content,
            });
        }
        refuse_broken_promises(index, &stored)?;
        let num_stored = stored.len();
        let tensors = text_model(stored)?;
        Ok(Self {
            files,
            num_skipped: num_stored - tensors.len(),
            tensors,
        })
    }

    /// Returns the names of the text model's tensors, without prefix, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns how many tensors are not of the text model.
    pub fn num_skipped(&self) -> usize {
        self.num_skipped
    }

    /// Returns the type that holds most of the text model's bytes, in lower case: `bf16`.
    pub fn weights_dtype(&self) -> String {
        let mut bytes_of: BTreeMap<&str, usize> = BTreeMap::new();
        for tensor in self.tensors.values() {
            *bytes_of.entry(&tensor.dtype).or_default() += tensor.bytes.len();
        }
        let most = bytes_of.into_iter().max_by_key(|&(_, bytes)| bytes);
        most.map_or_else(String::new, |(dtype, _)| dtype.to_ascii_lowercase())
    }

    /// Returns the bytes that the text model takes in memory: as it is stored, f32 where it is stored wider.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = |tensor: &StoredTensor| match tensor.dtype.as_str() {
            "F64" => tensor.bytes.len() / 2,
            _ => tensor.bytes.len(),
        };
        self.tensors
            .values()
            .map(|tensor| bytes(tensor) as u64)
            .sum()
    }
}

impl SafetensorsFiles {
    /// Returns a tensor of this shape and its bytes.
    fn find(&self, name: &str, shape: &[usize]) -> Result<(&StoredTensor, &[u8])> {
        let tensor = self.tensors.get(name).with_context(|| {
            let files = self
                .files
                .iter()
                .map(|file| file.path.display().to_string());
            format!(
                "tensor `{name}` is missing from {}",
                files.collect::<Vec<_>>().join(", ")
            )
        })?;
        ensure!(
            tensor.shape == shape,
            "{} has shape {:?} (expected {shape:?})",
            self.place(tensor),
            tensor.shape
        );
        Ok((
            tensor,
            &self.files[tensor.file].content[tensor.bytes.clone()],
        ))
    }

    fn place(&self, tensor: &StoredTensor) -> String {
        let path = self.files[tensor.file].path.display();
        format!("{path}: tensor `{}`", tensor.stored_name)
    }
}

impl TensorSource for SafetensorsFiles {
    fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let (tensor, bytes) = self.find(name, shape)?;
        let place = || self.place(tensor);
        let values = to_f32(&tensor.dtype, bytes).with_context(place)?;
        Tensor::from_vec(values, shape, &Device::Cpu).with_context(place)
    }

    fn stored(&self, name: &str, shape: &[usize]) -> Result<Stored<'_>> {
        let (tensor, bytes) = self.find(name, shape)?;
        let format = match tensor.dtype.as_str() {
            "BF16" => Format::Bf16,
            "F16" => Format::F16,
            "F32" => Format::F32,
            other => {
                let numbers = to_f32(other, bytes).with_context(|| self.place(tensor))?;
                return Ok(Stored::Numbers(numbers));
            }
        };
        Ok(Stored::Bytes(format, bytes))
    }

    fn release(&self, name: &str) {
        if let Some(tensor) = self.tensors.get(name)
            && let Content::Mapped(map) = &self.files[tensor.file].content
        {
            map.release(tensor.bytes.clone());
        }
    }
}

impl StoredTensor {
    fn new(file: usize, info: TensorInfo) -> Self {
        Self {
            file,
            stored_name: info.name,
            dtype: info.dtype,
            shape: info.shape,
            bytes: info.bytes,
        }
    }
}

/// Maps a file, or reads it where its file system cannot map (some network and FUSE mounts).
fn read_or_map(path: &Path) -> Result<Content> {
    let is_real = std::fs::metadata(path).is_ok_and(|found| found.len() > 0);
    if !is_real {
        return placeholder::read_file(path).map(Content::Read);
    }
    mapping::map(path)
        .map(Content::Mapped)
        .with_context(|| path.display().to_string())
}

fn refuse_broken_promises(
    index: Option<&WeightMap>,
    stored: &BTreeMap<String, StoredTensor>,
) -> Result<()> {
    let promised = index.into_iter().flatten();
    let missing: Vec<String> = promised
        .filter(|(name, _)| !stored.contains_key(*name))
        .map(|(name, file)| format!("`{name}` in {file}"))
        .collect();
    ensure!(
        missing.is_empty(),
        "{} tensors that the index names are missing: {}{}; fetch the model again",
        missing.len(),
        missing[..missing.len().min(5)].join(", "),
        if missing.len() > 5 { ", …" } else { "" }
    );
    Ok(())
}

/// Keeps the tensors of the text model, under their names without prefix.
fn text_model(stored: BTreeMap<String, StoredTensor>) -> Result<BTreeMap<String, StoredTensor>> {
    let has_embedding =
        |prefix: &&str| stored.contains_key(&format!("{prefix}embed_tokens.weight"));
    let Some(prefix) = PREFIXES.into_iter().find(has_embedding) else {
        let first = stored.keys().next().map_or("none", String::as_str);
        bail!(
            "no tensor `model.embed_tokens.weight` (or under another known prefix) among {} tensors; the first is `{first}`",
            stored.len()
        );
    };
    let name_of = |stored_name: &str| -> Option<String> {
        if matches!(
            stored_name,
            "lm_head.weight" | "language_model.lm_head.weight"
        ) {
            return Some("lm_head.weight".to_owned());
        }
        let name = stored_name.strip_prefix(prefix)?;
        let is_text = ["embed_tokens.", "layers.", "norm."]
            .iter()
            .any(|start| name.starts_with(start));
        is_text.then(|| name.to_owned())
    };
    Ok(stored
        .into_iter()
        .filter_map(|(stored_name, tensor)| Some((name_of(&stored_name)?, tensor)))
        .collect())
}

fn to_f32(dtype: &str, bytes: &[u8]) -> Result<Vec<f32>> {
    Ok(match dtype {
        "F32" => convert(bytes, f32::from_le_bytes),
        "BF16" => convert(bytes, |half| {
            f32::from_bits(u32::from(u16::from_le_bytes(half)) << 16)
        }),
        "F16" => convert(bytes, |half| f16_to_f32(u16::from_le_bytes(half))),
        "F64" => convert(bytes, |double| f64::from_le_bytes(double) as f32),
        other => bail!("stored as {other}, which is not read (expected F32, BF16, F16 or F64)"),
    })
}

fn convert<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32 + Sync) -> Vec<f32> {
    let (elements, _) = bytes.as_chunks::<N>();
    // Tasks of at least 64k numbers: below that, starting one costs more than it saves.
    let elements = elements.par_iter().with_min_len(1 << 16);
    elements.map(|element| number(*element)).collect()
}

/// Returns the number that IEEE 754 binary16 bits stand for; f32 holds every one of them exactly.
fn f16_to_f32(half: u16) -> f32 {
    let sign = u32::from(half & 0x8000) << 16;
    let exponent = u32::from(half >> 10 & 0x1f);
    let fraction = u32::from(half & 0x3ff);
    let magnitude = match exponent {
        // Subnormal: fraction · 2⁻²⁴.
        0 => (fraction as f32 * 2f32.powi(-24)).to_bits(),
        0x1f => 0x7f80_0000 | fraction << 13,
        _ => (exponent + 127 - 15) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

#[cfg(test)]
mod tests;
