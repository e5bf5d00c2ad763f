//! `tokens`: its flags, and the request that they make.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::values::{token_id, utf8};
use super::{ChatRequest, PrintRequest, SourceRequest};

/// `tokens`.
#[derive(Debug, Clone, PartialEq)]
pub struct TokensRequest {
    /// Whose tokenizer.
    pub source: SourceRequest,
    /// How the result is shown.
    pub print: PrintRequest,
    /// What is asked about.
    pub asked: Asked,
}

/// What `tokens` is asked about.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// Texts, at least one.
    Texts {
        /// Where they come from, in order.
        texts: Vec<TextSource>,
        /// How they become what the model sees.
        chat: ChatRequest,
    },
    /// Ids, at least one.
    Ids(Vec<u32>),
}

/// Where a text comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextSource {
    /// The command line.
    Given(String),
    /// Standard input, to its end.
    Stdin,
    /// A whole file.
    File(PathBuf),
}

pub(super) const TOKENS_EXAMPLES: &str = "\
Examples:
  logprobs tokens 'What is the capital of France?'
  logprobs tokens --model demo 'The capital of France is Paris.' '法国的首都是巴黎。'
  logprobs tokens --chat --system 'Be brief.' 'Hi'
  logprobs tokens --file README.md --file README.zh.md
  printf 'no line break' | logprobs tokens -
  logprobs tokens --id 0 248044 248319
  logprobs tokens --model ./SmolLM2-135M-Instruct.Q4_1.gguf 'Hi' --json | jq '.texts[].tokens[].token_id'";

#[derive(Args)]
#[command(group(ArgGroup::new("asked").required(true).multiple(true).args(["texts", "files", "ids"])))]
pub(super) struct TokensArgs {
    /// A text; - is standard input, taken to the last byte. Several make a table that compares them
    #[arg(value_name = "TEXT", allow_negative_numbers = true, value_parser = utf8())]
    texts: Vec<String>,
    /// A file that is one text, taken to the last byte; repeat it for several
    #[arg(long = "file", value_name = "FILE", help_heading = "Text")]
    files: Vec<PathBuf>,
    /// Name these ids instead
    #[arg(long = "id", value_name = "N", num_args = 1.., value_delimiter = ',', allow_negative_numbers = true, conflicts_with_all = ["texts", "files", "chat", "plain_text"], value_parser = token_id, help_heading = "Text")]
    ids: Vec<u32>,
    /// Put each text into the model's chat template, as a user's message
    #[arg(long, help_heading = "Text")]
    chat: bool,
    /// With --chat: a system message; an empty one is not the same as none
    #[arg(long, value_name = "TEXT", requires = "chat", allow_hyphen_values = true, value_parser = utf8(), help_heading = "Text")]
    system: Option<String>,
    /// With --chat: let the template ask the model to think first
    #[arg(long, requires = "chat", help_heading = "Text")]
    thinking: bool,
    /// Without --chat: do not parse control tokens such as <|im_end|>
    #[arg(long, conflicts_with = "chat", help_heading = "Text")]
    plain_text: bool,
    #[command(flatten)]
    print: PrintRequest,
    #[command(flatten)]
    source: SourceRequest,
}

impl TokensArgs {
    pub(super) fn into_request(self) -> Result<TokensRequest, String> {
        let given = self.texts.into_iter().map(|text| match text.as_str() {
            "-" => TextSource::Stdin,
            _ => TextSource::Given(text),
        });
        let files = self.files.into_iter().map(|path| match path.to_str() {
            Some("-") => TextSource::Stdin,
            _ => TextSource::File(path),
        });
        let texts: Vec<TextSource> = given.chain(files).collect();
        let stdins = texts.iter().filter(|&text| *text == TextSource::Stdin);
        if stdins.count() > 1 {
            return Err("standard input (-) is given twice, and can be read once".to_owned());
        }
        let asked = match self.ids.is_empty() {
            false => Asked::Ids(self.ids),
            true => Asked::Texts {
                texts,
                chat: ChatRequest {
                    system: self.system,
                    raw: !self.chat,
                    plain_text: self.plain_text,
                    thinking: self.thinking,
                },
            },
        };
        Ok(TokensRequest {
            source: self.source,
            print: self.print,
            asked,
        })
    }
}
