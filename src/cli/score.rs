//! `score`: its flags, and the request that they make.

use std::path::PathBuf;

use clap::Args;

use super::values::{at_least_one, check_shares, number, utf8};
use super::{ChatRequest, ModelRequest, OutputRequest, ShowArgs};

/// `score`: the confidence trace of a text that the model did not choose.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreRequest {
    /// Which model, on what.
    pub model: ModelRequest,
    /// How the prompt becomes what the model sees.
    pub chat: ChatRequest,
    /// Where the result goes.
    pub output: OutputRequest,
    /// What is scored.
    pub subject: Subject,
    /// Whether the end token is scored, too.
    pub end: bool,
    /// Texts whose log-probability is wanted wherever they stand in the order; none is empty.
    pub named: Vec<String>,
    /// Candidates noted at every step, at least 1; `None` is what a record says, or 5.
    pub candidates: Option<usize>,
    /// The mass that `mass_count` counts up to, in (0, 1]; `None` is what a record says, or 0.9.
    pub mass: Option<f64>,
    /// Tokens below this probability are marked, in [0, 1]; `None` is what a record says, or 0.3.
    pub threshold: Option<f64>,
}

/// What is scored.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// What comes after a prompt; without a completion the next token alone.
    Completion {
        /// The prompt.
        prompt: String,
        /// What comes after it.
        completion: Option<Given>,
    },
    /// A whole text without any template.
    Text(Given),
    /// The token ids of a recorded run.
    Recorded {
        /// The record.
        record: PathBuf,
        /// Which of its prompts, from 1.
        prompt: usize,
        /// Which of the prompt's sweeps, from 1; `None` is its greedy run.
        sweep: Option<usize>,
        /// Index of the run in the sweep.
        run: u32,
    },
}

/// A text that was given.
#[derive(Debug, Clone, PartialEq)]
pub enum Given {
    /// On the command line.
    Text(String),
    /// In a file; `-` is standard input.
    File(PathBuf),
}

pub(super) const SCORE_EXAMPLES: &str = "\
Examples:
  logprobs score -p 'What is the capital of France?' --completion 'The capital of France is Lyon.'
  logprobs score -p 'Is 91 prime? Answer Yes or No.' --candidate Yes --candidate No
  logprobs score --raw -p 'The capital of France is' --completion ' Paris.' --candidate ' Lyon' --candidate ' Marseille'
  logprobs score --raw --text 'To be, or not to be, that is the question.'
  logprobs score --raw --file essay.txt --json | jq .totals
  logprobs score --record results/run.json
  logprobs score --record results/run.json --of-prompt 2 --sweep 4 --run 0";

#[derive(Args)]
pub(super) struct ScoreArgs {
    /// A prompt; what is scored comes after it
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, value_parser = utf8(), help_heading = "Text")]
    prompt: Option<String>,
    /// What comes after the prompt, scored token by token; no end token is added to it (see --end)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, requires = "prompt", conflicts_with = "file", value_parser = utf8(), help_heading = "Text")]
    completion: Option<String>,
    /// A whole text without any template; its first token has no context and so no number
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with_all = ["prompt", "file", "system", "thinking"], value_parser = utf8(), help_heading = "Text")]
    text: Option<String>,
    /// The text from a file, without its final line break: the completion where --prompt is given, else a whole text; - is standard input
    #[arg(long, value_name = "FILE|-", help_heading = "Text")]
    file: Option<PathBuf>,
    /// Score the token ids of a run in this record
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "completion", "text", "file", "system", "raw", "thinking", "end"], help_heading = "Text")]
    record: Option<PathBuf>,
    /// With --record: which prompt; the first is 1 [default: 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Text")]
    of_prompt: Option<usize>,
    /// With --record: which group of samples; the first is 1 [default: the greedy run]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Text")]
    sweep: Option<usize>,
    /// With --sweep: which run of the group; the first is 0 [default: 0]
    #[arg(
        long,
        value_name = "I",
        allow_negative_numbers = true,
        help_heading = "Text"
    )]
    run: Option<u32>,
    /// Score the end token after the text, too: the most probable of the model's stop ids there
    #[arg(long, help_heading = "Text")]
    end: bool,
    /// A text to show with its log-probability and rank, wherever in the vocabulary it is; repeatable. One of several tokens is scored as a sequence after the text
    #[arg(long = "candidate", value_name = "TEXT", allow_hyphen_values = true, value_parser = utf8(), help_heading = "Text")]
    named: Vec<String>,
    #[command(flatten)]
    chat: ChatRequest,

    /// Candidates noted at every step [default: that of the record, or 5]
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Report")]
    candidates: Option<usize>,
    /// Count how many candidates cover this mass [default: that of the record, or 0.9]
    #[arg(long, value_name = "M", allow_negative_numbers = true, value_parser = number, help_heading = "Report")]
    mass: Option<f64>,
    /// Mark tokens below this probability [default: that of the record, or 0.3]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number, help_heading = "Report")]
    threshold: Option<f64>,
    /// A folder for score_<model>_<device>_<time>.json, or NAME.json for the file itself; - is standard output, as --json
    #[arg(
        long,
        value_name = "PATH",
        default_value = "results",
        help_heading = "Report"
    )]
    out: PathBuf,
    #[command(flatten)]
    show: ShowArgs,
    #[command(flatten)]
    model: ModelRequest,
}

impl ScoreArgs {
    pub(super) fn into_request(self) -> Result<ScoreRequest, String> {
        check_shares(self.mass.unwrap_or(1.0), self.threshold.unwrap_or(0.0))?;
        if self.named.iter().any(String::is_empty) {
            return Err("--candidate is empty (expected at least one character)".to_owned());
        }
        // clap's own `requires` falls silent beside a conflicting flag
        for (is_given, flag, needed, is_there) in [
            (
                self.of_prompt.is_some(),
                "--of-prompt",
                "--record",
                self.record.is_some(),
            ),
            (
                self.sweep.is_some(),
                "--sweep",
                "--record",
                self.record.is_some(),
            ),
            (self.run.is_some(), "--run", "--sweep", self.sweep.is_some()),
        ] {
            if is_given && !is_there {
                return Err(format!("{flag} needs {needed}"));
            }
        }
        let file = self.file.map(Given::File);
        let subject = match (self.prompt, self.text, self.record) {
            (Some(prompt), _, _) => {
                let completion = self.completion.map(Given::Text).or(file);
                if completion.is_none() && self.named.is_empty() && !self.end {
                    return Err(
                        "--prompt alone has nothing to score (expected --completion, --file, --candidate or --end)"
                            .to_owned(),
                    );
                }
                Subject::Completion { prompt, completion }
            }
            (None, Some(text), _) => Subject::Text(Given::Text(text)),
            (None, None, Some(record)) => Subject::Recorded {
                record,
                prompt: self.of_prompt.unwrap_or(1),
                sweep: self.sweep,
                run: self.run.unwrap_or(0),
            },
            (None, None, None) => Subject::Text(file.ok_or(
                "there is nothing to score (expected --prompt with --completion or --candidate, --text, --file or --record)",
            )?),
        };
        if matches!(subject, Subject::Text(_)) && (self.chat.system.is_some() || self.chat.thinking)
        {
            return Err(
                "--system and --thinking need --prompt: a whole text has no template".to_owned(),
            );
        }
        Ok(ScoreRequest {
            output: self.show.into_request(self.out),
            model: self.model,
            chat: self.chat,
            subject,
            end: self.end,
            named: self.named,
            candidates: self.candidates,
            mass: self.mass,
            threshold: self.threshold,
        })
    }
}
