//! The tensors of a GGUF file under Hugging Face's names, in its conventions, as f32.
//!
//! candle's own code turns blocks into numbers; what llama.cpp's converter changed (`names.rs`) is undone on those numbers:
//! moved rows and columns go back exactly, a 1 that was added is subtracted again.

use anyhow::{Context, Result, ensure};
use candle_core::quantized::GgmlDType;
use candle_core::quantized::ggml_file::qtensor_from_ggml;
use candle_core::{Device, Tensor};

use super::names::{self, Change};
use super::reader::TensorInfo;
use super::{GgufFile, types};
use crate::model::TensorSource;
use crate::model::config::DecoderConfig;

/// The weights of a GGUF file's text model.
pub struct GgufWeights {
    file: GgufFile,
    config: DecoderConfig,
}

impl GgufWeights {
    /// Returns the weights of the model that the file's configuration describes.
    pub(super) fn new(file: GgufFile, config: DecoderConfig) -> Self {
        Self { file, config }
    }

    fn read(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let (stored, change) = names::in_file(name, &self.config.model_type)
            .with_context(|| format!("GGUF files have no tensor for `{name}`"))?;
        let info = self.file.header.tensors().get(&stored);
        let info = info.with_context(|| format!("tensor `{stored}` (`{name}`) is missing"))?;
        // Converters leave out dimensions of 1, such as that of a depthwise convolution.
        ensure!(
            without_ones(&info.shape) == without_ones(shape),
            "tensor `{stored}` (`{name}`) has the shape {:?} (expected {shape:?})",
            info.shape
        );
        let tensor = dequantize(&self.file, &stored, info)?.reshape(shape)?;
        self.undo(change, &tensor)
            .with_context(|| format!("tensor `{stored}` (`{name}`)"))
    }

    fn undo(&self, change: Change, tensor: &Tensor) -> Result<Tensor> {
        let config = &self.config;
        let delta = config.gated_delta.as_ref();
        let value_dim = delta.map_or(1, |sizes| sizes.linear_value_head_dim);
        let num_keys = delta.map_or(0, |sizes| 2 * sizes.key_dim());
        match change {
            Change::None => Ok(tensor.clone()),
            Change::PlusOne => Ok((tensor - 1.0)?),
            Change::QueryHalves => apart(tensor, config.num_attention_heads),
            Change::KeyHalves => apart(tensor, config.num_key_value_heads),
            Change::ValueHeads => self.grouped(tensor, 0, 1),
            Change::ValueRows => self.grouped(tensor, 0, value_dim),
            Change::ValueColumns => self.grouped(tensor, 1, value_dim),
            Change::NegativeRates => self.grouped(&log_rates(tensor)?, 0, 1),
            Change::ValueRowsAfterKeys => {
                let keys = tensor.narrow(0, 0, num_keys)?;
                let values = tensor.narrow(0, num_keys, tensor.dim(0)? - num_keys)?;
                let values = self.grouped(&values, 0, value_dim)?;
                Ok(Tensor::cat(&[keys, values], 0)?)
            }
        }
    }

    /// Puts value heads of `width` elements along `dimension` back from tiled order (the first of each key head, the second
    /// of each, ...) to grouped order (all of the first key head, all of the second, ...).
    fn grouped(&self, tensor: &Tensor, dimension: usize, width: usize) -> Result<Tensor> {
        let Some(delta) = &self.config.gated_delta else {
            return Ok(tensor.clone());
        };
        let num_keys = delta.linear_num_key_heads;
        let repeats = delta.linear_num_value_heads / num_keys;
        let before: usize = tensor.dims()[..dimension].iter().product();
        let after: usize = tensor.dims()[dimension + 1..].iter().product();
        let heads = tensor.reshape((before, repeats, num_keys, width * after))?;
        Ok(heads
            .transpose(1, 2)?
            .contiguous()?
            .reshape(tensor.shape())?)
    }
}

impl TensorSource for GgufWeights {
    fn contains(&self, name: &str) -> bool {
        let stored = names::in_file(name, &self.config.model_type);
        stored.is_some_and(|(stored, _)| self.file.header.tensors().contains_key(&stored))
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.read(name, shape)
            .with_context(|| self.file.path.display().to_string())
    }

    fn release(&self, name: &str) {
        let stored = names::in_file(name, &self.config.model_type);
        let info = stored.and_then(|(stored, _)| self.file.header.tensors().get(&stored));
        if let Some(info) = info {
            self.file.bytes.release(info.at.clone());
        }
    }
}

