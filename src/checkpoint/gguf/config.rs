//! A GGUF file's metadata as a [`DecoderConfig`], and the refusal of what the decoder cannot compute.
//!
//! Keys are those of llama.cpp's `gguf-py/gguf/constants.py`, below the name of the architecture; what they mean for
//! Qwen3.5 is in its `conversion/qwen.py`.

use anyhow::{Context, Result, bail, ensure};

use super::values::Value;
use super::{GgufFile, tensors};
use crate::model::config::{DecoderConfig, GatedDeltaConfig, LayerKind, RopeConfig, RopeScaling};

const SUPPORTED: &str = "expected llama, qwen2, qwen3 or qwen35";

/// Above any real model's sizes, and small enough that no product of two of them overflows.
const MAX_SIZE: usize = i32::MAX as usize;

/// Reads the hyper-parameters, and checks that the text model's tensors are stored in ways that can be read.
///
/// # Errors
/// Names what is missing, contradictory or not supported.
pub(super) fn read(file: &GgufFile) -> Result<DecoderConfig> {
    let model_type = model_type(file)?;
    let keys = Keys::of(file)?;
    keys.refuse_unsupported()?;
    for (name, info) in file.text_tensors() {
        tensors::dtype(name, info.code)?;
    }
    let config = keys.decoder(model_type)?;
    let scaling = match model_type {
        "llama" => rope_divisors(file, config.rope.rotary_dim)?,
        _ => RopeScaling::Default,
    };
    let rope = RopeConfig {
        scaling,
        ..config.rope
    };
    DecoderConfig { rope, ..config }.validated()
}

/// Returns Hugging Face's name of the architecture.
///
/// # Errors
/// When the decoder cannot compute it.
pub(super) fn model_type(file: &GgufFile) -> Result<&'static str> {
    Ok(match Keys::of(file)?.architecture {
        "llama" => "llama",
        "qwen2" => "qwen2",
        "qwen3" => "qwen3",
        "qwen35" => "qwen3_5",
        other if other.contains("moe") => {
            bail!("mixture of experts (architecture `{other}`) is not supported ({SUPPORTED})")
        }
        other => bail!("architecture `{other}` is not supported ({SUPPORTED})"),
    })
}

/// Returns the number of layers without the drafting blocks (multi-token prediction) that may follow them.
///
/// # Errors
/// When the file does not say.
pub(super) fn num_layers(file: &GgufFile) -> Result<usize> {
    let keys = Keys::of(file)?;
    let blocks = keys.number("block_count")?;
    let drafting = keys.optional("nextn_predict_layers")?.unwrap_or(0);
    blocks.checked_sub(drafting).with_context(|| {
        format!("{drafting} drafting blocks (`nextn_predict_layers`) of {blocks} blocks in all")
    })
}

/// The keys of one architecture.
struct Keys<'a> {
    file: &'a GgufFile,
    architecture: &'a str,
}

