//! The three small layers every decoder is made of: linear, RMS norm, SwiGLU.
//!
//! Activations are `[tokens, width]`, two dimensions only: rows of different sequences lie beside each other, so that one
//! matrix product serves them all. Norms compute in f32 whatever the weights' type (as transformers does).

use anyhow::Result;
use candle_core::{D, DType, Device, Module, Tensor};

use super::TensorSource;

/// Loads tensors of one checkpoint to one device in one type.
pub struct Loader<'a> {
    /// Where the weights come from.
    pub source: &'a dyn TensorSource,
    /// Where they go.
    pub device: &'a Device,
    /// What the matrices are computed in.
    pub dtype: DType,
    /// Whether RMS norm weights are stored around zero.
    pub zero_centred_norm: bool,
    /// Inside every RMS norm.
    pub rms_norm_eps: f64,
}

impl Loader<'_> {
    /// Returns a tensor in the type of the matrices.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.source.tensor(name, shape)?;
        Ok(tensor.to_dtype(self.dtype)?.to_device(self.device)?)
    }

    /// Returns a tensor in f32.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn tensor_f32(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(self.source.tensor(name, shape)?.to_device(self.device)?)
    }

    /// Returns the linear layer `name`: `name.weight` `[out, in]` and, with `bias`, `name.bias` `[out]`.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn linear(&self, name: &str, [output, input]: [usize; 2], bias: bool) -> Result<Linear> {
        let weight = self.tensor(&format!("{name}.weight"), &[output, input])?;
        Ok(Linear {
            // copied to input-major order once: candle's product packs that by whole lines, other orders value by value
            transposed: weight.t()?.contiguous()?,
            bias: bias
                .then(|| self.tensor(&format!("{name}.bias"), &[output]))
                .transpose()?,
        })
    }

    /// Returns the RMS norm `name` over `size` values, whose weight is stored as the family stores it.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn norm(&self, name: &str, size: usize) -> Result<RmsNorm> {
        let norm = self.plain_norm(name, size)?;
        let weight = match self.zero_centred_norm {
            true => (norm.weight + 1.0)?,
            false => norm.weight,
        };
        Ok(RmsNorm { weight, ..norm })
    }

    /// Returns the RMS norm `name` over `size` values, whose weight is a plain factor in every family.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn plain_norm(&self, name: &str, size: usize) -> Result<RmsNorm> {
        Ok(RmsNorm {
            weight: self.tensor_f32(&format!("{name}.weight"), &[size])?,
            eps: self.rms_norm_eps,
        })
    }
}

/// `x · weightᵀ + bias`.
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[in, out]`.
    transposed: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Returns a layer without bias that shares `weight` `[out, in]`.
    ///
    /// # Errors
    /// When `weight` has not two dimensions.
    pub fn tied(weight: &Tensor) -> Result<Self> {
        Ok(Self {
            transposed: weight.t()?,
            bias: None,
        })
    }
}

impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let ys = xs.matmul(&self.transposed)?;
        match &self.bias {
            Some(bias) => ys.broadcast_add(bias),
            None => Ok(ys),
        }
    }
}

/// `x / sqrt(mean(x²) + eps) · weight` over the last dimension.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let dtype = xs.dtype();
        let xs = xs.to_dtype(DType::F32)?;
        let mean_square = xs.sqr()?.mean_keepdim(D::Minus1)?;
        xs.broadcast_div(&(mean_square + self.eps)?.sqrt()?)?
            .broadcast_mul(&self.weight)?
            .to_dtype(dtype)
    }
}

/// `down(silu(gate(x)) · up(x))`.
#[derive(Debug, Clone)]
pub struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Mlp {
    /// Loads the layer under `name`.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn load(
        loader: &Loader,
        name: &str,
        [hidden, intermediate]: [usize; 2],
        bias: bool,
    ) -> Result<Self> {
        Ok(Self {
            gate_proj: loader.linear(&format!("{name}.gate_proj"), [intermediate, hidden], bias)?,
            up_proj: loader.linear(&format!("{name}.up_proj"), [intermediate, hidden], bias)?,
            down_proj: loader.linear(&format!("{name}.down_proj"), [hidden, intermediate], bias)?,
        })
    }
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let gate = self.gate_proj.forward(xs)?.silu()?;
        self.down_proj.forward(&(gate * self.up_proj.forward(xs)?)?)
    }
}
