//! The record: everything a run found out, as it is written to JSON (schema 1). Types and their meaning, no logic.
//!
//! Every renderer reads only this. Field order is the order in the file; there is no clock, no absolute path and no
//! thread count in it, so that the same command gives the same bytes. Measured numbers are f32 in their shortest
//! form, settings are f64 as they were typed. Text is UTF-8; `bytes` are the real bytes of a token.

pub mod audit;
pub mod compare;
pub mod score;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The number of this layout; a changed or removed field raises it, a new optional one does not.
pub const SCHEMA: u32 = 1;

/// Name and version of the program, as records have them.
pub const PROGRAM: &str = concat!("logprobs ", env!("CARGO_PKG_VERSION"));

/// All that one invocation of the main command found out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Program name and version.
    pub program: String,
    /// The model that was asked.
    pub model: ModelInfo,
    /// What holds for every prompt.
    pub settings: Settings,
    /// One entry a prompt, in the order given.
    pub prompts: Vec<PromptEntry>,
}

/// Which model computed the numbers, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelInfo {
    /// Hub id, or the name of the folder or file.
    pub id: String,
    /// Commit on the hub, where the model came from there.
    pub revision: Option<String>,
    /// Family: `llama`, `qwen2`, `qwen3` or `qwen3_5`.
    pub architecture: String,
    /// Rows of the output layer: what every probability is normalised over.
    pub vocab_size: usize,
    /// How most weights are stored: `bf16`, `f32`, `q4_1`, ….
    pub weights_dtype: String,
    /// What the forward pass computes in.
    pub compute_dtype: String,
    /// `cpu`, `cuda` or `metal`.
    pub device: String,
    /// Whether products with bf16 weights ran on matrix tiles, whose numbers have last digits of their own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tiles: bool,
    /// What a reader must know of the model, where there is such a thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The server that was asked, where it was not this program that computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerInfo>,
}

/// A server that computed the numbers. Its address is not recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServerInfo {
    /// `vllm` or `llama.cpp`.
    pub kind: String,
    /// What it says of its own version.
    pub version: String,
    /// What it calls its build and configuration, where it says so with its answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Candidates that were asked for at every step; more where they did not decide what was drawn.
    pub top: usize,
    /// The most candidates that it shows.
    pub most: usize,
    /// Whose tokenizer and template were used: `server`, or the name of the local one.
    pub tokenizer: String,
}

/// What holds for every prompt of a record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// A run ends at this many steps at the latest.
    pub max_new_tokens: usize,
    /// Runs of each sweep.
    pub samples: u32,
    /// First part of what a coin depends on; a whole number up to 2^64 - 1.
    pub seed: u64,
    /// Entries of `top_logprobs`, at most the vocabulary.
    pub candidates: usize,
    /// The mass that `mass_count` counts up to.
    pub mass: f64,
    /// Tokens with a smaller probability are marked.
    pub threshold: f64,
    /// Whether the template was asked to open a thinking block; null where it has no such switch or was not used.
    pub thinking: Option<bool>,
    /// Whether prompts went in without a chat template.
    pub raw: bool,
    /// System message given for every prompt.
    pub system: Option<String>,
    /// The order in which a sampler's filters were applied.
    pub filter_order: Vec<String>,
    /// Where the chat template came from, with its sha256; null under `raw`.
    pub template_source: Option<String>,
    /// Ids that end a reply.
    pub stop_ids: Vec<u32>,
    /// Whether the ids that end a reply were ignored; `stop_ids` is empty then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ignore_eos: bool,
    /// The one run of each sweep that was asked for, where not all were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<u32>,
    /// Whether `raw` prompts were tokenised without parsing control tokens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plain_text: bool,
    /// The date that the template asked for, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_date: Option<String>,
}

/// What became of one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PromptEntry {
    /// It was run.
    Done(PromptRecord),
    /// It could not be run.
    Failed(PromptError),
}

/// A prompt that was run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PromptRecord {
    /// The name that the prompts file gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// As it was given.
    pub prompt: String,
    /// System message of this prompt alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The text that the model saw.
    pub rendered: String,
    /// The ids that the model saw.
    pub prompt_token_ids: Vec<u32>,
    /// The run that always takes the best candidate.
    pub greedy: Run,
    /// The sampled runs, one sweep a setting.
    pub sweeps: Vec<Sweep>,
    /// What is to be said of the sampled runs, and where they part; absent where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analysis: Option<Box<Analysis>>,
}

