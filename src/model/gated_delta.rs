//! The gated delta net of Qwen3.5's linear-attention layers: short convolution, delta-rule recurrence, gated norm.
//!
//! Source: transformers `modeling_qwen3_5.py` (`torch_recurrent_gated_delta_rule`); Yang et al. 2024 (Gated Delta
//! Networks). The recurrence runs token by token in f32, the exact form; states live in the row.

use anyhow::Result;
use candle_core::{D, DType, Module, Tensor};
use candle_nn::ops::sigmoid;

use super::config::{DecoderConfig, GatedDeltaConfig};
use super::layers::{Linear, Loader, RmsNorm};

/// The two states of one row in one layer.
pub(super) struct DeltaState<'a> {
    /// `[kernel - 1, channels]`, inputs of the convolution as they were before it.
    pub(super) conv: &'a mut Tensor,
    /// `[value heads, key head dim, value head dim]`, f32.
    pub(super) recurrent: &'a mut Tensor,
}

/// The gated delta net of one layer.
#[derive(Debug, Clone)]
pub struct GatedDeltaNet {
    in_proj_qkv: Linear,
    in_proj_z: Linear,
    in_proj_b: Linear,
    in_proj_a: Linear,
    /// One factor a channel for each tap, oldest token first: `[kernel][channels]`.
    conv1d: Vec<Tensor>,
    dt_bias: Tensor,
    neg_a: Tensor,
    norm: RmsNorm,
    out_proj: Linear,
    sizes: GatedDeltaConfig,
}

impl GatedDeltaNet {
    /// Loads the layer under `name` (`layers.N.linear_attn`).
    ///
    /// # Errors
    /// As [`super::TensorSource::tensor`].
    pub fn load(
        loader: &Loader,
        name: &str,
        config: &DecoderConfig,
        sizes: &GatedDeltaConfig,
    ) -> Result<Self> {
        let hidden = config.hidden_size;
        let heads = sizes.linear_num_value_heads;
        let (value_dim, conv_dim) = (sizes.value_dim(), sizes.conv_dim());
        let kernel = sizes.linear_conv_kernel_dim;
        let linear = |part: &str, shape| loader.linear(&format!("{name}.{part}"), shape, false);
        let conv1d = loader.tensor(&format!("{name}.conv1d.weight"), &[conv_dim, 1, kernel])?;
        let a_log = loader.tensor_f32(&format!("{name}.A_log"), &[heads])?;
        Ok(Self {
            in_proj_qkv: linear("in_proj_qkv", [conv_dim, hidden])?,
            in_proj_z: linear("in_proj_z", [value_dim, hidden])?,
            in_proj_b: linear("in_proj_b", [heads, hidden])?,
            in_proj_a: linear("in_proj_a", [heads, hidden])?,
            conv1d: (0..kernel)
                .map(|tap| conv1d.narrow(2, tap, 1)?.reshape((1, conv_dim)))
                .collect::<candle_core::Result<_>>()?,
            dt_bias: loader.tensor_f32(&format!("{name}.dt_bias"), &[heads])?,
            neg_a: a_log.exp()?.neg()?,
            norm: loader.plain_norm(&format!("{name}.norm"), sizes.linear_value_head_dim)?,
            out_proj: linear("out_proj", [hidden, value_dim])?,
            sizes: sizes.clone(),
        })
    }

    /// Mixes the tokens `xs` `[tokens, hidden]` of several rows: `lengths[i]` tokens belong to `states[i]`, in order.
    pub(super) fn forward(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        states: &mut [DeltaState],
    ) -> candle_core::Result<Tensor> {
        let tokens = xs.dim(0)?;
        let heads = self.sizes.linear_num_value_heads;

        // 1. Projections
        let qkv = self.in_proj_qkv.forward(xs)?;
        let z = self.in_proj_z.forward(xs)?.reshape((tokens, heads, ()))?;
        let beta = sigmoid(&self.in_proj_b.forward(xs)?.to_dtype(DType::F32)?)?;
        let a = self.in_proj_a.forward(xs)?.to_dtype(DType::F32)?;
        let decay = softplus(&a.broadcast_add(&self.dt_bias)?)?
            .broadcast_mul(&self.neg_a)?
            .exp()?;

        // 2. Convolution and recurrence, row by row
        let mut outputs = Vec::with_capacity(lengths.len());
        let mut start = 0;
        for (&length, state) in lengths.iter().zip(states.iter_mut()) {
            let qkv = self.convolve(&qkv.narrow(0, start, length)?, state.conv)?;
            let beta = beta.narrow(0, start, length)?;
            let decay = decay.narrow(0, start, length)?;
            outputs.push(self.recur(&qkv, &beta, &decay, state.recurrent)?);
            start += length;
        }
        let output = Tensor::cat(&outputs, 0)?.to_dtype(xs.dtype())?;

        // 3. Norm of each head first, then the gate
        let output = (self.norm.forward(&output)? * z.silu()?)?;
        self.out_proj.forward(&output.reshape((tokens, ()))?)
    }

