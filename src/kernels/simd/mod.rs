//! Vectors of sixteen numbers, whatever the processor: the one vocabulary that every kernel is written in.
//!
//! A kernel is a generic [`Job`] over [`Simd`]; [`Isa`] says which processor's instructions run it. Every operation is one
//! IEEE operation on each lane, and a vector has sixteen lanes (eight in f64) on every processor: so a kernel's results are
//! the same bits on all of them. What a processor has not, [`Portable`] does lane by lane (fused multiply-add included:
//! exact everywhere, slow where the processor has none).

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

#[cfg(target_arch = "x86_64")]
pub use amx::Amx;
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;
pub(super) use portable::f16;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// Lanes of a vector of f32.
pub const LANES: usize = 16;
/// Lanes of a vector of f64.
pub const LANES_F64: usize = 8;

/// One cache line of weights or numbers, aligned to one.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub [u32; LANES]);

impl Line {
    /// Sixteen zeros of any type.
    pub const ZERO: Self = Self([0; LANES]);
}

/// Proof that a processor's instructions may be used, and the operations themselves.
///
/// A value can be had only where the processor was asked, so that the operations are safe.
pub trait Simd: Copy + Send + Sync {
    /// Sixteen f32.
    type F32: Copy;
    /// Eight f64.
    type F64: Copy;
    /// How many rows a product may keep in registers at once, largest first; the last is 1.
    const TILES: &'static [usize];

    /// Runs a job compiled for these instructions.
    fn run<J: Job>(self, job: J) -> J::Output;

    /// Asks for the cache line at `address`, which need not be readable.
    fn prefetch(self, address: *const Line);

    /// The same number in every lane.
    fn splat(self, value: f32) -> Self::F32;
    /// Sixteen consecutive numbers.
    fn load(self, from: &[f32; LANES]) -> Self::F32;
    /// Writes the lanes in order.
    fn store(self, values: Self::F32, to: &mut [f32; LANES]);
    /// The numbers of a line.
    fn line(self, line: &Line) -> Self::F32;
    /// Lane `i` is the low (first vector) and the high (second) half of `line[i]`, read as bf16: exact.
    fn bf16_pairs(self, line: &Line) -> (Self::F32, Self::F32);
    /// As [`bf16_pairs`](Self::bf16_pairs) for finite f16.
    fn f16_pairs(self, line: &Line) -> (Self::F32, Self::F32);
    /// `a + b`.
    fn add(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a - b`.
    fn sub(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b`.
    fn mul(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a / b`.
    fn div(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a * b + c`, rounded once.
    fn mul_add(self, a: Self::F32, b: Self::F32, c: Self::F32) -> Self::F32;
    /// `a` where `a > b`, else `b`.
    fn max(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// `a` where `a < b`, else `b`.
    fn min(self, a: Self::F32, b: Self::F32) -> Self::F32;
    /// The nearest whole number, ties to even.
    fn round(self, a: Self::F32) -> Self::F32;
    /// 2 to the power of whole numbers in [-126, 127].
    fn pow2(self, a: Self::F32) -> Self::F32;
    /// In how many lanes `a > b`; bit `i` of the mask is lane `i`.
    fn greater(self, a: Self::F32, b: Self::F32) -> u16;

    /// The lanes as f64, the first eight and the last.
    fn widen(self, a: Self::F32) -> [Self::F64; 2];
    /// The same number in every lane.
    fn splat_f64(self, value: f64) -> Self::F64;
    /// Writes the lanes in order.
    fn store_f64(self, values: Self::F64, to: &mut [f64; LANES_F64]);
    /// `a + b`.
    fn add_f64(self, a: Self::F64, b: Self::F64) -> Self::F64;
    /// `a - b`.
    fn sub_f64(self, a: Self::F64, b: Self::F64) -> Self::F64;
    /// `a * b`.
    fn mul_f64(self, a: Self::F64, b: Self::F64) -> Self::F64;
    /// `a / b`.
    fn div_f64(self, a: Self::F64, b: Self::F64) -> Self::F64;
    /// `a * b + c`, rounded once.
    fn mul_add_f64(self, a: Self::F64, b: Self::F64, c: Self::F64) -> Self::F64;
    /// `a` where `a > b`, else `b`.
    fn max_f64(self, a: Self::F64, b: Self::F64) -> Self::F64;
    /// `a` where `a < b`, else `b`.
    fn min_f64(self, a: Self::F64, b: Self::F64) -> Self::F64;
    /// The nearest whole number, ties to even.
    fn round_f64(self, a: Self::F64) -> Self::F64;
    /// 2 to the power of whole numbers in [-1022, 1023].
    fn pow2_f64(self, a: Self::F64) -> Self::F64;
}

/// A computation that is written once for all processors; `run` must be `#[inline(always)]`, as all that it calls.
pub trait Job {
    /// What it returns.
    type Output;
    /// Does it.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// A set of instructions that this processor has.
#[derive(Debug, Clone, Copy)]
pub enum Isa {
    /// Matrix tiles for products with bf16 weights, 512-bit vectors for everything else.
    #[cfg(target_arch = "x86_64")]
    Amx(Amx),
    /// 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// 256-bit vectors and fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// 128-bit vectors of aarch64.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
    /// What the compiler makes of plain loops.
    Portable(Portable),
}

/// Names one of the [`Isa`]s of this processor, so that results of another machine can be repeated.
pub const ISA_VARIABLE: &str = "LOGPROBS_ISA";

impl Isa {
    /// Returns all that this processor has, best first.
    pub fn available() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(Amx::detect().map(Self::Amx));
            all.extend(Avx512::detect().map(Self::Avx512));
            all.extend(Avx2::detect().map(Self::Avx2));
        }
        #[cfg(target_arch = "aarch64")]
        all.extend(Neon::detect().map(Self::Neon));
        all.push(Self::Portable(Portable));
        all
    }

    /// Returns its name: `amx`, `avx512`, `avx2`, `neon`, `portable`.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) => "amx",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => "neon",
            Self::Portable(_) => "portable",
        }
    }

