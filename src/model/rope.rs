//! Rotary position embedding: half-split pairs (i, i + rotary_dim / 2) over the first `rotary_dim` dimensions of a head.
//!
//! Sources: Su et al. 2021 (RoFormer); Llama 3's frequency scaling from transformers `modeling_rope_utils.py`
//! (`_compute_llama3_parameters`). Qwen3.5's multimodal rotary is exactly this one for text. Frequencies are f32, as in
//! torch; angles are computed for the positions at hand, never tabulated.

use anyhow::{Result, ensure};
use candle_core::{D, DType, Tensor};

use super::config::{RopeConfig, RopeScaling};
use super::rounding::Rounding;

/// The inverse frequencies of one model.
#[derive(Debug, Clone)]
pub struct Rope {
    inv_freq: Vec<f32>,
}

/// Cosines and sines of some positions, each `[tokens, rotary_dim / 2]`.
#[derive(Debug, Clone)]
pub struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    tokens: usize,
}

impl Rope {
    /// Computes the frequencies.
    ///
    /// # Errors
    /// When divisors are given and their number is not half of `rotary_dim`.
    pub fn new(config: &RopeConfig) -> Result<Self> {
        let dim = config.rotary_dim;
        let plain = (0..dim)
            .step_by(2)
            .map(|i| 1f32 / config.rope_theta.powf(i as f64 / dim as f64) as f32);
        let inv_freq = match &config.scaling {
            RopeScaling::Default => plain.collect(),
            RopeScaling::Divisors(divisors) => {
                ensure!(
                    divisors.len() * 2 == dim,
                    "rope_freqs.weight has {} values (expected {}, half of the rotary dimensions)",
                    divisors.len(),
                    dim / 2
                );
                plain
                    .zip(divisors)
                    .map(|(freq, divisor)| freq / divisor)
                    .collect()
            }
            scaling @ RopeScaling::Llama3 { .. } => {
                plain.map(|freq| llama3(freq, scaling)).collect()
            }
        };
        Ok(Self { inv_freq })
    }

    /// Returns the angles of `positions`, one a token.
    pub fn angles(&self, positions: &[usize]) -> Angles {
        let angles = positions
            .iter()
            .flat_map(|&position| self.inv_freq.iter().map(move |freq| position as f32 * freq));
        // C libraries differ in the last bit of their f32 functions; rounding from f64 all but hides that
        let of_angle = |angle: f32| {
            let (sin, cos) = f64::from(angle).sin_cos();
            (sin as f32, cos as f32)
        };
        let (sin, cos) = angles.map(of_angle).unzip();
        Angles {
            cos,
            sin,
            tokens: positions.len(),
        }
    }
}

impl Angles {
    /// Returns the cosines and the sines, token by token.
    pub fn numbers(&self) -> (&[f32], &[f32]) {
        (&self.cos, &self.sin)
    }

    /// Rotates the first dimensions of every head of `xs` `[tokens, heads, head_dim]`; the others pass unchanged.
    ///
    /// # Errors
    /// When the number of tokens is not that of the positions.
    pub(super) fn rotate(&self, xs: &Tensor, rounding: Rounding) -> candle_core::Result<Tensor> {
        let (dtype, head_dim) = (xs.dtype(), xs.dim(D::Minus1)?);
        let half = self.cos.len() / self.tokens.max(1);
        let numbers =
            |numbers: &[f32]| Tensor::from_slice(numbers, (self.tokens, 1, half), xs.device());
        let round = |xs| rounding.round(xs);
        let cos = round(numbers(&self.cos)?)?;
        let sin = round(numbers(&self.sin)?)?;
        let x1 = xs.narrow(D::Minus1, 0, half)?.to_dtype(DType::F32)?;
        let x2 = xs.narrow(D::Minus1, half, half)?.to_dtype(DType::F32)?;
        let rotated = [
            (round(x1.broadcast_mul(&cos)?)? - round(x2.broadcast_mul(&sin)?)?)?,
            (round(x2.broadcast_mul(&cos)?)? + round(x1.broadcast_mul(&sin)?)?)?,
        ];
        let [y1, y2] = rotated;
        let rotated = [round(y1)?.to_dtype(dtype)?, round(y2)?.to_dtype(dtype)?];
        if head_dim == 2 * half {
            return Tensor::cat(&rotated, D::Minus1);
        }
        let [y1, y2] = rotated;
        let rest = xs.narrow(D::Minus1, 2 * half, head_dim - 2 * half)?;
        Tensor::cat(&[y1, y2, rest], D::Minus1)
    }
}