/// A prompt that could not be run, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PromptError {
    /// The name that the prompts file gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// As it was given.
    pub prompt: String,
    /// System message of this prompt alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// One sentence.
    pub error: String,
}

/// All runs of one setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// The setting in words: `temperature 1.0, top_p 0.9`.
    pub label: String,
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f64,
    /// The best so many candidates are kept; 0 keeps all. At most the vocabulary.
    pub top_k: usize,
    /// The nucleus of this mass is kept; 1 keeps all.
    pub top_p: f64,
    /// Candidates with at least this share of the best one's probability are kept; 0 keeps all.
    pub min_p: f64,
    /// How many different sequences of tokens the runs are.
    pub distinct_replies: usize,
    /// Tokens of all runs with a probability below the threshold.
    pub low_probability_tokens: usize,
    /// The runs, in the order of their index.
    pub runs: Vec<Run>,
}

/// One completion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Run {
    /// Index within its sweep: second part of what a coin depends on. 0 for the greedy run.
    pub run: u32,
    /// The reply, without control tokens; an unfinished character at the end is left out.
    pub text: String,
    /// The reply with tokens below the threshold as `【token|0.02】`.
    pub marked: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Bytes of an unfinished character at the end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete_bytes: Vec<u8>,
    /// One entry a token, the stop token included.
    pub steps: Vec<Step>,
}

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// A stop id came up: the last step.
    Stop,
    /// `max_new_tokens` steps were made.
    Length,
    /// The model's longest sequence was reached.
    Context,
}

impl FinishReason {
    /// Returns its name in the record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
        }
    }
}

/// One generated token and the distribution it was taken from: the model's own, at temperature 1, over all rows of the
/// output layer, before any filter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Id of the generated token.
    pub token_id: u32,
    /// Its text, escaped where it is not plain.
    pub token: String,
    /// Its bytes; none for control tokens' ids without a name.
    pub bytes: Vec<u8>,
    /// Raw score; null where a server was asked, which shows probabilities alone.
    pub logit: Option<f32>,
    /// Natural logarithm of `prob`; at most 0.
    pub logprob: f32,
    /// In [0, 1].
    #[schemars(range(min = 0.0, max = 1.0))]
    pub prob: f32,
    /// 1 for the best candidate; ties go to the lower id.
    pub rank: usize,
    /// Entropy of the distribution in bits; null where `bounds` says more of it.
    pub entropy_bits: Option<f32>,
    /// The smallest number of best candidates that reach the mass; null where `bounds` says more of it.
    pub mass_count: Option<usize>,
    /// Logit of the best candidate minus logit of the second; null where there is no second.
    pub margin: Option<f32>,
    /// Whether the token is a control token (or a nameless id), which is no text.
    pub special: bool,
    /// What is known of the distribution where a server showed its best candidates alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
    /// What the sampler saw; in sampled runs only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    /// The best candidates, best first.
    pub top_logprobs: Vec<Candidate>,
}

/// What is known of a distribution of which the best candidates alone were shown. Their mass is known, and
/// with it that of the rest, as well as the server adds up; how the rest shares it is not.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Bounds {
    /// How many candidates were shown.
    pub shown: usize,
    /// Their mass, in (0, 1].
    pub shown_mass: f32,
    /// Where `mass_count` is null: it is not below this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mass_count_at_least: Option<usize>,
    /// The entropy in bits is not below this.
    pub entropy_bits_at_least: f32,
    /// The entropy in bits is not above this.
    pub entropy_bits_at_most: f32,
}

/// What the sampler saw at a step, after temperature and filters. Null is what the candidates that a server showed leave open.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sampling {
    /// Probability of the token within the kept set.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub prob: Option<f32>,
    /// Size of the kept set; at least 1.
    pub kept: Option<usize>,
    /// Raw mass of the kept set.
    pub kept_mass: Option<f32>,
}

/// A candidate at a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate {
    /// Its id.
    pub token_id: u32,
    /// Its text, escaped where it is not plain.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// As in [`Step`].
    pub special: bool,
    /// Natural logarithm of `prob`; at most 0.
    pub logprob: f32,
    /// In [0, 1].
    #[schemars(range(min = 0.0, max = 1.0))]
    pub prob: f32,
}

