//! Pure summaries of recorded runs.

pub mod audit;
pub mod compare;
pub mod parting;
pub mod score;
pub mod tree;

use std::collections::BTreeMap;

use crate::record::{Analysis, FinishReason, Run, Step, Sweep, SweepAnalysis};
use crate::text::display;

/// Returns what there is to say of a prompt's sampled runs; `None` where there are none.
pub fn of(sweeps: &[Sweep]) -> Option<Box<Analysis>> {
    let pairs = sweeps.iter().enumerate().flat_map(|(index, sweep)| {
        let others = sweeps[index + 1..].iter();
        others.map(move |other| parting::pair(sweep, other))
    });
    (!sweeps.is_empty()).then(|| {
        Box::new(Analysis {
            sweeps: sweeps.iter().map(sweep_analysis).collect(),
            pairs: pairs.collect(),
        })
    })
}

fn sweep_analysis(sweep: &Sweep) -> SweepAnalysis {
    let steps = || sweep.runs.iter().flat_map(|run| &run.steps);
    // a run has at least one step; 0 where there is none
    let count = steps().count().max(1) as f64;
    let mean = |value: fn(&Step) -> f64| (steps().map(value).sum::<f64>() / count) as f32;
    let known_mean = |value: fn(&Step) -> Option<f64>| {
        let values: Option<Vec<f64>> = steps().map(value).collect();
        values.map(|values| (values.into_iter().sum::<f64>() / count) as f32)
    };
    let kept = |step: &Step| match step.sampling {
        Some(sampling) => sampling.kept.map(|kept| kept as f64),
        None => Some(0.0),
    };
    let kept_mass = |step: &Step| match step.sampling {
        Some(sampling) => sampling.kept_mass.map(f64::from),
        None => Some(0.0),
    };
    // whatever was drawn was shown, and what was shown did not reach the mass where the count is open
    let outside = |step: &Step| {
        let is_outside = step.mass_count.is_some_and(|count| step.rank > count);
        f64::from(u8::from(is_outside))
    };
    SweepAnalysis {
        label: sweep.label.clone(),
        mean_prob: mean(|step| f64::from(step.prob)),
        lowest_prob: steps().map(|step| step.prob).fold(1.0, f32::min),
        mean_kept: known_mean(kept),
        mean_kept_mass: known_mean(kept_mass),
        outside_mass: mean(outside),
        parting: parting::parting(&sweep.runs),
    }
}

/// A stretch of a marked reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Piece {
    /// Tokens that are not marked, as text; bytes that are no text as `\xE4`.
    Text(String),
    /// A token to mark, as a cell shows it.
    Low {
        /// Its text, escaped.
        token: String,
        /// Its raw probability.
        prob: f32,
    },
}

/// Returns a reply as pieces, in which every token with a raw probability below `threshold` stands by itself. The stop and
/// other control tokens are no text and come up only where they are improbable.
pub fn pieces(run: &Run, threshold: f64) -> Vec<Piece> {
    let text_len = text_len(run.finish_reason, run.steps.len());
    pieces_of(run.steps.iter().map(Glyph::from), text_len, threshold)
}

/// What a reply needs of a token.
#[derive(Debug, Clone, Copy)]
pub struct Glyph<'a> {
    /// Its text.
    pub token: &'a str,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Whether it is no text.
    pub special: bool,
    /// Its raw probability.
    pub prob: f32,
}

impl<'a> From<&'a Step> for Glyph<'a> {
    fn from(step: &'a Step) -> Self {
        Self {
            token: &step.token,
            bytes: &step.bytes,
            special: step.special,
            prob: step.prob,
        }
    }
}

/// As [`pieces`], of some tokens in a row; those from the index `text_len` on are no text.
pub fn pieces_of<'a>(
    glyphs: impl IntoIterator<Item = Glyph<'a>>,
    text_len: usize,
    threshold: f64,
) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    for (index, step) in glyphs.into_iter().enumerate() {
        if f64::from(step.prob) < threshold {
            let token = display::cell(step.token, step.bytes);
            let token = match display::after_space(&token) {
                Some(word) => {
                    bytes.push(b' ');
                    word.to_owned()
                }
                None => token,
            };
            push_text(&mut pieces, &mut bytes);
            let prob = step.prob;
            pieces.push(Piece::Low { token, prob });
        } else if !step.special && index < text_len {
            bytes.extend(step.bytes);
        }
    }
    push_text(&mut pieces, &mut bytes);
    pieces
}

/// Returns a reply as one text, each marked token as `【token|0.02】`.
pub fn marked(pieces: Vec<Piece>) -> String {
    let written = |piece| match piece {
        Piece::Text(text) => text,
        Piece::Low { token, prob } => format!("【{token}|{prob:.2}】"),
    };
    pieces.into_iter().map(written).collect()
}

/// Returns how many of a run's steps are text: all but the stop.
pub fn text_len(finish_reason: FinishReason, num_steps: usize) -> usize {
    match finish_reason {
        FinishReason::Stop => num_steps.saturating_sub(1),
        FinishReason::Length | FinishReason::Context => num_steps,
    }
}

