//! Two greedy replies to the same tokens: how far their numbers are from each other, and where the replies part.

use super::divergence::{Listed, Weighed, divergence, mean};
use super::tolerance::BF16;
use crate::analysis::parting::candidate;
use crate::record::compare::{
    Divergence, FirstDifference, GreedyComparison, Spread, StepComparison, Weight,
};
use crate::record::{Run, Step};

/// What the comparison of two runs depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// Rows of the output layer of A and of B.
    pub(super) vocab_sizes: [usize; 2],
    /// The largest difference of log-probabilities that is within it.
    pub(super) tolerance: f64,
    /// Whether both count up to the same mass.
    pub(super) same_mass: bool,
}

/// Compares two runs step by step, up to the first at which they took different tokens.
pub(super) fn greedy(a: &Run, b: &Run, terms: &Terms) -> GreedyComparison {
    let mut chosen = Differences::default();
    let mut candidates = Differences::default();
    let mut steps = Vec::new();
    let mut first_difference = None;
    for (number, (of_a, of_b)) in (1..).zip(a.steps.iter().zip(&b.steps)) {
        let [vocab_a, vocab_b] = terms.vocab_sizes;
        let (in_a, in_b) = (Listed::of(of_a, vocab_a), Listed::of(of_b, vocab_b));
        let mut here = Differences::default();
        let is_same = of_a.token_id == of_b.token_id;
        in_a.shared(&in_b)
            .filter(|(id, ..)| is_same || ![of_a.token_id, of_b.token_id].contains(id))
            .for_each(|(_, weight_a, weight_b)| here.add(number, distance(weight_a, weight_b)));
        candidates.join(&here);
        if !is_same {
            let reach = reach(terms.tolerance, candidates.largest);
            first_difference = Some(parting(number, (of_a, &in_a), (of_b, &in_b), reach));
            break;
        }
        let difference = distance(in_a.took(of_a), in_b.took(of_b));
        chosen.add(number, difference);
        steps.push(StepComparison {
            token_id: of_a.token_id,
            token: of_a.token.clone(),
            bytes: of_a.bytes.clone(),
            special: of_a.special,
            prob_a: of_a.prob,
            prob_b: of_b.prob,
            difference: finite(difference),
            largest_difference: finite(here.largest),
            shared: here.count,
            mass_count_a: of_a.mass_count,
            mass_count_b: of_b.mass_count,
            divergence: divergence(&in_a, &in_b),
        });
    }
    let has_changed = |step: &&StepComparison| {
        let counts = step.mass_count_a.zip(step.mass_count_b);
        counts.is_some_and(|(a, b)| a != b)
    };
    let changed = steps.iter().filter(has_changed).count();
    let divergences: Vec<Divergence> = steps.iter().map(|step| step.divergence).collect();
    GreedyComparison {
        steps_a: a.steps.len(),
        steps_b: b.steps.len(),
        chosen: chosen.spread(),
        candidates: candidates.spread(),
        changed_mass_counts: terms.same_mass.then_some(changed),
        divergence: mean(&divergences),
        first_difference,
        steps,
    }
}

/// How far a log-probability may move without meaning, where others were seen to move by up to `seen`.
fn reach(tolerance: f64, seen: f64) -> f64 {
    tolerance.max(seen.min(BF16))
}

/// Weighs the tokens that two runs took at the same place. Rounding can only exchange them where they were close on both
/// sides: each of the two moved by at most the reach, so their margins together are at most twice that.
fn parting(
    step: usize,
    (of_a, in_a): (&Step, &Listed),
    (of_b, in_b): (&Step, &Listed),
    reach: f64,
) -> FirstDifference {
    let (b_in_a, a_in_b) = (in_a.weigh(of_b.token_id), in_b.weigh(of_a.token_id));
    let margin = |took: Weighed, other: (Weighed, bool)| took.logprob - other.0.logprob;
    let margin_a = margin(in_a.took(of_a), b_in_a);
    let margin_b = margin(in_b.took(of_b), a_in_b);
    let is_known = !b_in_a.1 && !a_in_b.1;
    FirstDifference {
        step,
        a: candidate(of_a),
        b_in_a: weight(b_in_a),
        b: candidate(of_b),
        a_in_b: weight(a_in_b),
        margin_a: finite(margin_a),
        margin_b: finite(margin_b),
        reach: reach as f32,
        near_tie: is_known && margin_a + margin_b <= 2.0 * reach,
    }
}

