//! Softmax attention on tensors, row by row, each over its own length.
//!
//! Source: transformers `modeling_{llama,qwen2,qwen3,qwen3_5}.py`.

use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::ops::{sigmoid, softmax_last_dim};

use crate::kernels::attention::AttentionSizes;
use crate::model::layers::RmsNorm;
use crate::model::rope::Angles;
use crate::model::rounding::Rounding;

/// Keys (rotated) and values of all tokens of one row, each `[kv heads, tokens, head_dim]`.
#[derive(Debug, Clone)]
pub(crate) struct KvTensors {
    keys: Tensor,
    values: Tensor,
}

/// Lets the projected tokens of several rows look at their rows: `lengths[i]` of them belong to `caches[i]`, in order.
/// Shapes: `q` `[tokens, heads · head_dim]`, twice as wide with gates, `k` and `v` `[tokens, kv heads · head_dim]`; returns
/// `[tokens, heads · head_dim]`.
pub(crate) fn mix(
    sizes: &AttentionSizes,
    norms: Option<&(RmsNorm, RmsNorm)>,
    rounding: Rounding,
    [q, k, v]: [&Tensor; 3],
    lengths: &[usize],
    angles: &Angles,
    caches: &mut [&mut Option<KvTensors>],
) -> candle_core::Result<Tensor> {
    let tokens = q.dim(0)?;
    let AttentionSizes {
        heads,
        kv_heads,
        head_dim,
        is_gated,
    } = *sizes;

    // 1. Heads; a gate lies behind the query of each head, not behind all queries
    let q = q.reshape((tokens, heads, ()))?;
    let gate = match is_gated {
        true => Some(q.narrow(D::Minus1, head_dim, head_dim)?),
        false => None,
    };
    let q = q.narrow(D::Minus1, 0, head_dim)?;
    let k = k.reshape((tokens, kv_heads, head_dim))?;
    let v = v.reshape((tokens, kv_heads, head_dim))?;

    // 2. Norm of each query and key head
    let (q, k) = match norms {
        Some((q_norm, k_norm)) => (q_norm.forward(&q)?, k_norm.forward(&k)?),
        None => (q, k),
    };

    // 3. Rotary
    let (q, k) = (angles.rotate(&q, rounding)?, angles.rotate(&k, rounding)?);

    // 4. Attention, row by row
    let mut outputs = Vec::with_capacity(lengths.len());
    let mut start = 0;
    for (&length, cache) in lengths.iter().zip(caches.iter_mut()) {
        let segment = |x: &Tensor| x.narrow(0, start, length)?.transpose(0, 1)?.contiguous();
        let qkv = [segment(&q)?, segment(&k)?, segment(&v)?];
        outputs.push(attend(qkv, cache, rounding)?);
        start += length;
    }
    let output = Tensor::cat(&outputs, 0)?;

    // 5. Gate
    match gate {
        Some(gate) => {
            let gate = sigmoid(&gate.reshape((tokens, heads * head_dim))?)?;
            rounding.round((output * rounding.round(gate)?)?)
        }
        None => Ok(output),
    }
}

/// Appends `k` and `v` `[kv heads, new, head_dim]` to one row and lets `q` `[heads, new, head_dim]` look at all of it.
/// Returns `[new, heads * head_dim]`.
fn attend(
    [q, k, v]: [Tensor; 3],
    cache: &mut Option<KvTensors>,
    rounding: Rounding,
) -> candle_core::Result<Tensor> {
    let (heads, new, head_dim) = q.dims3()?;
    let kv_heads = k.dim(0)?;
    let group = heads / kv_heads;
    let (keys, values) = match cache.take() {
        Some(old) => (
            Tensor::cat(&[&old.keys, &k], 1)?,
            Tensor::cat(&[&old.values, &v], 1)?,
        ),
        None => (k, v),
    };
    let len = keys.dim(1)?;

    // query head h uses kv head h / group: the heads of a group are consecutive
    let q = q.reshape((kv_heads, group * new, head_dim))?;
    let scale = (head_dim as f64).powf(-0.5);
    let scores = match rounding {
        // scaled first: unscaled scores may be too large for f16
        Rounding::None => (q * scale)?.matmul(&keys.t()?)?.to_dtype(DType::F32)?,
        Rounding::Bf16 => {
            let scores = rounding.round(q.matmul(&keys.t()?)?)?;
            rounding.round((scores * scale)?)?
        }
    };
    let scores = match new {
        1 => scores,
        _ => scores
            .reshape((heads, new, len))?
            .broadcast_add(&causal_mask(new, len, keys.device())?)?
            .reshape((kv_heads, group * new, len))?,
    };
    let weights = rounding.round(softmax_last_dim(&scores)?.to_dtype(values.dtype())?)?;
    let output = rounding
        .round(weights.matmul(&values)?)?
        .reshape((heads, new, head_dim))?
        .transpose(0, 1)?
        .reshape((new, heads * head_dim))?;
    *cache = Some(KvTensors { keys, values });
    Ok(output)
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
    fn a_token_sees_itself_and_what_came_before() -> candle_core::Result<()> {
        let mask = causal_mask(2, 3, &Device::Cpu)?.to_vec2::<f32>()?;
        assert_eq!(mask, [[0.0, 0.0, f32::NEG_INFINITY], [0.0, 0.0, 0.0]]);
        Ok(())
    }
}
