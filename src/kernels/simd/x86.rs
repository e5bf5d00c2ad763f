//! Vectors of x86-64: one register of AVX-512, or two of AVX2.
#![allow(
    unsafe_code,
    reason = "processor intrinsics need their instructions; a token proves that they are there"
)]

use std::arch::x86_64::*;

use super::{Job, LANES, LANES_F64, Line, Simd};

/// AVX-512 (F, BW, DQ, VL) with AVX2 and FMA.
#[derive(Debug, Clone, Copy)]
pub struct Avx512(());

/// AVX2 with FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub struct Avx2(());

impl Avx512 {
    /// Returns the token where the processor and the system have it.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma"))
        .then_some(Self(()))
    }
}

impl Avx2 {
    /// Returns the token where the processor and the system have it.
    pub fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
fn with_avx512<J: Job>(simd: Avx512, job: J) -> J::Output {
    job.run(simd)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn with_avx2<J: Job>(simd: Avx2, job: J) -> J::Output {
    job.run(simd)
}

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

impl Simd for Avx512 {
    type F32 = __m512;
    type F64 = __m512d;
    // 32 registers: a sum for each row, the weights of two inputs, and what they come from
    const TILES: &'static [usize] = &[26, 20, 16, 13, 10, 8, 6, 5, 4, 3, 2, 1];

    #[inline(always)]
    fn run<J: Job>(self, job: J) -> J::Output {
        // SAFETY: as for the methods below.
        unsafe { with_avx512(self, job) }
    }

    methods! {
        prefetch(address: *const Line) { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        splat(value: f32) -> __m512 { _mm512_set1_ps(value) }
        load(from: &[f32; LANES]) -> __m512 { _mm512_loadu_ps(from.as_ptr()) }
        store(values: __m512, to: &mut [f32; LANES]) { _mm512_storeu_ps(to.as_mut_ptr(), values) }
        line(line: &Line) -> __m512 { _mm512_load_ps((line as *const Line).cast()) }
        bf16_pairs(line: &Line) -> (__m512, __m512) {{
            let pairs = _mm512_load_si512((line as *const Line).cast());
            let high = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(high))
        }}
        f16_pairs(line: &Line) -> (__m512, __m512) {{
            let pairs = _mm512_load_si512((line as *const Line).cast());
            let low = _mm512_cvtepi32_epi16(pairs);
            let high = _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(pairs));
            (_mm512_cvtph_ps(low), _mm512_cvtph_ps(high))
        }}
        add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        mul_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        min(a: __m512, b: __m512) -> __m512 { _mm512_min_ps(a, b) }
        round(a: __m512) -> __m512 { _mm512_roundscale_ps::<8>(a) }
        pow2(a: __m512) -> __m512 {{
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }}
        greater(a: __m512, b: __m512) -> u16 { _mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b) }
        widen(a: __m512) -> [__m512d; 2] {
            [_mm512_cvtps_pd(_mm512_castps512_ps256(a)), _mm512_cvtps_pd(_mm512_extractf32x8_ps::<1>(a))]
        }
        splat_f64(value: f64) -> __m512d { _mm512_set1_pd(value) }
        store_f64(values: __m512d, to: &mut [f64; LANES_F64]) { _mm512_storeu_pd(to.as_mut_ptr(), values) }
        add_f64(a: __m512d, b: __m512d) -> __m512d { _mm512_add_pd(a, b) }
        sub_f64(a: __m512d, b: __m512d) -> __m512d { _mm512_sub_pd(a, b) }
        mul_f64(a: __m512d, b: __m512d) -> __m512d { _mm512_mul_pd(a, b) }
        div_f64(a: __m512d, b: __m512d) -> __m512d { _mm512_div_pd(a, b) }
        mul_add_f64(a: __m512d, b: __m512d, c: __m512d) -> __m512d { _mm512_fmadd_pd(a, b, c) }
        max_f64(a: __m512d, b: __m512d) -> __m512d { _mm512_max_pd(a, b) }
        min_f64(a: __m512d, b: __m512d) -> __m512d { _mm512_min_pd(a, b) }
        round_f64(a: __m512d) -> __m512d { _mm512_roundscale_pd::<8>(a) }
        pow2_f64(a: __m512d) -> __m512d {{
            let exponent = _mm512_add_epi64(_mm512_cvtpd_epi64(a), _mm512_set1_epi64(1023));
            _mm512_castsi512_pd(_mm512_slli_epi64::<52>(exponent))
        }}
    }
}

/// The same operation on both halves.
macro_rules! halves {
    ($operation:ident($a:ident $(, $more:ident)*)) => {
        [$operation($a[0] $(, $more[0])*), $operation($a[1] $(, $more[1])*)]
    };
}

#[inline]
#[target_feature(enable = "avx2")]
fn bf16_halves(pairs: __m256i) -> (__m256, __m256) {
    let high = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff_0000_u32 as i32));
    (
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)),
        _mm256_castsi256_ps(high),
    )
}

/// The low half of every lane as f16.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn f16_low(pairs: __m256i) -> __m256 {
    let low = _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff));
    let packed = _mm256_packus_epi32(low, low);
    let ordered = _mm256_permute4x64_epi64::<0b1000>(packed);
    _mm256_cvtph_ps(_mm256_castsi256_si128(ordered))
}

