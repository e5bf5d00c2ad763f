//! One step's distribution over the vocabulary: log-softmax, order, rank, mass, entropy, and what filters keep of it.
//!
//! Logits are f32 as the model gave them; every sum and exponential is f64. Candidates are ordered by falling logit,
//! ties by lower id, everywhere. [`Distribution::from_logits`] is the only door that can refuse a row of logits. Here the
//! whole vocabulary was seen; [`shown`] is what is certain of it where only its best candidates were, and [`outlook`] either of
//! the two. Filters follow transformers' logits warpers.

pub mod outlook;
pub mod shown;

use std::borrow::Cow;

use anyhow::{Result, ensure};

use crate::kernels::{Isa, vocabulary};
use crate::ranking::Ranking;
use crate::setting::Setting;

/// How far a sum of probabilities may fall short of a mass and still reach it: 0.5 and 0.3 that come from f32 logits
/// reach 0.8. An f32 logit of magnitude 16 has steps of 2e-6, halves of which end up in the sum.
pub const MASS_TOLERANCE: f64 = 1e-6;

/// Fewer candidates than these are weighed one by one: a pass over a large vocabulary takes longer.
const FEW: usize = 1024;

/// The model's own distribution of the next token: softmax at temperature 1 over every row of the output layer.
#[derive(Debug, Clone)]
pub struct Distribution {
    logits: Vec<f32>,
    ranking: Ranking,
    /// The best candidate, and the second where there is one.
    best: Vec<u32>,
    max: f64,
    /// `exp(logit - max)`, summed over each bin of the ranking and over all.
    weights: Weights<'static>,
    /// `ln total`.
    log_sum: f64,
    /// In nats.
    entropy: f64,
}

impl Distribution {
    /// Normalises the logits of one position; -inf is a candidate without any probability.
    ///
    /// # Errors
    /// When there is no logit, one is NaN or +inf, or none is finite.
    pub fn from_logits(logits: Vec<f32>) -> Result<Self> {
        ensure!(!logits.is_empty(), "the model gave no logits");
        let isa = Isa::current();
        let ends = vocabulary::ends(isa, &logits);
        if let Some(id) = logits
            .iter()
            .position(|logit| ends.is_broken && (logit.is_nan() || *logit == f32::INFINITY))
        {
            anyhow::bail!(
                "the logit of token id {id} is {} (expected a finite number; the weights may be damaged or overflow in this dtype)",
                logits[id]
            );
        }
        ensure!(
            ends.largest.is_finite(),
            "every logit is -inf (expected at least one finite number)"
        );
        let ranking = Ranking::new(&logits, ends.largest, ends.smallest);
        let mut bins = vec![0.0; ranking.sizes().len()];
        let sums = vocabulary::weigh(isa, &logits, ends.largest, 1.0, ranking.bins(), &mut bins);
        let log_sum = sums.weight.ln();
        Ok(Self {
            best: ranking.best(&logits, 2),
            logits,
            ranking,
            max: f64::from(ends.largest),
            weights: Weights {
                temperature: 1.0,
                bins: bins.into(),
                total: sums.weight,
            },
            log_sum,
            entropy: (log_sum - sums.weighted / sums.weight).max(0.0),
        })
    }

    /// Returns the number of candidates: all rows of the output layer.
    pub fn vocab_size(&self) -> usize {
        self.logits.len()
    }

    /// Returns the id of the best candidate.
    pub fn argmax(&self) -> u32 {
        self.best[0]
    }

    /// Returns the ids of the best candidates, best first; all of them where `count` is larger.
    pub fn best(&self, count: usize) -> Vec<u32> {
        self.ranking.best(&self.logits, count)
    }

    /// Returns the raw score of a token.
    pub fn logit(&self, id: u32) -> f32 {
        self.logits[id as usize]
    }

    /// Returns the natural logarithm of a token's probability: at most 0, never -0; -inf only where the logit is.
    pub fn logprob(&self, id: u32) -> f64 {
        (f64::from(self.logit(id)) - self.max - self.log_sum).min(0.0) + 0.0
    }

