//! The facts in which the supported families differ: one `config.json` (or GGUF header) becomes one [`DecoderConfig`].
//!
//! Everything that the decoder cannot compute is refused here, by name, before a weight is read. Keys are those of
//! Hugging Face's `config.json`; sources: transformers 5 `models/{llama,qwen2,qwen3,qwen3_5}`.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

/// The hyper-parameters of one decoder, named as in `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// The family: `llama`, `qwen2`, `qwen3` or `qwen3_5`.
    pub model_type: String,
    /// Rows of the embedding and of the head; often more than the tokenizer knows.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the SwiGLU layer.
    pub intermediate_size: usize,
    /// Query heads of an attention layer.
    pub num_attention_heads: usize,
    /// Key and value heads of an attention layer; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one attention head; not always `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Added to the mean square inside every RMS norm.
    pub rms_norm_eps: f64,
    /// The longest sequence the model was made for, prompt and reply together.
    pub max_position_embeddings: usize,
    /// Length above which a layer would forget the oldest tokens (sliding window), which is not computed here.
    pub sliding_window: Option<usize>,
    /// Whether the head is the embedding; `None` where the config does not say: then a missing head means tied.
    pub tie_word_embeddings: Option<bool>,
    /// Rotary embedding of the attention layers.
    pub rope: RopeConfig,
    /// What mixes tokens in each layer, first layer first.
    pub layer_types: Vec<LayerKind>,
    /// Whether q, k and v projections carry a bias.
    pub attention_bias: bool,
    /// Whether the attention's output projection carries a bias.
    pub output_bias: bool,
    /// Whether the three projections of the SwiGLU layer carry a bias.
    pub mlp_bias: bool,
    /// Whether each query and key head is RMS-normalised before rotary.
    pub qk_norm: bool,
    /// Whether `q_proj` also yields a sigmoid gate for the attention's output.
    pub attn_output_gate: bool,
    /// Whether RMS norm weights are stored around zero, so that 1 is added to them.
    pub zero_centred_norm: bool,
    /// Sizes of the gated delta nets; present where `layer_types` has any.
    pub gated_delta: Option<GatedDeltaConfig>,
}

/// What mixes the tokens of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerKind {
    /// Softmax attention over all earlier tokens.
    FullAttention,
    /// A gated delta net: a recurrent state of constant size.
    LinearAttention,
}

/// Sizes of a gated delta net, named as in Qwen3.5's `config.json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatedDeltaConfig {
    /// Heads of q and k.
    pub linear_num_key_heads: usize,
    /// Heads of v, of the state and of the output; a multiple of the key heads.
    pub linear_num_value_heads: usize,
    /// Width of a q or k head.
    pub linear_key_head_dim: usize,
    /// Width of a v head.
    pub linear_value_head_dim: usize,
    /// Taps of the causal convolution.
    pub linear_conv_kernel_dim: usize,
}

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// How many of a head's first dimensions are rotated; even.
    pub rotary_dim: usize,
    /// Base of the geometric series of frequencies.
    pub rope_theta: f64,
    /// How the frequencies are changed.
    pub scaling: RopeScaling,
}

/// A change to the rotary frequencies.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// None: `rope_type` is `default`.
    Default,
    /// `rope_type` is `llama3`: low frequencies are divided by `factor`, with a smooth passage.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low_freq_factor` are scaled.
        low_freq_factor: f64,
        /// Wavelengths below `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length before scaling.
        original_max_position_embeddings: usize,
    },
    /// One divisor for each frequency, as GGUF files carry them (`rope_freqs.weight`).
    Divisors(Vec<f32>),
}

impl GatedDeltaConfig {
    /// Returns the width of all q (or all k) heads together.
    pub fn key_dim(&self) -> usize {
        self.linear_num_key_heads * self.linear_key_head_dim
    }

    /// Returns the width of all v heads together.
    pub fn value_dim(&self) -> usize {
        self.linear_num_value_heads * self.linear_value_head_dim
    }

    /// Returns the number of convolved channels: q, k and v.
    pub fn conv_dim(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }
}

impl DecoderConfig {
    /// Returns how many tokens a sequence may hold: the trained length, or the sliding window where it is shorter.
    pub fn max_positions(&self) -> usize {
        self.sliding_window
            .unwrap_or(usize::MAX)
            .min(self.max_position_embeddings)
    }