#[inline]
#[target_feature(enable = "avx2")]
fn widen_half(a: __m256) -> [__m256d; 2] {
    let high = _mm256_extractf128_ps::<1>(a);
    [
        _mm256_cvtps_pd(_mm256_castps256_ps128(a)),
        _mm256_cvtps_pd(high),
    ]
}

#[inline]
#[target_feature(enable = "avx2")]
fn pow2_half(a: __m256) -> __m256 {
    let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(a), _mm256_set1_epi32(127));
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
}

#[inline]
#[target_feature(enable = "avx2")]
fn pow2_half_f64(a: __m256d) -> __m256d {
    let exponent = _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(a));
    let biased = _mm256_add_epi64(exponent, _mm256_set1_epi64x(1023));
    _mm256_castsi256_pd(_mm256_slli_epi64::<52>(biased))
}

impl Simd for Avx2 {
    type F32 = [__m256; 2];
    type F64 = [__m256d; 2];
    // 16 registers, two a vector
    const TILES: &'static [usize] = &[6, 4, 2, 1];

    #[inline(always)]
    fn run<J: Job>(self, job: J) -> J::Output {
        // SAFETY: as for the methods below.
        unsafe { with_avx2(self, job) }
    }

    methods! {
        prefetch(address: *const Line) { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
        splat(value: f32) -> [__m256; 2] { [_mm256_set1_ps(value); 2] }
        load(from: &[f32; LANES]) -> [__m256; 2] {
            [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))]
        }
        store(values: [__m256; 2], to: &mut [f32; LANES]) {{
            _mm256_storeu_ps(to.as_mut_ptr(), values[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), values[1]);
        }}
        line(line: &Line) -> [__m256; 2] {{
            let start: *const f32 = (line as *const Line).cast();
            [_mm256_load_ps(start), _mm256_load_ps(start.add(8))]
        }}
        bf16_pairs(line: &Line) -> ([__m256; 2], [__m256; 2]) {{
            let start: *const __m256i = (line as *const Line).cast();
            let (a, b) = (bf16_halves(_mm256_load_si256(start)), bf16_halves(_mm256_load_si256(start.add(1))));
            ([a.0, b.0], [a.1, b.1])
        }}
        f16_pairs(line: &Line) -> ([__m256; 2], [__m256; 2]) {{
            let start: *const __m256i = (line as *const Line).cast();
            let (a, b) = (_mm256_load_si256(start), _mm256_load_si256(start.add(1)));
            let (above_a, above_b) = (_mm256_srli_epi32::<16>(a), _mm256_srli_epi32::<16>(b));
            ([f16_low(a), f16_low(b)], [f16_low(above_a), f16_low(above_b)])
        }}
        add(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { halves!(_mm256_add_ps(a, b)) }
        sub(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { halves!(_mm256_sub_ps(a, b)) }
        mul(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { halves!(_mm256_mul_ps(a, b)) }
        div(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { halves!(_mm256_div_ps(a, b)) }
        mul_add(a: [__m256; 2], b: [__m256; 2], c: [__m256; 2]) -> [__m256; 2] { halves!(_mm256_fmadd_ps(a, b, c)) }
        max(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { halves!(_mm256_max_ps(a, b)) }
        min(a: [__m256; 2], b: [__m256; 2]) -> [__m256; 2] { halves!(_mm256_min_ps(a, b)) }
        round(a: [__m256; 2]) -> [__m256; 2] { [_mm256_round_ps::<8>(a[0]), _mm256_round_ps::<8>(a[1])] }
        pow2(a: [__m256; 2]) -> [__m256; 2] { halves!(pow2_half(a)) }
        greater(a: [__m256; 2], b: [__m256; 2]) -> u16 {{
            let low = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a[0], b[0]));
            let high = _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(a[1], b[1]));
            (low | high << 8) as u16
        }}
        widen(a: [__m256; 2]) -> [[__m256d; 2]; 2] {
            halves!(widen_half(a))
        }
        splat_f64(value: f64) -> [__m256d; 2] { [_mm256_set1_pd(value); 2] }
        store_f64(values: [__m256d; 2], to: &mut [f64; LANES_F64]) {{
            _mm256_storeu_pd(to.as_mut_ptr(), values[0]);
            _mm256_storeu_pd(to.as_mut_ptr().add(4), values[1]);
        }}
        add_f64(a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] { halves!(_mm256_add_pd(a, b)) }
        sub_f64(a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] { halves!(_mm256_sub_pd(a, b)) }
        mul_f64(a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] { halves!(_mm256_mul_pd(a, b)) }
        div_f64(a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] { halves!(_mm256_div_pd(a, b)) }
        mul_add_f64(a: [__m256d; 2], b: [__m256d; 2], c: [__m256d; 2]) -> [__m256d; 2] { halves!(_mm256_fmadd_pd(a, b, c)) }
        max_f64(a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] { halves!(_mm256_max_pd(a, b)) }
        min_f64(a: [__m256d; 2], b: [__m256d; 2]) -> [__m256d; 2] { halves!(_mm256_min_pd(a, b)) }
        round_f64(a: [__m256d; 2]) -> [__m256d; 2] { [_mm256_round_pd::<8>(a[0]), _mm256_round_pd::<8>(a[1])] }
        pow2_f64(a: [__m256d; 2]) -> [__m256d; 2] { halves!(pow2_half_f64(a)) }
    }
}
