//! Writes a random model's folder: weights in safetensors files, an index where there are several, the small files.
//!
//! A number is its distribution's quantile at 16 random bits, so making one is a look-up in a table of 65,536 and a
//! gigabyte takes a few seconds. Numbers are made and written piece by piece: memory does not grow with the model.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

use super::{Dtype, Shape, Tensor, Values};

/// Where a text-only model's tensors are.
const PREFIX: &str = "model.";
/// Numbers that one thread makes at a time.
const PIECE: usize = 1 << 20;
/// Pieces in memory at once.
const PIECES: usize = 8;
/// Random bits that choose a number.
const QUANTILES: usize = 1 << 16;
/// What may go with a tokenizer.json.
const TOKENIZER_FILES: [&str; 4] = [
    "tokenizer_config.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
];

/// How a checkpoint is written.
pub(crate) struct Options {
    /// Seed of the weights.
    pub(crate) seed: u64,
    /// A file of weights grows to this at most, unless one tensor alone is larger.
    pub(crate) shard_bytes: u64,
}

/// Writes the folder and returns the bytes of its tensors. It appears under its name when it is complete.
///
/// # Errors
/// When `out` exists, the tokenizer folder lacks `tokenizer.json`, or a file cannot be written.
pub(crate) fn checkpoint(
    shape: &Shape,
    tokenizer: &Path,
    out: &Path,
    options: &Options,
) -> Result<u64> {
    ensure!(
        !out.exists(),
        "{}: exists already (name a new folder)",
        out.display()
    );
    let parent = match out.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    let unfinished = tempfile::Builder::new()
        .prefix(".unfinished-model-")
        .tempdir_in(parent)
        .with_context(|| parent.display().to_string())?;
    let folder = unfinished.path();
    copy_tokenizer(tokenizer, folder)?;
    write_json(&folder.join("config.json"), &shape.config())?;
    // its own file, so that nobody takes end tokens from elsewhere: every reply runs to its limit
    write_json(&folder.join("generation_config.json"), &json!({}))?;
    let bytes = weights(&shape.tensors(), folder, options)?;
    fs::rename(folder, out).with_context(|| out.display().to_string())?;
    allow_others_to_read(out)?;
    Ok(bytes)
}

fn copy_tokenizer(from: &Path, to: &Path) -> Result<()> {
    let copy = |name: &str| {
        let source = from.join(name);
        fs::copy(&source, to.join(name))
            .map(drop)
            .with_context(|| format!("cannot copy {}", source.display()))
    };
    copy("tokenizer.json")?;
    TOKENIZER_FILES
        .into_iter()
        .filter(|name| from.join(name).exists())
        .try_for_each(copy)
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    let text = serde_json::to_string_pretty(value)?;
    fs::write(path, text + "\n").with_context(|| path.display().to_string())
}

/// A temporary folder is its owner's alone; a model is like any other folder.
#[cfg(unix)]
fn allow_others_to_read(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))
        .with_context(|| folder.display().to_string())
}

#[cfg(not(unix))]
fn allow_others_to_read(_: &Path) -> Result<()> {
    Ok(())
}

fn weights(tensors: &[Tensor], folder: &Path, options: &Options) -> Result<u64> {
    let shards = shards(tensors, options.shard_bytes);
    let name = |index: usize| match shards.len() {
        1 => "model.safetensors".to_owned(),
        count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
    };
    let mut stream = 0;
    let mut weight_map = Map::new();
    for (index, shard) in shards.iter().enumerate() {
        let path = folder.join(name(index));
        shard_file(&path, shard, options.seed, &mut stream)
            .with_context(|| path.display().to_string())?;
        for tensor in *shard {
            weight_map.insert(format!("{PREFIX}{}", tensor.name), name(index).into());
        }
    }
    let total: u64 = tensors.iter().map(|tensor| tensor.num_bytes() as u64).sum();
    if shards.len() > 1 {
        let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
        write_json(&folder.join("model.safetensors.index.json"), &index)?;
    }
    Ok(total)
}