    /// Reads a Hugging Face `config.json`.
    ///
    /// # Errors
    /// Names the key and value of anything missing, contradictory or not supported.
    pub fn from_hf(config: &Value) -> Result<Self> {
        let top = config.as_object().context("expected a JSON object")?;
        if let Some(quantization) = top.get("quantization_config").filter(|q| !q.is_null()) {
            let method = quantization["quant_method"].as_str().unwrap_or("unknown");
            bail!(
                "quantised weights (quant_method `{method}`) are not supported (expected F32, F16 or BF16; or use a GGUF file)"
            );
        }
        let text = match top.get("text_config") {
            Some(Value::Object(text)) => text,
            _ => top,
        };
        let keys = Keys { top, text };
        let model_type = keys.text("model_type")?;
        let family = match model_type.as_str() {
            "qwen3_5" | "qwen3_5_text" => "qwen3_5",
            "llama" | "qwen2" | "qwen3" => model_type.as_str(),
            other if other.contains("moe") => {
                bail!("mixture of experts (model_type `{other}`) is not supported ({SUPPORTED})")
            }
            other => bail!("model_type `{other}` is not supported ({SUPPORTED})"),
        };
        if let Some(experts) = keys.optional("num_experts")?.filter(|&n| n > 0) {
            bail!("mixture of experts (num_experts {experts}) is not supported ({SUPPORTED})");
        }
        let activation = keys
            .find("hidden_act")
            .and_then(Value::as_str)
            .unwrap_or("silu");
        ensure!(
            activation == "silu",
            "hidden_act `{activation}` is not supported (expected `silu`)"
        );
        keys.decoder(family)
    }

    /// Checks that the sizes fit each other.
    ///
    /// # Errors
    /// Names the two values that contradict each other.
    pub fn validated(self) -> Result<Self> {
        for (name, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.layer_types.len()),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("max_position_embeddings", self.max_position_embeddings),
        ] {
            ensure!(value > 0, "{name} is 0 (expected at least 1)");
        }
        ensure!(
            self.num_attention_heads
                .is_multiple_of(self.num_key_value_heads),
            "num_attention_heads {} is not a multiple of num_key_value_heads {}",
            self.num_attention_heads,
            self.num_key_value_heads
        );
        let rotary_dim = self.rope.rotary_dim;
        ensure!(
            rotary_dim > 0 && rotary_dim <= self.head_dim && rotary_dim.is_multiple_of(2),
            "{rotary_dim} rotary dimensions do not fit a head_dim of {} (expected an even number up to it)",
            self.head_dim
        );
        if self.layer_types.contains(&LayerKind::LinearAttention) {
            let delta = self.gated_delta.as_ref().context(
                "layer_types has `linear_attention`, but the linear_* sizes are missing",
            )?;
            ensure!(
                delta.linear_num_key_heads > 0
                    && delta
                        .linear_num_value_heads
                        .is_multiple_of(delta.linear_num_key_heads),
                "linear_num_value_heads {} is not a multiple of linear_num_key_heads {}",
                delta.linear_num_value_heads,
                delta.linear_num_key_heads
            );
            ensure!(
                delta.linear_conv_kernel_dim >= 2
                    && delta.linear_key_head_dim > 0
                    && delta.linear_value_head_dim > 0,
                "linear_conv_kernel_dim, linear_key_head_dim or linear_value_head_dim is too small"
            );
        }
        Ok(self)
    }
}

const SUPPORTED: &str = "expected llama, qwen2, qwen3 or qwen3_5";

/// A config's keys: those of the text model, and the top level around them where the model also sees images.
struct Keys<'a> {
    top: &'a Map<String, Value>,
    text: &'a Map<String, Value>,
}

