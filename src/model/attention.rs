//! Softmax attention with grouped key-value heads, optional biases, q/k norms and output gate.
//!
//! Source: transformers `modeling_{llama,qwen2,qwen3,qwen3_5}.py`. Projections see the tokens of all rows as one batch;
//! between them every token looks at its own row, by the kernels or by tensor operations.

use anyhow::Result;
use candle_core::{Device, Module, Tensor};

use super::config::DecoderConfig;
use super::layers::{Linear, Loader, RmsNorm, with_numbers};
use super::rope::Angles;
use super::rounding::Rounding;
use super::row::LayerState;
use super::tensors;
use crate::kernels::Isa;
use crate::kernels::attention::{self as kernel, AttentionInputs, AttentionSizes, QkNorm};

/// The attention of one layer.
#[derive(Debug, Clone)]
pub struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    sizes: AttentionSizes,
    look: Look,
}

/// What lets tokens look at their rows.
#[derive(Debug, Clone)]
enum Look {
    Kernel(Isa, Option<QkNorm>),
    Tensors(Option<(RmsNorm, RmsNorm)>, Rounding),
}

impl Attention {
    /// Loads the layer under `name` (`layers.N.self_attn`).
    ///
    /// # Errors
    /// As [`super::TensorSource::tensor`].
    pub fn load(loader: &Loader, name: &str, config: &DecoderConfig) -> Result<Self> {
        let (hidden, head_dim) = (config.hidden_size, config.head_dim);
        let q_dim = config.num_attention_heads * head_dim;
        let kv_dim = config.num_key_value_heads * head_dim;
        let q_rows = if config.attn_output_gate {
            2 * q_dim
        } else {
            q_dim
        };
        let bias = config.attention_bias;
        let norms = || -> Result<_> {
            Ok((
                loader.norm(&format!("{name}.q_norm"), head_dim)?,
                loader.norm(&format!("{name}.k_norm"), head_dim)?,
            ))
        };
        let norms = config.qk_norm.then(norms).transpose()?;
        let qk_norm = |(q_norm, k_norm): &(RmsNorm, RmsNorm)| -> Result<_> {
            let ((query, eps), (key, _)) = (q_norm.to_numbers()?, k_norm.to_numbers()?);
            Ok(QkNorm { query, key, eps })
        };
        Ok(Self {
            q_proj: loader.linear(&format!("{name}.q_proj"), [q_rows, hidden], bias)?,
            k_proj: loader.linear(&format!("{name}.k_proj"), [kv_dim, hidden], bias)?,
            v_proj: loader.linear(&format!("{name}.v_proj"), [kv_dim, hidden], bias)?,
            o_proj: loader.linear(
                &format!("{name}.o_proj"),
                [hidden, q_dim],
                config.output_bias,
            )?,
            sizes: AttentionSizes {
                heads: config.num_attention_heads,
                kv_heads: config.num_key_value_heads,
                head_dim,
                is_gated: config.attn_output_gate,
            },
            look: match loader.backend.isa() {
                Some(isa) => Look::Kernel(isa, norms.as_ref().map(qk_norm).transpose()?),
                None => Look::Tensors(norms, loader.backend.rounding()),
            },
        })
    }

    /// Returns what the layer remembers of a row that has seen nothing.
    pub(super) fn start(&self) -> LayerState {
        match self.look {
            Look::Kernel(..) => LayerState::Kv(kernel::KvCache::default()),
            Look::Tensors(..) => LayerState::KvTensors(None),
        }
    }

    /// Mixes the tokens `xs` `[tokens, hidden]` of several rows: `lengths[i]` tokens belong to `states[i]`, in order.
    /// `angles` are those of every token's position.
    pub(super) fn forward<'a>(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        angles: &Angles,
        states: impl Iterator<Item = &'a mut LayerState>,
    ) -> candle_core::Result<Tensor> {
        let [q, k, v] = Linear::forward_all([&self.q_proj, &self.k_proj, &self.v_proj], xs)?;
        let mixed = match &self.look {
            Look::Kernel(isa, norm) => {
                let mut caches: Vec<_> = states
                    .filter_map(|state| match state {
                        LayerState::Kv(cache) => Some(cache),
                        _ => None,
                    })
                    .collect();
                let (tokens, width) = (xs.dim(0)?, self.sizes.heads * self.sizes.head_dim);
                let mixed = with_numbers([&q, &k, &v], |[q, k, v]| {
                    let (cos, sin) = angles.numbers();
                    let inputs = AttentionInputs { q, k, v, cos, sin };
                    let norm = norm.as_ref();
                    kernel::mix(*isa, &self.sizes, norm, &inputs, lengths, &mut caches)
                })?;
                Tensor::from_vec(mixed, (tokens, width), &Device::Cpu)?
            }
            Look::Tensors(norms, rounding) => {
                let mut caches: Vec<_> = states
                    .filter_map(|state| match state {
                        LayerState::KvTensors(cache) => Some(cache),
                        _ => None,
                    })
                    .collect();
                tensors::attention::mix(
                    &self.sizes,
                    norms.as_ref(),
                    *rounding,
                    [&q, &k, &v],
                    lengths,
                    angles,
                    &mut caches,
                )?
            }
        };
        self.o_proj.forward(&mixed)
    }
}