fn push_text(pieces: &mut Vec<Piece>, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.push_str(&display::escape(chunk.invalid()));
    }
    bytes.clear();
    pieces.push(Piece::Text(text));
}

/// Returns how many different sequences of tokens the runs are.
pub fn distinct_replies(runs: &[Run]) -> usize {
    replies(runs).len()
}

/// Groups runs by their tokens: one entry for each distinct reply, in the order of their first runs.
pub fn replies(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut places: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        let ids = run.steps.iter().map(|step| step.token_id).collect();
        let place = *places.entry(ids).or_insert(groups.len());
        match groups.get_mut(place) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
}

/// Returns the raw probability of all that a step does not list, in [0, 1].
pub fn unlisted(step: &Step) -> f32 {
    let listed = step.top_logprobs.iter().map(|c| f64::from(c.prob));
    (1.0 - listed.sum::<f64>()).clamp(0.0, 1.0) as f32
}

/// Returns how many tokens of all runs have a raw probability below `threshold`.
pub fn low_probability_tokens(runs: &[Run], threshold: f64) -> usize {
    let steps = runs.iter().flat_map(|run| &run.steps);
    steps
        .filter(|step| f64::from(step.prob) < threshold)
        .count()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::{Candidate, Sampling};

    /// A run of tokens without text: ids and probabilities.
    pub(crate) fn run(tokens: &[(u32, f32)]) -> Run {
        let step = |&(token_id, prob): &(u32, f32)| Step {
            token_id,
            token: String::new(),
            bytes: Vec::new(),
            logit: None,
            logprob: 0.0,
            prob,
            rank: 1,
            entropy_bits: None,
            mass_count: Some(1),
            margin: None,
            special: false,
            bounds: None,
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
    fn a_sweeps_means_are_over_the_tokens_of_all_runs() {
        let sampled = |prob, rank, kept, kept_mass| {
            let mut step = run(&[(1, prob)]).steps.remove(0);
            step.rank = rank;
            step.mass_count = Some(2);
            step.sampling = Some(Sampling {
                prob: Some(1.0),
                kept: Some(kept),
                kept_mass: Some(kept_mass),
            });
            step
        };
        let mut runs = [run(&[]), run(&[])];
        runs[0].steps = vec![sampled(0.5, 1, 4, 1.0), sampled(0.25, 2, 2, 0.75)];
        runs[1].steps = vec![sampled(0.5, 1, 4, 1.0), sampled(0.125, 3, 6, 0.5)];
        let sweep = Sweep {
            label: "temperature 1.0".into(),
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            distinct_replies: 2,
            low_probability_tokens: 0,
            runs: runs.to_vec(),
        };
        let analysis = sweep_analysis(&sweep);
        assert_eq!(
            [
                analysis.mean_prob,
                analysis.lowest_prob,
                analysis.outside_mass
            ],
            [0.34375, 0.125, 0.25]
        );
        let means = |analysis: &SweepAnalysis| (analysis.mean_kept, analysis.mean_kept_mass);
        assert_eq!(means(&analysis), (Some(4.0), Some(0.8125)));

        // what a server left open at one step leaves the mean open, and what it drew was inside
        let mut sweep = sweep;
        let step = &mut sweep.runs[1].steps[1];
        step.mass_count = None;
        step.sampling = Some(Sampling {
            prob: None,
            kept: None,
            kept_mass: None,
        });
        let analysis = sweep_analysis(&sweep);
        assert_eq!(
            (means(&analysis), analysis.outside_mass),
            ((None, None), 0.0)
        );
    }

    #[test]
    fn replies_are_the_same_when_all_their_tokens_are() {
        let runs = [
            run(&[(1, 0.5), (2, 0.5)]),
            run(&[(1, 0.5)]),
            run(&[(1, 0.5), (2, 0.5)]),
        ];
        assert_eq!((distinct_replies(&runs), distinct_replies(&[])), (2, 0));
        let groups = replies(&runs);
        assert_eq!([groups[0].len(), groups[1].len()], [2, 1]);
        assert!(std::ptr::eq(groups[0][1], &runs[2]));
    }

    #[test]
    fn what_a_step_does_not_list_has_the_rest_and_never_less_than_nothing() {
        let mut step = run(&[(1, 0.5)]).steps.remove(0);
        assert_eq!(unlisted(&step), 1.0);
        let candidate = |prob| Candidate {
            token_id: 0,
            token: String::new(),
            bytes: Vec::new(),
            special: false,
            logprob: 0.0,
            prob,
        };
        step.top_logprobs = vec![candidate(0.5), candidate(0.25)];
        assert_eq!(unlisted(&step), 0.25);
        step.top_logprobs.push(candidate(0.5));
        assert_eq!(unlisted(&step).to_bits(), 0);
    }

    #[test]
    fn a_token_at_the_threshold_is_not_below_it() {
        let runs = [run(&[(1, 0.25), (2, 0.125)]), run(&[(1, 0.0)])];
        assert_eq!(low_probability_tokens(&runs, 0.25), 2);
    }
}
