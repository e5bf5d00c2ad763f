//! The arithmetic of one step without a model: given logits through the same distribution, filters and coins as a run's.
//!
//! Everything is computed by [`Distribution`] and [`coin`]; nothing here knows another formula than that of entropy.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::distribution::Distribution;
use crate::record::{PROGRAM, SCHEMA};
use crate::sampler::coin;
use crate::setting::{FILTER_ORDER, Setting};

/// How often to draw, and with which coins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draws {
    /// Draws at each setting.
    pub count: u32,
    /// First part of every coin. Draw `i` uses the coin of the first step of run `i`, at every setting the same.
    pub seed: u64,
}

/// What `softmax --json` writes. Lists of numbers that stand for candidates are in the order of `candidates`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxRecord {
    /// Version of this layout.
    pub schema: u32,
    /// Name and version of the program.
    pub program: String,
    /// First part of every coin.
    pub seed: u64,
    /// Draws at each setting.
    pub draws: u32,
    /// The order in which a setting's parts act.
    pub filter_order: Vec<String>,
    /// The candidates, best first.
    pub candidates: Vec<SoftmaxCandidate>,
    /// One entry for each temperature, as they were given.
    pub sweeps: Vec<SoftmaxSweep>,
}

/// One candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxCandidate {
    /// Its place among the logits as they were given, from 0.
    pub id: u32,
    /// Its name, where names were given.
    pub label: Option<String>,
    /// Raw score; null for -inf.
    pub logit: Option<f32>,
    /// Place in the order of candidates, from 1.
    pub rank: usize,
    /// Natural logarithm of `prob`; null where the logit is -inf.
    pub logprob: Option<f32>,
    /// Probability at temperature 1, before any filter.
    pub prob: f32,
}

/// One temperature with the filters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SoftmaxSweep {
    /// The setting in words.
    pub label: String,
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f64,
    /// Best candidates kept; 0 is off.
    pub top_k: usize,
    /// Mass of the nucleus kept; 1 is off.
    pub top_p: f64,
    /// Share of the best candidate's probability needed to be kept; 0 is off.
    pub min_p: f64,
    /// Each candidate's probability at this temperature, before the filters.
    pub probs: Vec<f32>,
    /// Entropy of `probs`, in bits.
    pub entropy_bits: f32,
    /// How many candidates the filters keep: the best ones, at least 1.
    pub kept: usize,
    /// What the kept ones' `probs` sum to.
    pub tempered_mass: f32,
    /// What they sum to at temperature 1, as in the record of a run.
    pub kept_mass: f32,
    /// Each candidate's probability of being drawn: that of the kept ones renormalised, 0 for the others.
    pub sampling_probs: Vec<f32>,
    /// Entropy of `sampling_probs`, in bits.
    pub sampling_entropy_bits: f32,
    /// How often each candidate was drawn; empty where nothing was drawn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drawn: Vec<u32>,
    /// How often it would be on average: draws × sampling probability; empty where nothing was drawn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expected: Vec<f32>,
}

/// Computes what each setting makes of `logits`. `labels` are as many as the logits; labels that are missing stay out.
///
/// # Errors
/// When the logits are no distribution: none, NaN, +inf, or none finite.
pub fn softmax(
    logits: &[f32],
    labels: Option<&[String]>,
    settings: &[Setting],
    draws: Draws,
) -> Result<SoftmaxRecord> {
    let distribution = Distribution::from_logits(logits.to_vec())?;
    let order = distribution.best(logits.len());
    let candidate = |(rank, &id): (usize, &u32)| SoftmaxCandidate {
        id,
        label: labels.and_then(|labels| labels.get(id as usize)).cloned(),
        logit: finite(distribution.logit(id)),
        rank,
        logprob: finite(distribution.logprob(id) as f32),
        prob: distribution.prob(id) as f32,
    };
    Ok(SoftmaxRecord {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        seed: draws.seed,
        draws: draws.count,
        filter_order: FILTER_ORDER.map(str::to_owned).to_vec(),
        candidates: (1..).zip(&order).map(candidate).collect(),
        sweeps: settings
            .iter()
            .map(|setting| sweep(&distribution, &order, setting, draws))
            .collect(),
    })
}

