//! Vectors of aarch64: four registers of NEON.
#![allow(
    unsafe_code,
    reason = "processor intrinsics need their instructions; a token proves that they are there"
)]

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::{Job, LANES, LANES_F64, Line, Simd};

/// NEON (Advanced SIMD), which every aarch64 with an operating system has.
#[derive(Debug, Clone, Copy)]
pub struct Neon(());

impl Neon {
    /// Returns the token where the processor has it.
    pub fn detect() -> Option<Self> {
        is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

type F32 = [float32x4_t; 4];
type F64 = [float64x2_t; 4];

/// A method that is one expression over intrinsics.
macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? { $body:expr })*) => {$(
        #[inline(always)]
        fn $name(self, $($argument: $type),*) $(-> $result)? {
            // SAFETY: `self` exists only where the processor was asked for these instructions; memory is read and written
            // through references of the whole size.
            unsafe { $body }
        }
    )*};
}

/// The same operation on all quarters.
macro_rules! quarters {
    ($operation:ident($a:ident $(, $more:ident)*)) => {
        [
            $operation($a[0] $(, $more[0])*),
            $operation($a[1] $(, $more[1])*),
            $operation($a[2] $(, $more[2])*),
            $operation($a[3] $(, $more[3])*),
        ]
    };
}

#[inline]
#[target_feature(enable = "neon")]
fn words(line: &Line) -> [uint32x4_t; 4] {
    // SAFETY: the line has sixteen words.
    [0, 4, 8, 12].map(|first| unsafe { vld1q_u32(line.0.as_ptr().add(first)) })
}

#[inline]
#[target_feature(enable = "neon")]
fn bf16_low(pairs: uint32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs))
}

#[inline]
#[target_feature(enable = "neon")]
fn bf16_high(pairs: uint32x4_t) -> float32x4_t {
    vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff_0000)))
}

#[inline]
#[target_feature(enable = "neon")]
fn f16_low(pairs: uint32x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(pairs)))
}

#[inline]
#[target_feature(enable = "neon")]
fn f16_high(pairs: uint32x4_t) -> float32x4_t {
    vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32::<16>(pairs)))
}

// `fmax` and `fmin` give NaN where either number is NaN
#[inline]
#[target_feature(enable = "neon")]
fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcltq_f32(a, b), a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn max_f64(a: float64x2_t, b: float64x2_t) -> float64x2_t {
    vbslq_f64(vcgtq_f64(a, b), a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn min_f64(a: float64x2_t, b: float64x2_t) -> float64x2_t {
    vbslq_f64(vcltq_f64(a, b), a, b)
}

#[inline]
#[target_feature(enable = "neon")]
fn pow2(a: float32x4_t) -> float32x4_t {
    let exponent = vaddq_s32(vcvtq_s32_f32(a), vdupq_n_s32(127));
    vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent))
}

#[inline]
#[target_feature(enable = "neon")]
fn pow2_f64(a: float64x2_t) -> float64x2_t {
    let exponent = vaddq_s64(vcvtq_s64_f64(a), vdupq_n_s64(1023));
    vreinterpretq_f64_s64(vshlq_n_s64::<52>(exponent))
}

impl Simd for Neon {
    type F32 = F32;
    type F64 = F64;
    // 32 registers, four a vector: with a sixth row some sums would not stay in them
    const TILES: &'static [usize] = &[5, 4, 3, 2, 1];

    #[inline(always)]
    fn run<J: Job>(self, job: J) -> J::Output {
        job.run(self)
    }

    methods! {
        prefetch(address: *const Line) {
            asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly))
        }
        splat(value: f32) -> F32 { [vdupq_n_f32(value); 4] }
        load(from: &[f32; LANES]) -> F32 {
            [0, 4, 8, 12].map(|first| vld1q_f32(from.as_ptr().add(first)))
        }
        store(values: F32, to: &mut [f32; LANES]) {
            for (quarter, to) in values.into_iter().zip(to.as_chunks_mut::<4>().0) {
                vst1q_f32(to.as_mut_ptr(), quarter);
            }
        }
        line(line: &Line) -> F32 { words(line).map(|words| vreinterpretq_f32_u32(words)) }
        bf16_pairs(line: &Line) -> (F32, F32) {{
            let pairs = words(line);
            (quarters!(bf16_low(pairs)), quarters!(bf16_high(pairs)))
        }}
        f16_pairs(line: &Line) -> (F32, F32) {{
            let pairs = words(line);
            (quarters!(f16_low(pairs)), quarters!(f16_high(pairs)))
        }}
        add(a: F32, b: F32) -> F32 { quarters!(vaddq_f32(a, b)) }
        sub(a: F32, b: F32) -> F32 { quarters!(vsubq_f32(a, b)) }
        mul(a: F32, b: F32) -> F32 { quarters!(vmulq_f32(a, b)) }
        div(a: F32, b: F32) -> F32 { quarters!(vdivq_f32(a, b)) }
        mul_add(a: F32, b: F32, c: F32) -> F32 { quarters!(vfmaq_f32(c, a, b)) }
        max(a: F32, b: F32) -> F32 { quarters!(max(a, b)) }
        min(a: F32, b: F32) -> F32 { quarters!(min(a, b)) }
        round(a: F32) -> F32 { quarters!(vrndnq_f32(a)) }
        pow2(a: F32) -> F32 { quarters!(pow2(a)) }
        greater(a: F32, b: F32) -> u16 {{
            let bits = vld1q_u32([1, 2, 4, 8].as_ptr());
            let [a, b, c, d] = quarters!(vcgtq_f32(a, b)).map(|all| vandq_u32(all, bits));
            // each quarter's bits above those of the quarter before
            let masks = vsliq_n_u32::<4>(a, vsliq_n_u32::<4>(b, vsliq_n_u32::<4>(c, d)));
            vaddvq_u32(masks) as u16
        }}
        widen(a: F32) -> [F64; 2] {
            [[a[0], a[1]], [a[2], a[3]]].map(|[a, b]| [
                vcvt_f64_f32(vget_low_f32(a)),
                vcvt_high_f64_f32(a),
                vcvt_f64_f32(vget_low_f32(b)),
                vcvt_high_f64_f32(b),
            ])
        }
        splat_f64(value: f64) -> F64 { [vdupq_n_f64(value); 4] }
        store_f64(values: F64, to: &mut [f64; LANES_F64]) {
            for (quarter, to) in values.into_iter().zip(to.as_chunks_mut::<2>().0) {
                vst1q_f64(to.as_mut_ptr(), quarter);
            }
        }
        add_f64(a: F64, b: F64) -> F64 { quarters!(vaddq_f64(a, b)) }
        sub_f64(a: F64, b: F64) -> F64 { quarters!(vsubq_f64(a, b)) }
        mul_f64(a: F64, b: F64) -> F64 { quarters!(vmulq_f64(a, b)) }
        div_f64(a: F64, b: F64) -> F64 { quarters!(vdivq_f64(a, b)) }
        mul_add_f64(a: F64, b: F64, c: F64) -> F64 { quarters!(vfmaq_f64(c, a, b)) }
        max_f64(a: F64, b: F64) -> F64 { quarters!(max_f64(a, b)) }
        min_f64(a: F64, b: F64) -> F64 { quarters!(min_f64(a, b)) }
        round_f64(a: F64) -> F64 { quarters!(vrndnq_f64(a)) }
        pow2_f64(a: F64) -> F64 { quarters!(pow2_f64(a)) }
    }
}