/// One frequency of Llama 3's scaling: long wavelengths are stretched, short ones kept, those between blended.
fn llama3(freq: f32, scaling: &RopeScaling) -> f32 {
    let RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings,
    } = *scaling
    else {
        return freq;
    };
    let (low, high) = (low_freq_factor, high_freq_factor);
    let turns = original_max_position_embeddings as f64 * f64::from(freq) / std::f64::consts::TAU;
    if turns > high {
        freq
    } else if turns < low {
        (f64::from(freq) / factor) as f32
    } else {
        let smooth = (turns - low) / (high - low);
        let freq = f64::from(freq);
        ((1.0 - smooth) * freq / factor + smooth * freq) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default(rotary_dim: usize, rope_theta: f64) -> RopeConfig {
        RopeConfig {
            rotary_dim,
            rope_theta,
            scaling: RopeScaling::Default,
        }
    }

    #[test]
    fn frequencies_are_a_geometric_series_over_the_rotary_dimensions() -> Result<()> {
        let rope = Rope::new(&default(4, 100.0))?;
        assert_eq!(rope.inv_freq, [1.0, 0.1]);
        Ok(())
    }

    /// Torch's own values for Qwen3.5, to the bit.
    #[test]
    fn the_frequencies_of_qwen35_are_those_of_torch() {
        let golden: serde_json::Value = serde_json::from_str(include_str!(
            "../../tests/fixtures/qwen35-real/inv_freq.json"
        ))
        .expect("JSON");
        let expected: Vec<f32> =
            serde_json::from_value(golden["inv_freq_f32"].clone()).expect("32 numbers");
        let rope = Rope::new(&default(64, 1e7)).expect("no divisors");
        assert_eq!(rope.inv_freq, expected);
    }

    #[test]
    fn position_zero_changes_nothing_and_a_quarter_turn_swaps_the_pair() -> Result<()> {
        let rope = Rope {
            inv_freq: vec![std::f32::consts::FRAC_PI_2],
        };
        let xs = Tensor::new(
            &[[[1f32, 2., 9.]], [[1., 2., 9.]]],
            &candle_core::Device::Cpu,
        )?;
        let ys = rope.angles(&[0, 1]).rotate(&xs, Rounding::None)?;
        let ys = ys.to_vec3::<f32>()?;
        assert_eq!(ys[0][0], [1.0, 2.0, 9.0]);
        for (y, expected) in ys[1][0].iter().zip([-2.0, 1.0, 9.0]) {
            assert!((y - expected).abs() < 1e-6, "{ys:?}");
        }
        Ok(())
    }

    #[test]
    fn llama3_keeps_fast_frequencies_and_divides_slow_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        assert_eq!(llama3(1.0, &scaling), 1.0);
        assert_eq!(llama3(1e-5, &scaling), 1e-5 / 8.0);
        let between = llama3(0.0015, &scaling);
        assert!(between < 0.0015 && between > 0.0015 / 8.0);
    }

    #[test]
    fn divisors_must_be_half_of_the_rotary_dimensions() {
        let config = RopeConfig {
            scaling: RopeScaling::Divisors(vec![1.0; 3]),
            ..default(4, 100.0)
        };
        let error = Rope::new(&config)
            .expect_err("three divisors for two frequencies")
            .to_string();
        assert!(error.contains("has 3 values (expected 2"), "{error}");
    }
}
