//! What a sequence costs, from a model's sizes alone: weights, KV cache, constant states, and the work of a prefill.
//!
//! Everything is arithmetic on a [`DecoderConfig`], for one sequence, without what a program needs beside it. Only the
//! attention layers of a hybrid model have a KV cache; a gated delta net has a conv state (the last `kernel - 1` inputs of
//! its convolution) and a recurrent state (one matrix a head), however long the sequence is. A product that no machine
//! could hold stays at `u64::MAX`.

use serde::{Deserialize, Serialize};

use crate::model::config::{DecoderConfig, GatedDeltaConfig, LayerKind};

/// What `context --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ContextRecord {
    /// Version of this layout.
    pub schema: u32,
    /// Name and version of the program.
    pub program: String,
    /// The model.
    pub model: ContextModel,
    /// Most tokens of a sequence, prompt and reply together.
    pub max_tokens: u64,
    /// Layers with a KV cache.
    pub num_attention_layers: u64,
    /// Layers with a state of constant size.
    pub num_gated_delta_layers: u64,
    /// Sizes that the formulas use.
    pub sizes: ContextSizes,
    /// Parameters of the text model.
    pub num_parameters: u64,
    /// Bytes that do not depend on the length, and those of a token.
    pub memory: Precisions<Memory>,
    /// Floating-point operations of a prefill.
    pub prefill: Prefill,
    /// What sequences of some lengths take, in the order asked for.
    pub totals: Vec<Total>,
    /// The prompt, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PromptLength>,
}

/// The model that is described.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextModel {
    /// Hub id, or the name of the folder or file.
    pub id: String,
    /// Commit on the hub.
    pub revision: Option<String>,
    /// The family.
    pub architecture: String,
    /// How most weights are stored; null where no file says so.
    pub weights_dtype: Option<String>,
    /// What they take in a GGUF file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// What a reader must know of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Sizes, named as in `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextSizes {
    /// Heads of keys and of values.
    pub num_key_value_heads: u64,
    /// Width of one.
    pub head_dim: u64,
    /// Channels of a gated delta net's convolution; 0 without one.
    pub conv_dim: u64,
    /// Taps of it; 0 without one.
    pub linear_conv_kernel_dim: u64,
    /// Matrices of a recurrent state.
    pub linear_num_value_heads: u64,
    /// Rows of one.
    pub linear_key_head_dim: u64,
    /// Columns of one.
    pub linear_value_head_dim: u64,
}

/// The same figure in three precisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Precisions<T> {
    /// Everything in bf16 (or f16): what GPUs usually do.
    pub bf16: T,
    /// Everything in f32.
    pub f32: T,
    /// What this program does on the CPU: weights as they are published, everything else f32.
    pub cpu: T,
}

/// Bytes that do not depend on the length of a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Weights.
    pub weights_bytes: u64,
    /// Keys and values of one token.
    pub kv_bytes_per_token: u64,
    /// Conv states of one sequence.
    pub conv_state_bytes: u64,
    /// Recurrent states of one sequence.
    pub recurrent_state_bytes: u64,
}

/// Floating-point operations; a multiplication and an addition count two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefill {
    /// Of each token, wherever it stands: all that is not attention.
    pub flops_per_token: u64,
    /// Of a token's attention for each token that it sees.
    pub attention_flops_per_pair: u64,
    /// Of the output layer, which only the last token needs.
    pub head_flops: u64,
    /// The length at which attention is half of the work; null for a model without attention.
    pub attention_is_half_at: Option<u64>,
}

/// What a sequence of one length takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    /// Its length.
    pub tokens: u64,
    /// Whether the model was made for so many.
    pub fits: bool,
    /// Operations of its prefill.
    pub prefill_flops: u64,
    /// Those of them that are attention's.
    pub attention_flops: u64,
    /// Its memory.
    pub memory: Precisions<TotalMemory>,
}

/// Bytes of a sequence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TotalMemory {
    /// Keys and values.
    pub kv_bytes: u64,
    /// Weights, keys and values, and states.
    pub total_bytes: u64,
}

/// A prompt's place in the context.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PromptLength {
    /// The prompt as it was given.
    pub prompt: String,
    /// Tokens of what the model sees of it.
    pub num_tokens: u64,
    /// Tokens that remain for the reply.
    pub remaining: u64,
    /// Whether the model takes it: at least one token must remain.
    pub fits: bool,
}