fn sweep(
    distribution: &Distribution,
    order: &[u32],
    setting: &Setting,
    draws: Draws,
) -> SoftmaxSweep {
    let tempered = distribution.probs_at(setting.temperature());
    let probs: Vec<f64> = order.iter().map(|&id| tempered[id as usize]).collect();
    let filtered = distribution.filtered(setting);
    let mut by_id = vec![0.0; order.len()];
    for (id, prob) in filtered.candidates() {
        by_id[id as usize] = prob;
    }
    let sampling_probs: Vec<f64> = order.iter().map(|&id| by_id[id as usize]).collect();
    let (drawn, expected) = match draws.count {
        0 => (Vec::new(), Vec::new()),
        count => {
            let mut counts = vec![0; order.len()];
            for run in 0..count {
                counts[filtered.draw(coin(draws.seed, run, 0)) as usize] += 1;
            }
            let mean = |prob: &f64| (f64::from(count) * prob) as f32;
            (
                order.iter().map(|&id| counts[id as usize]).collect(),
                sampling_probs.iter().map(mean).collect(),
            )
        }
    };
    SoftmaxSweep {
        label: setting.to_string(),
        temperature: setting.temperature(),
        top_k: setting.top_k(),
        top_p: setting.top_p(),
        min_p: setting.min_p(),
        entropy_bits: entropy_bits(&probs),
        kept: filtered.kept(),
        tempered_mass: probs[..filtered.kept()].iter().sum::<f64>().min(1.0) as f32,
        kept_mass: filtered.kept_mass() as f32,
        sampling_entropy_bits: entropy_bits(&sampling_probs),
        probs: probs.iter().map(|&prob| prob as f32).collect(),
        sampling_probs: sampling_probs.iter().map(|&prob| prob as f32).collect(),
        drawn,
        expected,
    }
}

/// Shannon's entropy; a candidate without probability adds nothing.
fn entropy_bits(probs: &[f64]) -> f32 {
    let terms = probs.iter().filter(|prob| **prob > 0.0);
    let bits: f64 = terms.map(|prob| -prob * prob.log2()).sum();
    // -1 × log2(1) is -0
    // of 0 and -0 either may be the larger; their sum is 0
    (bits.max(0.0) + 0.0) as f32
}

