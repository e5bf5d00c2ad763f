//! The gated delta net on tensors: short convolution, delta-rule recurrence token by token in f32, gated norm.
//!
//! Source: transformers `modeling_qwen3_5.py` (`torch_recurrent_gated_delta_rule`); Yang et al. 2024 (Gated Delta Networks).

use candle_core::{D, DType, Device, Module, Tensor};
use candle_nn::ops::sigmoid;

use crate::kernels::gated_delta::DeltaSizes;
use crate::model::layers::RmsNorm;
use crate::model::rounding::Rounding;

/// The two states of one row in one layer.
#[derive(Debug, Clone)]
pub(crate) struct DeltaTensors {
    /// `[kernel - 1, channels]`, inputs of the convolution as they were before it.
    conv: Tensor,
    /// `[value heads, key head dim, value head dim]`, f32.
    recurrent: Tensor,
}

impl DeltaTensors {
    /// Returns the states before the first token: zeros.
    ///
    /// # Errors
    /// When the device has no memory for them.
    pub(crate) fn new(
        sizes: &DeltaSizes,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Self> {
        let conv = (sizes.kernel - 1, sizes.channels());
        let recurrent = (sizes.value_heads, sizes.key_head_dim, sizes.value_head_dim);
        Ok(Self {
            conv: Tensor::zeros(conv, dtype, device)?,
            recurrent: Tensor::zeros(recurrent, DType::F32, device)?,
        })
    }
}

/// The weights of one layer that are not matrices.
#[derive(Debug, Clone)]
pub(crate) struct DeltaLayer {
    pub(crate) sizes: DeltaSizes,
    /// One factor a channel for each tap, oldest token first: `[kernel][1, channels]`.
    pub(crate) conv: Vec<Tensor>,
    pub(crate) dt_bias: Tensor,
    /// `-exp(A_log)`.
    pub(crate) neg_a: Tensor,
    pub(crate) norm: RmsNorm,
    pub(crate) rounding: Rounding,
}

impl DeltaLayer {
    /// Mixes the projected tokens of several rows: `lengths[i]` of them belong to `states[i]`, in order. Shapes: `qkv`
    /// `[tokens, channels]`, `z` `[tokens, value heads · value head dim]`, `b` and `a` `[tokens, value heads]`; returns the
    /// shape of `z`.
    pub(crate) fn mix(
        &self,
        [qkv, z, b, a]: [&Tensor; 4],
        lengths: &[usize],
        states: &mut [&mut DeltaTensors],
    ) -> candle_core::Result<Tensor> {
        let tokens = qkv.dim(0)?;
        let z = z.reshape((tokens, self.sizes.value_heads, ()))?;
        let round = |xs| self.rounding.round(xs);
        let beta = round(sigmoid(&b.to_dtype(DType::F32)?)?)?;
        let a = a.to_dtype(DType::F32)?;
        let decay = softplus(&a.broadcast_add(&self.dt_bias)?)?
            .broadcast_mul(&self.neg_a)?
            .exp()?;

        // 1. Convolution and recurrence, row by row
        let mut outputs = Vec::with_capacity(lengths.len());
        let mut start = 0;
        for (&length, state) in lengths.iter().zip(states.iter_mut()) {
            let channels = self.convolve(&qkv.narrow(0, start, length)?, &mut state.conv)?;
            let beta = beta.narrow(0, start, length)?;
            let decay = decay.narrow(0, start, length)?;
            outputs.push(self.recur(&channels, &beta, &decay, &mut state.recurrent)?);
            start += length;
        }
        let output = round(Tensor::cat(&outputs, 0)?.to_dtype(qkv.dtype())?)?;

        // 2. Norm of each head first, then the gate
        round((self.norm.forward(&output)? * z.silu()?)?)?.reshape((tokens, ()))
    }

    /// Causal depthwise convolution and SiLU over `xs` `[new, channels]`; `conv` becomes the last raw inputs.
    fn convolve(&self, xs: &Tensor, conv: &mut Tensor) -> candle_core::Result<Tensor> {
        let new = xs.dim(0)?;
        let padded = Tensor::cat(&[&*conv, xs], 0)?;
        *conv = padded.narrow(0, new, self.conv.len() - 1)?.copy()?;
        let mut sum = padded.narrow(0, 0, new)?.broadcast_mul(&self.conv[0])?;
        for (tap, weight) in self.conv.iter().enumerate().skip(1) {
            sum = (sum + padded.narrow(0, tap, new)?.broadcast_mul(weight)?)?;
        }
        self.rounding.round(self.rounding.round(sum)?.silu()?)
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
        let DeltaSizes {
            key_heads,
            value_heads: heads,
            key_head_dim,
            value_head_dim,
            ..
        } = self.sizes;
        let new = qkv.dim(0)?;
        let qkv = qkv.to_dtype(DType::F32)?;
        let key_dim = key_heads * key_head_dim;
        let scale = (key_head_dim as f64).powf(-0.5);
        let q = (self.key_heads(&qkv.narrow(1, 0, key_dim)?)? * scale)?;
        let k = self.key_heads(&qkv.narrow(1, key_dim, key_dim)?)?;
        let v = qkv
            .narrow(1, 2 * key_dim, heads * value_head_dim)?
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
        let (key_heads, dim) = (self.sizes.key_heads, self.sizes.key_head_dim);
        let value_heads = self.sizes.value_heads;
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

    #[test]
    fn softplus_is_exact_at_both_ends() -> candle_core::Result<()> {
        let xs = Tensor::new(&[-100f32, 0.0, 100.0], &Device::Cpu)?;
        assert_eq!(softplus(&xs)?.to_vec1::<f32>()?, [0.0, 2f32.ln(), 100.0]);
        Ok(())
    }
}