impl ContextSizes {
    /// Returns the sizes of a model.
    pub fn of(config: &DecoderConfig) -> Self {
        let delta = |size: fn(&GatedDeltaConfig) -> usize| {
            let delta = config.gated_delta.as_ref();
            let is_used = config.layer_types.contains(&LayerKind::LinearAttention);
            delta.filter(|_| is_used).map_or(0, size) as u64
        };
        Self {
            num_key_value_heads: config.num_key_value_heads as u64,
            head_dim: config.head_dim as u64,
            conv_dim: delta(GatedDeltaConfig::conv_dim),
            linear_conv_kernel_dim: delta(|delta| delta.linear_conv_kernel_dim),
            linear_num_value_heads: delta(|delta| delta.linear_num_value_heads),
            linear_key_head_dim: delta(|delta| delta.linear_key_head_dim),
            linear_value_head_dim: delta(|delta| delta.linear_value_head_dim),
        }
    }

    /// Returns the numbers of a conv state.
    pub fn conv_numbers(&self) -> u64 {
        product([self.linear_conv_kernel_dim.saturating_sub(1), self.conv_dim])
    }

    /// Returns the numbers of a recurrent state.
    pub fn recurrent_numbers(&self) -> u64 {
        product([
            self.linear_num_value_heads,
            self.linear_key_head_dim,
            self.linear_value_head_dim,
        ])
    }
}

/// Returns how many layers mix tokens in this way.
pub fn num_layers(config: &DecoderConfig, kind: LayerKind) -> u64 {
    config
        .layer_types
        .iter()
        .filter(|&&other| other == kind)
        .count() as u64
}

/// Returns the parameters of the text model. Where the config does not say whether the head is tied, it is not, as in
/// transformers' defaults for these families.
pub fn num_parameters(config: &DecoderConfig) -> u64 {
    let (vocab, hidden) = (config.vocab_size as u64, config.hidden_size as u64);
    let embeddings = match config.tie_word_embeddings {
        Some(true) => 1,
        _ => 2,
    };
    let norms = product([2 * config.layer_types.len() as u64 + 1, hidden]);
    let layers = config.layer_types.iter().map(|&kind| {
        let mixer = match kind {
            LayerKind::FullAttention => attention(config).all(),
            LayerKind::LinearAttention => gated_delta(config).all(),
        };
        mixer.saturating_add(swiglu(config).all())
    });
    layers.fold(
        product([embeddings, vocab, hidden]).saturating_add(norms),
        u64::saturating_add,
    )
}

/// Returns what does not depend on the length. `cpu_weight_bytes` is what one weight takes when this program has read it.
pub fn memory(config: &DecoderConfig, cpu_weight_bytes: u64) -> Precisions<Memory> {
    let sizes = ContextSizes::of(config);
    let parameters = num_parameters(config);
    let attention = num_layers(config, LayerKind::FullAttention);
    let delta = num_layers(config, LayerKind::LinearAttention);
    let at = |weight_bytes: u64, bytes: u64| Memory {
        weights_bytes: product([parameters, weight_bytes]),
        kv_bytes_per_token: product([
            2,
            attention,
            sizes.num_key_value_heads,
            sizes.head_dim,
            bytes,
        ]),
        conv_state_bytes: product([delta, sizes.conv_numbers(), bytes]),
        recurrent_state_bytes: product([delta, sizes.recurrent_numbers(), bytes]),
    };
    Precisions {
        bf16: at(2, 2),
        f32: at(4, 4),
        cpu: at(cpu_weight_bytes, 4),
    }
}

/// Returns the work of a prefill. Counted are the matrix products, attention's scores and sums, and the recurrence; norms,
/// activations and softmax are small beside them.
pub fn prefill(config: &DecoderConfig) -> Prefill {
    let layers = config.layer_types.iter().map(|&kind| {
        let mixer = match kind {
            LayerKind::FullAttention => product([2, attention(config).matrices]),
            // of each state's number: decay 1, read by the key 2, write 2, read by the query 2; two a tap of the convolution
            LayerKind::LinearAttention => {
                let sizes = ContextSizes::of(config);
                product([2, gated_delta(config).matrices])
                    .saturating_add(product([7, sizes.recurrent_numbers()]))
                    .saturating_add(product([2, sizes.conv_dim, sizes.linear_conv_kernel_dim]))
            }
        };
        mixer.saturating_add(product([2, swiglu(config).matrices]))
    });
    let flops_per_token = layers.fold(0, u64::saturating_add);
    // a score and a share of the sum: two operations each, in every dimension of every query head
    let heads = config.num_attention_heads as u64;
    let attention_layers = num_layers(config, LayerKind::FullAttention);
    let attention_flops_per_pair = product([4, attention_layers, heads, config.head_dim as u64]);
    Prefill {
        flops_per_token,
        attention_flops_per_pair,
        head_flops: product([2, config.vocab_size as u64, config.hidden_size as u64]),
        // N tokens see N (N + 1) / 2: attention is half where that times a pair is N times a token
        attention_is_half_at: product([2, flops_per_token]).checked_div(attention_flops_per_pair),
    }
}