/// Returns how candle reads a storage type.
///
/// # Errors
/// When it cannot; names the tensor, the type and the types that it can.
pub(super) fn dtype(tensor: &str, code: u32) -> Result<GgmlDType> {
    types::dtype(code).with_context(|| {
        format!(
            "tensor `{tensor}` is stored as {}, which is not supported (expected {}; use another quantisation of the model, or its Hugging Face folder)",
            types::name(code),
            types::supported()
        )
    })
}

/// Returns a tensor's numbers as the file has them, in its own shape.
///
/// # Errors
/// When its storage type cannot be read.
pub(super) fn dequantize(file: &GgufFile, name: &str, info: &TensorInfo) -> Result<Tensor> {
    let dtype = dtype(name, info.code)?;
    // candle reads whole blocks where the bytes lie, so they must be aligned: the map is to pages, and tensors in it to 8 or more.
    let blocks = &file.bytes[info.at.clone()];
    let tensor = qtensor_from_ggml(dtype, blocks, info.shape.clone(), &Device::Cpu);
    let tensor = tensor.and_then(|tensor| tensor.dequantize(&Device::Cpu));
    tensor.with_context(|| format!("cannot read tensor `{name}`"))
}

/// Puts the rows of each head, which alternate between its halves, back to one half after the other.
fn apart(tensor: &Tensor, num_heads: usize) -> Result<Tensor> {
    let after: usize = tensor.dims()[1..].iter().product();
    let half = tensor.dim(0)? / num_heads / 2;
    let pairs = tensor.reshape((num_heads, half, 2, after))?;
    Ok(pairs
        .transpose(1, 2)?
        .contiguous()?
        .reshape(tensor.shape())?)
}

/// Returns ln(-x); in f64, so that only the rounding of the stored number is left.
fn log_rates(rates: &Tensor) -> Result<Tensor> {
    let mut logs = Vec::new();
    for rate in rates.to_vec1::<f32>()? {
        ensure!(
            rate < 0.0,
            "holds the decay rate {rate} (expected negative numbers)"
        );
        logs.push((-f64::from(rate)).ln() as f32);
    }
    Ok(Tensor::new(logs, rates.device())?)
}

