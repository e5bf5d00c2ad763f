//! The record's schema 1, written down a second time: a field that comes, goes or changes its type fails a test here.
//!
//! A field that may be null must be there all the same; only what is marked `default` may be absent. Numbers that only a
//! server's answers leave open (`logit`, `mass_count`, …) are no options here: a local model's are always known.

#![allow(dead_code, reason = "a field is checked by being read")]

use serde::{Deserialize, Deserializer};

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) schema: u32,
    pub(crate) program: String,
    pub(crate) model: ModelInfo,
    pub(crate) settings: Settings,
    pub(crate) prompts: Vec<Entry>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelInfo {
    pub(crate) id: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) revision: Option<String>,
    pub(crate) architecture: String,
    pub(crate) vocab_size: usize,
    pub(crate) weights_dtype: String,
    pub(crate) compute_dtype: String,
    pub(crate) device: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub(crate) max_new_tokens: usize,
    pub(crate) samples: u32,
    pub(crate) seed: u64,
    pub(crate) candidates: usize,
    pub(crate) mass: f64,
    pub(crate) threshold: f64,
    #[serde(deserialize_with = "nullable")]
    pub(crate) thinking: Option<bool>,
    pub(crate) raw: bool,
    #[serde(deserialize_with = "nullable")]
    pub(crate) system: Option<String>,
    pub(crate) filter_order: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) template_source: Option<String>,
    pub(crate) stop_ids: Vec<u32>,
    #[serde(default)]
    pub(crate) ignore_eos: bool,
    #[serde(default)]
    pub(crate) run: Option<u32>,
    #[serde(default)]
    pub(crate) plain_text: bool,
    #[serde(default)]
    pub(crate) template_date: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Entry {
    Done(Box<Done>),
    Failed(Failed),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Done {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) prompt: String,
    #[serde(default)]
    pub(crate) system: Option<String>,
    pub(crate) rendered: String,
    pub(crate) prompt_token_ids: Vec<u32>,
    pub(crate) greedy: Run,
    pub(crate) sweeps: Vec<Sweep>,
    #[serde(default)]
    pub(crate) analysis: Option<Analysis>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Failed {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) prompt: String,
    #[serde(default)]
    pub(crate) system: Option<String>,
    pub(crate) error: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sweep {
    pub(crate) label: String,
    pub(crate) temperature: f64,
    pub(crate) top_k: usize,
    pub(crate) top_p: f64,
    pub(crate) min_p: f64,
    pub(crate) distinct_replies: usize,
    pub(crate) low_probability_tokens: usize,
    pub(crate) runs: Vec<Run>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    pub(crate) run: u32,
    pub(crate) text: String,
    pub(crate) marked: String,
    pub(crate) finish_reason: String,
    #[serde(default)]
    pub(crate) incomplete_bytes: Vec<u8>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) token_id: u32,
    pub(crate) token: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) logit: f32,
    pub(crate) logprob: f32,
    pub(crate) prob: f32,
    pub(crate) rank: usize,
    pub(crate) entropy_bits: f32,
    pub(crate) mass_count: usize,
    #[serde(deserialize_with = "nullable")]
    pub(crate) margin: Option<f32>,
    pub(crate) special: bool,
    #[serde(default)]
    pub(crate) sampling: Option<Sampling>,
    pub(crate) top_logprobs: Vec<Candidate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sampling {
    pub(crate) prob: f32,
    pub(crate) kept: usize,
    pub(crate) kept_mass: f32,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Candidate {
    pub(crate) token_id: u32,
    pub(crate) token: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) special: bool,
    pub(crate) logprob: f32,
    pub(crate) prob: f32,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Analysis {
    pub(crate) sweeps: Vec<SweepAnalysis>,
    pub(crate) pairs: Vec<PairAnalysis>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SweepAnalysis {
    pub(crate) label: String,
    pub(crate) mean_prob: f32,
    pub(crate) lowest_prob: f32,
    pub(crate) mean_kept: f32,
    pub(crate) mean_kept_mass: f32,
    pub(crate) outside_mass: f32,
    #[serde(deserialize_with = "nullable")]
    pub(crate) parting: Option<Parting>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parting {
    pub(crate) step: usize,
    pub(crate) branches: Vec<Branch>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Branch {
    pub(crate) took: Candidate,
    pub(crate) runs: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PairAnalysis {
    pub(crate) first: String,
    pub(crate) second: String,
    pub(crate) second_parts: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) parting: Option<PairParting>,
    pub(crate) same_runs: usize,
    pub(crate) run_by_run: Vec<RunParting>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PairParting {
    pub(crate) step: usize,
    pub(crate) branches: Vec<PairBranch>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PairBranch {
    pub(crate) took: Candidate,
    pub(crate) first_runs: Vec<u32>,
    pub(crate) second_runs: Vec<u32>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunParting {
    pub(crate) run: u32,
    pub(crate) step: usize,
    pub(crate) first: Candidate,
    pub(crate) second: Candidate,
}

/// What `temperature-step1` writes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TemperatureStep1 {
    pub(crate) schema: u32,
    pub(crate) program: String,
    pub(crate) model: ModelInfo,
    pub(crate) prompt: String,
    pub(crate) rendered: String,
    pub(crate) prompt_token_ids: Vec<u32>,
    pub(crate) temperatures: Vec<f64>,
    pub(crate) candidates: Vec<Tempered>,
    pub(crate) rest: Vec<f32>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tempered {
    pub(crate) token_id: u32,
    pub(crate) token: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) special: bool,
    pub(crate) logit: f32,
    pub(crate) probs: Vec<f32>,
}

/// What `score` writes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Score {
    pub(crate) schema: u32,
    pub(crate) program: String,
    pub(crate) model: ModelInfo,
    pub(crate) settings: ScoreSettings,
    #[serde(deserialize_with = "nullable")]
    pub(crate) prompt: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) rendered: Option<String>,
    pub(crate) prompt_token_ids: Vec<u32>,
    pub(crate) text: String,
    pub(crate) marked: String,
    pub(crate) end: bool,
    #[serde(default)]
    pub(crate) recorded: Option<Recorded>,
    pub(crate) totals: Totals,
    pub(crate) steps: Vec<ScoredStep>,
    pub(crate) named: Vec<Named>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScoreSettings {
    pub(crate) candidates: usize,
    pub(crate) mass: f64,
    pub(crate) threshold: f64,
    #[serde(deserialize_with = "nullable")]
    pub(crate) thinking: Option<bool>,
    pub(crate) raw: bool,
    #[serde(deserialize_with = "nullable")]
    pub(crate) system: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) template_source: Option<String>,
    pub(crate) stop_ids: Vec<u32>,
    #[serde(default)]
    pub(crate) plain_text: bool,
    #[serde(default)]
    pub(crate) template_date: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recorded {
    pub(crate) prompt: usize,
    #[serde(deserialize_with = "nullable")]
    pub(crate) sweep: Option<String>,
    pub(crate) run: u32,
    #[serde(deserialize_with = "nullable")]
    pub(crate) largest_difference: Option<f32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Totals {
    pub(crate) tokens: usize,
    pub(crate) bytes: usize,
    #[serde(deserialize_with = "nullable")]
    pub(crate) sum_logprob: Option<f64>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) mean_logprob: Option<f64>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) perplexity: Option<f64>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) bits_per_byte: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScoredStep {
    pub(crate) token_id: u32,
    pub(crate) token: String,
    pub(crate) bytes: Vec<u8>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) logit: Option<f32>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) logprob: Option<f32>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) prob: Option<f32>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) rank: Option<usize>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) entropy_bits: Option<f32>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) mass_count: Option<usize>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) margin: Option<f32>,
    pub(crate) special: bool,
    pub(crate) top_logprobs: Vec<Candidate>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named {
    pub(crate) text: String,
    pub(crate) is_sequence: bool,
    #[serde(deserialize_with = "nullable")]
    pub(crate) logprob: Option<f32>,
    pub(crate) prob: f32,
    #[serde(deserialize_with = "nullable")]
    pub(crate) rank: Option<usize>,
    pub(crate) tokens: Vec<NamedToken>,
    pub(crate) steps: Vec<Option<Odds>>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedToken {
    pub(crate) token_id: u32,
    pub(crate) token: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) special: bool,
    #[serde(deserialize_with = "nullable")]
    pub(crate) logprob: Option<f32>,
    pub(crate) prob: f32,
    pub(crate) rank: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Odds {
    #[serde(deserialize_with = "nullable")]
    pub(crate) logprob: Option<f32>,
    pub(crate) prob: f32,
    pub(crate) rank: usize,
}

impl Record {
    /// Returns a prompt that was run.
    pub(crate) fn done(&self, index: usize) -> &Done {
        match &self.prompts[index] {
            Entry::Done(done) => done,
            Entry::Failed(failed) => panic!("prompt {index}: {}", failed.error),
        }
    }

    /// Returns why a prompt could not be run.
    pub(crate) fn error(&self, index: usize) -> &str {
        match &self.prompts[index] {
            Entry::Done(done) => panic!("prompt {index} was run: {}", done.prompt),
            Entry::Failed(failed) => &failed.error,
        }
    }

    /// Returns every run of every prompt.
    pub(crate) fn runs(&self) -> impl Iterator<Item = &Run> {
        let done = self.prompts.iter().filter_map(|entry| match entry {
            Entry::Done(done) => Some(done),
            Entry::Failed(_) => None,
        });
        done.flat_map(|done| {
            let sampled = done.sweeps.iter().flat_map(|sweep| &sweep.runs);
            std::iter::once(&done.greedy).chain(sampled)
        })
    }

    /// Returns every step of every run.
    pub(crate) fn steps(&self) -> impl Iterator<Item = &Step> {
        self.runs().flat_map(|run| &run.steps)
    }
}

impl Run {
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.steps.iter().map(|step| step.token_id).collect()
    }
}

/// A value that may be null but not absent.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}