    /// Causal depthwise convolution and SiLU over `xs` `[new, channels]`; `conv` becomes the last raw inputs.
    fn convolve(&self, xs: &Tensor, conv: &mut Tensor) -> candle_core::Result<Tensor> {
        let new = xs.dim(0)?;
        let padded = Tensor::cat(&[&*conv, xs], 0)?;
        *conv = padded.narrow(0, new, self.conv1d.len() - 1)?.copy()?;
        let mut sum = padded.narrow(0, 0, new)?.broadcast_mul(&self.conv1d[0])?;
        for (tap, weight) in self.conv1d.iter().enumerate().skip(1) {
            sum = (sum + padded.narrow(0, tap, new)?.broadcast_mul(weight)?)?;
        }
        sum.silu()
    }

    /// The delta rule over the tokens of one row: `qkv` `[new, channels]`, `beta` and `decay` `[new, value heads]`.
    /// Returns `[new, value heads, value head dim]` in f32.
    fn recur(
        &self,
        qkv: &Tensor,
        beta: &Tensor,
        decay: &Tensor,
        state: &mut Tensor,
    ) -> candle_core::Result<Tensor> {
        let new = qkv.dim(0)?;
        let qkv = qkv.to_dtype(DType::F32)?;
        let key_dim = self.sizes.key_dim();
        let scale = (self.sizes.linear_key_head_dim as f64).powf(-0.5);
        let q = (self.key_heads(&qkv.narrow(1, 0, key_dim)?)? * scale)?;
        let k = self.key_heads(&qkv.narrow(1, key_dim, key_dim)?)?;
        let heads = self.sizes.linear_num_value_heads;
        let v = qkv
            .narrow(1, 2 * key_dim, self.sizes.value_dim())?
            .reshape((new, heads, 1, ()))?;
        let beta = beta.reshape((new, heads, 1, 1))?;
        let decay = decay.reshape((new, heads, 1, 1))?;

        let mut outputs = Vec::with_capacity(new);
        for token in 0..new {
            let at = |x: &Tensor| x.narrow(0, token, 1)?.squeeze(0);
            let (q, k) = (at(&q)?, at(&k)?);
            let decayed = state.broadcast_mul(&at(&decay)?)?;
            let memory = k.matmul(&decayed)?;
            let delta = (at(&v)? - memory)?.broadcast_mul(&at(&beta)?)?;
            *state = (decayed + k.t()?.broadcast_mul(&delta)?)?;
            outputs.push(q.matmul(state)?.squeeze(1)?);
        }
        Tensor::stack(&outputs, 0)
    }

    /// Splits `xs` `[new, key dim]` into unit vectors, one a value head: `[new, value heads, 1, key head dim]`. Value head
    /// h uses key head h / (value heads / key heads): each key head is repeated consecutively.
    fn key_heads(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        const EPS: f64 = 1e-6;
        let new = xs.dim(0)?;
        let (key_heads, dim) = (
            self.sizes.linear_num_key_heads,
            self.sizes.linear_key_head_dim,
        );
        let value_heads = self.sizes.linear_num_value_heads;
        let xs = xs.reshape((new, key_heads, dim))?;
        let norm = (xs.sqr()?.sum_keepdim(D::Minus1)? + EPS)?.sqrt()?;
        xs.broadcast_div(&norm)?
            .unsqueeze(2)?
            .broadcast_as((new, key_heads, value_heads / key_heads, dim))?
            .reshape((new, value_heads, 1, dim))
    }
}

/// `ln(1 + exp(x))` without overflow: `max(x, 0) + ln(1 + exp(-|x|))`.
fn softplus(xs: &Tensor) -> candle_core::Result<Tensor> {
    xs.relu()? + (xs.abs()?.neg()?.exp()? + 1.0)?.log()?
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn softplus_is_exact_at_both_ends() -> Result<()> {
        let xs = Tensor::new(&[-100f32, 0.0, 100.0], &Device::Cpu)?;
        assert_eq!(softplus(&xs)?.to_vec1::<f32>()?, [0.0, 2f32.ln(), 100.0]);
        Ok(())
    }
}
