//! Exponentials and sums over lanes, from the operations of [`Simd`] alone, so that every processor gives the same bits.

use super::simd::{LANES, LANES_F64, Simd};

/// ln 2, its first part exact in 15 bits so that whole multiples of it are exact.
const LN_2: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];
/// As [`LN_2`], for f64: the first part has 32 bits.
const LN_2_F64: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];

/// e to the power of every lane; 0 below -87.33, where the result would be subnormal; NaN stays NaN. Arguments are at most 88.
///
/// Constants come first in `max` and `min`: those return their second argument when it is NaN.
///
/// e^x = 2^n e^r with n whole and |r| ≤ ln 2 / 2; e^r is its Taylor sum to r^7, whose remainder is 5e-9. Relative errors stay
/// below 1.5e-7, about two units in the last place; a test holds it.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F32) -> S::F32 {
    const LOWEST: f32 = -87.33;
    let clamped = s.max(s.splat(LOWEST), x);
    let n = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let r = s.mul_add(n, s.splat(-LN_2[0]), clamped);
    let r = s.mul_add(n, s.splat(-LN_2[1]), r);
    let mut sum = s.splat(1.0 / 5040.0);
    for factor in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = s.mul_add(sum, r, s.splat(factor));
    }
    // the clamped lanes: 1 where x is at least LOWEST, else 0
    let above = s.mul(s.sub(x, s.splat(LOWEST.next_down())), s.splat(f32::MAX));
    let is_normal = s.min(s.splat(1.0), s.max(s.splat(0.0), above));
    s.mul(s.mul(sum, s.pow2(n)), is_normal)
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let negative = s.sub(s.splat(0.0), x);
    let weight = exp(s, s.min(s.splat(88.0), negative));
    s.div(s.splat(1.0), s.add(s.splat(1.0), weight))
}

/// x / (1 + e^-x).
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::F32) -> S::F32 {
    let negative = s.sub(s.splat(0.0), x);
    let weight = exp(s, s.min(s.splat(88.0), negative));
    s.div(x, s.add(s.splat(1.0), weight))
}

/// e to the power of every lane, for arguments of at most 700; 0 below -708, where the result would be subnormal.
///
/// As [`exp`], with the Taylor sum to r^13, whose remainder is 4e-18. Relative errors stay below
/// 5e-16.
#[inline(always)]
pub fn exp_f64<S: Simd>(s: S, x: S::F64) -> S::F64 {
    const LOWEST: f64 = -708.0;
    let clamped = s.max_f64(s.splat_f64(LOWEST), x);
    let n = s.round_f64(s.mul_f64(clamped, s.splat_f64(std::f64::consts::LOG2_E)));
    let r = s.mul_add_f64(n, s.splat_f64(-LN_2_F64[0]), clamped);
    let r = s.mul_add_f64(n, s.splat_f64(-LN_2_F64[1]), r);
    let mut sum = s.splat_f64(1.0 / 6_227_020_800.0);
    for factor in [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = s.mul_add_f64(sum, r, s.splat_f64(factor));
    }
    let above = s.mul_f64(
        s.sub_f64(x, s.splat_f64(LOWEST.next_down())),
        s.splat_f64(f64::MAX),
    );
    let is_normal = s.min_f64(s.splat_f64(1.0), s.max_f64(s.splat_f64(0.0), above));
    s.mul_f64(s.mul_f64(sum, s.pow2_f64(n)), is_normal)
}

