//! What `compare` and `check` find between two records, as it is written to JSON (schema 1). Types and their meaning, no logic.
//!
//! A is the record that was named first, or the golden one; B is the other, or the run of today. Differences are B's and A's
//! absolute ones; log-probabilities are natural. Steps and prompts are counted from 1.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Candidate, ModelInfo};

/// Two records beside each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    /// Program name and version.
    pub program: String,
    /// The record that the other one is measured by.
    pub a: Side,
    /// The other one.
    pub b: Side,
    /// What of model and settings is not the same; none of it stops the comparison.
    pub differences: Vec<Difference>,
    /// How far log-probabilities may be from each other.
    pub tolerance: Tolerance,
    /// Whether every token has to be the same, near ties and samples included.
    pub strict: bool,
    /// The mass that `mass_count` counts up to; null where the two records differ in it, and counts are not compared.
    pub mass: Option<f64>,
    /// What is beyond the tolerance, or fails a gate; none where all is well.
    pub findings: Vec<Finding>,
    /// All prompts together.
    pub totals: Totals,
    /// One entry a prompt: those of A in their order, then those that only B has.
    pub prompts: Vec<PromptComparison>,
}

/// Where one side's numbers come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Side {
    /// Its file, as it was named.
    pub name: String,
    /// Program name and version.
    pub program: String,
    /// The model that was asked.
    pub model: ModelInfo,
}

/// A field of the records that is not the same in both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// Its path in the record: `settings.seed`.
    pub field: String,
    /// Its value in A; null where it is null or absent.
    pub a: Value,
    /// Its value in B; null where it is null or absent.
    pub b: Value,
}

/// How far log-probabilities may be from each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tolerance {
    /// The largest difference of two log-probabilities that is within it.
    pub value: f64,
    /// Where the number comes from, in words.
    pub reason: String,
}

/// Something of one prompt that is beyond the tolerance, or fails a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// Which entry of `prompts`.
    pub prompt: usize,
    /// What it is.
    #[serde(flatten)]
    pub what: What,
}

/// What is beyond the tolerance, or fails a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    /// Only one record has the prompt.
    Missing {
        /// The one that does not.
        from: Which,
    },
    /// The prompt could not be run in one record, and was in the other.
    Failed {
        /// The one where it could not.
        from: Which,
    },
    /// The model was given other tokens.
    OtherInput,
    /// Log-probabilities differ by more than the tolerance.
    Difference {
        /// Where the largest difference is.
        step: usize,
        /// The largest difference; null where it is infinite.
        largest: Option<f32>,
    },
    /// The greedy replies part.
    OtherToken {
        /// Where they do.
        step: usize,
        /// Whether at a near tie, which is a finding under `strict` alone.
        near_tie: bool,
    },
    /// One greedy reply is the beginning of the other, though both had the same limit and the same ends.
    OtherLength,
    /// Samples differ; under `strict` alone.
    OtherSamples {
        /// Label of their setting.
        label: String,
        /// How many runs differ, or are in one record alone.
        runs: usize,
    },
    /// A greedy token of B is less probable than the gate allows.
    BelowGate {
        /// Where it is.
        step: usize,
        /// The token.
        took: Candidate,
        /// The lowest probability that passes.
        limit: f64,
    },
    /// Too many greedy tokens of B are less probable than the record's threshold.
    TooManyLow {
        /// How many there are.
        count: usize,
        /// The most that pass.
        limit: usize,
    },
}

/// One of the two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Which {
    /// The first, or golden one.
    A,
    /// The second one, or today's run.
    B,
}

/// All prompts together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Totals {
    /// Prompts whose greedy replies are compared step by step.
    pub compared: usize,
    /// Those whose greedy replies are the same, as far as both go.
    pub same_replies: usize,
    /// Those whose greedy replies part at a near tie.
    pub near_ties: usize,
    /// The largest difference of log-probabilities; null where nothing was compared, or it is infinite.
    pub largest_difference: Option<f32>,
}

/// One prompt in both records.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PromptComparison {
    /// The name that the prompts file gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// As it was given; A's where both have it.
    pub prompt: String,
    /// What became of it in A; null where A does not have it.
    pub a: Option<Outcome>,
    /// What became of it in B; null where B does not have it.
    pub b: Option<Outcome>,
    /// Fields of its entries that are not the same: `prompt`, `system`, `rendered`, `prompt_token_ids`.
    pub differs_in: Vec<String>,
    /// The greedy replies; null where one is missing or the model was given other tokens.
    pub greedy: Option<GreedyComparison>,
    /// The samples, a setting each: A's in their order, then those that only B has.
    pub sweeps: Vec<SweepComparison>,
}

/// What became of a prompt in one record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Its place among the record's prompts.
    pub number: usize,
    /// Why it could not be run; null where it was.
    pub error: Option<String>,
    /// Its greedy reply; null where it could not be run.
    pub text: Option<String>,
}