/// Returns what a sequence of `tokens` takes in a model of `max_tokens`.
pub fn total(
    tokens: u64,
    max_tokens: u64,
    memory: &Precisions<Memory>,
    prefill: &Prefill,
) -> Total {
    let pairs = u128::from(tokens) * (u128::from(tokens) + 1) / 2;
    let pairs = u64::try_from(pairs).unwrap_or(u64::MAX);
    let attention_flops = product([prefill.attention_flops_per_pair, pairs]);
    let at = |memory: &Memory| {
        let kv_bytes = product([memory.kv_bytes_per_token, tokens]);
        let parts = [
            memory.weights_bytes,
            kv_bytes,
            memory.conv_state_bytes,
            memory.recurrent_state_bytes,
        ];
        TotalMemory {
            kv_bytes,
            total_bytes: parts.into_iter().fold(0, u64::saturating_add),
        }
    };
    Total {
        tokens,
        fits: tokens <= max_tokens,
        prefill_flops: product([prefill.flops_per_token, tokens])
            .saturating_add(attention_flops)
            .saturating_add(prefill.head_flops),
        attention_flops,
        memory: Precisions {
            bf16: at(&memory.bf16),
            f32: at(&memory.f32),
            cpu: at(&memory.cpu),
        },
    }
}

/// Parameters of one part of a layer.
struct Parameters {
    /// Those that every token is multiplied with.
    matrices: u64,
    /// Biases, norms, the convolution and the factors of a recurrence.
    others: u64,
}

impl Parameters {
    fn all(&self) -> u64 {
        self.matrices.saturating_add(self.others)
    }
}

fn attention(config: &DecoderConfig) -> Parameters {
    let hidden = config.hidden_size as u64;
    let head_dim = config.head_dim as u64;
    let heads = product([config.num_attention_heads as u64, head_dim]);
    let kv = product([2, config.num_key_value_heads as u64, head_dim]);
    let queries = product([if config.attn_output_gate { 2 } else { 1 }, heads]);
    let on = |flag: bool, size: u64| if flag { size } else { 0 };
    let inputs = queries.saturating_add(kv);
    Parameters {
        matrices: product([hidden, inputs.saturating_add(heads)]),
        others: on(config.attention_bias, inputs)
            .saturating_add(on(config.output_bias, hidden))
            .saturating_add(on(config.qk_norm, 2 * head_dim)),
    }
}

fn gated_delta(config: &DecoderConfig) -> Parameters {
    let Some(delta) = &config.gated_delta else {
        return Parameters {
            matrices: 0,
            others: 0,
        };
    };
    let hidden = config.hidden_size as u64;
    let heads = delta.linear_num_value_heads as u64;
    let (conv_dim, value_dim) = (delta.conv_dim() as u64, delta.value_dim() as u64);
    // in_proj_qkv, in_proj_z and out_proj, in_proj_b and in_proj_a
    let widths = [conv_dim, product([2, value_dim]), product([2, heads])];
    let convolution = product([conv_dim, delta.linear_conv_kernel_dim as u64]);
    Parameters {
        matrices: product([hidden, widths.into_iter().fold(0, u64::saturating_add)]),
        // conv1d, A_log and dt_bias, norm
        others: convolution
            .saturating_add(product([2, heads]))
            .saturating_add(delta.linear_value_head_dim as u64),
    }
}

fn swiglu(config: &DecoderConfig) -> Parameters {
    let (hidden, inner) = (config.hidden_size as u64, config.intermediate_size as u64);
    Parameters {
        matrices: product([3, hidden, inner]),
        others: match config.mlp_bias {
            true => product([2, inner]).saturating_add(hidden),
            false => 0,
        },
    }
}

