//! From ids to text: an exploration becomes the entry of a record.
//!
//! A token of the reply that is less probable than the threshold is marked in the text as `【token|0.02】`. Text is decoded
//! from the bytes of all tokens at once, never token by token.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::analysis;
use crate::explore::{Exploration, Scored, Trace, TraceStep};
use crate::record::{Candidate, Run, Step, Sweep, TemperedCandidate};
use crate::setting::Setting;
use crate::text::tokenizer::{Reply, TextTokenizer, Token};

/// Names ids and turns them back into text.
pub trait Vocabulary {
    /// Finds out what `ids` are called and how `replies` read, where that is not known beforehand.
    ///
    /// # Errors
    /// When whoever knows does not answer.
    fn learn(&self, _ids: &BTreeSet<u32>, _replies: &[Vec<u32>]) -> Result<()> {
        Ok(())
    }

    /// Returns what there is to know of an id.
    fn token(&self, id: u32) -> Token;

    /// Returns the text of a reply, without control tokens.
    fn detokenize(&self, ids: &[u32]) -> Reply;
}

impl Vocabulary for TextTokenizer {
    fn token(&self, id: u32) -> Token {
        self.token(id)
    }

    fn detokenize(&self, ids: &[u32]) -> Reply {
        self.detokenize(ids)
    }
}

/// Writes down the runs of one prompt.
pub struct Transcript<'a> {
    /// Names the ids.
    pub vocabulary: &'a dyn Vocabulary,
    /// Tokens below this probability are marked.
    pub threshold: f64,
}

impl Transcript<'_> {
    /// Has the vocabulary learn all that an exploration is written down with.
    ///
    /// # Errors
    /// As [`Vocabulary::learn`].
    pub fn learn(&self, exploration: &Exploration) -> Result<()> {
        let traces = || {
            exploration
                .sweeps
                .iter()
                .flatten()
                .chain([&exploration.greedy])
        };
        let mut ids = BTreeSet::new();
        for step in traces().flat_map(|trace| &trace.steps) {
            ids.insert(step.token.token_id);
            ids.extend(step.summary.candidates.iter().map(|scored| scored.token_id));
        }
        let replies: Vec<Vec<u32>> = traces().map(reply_ids).collect();
        self.vocabulary.learn(&ids, &replies)
    }

    /// Returns the greedy run and one sweep for each of `settings`, in order.
    pub fn of(&self, exploration: &Exploration, settings: &[Setting]) -> (Run, Vec<Sweep>) {
        let sweeps = settings
            .iter()
            .zip(&exploration.sweeps)
            .map(|(setting, traces)| {
                let runs: Vec<Run> = traces.iter().map(|trace| self.run(trace)).collect();
                Sweep {
                    label: setting.to_string(),
                    temperature: setting.temperature(),
                    top_k: setting.top_k(),
                    top_p: setting.top_p(),
                    min_p: setting.min_p(),
                    distinct_replies: analysis::distinct_replies(&runs),
                    low_probability_tokens: analysis::low_probability_tokens(&runs, self.threshold),
                    runs,
                }
            });
        (self.run(&exploration.greedy), sweeps.collect())
    }

    fn run(&self, trace: &Trace) -> Run {
        let steps: Vec<Step> = trace.steps.iter().map(|step| self.step(step)).collect();
        let reply = self.vocabulary.detokenize(&reply_ids(trace));
        let mut run = Run {
            run: trace.run,
            text: reply.text,
            marked: String::new(),
            finish_reason: trace.finish_reason,
            incomplete_bytes: reply.incomplete_bytes,
            steps,
        };
        run.marked = analysis::marked(analysis::pieces(&run, self.threshold));
        run
    }

    fn step(&self, step: &TraceStep) -> Step {
        let token = self.vocabulary.token(step.token.token_id);
        let candidates = step.summary.candidates.iter();
        Step {
            token_id: step.token.token_id,
            token: plain_text(&token),
            bytes: token.bytes,
            logit: step.token.logit,
            logprob: step.token.logprob,
            prob: step.token.prob,
            rank: step.rank,
            entropy_bits: step.summary.entropy_bits,
            mass_count: step.summary.mass_count,
            margin: step.summary.margin,
            special: token.special,
            bounds: step.summary.bounds,
            sampling: step.sampling,
            top_logprobs: candidates.map(|scored| self.candidate(scored)).collect(),
        }
    }

    /// Returns a candidate as a record names it.
    pub fn candidate(&self, scored: &Scored) -> Candidate {
        let token = self.vocabulary.token(scored.token_id);
        Candidate {
            token_id: scored.token_id,
            token: plain_text(&token),
            bytes: token.bytes,
            special: token.special,
            logprob: scored.logprob,
            prob: scored.prob,
        }
    }

    /// Returns a candidate with its probability at several temperatures.
    pub fn tempered(
        &self,
        token_id: u32,
        logit: Option<f32>,
        probs: Vec<f32>,
    ) -> TemperedCandidate {
        let token = self.vocabulary.token(token_id);
        TemperedCandidate {
            token_id,
            token: plain_text(&token),
            bytes: token.bytes,
            special: token.special,
            logit,
            probs,
        }
    }
}