fn weight((weighed, is_bound): (Weighed, bool)) -> Weight {
    Weight {
        logprob: finite(weighed.logprob),
        prob: weighed.prob as f32,
        is_bound,
    }
}

/// Distance of two log-probabilities; what is no number is infinitely far from everything but itself.
fn distance(a: Weighed, b: Weighed) -> f64 {
    match (a.logprob - b.logprob).abs() {
        _ if a.logprob == b.logprob => 0.0,
        distance if distance.is_nan() => f64::INFINITY,
        distance => distance,
    }
}

fn finite(number: f64) -> Option<f32> {
    Some(number as f32).filter(|number| number.is_finite())
}

/// Differences as they come.
#[derive(Debug, Default)]
struct Differences {
    count: usize,
    sum: f64,
    largest: f64,
    largest_step: usize,
}

impl Differences {
    fn add(&mut self, step: usize, difference: f64) {
        self.join(&Self {
            count: 1,
            sum: difference,
            largest: difference,
            largest_step: step,
        });
    }

    fn join(&mut self, others: &Self) {
        if others.count > 0 && (self.count == 0 || others.largest > self.largest) {
            (self.largest, self.largest_step) = (others.largest, others.largest_step);
        }
        self.count += others.count;
        self.sum += others.sum;
    }