impl Keys<'_> {
    fn find(&self, key: &str) -> Option<&Value> {
        self.text.get(key).filter(|value| !value.is_null())
    }

    fn text(&self, key: &str) -> Result<String> {
        let value = self
            .find(key)
            .with_context(|| format!("`{key}` is missing"))?;
        Ok(value
            .as_str()
            .with_context(|| format!("`{key}` is {value} (expected a string)"))?
            .to_owned())
    }

    fn optional(&self, key: &str) -> Result<Option<usize>> {
        self.find(key)
            .map(|value| {
                let number = value.as_u64().and_then(|n| usize::try_from(n).ok());
                number.with_context(|| format!("`{key}` is {value} (expected a whole number)"))
            })
            .transpose()
    }

    fn number(&self, key: &str) -> Result<usize> {
        self.optional(key)?
            .with_context(|| format!("`{key}` is missing"))
    }

    fn flag(&self, key: &str) -> bool {
        self.find(key).and_then(Value::as_bool).unwrap_or(false)
    }

    fn decoder(&self, family: &str) -> Result<DecoderConfig> {
        let hidden_size = self.number("hidden_size")?;
        let num_attention_heads = self.number("num_attention_heads")?;
        let head_dim = match self.optional("head_dim")? {
            Some(head_dim) => head_dim,
            None => hidden_size
                .checked_div(num_attention_heads)
                .context("num_attention_heads is 0 (expected at least 1)")?,
        };
        let num_hidden_layers = self.number("num_hidden_layers")?;
        let is_hybrid = family == "qwen3_5";
        let layer_types = self.layer_types(num_hidden_layers, is_hybrid)?;
        let bias = self.flag("attention_bias");
        DecoderConfig {
            model_type: family.to_owned(),
            vocab_size: self.number("vocab_size")?,
            hidden_size,
            intermediate_size: self.number("intermediate_size")?,
            num_attention_heads,
            num_key_value_heads: self
                .optional("num_key_value_heads")?
                .unwrap_or(num_attention_heads),
            head_dim,
            rms_norm_eps: self
                .find("rms_norm_eps")
                .and_then(Value::as_f64)
                .unwrap_or(1e-6),
            max_position_embeddings: self.number("max_position_embeddings")?,
            sliding_window: self.sliding_window()?,
            tie_word_embeddings: [self.top, self.text]
                .iter()
                .find_map(|level| level.get("tie_word_embeddings"))
                .and_then(Value::as_bool),
            rope: self.rope(head_dim)?,
            layer_types,
            attention_bias: bias || family == "qwen2",
            output_bias: bias,
            mlp_bias: self.flag("mlp_bias"),
            qk_norm: matches!(family, "qwen3" | "qwen3_5"),
            attn_output_gate: is_hybrid,
            zero_centred_norm: is_hybrid,
            gated_delta: is_hybrid.then(|| self.gated_delta()).transpose()?,
        }
        .validated()
    }

    fn layer_types(&self, num_hidden_layers: usize, is_hybrid: bool) -> Result<Vec<LayerKind>> {
        let Some(listed) = self.find("layer_types") else {
            if !is_hybrid {
                return Ok(vec![LayerKind::FullAttention; num_hidden_layers]);
            }
            let interval = self.optional("full_attention_interval")?.unwrap_or(4);
            ensure!(
                interval > 0,
                "full_attention_interval is 0 (expected at least 1)"
            );
            let kind = |layer: usize| match (layer + 1).is_multiple_of(interval) {
                true => LayerKind::FullAttention,
                false => LayerKind::LinearAttention,
            };
            return Ok((0..num_hidden_layers).map(kind).collect());
        };
        let listed = listed.as_array().context("`layer_types` is not a list")?;
        ensure!(
            listed.len() == num_hidden_layers,
            "layer_types has {} entries (expected num_hidden_layers, {num_hidden_layers})",
            listed.len()
        );
        listed
            .iter()
            .map(|name| match name.as_str() {
                Some("full_attention" | "sliding_attention") => Ok(LayerKind::FullAttention),
                Some("linear_attention") if is_hybrid => Ok(LayerKind::LinearAttention),
                _ => bail!("layer_types: {name} is not supported (expected `full_attention` or `linear_attention`)"),
            })
            .collect()
    }

    /// A window matters only above its own length: the decoder then refuses to go on instead of forgetting.
    fn sliding_window(&self) -> Result<Option<usize>> {
        let listed = self
            .find("layer_types")
            .and_then(Value::as_array)
            .is_some_and(|kinds| kinds.iter().any(|kind| kind == "sliding_attention"));
        if listed || self.flag("use_sliding_window") {
            return self.optional("sliding_window");
        }
        Ok(None)
    }

    fn rope(&self, head_dim: usize) -> Result<RopeConfig> {
        let parameters = ["rope_parameters", "rope_scaling"]
            .iter()
            .find_map(|key| self.find(key))
            .and_then(Value::as_object);
        let inner = |key: &str| {
            parameters
                .and_then(|map| map.get(key))
                .filter(|v| !v.is_null())
        };
        let either = |key: &str| {
            inner(key)
                .or_else(|| self.find(key))
                .and_then(Value::as_f64)
        };
        let needed = |key: &str| either(key).with_context(|| format!("rope: `{key}` is missing"));
        let rope_type = inner("rope_type")
            .or_else(|| inner("type"))
            .map_or(Some("default"), Value::as_str);
        let scaling = match rope_type {
            Some("default" | "mrope") => RopeScaling::Default,
            Some("llama3") => RopeScaling::Llama3 {
                factor: needed("factor")?,
                low_freq_factor: needed("low_freq_factor")?,
                high_freq_factor: needed("high_freq_factor")?,
                original_max_position_embeddings: needed("original_max_position_embeddings")?
                    as usize,
            },
            Some(other) => {
                bail!("rope_type `{other}` is not supported (expected `default` or `llama3`)")
            }
            None => bail!("rope_type is not a string (expected `default` or `llama3`)"),
        };
        let factor = either("partial_rotary_factor").unwrap_or(1.0);
        Ok(RopeConfig {
            rotary_dim: (head_dim as f64 * factor) as usize,
            rope_theta: either("rope_theta").unwrap_or(10_000.0),
            scaling,
        })
    }

    fn gated_delta(&self) -> Result<GatedDeltaConfig> {
        Ok(GatedDeltaConfig {
            linear_num_key_heads: self.number("linear_num_key_heads")?,
            linear_num_value_heads: self.number("linear_num_value_heads")?,
            linear_key_head_dim: self.number("linear_key_head_dim")?,
            linear_value_head_dim: self.number("linear_value_head_dim")?,
            linear_conv_kernel_dim: self.optional("linear_conv_kernel_dim")?.unwrap_or(4),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn published(size: &str) -> DecoderConfig {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen35-real");
        let text = std::fs::read(folder.join(format!("config.Qwen3.5-{size}.json"))).expect(size);
        DecoderConfig::from_hf(&serde_json::from_slice(&text).expect("JSON")).expect(size)
    }

    /// The smallest config of a family, with some keys changed; null takes a key out.
    fn changed(family: &str, changes: Value) -> Result<DecoderConfig> {
        let mut config = json!({
            "model_type": family, "vocab_size": 100, "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 512, "hidden_act": "silu", "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 16, "linear_value_head_dim": 8
        });
        for (key, value) in changes.as_object().expect("changes") {
            config[key] = value.clone();
        }
        DecoderConfig::from_hf(&config)
    }

    #[test]
    fn the_published_configs_of_qwen35_are_read_as_they_are_meant() {
        for (size, hidden, layers, heads, tied) in [
            ("0.8B", 1024, 24, 8, true),
            ("2B", 2048, 24, 8, true),
            ("4B", 2560, 32, 16, true),
            ("9B", 4096, 32, 16, false),
        ] {
            let config = published(size);
            assert_eq!(
                (
                    config.hidden_size,
                    config.layer_types.len(),
                    config.num_attention_heads
                ),
                (hidden, layers, heads)
            );
            assert_eq!(
                (
                    config.head_dim,
                    config.rope.rotary_dim,
                    config.rope.rope_theta
                ),
                (256, 64, 1e7)
            );
            assert_eq!(
                (config.vocab_size, config.max_positions()),
                (248_320, 262_144)
            );
            assert_eq!(config.tie_word_embeddings, Some(tied));
            let full = config
                .layer_types
                .iter()
                .filter(|kind| **kind == LayerKind::FullAttention)
                .count();
            assert_eq!(
                (full, config.layer_types[3]),
                (layers / 4, LayerKind::FullAttention)
            );
            assert!(
                config.qk_norm
                    && config.attn_output_gate
                    && config.zero_centred_norm
                    && !config.attention_bias
            );
        }
    }

    #[test]
    fn layer_types_follow_from_the_interval_where_they_are_absent() -> Result<()> {
        use LayerKind::{FullAttention, LinearAttention};
        let config = changed("qwen3_5_text", json!({"full_attention_interval": 2}))?;
        assert_eq!(
            config.layer_types,
            [
                LinearAttention,
                FullAttention,
                LinearAttention,
                FullAttention
            ]
        );
        assert_eq!(changed("llama", json!({}))?.layer_types, [FullAttention; 4]);
        Ok(())
    }

    #[test]
    fn families_differ_in_bias_and_norm() -> Result<()> {
        let facts =
            |config: DecoderConfig| (config.attention_bias, config.output_bias, config.qk_norm);
        assert_eq!(facts(changed("qwen2", json!({}))?), (true, false, false));
        assert_eq!(facts(changed("qwen3", json!({}))?), (false, false, true));
        assert_eq!(facts(changed("llama", json!({}))?), (false, false, false));
        assert_eq!(
            facts(changed("llama", json!({"attention_bias": true}))?),
            (true, true, false)
        );
        Ok(())
    }

    #[test]
    fn rope_is_read_from_the_old_and_the_new_layout() -> Result<()> {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192});
        let old = changed(
            "llama",
            json!({"rope_theta": 500000.0, "rope_scaling": scaling}),
        )?;
        let mut parameters = scaling;
        parameters["rope_theta"] = json!(500000.0);
        let new = changed("llama", json!({"rope_parameters": parameters}))?;
        assert_eq!(old.rope, new.rope);
        assert!(matches!(
            old.rope.scaling,
            RopeScaling::Llama3 {
                original_max_position_embeddings: 8192,
                ..
            }
        ));
        let partial = changed(
            "qwen3_5_text",
            json!({"partial_rotary_factor": 0.25, "head_dim": 32}),
        )?;
        assert_eq!(partial.rope.rotary_dim, 8);
        Ok(())
    }

    /// Qwen2's files carry a window that is switched off.
    #[test]
    fn a_sliding_window_counts_only_where_it_is_used() -> Result<()> {
        let window = |changes| Ok::<_, anyhow::Error>(changed("qwen2", changes)?.max_positions());
        assert_eq!(
            window(json!({"sliding_window": 32, "use_sliding_window": false}))?,
            512
        );
        assert_eq!(
            window(json!({"sliding_window": 32, "use_sliding_window": true}))?,
            32
        );
        let kinds = json!([
            "full_attention",
            "sliding_attention",
            "full_attention",
            "full_attention"
        ]);
        assert_eq!(
            window(json!({"sliding_window": 32, "layer_types": kinds}))?,
            32
        );
        assert_eq!(
            window(json!({"sliding_window": null, "use_sliding_window": true}))?,
            512
        );
        Ok(())
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (family, changes, expected) in [
            (
                "qwen3_5_moe",
                json!({}),
                "mixture of experts (model_type `qwen3_5_moe`)",
            ),
            (
                "qwen3",
                json!({"num_experts": 8}),
                "mixture of experts (num_experts 8)",
            ),
            (
                "gemma3",
                json!({}),
                "model_type `gemma3` is not supported (expected llama, qwen2, qwen3 or qwen3_5)",
            ),
            ("llama", json!({"hidden_act": "gelu"}), "hidden_act `gelu`"),
            (
                "llama",
                json!({"rope_scaling": {"type": "yarn", "factor": 4.0}}),
                "rope_type `yarn`",
            ),
            (
                "llama",
                json!({"rope_parameters": {"rope_type": "linear"}}),
                "rope_type `linear`",
            ),
            (
                "llama",
                json!({"rope_scaling": {"rope_type": "llama3"}}),
                "rope: `factor` is missing",
            ),
            (
                "qwen2",
                json!({"quantization_config": {"quant_method": "gptq"}}),
                "quant_method `gptq`",
            ),
            (
                "llama",
                json!({"hidden_size": null}),
                "`hidden_size` is missing",
            ),
            ("llama", json!({"hidden_size": -1}), "`hidden_size` is -1"),
            (
                "llama",
                json!({"hidden_size": "64"}),
                "`hidden_size` is \"64\"",
            ),
            (
                "llama",
                json!({"num_attention_heads": 0}),
                "num_attention_heads is 0",
            ),
            (
                "llama",
                json!({"num_key_value_heads": 3}),
                "not a multiple of num_key_value_heads 3",
            ),
            (
                "llama",
                json!({"head_dim": 15}),
                "15 rotary dimensions do not fit",
            ),
            (
                "llama",
                json!({"layer_types": ["linear_attention", "linear_attention", "linear_attention", "linear_attention"]}),
                "\"linear_attention\" is not supported",
            ),
            (
                "qwen3_5_text",
                json!({"layer_types": ["full_attention"]}),
                "layer_types has 1 entries",
            ),
            (
                "qwen3_5_text",
                json!({"linear_num_value_heads": 3}),
                "linear_num_value_heads 3 is not a multiple",
            ),
            (
                "qwen3_5_text",
                json!({"full_attention_interval": 0}),
                "full_attention_interval is 0",
            ),
        ] {
            let error = changed(family, changes).expect_err(expected);
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
    }
}
