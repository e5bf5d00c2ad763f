//! The command line: what was typed becomes a validated [`Request`]. No files, no network, no model.
//!
//! Unknown flags, impossible values and contradictory pairs are refused here, as clap's usage errors (exit code 2).

mod audit;
mod check;
mod compare;
mod context;
mod render;
mod report;
mod run;
mod score;
mod server;
mod softmax;
mod step1;
#[cfg(test)]
mod tests;
mod tokens;
mod values;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

pub use audit::AuditRequest;
pub use check::{CheckRequest, GateRequest, RerunRequest};
pub use compare::{CompareRequest, CompareTerms};
pub use context::{ContextRequest, Length};
pub use render::{RenderRequest, SchemaRequest, SchemaSubject, Shape};
pub use report::ReportRequest;
pub(crate) use run::MAX_SAMPLES;
pub use run::{ExploreRequest, RunRequest};
pub use score::{Given, ScoreRequest, Subject};
pub use server::{ServerRequest, Top};
pub use softmax::SoftmaxRequest;
pub use step1::Step1Request;
pub use tokens::{Asked, TextSource, TokensRequest};

use audit::{AUDIT_EXAMPLES, AuditArgs};
use check::{CHECK_EXAMPLES, CheckArgs};
use compare::{COMPARE_EXAMPLES, CompareArgs};
use context::{CONTEXT_EXAMPLES, ContextArgs};
use render::{RENDER_EXAMPLES, SCHEMA_EXAMPLES};
use report::{REPORT_EXAMPLES, ReportArgs};
use run::RunArgs;
use score::{SCORE_EXAMPLES, ScoreArgs};
use softmax::{SOFTMAX_EXAMPLES, SoftmaxArgs};
use step1::{STEP1_EXAMPLES, Step1Args};
use tokens::{TOKENS_EXAMPLES, TokensArgs};
use values::utf8;

/// What the program was asked to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// The main command.
    Run(RunRequest),
    /// First-step logits at several temperatures.
    TemperatureStep1(Step1Request),
    /// The confidence trace of a given text.
    Score(ScoreRequest),
    /// A record in another shape.
    Render(RenderRequest),
    /// What the program writes.
    Schema(SchemaRequest),
    /// How texts become tokens.
    Tokens(TokensRequest),
    /// What a sequence costs.
    Context(ContextRequest),
    /// The arithmetic of a step on given logits.
    Softmax(SoftmaxRequest),
    /// Two records beside each other.
    Compare(CompareRequest),
    /// A record made again and held against what it was.
    Check(CheckRequest),
    /// The greedy run again in other ways.
    Audit(AuditRequest),
    /// Records as one page.
    Report(ReportRequest),
    /// Write a completion script.
    Completions(clap_complete::Shell),
}

/// The model of whoever names none.
const DEFAULT_MODEL: &str = "Qwen/Qwen3.5-2B";

/// Where a model's files are.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Model")]
pub struct SourceRequest {
    /// Hub id, folder in Hugging Face layout, .gguf file, or demo: a tiny built-in experiment that knows nothing but what it was
    /// taught [default: Qwen/Qwen3.5-2B]
    #[arg(long, value_name = "ID|FOLDER|FILE.gguf|demo")]
    pub model: Option<OsString>,
    /// Branch, tag or commit on the hub [default: main]
    #[arg(long, value_name = "REV")]
    pub revision: Option<String>,
    /// Use only what is on this machine already (also: HF_HUB_OFFLINE=1)
    #[arg(long)]
    pub offline: bool,
}

impl SourceRequest {
    /// Returns the model that was named, or the one of whoever names none.
    pub(crate) fn model(&self) -> &OsStr {
        self.model.as_deref().unwrap_or(OsStr::new(DEFAULT_MODEL))
    }
}

/// Which model, and what computes it.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelRequest {
    /// A model on this machine.
    #[command(flatten)]
    pub local: LocalRequest,
    /// The server that computes in place of this machine, if one does.
    #[command(flatten)]
    pub server: ServerRequest,
}

/// Which model, and what of this machine computes it.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Model")]
pub struct LocalRequest {
    /// Where its files are.
    #[command(flatten)]
    pub source: SourceRequest,
    /// What computes; auto takes the best one that this program was built for
    #[arg(long, value_enum, default_value_t = DeviceChoice::Auto)]
    pub device: DeviceChoice,
    /// Type of the forward pass; auto is f32 on the CPU and bf16 on a GPU
    #[arg(long, value_enum, default_value_t = DtypeChoice::Auto)]
    pub dtype: DtypeChoice,
    /// CPU threads [default: one a physical core; RAYON_NUM_THREADS is honoured]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

/// What computes the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceChoice {
    /// The best that is compiled in.
    Auto,
    /// The processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// An Apple GPU.
    Metal,
}