impl<'a> Keys<'a> {
    fn of(file: &'a GgufFile) -> Result<Self> {
        let architecture = file.header.text("general.architecture")?;
        let architecture = architecture
            .context("`general.architecture` is missing: this is not a language model's file")?;
        Ok(Self { file, architecture })
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// A number for the whole model, or one for each layer that is the same in all of them.
    fn optional(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        let number = match self.file.header.value(&key) {
            Some(Value::List(list)) => {
                let mut layers = list.integers(&self.file.bytes).context(key.clone())?;
                let first = layers.next().with_context(|| format!("`{key}` is empty"))?;
                ensure!(
                    layers.all(|number| number == first),
                    "`{key}` differs between the layers, which is not supported (expected one number)"
                );
                let number = usize::try_from(first);
                Some(
                    number
                        .with_context(|| format!("`{key}` is {first} (expected a whole number)"))?,
                )
            }
            _ => self.file.header.number(&key)?,
        };
        ensure!(
            number.is_none_or(|number| number <= MAX_SIZE),
            "`{key}` is {} (expected at most {MAX_SIZE})",
            number.unwrap_or_default()
        );
        Ok(number)
    }

    fn number(&self, name: &str) -> Result<usize> {
        let missing = || format!("`{}` is missing", self.key(name));
        self.optional(name)?.with_context(missing)
    }

    fn refuse_unsupported(&self) -> Result<()> {
        let experts = self.optional("expert_count")?.unwrap_or(0);
        ensure!(
            experts == 0,
            "mixture of experts (`{}` is {experts}) is not supported ({SUPPORTED}, without experts)",
            self.key("expert_count")
        );
        let is_causal = self.file.header.flag(&self.key("attention.causal"))?;
        ensure!(
            is_causal.unwrap_or(true),
            "`{}` is false: a model that reads both ways does not predict tokens, and is not supported",
            self.key("attention.causal")
        );
        self.refuse_scaled_rope()
    }

    fn refuse_scaled_rope(&self) -> Result<()> {
        let key = self.key("rope.scaling.type");
        let named = self.file.header.text(&key)?;
        let kind = named.unwrap_or("none");
        ensure!(
            kind == "none",
            "`{key}` is `{kind}`, which is not supported (expected `none`; the frequencies of Llama 3 come as `rope_freqs.weight`)"
        );
        if named.is_none() {
            // Without a type, llama.cpp takes a factor for a linear one.
            for name in ["rope.scaling.factor", "rope.scale_linear"] {
                let factor = self.file.header.float(&self.key(name))?.unwrap_or(1.0);
                ensure!(
                    factor == 1.0 || factor == 0.0,
                    "`{}` is {factor}: linear rope scaling is not supported (expected 1)",
                    self.key(name)
                );
            }
        }
        Ok(())
    }

    fn decoder(&self, model_type: &str) -> Result<DecoderConfig> {
        let hidden_size = self.number("embedding_length")?;
        let num_attention_heads = self.number("attention.head_count")?;
        let head_dim = self.head_dim(hidden_size, num_attention_heads)?;
        let is_hybrid = model_type == "qwen3_5";
        let eps = self.key("attention.layer_norm_rms_epsilon");
        let sliding_window = self.optional("attention.sliding_window")?;
        Ok(DecoderConfig {
            model_type: model_type.to_owned(),
            vocab_size: self.vocab_size()?,
            hidden_size,
            intermediate_size: self.number("feed_forward_length")?,
            num_attention_heads,
            num_key_value_heads: self
                .optional("attention.head_count_kv")?
                .unwrap_or(num_attention_heads),
            head_dim,
            rms_norm_eps: self
                .file
                .header
                .float(&eps)?
                .with_context(|| format!("`{eps}` is missing"))?,
            max_position_embeddings: self.number("context_length")?,
            sliding_window: sliding_window.filter(|&window| window > 0),
            tie_word_embeddings: Some(!self.has("output.weight")),
            rope: RopeConfig {
                rotary_dim: self.optional("rope.dimension_count")?.unwrap_or(head_dim),
                rope_theta: self
                    .file
                    .header
                    .float(&self.key("rope.freq_base"))?
                    .unwrap_or(10_000.0),
                scaling: RopeScaling::Default,
            },
            layer_types: self.layer_types(is_hybrid)?,
            attention_bias: self.has_in_layers("attn_q.bias"),
            output_bias: self.has_in_layers("attn_output.bias"),
            mlp_bias: self.has_in_layers("ffn_gate.bias"),
            qk_norm: matches!(model_type, "qwen3" | "qwen3_5"),
            attn_output_gate: is_hybrid,
            zero_centred_norm: is_hybrid,
            gated_delta: is_hybrid.then(|| self.gated_delta()).transpose()?,
        })
    }

    fn head_dim(&self, hidden_size: usize, num_attention_heads: usize) -> Result<usize> {
        let head_dim = match self.optional("attention.key_length")? {
            Some(length) => length,
            None => hidden_size
                .checked_div(num_attention_heads)
                .context("`attention.head_count` is 0 (expected at least 1)")?,
        };
        let value_dim = self.optional("attention.value_length")?.unwrap_or(head_dim);
        ensure!(
            head_dim == value_dim,
            "heads of {head_dim} dimensions with values of {value_dim} are not supported (expected as many)"
        );
        Ok(head_dim)
    }

    fn vocab_size(&self) -> Result<usize> {
        let embedding = self.file.header.tensors().get("token_embd.weight");
        let shape = &embedding
            .context("tensor `token_embd.weight` is missing")?
            .shape;
        match shape[..] {
            [rows, _] => Ok(rows),
            _ => bail!(
                "tensor `token_embd.weight` has the shape {shape:?} (expected [vocab_size, hidden_size])"
            ),
        }
    }

    fn layer_types(&self, is_hybrid: bool) -> Result<Vec<LayerKind>> {
        let num_layers = num_layers(self.file)?;
        let limit = self.file.header.tensors().len();
        ensure!(
            num_layers <= limit,
            "`{}` names {num_layers} layers, but the file has only {limit} tensors",
            self.key("block_count")
        );
        if !is_hybrid {
            return Ok(vec![LayerKind::FullAttention; num_layers]);
        }
        let listed = self.key("attention.recurrent_layers");
        if let Some(list) = self.file.header.list(&listed)? {
            let kinds = list.integers(&self.file.bytes).context(listed.clone())?;
            let kinds: Vec<_> = kinds.map(|is_recurrent| kind(is_recurrent != 0)).collect();
            let listed = kinds.get(..num_layers).with_context(|| {
                format!(
                    "`{listed}` has {} entries (expected {num_layers} layers)",
                    kinds.len()
                )
            })?;
            return Ok(listed.to_vec());
        }
        let interval = self.optional("full_attention_interval")?.unwrap_or(4);
        ensure!(
            interval > 0,
            "`{}` is 0 (expected at least 1)",
            self.key("full_attention_interval")
        );
        let kinds = (1..=num_layers).map(|number| kind(!number.is_multiple_of(interval)));
        Ok(kinds.collect())
    }

    fn gated_delta(&self) -> Result<GatedDeltaConfig> {
        let value_heads = self.number("ssm.time_step_rank")?;
        let inner_size = self.number("ssm.inner_size")?;
        ensure!(
            value_heads > 0 && inner_size.is_multiple_of(value_heads),
            "`{}` is {inner_size} (expected a multiple of the {value_heads} heads of `{}`)",
            self.key("ssm.inner_size"),
            self.key("ssm.time_step_rank")
        );
        Ok(GatedDeltaConfig {
            linear_num_key_heads: self.number("ssm.group_count")?,
            linear_num_value_heads: value_heads,
            linear_key_head_dim: self.number("ssm.state_size")?,
            linear_value_head_dim: inner_size / value_heads,
            linear_conv_kernel_dim: self.number("ssm.conv_kernel")?,
        })
    }

    fn has(&self, tensor: &str) -> bool {
        self.file.header.tensors().contains_key(tensor)
    }

    fn has_in_layers(&self, part: &str) -> bool {
        let mut names = self.file.header.tensors().keys();
        names.any(|name| {
            let block = name
                .strip_prefix("blk.")
                .and_then(|rest| rest.split_once('.'));
            block.is_some_and(|(_, rest)| rest == part)
        })
    }
}

fn kind(is_recurrent: bool) -> LayerKind {
    match is_recurrent {
        true => LayerKind::LinearAttention,
        false => LayerKind::FullAttention,
    }
}

/// Reads the divisors of the rotary frequencies, as files of Llama 3 carry them.
fn rope_divisors(file: &GgufFile, rotary_dim: usize) -> Result<RopeScaling> {
    let name = "rope_freqs.weight";
    let Some(info) = file.header.tensors().get(name) else {
        return Ok(RopeScaling::Default);
    };
    let expected = rotary_dim / 2;
    ensure!(
        info.shape == [expected],
        "tensor `{name}` has the shape {:?} (expected [{expected}])",
        info.shape
    );
    let divisors: Vec<f32> = tensors::dequantize(file, name, info)?.to_vec1()?;
    ensure!(
        divisors
            .iter()
            .all(|divisor| divisor.is_normal() && *divisor > 0.0),
        "tensor `{name}` holds a value that is not positive"
    );
    Ok(RopeScaling::Divisors(divisors))
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, fixture, path};
    use super::*;

