//! How far two distributions are from each other, from the best candidates of each: bounds that hold whatever is not listed.
//!
//! S is the tokens that both list, p and q their probabilities in A and B, P and Q what is left of 1 on either side.
//!
//! - **Kullback-Leibler** Σ p ln(p / q), over the whole vocabulary: at least `Σ_S p ln(p/q) + P ln(P/Q)`, since lumping tokens
//!   together never raises it (the log-sum inequality). There is no upper bound, because B may give an unlisted token as
//!   little as it likes, unless nothing is unlisted: then the sum over S is the divergence.
//! - **Total variation** ½ Σ |p - q|, the share of the probability that moved: at least `½ (Σ_S |p - q| + |P - Q|)`, at most
//!   `½ (Σ_S |p - q| + P + Q)`, which is reached where the unlisted masses lie on different tokens.
//!
//! Records hold f32; every bound is widened by what rounding to it can do.

use std::collections::BTreeMap;

use crate::record::Step;
use crate::record::compare::Divergence;

/// What rounding numbers to f32 changes of a sum of probabilities, at most; twice that for good measure.
const ROUNDING: f64 = 1.0 / (1 << 23) as f64;

/// A token's weight: natural logarithm of the probability, and the probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Weighed {
    pub(super) logprob: f64,
    pub(super) prob: f64,
}

/// The tokens that a step lists, by id: its candidates and the one it took.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) tokens: BTreeMap<u32, Weighed>,
    /// What any other token has at most.
    pub(super) last: Weighed,
    /// Whether there is no other token.
    is_whole: bool,
}

impl Listed {
    pub(super) fn of(step: &Step, vocab_size: usize) -> Self {
        let weighed = |logprob: f32, prob: f32| Weighed {
            logprob: f64::from(logprob),
            // a file may say anything
            prob: match f64::from(prob) {
                prob if (0.0..=1.0).contains(&prob) => prob,
                _ => 0.0,
            },
        };
        let took = weighed(step.logprob, step.prob);
        let candidates = step.top_logprobs.iter();
        let mut tokens: BTreeMap<u32, Weighed> = candidates
            .map(|candidate| {
                (
                    candidate.token_id,
                    weighed(candidate.logprob, candidate.prob),
                )
            })
            .collect();
        tokens.insert(step.token_id, took);
        let last = step.top_logprobs.last();
        Self {
            last: last.map_or(took, |last| weighed(last.logprob, last.prob)),
            is_whole: tokens.len() >= vocab_size,
            tokens,
        }
    }

    /// Returns the weight of the token that the step took.
    pub(super) fn took(&self, step: &Step) -> Weighed {
        self.weigh(step.token_id).0
    }

    /// Returns the weight of a token and whether that is but a bound, since it is not listed.
    pub(super) fn weigh(&self, id: u32) -> (Weighed, bool) {
        let known = self.tokens.get(&id);
        known.map_or((self.last, true), |&weighed| (weighed, false))
    }

    /// Returns the tokens that both list, with their weights here and in `other`.
    pub(super) fn shared<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (u32, Weighed, Weighed)> + 'a {
        let tokens = self.tokens.iter();
        tokens.filter_map(|(&id, &here)| Some((id, here, *other.tokens.get(&id)?)))
    }
}

/// Returns how far `b` is from `a`.
pub(super) fn divergence(a: &Listed, b: &Listed) -> Divergence {
    let [mut kl, mut slack, mut moved] = [0.0, 0.0, 0.0];
    let [mut in_a, mut in_b] = [0.0, 0.0];
    let mut shared = 0;
    for (_, here, there) in a.shared(b) {
        shared += 1;
        in_a += here.prob;
        in_b += there.prob;
        moved += (here.prob - there.prob).abs();
        if here.prob > 0.0 {
            kl += here.prob * (here.logprob - there.logprob);
            slack += here.prob * (here.logprob.abs() + there.logprob.abs()) * ROUNDING;
        }
    }
    let is_whole = a.is_whole && b.is_whole && shared == a.tokens.len() && shared == b.tokens.len();
    let left = |sum: f64, by: f64| match is_whole {
        true => 0.0,
        false => (1.0 - sum + by).clamp(0.0, 1.0),
    };
    // the smallest that P ln(P/Q) can be: Q at its largest, and P as near as it gets to Q/e
    let most_of_b = left(in_b, ROUNDING);
    let of_a = (most_of_b / std::f64::consts::E).clamp(left(in_a, -ROUNDING), left(in_a, ROUNDING));
    let unlisted = match of_a {
        0.0 => 0.0,
        _ => of_a * (of_a / most_of_b).ln(),
    };
    let gap = (left(in_a, 0.0) - left(in_b, 0.0)).abs();
    let rest = left(in_a, 0.0) + left(in_b, 0.0);
    Divergence {
        kl_lower: rounded_down(kl + unlisted - slack),
        kl_upper: Some(kl + slack)
            .filter(|upper| is_whole && upper.is_finite())
            .map(|upper| rounded_up(upper.max(0.0))),
        moved_lower: rounded_down(((moved + gap) / 2.0 - ROUNDING).min(1.0)),
        moved_upper: rounded_up(((moved + rest) / 2.0 + ROUNDING).min(1.0)),
    }
}

