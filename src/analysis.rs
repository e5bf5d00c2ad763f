//! Pure summaries of recorded runs.

use std::collections::BTreeSet;

use crate::record::Run;

/// Returns how many different sequences of tokens the runs are.
pub fn distinct_replies(runs: &[Run]) -> usize {
    let ids = |run: &Run| {
        run.steps
            .iter()
            .map(|step| step.token_id)
            .collect::<Vec<_>>()
    };
    runs.iter().map(ids).collect::<BTreeSet<_>>().len()
}

/// Returns how many tokens of all runs have a raw probability below `threshold`.
pub fn low_probability_tokens(runs: &[Run], threshold: f64) -> usize {
    let steps = runs.iter().flat_map(|run| &run.steps);
    steps
        .filter(|step| f64::from(step.prob) < threshold)
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{FinishReason, Step};

    fn run(tokens: &[(u32, f32)]) -> Run {
        let step = |&(token_id, prob): &(u32, f32)| Step {
            token_id,
            token: String::new(),
            bytes: Vec::new(),
            logit: 0.0,
            logprob: 0.0,
            prob,
            rank: 1,
            entropy_bits: 0.0,
            mass_count: 1,
            margin: None,
            special: false,
            sampling: None,
            top_logprobs: Vec::new(),
        };
        Run {
            run: 0,
            text: String::new(),
            marked: String::new(),
            finish_reason: FinishReason::Length,
            incomplete_bytes: Vec::new(),
            steps: tokens.iter().map(step).collect(),
        }
    }

    #[test]
    fn replies_are_the_same_when_all_their_tokens_are() {
        let runs = [
            run(&[(1, 0.5), (2, 0.5)]),
            run(&[(1, 0.5)]),
            run(&[(1, 0.5), (2, 0.5)]),
        ];
        assert_eq!((distinct_replies(&runs), distinct_replies(&[])), (2, 0));
    }

    #[test]
    fn a_token_at_the_threshold_is_not_below_it() {
        let runs = [run(&[(1, 0.25), (2, 0.125)]), run(&[(1, 0.0)])];
        assert_eq!(low_probability_tokens(&runs, 0.25), 2);
    }
}
