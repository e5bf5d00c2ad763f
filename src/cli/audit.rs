//! `audit`: its flags, and the request that they make.

use clap::Args;

use super::values::{at_least_one, utf8};
use super::{ChatRequest, DtypeChoice, LocalRequest, PrintRequest};

/// `audit`.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditRequest {
    /// Which model; its device is where bf16 is computed where that is a GPU. References are computed on the CPU.
    pub model: LocalRequest,
    /// How a prompt becomes what the model sees.
    pub chat: ChatRequest,
    /// How the result is shown.
    pub print: PrintRequest,
    /// The prompts; none are the built-in ones.
    pub prompts: Vec<String>,
    /// A reply's longest length in tokens; at least 1.
    pub max_new_tokens: usize,
    /// Candidates of every step that are compared; at least 1.
    pub candidates: usize,
}

pub(super) const AUDIT_EXAMPLES: &str = "\
Examples:
  logprobs audit
  logprobs audit --model demo -p 'What is the capital of France?' -p 'Recommend a coffee shop.'
  logprobs audit --model ./SmolLM2-135M-Instruct.Q4_1.gguf -p 'Name a colour.' --max-new-tokens 200
  logprobs audit -p 'Say hi.' --json | jq '.prompts[].variants[] | select(.difference.flipped_steps > 0)'

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a run that promises the reference's bits has others, 130 interrupted";

#[derive(Args)]
pub(super) struct AuditArgs {
    /// A prompt; may be repeated [default: the two built-in ones]
    #[arg(short, long = "prompt", value_name = "TEXT", allow_hyphen_values = true, value_parser = utf8(), help_heading = "Prompt")]
    prompts: Vec<String>,
    #[command(flatten)]
    chat: ChatRequest,
    /// Longest reply, in tokens; the logits of all its steps are kept in memory, twice
    #[arg(long, value_name = "N", default_value = "64", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Run")]
    max_new_tokens: usize,
    /// Candidates of every step that are compared
    #[arg(long, value_name = "K", default_value = "5", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Report")]
    candidates: usize,
    #[command(flatten)]
    print: PrintRequest,
    #[command(flatten)]
    model: LocalRequest,
}

impl AuditArgs {
    pub(super) fn into_request(self) -> Result<AuditRequest, String> {
        if !matches!(self.model.dtype, DtypeChoice::Auto | DtypeChoice::F32) {
            return Err("audit compares f32 with bf16 by itself (leave out --dtype)".to_owned());
        }
        Ok(AuditRequest {
            model: self.model,
            chat: self.chat,
            print: self.print,
            prompts: self.prompts,
            max_new_tokens: self.max_new_tokens,
            candidates: self.candidates,
        })
    }
}
