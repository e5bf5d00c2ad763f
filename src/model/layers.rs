//! The small layers every decoder is made of: embedding, linear, RMS norm, SwiGLU; on kernels or on tensor operations.
//!
//! Activations are `[tokens, width]`, two dimensions only: rows of different sequences lie beside each other, so that one
//! matrix product serves them all. Norms compute in f32 whatever the weights' type (as transformers does).

use anyhow::Result;
use candle_core::{CpuStorage, D, DType, Device, Module, Storage, Tensor};

use super::rounding::Rounding;
use super::{Backend, Logits, Stored, TensorSource};
use crate::kernels::linear::{self, Format, Weights};
use crate::kernels::{Isa, norm};

/// Loads tensors of one checkpoint for one backend.
pub struct Loader<'a> {
    /// Where the weights come from.
    pub source: &'a dyn TensorSource,
    /// What will compute with them.
    pub backend: &'a Backend,
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
        let tensor = tensor.to_dtype(self.backend.dtype())?;
        Ok(tensor.to_device(self.backend.device())?)
    }

    /// Returns a tensor in f32.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn tensor_f32(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let tensor = self.source.tensor(name, shape)?;
        Ok(tensor.to_device(self.backend.device())?)
    }

    /// Returns the matrix `name` `[out, in]`.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn matrix(&self, name: &str, shape: [usize; 2]) -> Result<Matrix> {
        match self.backend.products() {
            Some(isa) => {
                let weights = self.weights(name, shape)?;
                self.source.release(name);
                Ok(Matrix::Tiled(isa, weights.into()))
            }
            // copied to input-major order once: candle's product packs that by whole lines, other orders value by value
            None => Ok(Matrix::Transposed(
                self.tensor(name, &shape)?.t()?.contiguous()?,
            )),
        }
    }

    fn weights(&self, name: &str, shape: [usize; 2]) -> Result<Weights> {
        let [outputs, inputs] = shape;
        let numbers = match self.source.stored(name, &shape)? {
            Stored::Bytes(format, bytes) if format != Format::F16 || linear::is_finite(bytes) => {
                return Ok(Weights::from_bytes(format, bytes, outputs, inputs));
            }
            Stored::Bytes(..) => self.tensor_f32(name, &shape)?.flatten_all()?.to_vec1()?,
            Stored::Numbers(numbers) => numbers,
        };
        Ok(Weights::from_numbers(&numbers, outputs, inputs))
    }

    /// Returns the linear layer `name`: `name.weight` `[out, in]` and, with `bias`, `name.bias` `[out]`.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn linear(&self, name: &str, shape: [usize; 2], bias: bool) -> Result<Linear> {
        Ok(Linear {
            weight: self.matrix(&format!("{name}.weight"), shape)?,
            bias: bias
                .then(|| self.tensor(&format!("{name}.bias"), &[shape[0]]))
                .transpose()?,
            rounding: self.backend.rounding(),
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
        Ok(RmsNorm {
            weight,
            is_zero_centred: self.zero_centred_norm,
            ..norm
        })
    }

    /// Returns the RMS norm `name` over `size` values, whose weight is a plain factor in every family.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn plain_norm(&self, name: &str, size: usize) -> Result<RmsNorm> {
        Ok(RmsNorm {
            weight: self.tensor_f32(&format!("{name}.weight"), &[size])?,
            eps: self.rms_norm_eps,
            isa: self.backend.isa(),
            rounding: self.backend.rounding(),
            is_zero_centred: false,
        })
    }
}

/// Lends the numbers of tensors that lie in the CPU's memory as f32.
///
/// # Errors
/// When one does not.
pub(super) fn with_numbers<const N: usize, R>(
    tensors: [&Tensor; N],
    work: impl FnOnce([&[f32]; N]) -> R,
) -> candle_core::Result<R> {
    let tensors: Vec<Tensor> = tensors
        .into_iter()
        .map(Tensor::contiguous)
        .collect::<candle_core::Result<_>>()?;
    let storages: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let mut numbers = [&[][..]; N];
    for (numbers, (storage, layout)) in numbers.iter_mut().zip(&storages) {
        *numbers = match &**storage {
            Storage::Cpu(CpuStorage::F32(all)) => {
                &all[layout.start_offset()..][..layout.shape().elem_count()]
            }
            _ => candle_core::bail!("the kernels compute with f32 numbers on the CPU"),
        };
    }
    Ok(work(numbers))
}

/// Returns a tensor's numbers as a vector.
///
/// # Errors
/// When it is not f32.
pub(super) fn to_numbers(xs: &Tensor) -> candle_core::Result<Vec<f32>> {
    xs.flatten_all()?.to_vec1()
}

/// A weight matrix `[out, in]`.
#[derive(Debug, Clone)]
pub enum Matrix {
    /// For the kernels, shared by clones.
    Tiled(Isa, std::sync::Arc<Weights>),
    /// For tensor operations, `[in, out]`.
    Transposed(Tensor),
}