/// Splits the tensors, in order, into files of at most `limit` bytes.
fn shards(tensors: &[Tensor], limit: u64) -> Vec<&[Tensor]> {
    let mut shards = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, tensor) in tensors.iter().enumerate() {
        let size = tensor.num_bytes() as u64;
        if index > start && bytes + size > limit {
            shards.push(&tensors[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += size;
    }
    shards.push(&tensors[start..]);
    shards
}

/// Writes one file; every tensor takes the next random stream.
fn shard_file(path: &Path, tensors: &[Tensor], seed: u64, stream: &mut u64) -> Result<()> {
    let mut file = BufWriter::new(File::create_new(path)?);
    let header = header(tensors);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    for tensor in tensors {
        numbers(tensor, seed, *stream, &mut |bytes| {
            Ok(file.write_all(bytes)?)
        })?;
        *stream += 1;
    }
    file.flush()?;
    Ok(())
}

/// The JSON before the numbers, padded with spaces so that these begin at a multiple of 8.
fn header(tensors: &[Tensor]) -> String {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.num_bytes();
        let entry = json!({
            "dtype": tensor.dtype.name(),
            "shape": tensor.shape,
            "data_offsets": [start, end],
        });
        entries.insert(format!("{PREFIX}{}", tensor.name), entry);
        start = end;
    }
    let mut text = Value::from(entries).to_string();
    text.extend(std::iter::repeat_n(' ', text.len().wrapping_neg() % 8));
    text
}

/// Makes a tensor's bytes and hands them on in order; they depend on `seed`, `stream` and their place.
///
/// # Errors
/// What `each` returns.
pub(crate) fn numbers(
    tensor: &Tensor,
    seed: u64,
    stream: u64,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let (size, len) = (tensor.dtype.size(), tensor.len());
    let table = stored_quantiles(tensor);
    let mut bytes = vec![0; len.min(PIECE * PIECES) * size];
    for start in (0..len).step_by(PIECE * PIECES) {
        let bytes = &mut bytes[..(len - start).min(PIECE * PIECES) * size];
        bytes
            .par_chunks_mut(PIECE * size)
            .enumerate()
            .for_each(|(index, piece)| {
                let mut rng = ChaCha8Rng::seed_from_u64(seed);
                rng.set_stream(stream);
                // a word of the generator is two numbers
                rng.set_word_pos((start + index * PIECE) as u128 / 2);
                let mut random = vec![0; piece.len() / size * 2];
                rng.fill_bytes(&mut random);
                for (number, bits) in piece.chunks_exact_mut(size).zip(random.chunks_exact(2)) {
                    let quantile = usize::from(u16::from_le_bytes([bits[0], bits[1]]));
                    number.copy_from_slice(&table[quantile * size..][..size]);
                }
            });
        each(bytes)?;
    }
    Ok(())
}

/// The quantiles at the middles of 65,536 equal shares of probability, as they are stored.
fn stored_quantiles(tensor: &Tensor) -> Vec<u8> {
    let quantiles = match tensor.values {
        Values::LogUniform { low, high } => (0..QUANTILES)
            .map(|i| (low + (high - low) * share(i)).ln())
            .collect(),
        Values::Normal { mean, std } => {
            let scaled = |z: f64| mean + std * z;
            normal_quantiles()
                .into_iter()
                .map(scaled)
                .collect::<Vec<_>>()
        }
    };
    let values = quantiles.into_iter().map(|value| value as f32);
    match tensor.dtype {
        Dtype::F32 => values.flat_map(f32::to_le_bytes).collect(),
        Dtype::Bf16 => values
            .flat_map(|value| to_bf16(value).to_le_bytes())
            .collect(),
    }
}

fn share(index: usize) -> f64 {
    (index as f64 + 0.5) / QUANTILES as f64
}

/// Quantiles of the standard normal distribution, by summing its density in small steps. The outermost is at 4.33, so
/// their standard deviation is 1 to four places.
fn normal_quantiles() -> Vec<f64> {
    const STEP: f64 = 1e-4;
    const END: f64 = 6.0;
    let density = |z: f64| (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
    let mut quantiles = Vec::with_capacity(QUANTILES);
    let (mut z, mut below) = (-END, 0.0);
    while quantiles.len() < QUANTILES {
        let above = below + density(z + 0.5 * STEP) * STEP;
        while quantiles.len() < QUANTILES && share(quantiles.len()) < above {
            let part = (share(quantiles.len()) - below) / (above - below);
            quantiles.push(z + part * STEP);
        }
        (z, below) = (z + STEP, above);
    }
    quantiles
}

/// The nearest bf16, ties to even. Finite numbers only.
fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}
