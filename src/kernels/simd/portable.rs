//! Vectors as arrays, one lane after the other: the reference of all others, and what a processor without them uses.

use super::{Job, LANES, LANES_F64, Line, Simd};

/// Plain loops.
#[derive(Debug, Clone, Copy)]
pub struct Portable;

#[inline(always)]
fn zip<const N: usize, T: Copy>(a: [T; N], b: [T; N], op: impl Fn(T, T) -> T) -> [T; N] {
    std::array::from_fn(|lane| op(a[lane], b[lane]))
}

/// Reads a finite f16 by moving its bits to those of an f32 that is 2^112 times too small.
#[inline(always)]
pub(in crate::kernels) fn f16(bits: u32) -> f32 {
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits(0x7780_0000);
    f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
}

impl Simd for Portable {
    type F32 = [f32; LANES];
    type F64 = [f64; LANES_F64];
    const TILES: &'static [usize] = &[6, 4, 2, 1];

    #[inline(always)]
    fn run<J: Job>(self, job: J) -> J::Output {
        job.run(self)
    }

    #[inline(always)]
    fn prefetch(self, _: *const Line) {}

    #[inline(always)]
    fn splat(self, value: f32) -> Self::F32 {
        [value; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F32 {
        *from
    }
    #[inline(always)]
    fn store(self, values: Self::F32, to: &mut [f32; LANES]) {
        *to = values;
    }
    #[inline(always)]
    fn line(self, line: &Line) -> Self::F32 {
        line.0.map(f32::from_bits)
    }
    #[inline(always)]
    fn bf16_pairs(self, line: &Line) -> (Self::F32, Self::F32) {
        (
            line.0.map(|pair| f32::from_bits(pair << 16)),
            line.0.map(|pair| f32::from_bits(pair & 0xffff_0000)),
        )
    }
    #[inline(always)]
    fn f16_pairs(self, line: &Line) -> (Self::F32, Self::F32) {
        (
            line.0.map(|pair| f16(pair & 0xffff)),
            line.0.map(|pair| f16(pair >> 16)),
        )
    }
    #[inline(always)]
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32 {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }
    #[inline(always)]
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32 {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self, a: Self::F32) -> Self::F32 {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn pow2(self, a: Self::F32) -> Self::F32 {
        a.map(|a| f32::from_bits(((a as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    fn greater(self, a: Self::F32, b: Self::F32) -> u16 {
        (0..LANES).fold(0, |mask, lane| mask | u16::from(a[lane] > b[lane]) << lane)
    }

    #[inline(always)]
    fn widen(self, a: Self::F32) -> [Self::F64; 2] {
        [0, LANES_F64].map(|start| std::array::from_fn(|lane| f64::from(a[start + lane])))
    }
    #[inline(always)]
    fn splat_f64(self, value: f64) -> Self::F64 {
        [value; LANES_F64]
    }
    #[inline(always)]
    fn store_f64(self, values: Self::F64, to: &mut [f64; LANES_F64]) {
        *to = values;
    }
    #[inline(always)]
    fn add_f64(self, a: Self::F64, b: Self::F64) -> Self::F64 {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub_f64(self, a: Self::F64, b: Self::F64) -> Self::F64 {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul_f64(self, a: Self::F64, b: Self::F64) -> Self::F64 {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div_f64(self, a: Self::F64, b: Self::F64) -> Self::F64 {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn mul_add_f64(self, a: Self::F64, b: Self::F64, c: Self::F64) -> Self::F64 {
        std::array::from_fn(|lane| a[lane].mul_add(b[lane], c[lane]))
    }
    #[inline(always)]
    fn max_f64(self, a: Self::F64, b: Self::F64) -> Self::F64 {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min_f64(self, a: Self::F64, b: Self::F64) -> Self::F64 {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round_f64(self, a: Self::F64) -> Self::F64 {
        a.map(f64::round_ties_even)
    }
    #[inline(always)]
    fn pow2_f64(self, a: Self::F64) -> Self::F64 {
        a.map(|a| f64::from_bits(((a as i64 + 1023) << 52) as u64))
    }
}