    /// Returns a token's probability, in [0, 1].
    pub fn prob(&self, id: u32) -> f64 {
        self.logprob(id).exp()
    }

    /// Returns a token's place in the order, 1 for the best.
    pub fn rank(&self, id: u32) -> usize {
        self.ranking.rank(&self.logits, id)
    }

    /// Returns the smallest number of best candidates whose probabilities reach `mass`: at least 1, at most all.
    pub fn mass_count(&self, mass: f64) -> usize {
        let needed = (mass - MASS_TOLERANCE) * self.weights.total;
        let walk = self.walk(&self.weights, self.vocab_size(), |sum| sum >= needed);
        walk.count
    }

    /// Returns the entropy in bits: 0 for a certainty, log2 of the vocabulary for no idea at all.
    pub fn entropy_bits(&self) -> f64 {
        self.entropy / std::f64::consts::LN_2
    }

    /// Returns the best logit minus the second; `None` where no second candidate has any probability.
    pub fn margin(&self) -> Option<f32> {
        let second = *self.best.get(1)?;
        let margin = self.logit(self.argmax()) - self.logit(second);
        margin.is_finite().then_some(margin)
    }

    /// Returns every token's probability after dividing the logits by `temperature`, in id order; 0 is one-hot.
    pub fn probs_at(&self, temperature: f64) -> Vec<f64> {
        let total = match temperature {
            0.0 => 1.0,
            _ => self.weights(temperature, self.vocab_size()).total,
        };
        (0u32..)
            .zip(&self.logits)
            .map(|(id, &logit)| match temperature {
                1.0 => self.prob(id),
                0.0 => f64::from(u8::from(id == self.argmax())),
                _ => self.weight(logit, temperature) / total,
            })
            .collect()
    }

    /// Returns what temperature and filters leave to draw from.
    pub fn filtered(&self, setting: &Setting) -> Filtered<'_> {
        let temperature = setting.temperature();
        let all = self.vocab_size();
        let mut kept = match setting.top_k() {
            _ if temperature == 0.0 => 1,
            0 => all,
            top_k => top_k.min(all),
        };
        let weights = self.weights(temperature, kept);
        let sum_of = |kept: usize| match kept == all {
            true => weights.total,
            false => self.walk(&weights, kept, |_| false).sum,
        };
        let mut total = sum_of(kept);
        if setting.top_p() < 1.0 {
            let needed = (setting.top_p() - MASS_TOLERANCE) * total;
            let nucleus = self.walk(&weights, kept, |sum| sum >= needed);
            (kept, total) = (nucleus.count, nucleus.sum);
        }
        if setting.min_p() > 0.0 {
            // the best candidate's weight is 1, so a weight is its share of the best
            let passing = self.num_weighing(temperature, setting.min_p());
            if passing < kept {
                kept = passing.max(1);
                total = sum_of(kept);
            }
        }
        Filtered {
            distribution: self,
            weights,
            kept,
            total,
        }
    }

    /// Adds up the weights of the best `most` candidates, best first, until `is_enough` of the sum.
    fn walk(&self, weights: &Weights, most: usize, is_enough: impl Fn(f64) -> bool) -> Walk {
        let mut walk = Walk {
            count: 0,
            sum: 0.0,
            enough: None,
        };
        for (bin, (size, weight)) in self.ranking.sizes().zip(&*weights.bins).enumerate() {
            let room = most - walk.count;
            if room == 0 {
                break;
            }
            // a bin that fits and does not suffice is taken whole
            let sum = walk.sum + weight;
            if size <= room && !is_enough(sum) {
                walk.sum = sum;
                walk.count += size;
                continue;
            }
            for id in self
                .ranking
                .sorted(&self.logits, bin)
                .into_iter()
                .take(room)
            {
                walk.sum += self.weight(self.logit(id), weights.temperature);
                walk.count += 1;
                if is_enough(walk.sum) {
                    walk.enough = Some(id);
                    return walk;
                }
            }
        }
        walk
    }

    /// Returns how many candidates weigh at least `least`, which is above 0.
    fn num_weighing(&self, temperature: f64, least: f64) -> usize {
        // far from the border a comparison decides, as the exponential would
        let border = temperature * least.ln();
        let near = 1e-9 * (border.abs() + temperature);
        let passes = |&&logit: &&f32| match f64::from(logit) - self.max - border {
            above if above.abs() > near => above > 0.0,
            _ => self.weight(logit, temperature) >= least,
        };
        self.logits.iter().filter(passes).count()
    }

    /// `exp((logit - max) / temperature)`: 1 for the best, and at temperature 0 for what equals it alone.
    fn weight(&self, logit: f32, temperature: f64) -> f64 {
        let shifted = f64::from(logit) - self.max;
        match temperature {
            0.0 => f64::from(u8::from(shifted == 0.0)),
            // 0 / T is 0 for the smallest T too; a negative number may become -inf, whose weight is 0
            _ => (shifted / temperature).exp(),
        }
    }

    /// Returns the weights of at least the best `most` candidates at a temperature; at 0 only the best is asked for.
    fn weights(&self, temperature: f64, most: usize) -> Weights<'_> {
        if temperature == 1.0 {
            return Weights {
                bins: Cow::Borrowed(&self.weights.bins),
                ..self.weights
            };
        }
        let mut bins = vec![0.0; self.weights.bins.len()];
        let of_bins = self.ranking.bins();
        let total = if temperature == 0.0 || most < FEW.min(self.vocab_size()) {
            for id in self.best(most) {
                bins[usize::from(of_bins[id as usize])] += self.weight(self.logit(id), temperature);
            }
            bins.iter().sum()
        } else {
            let (isa, max) = (Isa::current(), self.max as f32);
            vocabulary::weigh(isa, &self.logits, max, temperature, of_bins, &mut bins).weight
        };
        Weights {
            temperature,
            bins: bins.into(),
            total,
        }
    }
}

