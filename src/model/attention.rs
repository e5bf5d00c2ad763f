//! Softmax attention with grouped key-value heads, optional biases, q/k norms and output gate.
//!
//! Source: transformers `modeling_{llama,qwen2,qwen3,qwen3_5}.py`. Projections see the tokens of all rows as one batch;
//! what follows is done row by row, each over its own length.

use anyhow::Result;
use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::ops::{sigmoid, softmax_last_dim};

use super::config::DecoderConfig;
use super::layers::{Linear, Loader, RmsNorm};
use super::rope::Angles;

/// The attention of one layer.
#[derive(Debug, Clone)]
pub struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    qk_norm: Option<(RmsNorm, RmsNorm)>,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    output_gate: bool,
}

/// Keys and values of one row, each `[kv heads, tokens, head_dim]`.
pub(super) type KeyValues = Option<(Tensor, Tensor)>;

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
        Ok(Self {
            q_proj: loader.linear(&format!("{name}.q_proj"), [q_rows, hidden], bias)?,
            k_proj: loader.linear(&format!("{name}.k_proj"), [kv_dim, hidden], bias)?,
            v_proj: loader.linear(&format!("{name}.v_proj"), [kv_dim, hidden], bias)?,
            o_proj: loader.linear(
                &format!("{name}.o_proj"),
                [hidden, q_dim],
                config.output_bias,
            )?,
            qk_norm: config.qk_norm.then(norms).transpose()?,
            num_attention_heads: config.num_attention_heads,
            num_key_value_heads: config.num_key_value_heads,
            head_dim,
            output_gate: config.attn_output_gate,
        })
    }

    /// Mixes the tokens `xs` `[tokens, hidden]` of several rows: `lengths[i]` tokens belong to `caches[i]`, in order.
    /// `angles` are those of every token's position.
    pub(super) fn forward(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        angles: &Angles,
        caches: &mut [&mut KeyValues],
    ) -> candle_core::Result<Tensor> {
        let tokens = xs.dim(0)?;
        let (heads, kv_heads, head_dim) = (
            self.num_attention_heads,
            self.num_key_value_heads,
            self.head_dim,
        );

        // 1. Projections; a gate lies behind the query of each head, not behind all queries
        let q = self.q_proj.forward(xs)?.reshape((tokens, heads, ()))?;
        let gate = match self.output_gate {
            true => Some(q.narrow(D::Minus1, head_dim, head_dim)?),
            false => None,
        };
        let q = q.narrow(D::Minus1, 0, head_dim)?;
        let k = self
            .k_proj
            .forward(xs)?
            .reshape((tokens, kv_heads, head_dim))?;
        let v = self
            .v_proj
            .forward(xs)?
            .reshape((tokens, kv_heads, head_dim))?;

        // 2. Norm of each query and key head
        let (q, k) = match &self.qk_norm {
            Some((q_norm, k_norm)) => (q_norm.forward(&q)?, k_norm.forward(&k)?),
            None => (q, k),
        };

        // 3. Rotary
        let (q, k) = (angles.rotate(&q)?, angles.rotate(&k)?);

        // 4. Attention, row by row
        let mut outputs = Vec::with_capacity(lengths.len());
        let mut start = 0;
        for (&length, cache) in lengths.iter().zip(caches.iter_mut()) {
            let segment = |x: &Tensor| x.narrow(0, start, length)?.transpose(0, 1)?.contiguous();
            outputs.push(self.attend(&segment(&q)?, &segment(&k)?, &segment(&v)?, cache)?);
            start += length;
        }
        let output = Tensor::cat(&outputs, 0)?;

        // 5. Gate and output projection
        let output = match gate {
            Some(gate) => (output * sigmoid(&gate.reshape((tokens, heads * head_dim))?)?)?,
            None => output,
        };
        self.o_proj.forward(&output)
    }

    /// Appends `k` and `v` `[kv heads, new, head_dim]` to one row and lets `q` `[heads, new, head_dim]` look at all of it.
    /// Returns `[new, heads * head_dim]`.
    fn attend(
        &self,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        cache: &mut KeyValues,
    ) -> candle_core::Result<Tensor> {
        let (heads, new, head_dim) = q.dims3()?;
        let kv_heads = self.num_key_value_heads;
        let group = heads / kv_heads;
        let (k, v) = match cache.take() {
            Some((old_k, old_v)) => (Tensor::cat(&[&old_k, k], 1)?, Tensor::cat(&[&old_v, v], 1)?),
            None => (k.clone(), v.clone()),
        };
        let len = k.dim(1)?;

        // query head h uses kv head h / group: the heads of a group are consecutive
        let q = (q.reshape((kv_heads, group * new, head_dim))? * (head_dim as f64).powf(-0.5))?;
        let scores = q.matmul(&k.t()?)?.to_dtype(DType::F32)?;
        let scores = match new {
            1 => scores,
            _ => scores
                .reshape((heads, new, len))?
                .broadcast_add(&causal_mask(new, len, q.device())?)?
                .reshape((kv_heads, group * new, len))?,
        };
        let weights = softmax_last_dim(&scores)?.to_dtype(v.dtype())?;
        let output = weights
            .matmul(&v)?
            .reshape((heads, new, head_dim))?
            .transpose(0, 1)?
            .reshape((new, heads * head_dim))?;
        *cache = Some((k, v));
        Ok(output)
    }
}

/// Returns `[new, len]`: 0 where the token may look, -inf at the tokens after it.
fn causal_mask(new: usize, len: usize, device: &Device) -> candle_core::Result<Tensor> {
    let past = len - new;
    let mask: Vec<f32> = (0..new)
        .flat_map(|query| {
            (0..len).map(move |key| {
                if key <= past + query {
                    0.0
                } else {
                    f32::NEG_INFINITY
                }
            })
        })
        .collect();
    Tensor::from_vec(mask, (new, len), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_sees_itself_and_what_came_before() -> Result<()> {
        let mask = causal_mask(2, 3, &Device::Cpu)?.to_vec2::<f32>()?;
        assert_eq!(mask, [[0.0, 0.0, f32::NEG_INFINITY], [0.0, 0.0, 0.0]]);
        Ok(())
    }
}