    fn refusal(sample: &Sample) -> String {
        let file = sample.open().expect("a file that can be opened");
        format!("{:#}", file.config().expect_err("not supported"))
    }

    /// The configuration that the fixture's Hugging Face folder gives, where the two are meant to be the same.
    fn folder(name: &str) -> DecoderConfig {
        let text = std::fs::read(path(&format!("{name}/config.json"))).expect("a config.json");
        let json = serde_json::from_slice(&text).expect("JSON");
        DecoderConfig::from_hf(&json).expect("a supported model")
    }

    #[test]
    fn a_file_and_the_folder_it_came_from_give_the_same_configuration() {
        for (file, name, is_tied) in [
            ("qwen2", "qwen2", true),
            ("qwen3", "qwen3", false),
            ("qwen35", "qwen35", true),
            ("smollm-q8_0", "smollm", true),
            ("llama", "llama", false),
        ] {
            let mut config = fixture(file).config().expect("a supported model");
            assert_eq!(config.tie_word_embeddings, Some(is_tied), "{file}");
            let expected = folder(name);
            config.tie_word_embeddings = expected.tie_word_embeddings;
            if file == "llama" {
                // The divisors that a file carries are compared below.
                config.rope.scaling = expected.rope.scaling.clone();
            }
            assert_eq!(config, expected, "{file}");
        }
    }

    #[test]
    fn frequencies_of_llama_3_come_as_divisors() {
        let config = fixture("llama").config().expect("a supported model");
        let RopeScaling::Divisors(divisors) = config.rope.scaling else {
            panic!("no divisors: {:?}", config.rope.scaling);
        };
        assert_eq!(divisors.len(), config.rope.rotary_dim / 2);
        assert_eq!(divisors[0], 1.0, "the fastest frequency stays");
        assert!(divisors.is_sorted() && divisors.iter().any(|divisor| *divisor > 1.0));
    }