fn product<const N: usize>(factors: [u64; N]) -> u64 {
    match factors.contains(&0) {
        true => 0,
        false => factors.into_iter().fold(1, u64::saturating_mul),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fixture(name: &str) -> Vec<u8> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
        std::fs::read(folder.join(name)).expect(name)
    }

    fn config(name: &str) -> DecoderConfig {
        let json = serde_json::from_slice(&fixture(name)).expect("JSON");
        DecoderConfig::from_hf(&json).expect(name)
    }

    fn qwen35(size: &str) -> DecoderConfig {
        config(&format!("qwen35-real/config.Qwen3.5-{size}.json"))
    }

    fn qwen25_05b() -> DecoderConfig {
        DecoderConfig::from_hf(&json!({
            "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864,
            "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
            "max_position_embeddings": 32_768, "tie_word_embeddings": true
        }))
        .expect("a config")
    }

    /// 2 × 6 layers × 2 heads × 256 × 2 bytes = 12 KiB; 2 × 24 × 2 × 64 × 2 = 12,288 bytes.
    #[test]
    fn only_attention_layers_have_a_cache() {
        let hybrid = memory(&qwen35("2B"), 2);
        assert_eq!(hybrid.bf16.kv_bytes_per_token, 12 * 1024);
        assert_eq!(
            (hybrid.f32.kv_bytes_per_token, hybrid.cpu.kv_bytes_per_token),
            (24 * 1024, 24 * 1024)
        );
        // 18 layers of 16 heads of 128 × 128, and of 3 inputs of 6144 channels
        assert_eq!(hybrid.bf16.recurrent_state_bytes, 18 * 16 * 128 * 128 * 2);
        assert_eq!(hybrid.cpu.recurrent_state_bytes, 18 << 20);
        assert_eq!(hybrid.bf16.conv_state_bytes, 18 * 3 * 6144 * 2);
        let plain = memory(&qwen25_05b(), 2);
        assert_eq!(plain.bf16.kv_bytes_per_token, 12_288);
        assert_eq!(
            (
                plain.bf16.conv_state_bytes,
                plain.bf16.recurrent_state_bytes
            ),
            (0, 0)
        );
    }

    /// The published checkpoints' own tables of tensors, without vision and drafting.
    #[test]
    fn parameters_are_those_of_the_published_tensors() {
        for size in ["0.8B", "2B"] {
            let table = fixture(&format!("qwen35-real/tensors.Qwen3.5-{size}.tsv"));
            let table = String::from_utf8(table).expect("UTF-8");
            let text = table
                .lines()
                .filter(|line| line.starts_with("model.language_model."));
            let elements = text.map(|line| {
                let shape = line.split('\t').nth(2).expect("a shape");
                let sides = shape
                    .split('x')
                    .map(|side| side.parse::<u64>().expect("a size"));
                sides.product::<u64>()
            });
            assert_eq!(
                num_parameters(&qwen35(size)),
                elements.sum::<u64>(),
                "{size}"
            );
        }
        // the model card's 0.49B
        assert_eq!(num_parameters(&qwen25_05b()), 494_032_768);
    }

    #[test]
    fn a_total_is_weights_and_states_once_and_keys_for_every_token() {
        let config = qwen35("2B");
        let (memory, prefill) = (memory(&config, 2), prefill(&config));
        let max = config.max_positions() as u64;
        let [one, many] = [1, 1000].map(|tokens| total(tokens, max, &memory, &prefill));
        let per_token = memory.cpu.kv_bytes_per_token;
        assert_eq!(many.memory.cpu.kv_bytes, 1000 * per_token);
        assert_eq!(
            many.memory.cpu.total_bytes - one.memory.cpu.total_bytes,
            999 * per_token
        );
        let fixed = &memory.cpu;
        assert_eq!(
            one.memory.cpu.total_bytes,
            fixed.weights_bytes + per_token + fixed.conv_state_bytes + fixed.recurrent_state_bytes
        );
        assert!(many.fits && !total(max + 1, max, &memory, &prefill).fits);
    }

    #[test]
    fn attention_grows_with_the_square_and_is_half_where_it_says() {
        let config = qwen25_05b();
        let (memory, prefill) = (memory(&config, 2), prefill(&config));
        let at = |tokens| total(tokens, 1 << 20, &memory, &prefill);
        // 24 layers of 14 heads of 64 dimensions, 4 operations each, for 1 + 2 + 3 + 4 pairs
        assert_eq!(at(4).attention_flops, 24 * 14 * 64 * 4 * 10);
        let half = prefill.attention_is_half_at.expect("it has attention");
        let share = |tokens| {
            let total = at(tokens);
            total.attention_flops as f64 / (total.prefill_flops - prefill.head_flops) as f64
        };
        assert!((share(half) - 0.5).abs() < 1e-4, "{}", share(half));
        assert!(share(half / 10) < 0.1 && share(half * 10) > 0.9);
        // everything but embedding and norms, twice
        let matrices = num_parameters(&config) - 151_936 * 896 - 49 * 896 - 24 * (14 + 4) * 64;
        assert_eq!(prefill.flops_per_token, 2 * matrices);
    }

    #[test]
    fn absurd_sizes_stay_at_the_largest_number() {
        let mut config = qwen35("2B");
        for size in [
            &mut config.vocab_size,
            &mut config.hidden_size,
            &mut config.head_dim,
            &mut config.num_key_value_heads,
            &mut config.num_attention_heads,
        ] {
            *size = usize::MAX / 4;
        }
        let (memory, prefill) = (memory(&config, 2), prefill(&config));
        assert_eq!(memory.bf16.kv_bytes_per_token, u64::MAX);
        let total = total(u64::MAX, 1, &memory, &prefill);
        assert_eq!(
            (total.memory.cpu.total_bytes, total.prefill_flops),
            (u64::MAX, u64::MAX)
        );
    }
}
