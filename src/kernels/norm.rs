//! Root-mean-square norms, and the product that a SwiGLU takes of its two halves.

use super::math::{self, load_part, store_part};
use super::parallel::{self, Shared};
use super::simd::{Isa, Job, LANES, Simd};

/// Numbers that a part of the work has at least.
const LEAST: usize = 1 << 12;

/// Writes `x / sqrt(mean(x²) + eps) · weight` for every row of `xs`, as many numbers as `weight` has.
///
/// # Panics
/// When `xs` is no whole number of rows.
pub fn rms_norm(isa: Isa, xs: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let width = weight.len();
    assert!(xs.len().is_multiple_of(width), "whole rows to be normed");
    let mut ys = vec![0.0; xs.len()];
    let target = Shared::new(&mut ys);
    parallel::ranges(xs.len() / width, LEAST / width, |rows| {
        let part = rows.start * width..rows.end * width;
        // SAFETY: every row is one thread's.
        #[allow(unsafe_code, reason = "rows are written by several threads")]
        let ys = unsafe { target.part(part.clone()) };
        isa.run(RmsNorm {
            xs: &xs[part],
            weight,
            eps,
            ys,
        });
    });
    ys
}

struct RmsNorm<'a> {
    xs: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    ys: &'a mut [f32],
}

impl Job for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let width = self.weight.len();
        let rows = self.xs.chunks_exact(width);
        for (xs, ys) in rows.zip(self.ys.chunks_exact_mut(width)) {
            ys.copy_from_slice(xs);
            scale_to_unit_mean(simd, ys, self.weight, self.eps);
        }
    }
}

/// The norm of one row, in place.
#[inline(always)]
pub(super) fn scale_to_unit_mean<S: Simd>(simd: S, xs: &mut [f32], weight: &[f32], eps: f32) {
    let mean = sum_of_squares(simd, xs) / xs.len() as f32;
    let scale = simd.splat(1.0 / (mean + eps).sqrt());
    for (xs, weight) in xs.chunks_mut(LANES).zip(weight.chunks(LANES)) {
        let scaled = simd.mul(load_part(simd, xs, 0.0), scale);
        store_part(simd, simd.mul(scaled, load_part(simd, weight, 0.0)), xs);
    }
}

/// Σ x².
#[inline(always)]
pub(super) fn sum_of_squares<S: Simd>(simd: S, xs: &[f32]) -> f32 {
    let mut squares = simd.splat(0.0);
    for xs in xs.chunks(LANES) {
        let xs = load_part(simd, xs, 0.0);
        squares = simd.mul_add(xs, xs, squares);
    }
    math::sum(simd, squares)
}

/// Returns `silu(gate) · up`.
///
/// # Panics
/// When the two have different lengths.
pub fn swiglu(isa: Isa, gate: &[f32], up: &[f32]) -> Vec<f32> {
    assert_eq!(gate.len(), up.len(), "gate and up");
    let mut ys = vec![0.0; gate.len()];
    let target = Shared::new(&mut ys);
    let chunks = gate.len().div_ceil(LANES);
    parallel::ranges(chunks, LEAST / LANES, |chunks| {
        let part = chunks.start * LANES..(chunks.end * LANES).min(gate.len());
        // SAFETY: every chunk is one thread's.
        #[allow(unsafe_code, reason = "chunks are written by several threads")]
        let ys = unsafe { target.part(part.clone()) };
        isa.run(SwiGlu {
            gate: &gate[part.clone()],
            up: &up[part],
            ys,
        });
    });
    ys
}

struct SwiGlu<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    ys: &'a mut [f32],
}

impl Job for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let inputs = self.gate.chunks(LANES).zip(self.up.chunks(LANES));
        for ((gate, up), ys) in inputs.zip(self.ys.chunks_mut(LANES)) {
            let gate = math::silu(simd, load_part(simd, gate, 0.0));
            store_part(simd, simd.mul(gate, load_part(simd, up, 0.0)), ys);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three rows of 37 numbers.
    fn rows() -> (Vec<f32>, Vec<f32>) {
        let xs = (0..111).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let weight = (0..37).map(|i| 0.5 + i as f32 / 37.0).collect();
        (xs, weight)
    }

    #[test]
    fn a_norm_divides_by_the_root_of_the_mean_square() {
        assert_eq!(
            rms_norm(Isa::current(), &[3.0, -3.0], &[1.0, 2.0], 0.0),
            [1.0, -2.0]
        );
        assert_eq!(
            rms_norm(Isa::current(), &[0.0; 2], &[1.0; 2], 1e-6),
            [0.0; 2]
        );
        let (xs, weight) = rows();
        let ys = rms_norm(Isa::current(), &xs, &weight, 1e-6);
        for (xs, ys) in xs.chunks(37).zip(ys.chunks(37)) {
            let mean = xs.iter().map(|x| f64::from(x * x)).sum::<f64>() / 37.0;
            for ((x, y), weight) in xs.iter().zip(ys).zip(&weight) {
                let exact = f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*weight);
                assert!((f64::from(*y) - exact).abs() < 1e-6 * (1.0 + exact.abs()));
            }
        }
    }

    #[test]
    fn swiglu_is_silu_times_up() {
        let (xs, _) = rows();
        let up: Vec<f32> = xs.iter().rev().copied().collect();
        let ys = swiglu(Isa::current(), &xs, &up);
        for ((gate, up), y) in xs.iter().zip(&up).zip(ys) {
            let gate = f64::from(*gate);
            let exact = gate / (1.0 + (-gate).exp()) * f64::from(*up);
            assert!((f64::from(y) - exact).abs() < 1e-6 * (1.0 + exact.abs()));
        }
    }

    #[test]
    fn every_processor_gives_the_same_bits() {
        let (xs, weight) = rows();
        let of = |isa| (rms_norm(isa, &xs, &weight, 1e-6), swiglu(isa, &xs, &xs));
        for isa in Isa::available() {
            assert_eq!(of(isa), of(Isa::current()), "{}", isa.name());
        }
    }
}