/// What the forward pass computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DtypeChoice {
    /// f32 on the CPU, bf16 on a GPU.
    Auto,
    /// Single precision.
    F32,
    /// Half the bytes, 8 bits of precision.
    Bf16,
    /// Half the bytes, 11 bits of precision, small range.
    F16,
}

/// How a prompt becomes what the model sees.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Prompt")]
pub struct ChatRequest {
    /// System message; an empty one is not the same as none
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, value_parser = utf8())]
    pub system: Option<String>,
    /// Feed prompts as they are, without the model's chat template; control tokens in them are parsed
    #[arg(long, conflicts_with_all = ["system", "thinking"])]
    pub raw: bool,
    /// With --raw: do not parse control tokens either
    #[arg(long, requires = "raw")]
    pub plain_text: bool,
    /// Ask the template to let the model think first
    #[arg(long)]
    pub thinking: bool,
}

/// How a command that writes no file shows what it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
#[command(next_help_heading = "Report")]
pub struct PrintRequest {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// When to colour; NO_COLOR and CLICOLOR_FORCE are honoured by auto
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = ColorWhen::Auto)]
    pub color: ColorWhen,
}

/// Where results go.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputRequest {
    /// Where the record goes.
    pub out: Out,
    /// No tables, no progress.
    pub quiet: bool,
    /// Whether to say how things are computed.
    pub is_verbose: bool,
    /// When to colour.
    pub color: ColorWhen,
}

/// Where a record goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Out {
    /// A new file in this folder.
    Folder(PathBuf),
    /// This file, which must not exist.
    File(PathBuf),
    /// This file, which is replaced.
    Replace(PathBuf),
    /// Standard output, with nothing else on it.
    Stdout,
    /// Standard output, one finished prompt a line, with nothing else on it.
    Lines,
}

/// When to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal; NO_COLOR and CLICOLOR_FORCE are honoured.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Request {
    /// Reads the program's arguments, the first of which is its name.
    ///
    /// # Errors
    /// What clap says of them, `--help` and `--version` included; it knows its own exit code.
    pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = Cli::command();
        let matches = command.try_get_matches_from_mut(softmax::with_minus_signs(arguments))?;
        let cli = Cli::from_arg_matches(&matches)?;
        // with the usage of the command that was given
        command.build();
        let given = matches.subcommand_name();
        let given = given
            .and_then(|name| command.find_subcommand_mut(name))
            .cloned();
        let mut given = given.unwrap_or(command);
        let refuse = |message: String| given.error(ErrorKind::ValueValidation, message);
        match cli.command {
            None => cli
                .run
                .into_request(&matches)
                .map(Self::Run)
                .map_err(refuse),
            Some(Command::TemperatureStep1(step1)) => step1
                .into_request()
                .map(Self::TemperatureStep1)
                .map_err(refuse),
            Some(Command::Score(score)) => score.into_request().map(Self::Score).map_err(refuse),
            Some(Command::Render(render)) => render.check().map(Self::Render).map_err(refuse),
            Some(Command::Schema(schema)) => Ok(Self::Schema(schema)),
            Some(Command::Tokens(tokens)) => {
                tokens.into_request().map(Self::Tokens).map_err(refuse)
            }
            Some(Command::Context(context)) => {
                context.into_request().map(Self::Context).map_err(refuse)
            }
            Some(Command::Softmax(softmax)) => {
                softmax.into_request().map(Self::Softmax).map_err(refuse)
            }
            Some(Command::Compare(compare)) => {
                compare.into_request().map(Self::Compare).map_err(refuse)
            }
            Some(Command::Check(check)) => check.into_request().map(Self::Check).map_err(refuse),
            Some(Command::Audit(audit)) => audit.into_request().map(Self::Audit).map_err(refuse),
            Some(Command::Report(report)) => {
                report.into_request().map(Self::Report).map_err(refuse)
            }
            Some(Command::Completions { shell }) => Ok(Self::Completions(shell)),
        }
    }
}

/// Returns the command line as clap knows it, for completion scripts.
pub fn command() -> clap::Command {
    Cli::command()
}

#[derive(Parser)]
#[command(
    name = "logprobs",
    version,
    about = "Shows where a language model is guessing",
    long_about = "Shows where a language model is guessing: runs an open-weight model on this machine and prints, for every \
                  token of its greedy reply, the probability, how many candidates share 90 % of the mass, and the runners-up; \
                  then samples at several temperatures, marks every improbable token as 【token|0.02】, and writes all of it \
                  as JSON. A low probability is not an error and a high one is no proof: it is where to look first.",
    after_help = EXAMPLES,
    args_conflicts_with_subcommands = true,
    infer_long_args = false
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: RunArgs,
}