/// Two greedy replies to the same tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GreedyComparison {
    /// Steps of A's reply.
    pub steps_a: usize,
    /// Steps of B's reply.
    pub steps_b: usize,
    /// Differences of the log-probability of the token that both took; null where there is no such step.
    pub chosen: Option<Spread>,
    /// Differences of the log-probability of every token that both list, the chosen ones included, but for the two that were
    /// taken where the replies part; null where there is none.
    pub candidates: Option<Spread>,
    /// Steps whose `mass_count` changed, where both are known; null where the records count up to different masses.
    pub changed_mass_counts: Option<usize>,
    /// Means over the steps; null where there is none.
    pub divergence: Option<Divergence>,
    /// Where the replies part; null where one is the beginning of the other.
    pub first_difference: Option<FirstDifference>,
    /// The steps before that: both replies have the same tokens.
    pub steps: Vec<StepComparison>,
}

/// Differences, absolute ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spread {
    /// How many there are; at least 1.
    pub count: usize,
    /// The largest; null where it is infinite.
    pub largest: Option<f32>,
    /// Where the largest is.
    pub largest_step: usize,
    /// Their mean; null where one is infinite.
    pub mean: Option<f32>,
}

/// How far two distributions are from each other, as far as their listed candidates tell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Divergence {
    /// The Kullback-Leibler divergence of B from A, in nats, is at least this; at least 0.
    pub kl_lower: f32,
    /// It is at most this; null where unlisted tokens make it unbounded.
    pub kl_upper: Option<f32>,
    /// The share of the probability that is on other tokens in B (the total variation distance) is at least this; in [0, 1].
    pub moved_lower: f32,
    /// It is at most this; in [0, 1].
    pub moved_upper: f32,
}

/// A step at which both replies have the same context and took the same token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepComparison {
    /// Id of the token.
    pub token_id: u32,
    /// Its text, escaped where it is not plain.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether it is a control token.
    pub special: bool,
    /// Its probability in A.
    pub prob_a: f32,
    /// Its probability in B.
    pub prob_b: f32,
    /// Difference of its log-probabilities; null where it is infinite.
    pub difference: Option<f32>,
    /// The largest such difference of a token that both list; null where it is infinite.
    pub largest_difference: Option<f32>,
    /// How many tokens both list; at least 1.
    pub shared: usize,
    /// `mass_count` in A; null where that is not known.
    pub mass_count_a: Option<usize>,
    /// `mass_count` in B; null where that is not known.
    pub mass_count_b: Option<usize>,
    /// How far the distributions are from each other.
    #[serde(flatten)]
    pub divergence: Divergence,
}

/// The first step at which two greedy replies differ. Both saw the same context there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FirstDifference {
    /// Where it is.
    pub step: usize,
    /// The token that A took, as A weighed it.
    pub a: Candidate,
    /// The token that B took, as A weighed it.
    pub b_in_a: Weight,
    /// The token that B took, as B weighed it.
    pub b: Candidate,
    /// The token that A took, as B weighed it.
    pub a_in_b: Weight,
    /// A's log-probability of its token minus that of B's token: at least this where the latter is a bound; null where infinite.
    pub margin_a: Option<f32>,
    /// B's log-probability of its token minus that of A's token: at least this where the latter is a bound; null where infinite.
    pub margin_b: Option<f32>,
    /// How far a log-probability may move without meaning: the tolerance, or the largest of `candidates` where that is more,
    /// but then at most 0.25, which is what 16-bit arithmetic explains.
    pub reach: f32,
    /// Whether the two margins together are at most twice the reach.
    pub near_tie: bool,
}

/// How a record weighs a token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Weight {
    /// Natural logarithm of `prob`; null where that is 0.
    pub logprob: Option<f32>,
    /// In [0, 1].
    pub prob: f32,
    /// Whether the token is not listed: it has at most this, which is what the last listed candidate has.
    pub is_bound: bool,
}

/// The samples of one setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepComparison {
    /// The setting in words.
    pub label: String,
    /// A's replies; null where A does not have the setting.
    pub a: Option<Replies>,
    /// B's replies; null where B does not have the setting.
    pub b: Option<Replies>,
    /// How many runs both have, by their index.
    pub compared_runs: usize,
    /// How many of them have the same tokens.
    pub same_runs: usize,
    /// The first of them that has not; null where there is none.
    pub first_difference: Option<SampleDifference>,
}

/// How many replies there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Replies {
    /// The runs of the setting.
    pub runs: usize,
    /// How many different sequences of tokens they are.
    pub distinct_replies: usize,
}

/// Where a sampled run differs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SampleDifference {
    /// Index of the run in both.
    pub run: u32,
    /// The first step that differs.
    pub step: usize,
    /// A's token there; null where its run had ended.
    pub a: Option<Candidate>,
    /// B's token there; null where its run had ended.
    pub b: Option<Candidate>,
}
