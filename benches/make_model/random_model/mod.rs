//! What a random Qwen3.5 is made of: its sizes, its `config.json`, and every tensor with the values it may take.
//!
//! The sizes are those of the published models, text part only. Values are what a trained model's look like from afar
//! (standard deviation 0.02, norms near neutral, decays of the gated delta net between slow and fast), so that nothing
//! overflows or dies out and no kernel meets numbers that a real model would not show it.

pub(crate) mod write;

use clap::ValueEnum;
use serde_json::{Value, json};

/// Spread of the matrices, the `initializer_range` of the published configs.
const WEIGHT_STD: f64 = 0.02;
/// Spread of norm weights around neutral.
const NORM_STD: f64 = 0.02;
/// Spread of the four taps of the short convolution: their sum's is half, so that activations pass at a like size.
const CONV_STD: f64 = 0.25;
/// Every so many layers one has full attention.
const FULL_ATTENTION_INTERVAL: usize = 4;
/// Taps of the short convolution.
const CONV_KERNEL_DIM: usize = 4;

/// The models whose sizes are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Size {
    /// Qwen3.5's structure in a few hundred kilobytes, for tests.
    #[value(name = "tiny")]
    Tiny,
    /// Qwen3.5-0.8B: 1.505 GB.
    #[value(name = "0.8b")]
    B08,
    /// Qwen3.5-2B: 3.764 GB.
    #[value(name = "2b")]
    B2,
}

/// The sizes of a text model, under the names of `config.json`.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) vocab_size: usize,
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: usize,
    pub(crate) num_key_value_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) linear_num_heads: usize,
    pub(crate) linear_head_dim: usize,
}

/// How a tensor is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dtype {
    Bf16,
    F32,
}

/// What a tensor's values are drawn from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Values {
    /// A normal distribution.
    Normal { mean: f64, std: f64 },
    /// The logarithm of a uniform number.
    LogUniform { low: f64, high: f64 },
}

/// One tensor that is to be written.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: Dtype,
    pub(crate) values: Values,
}

impl Size {
    /// Returns the sizes.
    pub(crate) fn shape(self) -> Shape {
        let published = Shape {
            vocab_size: 248_320,
            hidden_size: 1024,
            intermediate_size: 3584,
            num_hidden_layers: 24,
            num_attention_heads: 8,
            num_key_value_heads: 2,
            head_dim: 256,
            linear_num_heads: 16,
            linear_head_dim: 128,
        };
        match self {
            Self::B08 => published,
            Self::B2 => Shape {
                hidden_size: 2048,
                intermediate_size: 6144,
                ..published
            },
            Self::Tiny => Shape {
                vocab_size: 512,
                hidden_size: 64,
                intermediate_size: 96,
                num_hidden_layers: 4,
                num_attention_heads: 4,
                num_key_value_heads: 2,
                head_dim: 32,
                linear_num_heads: 4,
                linear_head_dim: 16,
            },
        }
    }
}

impl Dtype {
    /// Returns the name in a safetensors header.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "BF16",
            Self::F32 => "F32",
        }
    }

    /// Returns the bytes of one number.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }
}

impl Tensor {
    /// Returns how many numbers it has.
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns how many bytes it takes.
    pub(crate) fn num_bytes(&self) -> usize {
        self.len() * self.dtype.size()
    }
}

impl Shape {
    /// Returns the `config.json`. It names no token that ends a reply.
    pub(crate) fn config(&self) -> Value {
        let rotary_pairs = self.head_dim / 8;
        let (height, width) = (rotary_pairs / 3, rotary_pairs / 3);
        json!({
            "architectures": ["Qwen3_5ForCausalLM"],
            "attention_bias": false,
            "attention_dropout": 0.0,
            "attn_output_gate": true,
            "dtype": "bfloat16",
            "full_attention_interval": FULL_ATTENTION_INTERVAL,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "initializer_range": WEIGHT_STD,
            "intermediate_size": self.intermediate_size,
            "layer_types": (0..self.num_hidden_layers).map(layer_type).collect::<Vec<_>>(),
            "linear_conv_kernel_dim": CONV_KERNEL_DIM,
            "linear_key_head_dim": self.linear_head_dim,
            "linear_num_key_heads": self.linear_num_heads,
            "linear_num_value_heads": self.linear_num_heads,
            "linear_value_head_dim": self.linear_head_dim,
            "max_position_embeddings": 262_144,
            "model_type": "qwen3_5_text",
            "num_attention_heads": self.num_attention_heads,
            "num_hidden_layers": self.num_hidden_layers,
            "num_key_value_heads": self.num_key_value_heads,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {
                "mrope_interleaved": true,
                "mrope_section": [rotary_pairs - height - width, height, width],
                "partial_rotary_factor": 0.25,
                "rope_theta": 10_000_000,
                "rope_type": "default",
            },
            "tie_word_embeddings": true,
            "use_cache": true,
            "vocab_size": self.vocab_size,
        })
    }