    #[test]
    fn drafting_blocks_are_no_layers() {
        let config = fixture("qwen35").config().expect("a supported model");
        assert_eq!(config.layer_types.len(), 4);
    }

    #[test]
    fn a_list_of_recurrent_layers_goes_before_the_interval() {
        let sample = Sample::tiny_llama();
        let bytes = sample.list("llama.attention.recurrent_layers", 7, 3, &[1, 0, 1]);
        let file = bytes.number("llama.full_attention_interval", 1);
        let file = file.open().expect("a good file");
        let keys = Keys::of(&file).expect("an architecture");
        assert_eq!(
            keys.layer_types(true).expect("a list"),
            [LayerKind::LinearAttention]
        );
    }

    #[test]
    fn what_the_decoder_cannot_compute_is_refused_by_name() {
        let named = |name| Sample::new().text("general.architecture", name);
        for (sample, expected) in [
            (named("gemma3"), "architecture `gemma3` is not supported"),
            (
                named("qwen35moe"),
                "mixture of experts (architecture `qwen35moe`) is not supported",
            ),
            (
                Sample::tiny_llama().number("llama.expert_count", 8),
                "mixture of experts (`llama.expert_count` is 8) is not supported",
            ),
            (
                Sample::tiny_llama().text("llama.rope.scaling.type", "yarn"),
                "`llama.rope.scaling.type` is `yarn`, which is not supported",
            ),
            (
                Sample::tiny_llama().float("llama.rope.scaling.factor", 4.0),
                "`llama.rope.scaling.factor` is 4: linear rope scaling is not supported",
            ),
            (
                Sample::tiny_llama().flag("llama.attention.causal", false),
                "`llama.attention.causal` is false",
            ),
            (
                Sample::tiny_llama().number("llama.attention.value_length", 8),
                "heads of 4 dimensions with values of 8 are not supported",
            ),
            (
                Sample::tiny_llama().numbers("llama.attention.head_count_kv", &[1, 2]),
                "`llama.attention.head_count_kv` differs between the layers",
            ),
            (
                Sample::tiny_llama()
                    .value("llama.vocab", 4, &[0; 4])
                    .number("llama.attention.key_length", u32::MAX),
                "`llama.attention.key_length` is 4294967295 (expected at most 2147483647)",
            ),
            (
                Sample::tiny_llama().zeros("rope_freqs.weight", &[3]),
                "tensor `rope_freqs.weight` has the shape [3] (expected [2])",
            ),
            (
                Sample::tiny_llama().zeros("rope_freqs.weight", &[2]),
                "tensor `rope_freqs.weight` holds a value that is not positive",
            ),
        ] {
            let message = refusal(&sample);
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let sample = Sample::new().text("general.architecture", "qwen3");
        assert!(refusal(&sample).contains("`qwen3.embedding_length` is missing"));
        let error = fixture("quants").config().expect_err("no model");
        assert!(format!("{error:#}").contains("`llama.embedding_length` is missing"));
    }

    #[test]
    fn one_head_count_for_each_layer_is_one_number_where_all_agree() {
        let sample = Sample::tiny_llama().numbers("llama.attention.head_count_kv", &[1, 1]);
        let config = sample.open().expect("a good file").config();
        assert_eq!(config.expect("supported").num_key_value_heads, 1);
    }

    #[test]
    fn a_tensor_of_an_unknown_type_is_refused_where_the_model_needs_it() {
        let error = fixture("iq4_xs").config().expect_err("IQ4_XS");
        let message = format!("{error:#}");
        assert!(message.contains(
            "tensor `blk.0.ffn_down.weight` is stored as IQ4_XS, which is not supported (expected F32, F16, BF16, Q4_0"
        ), "{message}");
        let mxfp4 =
            Sample::tiny_llama().entry("blk.0.ffn_up.weight", &[8, 32], 39, Sample::TINY_SIZE);
        assert!(refusal(&mxfp4).contains("`blk.0.ffn_up.weight` is stored as MXFP4"));
        let unknown = Sample::tiny_llama().entry("output.weight", &[8, 4], 99, Sample::TINY_SIZE);
        assert!(refusal(&unknown).contains("`output.weight` is stored as type 99"));
        let unused =
            Sample::tiny_llama().entry("blk.1.ffn_up.weight", &[8, 32], 39, Sample::TINY_SIZE);
        assert!(unused.open().expect("a good file").config().is_ok());
    }
}
