//! The gated delta net of Qwen3.5's linear-attention layers: projections, and between them the delta rule.
//!
//! Source: transformers `modeling_qwen3_5.py`; Yang et al. 2024 (Gated Delta Networks). The rule runs token by token in
//! f32, the exact form, by the kernels or by tensor operations; states live in the row.

use anyhow::Result;
use candle_core::{Device, Module, Tensor};

use super::config::{DecoderConfig, GatedDeltaConfig};
use super::layers::{Linear, Loader, to_numbers, with_numbers};
use super::row::LayerState;
use super::tensors::DeltaTensors;
use super::tensors::gated_delta::DeltaLayer;
use crate::kernels::Isa;
use crate::kernels::gated_delta::{
    self as kernel, DeltaInputs, DeltaSizes, DeltaState, DeltaWeights,
};

/// The gated delta net of one layer.
#[derive(Debug, Clone)]
pub struct GatedDeltaNet {
    in_proj_qkv: Linear,
    in_proj_z: Linear,
    in_proj_b: Linear,
    in_proj_a: Linear,
    out_proj: Linear,
    sizes: DeltaSizes,
    rule: Rule,
}

/// What applies the delta rule, and the states before the first token.
#[derive(Debug, Clone)]
enum Rule {
    Kernel(Isa, DeltaWeights, DeltaState),
    Tensors(DeltaLayer, DeltaTensors),
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
        let linear = |part: &str, shape| loader.linear(&format!("{name}.{part}"), shape, false);
        let sizes = DeltaSizes {
            key_heads: sizes.linear_num_key_heads,
            value_heads: heads,
            key_head_dim: sizes.linear_key_head_dim,
            value_head_dim: sizes.linear_value_head_dim,
            kernel: sizes.linear_conv_kernel_dim,
        };
        Ok(Self {
            in_proj_qkv: linear("in_proj_qkv", [conv_dim, hidden])?,
            in_proj_z: linear("in_proj_z", [value_dim, hidden])?,
            in_proj_b: linear("in_proj_b", [heads, hidden])?,
            in_proj_a: linear("in_proj_a", [heads, hidden])?,
            out_proj: linear("out_proj", [hidden, value_dim])?,
            sizes,
            rule: Rule::load(loader, name, &sizes)?,
        })
    }

    /// Returns what the layer remembers of a row that has seen nothing.
    pub(super) fn start(&self) -> LayerState {
        match &self.rule {
            Rule::Kernel(_, _, empty) => LayerState::Delta(empty.clone()),
            Rule::Tensors(_, empty) => LayerState::DeltaTensors(empty.clone()),
        }
    }

    /// Mixes the tokens `xs` `[tokens, hidden]` of several rows: `lengths[i]` tokens belong to `states[i]`, in order.
    pub(super) fn forward<'a>(
        &self,
        xs: &Tensor,
        lengths: &[usize],
        states: impl Iterator<Item = &'a mut LayerState>,
    ) -> candle_core::Result<Tensor> {
        let projections = [
            &self.in_proj_qkv,
            &self.in_proj_z,
            &self.in_proj_b,
            &self.in_proj_a,
        ];
        let [qkv, z, b, a] = Linear::forward_all(projections, xs)?;
        let mixed = match &self.rule {
            Rule::Kernel(isa, weights, _) => {
                let mut states: Vec<_> = states
                    .filter_map(|state| match state {
                        LayerState::Delta(state) => Some(state),
                        _ => None,
                    })
                    .collect();
                let mixed = with_numbers([&qkv, &z, &b, &a], |[qkv, z, b, a]| {
                    let inputs = DeltaInputs { qkv, z, b, a };
                    kernel::mix(*isa, &self.sizes, weights, &inputs, lengths, &mut states)
                })?;
                Tensor::from_vec(mixed, z.shape(), &Device::Cpu)?
            }
            Rule::Tensors(layer, _) => {
                let mut states: Vec<_> = states
                    .filter_map(|state| match state {
                        LayerState::DeltaTensors(state) => Some(state),
                        _ => None,
                    })
                    .collect();
                layer.mix([&qkv, &z, &b, &a], lengths, &mut states)?
            }
        };
        self.out_proj.forward(&mixed)
    }
}

impl Rule {
    fn load(loader: &Loader, name: &str, sizes: &DeltaSizes) -> Result<Self> {
        let (channels, taps) = (sizes.channels(), sizes.kernel);
        let conv = loader.tensor(&format!("{name}.conv1d.weight"), &[channels, 1, taps])?;
        let a_log = loader.tensor_f32(&format!("{name}.A_log"), &[sizes.value_heads])?;
        let rate = |log: &f32| -f64::from(*log).exp() as f32;
        let neg_a: Vec<f32> = to_numbers(&a_log)?.iter().map(rate).collect();
        let dt_bias = loader.tensor_f32(&format!("{name}.dt_bias"), &[sizes.value_heads])?;
        let norm = loader.plain_norm(&format!("{name}.norm"), sizes.value_head_dim)?;
        Ok(match loader.backend.isa() {
            Some(isa) => {
                let (norm, eps) = norm.to_numbers()?;
                let weights = DeltaWeights {
                    conv: to_numbers(&conv.reshape((channels, taps))?.t()?.contiguous()?)?,
                    neg_a,
                    dt_bias: to_numbers(&dt_bias)?,
                    norm,
                    eps,
                };
                Self::Kernel(isa, weights, DeltaState::new(sizes))
            }
            None => {
                let layer = DeltaLayer {
                    sizes: *sizes,
                    conv: (0..taps)
                        .map(|tap| conv.narrow(2, tap, 1)?.reshape((1, channels)))
                        .collect::<candle_core::Result<_>>()?,
                    dt_bias,
                    neg_a: Tensor::new(neg_a, a_log.device())?,
                    norm,
                    rounding: loader.backend.rounding(),
                };
                let (dtype, device) = (loader.backend.dtype(), loader.backend.device());
                Self::Tensors(layer, DeltaTensors::new(sizes, dtype, device)?)
            }
        })
    }
}