fn without_ones(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|&size| size != 1).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::super::sample::{Sample, fixture, path};
    use super::*;

    /// Adding 1 in f32 and subtracting it again moves a weight below 1 by half a step of 2^-23 at most.
    const PLUS_ONE: f32 = 6e-8;
    /// Two roundings of a rate, exp and ln: a few steps of 2^-23 of a number below 4.
    const LOG_RATE: f32 = 1e-6;

    fn weights(name: &str) -> GgufWeights {
        let file = fixture(name);
        let config = file.config().expect("a supported model");
        file.into_weights(config)
    }

    /// The text model's tensors of a fixture's Hugging Face folder, without any prefix, as they are stored.
    fn folder(name: &str) -> HashMap<String, Tensor> {
        let mut tensors = HashMap::new();
        for entry in std::fs::read_dir(path(name)).expect("a folder") {
            let file = entry.expect("a file").path();
            let file_name = file
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or("");
            let is_weights = file_name.starts_with("model") || file_name.starts_with("weights");
            if is_weights && file_name.ends_with(".safetensors") {
                tensors
                    .extend(candle_core::safetensors::load(file, &Device::Cpu).expect("weights"));
            }
        }
        let stripped = tensors.into_iter().filter_map(|(name, tensor)| {
            let inner = ["model.language_model.", "model."]
                .iter()
                .find_map(|prefix| name.strip_prefix(prefix));
            let is_other = name.starts_with("mtp.") || name.starts_with("model.visual.");
            (!is_other).then(|| (inner.unwrap_or(&name).to_owned(), tensor))
        });
        stripped.collect()
    }

    fn numbers(tensor: &Tensor) -> Vec<f32> {
        let tensor = tensor.to_dtype(candle_core::DType::F32).expect("f32");
        tensor
            .flatten_all()
            .and_then(|flat| flat.to_vec1())
            .expect("numbers")
    }

    /// The largest difference to the folder's tensors, for each tensor of them, after `stored` rounding.
    fn differences(file: &str, name: &str, stored: candle_core::DType) -> Vec<(String, f32)> {
        let (weights, folder) = (weights(file), folder(name));
        assert!(
            folder.len() >= 20,
            "{name} has only {} tensors",
            folder.len()
        );
        let compared = folder.iter().map(|(name, expected)| {
            assert!(weights.contains(name), "{name}");
            let tensor = weights.tensor(name, expected.dims()).expect("a tensor");
            assert_eq!(tensor.dims(), expected.dims(), "{name}");
            // Vectors stay f32 in the files.
            let expected = match expected.rank() {
                1 => numbers(expected),
                _ => numbers(&expected.to_dtype(stored).expect("rounded")),
            };
            let pairs = numbers(&tensor).into_iter().zip(expected);
            (
                name.clone(),
                pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max),
            )
        });
        compared.collect()
    }

    #[test]
    fn tensors_are_those_of_the_folder_bit_for_bit() {
        for (file, name, stored) in [
            ("llama", "llama", candle_core::DType::F16),
            ("qwen2", "qwen2", candle_core::DType::BF16),
            ("qwen3", "qwen3", candle_core::DType::F32),
        ] {
            for (tensor, difference) in differences(file, name, stored) {
                assert_eq!(difference, 0.0, "{file}: {tensor}");
            }
        }
    }

    #[test]
    fn what_the_converter_did_to_qwen35_is_undone() {
        for (name, difference) in differences("qwen35", "qwen35", candle_core::DType::F32) {
            let allowed = match name.as_str() {
                gated if gated.ends_with("linear_attn.norm.weight") => 0.0,
                norm if norm.ends_with("norm.weight") => PLUS_ONE,
                input if input.ends_with("layernorm.weight") => PLUS_ONE,
                rates if rates.ends_with("A_log") => LOG_RATE,
                _ => 0.0,
            };
            assert!(difference <= allowed, "{name} is off by {difference}");
        }
    }

    #[test]
    fn rows_of_blocks_are_moved_as_rows_of_numbers() {
        // Half a step of an 8-bit block whose largest weight is below 1, far below any two weights that were mixed up.
        for (name, difference) in differences("smollm-q8_0", "smollm", candle_core::DType::F32) {
            assert!(difference < 0.005, "{name} is off by {difference}");
        }
    }

    #[test]
    fn every_block_type_gives_the_numbers_of_ggmls_own_reader() {
        let file = fixture("quants");
        let tensors = file.header.tensors();
        let mut compared = 0;
        for (name, info) in tensors {
            let Some(reference) = tensors.get(&format!("{name}.expected")) else {
                continue;
            };
            let ours = numbers(&dequantize(&file, name, info).expect("numbers"));
            let theirs = numbers(&dequantize(&file, name, reference).expect("numbers"));
            assert_eq!(ours, theirs, "{name}");
            compared += 1;
        }
        assert_eq!(compared, types::supported().split(", ").count());
    }

    #[test]
    fn a_missing_tensor_and_a_wrong_shape_name_both_names_and_sizes() {
        let weights = weights("llama");
        let missing = weights.tensor("layers.9.mlp.up_proj.weight", &[96, 64]);
        assert_eq!(
            missing.expect_err("no such layer").root_cause().to_string(),
            "tensor `blk.9.ffn_up.weight` (`layers.9.mlp.up_proj.weight`) is missing"
        );
        let shape = weights.tensor("layers.0.self_attn.k_proj.weight", &[64, 64]);
        assert_eq!(
            shape.expect_err("32 rows").root_cause().to_string(),
            "tensor `blk.0.attn_k.weight` (`layers.0.self_attn.k_proj.weight`) has the shape [32, 64] (expected [64, 64])"
        );
        assert!(!weights.contains("layers.0.self_attn.q_proj.bias"));
        assert!(!weights.contains("layers.0.linear_attn.A_log"));
    }

    #[test]
    fn halves_of_a_head_come_apart() {
        // Two heads of four rows; the file has the pairs (0, 2) and (1, 3) of each head side by side.
        let stored = [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0];
        let rows = Tensor::new(&stored, &Device::Cpu)
            .and_then(|rows| rows.to_dtype(candle_core::DType::F32));
        let undone = apart(&rows.expect("rows"), 2).expect("even heads");
        assert_eq!(numbers(&undone), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    }

    #[test]
    fn a_rate_that_does_not_decay_is_refused() {
        let rates = Tensor::new(&[-1_f32, 0.0], &Device::Cpu).expect("rates");
        let error = log_rates(&rates).expect_err("no logarithm").to_string();
        assert_eq!(error, "holds the decay rate 0 (expected negative numbers)");
    }

    #[test]
    fn a_depthwise_convolution_gets_its_middle_dimension_back() {
        let convolution =
            weights("qwen35").tensor("layers.0.linear_attn.conv1d.weight", &[96, 1, 4]);
        assert_eq!(convolution.expect("stored as [96, 4]").dims(), [96, 1, 4]);
    }

    #[test]
    fn an_embedding_of_zeros_is_read() {
        let file = Sample::tiny_llama().open().expect("a good file");
        let config = file.config().expect("supported");
        let embedding = file
            .into_weights(config)
            .tensor("embed_tokens.weight", &[8, 4]);
        assert_eq!(numbers(&embedding.expect("there")), [0.0; 32]);
    }
}