/// What is to be said of a prompt's sampled runs, and where they part.
///
/// All runs end at the same stop ids and the same limit, so none is a proper beginning of another: where two differ, each
/// has a token of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Analysis {
    /// One entry a sweep, in their order.
    pub sweeps: Vec<SweepAnalysis>,
    /// One entry for each two sweeps.
    pub pairs: Vec<PairAnalysis>,
}

/// What a sweep's runs have in common. Means are over the tokens of all runs, stop tokens included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepAnalysis {
    /// That of the sweep.
    pub label: String,
    /// Mean of the raw probabilities.
    pub mean_prob: f32,
    /// The lowest raw probability.
    pub lowest_prob: f32,
    /// Mean size of the kept set; null where a size is open.
    pub mean_kept: Option<f32>,
    /// Mean raw mass of the kept set; null where a mass is open.
    pub mean_kept_mass: Option<f32>,
    /// Share of the tokens that were drawn from outside the best candidates which reach the mass: rank above `mass_count`.
    pub outside_mass: f32,
    /// Where its runs part; null where they are all the same.
    pub parting: Option<Parting>,
}

/// The first step at which runs differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Parting {
    /// 1 for the first token.
    pub step: usize,
    /// The tokens taken there: most runs first, then the more probable.
    pub branches: Vec<Branch>,
}

/// A token that some runs took where others took another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Branch {
    /// The token; its probability is the model's own.
    pub took: Candidate,
    /// Indices of the runs that took it.
    pub runs: Vec<u32>,
}

/// Two sweeps beside each other. Run i of both used the same coins: where the two differ, the setting did it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairAnalysis {
    /// Label of one sweep: the one without filters, where filters are all that the two differ in.
    pub first: String,
    /// Label of the other.
    pub second: String,
    /// Where the runs of the second part among themselves, measured by those of the first.
    pub second_parts: SecondParts,
    /// Where the runs of both together part; null where they are all the same.
    pub parting: Option<PairParting>,
    /// How many runs are the same in both.
    pub same_runs: usize,
    /// The runs that are not, by their index.
    pub run_by_run: Vec<RunParting>,
}

/// Where the runs of a pair's second sweep part among themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SecondParts {
    /// At the same step as those of the first.
    Same,
    /// At a later step.
    Later,
    /// At an earlier step, or those of the first do not part at all.
    Earlier,
    /// Not at all.
    Never,
}

/// The first step at which the runs of two sweeps differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairParting {
    /// 1 for the first token.
    pub step: usize,
    /// The tokens taken there: most runs first, then the more probable.
    pub branches: Vec<PairBranch>,
}

/// A token that some runs of two sweeps took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PairBranch {
    /// The token; its probability is the model's own.
    pub took: Candidate,
    /// Indices of the first sweep's runs that took it.
    pub first_runs: Vec<u32>,
    /// Indices of the second sweep's.
    pub second_runs: Vec<u32>,
}

/// One run index in two sweeps: the first step at which the two differ.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RunParting {
    /// The index.
    pub run: u32,
    /// 1 for the first token.
    pub step: usize,
    /// What the first sweep's run took there.
    pub first: Candidate,
    /// What the second's took, after the same tokens.
    pub second: Candidate,
}

/// What `temperature-step1` writes: the first step's best candidates at several temperatures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TemperatureStep1 {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Program name and version.
    pub program: String,
    /// The model that was asked.
    pub model: ModelInfo,
    /// As it was given.
    pub prompt: String,
    /// The text that the model saw.
    pub rendered: String,
    /// The ids that the model saw.
    pub prompt_token_ids: Vec<u32>,
    /// The temperatures, in the order given.
    pub temperatures: Vec<f64>,
    /// The best candidates at temperature 1, best first.
    pub candidates: Vec<TemperedCandidate>,
    /// Probability of all other rows of the output layer, one entry a temperature.
    pub rest: Vec<f32>,
}

/// A candidate's probability at several temperatures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TemperedCandidate {
    /// Its id.
    pub token_id: u32,
    /// Its text, escaped where it is not plain.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// As in [`Step`].
    pub special: bool,
    /// Raw score; null where a server was asked.
    pub logit: Option<f32>,
    /// Probability, one entry a temperature.
    pub probs: Vec<f32>,
}