/// Returns the mean of the steps' bounds, each of which bounds the mean; `None` where there is no step.
pub(super) fn mean(steps: &[Divergence]) -> Option<Divergence> {
    let count = steps.len() as f64;
    let of = |bound: fn(&Divergence) -> f32| {
        steps.iter().map(|step| f64::from(bound(step))).sum::<f64>() / count
    };
    let is_bounded = steps.iter().all(|step| step.kl_upper.is_some());
    (!steps.is_empty()).then(|| Divergence {
        kl_lower: rounded_down(of(|step| step.kl_lower)),
        kl_upper: is_bounded.then(|| rounded_up(of(|step| step.kl_upper.unwrap_or(0.0)))),
        moved_lower: rounded_down(of(|step| step.moved_lower)),
        moved_upper: rounded_up(of(|step| step.moved_upper)),
    })
}

/// A lower bound as f32: never above, at least 0; 0 for what is no number.
fn rounded_down(bound: f64) -> f32 {
    let bound = bound.max(0.0);
    match bound.min(f64::from(f32::MAX)) as f32 {
        near if f64::from(near) > bound => near.next_down(),
        near => near,
    }
}

/// An upper bound as f32: never below.
fn rounded_up(bound: f64) -> f32 {
    match bound as f32 {
        near if f64::from(near) < bound => near.next_up(),
        near => near,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare::tests::step;
    use proptest::prelude::*;

    fn of(a: &[(u32, f64)], b: &[(u32, f64)], vocab_size: usize) -> Divergence {
        let listed = |tokens| Listed::of(&step(tokens), vocab_size);
        divergence(&listed(a), &listed(b))
    }

    #[test]
    fn a_whole_vocabulary_has_one_divergence_and_a_part_has_bounds() {
        let (a, b) = ([(0, 0.5), (1, 0.5)], [(0, 0.75), (1, 0.25)]);
        // ½ ln(2/3) + ½ ln 2
        let exact = 0.143_841_04;
        let whole = of(&a, &b, 2);
        assert!((whole.kl_lower - exact).abs() < 1e-6, "{whole:?}");
        assert!(
            whole
                .kl_upper
                .is_some_and(|upper| (upper - exact).abs() < 1e-6)
        );
        assert!((whole.moved_lower - 0.25).abs() < 1e-6, "{whole:?}");
        // all that A has is listed by B, and nothing by nobody: but who knows, of three tokens
        let part = of(&a, &b, 3);
        assert_eq!(part.kl_upper, None);
        assert!((part.kl_lower - exact).abs() < 1e-5, "{part:?}");
        // the halves that the others do not list lie on one token, or on two
        let one = of(&[(0, 0.5)], &[(0, 0.5)], 3);
        assert!(one.moved_lower < 1e-6 && one.moved_upper >= 0.5, "{one:?}");
    }

    #[test]
    fn nothing_shared_is_all_moved_at_most_and_broken_numbers_bound_nothing() {
        let apart = of(&[(0, 0.5)], &[(1, 0.5)], 3);
        assert_eq!((apart.kl_lower, apart.moved_upper), (0.0, 1.0));
        let mut broken = step(&[(0, 0.5), (1, 0.25)]);
        for logprob in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            broken.top_logprobs[1].logprob = logprob;
            broken.top_logprobs[1].prob = logprob;
            let broken = Listed::of(&broken, 2);
            let divergence = divergence(&broken, &broken);
            assert!(divergence.kl_lower >= 0.0, "{divergence:?}");
        }
    }

    /// Positive weights to probabilities, as a record rounds them.
    fn normalised(weights: &[f64]) -> Vec<f64> {
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    fn best(probs: &[f64], count: usize) -> Vec<(u32, f64)> {
        let mut tokens: Vec<(u32, f64)> = (0..).zip(probs.iter().copied()).collect();
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1));
        tokens.truncate(count);
        tokens
    }

    proptest! {
        #[test]
        fn the_true_values_lie_within_the_bounds(
            logits in prop::collection::vec((-12.0..12.0f64, -12.0..12.0f64), 1..20),
            is_near: bool, count_a in 1..20usize, count_b in 1..20usize,
        ) {
            let a = normalised(&logits.iter().map(|(a, _)| a.exp()).collect::<Vec<_>>());
            let b = logits.iter().map(|(a, b)| if is_near { a + b * 1e-3 } else { *b });
            let b = normalised(&b.map(f64::exp).collect::<Vec<_>>());
            let kl: f64 = a.iter().zip(&b).map(|(p, q)| p * (p / q).ln()).sum();
            let moved: f64 = a.iter().zip(&b).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
            let bounds = of(&best(&a, count_a), &best(&b, count_b), a.len());
            prop_assert!(f64::from(bounds.kl_lower) <= kl + 1e-12, "{:?} {}", bounds, kl);
            let is_whole = count_a.min(count_b) >= a.len();
            prop_assert_eq!(bounds.kl_upper.is_some(), is_whole);
            if let Some(upper) = bounds.kl_upper {
                prop_assert!(f64::from(upper) >= kl - 1e-12 && f64::from(upper - bounds.kl_lower) < 1e-4);
            }
            prop_assert!(f64::from(bounds.moved_lower) <= moved && moved <= f64::from(bounds.moved_upper));
        }
    }
}