impl Matrix {
    /// Returns some rows, `[ids, in]`: the embedding of these ids.
    ///
    /// # Errors
    /// When there is no such row.
    pub fn rows(&self, ids: &[u32], device: &Device) -> candle_core::Result<Tensor> {
        match self {
            Self::Tiled(_, weights) => {
                let mut rows = vec![0.0; ids.len() * weights.inputs()];
                for (&id, row) in ids.iter().zip(rows.chunks_exact_mut(weights.inputs())) {
                    weights.copy_row(id as usize, row);
                }
                Tensor::from_vec(rows, (ids.len(), weights.inputs()), &Device::Cpu)
            }
            Self::Transposed(weight) => weight
                .index_select(&Tensor::new(ids, device)?, 1)?
                .t()?
                .contiguous(),
        }
    }

    /// Returns `x · weightᵀ` of every row of `xs` as logits.
    ///
    /// # Errors
    /// When the computation fails.
    pub fn logits(&self, xs: &Tensor) -> candle_core::Result<Vec<Logits>> {
        match self {
            Self::Tiled(isa, weights) => with_numbers([xs], |[xs]| {
                linear::multiply_rows(*isa, xs, weights.inputs(), weights)
            }),
            Self::Transposed(weight) => xs.matmul(weight)?.to_dtype(DType::F32)?.to_vec2(),
        }
    }
}

/// `x · weightᵀ + bias`.
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Matrix,
    bias: Option<Tensor>,
    rounding: Rounding,
}

impl Linear {
    /// Applies several layers to the same activations: the kernels take them as one.
    ///
    /// # Errors
    /// When the computation fails.
    pub fn forward_all<const N: usize>(
        layers: [&Self; N],
        xs: &Tensor,
    ) -> candle_core::Result<[Tensor; N]> {
        let mut weights = Vec::with_capacity(N);
        let mut kernel = None;
        let mut results = Vec::with_capacity(N);
        for layer in layers {
            match &layer.weight {
                Matrix::Tiled(isa, tiled) => {
                    kernel = Some(*isa);
                    weights.push(&**tiled);
                }
                Matrix::Transposed(weight) => results.push(xs.matmul(weight)?),
            }
        }
        if let Some(isa) = kernel {
            let (rows, inputs) = xs.dims2()?;
            let products = with_numbers([xs], |[xs]| linear::multiply(isa, xs, inputs, &weights))?;
            for (product, weights) in products.into_iter().zip(weights) {
                let shape = (rows, weights.outputs());
                results.push(Tensor::from_vec(product, shape, &Device::Cpu)?);
            }
        }
        for (result, layer) in results.iter_mut().zip(layers) {
            if let Some(bias) = &layer.bias {
                *result = result.broadcast_add(bias)?;
            }
            *result = layer.rounding.round(result.clone())?;
        }
        match results.try_into() {
            Ok(results) => Ok(results),
            Err(_) => candle_core::bail!("layers of one model have one backend"),
        }
    }
}

impl Module for Linear {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let [ys] = Self::forward_all([self], xs)?;
        Ok(ys)
    }
}

/// `x / sqrt(mean(x²) + eps) · weight` over the last dimension.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f64,
    isa: Option<Isa>,
    rounding: Rounding,
    /// transformers leaves a bf16 tensor before the factor of every norm but of these.
    is_zero_centred: bool,
}

impl RmsNorm {
    /// Returns the factors and what is added inside the root.
    ///
    /// # Errors
    /// When the computation fails.
    pub(super) fn to_numbers(&self) -> candle_core::Result<(Vec<f32>, f32)> {
        Ok((to_numbers(&self.weight)?, self.eps as f32))
    }
}

impl Module for RmsNorm {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        if let Some(isa) = self.isa {
            let eps = self.eps as f32;
            let normed = with_numbers([xs, &self.weight], |[xs, weight]| {
                norm::rms_norm(isa, xs, weight, eps)
            })?;
            return Tensor::from_vec(normed, xs.shape(), &Device::Cpu);
        }
        let dtype = xs.dtype();
        let xs = xs.to_dtype(DType::F32)?;
        let mean_square = xs.sqr()?.mean_keepdim(D::Minus1)?;
        let normed = xs.broadcast_div(&(mean_square + self.eps)?.sqrt()?)?;
        let normed = match self.is_zero_centred {
            true => normed,
            false => self.rounding.round(normed)?,
        };
        let scaled = normed.broadcast_mul(&self.weight)?.to_dtype(dtype)?;
        self.rounding.round(scaled)
    }
}

/// `down(silu(gate(x)) · up(x))`.
#[derive(Debug, Clone)]
pub struct Mlp {
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    isa: Option<Isa>,
    rounding: Rounding,
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
            isa: loader.backend.isa(),
            rounding: loader.backend.rounding(),
        })
    }
}

impl Module for Mlp {
    fn forward(&self, xs: &Tensor) -> candle_core::Result<Tensor> {
        let [gate, up] = Linear::forward_all([&self.gate_proj, &self.up_proj], xs)?;
        let product = match self.isa {
            Some(isa) => {
                let product = with_numbers([&gate, &up], |[gate, up]| norm::swiglu(isa, gate, up))?;
                Tensor::from_vec(product, gate.shape(), &Device::Cpu)?
            }
            None => self
                .rounding
                .round((self.rounding.round(gate.silu()?)? * up)?)?,
        };
        self.down_proj.forward(&product)
    }
}
