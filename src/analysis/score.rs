//! Sums over the tokens of a scored text.

use std::f64::consts::LN_2;

use crate::analysis::{Glyph, Piece, pieces_of};
use crate::record::Step;
use crate::record::score::{ScoredStep, Totals};

/// Returns the sums of a trace: log-probability, its mean, perplexity and bits per byte, of the numbers as they are recorded.
/// An `end` is a token like the others, without bytes.
pub fn totals(steps: &[ScoredStep], end: bool) -> Totals {
    let scored = || steps.iter().filter(|step| step.prob.is_some());
    let tokens = scored().count();
    let text = steps[..steps.len() - usize::from(end)].iter();
    let text = text.filter(|step| step.prob.is_some() && !step.special);
    let bytes = text.map(|step| step.bytes.len()).sum();
    let logprobs: Option<Vec<f32>> = scored().map(|step| step.logprob).collect();
    let logprobs = logprobs.filter(|logprobs| !logprobs.is_empty());
    let sum = logprobs.map(|logprobs| logprobs.into_iter().map(f64::from).sum::<f64>());
    let mean = sum.map(|sum| sum / tokens as f64);
    let finite = |value: f64| value.is_finite().then_some(value);
    Totals {
        tokens,
        bytes,
        sum_logprob: sum,
        mean_logprob: mean,
        perplexity: mean.and_then(|mean| finite((-mean).exp())),
        // 0 - x: a sure text has 0 bits, not -0
        bits_per_byte: sum.and_then(|sum| finite((0.0 - sum) / LN_2 / bytes as f64)),
    }
}

/// Returns a scored text as pieces, in which every token with a raw probability below `threshold` stands by itself. A token
/// without a number is text; an `end` is none.
pub fn pieces(steps: &[ScoredStep], end: bool, threshold: f64) -> Vec<Piece> {
    let glyphs = steps.iter().map(|step| Glyph {
        token: &step.token,
        bytes: &step.bytes,
        special: step.special,
        prob: step.prob.unwrap_or(1.0),
    });
    pieces_of(glyphs, steps.len() - usize::from(end), threshold)
}

/// Returns the largest difference between the log-probabilities of a trace and those of a recorded run of the same tokens;
/// `None` where one of them is unknown.
pub fn largest_difference(steps: &[ScoredStep], recorded: &[Step]) -> Option<f32> {
    let mut differences = steps.iter().zip(recorded).map(|(step, recorded)| {
        let difference = step.logprob? - recorded.logprob;
        difference.is_finite().then_some(difference.abs())
    });
    differences.try_fold(0f32, |largest, difference| Some(difference?.max(largest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(text: &str, logprob: Option<f32>) -> ScoredStep {
        ScoredStep {
            token_id: 0,
            token: text.into(),
            bytes: text.into(),
            logit: None,
            logprob,
            prob: logprob.map(f32::exp),
            rank: None,
            entropy_bits: None,
            mass_count: None,
            margin: None,
            special: text.starts_with("<|"),
            bounds: None,
            top_logprobs: Vec::new(),
        }
    }

    #[test]
    fn a_first_token_without_a_number_counts_nowhere() {
        let half = -std::f32::consts::LN_2;
        let steps = [
            step("first", None),
            step("ab", Some(half)),
            step("cd", Some(half)),
            step("<|end|>", Some(2.0 * half)),
        ];
        let totals = totals(&steps, false);
        assert_eq!((totals.tokens, totals.bytes), (3, 4));
        let close = |value: Option<f64>, wanted: f64| {
            assert!(
                value.is_some_and(|v| (v - wanted).abs() < 1e-6),
                "{value:?}"
            );
        };
        close(totals.sum_logprob, 4.0 * f64::from(half));
        close(totals.mean_logprob, 4.0 / 3.0 * f64::from(half));
        close(totals.perplexity, 2f64.powf(4.0 / 3.0));
        close(totals.bits_per_byte, 1.0);
    }

    #[test]
    fn what_cannot_be_a_number_is_null() {
        let impossible = ScoredStep {
            prob: Some(0.0),
            ..step("x", None)
        };
        let none = totals(&[step("a", Some(-1.0)), impossible], false);
        assert_eq!(
            (none.tokens, none.sum_logprob, none.perplexity),
            (2, None, None)
        );
        assert_eq!(totals(&[], false).mean_logprob, None);
        assert_eq!(
            totals(&[step("a", Some(-1e4))], false).perplexity,
            None,
            "too large"
        );
        assert_eq!(
            totals(&[step("<|x|>", Some(-1.0))], false).bits_per_byte,
            None
        );
        let sure = totals(&[step("a", Some(0.0))], false);
        assert_eq!(sure.bits_per_byte.map(f64::to_bits), Some(0f64.to_bits()));
    }

    #[test]
    fn an_end_is_marked_when_improbable_and_never_text() {
        let steps = [
            step("a", None),
            step("b", Some(-3.0)),
            step("c", Some(-0.1)),
        ];
        let low = |token: &str| Piece::Low {
            token: token.into(),
            prob: (-3f32).exp(),
        };
        let text = |text: &str| Piece::Text(text.into());
        assert_eq!(pieces(&steps, false, 0.3), [text("a"), low("b"), text("c")]);
        assert_eq!(pieces(&steps, true, 0.3), [text("a"), low("b")]);
        assert_eq!([false, true].map(|end| totals(&steps, end).bytes), [2, 1]);
    }
}