const EXAMPLES: &str = "\
Examples:
  logprobs --model demo
  logprobs --prompt 'What is the capital of France? Answer in one sentence.'
  logprobs --model Qwen/Qwen3.5-0.8B --prompts-file prompts.txt --out results
  logprobs --model ./SmolLM2-135M-Instruct.Q4_1.gguf -p 'Name a colour.' --temps 0.5 1.0 --samples 10
  logprobs --setting temperature=1.5,top_p=0.9 --setting temperature=1.5,top_k=40 -p 'Tell a story.'
  logprobs --raw --one-line -p 'Three uses for a paperclip:' --setting temperature=0 --setting temperature=0.7,top_p=0.95 --setting temperature=1.5
  logprobs --samples 20 --temps 1 --tree -p 'Name a colour.'
  logprobs --prompts-file prompts.txt --jsonl > run.jsonl
  logprobs --prompts-file prompts.txt --resume results/run.json
  logprobs --samples 0 --json -p 'Say hi.' | jq '.prompts[0].greedy.steps[].prob'
  logprobs --raw -p 'The capital of France is' --max-new-tokens 1
  logprobs --server http://localhost:8000 --tokenizer Qwen/Qwen3-235B-A22B -p 'What is the capital of France?'
  logprobs temperature-step1 -p 'What is the capital of France?' --temps 0.5,1,2
  logprobs score -p 'What is the capital of France?' --completion 'The capital is Lyon.'
  logprobs audit -p 'What is the capital of France?'
  logprobs compare results/before.json results/after.json
  logprobs check golden.json
  logprobs report sample_output/demo.json --out page.html
  logprobs render results/run.json --format csv
  logprobs tokens 'What is the capital of France?' '法国的首都是哪里？'
  logprobs context --tokens 8k,max
  logprobs softmax 5 3 2.5 1 -1 --labels Paris,Lyon,France,a,banana

Exit codes: 0 done, 1 failed (or a prompt of several did), 2 wrong usage, 3 a check failed, 130 interrupted";

#[derive(Subcommand)]
enum Command {
    /// Show the first token's distribution at several temperatures
    #[command(name = "temperature-step1", after_help = STEP1_EXAMPLES)]
    TemperatureStep1(Box<Step1Args>),
    /// Show how probable a given text is, token by token, and named candidates beside it
    #[command(after_help = SCORE_EXAMPLES)]
    Score(Box<ScoreArgs>),
    /// Compute a greedy run again in other ways: threads, batch, kernels, bf16; does the reply change?
    #[command(after_help = AUDIT_EXAMPLES)]
    Audit(Box<AuditArgs>),
    /// Compare two records of the same prompts: where replies part, and how far their numbers are from each other
    #[command(after_help = COMPARE_EXAMPLES)]
    Compare(CompareArgs),
    /// Run again what a record says and compare: a run held in CI
    #[command(after_help = CHECK_EXAMPLES)]
    Check(Box<CheckArgs>),
    /// Make one page of HTML of records: heat maps, charts, samples, trees; it needs no network
    #[command(after_help = REPORT_EXAMPLES)]
    Report(ReportArgs),
    /// Turn a record into a table, Markdown, CSV, JSON or the OpenAI shape
    #[command(after_help = RENDER_EXAMPLES)]
    Render(RenderRequest),
    /// Print the JSON Schema of what the program writes
    #[command(after_help = SCHEMA_EXAMPLES)]
    Schema(SchemaRequest),
    /// Show the tokens that texts become, and compare what texts cost; no weights are read
    #[command(after_help = TOKENS_EXAMPLES)]
    Tokens(Box<TokensArgs>),
    /// Show what a model and a request need: context, weights, KV cache, prefill; no weights are read
    #[command(after_help = CONTEXT_EXAMPLES)]
    Context(Box<ContextArgs>),
    /// Turn logits into probabilities, filter them and draw: the arithmetic itself, without a model
    #[command(after_help = SOFTMAX_EXAMPLES)]
    Softmax(Box<SoftmaxArgs>),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  logprobs completions bash > ~/.local/share/bash-completion/completions/logprobs"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Args)]
#[command(next_help_heading = "Report")]
struct ShowArgs {
    /// Print the record as JSON on standard output; no tables, no file
    #[arg(long, conflicts_with = "out")]
    json: bool,
    /// Print nothing but errors; the file is written all the same
    #[arg(short, long)]
    quiet: bool,
    /// Say on stderr what computes, on how many threads, and how many rows at once
    #[arg(short, long, conflicts_with = "quiet")]
    verbose: bool,
    /// When to colour; NO_COLOR and CLICOLOR_FORCE are honoured by auto
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = ColorWhen::Auto)]
    color: ColorWhen,
}

impl ShowArgs {
    fn into_request(self, out: PathBuf) -> OutputRequest {
        let is_json = out
            .extension()
            .is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let out = match () {
            () if self.json || out == OsStr::new("-") => Out::Stdout,
            () if is_json && !out.is_dir() => Out::File(out),
            () => Out::Folder(out),
        };
        OutputRequest {
            out,
            quiet: self.quiet,
            is_verbose: self.verbose,
            color: self.color,
        }
    }
}
