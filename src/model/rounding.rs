//! A bf16 run, emulated in f32: what an operation yields is rounded to bf16 before the next one sees it.
//!
//! It rounds where transformers' `modeling_{llama,qwen2,qwen3,qwen3_5}.py` with eager attention leave a bf16 tensor: every
//! weight; the products of linear layers with their bias, and of the head; queries, keys, their norms, cosines, sines and each
//! step of the rotation; scores, scaled scores, softmax, mixed values and gate; both steps of a norm (one in Qwen3.5's own);
//! SiLU, its product and the residual sums; convolution, beta and output of the delta rule. Inside a product sums stay f32,
//! and so do the inside of norms, softmax, decay and the delta rule: as in hardware that multiplies bf16.

use anyhow::Result;
use candle_core::{Device, Tensor};

use super::layers::with_numbers;
use super::{Stored, TensorSource};
use crate::kernels::linear::Format;

/// What happens to the result of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Nothing: it is as the tensor's own type has it.
    None,
    /// Its f32 numbers become the nearest that bf16 has.
    Bf16,
}

impl Rounding {
    /// Rounds every number of a tensor.
    ///
    /// # Errors
    /// When there is something to round and it is not f32 in the CPU's memory.
    pub(super) fn round(self, xs: Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::None => Ok(xs),
            Self::Bf16 => {
                let numbers = with_numbers([&xs], |[xs]| xs.iter().map(|&x| to_bf16(x)).collect())?;
                Tensor::from_vec::<_, f32>(numbers, xs.shape(), &Device::Cpu)
            }
        }
    }

    /// Rounds every number of a slice.
    pub(super) fn round_all(self, numbers: &mut [f32]) {
        if self == Self::Bf16 {
            numbers
                .iter_mut()
                .for_each(|number| *number = to_bf16(*number));
        }
    }
}

/// Returns the bf16 that is nearest to `x`, as f32; of two that are as near the one whose last bit is 0.
fn to_bf16(x: f32) -> f32 {
    if x.is_nan() {
        return x;
    }
    let bits = x.to_bits();
    let is_odd = bits >> 16 & 1;
    // carries into the upper half above the middle, and in the middle of an odd number and the next
    f32::from_bits((bits + 0x7fff + is_odd) & 0xffff_0000)
}

/// A checkpoint whose numbers are rounded to bf16, as a bf16 run holds them.
pub(super) struct Bf16Weights<'a>(pub(super) &'a dyn TensorSource);

impl TensorSource for Bf16Weights<'_> {
    fn contains(&self, name: &str) -> bool {
        self.0.contains(name)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        Ok(Rounding::Bf16.round(self.0.tensor(name, shape)?)?)
    }

    fn stored(&self, name: &str, shape: &[usize]) -> Result<Stored<'_>> {
        match self.0.stored(name, shape)? {
            bytes @ Stored::Bytes(Format::Bf16, _) => Ok(bytes),
            _ => {
                let numbers = self.tensor(name, shape)?.flatten_all()?.to_vec1()?;
                Ok(Stored::Numbers(numbers))
            }
        }
    }

    fn release(&self, name: &str) {
        self.0.release(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType;

    /// Every upper half of an f32 with lower halves around the middle: what half's bf16 (candle's own type) makes of it.
    #[test]
    fn numbers_are_rounded_to_the_nearest_and_in_the_middle_to_even() -> Result<()> {
        let lower = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        let numbers: Vec<f32> = (0..=u16::MAX)
            .flat_map(|upper| lower.map(|lower| f32::from_bits(u32::from(upper) << 16 | lower)))
            .filter(|number| !number.is_nan())
            .collect();
        let tensor = Tensor::new(numbers, &Device::Cpu)?;
        let expected = tensor.to_dtype(DType::BF16)?.to_dtype(DType::F32)?;
        let rounded = Rounding::Bf16.round(tensor.clone())?;
        let bits = |xs: &Tensor| -> Result<Vec<u32>> {
            let numbers: Vec<f32> = xs.to_vec1()?;
            Ok(numbers.into_iter().map(f32::to_bits).collect())
        };
        assert!(bits(&rounded)? == bits(&expected)?);
        assert!(bits(&Rounding::None.round(tensor.clone())?)? == bits(&tensor)?);
        assert_eq!(to_bf16(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(to_bf16(1.0 + 3.0 / 256.0), 1.015_625);
        assert!(to_bf16(f32::NAN).is_nan());
        Ok(())
    }
}