/// The sum of all lanes, in one order: halves are added to each other until one number is left.
#[inline(always)]
pub fn sum<S: Simd>(s: S, values: S::F32) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(values, &mut lanes);
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// As [`sum`], in f64.
#[inline(always)]
pub fn sum_f64<S: Simd>(s: S, values: S::F64) -> f64 {
    let mut lanes = [0.0; LANES_F64];
    s.store_f64(values, &mut lanes);
    let mut width = LANES_F64 / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The largest lane.
#[inline(always)]
pub fn max<S: Simd>(s: S, values: S::F32) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(values, &mut lanes);
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Up to sixteen numbers; lanes without one are `fill`.
#[inline(always)]
pub fn load_part<S: Simd>(s: S, from: &[f32], fill: f32) -> S::F32 {
    match from.first_chunk::<LANES>() {
        Some(whole) => s.load(whole),
        None => {
            let mut lanes = [fill; LANES];
            lanes[..from.len()].copy_from_slice(from);
            s.load(&lanes)
        }
    }
}

/// Writes as many lanes as there is room for.
#[inline(always)]
pub fn store_part<S: Simd>(s: S, values: S::F32, to: &mut [f32]) {
    match to.first_chunk_mut::<LANES>() {
        Some(whole) => s.store(values, whole),
        None => {
            let mut lanes = [0.0; LANES];
            s.store(values, &mut lanes);
            to.copy_from_slice(&lanes[..to.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::simd::{Isa, Job};

    struct Exp<'a>(&'a [f32]);

    impl Job for Exp<'_> {
        type Output = Vec<[f32; 3]>;

        fn run<S: Simd>(self, s: S) -> Vec<[f32; 3]> {
            let mut results = Vec::new();
            for xs in self.0.chunks(LANES) {
                let xs = load_part(s, xs, 0.0);
                let mut columns = [[0.0; LANES]; 3];
                s.store(exp(s, xs), &mut columns[0]);
                s.store(sigmoid(s, xs), &mut columns[1]);
                s.store(silu(s, xs), &mut columns[2]);
                results.extend((0..LANES).map(|lane| columns.map(|column| column[lane])));
            }
            results
        }
    }

    #[test]
    fn exponentials_are_within_two_units_in_the_last_place() {
        let xs: Vec<f32> = (0..1_000_000).map(|i| i as f32 * 1.75e-4 - 87.3).collect();
        let mut worst = [0f64; 3];
        for isa in Isa::available() {
            for (&x, results) in xs.iter().zip(isa.run(Exp(&xs))) {
                let exact = f64::from(x).exp();
                let sigmoid = 1.0 / (1.0 + f64::from(-x).exp());
                for (index, exact) in [exact, sigmoid, f64::from(x) * sigmoid]
                    .into_iter()
                    .enumerate()
                {
                    let off = (f64::from(results[index]) - exact).abs();
                    worst[index] = worst[index].max(off / exact.abs().max(f64::MIN_POSITIVE));
                }
            }
        }
        assert!(worst[0] < 1.5e-7, "{worst:?}");
        assert!(worst[1] < 3e-7 && worst[2] < 4e-7, "{worst:?}");
    }

    #[test]
    fn the_ends_are_zero_and_nan_stays_nan() {
        let xs = [
            f32::NEG_INFINITY,
            -200.0,
            -87.4,
            0.0,
            f32::NAN,
            200.0,
            -88.5,
        ];
        for isa in Isa::available() {
            let results = isa.run(Exp(&xs));
            assert_eq!([results[0][0], results[1][0], results[2][0]], [0.0; 3]);
            assert_eq!(results[3], [1.0, 0.5, 0.0]);
            assert!(results[4].iter().all(|result| result.is_nan()));
            assert_eq!(results[5][1..], [1.0, 200.0]);
            assert!(results[6][1] >= 0.0 && results[6][1] < 1e-37);
        }
    }

    struct ExpF64(f64);

    impl Job for ExpF64 {
        type Output = f64;

        fn run<S: Simd>(self, s: S) -> f64 {
            let mut lanes = [0.0; LANES_F64];
            s.store_f64(exp_f64(s, s.splat_f64(self.0)), &mut lanes);
            lanes[0]
        }
    }

    #[test]
    fn wide_exponentials_are_within_two_units_in_the_last_place() {
        for isa in Isa::available() {
            for i in 0..100_000 {
                let x = f64::from(i) * -7.08e-3;
                let (ours, exact) = (isa.run(ExpF64(x)), x.exp());
                assert!((ours / exact - 1.0).abs() < 5e-16, "{x}: {ours} {exact}");
            }
            assert_eq!(isa.run(ExpF64(0.0)), 1.0);
            assert_eq!(isa.run(ExpF64(f64::NEG_INFINITY)), 0.0);
            assert_eq!(isa.run(ExpF64(-750.0)), 0.0);
        }
    }

    #[test]
    fn lanes_are_added_by_halves() {
        // each 1 alone would be lost beside 1e8
        let lanes: [f32; LANES] = std::array::from_fn(|i| if i == 0 { 1e8 } else { 1.0 });
        struct Sum([f32; LANES]);
        impl Job for Sum {
            type Output = [f32; 2];
            fn run<S: Simd>(self, s: S) -> [f32; 2] {
                let values = s.load(&self.0);
                [sum(s, values), max(s, values)]
            }
        }
        for isa in Isa::available() {
            assert_eq!(
                isa.run(Sum(std::array::from_fn(|i| i as f32))),
                [120.0, 15.0]
            );
            assert_eq!(isa.run(Sum(lanes))[0], 1e8 + 8.0);
        }
    }
}