    /// Returns the proof that products may use tiles, if this set has them.
    #[cfg(target_arch = "x86_64")]
    pub fn amx(self) -> Option<Amx> {
        match self {
            Self::Amx(amx) => Some(amx),
            _ => None,
        }
    }

    /// Whether products with bf16 weights run on matrix tiles.
    pub fn has_tiles(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(_) => true,
            _ => false,
        }
    }

    /// Whether every kernel gives the same bits as with another set: all do but tiles, which sum a product in their own order.
    pub fn has_bits_of(self, other: Self) -> bool {
        self.has_tiles() == other.has_tiles()
    }

    /// Returns the one that this process uses: what `LOGPROBS_ISA` names when it was first asked, else the best.
    pub fn current() -> Self {
        static CURRENT: OnceLock<Isa> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let wanted = std::env::var(ISA_VARIABLE).unwrap_or_default();
            let all = Self::available();
            let named = all.iter().find(|isa| isa.name() == wanted);
            *named.unwrap_or(&all[0])
        })
    }

    /// Runs a job on this processor.
    #[inline]
    pub fn run<J: Job>(self, job: J) -> J::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(amx) => amx.vectors().run(job),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => simd.run(job),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(simd) => simd.run(job),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(simd) => simd.run(job),
            Self::Portable(simd) => simd.run(job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of every kind: ties, both zeros, subnormals, infinities, NaN.
    fn numbers() -> Vec<[f32; LANES]> {
        let special = [
            0.0,
            -0.0,
            0.5,
            -1.5,
            2.5,
            1e-40,
            -3e-39,
            f32::MIN_POSITIVE,
            f32::MAX,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            1.0,
            -87.3,
            88.0,
            1e30,
        ];
        let mut bits = 1u32;
        let mut random = || {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (bits >> 8) as f32 / 1e6 - 8.0
        };
        let mut all = vec![special];
        all.extend((0..15).map(|_| std::array::from_fn(|_| random())));
        // every special number meets every other one
        all.extend((1..LANES).map(|turn| std::array::from_fn(|i| special[(i + turn) % LANES])));
        all
    }

    /// All operations on all pairs of vectors, as bits; every NaN is the same.
    struct Everything;

    impl Job for Everything {
        type Output = Vec<u64>;

        fn run<S: Simd>(self, s: S) -> Vec<u64> {
            let mut bits = Vec::new();
            let mut keep = |values: S::F32| {
                let mut lanes = [0.0; LANES];
                s.store(values, &mut lanes);
                let clean = |x: f32| u64::from(if x.is_nan() { u32::MAX } else { x.to_bits() });
                bits.extend(lanes.map(clean));
            };
            let mut wide = Vec::new();
            let mut keep_f64 = |values: S::F64| {
                let mut lanes = [0.0; LANES_F64];
                s.store_f64(values, &mut lanes);
                wide.extend(lanes.map(|x| if x.is_nan() { u64::MAX } else { x.to_bits() }));
            };
            let mut masks = Vec::new();
            let all = numbers();
            for (index, a) in all.iter().enumerate() {
                let b = &all[(index * 7 + 3) % all.len()];
                let c = s.load(&all[(index * 5 + 1) % all.len()]);
                let (a, b) = (s.load(a), s.load(b));
                for result in [
                    s.add(a, b),
                    s.sub(a, b),
                    s.mul(a, b),
                    s.div(a, b),
                    s.mul_add(a, b, c),
                    s.max(a, b),
                    s.min(a, b),
                    s.round(a),
                    s.splat(all[index][0]),
                ] {
                    keep(result);
                }
                masks.push(u64::from(s.greater(a, b)));
                for (a, b) in s.widen(a).into_iter().zip(s.widen(b)) {
                    let third = s.splat_f64(1.0 / 3.0);
                    for result in [
                        s.add_f64(a, third),
                        s.sub_f64(a, b),
                        s.mul_f64(a, third),
                        s.div_f64(a, b),
                        s.mul_add_f64(a, b, third),
                        s.max_f64(a, b),
                        s.min_f64(a, b),
                        s.round_f64(a),
                    ] {
                        keep_f64(result);
                    }
                }
                let line = Line(std::array::from_fn(|lane| all[index][lane].to_bits()));
                keep(s.line(&line));
                let (low, high) = s.bf16_pairs(&line);
                keep(low);
                keep(high);
            }
            for power in -126..=127 {
                keep(s.pow2(s.splat(power as f32)));
            }
            for power in -1022..=1023 {
                keep_f64(s.pow2_f64(s.splat_f64(f64::from(power))));
            }
            let finite = (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00);
            let finite: Vec<u32> = finite.map(u32::from).collect();
            for halves in finite.as_chunks::<LANES>().0 {
                let (low, high) = s.f16_pairs(&Line(halves.map(|half| half | half << 16)));
                keep(low);
                keep(high);
            }
            bits.extend(wide);
            bits.extend(masks);
            bits
        }
    }

    #[test]
    fn every_processor_gives_the_same_bits() {
        let expected = Portable.run(Everything);
        for isa in Isa::available() {
            assert!(isa.run(Everything) == expected, "{}", isa.name());
        }
    }

    #[test]
    fn halves_are_read_exactly() {
        assert_eq!(f16(0x3c00), 1.0);
        assert_eq!(f16(0xc000), -2.0);
        assert_eq!(f16(0x0001), 2f32.powi(-24));
        assert_eq!(f16(0x7bff), 65504.0);
        assert_eq!(f16(0x8000).to_bits(), (-0f32).to_bits());
        let one_and_two = Line([0x4000_3f80; LANES]);
        assert_eq!(Portable.bf16_pairs(&one_and_two).0, [1.0; LANES]);
        assert_eq!(Portable.bf16_pairs(&one_and_two).1, [2.0; LANES]);
    }
}
