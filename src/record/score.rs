//! What `score` writes: the trace of a given text (schema 1). Types and their meaning, no logic.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::{Bounds, Candidate, ModelInfo};

/// The trace of one text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Score {
    /// [`SCHEMA`](crate::record::SCHEMA).
    pub schema: u32,
    /// Program name and version.
    pub program: String,
    /// The model that was asked.
    pub model: ModelInfo,
    /// What was asked of it.
    pub settings: ScoreSettings,
    /// As it was given; null where a whole text was.
    pub prompt: Option<String>,
    /// What the model saw of the prompt; null where there was none.
    pub rendered: Option<String>,
    /// The ids that the model saw before the text.
    pub prompt_token_ids: Vec<u32>,
    /// What was scored, as it was given; a recorded run's text.
    pub text: String,
    /// The text with tokens below the threshold as `【token|0.02】`.
    pub marked: String,
    /// Whether the last step is a stop token, which is no part of the text.
    pub end: bool,
    /// The recorded run that was scored again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Recorded>,
    /// Sums over the steps.
    pub totals: Totals,
    /// One entry a token.
    pub steps: Vec<ScoredStep>,
    /// The candidates that were named.
    pub named: Vec<Named>,
}

/// What holds for all steps of a [`Score`]; the names are those of [`Settings`](crate::record::Settings).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScoreSettings {
    /// Entries of `top_logprobs`, at most the vocabulary.
    pub candidates: usize,
    /// The mass that `mass_count` counts up to.
    pub mass: f64,
    /// Tokens with a smaller probability are marked.
    pub threshold: f64,
    /// Whether the template was asked to open a thinking block; null where it has no such switch or was not used.
    pub thinking: Option<bool>,
    /// Whether no chat template was used.
    pub raw: bool,
    /// System message.
    pub system: Option<String>,
    /// Where the chat template came from, with its sha256; null where none was used.
    pub template_source: Option<String>,
    /// Ids that end a reply.
    pub stop_ids: Vec<u32>,
    /// Whether raw text was tokenised without parsing control tokens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plain_text: bool,
    /// The date that the template asked for, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_date: Option<String>,
}

/// Which recorded run was scored, and how far its numbers are from the recorded ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Recorded {
    /// The prompt's place in the record, from 1.
    pub prompt: usize,
    /// Label of the sweep; null for the greedy run.
    pub sweep: Option<String>,
    /// Index of the run.
    pub run: u32,
    /// The largest difference of a token's log-probability from the recorded one; null where one of them is unknown.
    pub largest_difference: Option<f32>,
}

/// Sums over all steps that have a log-probability. Null where a token has no probability at all, or there is no token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Totals {
    /// Tokens with a number: all but a first one without context.
    pub tokens: usize,
    /// Their bytes of text; control tokens have none.
    pub bytes: usize,
    /// Sum of the log-probabilities.
    pub sum_logprob: Option<f64>,
    /// Its share a token.
    pub mean_logprob: Option<f64>,
    /// `exp(-mean_logprob)`.
    pub perplexity: Option<f64>,
    /// `-sum_logprob / ln 2 / bytes`; null without bytes.
    pub bits_per_byte: Option<f64>,
}

/// One token of the text and what the model thought of it. All numbers are null for a first token without context; of a server
/// `logit` is, and what it leaves open, beside `bounds`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ScoredStep {
    /// Its id.
    pub token_id: u32,
    /// Its text, escaped where it is not plain.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Raw score; null where it is -inf, and of a server.
    pub logit: Option<f32>,
    /// Natural logarithm of `prob`; null where that is 0.
    pub logprob: Option<f32>,
    /// In [0, 1].
    #[schemars(range(min = 0.0, max = 1.0))]
    pub prob: Option<f32>,
    /// 1 for the best candidate; ties go to the lower id.
    pub rank: Option<usize>,
    /// Entropy of the distribution in bits; null where it is known between bounds alone.
    pub entropy_bits: Option<f32>,
    /// The smallest number of best candidates that reach the mass; null where those shown do not.
    pub mass_count: Option<usize>,
    /// Logit of the best candidate minus logit of the second; null where there is no second, too.
    pub margin: Option<f32>,
    /// As in [`Step`](crate::record::Step).
    pub special: bool,
    /// As in [`Step`](crate::record::Step).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
    /// The best candidates, best first.
    pub top_logprobs: Vec<Candidate>,
}

/// A candidate that was asked for by its text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Named {
    /// As it was given.
    pub text: String,
    /// Whether it is several tokens, which are scored one after the other.
    pub is_sequence: bool,
    /// Log-probability after the text, summed over its tokens; null where it has no probability at all.
    pub logprob: Option<f32>,
    /// In [0, 1].
    #[schemars(range(min = 0.0, max = 1.0))]
    pub prob: f32,
    /// Rank after the text; null for a sequence.
    pub rank: Option<usize>,
    /// Its tokens, each after the text and those before it.
    pub tokens: Vec<NamedToken>,
    /// At each step of the text; null where the step has no context, and where the server did not show the token there. None for
    /// a sequence.
    pub steps: Vec<Option<Odds>>,
}

/// A token of a named candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NamedToken {
    /// Its id.
    pub token_id: u32,
    /// Its text, escaped where it is not plain.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// As in [`Step`](crate::record::Step).
    pub special: bool,
    /// Natural logarithm of `prob`; null where that is 0.
    pub logprob: Option<f32>,
    /// In [0, 1].
    #[schemars(range(min = 0.0, max = 1.0))]
    pub prob: f32,
    /// 1 for the best candidate.
    pub rank: usize,
}

/// What a distribution says of one token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Odds {
    /// Natural logarithm of `prob`; null where that is 0.
    pub logprob: Option<f32>,
    /// In [0, 1].
    #[schemars(range(min = 0.0, max = 1.0))]
    pub prob: f32,
    /// 1 for the best candidate; ties go to the lower id.
    pub rank: usize,
}
