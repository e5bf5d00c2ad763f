//! Gates on the replies themselves: whether the greedy tokens of a run are as sure as they must be.
//!
//! Every generated token counts, the one that ends the reply, too, as in the record's own count of improbable tokens.

use crate::record::compare::{Comparison, Finding, What};
use crate::record::{PromptEntry, Record, Step};

use crate::analysis::parting::candidate;

/// What a greedy reply must keep to.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Gates {
    /// The lowest probability of a token that passes.
    pub fail_below: Option<f64>,
    /// The most tokens of one reply below the record's threshold that pass.
    pub max_low: Option<usize>,
}

/// Adds to `comparison` what of `b`, its second record, does not pass.
pub fn add(gates: &Gates, b: &Record, comparison: &mut Comparison) {
    for (number, prompt) in (1..).zip(&comparison.prompts) {
        let place = prompt.b.as_ref().map(|outcome| outcome.number - 1);
        if let Some(PromptEntry::Done(done)) = place.and_then(|place| b.prompts.get(place)) {
            let found = failing(gates, &done.greedy.steps, b.settings.threshold);
            comparison.findings.extend(found.map(|what| Finding {
                prompt: number,
                what,
            }));
        }
    }
    comparison.findings.sort_by_key(|finding| finding.prompt);
}

/// Whether a finding is that a gate does not let the run pass, and no difference.
pub fn is_gate(finding: &Finding) -> bool {
    matches!(
        finding.what,
        What::BelowGate { .. } | What::TooManyLow { .. }
    )
}

fn failing<'a>(
    gates: &Gates,
    steps: &'a [Step],
    threshold: f64,
) -> impl Iterator<Item = What> + use<'a> {
    let Gates {
        fail_below,
        max_low,
    } = *gates;
    let is_below = |step: &Step, limit: f64| f64::from(step.prob) < limit;
    let below = fail_below.into_iter().flat_map(move |limit| {
        let steps = (1..).zip(steps);
        let below = steps.filter(move |(_, step)| is_below(step, limit));
        below.map(move |(number, step)| What::BelowGate {
            step: number,
            took: candidate(step),
            limit,
        })
    });
    let count = steps
        .iter()
        .filter(|step| is_below(step, threshold))
        .count();
    let too_many = max_low.filter(|&limit| count > limit);
    below.chain(too_many.map(|limit| What::TooManyLow { count, limit }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare::tests::run;

    fn found(fail_below: Option<f64>, max_low: Option<usize>) -> Vec<What> {
        let steps = run(&[&[(1, 0.5)], &[(2, 0.25)], &[(3, 0.125)]]).steps;
        let gates = Gates {
            fail_below,
            max_low,
        };
        failing(&gates, &steps, 0.3).collect()
    }

    #[test]
    fn a_token_at_the_limit_passes_and_every_one_below_is_named() {
        assert_eq!(found(Some(0.125), None), []);
        let below = found(Some(0.3), None);
        let steps: Vec<(usize, u32)> = below
            .iter()
            .filter_map(|what| match what {
                What::BelowGate { step, took, .. } => Some((*step, took.token_id)),
                _ => None,
            })
            .collect();
        assert_eq!(steps, [(2, 2), (3, 3)]);
        assert_eq!(found(Some(1.0), None).len(), 3);
    }

    #[test]
    fn tokens_below_the_threshold_are_counted_against_the_most_that_pass() {
        assert_eq!(found(None, Some(2)), []);
        let count = 2;
        assert_eq!(found(None, Some(1)), [What::TooManyLow { count, limit: 1 }]);
        assert_eq!(found(Some(0.2), Some(0)).len(), 2);
    }
}