fn finite(number: f32) -> Option<f32> {
    number.is_finite().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRANCE: [f32; 5] = [5.0, 3.0, 2.5, 1.0, -1.0];
    const NONE: Draws = Draws { count: 0, seed: 0 };

    fn at(temperature: f64) -> Setting {
        Setting::OFF
            .with_temperature(temperature)
            .expect("a temperature")
    }

    fn only_sweep(logits: &[f32], setting: Setting, draws: Draws) -> SoftmaxSweep {
        let mut record = softmax(logits, None, &[setting], draws).expect("a distribution");
        record.sweeps.remove(0)
    }

    fn assert_near(numbers: &[f32], expected: &[f32], tolerance: f32) {
        assert_eq!(numbers.len(), expected.len());
        for (number, expected) in numbers.iter().zip(expected) {
            assert!((number - expected).abs() <= tolerance, "{numbers:?}");
        }
    }

    /// Computed by hand: e^5 / (e^5 + e^3 + e^2.5 + e + 1/e) is 148.413 / 183.768.
    #[test]
    fn five_logits_have_the_probabilities_of_the_textbook() {
        let sweep = only_sweep(&FRANCE, at(1.0), NONE);
        assert_near(&sweep.probs, &[0.808, 0.109, 0.066, 0.015, 0.002], 0.0005);
        assert_near(&[sweep.entropy_bits], &[0.97], 0.005);
        assert_eq!(sweep.sampling_probs, sweep.probs);
        for (temperature, entropy, best) in [
            (0.2, 0.00, 1.000),
            (0.5, 0.19, 0.975),
            (1.0, 0.97, 0.808),
            (2.0, 1.78, 0.544),
            (5.0, 2.21, 0.330),
        ] {
            let sweep = only_sweep(&FRANCE, at(temperature), NONE);
            assert_near(&[sweep.entropy_bits], &[entropy], 0.005);
            assert_near(&sweep.probs[..1], &[best], 0.0005);
        }
    }

    #[test]
    fn three_logits_one_apart_at_three_temperatures() {
        for (temperature, expected) in [
            (1.0, [0.665, 0.245, 0.090]),
            (0.5, [0.867, 0.117, 0.016]),
            (2.0, [0.506, 0.307, 0.186]),
        ] {
            let sweep = only_sweep(&[2.0, 1.0, 0.0], at(temperature), NONE);
            assert_near(&sweep.probs, &expected, 0.0005);
        }
    }

    #[test]
    fn candidates_are_best_first_and_keep_their_places_and_labels() {
        let labels = ["low", "high", "none"].map(str::to_owned);
        let logits = [1.0, 2.0, f32::NEG_INFINITY];
        let record = softmax(&logits, Some(&labels), &[at(1.0)], NONE).expect("a distribution");
        let order: Vec<_> = record
            .candidates
            .iter()
            .map(|c| (c.id, c.label.as_deref(), c.rank, c.logit))
            .collect();
        assert_eq!(
            order,
            [
                (1, Some("high"), 1, Some(2.0)),
                (0, Some("low"), 2, Some(1.0)),
                (2, Some("none"), 3, None)
            ]
        );
        assert_eq!(record.candidates[2].prob, 0.0);
        assert_eq!(record.candidates[2].logprob, None);
        assert_eq!(record.sweeps[0].probs[2], 0.0);
    }

    #[test]
    fn filters_renormalise_what_they_keep() {
        let setting = at(1.0).with_top_p(0.9).expect("a mass");
        let sweep = only_sweep(&FRANCE, setting, NONE);
        assert_eq!(sweep.kept, 2);
        assert_near(&[sweep.tempered_mass], &[0.9169], 0.0001);
        assert_eq!(sweep.kept_mass, sweep.tempered_mass);
        // e^2 to 1
        assert_near(
            &sweep.sampling_probs,
            &[0.8808, 0.1192, 0.0, 0.0, 0.0],
            0.0001,
        );
        assert!(sweep.sampling_entropy_bits < sweep.entropy_bits);
        // at temperature 2 the same two have another mass than at temperature 1
        let warm = only_sweep(&FRANCE, at(2.0).with_top_k(2), NONE);
        assert_near(
            &[warm.tempered_mass, warm.kept_mass],
            &[0.7436, 0.9169],
            0.0005,
        );
    }

    #[test]
    fn draws_are_those_of_the_runs_of_this_seed_and_sum_to_their_number() {
        let draws = Draws {
            count: 1000,
            seed: 3,
        };
        let sweep = only_sweep(&FRANCE, at(1.0), draws);
        assert_eq!(sweep.drawn.iter().sum::<u32>(), 1000);
        assert_near(&sweep.expected[..1], &[807.6], 0.1);
        // five standard deviations of a binomial(1000, 0.808) are 62
        assert!((746..=870).contains(&sweep.drawn[0]), "{:?}", sweep.drawn);
        let distribution = Distribution::from_logits(FRANCE.to_vec()).expect("finite");
        let by_hand = (0..1000)
            .filter(|&run| distribution.filtered(&at(1.0)).draw(coin(3, run, 0)) == 0)
            .count();
        assert_eq!(by_hand, sweep.drawn[0] as usize);
        assert_ne!(
            only_sweep(&FRANCE, at(1.0), Draws { seed: 4, ..draws }).drawn,
            sweep.drawn
        );
    }

    #[test]
    fn temperature_zero_is_certain_and_one_candidate_is_too() {
        let greedy = only_sweep(&FRANCE, at(0.0), Draws { count: 10, seed: 0 });
        assert_eq!(greedy.probs, [1.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(greedy.entropy_bits.to_bits(), 0);
        assert_eq!(greedy.drawn, [10, 0, 0, 0, 0]);
        assert_eq!(only_sweep(&[-3.0], at(2.0), NONE).probs, [1.0]);
    }
}