    /// Returns every tensor, in the order of the layers.
    pub(crate) fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = vec![matrix("embed_tokens", [self.vocab_size, self.hidden_size])];
        for layer in 0..self.num_hidden_layers {
            let name = |part: &str| format!("layers.{layer}.{part}");
            tensors.push(norm(&name("input_layernorm"), self.hidden_size));
            match layer_type(layer) {
                "full_attention" => tensors.extend(self.self_attn(&name("self_attn"))),
                _ => tensors.extend(self.linear_attn(&name("linear_attn"))),
            }
            tensors.push(norm(&name("post_attention_layernorm"), self.hidden_size));
            let (hidden, intermediate) = (self.hidden_size, self.intermediate_size);
            tensors.push(matrix(&name("mlp.gate_proj"), [intermediate, hidden]));
            tensors.push(matrix(&name("mlp.up_proj"), [intermediate, hidden]));
            tensors.push(matrix(&name("mlp.down_proj"), [hidden, intermediate]));
        }
        tensors.push(norm("norm", self.hidden_size));
        tensors
    }

    fn self_attn(&self, name: &str) -> Vec<Tensor> {
        let queries = self.num_attention_heads * self.head_dim;
        let keys = self.num_key_value_heads * self.head_dim;
        vec![
            // a query and an output gate for every head
            matrix(&format!("{name}.q_proj"), [2 * queries, self.hidden_size]),
            matrix(&format!("{name}.k_proj"), [keys, self.hidden_size]),
            matrix(&format!("{name}.v_proj"), [keys, self.hidden_size]),
            matrix(&format!("{name}.o_proj"), [self.hidden_size, queries]),
            norm(&format!("{name}.q_norm"), self.head_dim),
            norm(&format!("{name}.k_norm"), self.head_dim),
        ]
    }

    fn linear_attn(&self, name: &str) -> Vec<Tensor> {
        let heads = self.linear_num_heads;
        let values = heads * self.linear_head_dim;
        let channels = 3 * values;
        let tensor = |part: &str, shape: Vec<usize>, dtype, values| Tensor {
            name: format!("{name}.{part}"),
            shape,
            dtype,
            values,
        };
        let normal = |mean, std| Values::Normal { mean, std };
        vec![
            matrix(&format!("{name}.in_proj_qkv"), [channels, self.hidden_size]),
            matrix(&format!("{name}.in_proj_z"), [values, self.hidden_size]),
            matrix(&format!("{name}.in_proj_b"), [heads, self.hidden_size]),
            matrix(&format!("{name}.in_proj_a"), [heads, self.hidden_size]),
            tensor(
                "conv1d.weight",
                vec![channels, 1, CONV_KERNEL_DIM],
                Dtype::Bf16,
                normal(0.0, CONV_STD),
            ),
            // a state's half-life is then between a fraction of a token and a dozen
            tensor(
                "A_log",
                vec![heads],
                Dtype::F32,
                Values::LogUniform {
                    low: 0.5,
                    high: 8.0,
                },
            ),
            tensor("dt_bias", vec![heads], Dtype::Bf16, normal(-1.0, 0.7)),
            tensor(
                "norm.weight",
                vec![self.linear_head_dim],
                Dtype::F32,
                normal(1.0, NORM_STD),
            ),
            matrix(&format!("{name}.out_proj"), [self.hidden_size, values]),
        ]
    }
}

fn layer_type(layer: usize) -> &'static str {
    match (layer + 1) % FULL_ATTENTION_INTERVAL {
        0 => "full_attention",
        _ => "linear_attention",
    }
}

/// A linear layer's weight, `[out, in]`.
fn matrix(name: &str, shape: [usize; 2]) -> Tensor {
    Tensor {
        name: format!("{name}.weight"),
        shape: shape.to_vec(),
        dtype: Dtype::Bf16,
        values: Values::Normal {
            mean: 0.0,
            std: WEIGHT_STD,
        },
    }
}

/// A norm's weight; the model adds one to it, so zero is neutral.
fn norm(name: &str, size: usize) -> Tensor {
    Tensor {
        name: format!("{name}.weight"),
        shape: vec![size],
        dtype: Dtype::Bf16,
        values: Values::Normal {
            mean: 0.0,
            std: NORM_STD,
        },
    }
}
