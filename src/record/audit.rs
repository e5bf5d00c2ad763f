//! What `audit` prints: a greedy run, and the same run computed in other ways (schema 1). Types and their meaning, no logic.
//!
//! Which runs there are depends on the processor and its memory, and the numbers of tensor operations on the machine: unlike
//! other records this one describes a machine, too.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::{Candidate, FinishReason, ModelInfo};

/// An audit of some prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Audit {
    /// [`SCHEMA`](crate::record::SCHEMA).
    pub schema: u32,
    /// Program name and version.
    pub program: String,
    /// The model that was asked, and what computed the references.
    pub model: ModelInfo,
    /// What holds for every prompt.
    pub settings: AuditSettings,
    /// One entry a prompt, in the order given.
    pub prompts: Vec<AuditedPrompt>,
    /// What could not be computed on this machine.
    pub skipped: Vec<Skipped>,
}

/// What holds for every prompt of an [`Audit`]; the names are those of [`Settings`](crate::record::Settings).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditSettings {
    /// A run ends at this many steps at the latest.
    pub max_new_tokens: usize,
    /// Candidates of every step that are compared, at most the vocabulary.
    pub candidates: usize,
    /// Whether the template was asked to open a thinking block; null where it has no such switch or was not used.
    pub thinking: Option<bool>,
    /// Whether prompts went in without a chat template.
    pub raw: bool,
    /// System message.
    pub system: Option<String>,
    /// Where the chat template came from, with its sha256; null under `raw`.
    pub template_source: Option<String>,
    /// Ids that end a reply.
    pub stop_ids: Vec<u32>,
    /// Whether `raw` prompts were tokenised without parsing control tokens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plain_text: bool,
    /// The date that the template asked for, where it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_date: Option<String>,
}

/// A prompt, its reference and the other runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditedPrompt {
    /// As it was given.
    pub prompt: String,
    /// The text that the model saw.
    pub rendered: String,
    /// The ids that the model saw.
    pub prompt_token_ids: Vec<u32>,
    /// The greedy run in f32, as the main command makes it.
    pub reference: AuditedReply,
    /// One entry a token of the reference.
    pub steps: Vec<AuditedStep>,
    /// The same run, computed in other ways.
    pub variants: Vec<Variant>,
}

/// What a run replied.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditedReply {
    /// The reply, without control tokens.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Its tokens, a stop token included.
    pub token_ids: Vec<u32>,
}

/// One token of the reference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditedStep {
    /// The token with its probability.
    #[serde(flatten)]
    pub token: Candidate,
    /// Logit of the best candidate minus logit of the second; null where there is no second.
    pub margin: Option<f32>,
}

/// What computes runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EngineInfo {
    /// The kernels that compute matrix products (`amx`, `avx512`, `avx2`, `neon`, `portable`), or `tensors`: candle's operations.
    pub products: String,
    /// `cpu`, `cuda` or `metal`.
    pub device: String,
    /// Precision: `f32` or `bf16`.
    pub dtype: String,
    /// Whether the precision is emulated: f32, rounded after every operation.
    pub emulated: bool,
}

impl EngineInfo {
    /// Whether the program's own kernels computed all of it, in f32.
    pub fn is_kernels(&self) -> bool {
        self.products != "tensors" && self.device == "cpu" && !self.emulated
    }
}

/// The same run, computed in another way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Variant {
    /// What computed it.
    #[serde(flatten)]
    pub engine: EngineInfo,
    /// How: `alone`, `2 threads`, `in a batch of 8`, ….
    pub way: String,
    /// Whether the program promises the reference's bits here.
    pub promised: bool,
    /// The run led through the reference's tokens, compared with the reference.
    pub difference: AuditDifference,
    /// The same, compared with the first run in bf16; null for that one and those in f32.
    pub from_first_bf16: Option<AuditDifference>,
    /// Whether a reply can be made in this way; not where all of it is computed in one pass.
    pub generates: bool,
    /// What the run replies when it is left to itself; null where that is what the reference did.
    pub reply: Option<AuditedReply>,
}

/// How far a run is from another after the same tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditDifference {
    /// Whether every logit of every step has the same bits.
    pub same_bits: bool,
    /// The largest difference of a logit, over all steps and the whole vocabulary.
    pub largest_logit: f32,
    /// The largest difference of a log-probability of the reference's tokens.
    pub largest_logprob: f32,
    /// The same over the best candidates of every step.
    pub largest_candidate_logprob: f32,
    /// Steps at which the probability of the reference's token changes by more than a tenth of itself.
    pub steps_beyond_tenth: usize,
    /// Steps whose margin is at most twice `largest_logit`: no others can flip by differences of that size.
    pub close_steps: usize,
    /// Steps at which another token is the best.
    pub flipped_steps: usize,
    /// The first of them; null where there is none.
    pub first_flip: Option<AuditFlip>,
}

/// A step at which two runs chose differently after the same tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AuditFlip {
    /// 1 for the first token.
    pub step: usize,
    /// The best token of the run that is compared with.
    pub expected: FlippedToken,
    /// The best token of the run that is compared.
    pub took: FlippedToken,
}

/// A token with its probability in two runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FlippedToken {
    /// Its id.
    pub token_id: u32,
    /// Its text, escaped where it is not plain.
    pub token: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether it is a control token, which is no text.
    pub special: bool,
    /// Its probability in the run that is compared with.
    pub expected_prob: f32,
    /// Its probability in the run that is compared.
    pub prob: f32,
}

/// What could not be computed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Skipped {
    /// What should have computed.
    #[serde(flatten)]
    pub engine: EngineInfo,
    /// One sentence.
    pub reason: String,
}