    fn spread(&self) -> Option<Spread> {
        (self.count > 0).then(|| Spread {
            count: self.count,
            largest: finite(self.largest),
            largest_step: self.largest_step,
            mean: finite(self.sum / self.count as f64),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare::tests::{run, step};

    const TERMS: Terms = Terms {
        vocab_sizes: [100, 100],
        tolerance: 0.001,
        same_mass: true,
    };

    fn compared(a: &[&[(u32, f64)]], b: &[&[(u32, f64)]], tolerance: f64) -> GreedyComparison {
        greedy(&run(a), &run(b), &Terms { tolerance, ..TERMS })
    }

    fn flip(a: &[&[(u32, f64)]], b: &[&[(u32, f64)]], tolerance: f64) -> FirstDifference {
        let compared = compared(a, b, tolerance);
        compared.first_difference.expect("they part")
    }

    #[test]
    fn differences_are_of_the_chosen_tokens_and_of_all_that_both_list() {
        let a: [&[(u32, f64)]; 2] = [&[(1, 0.5), (2, 0.25)], &[(3, 0.5), (4, 0.125), (5, 0.1)]];
        let b: [&[(u32, f64)]; 2] = [&[(1, 0.5), (2, 0.25)], &[(3, 0.25), (4, 0.5), (6, 0.1)]];
        let same = compared(&a, &b, 0.001);
        let chosen = same.chosen.expect("two steps");
        assert_eq!((chosen.count, chosen.largest_step), (2, 2));
        assert!((chosen.largest.unwrap_or(0.0) - 2f32.ln()).abs() < 1e-6);
        assert!((chosen.mean.unwrap_or(0.0) - 2f32.ln() / 2.0).abs() < 1e-6);
        let candidates = same.candidates.expect("two steps");
        assert_eq!((candidates.count, candidates.largest_step), (4, 2));
        assert!((candidates.largest.unwrap_or(0.0) - 4f32.ln()).abs() < 1e-6);
        assert_eq!((same.steps.len(), same.steps[1].shared), (2, 2));
        assert_eq!(same.first_difference, None);
    }

    #[test]
    fn a_flip_within_the_tolerance_on_both_sides_is_a_near_tie() {
        let a: [&[(u32, f64)]; 1] = [&[(1, 0.24), (2, 0.21)]];
        let b: [&[(u32, f64)]; 1] = [&[(2, 0.24), (1, 0.22)]];
        // ln(0.24/0.21) + ln(0.24/0.22) = 0.2205
        let near = flip(&a, &b, 0.12);
        assert!(near.near_tie, "{near:?}");
        assert_eq!((near.step, near.a.token_id, near.b.token_id), (1, 1, 2));
        assert_eq!((near.b_in_a.prob, near.a_in_b.prob), (0.21, 0.22));
        let margins = near.margin_a.zip(near.margin_b).expect("finite");
        assert!((margins.0 + margins.1 - 0.2205).abs() < 1e-3, "{margins:?}");
        assert!(!flip(&a, &b, 0.1).near_tie);
    }

    #[test]
    fn what_else_moved_widens_the_reach_and_a_great_change_does_not_excuse_itself() {
        let with = |moved: f64| {
            let a: [&[(u32, f64)]; 1] = [&[(1, 0.24), (2, 0.21), (3, 0.05)]];
            let b: [&[(u32, f64)]; 1] = [&[(2, 0.24), (1, 0.22), (3, 0.05 * moved.exp())]];
            flip(&a, &b, 0.001)
        };
        let little = with(0.01);
        assert!((little.reach - 0.01).abs() < 1e-5 && !little.near_tie);
        let enough = with(0.12);
        assert!((enough.reach - 0.12).abs() < 1e-5 && enough.near_tie);
        assert_eq!(with(2.0).reach, 0.25);
    }

    #[test]
    fn a_token_that_is_not_listed_has_a_bound_and_is_no_near_tie() {
        let a: [&[(u32, f64)]; 1] = [&[(1, 0.24), (3, 0.20)]];
        let b: [&[(u32, f64)]; 1] = [&[(2, 0.24), (1, 0.22)]];
        let flip = flip(&a, &b, 10.0);
        assert_eq!((flip.b_in_a.prob, flip.b_in_a.is_bound), (0.2, true));
        assert_eq!((flip.a_in_b.prob, flip.a_in_b.is_bound), (0.22, false));
        assert!(!flip.near_tie);
    }

    #[test]
    fn a_reply_that_goes_on_is_no_difference_and_counts_of_other_masses_are_not_compared() {
        let a: [&[(u32, f64)]; 2] = [&[(1, 0.5)], &[(2, 0.5)]];
        let shorter = compared(&a, &a[..1], 0.001);
        assert_eq!(
            (shorter.steps_a, shorter.steps_b, shorter.steps.len()),
            (2, 1, 1)
        );
        assert_eq!(shorter.first_difference, None);
        assert_eq!(shorter.changed_mass_counts, Some(0));
        let mut other = run(&a);
        other.steps[1].mass_count = Some(7);
        assert_eq!(
            greedy(&run(&a), &other, &TERMS).changed_mass_counts,
            Some(1)
        );
        let terms = Terms {
            same_mass: false,
            ..TERMS
        };
        assert_eq!(greedy(&run(&a), &other, &terms).changed_mass_counts, None);
    }

    #[test]
    fn broken_numbers_are_never_within_a_tolerance() {
        let of = |logprob: f32| {
            let mut broken = run(&[&[(1, 0.5)]]);
            broken.steps[0].logprob = logprob;
            broken
        };
        let spread = |a: f32, b: f32| greedy(&of(a), &of(b), &TERMS).chosen.expect("a step");
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(spread(broken, -0.5).largest, None, "{broken}");
        }
        assert_eq!(spread(f32::NAN, f32::NAN).largest, None);
        assert_eq!(
            spread(f32::NEG_INFINITY, f32::NEG_INFINITY).largest,
            Some(0.0)
        );
        // nothing listed but what was taken
        let mut bare = step(&[(1, 0.5)]);
        bare.top_logprobs.clear();
        assert_eq!(Listed::of(&bare, 10).tokens.len(), 1);
    }
}