/// The ids of a run that are its text.
fn reply_ids(trace: &Trace) -> Vec<u32> {
    let text = &trace.steps[..analysis::text_len(trace.finish_reason, trace.steps.len())];
    text.iter().map(|step| step.token.token_id).collect()
}

/// A token's text as it is, where its bytes are text; else with escapes.
pub(crate) fn plain_text(token: &Token) -> String {
    match std::str::from_utf8(&token.bytes) {
        Ok(text) if !text.is_empty() => text.to_owned(),
        _ => token.text.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::Summary;
    use crate::record::FinishReason;
    use crate::text::display;
    use std::sync::Arc;

    /// A stop id that is no control token: `!`.
    const PLAIN_STOP: u32 = 33;

    /// Every id is one byte; 255 is the end.
    struct Bytes;

    impl Vocabulary for Bytes {
        fn token(&self, id: u32) -> Token {
            match id {
                255 => Token {
                    text: "<|end|>".into(),
                    bytes: b"<|end|>".to_vec(),
                    special: true,
                },
                _ => Token {
                    text: display::escape(&[id as u8]),
                    bytes: vec![id as u8],
                    special: false,
                },
            }
        }

        fn detokenize(&self, ids: &[u32]) -> Reply {
            let bytes: Vec<u8> = ids
                .iter()
                .filter(|&&id| id != 255)
                .map(|&id| id as u8)
                .collect();
            Reply {
                text: String::from_utf8_lossy(&bytes).into_owned(),
                incomplete_bytes: Vec::new(),
            }
        }
    }

    fn trace(tokens: &[(u32, f32)]) -> Trace {
        let summary = Arc::new(Summary {
            entropy_bits: Some(0.0),
            mass_count: Some(1),
            margin: None,
            bounds: None,
            candidates: Vec::new(),
        });
        let steps = tokens.iter().map(|&(token_id, prob)| TraceStep {
            token: Scored {
                token_id,
                logit: Some(0.0),
                logprob: prob.ln(),
                prob,
            },
            rank: 1,
            sampling: None,
            summary: summary.clone(),
        });
        Trace {
            run: 0,
            finish_reason: match tokens.last() {
                Some((255 | PLAIN_STOP, _)) => FinishReason::Stop,
                _ => FinishReason::Length,
            },
            steps: steps.collect(),
        }
    }

    fn run(tokens: &[(u32, f32)]) -> Run {
        Transcript {
            vocabulary: &Bytes,
            threshold: 0.3,
        }
        .run(&trace(tokens))
    }

    #[test]
    fn tokens_below_the_threshold_are_marked_and_the_end_is_no_text() {
        let run = run(&[
            (b'a'.into(), 0.9),
            (b'\n'.into(), 0.024),
            (b'b'.into(), 0.3),
            (255, 0.9),
        ]);
        assert_eq!(run.marked, "a【\\n|0.02】b");
        assert_eq!((run.text.as_str(), run.steps.len()), ("a\nb", 4));
        assert!(run.steps[3].special);
    }

    #[test]
    fn the_space_of_a_word_stands_before_its_mark() {
        let word = |bytes: &[u8]| Token {
            text: display::escape(bytes),
            bytes: bytes.to_vec(),
            special: false,
        };
        struct Words(Vec<Token>);
        impl Vocabulary for Words {
            fn token(&self, id: u32) -> Token {
                self.0[id as usize].clone()
            }
            fn detokenize(&self, _: &[u32]) -> Reply {
                Reply {
                    text: String::new(),
                    incomplete_bytes: Vec::new(),
                }
            }
        }
        let words = Words(vec![word(b" The"), word(b" "), word(b"  x")]);
        let trace = trace(&[(0, 0.1), (1, 0.1), (2, 0.1)]);
        let run = Transcript {
            vocabulary: &words,
            threshold: 0.3,
        }
        .run(&trace);
        assert_eq!(run.marked, " 【The|0.10】【␠|0.10】【␠␠x|0.10】");
    }

    #[test]
    fn a_stop_is_no_text_even_where_it_is_no_control_token() {
        let stopped = run(&[(b'a'.into(), 0.9), (PLAIN_STOP, 0.9)]);
        assert_eq!((stopped.text.as_str(), stopped.marked.as_str()), ("a", "a"));
        let gone_on = run(&[(PLAIN_STOP, 0.9), (b'a'.into(), 0.9)]);
        assert_eq!(
            (gone_on.text.as_str(), gone_on.marked.as_str()),
            ("!a", "!a")
        );
    }

    #[test]
    fn an_improbable_end_is_marked_too() {
        assert_eq!(
            run(&[(b'a'.into(), 0.9), (255, 0.1)]).marked,
            "a【<|end|>|0.10】"
        );
    }

    #[test]
    fn a_character_in_several_tokens_is_whole_unless_a_mark_cuts_it() {
        let bytes = "é".bytes().map(u32::from).collect::<Vec<_>>();
        assert_eq!(run(&[(bytes[0], 0.9), (bytes[1], 0.9)]).marked, "é");
        assert_eq!(
            run(&[(bytes[0], 0.9), (bytes[1], 0.1)]).marked,
            "\\xC3【\\xA9|0.10】"
        );
        assert_eq!(run(&[(bytes[0], 0.9)]).steps[0].token, "\\xC3");
    }
}
