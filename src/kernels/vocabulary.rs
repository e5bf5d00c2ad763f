//! Passes over the logits of one position: their ends, and the sums of a softmax in f64.

use super::math::{self, load_part};
use super::simd::{Isa, Job, LANES, LANES_F64, Simd};

/// The largest and the smallest finite logit, and whether one is NaN or +inf.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ends {
    /// -inf where no logit is finite.
    pub largest: f32,
    /// +inf where no logit is finite.
    pub smallest: f32,
    /// Then the others mean nothing.
    pub is_broken: bool,
}

/// Returns the ends of some logits.
pub fn ends(isa: Isa, logits: &[f32]) -> Ends {
    isa.run(FindEnds(logits))
}

struct FindEnds<'a>(&'a [f32]);

impl Job for FindEnds<'_> {
    type Output = Ends;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Ends {
        let mut largest = simd.splat(f32::NEG_INFINITY);
        let mut smallest = simd.splat(f32::INFINITY);
        let mut is_broken = false;
        for chunk in self.0.chunks(LANES) {
            let logits = load_part(simd, chunk, f32::NEG_INFINITY);
            // NaN is not below infinity either
            is_broken |= simd.greater(simd.splat(f32::INFINITY), logits) != u16::MAX;
            largest = simd.max(logits, largest);
            let mut finite = [0.0; LANES];
            simd.store(logits, &mut finite);
            for logit in &mut finite {
                *logit = if *logit > f32::NEG_INFINITY {
                    *logit
                } else {
                    f32::INFINITY
                };
            }
            smallest = simd.min(simd.load(&finite), smallest);
        }
        let mut lanes = [0.0; LANES];
        simd.store(smallest, &mut lanes);
        Ends {
            largest: math::max(simd, largest),
            smallest: lanes.into_iter().fold(f32::INFINITY, f32::min),
            is_broken,
        }
    }
}

/// Sums over `weight = exp((logit - max) / temperature)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sums {
    /// Σ weight.
    pub weight: f64,
    /// Σ weight · (logit - max) / temperature; -inf logits add nothing.
    pub weighted: f64,
}

/// Returns the sums over logits of at most `max`, and adds each weight to that of its bin; `temperature` is above 0.
///
/// # Panics
/// When there are fewer bins than logits, or a bin has no place in `weights`.
pub fn weigh(
    isa: Isa,
    logits: &[f32],
    max: f32,
    temperature: f64,
    bins: &[u16],
    weights: &mut [f64],
) -> Sums {
    assert!(bins.len() >= logits.len(), "a bin for every logit");
    isa.run(Weigh {
        logits,
        max,
        temperature,
        bins,
        weights,
    })
}

struct Weigh<'a> {
    logits: &'a [f32],
    max: f32,
    temperature: f64,
    bins: &'a [u16],
    weights: &'a mut [f64],
}

impl Job for Weigh<'_> {
    type Output = Sums;

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Sums {
        let max = simd.splat_f64(f64::from(self.max));
        let temperature = simd.splat_f64(self.temperature);
        let lowest = simd.splat_f64(-800.0);
        let mut sums = [simd.splat_f64(0.0); 4];
        for (chunk, bins) in self.logits.chunks(LANES).zip(self.bins.chunks(LANES)) {
            let logits = simd.widen(load_part(simd, chunk, f32::NEG_INFINITY));
            let mut lanes = [[0.0; LANES_F64]; 2];
            for (half, logits) in logits.into_iter().enumerate() {
                let mut shifted = simd.sub_f64(logits, max);
                if self.temperature != 1.0 {
                    shifted = simd.div_f64(shifted, temperature);
                }
                let weight = math::exp_f64(simd, shifted);
                simd.store_f64(weight, &mut lanes[half]);
                sums[half] = simd.add_f64(sums[half], weight);
                // where the weight is 0, so is its product with a number that is finite
                let finite = simd.max_f64(shifted, lowest);
                sums[2 + half] = simd.mul_add_f64(weight, finite, sums[2 + half]);
            }
            for (weight, &bin) in lanes.as_flattened().iter().zip(bins) {
                self.weights[usize::from(bin)] += weight;
            }
        }
        let [first, second, third, fourth] = sums;
        Sums {
            weight: math::sum_f64(simd, simd.add_f64(first, second)),
            weighted: math::sum_f64(simd, simd.add_f64(third, fourth)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_those_of_what_is_finite() {
        let inf = f32::INFINITY;
        for isa in Isa::available() {
            let of = |logits: &[f32]| {
                let Ends {
                    largest,
                    smallest,
                    is_broken,
                } = ends(isa, logits);
                (largest, smallest, is_broken)
            };
            let many: Vec<f32> = (0..100).map(|i| ((i * 37) % 100) as f32).collect();
            assert_eq!(of(&many), (99.0, 0.0, false));
            assert_eq!(of(&[-inf, -3.0, -2.0]), (-2.0, -3.0, false));
            assert_eq!(of(&[-inf; 20]), (-inf, inf, false));
            assert_eq!(of(&[]), (-inf, inf, false));
            assert!(of(&[1.0, f32::NAN]).2 && of(&[inf, 1.0]).2);
        }
    }

    /// Three bins in turn.
    fn weighed(isa: Isa, logits: &[f32], max: f32, temperature: f64) -> (Sums, [f64; 3]) {
        let bins: Vec<u16> = (0..logits.len()).map(|index| (index % 3) as u16).collect();
        let mut weights = [0.0; 3];
        let sums = weigh(isa, logits, max, temperature, &bins, &mut weights);
        (sums, weights)
    }

    #[test]
    fn sums_are_those_of_the_standard_library_to_rounding() {
        let logits: Vec<f32> = (0..1003)
            .map(|i| (i as f32 * 0.37).sin() * 40.0 - 3.0)
            .collect();
        let with_gaps: Vec<f32> = logits
            .iter()
            .copied()
            .chain([f32::NEG_INFINITY; 3])
            .collect();
        for temperature in [0.3, 1.0, 7.0] {
            let shifted = logits.iter().map(|l| (f64::from(*l) - 37.0) / temperature);
            let weight: f64 = shifted.clone().map(f64::exp).sum();
            let weighted: f64 = shifted.clone().map(|x| x.exp() * x).sum();
            for isa in Isa::available() {
                let (ours, bins) = weighed(isa, &with_gaps, 37.0, temperature);
                assert!((ours.weight / weight - 1.0).abs() < 1e-14);
                assert!((ours.weighted / weighted - 1.0).abs() < 1e-13);
                for (bin, ours) in bins.into_iter().enumerate() {
                    let of_bin = shifted.clone().skip(bin).step_by(3);
                    let expected: f64 = of_bin.map(f64::exp).sum();
                    assert!((ours / expected - 1.0).abs() < 1e-13);
                }
                let current = weighed(Isa::current(), &with_gaps, 37.0, temperature);
                assert_eq!((ours, bins), current);
            }
        }
    }

    #[test]
    fn the_smallest_temperatures_leave_the_best() {
        for temperature in [1e-30, f64::MIN_POSITIVE, 5e-324] {
            let logits = [3.0, 2.0, f32::NEG_INFINITY];
            let (ours, _) = weighed(Isa::current(), &logits, 3.0, temperature);
            assert_eq!(ours.weight, 1.0);
        }
    }
}
