//! `context`: its flags, and the request that they make.

use clap::Args;

use super::values::{length, utf8};
use super::{ChatRequest, PrintRequest, SourceRequest};

/// `context`.
#[derive(Debug, Clone, PartialEq)]
pub struct ContextRequest {
    /// Which model.
    pub source: SourceRequest,
    /// How the result is shown.
    pub print: PrintRequest,
    /// Lengths to give totals for; empty means the usual ones.
    pub lengths: Vec<Length>,
    /// A prompt to be measured.
    pub prompt: Option<String>,
    /// How it becomes what the model sees.
    pub chat: ChatRequest,
}

/// A length of a sequence, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// So many; at least 1.
    Tokens(u64),
    /// The model's longest.
    Longest,
}

pub(super) const CONTEXT_EXAMPLES: &str = "\
Examples:
  logprobs context
  logprobs context --model Qwen/Qwen3.5-0.8B --tokens 4k,128k,max
  logprobs context --model demo --prompt 'What is the capital of France?'
  logprobs context --model ./SmolLM2-135M-Instruct.Q4_1.gguf --json | jq '.memory.cpu.kv_bytes_per_token'";

#[derive(Args)]
pub(super) struct ContextArgs {
    /// Totals for sequences of this many tokens; 8k is 8192, max the model's longest [default: 1k,8k,32k,max, as far as they fit]
    #[arg(long = "tokens", value_name = "N", num_args = 1.., value_delimiter = ',', allow_negative_numbers = true, value_parser = length)]
    lengths: Vec<Length>,
    /// Say how many tokens this prompt takes, and what remains
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, value_parser = utf8(), help_heading = "Prompt")]
    prompt: Option<String>,
    #[command(flatten)]
    chat: ChatRequest,
    #[command(flatten)]
    print: PrintRequest,
    #[command(flatten)]
    source: SourceRequest,
}

impl ContextArgs {
    pub(super) fn into_request(self) -> Result<ContextRequest, String> {
        let ChatRequest {
            system,
            raw,
            thinking,
            ..
        } = &self.chat;
        if self.prompt.is_none() && (*raw || *thinking || system.is_some()) {
            return Err("--system, --raw and --thinking need --prompt".to_owned());
        }
        Ok(ContextRequest {
            source: self.source,
            print: self.print,
            lengths: self.lengths,
            prompt: self.prompt,
            chat: self.chat,
        })
    }
}