/// What candidates weigh at a temperature.
#[derive(Debug, Clone)]
struct Weights<'a> {
    temperature: f64,
    /// Together in each bin of the ranking.
    bins: Cow<'a, [f64]>,
    /// Of all that were weighed.
    total: f64,
}

/// How far a walk over the best candidates came.
struct Walk {
    /// Candidates that were added up.
    count: usize,
    /// Their weights' sum.
    sum: f64,
    /// The candidate with which the sum was enough.
    enough: Option<u32>,
}

/// What temperature and filters leave of a distribution: the best `kept` candidates, renormalised.
#[derive(Debug, Clone)]
pub struct Filtered<'a> {
    distribution: &'a Distribution,
    weights: Weights<'a>,
    kept: usize,
    total: f64,
}

impl Filtered<'_> {
    /// Returns how many candidates are kept: at least 1.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// Returns the raw mass of the kept candidates, in (0, 1].
    pub fn kept_mass(&self) -> f64 {
        if self.kept == self.distribution.vocab_size() {
            return 1.0;
        }
        let weights = &self.distribution.weights;
        let kept = self.distribution.walk(weights, self.kept, |_| false);
        (kept.sum / weights.total).min(1.0)
    }

    /// Returns the kept candidates with their probabilities after temperature and filters, best first.
    pub fn candidates(&self) -> impl Iterator<Item = (u32, f64)> {
        let kept = self.distribution.best(self.kept);
        kept.into_iter().map(|id| (id, self.prob(id)))
    }

    /// Returns the probability that a kept token is drawn.
    pub fn prob(&self, id: u32) -> f64 {
        let logit = self.distribution.logit(id);
        (self.distribution.weight(logit, self.weights.temperature) / self.total).min(1.0)
    }

    /// Returns the token that `coin`, in [0, 1), draws: the first in rank order at which the cumulative probability
    /// exceeds it; always one with a probability above 0.
    pub fn draw(&self, coin: f64) -> u32 {
        let target = coin * self.total;
        let distribution = self.distribution;
        let walk = distribution.walk(&self.weights, self.kept, |sum| sum > target);
        // rounding may leave the sum of all at the target: then it is the last that can be drawn
        walk.enough.unwrap_or_else(|| {
            let kept = distribution.best(self.kept).into_iter();
            let mut possible = kept.rev().filter(|&id| self.prob(id) > 0.0);
            possible.next().unwrap_or(distribution.argmax())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn from_probs(probs: &[f64]) -> Distribution {
        let logits = probs.iter().map(|p| p.ln() as f32).collect();
        Distribution::from_logits(logits).expect("at least one probability is above 0")
    }

    fn of(logits: Vec<f32>) -> Distribution {
        Distribution::from_logits(logits).expect("one logit is finite")
    }

    fn temperature(value: f64) -> Setting {
        Setting::OFF.with_temperature(value).expect("a temperature")
    }

    fn top_p(value: f64) -> Setting {
        Setting::OFF.with_top_p(value).expect("a mass")
    }

    #[test]
    fn probabilities_are_the_softmax_of_the_logits() {
        let third = from_probs(&[1.0, 2.0, 3.0]);
        for (id, expected) in [1.0 / 6.0, 2.0 / 6.0, 3.0 / 6.0].into_iter().enumerate() {
            assert!((third.prob(id as u32) - expected).abs() < 1e-7);
        }
        assert_eq!((third.argmax(), third.best(9)), (2, vec![2, 1, 0]));
        assert_eq!([0, 1, 2].map(|id| third.rank(id)), [3, 2, 1]);
    }

    #[test]
    fn a_certainty_has_logprob_zero_and_no_entropy() {
        let sure = Distribution::from_logits(vec![-80.0, 80.0]).expect("finite");
        assert_eq!(sure.logprob(1).to_bits(), 0f64.to_bits());
        assert_eq!((sure.prob(1), sure.mass_count(0.9)), (1.0, 1));
        assert!(sure.entropy_bits() < 1e-60);
        assert_eq!(sure.margin(), Some(160.0));
    }

    #[test]
    fn a_uniform_distribution_has_the_entropy_of_its_size() {
        let flat = Distribution::from_logits(vec![1.5; 8]).expect("finite");
        assert!((flat.entropy_bits() - 3.0).abs() < 1e-12);
        assert_eq!(flat.mass_count(0.9), 8);
        assert_eq!(flat.mass_count(0.5), 4);
    }

    #[test]
    fn ties_go_to_the_lower_id() {
        let tied = Distribution::from_logits(vec![1.0, 2.0, 2.0, -0.0, 0.0]).expect("finite");
        assert_eq!(tied.best(5), [1, 2, 0, 3, 4]);
        assert_eq!(tied.rank(2), 2);
        assert_eq!(tied.margin(), Some(0.0));
        assert_eq!(tied.filtered(&Setting::OFF.with_top_k(1)).draw(0.999), 1);
        assert_eq!(tied.filtered(&temperature(0.0)).draw(0.999), 1);
    }

    /// Probabilities 0.5 and 0.3 reach 0.8 although their f32 logits do not quite.
    #[test]
    fn a_mass_that_is_met_exactly_needs_no_further_candidate() {
        let exact = from_probs(&[0.5, 0.3, 0.1, 0.1]);
        assert_eq!(exact.filtered(&top_p(0.8)).kept(), 2);
        assert_eq!(exact.mass_count(0.9), 3);
    }

    #[test]
    fn temperature_acts_before_the_nucleus() {
        let logits = Distribution::from_logits(vec![3.0, 2.0, 1.0]).expect("finite");
        let cold = temperature(0.5).with_top_p(0.8).expect("a mass");
        assert_eq!(logits.filtered(&cold).kept(), 1);
        assert_eq!(logits.filtered(&top_p(0.8)).kept(), 2);
    }

    /// With 0.4 / 0.3 / 0.2 / 0.1, the two best are 4/7 and 3/7 after top_k 2: a nucleus of 0.5 is then the best alone.
    #[test]
    fn each_filter_measures_on_the_renormalised_result_of_the_one_before() {
        let probs = from_probs(&[0.4, 0.3, 0.2, 0.1]);
        assert_eq!(probs.filtered(&top_p(0.5)).kept(), 2);
        let both = probs.filtered(&top_p(0.5).with_top_k(2)).kept();
        assert_eq!(both, 1);
        let kept = probs.filtered(&Setting::OFF.with_top_k(2));
        assert!((kept.prob(0) - 4.0 / 7.0).abs() < 1e-7 && (kept.kept_mass() - 0.7).abs() < 1e-7);
    }

    #[test]
    fn min_p_keeps_what_has_a_share_of_the_best() {
        let probs = from_probs(&[0.5, 0.3, 0.15, 0.05]);
        let min_p = |value| Setting::OFF.with_min_p(value).expect("a share");
        assert_eq!(probs.filtered(&min_p(0.25)).kept(), 3);
        assert_eq!(probs.filtered(&min_p(1.0)).kept(), 1);
        assert_eq!(probs.filtered(&min_p(0.0)).kept(), 4);
    }

    #[test]
    fn filters_that_are_off_keep_everything() {
        let probs = from_probs(&[0.5, 0.3, 0.2]);
        let kept = probs.filtered(&Setting::OFF.with_top_k(0));
        assert_eq!((kept.kept(), kept.kept_mass()), (3, 1.0));
        assert_eq!(probs.filtered(&Setting::OFF.with_top_k(99)).kept(), 3);
        assert_eq!(probs.filtered(&top_p(0.0)).kept(), 1);
    }

    #[test]
    fn extreme_temperatures_stay_finite() {
        let logits =
            Distribution::from_logits(vec![3.0, 2.0, f32::NEG_INFINITY]).expect("one is finite");
        for tiny in [1e-12, 1e-30, f64::MIN_POSITIVE, 5e-324] {
            assert_eq!(logits.probs_at(tiny), [1.0, 0.0, 0.0]);
            assert_eq!(logits.filtered(&temperature(tiny)).draw(0.999_999), 0);
        }
        assert_eq!(logits.probs_at(0.0), [1.0, 0.0, 0.0]);
        assert_eq!(logits.probs_at(1e38), [0.5, 0.5, 0.0]);
    }

    #[test]
    fn both_ends_of_the_coin_draw_a_token_with_mass() {
        let logits =
            Distribution::from_logits(vec![0.0, f32::NEG_INFINITY, 1.0]).expect("one is finite");
        let kept = logits.filtered(&Setting::OFF);
        assert_eq!(kept.draw(0.0), 2);
        assert_eq!(kept.draw(1.0 - f64::EPSILON / 2.0), 0);
    }

    #[test]
    fn rows_that_are_no_distribution_are_refused() {
        for (logits, expected) in [
            (vec![], "no logits"),
            (vec![0.0, f32::NAN], "token id 1 is NaN"),
            (vec![f32::INFINITY], "token id 0 is inf"),
            (vec![f32::NEG_INFINITY; 2], "every logit is -inf"),
        ] {
            let error = Distribution::from_logits(logits)
                .expect_err(expected)
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn one_candidate_is_a_certainty_without_margin() {
        let only = Distribution::from_logits(vec![-3.0]).expect("finite");
        assert_eq!(
            (only.prob(0), only.margin(), only.mass_count(1.0)),
            (1.0, None, 1)
        );
    }

    /// Logits with ties, extremes and impossible candidates; at least one is finite.
    fn any_logits() -> impl Strategy<Value = Vec<f32>> {
        let logit = prop_oneof![
            4 => -8f32..8.0,
            1 => Just(1.0),
            1 => Just(80.0),
            1 => Just(-80.0),
            1 => Just(f32::NEG_INFINITY),
        ];
        proptest::collection::vec(logit, 1..40).prop_filter("one is finite", |logits| {
            logits.iter().any(|l| l.is_finite())
        })
    }

    fn any_setting() -> impl Strategy<Value = Setting> {
        (0.0f64..3.0, 0usize..50, 0.0f64..=1.0, 0.0f64..=1.0).prop_map(|(t, k, p, m)| {
            let setting = temperature(t).with_top_k(k).with_top_p(p).expect("a mass");
            setting.with_min_p(m).expect("a share")
        })
    }

    proptest! {
        #[test]
        fn probabilities_sum_to_one_and_fall_with_rank(logits in any_logits()) {
            let d = of(logits);
            let probs: Vec<f64> = d.best(usize::MAX).iter().map(|&id| d.prob(id)).collect();
            prop_assert!((probs.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            prop_assert!(probs.is_sorted_by(|a, b| a >= b));
            prop_assert!(d.best(usize::MAX).iter().enumerate().all(|(i, &id)| d.rank(id) == i + 1));
        }

        #[test]
        fn a_constant_added_to_all_logits_changes_nothing(logits in any_logits(), shift in -4i8..4) {
            let shifted = logits.iter().map(|l| l + f32::from(shift) * 16.0).collect();
            let (a, b) = (of(logits), of(shifted));
            for id in 0..a.vocab_size() as u32 {
                prop_assert!((a.prob(id) - b.prob(id)).abs() < 1e-4);
            }
        }

        #[test]
        fn entropy_rises_with_temperature(logits in any_logits(), t in 0.1f64..3.0) {
            let d = of(logits);
            let entropy = |t| -> f64 {
                d.probs_at(t).iter().filter(|p| **p > 0.0).map(|p| -p * p.log2()).sum()
            };
            prop_assert!(entropy(t) <= entropy(t * 1.5) + 1e-9);
            prop_assert!((entropy(1.0) - d.entropy_bits()).abs() < 1e-9);
        }

        #[test]
        fn mass_count_is_the_smallest_that_reaches(logits in any_logits(), mass in 0.0f64..=1.0) {
            let d = of(logits);
            let count = d.mass_count(mass);
            let sum = |n: usize| d.best(n).iter().map(|&id| d.prob(id)).sum::<f64>();
            prop_assert!((1..=d.vocab_size()).contains(&count));
            prop_assert!(sum(count) >= mass - 2.0 * MASS_TOLERANCE);
            prop_assert!(count == 1 || sum(count - 1) < mass);
        }

        #[test]
        fn the_nucleus_reaches_top_p_is_minimal_and_never_drops_the_argmax(
            logits in any_logits(), t in 0.1f64..3.0, p in 0.0f64..1.0,
        ) {
            let d = of(logits);
            let kept = d.filtered(&temperature(t).with_top_p(p).expect("a mass")).kept();
            let probs = d.probs_at(t);
            let sum = |n: usize| d.best(n).iter().map(|&id| probs[id as usize]).sum::<f64>();
            prop_assert!(kept >= 1);
            prop_assert!(sum(kept) >= p - 2.0 * MASS_TOLERANCE);
            prop_assert!(kept == 1 || sum(kept - 1) < p);
            let larger = d.filtered(&temperature(t).with_top_p((p + 0.1).min(1.0)).expect("a mass")).kept();
            prop_assert!(larger >= kept);
        }

        #[test]
        fn a_draw_lies_in_the_kept_set_and_is_monotone_in_the_coin(
            logits in any_logits(), setting in any_setting(), a in 0.0f64..1.0, b in 0.0f64..1.0,
        ) {
            let d = of(logits);
            let kept = d.filtered(&setting);
            let (low, high) = (kept.draw(a.min(b)), kept.draw(a.max(b)));
            prop_assert!(d.rank(low) <= d.rank(high) && d.rank(high) <= kept.kept());
            prop_assert!(kept.prob(low) > 0.0 && kept.prob(high) > 0.0);
            let total: f64 = kept.candidates().map(|(_, prob)| prob).sum();
            prop_assert!((total - 1.0).abs() < 1e-9);
            prop_assert!(kept.kept_mass() > 0.0 && kept.kept_mass() <= 1.0);
        }

        #[test]
        fn evenly_spaced_coins_reproduce_the_probabilities(logits in any_logits(), setting in any_setting()) {
            const COINS: u32 = 4000;
            let d = of(logits);
            let kept = d.filtered(&setting);
            let mut counts = vec![0u32; d.vocab_size()];
            for i in 0..COINS {
                counts[kept.draw((f64::from(i) + 0.5) / f64::from(COINS)) as usize] += 1;
            }
            for (id, prob) in kept.candidates() {
                let share = f64::from(counts[id as usize]) / f64::from(COINS);
                prop_assert!((share - prob).abs() <= 1.5 / f64::from(COINS));
            }
        }
    }
}
