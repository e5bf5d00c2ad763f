//! The command line: what was typed becomes a validated [`Request`]. No files, no network, no model.
//!
//! Unknown flags, impossible values and contradictory pairs are refused here, as clap's usage errors (exit code 2).

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::setting::Setting;

/// Most runs of one setting; more would be a mistake in the command rather than a wish.
const MAX_SAMPLES: i64 = 100_000;

/// What the program was asked to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// The main command.
    Run(RunRequest),
    /// First-step logits at several temperatures.
    TemperatureStep1(Step1Request),
    /// Write a completion script.
    Completions(clap_complete::Shell),
}

/// The main command: explore every prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRequest {
    /// Which model, on what.
    pub model: ModelRequest,
    /// How a prompt becomes what the model sees.
    pub chat: ChatRequest,
    /// Where results go.
    pub output: OutputRequest,
    /// Prompts given on the command line.
    pub prompts: Vec<String>,
    /// A file of prompts; `-` is standard input.
    pub prompts_file: Option<PathBuf>,
    /// A reply's longest length in tokens; at least 1.
    pub max_new_tokens: usize,
    /// Runs of each setting.
    pub samples: u32,
    /// The only run of each setting to make.
    pub run: Option<u32>,
    /// First part of every coin.
    pub seed: u64,
    /// One group of runs each.
    pub settings: Vec<Setting>,
    /// Candidates noted at every step; at least 1.
    pub candidates: usize,
    /// The mass that `mass_count` counts up to, in (0, 1].
    pub mass: f64,
    /// Tokens below this probability are marked, in [0, 1].
    pub threshold: f64,
}

/// `temperature-step1`.
#[derive(Debug, Clone, PartialEq)]
pub struct Step1Request {
    /// Which model, on what.
    pub model: ModelRequest,
    /// How the prompt becomes what the model sees.
    pub chat: ChatRequest,
    /// Where the result goes.
    pub output: OutputRequest,
    /// The prompt; `None` is the first built-in one.
    pub prompt: Option<String>,
    /// The temperatures, as settings without filters.
    pub temperatures: Vec<f64>,
    /// Candidates listed; at least 1.
    pub candidates: usize,
}

/// Which model, and what computes it.
#[derive(Debug, Clone, PartialEq, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelRequest {
    /// Hub id, folder in Hugging Face layout, .gguf file, or demo: a tiny built-in experiment that knows nothing but what it was taught
    #[arg(
        long,
        value_name = "ID|FOLDER|FILE.gguf|demo",
        default_value = "Qwen/Qwen3.5-2B"
    )]
    pub model: OsString,
    /// Branch, tag or commit on the hub [default: main]
    #[arg(long, value_name = "REV")]
    pub revision: Option<String>,
    /// Use only what is on this machine already (also: HF_HUB_OFFLINE=1)
    #[arg(long)]
    pub offline: bool,
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

/// Where results go.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputRequest {
    /// Where the record goes.
    pub out: Out,
    /// No tables, no progress.
    pub quiet: bool,
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
    /// Standard output, with nothing else on it.
    Stdout,
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
        let matches = command.try_get_matches_from_mut(arguments)?;
        let cli = Cli::from_arg_matches(&matches)?;
        let refuse = |message: String| command.clone().error(ErrorKind::ValueValidation, message);
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
  logprobs --samples 0 --json -p 'Say hi.' | jq '.prompts[0].greedy.steps[].prob'
  logprobs --raw -p 'The capital of France is' --max-new-tokens 1
  logprobs temperature-step1 -p 'What is the capital of France?' --temps 0.5,1,2

Exit codes: 0 done, 1 failed (or a prompt of several did), 2 wrong usage, 130 interrupted";

#[derive(Subcommand)]
enum Command {
    /// Show the first token's distribution at several temperatures
    #[command(name = "temperature-step1", after_help = STEP1_EXAMPLES)]
    TemperatureStep1(Box<Step1Args>),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  logprobs completions bash > ~/.local/share/bash-completion/completions/logprobs"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

const STEP1_EXAMPLES: &str = "\
Examples:
  logprobs temperature-step1
  logprobs temperature-step1 -p 'What is the capital of France?' --temps 0.5,1,2 --candidates 10
  logprobs temperature-step1 --model ./SmolLM2-135M-Instruct.Q4_1.gguf --raw -p 'My favorite season is' --json";

#[derive(Args)]
struct RunArgs {
    /// A prompt; repeat it for several [default: two built-in Chinese ones]
    #[arg(short, long = "prompt", value_name = "TEXT", allow_hyphen_values = true, value_parser = utf8(), help_heading = "Prompt")]
    prompts: Vec<String>,
    /// Prompts from a file, one a line, or .jsonl with objects {prompt, id, system}; - is standard input
    #[arg(long, value_name = "FILE|-", help_heading = "Prompt")]
    prompts_file: Option<PathBuf>,
    #[command(flatten)]
    chat: ChatRequest,

    /// Longest reply, in tokens
    #[arg(long, value_name = "N", default_value = "64", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Runs")]
    max_new_tokens: usize,
    /// Runs of each setting; 0 makes the greedy run alone
    #[arg(long, value_name = "N", default_value = "5", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=MAX_SAMPLES), help_heading = "Runs")]
    samples: u32,
    /// Seed of the coins, 0 to 2^64 - 1; the same seed gives the same runs
    #[arg(
        long,
        value_name = "N",
        default_value = "0",
        allow_negative_numbers = true,
        help_heading = "Runs"
    )]
    seed: u64,
    /// Make only run I of each setting (the first is 0)
    #[arg(
        long,
        value_name = "I",
        allow_negative_numbers = true,
        help_heading = "Runs"
    )]
    run: Option<u32>,
    /// Temperatures, a group of runs for each; 0 is greedy
    #[arg(long, value_name = "T", num_args = 1.., value_delimiter = ',', allow_negative_numbers = true, default_value = "0.3,0.7,1.0,1.5", value_parser = number, help_heading = "Runs")]
    temps: Vec<f64>,
    /// Nucleus masses, a group of runs at temperature 1 for each; 1 makes no group
    #[arg(long, value_name = "P", num_args = 1.., value_delimiter = ',', allow_negative_numbers = true, default_value = "0.9", value_parser = number, help_heading = "Runs")]
    top_p: Vec<f64>,
    /// A group of runs: temperature=1.5,top_k=40,top_p=0.9,min_p=0.05, each part optional; in place of --temps and --top-p
    #[arg(long = "setting", value_name = "KEY=VALUE,…", conflicts_with_all = ["temps", "top_p"], value_parser = setting, help_heading = "Runs")]
    settings: Vec<Setting>,

    /// Candidates noted at every step
    #[arg(long, value_name = "K", default_value = "5", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Report")]
    candidates: usize,
    /// Count how many candidates cover this mass
    #[arg(long, value_name = "M", default_value = "0.9", allow_negative_numbers = true, value_parser = number, help_heading = "Report")]
    mass: f64,
    /// Mark tokens below this probability
    #[arg(long, value_name = "P", default_value = "0.3", allow_negative_numbers = true, value_parser = number, help_heading = "Report")]
    threshold: f64,
    /// A folder for the record, or NAME.json for the file itself; - is standard output, as --json
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

#[derive(Args)]
struct Step1Args {
    /// The prompt [default: the first built-in one]
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, value_parser = utf8(), help_heading = "Prompt")]
    prompt: Option<String>,
    #[command(flatten)]
    chat: ChatRequest,
    /// Temperatures; 0 is greedy
    #[arg(long, value_name = "T", num_args = 1.., value_delimiter = ',', allow_negative_numbers = true, default_value = "0.5,1.0,1.5", value_parser = number, help_heading = "Report")]
    temps: Vec<f64>,
    /// Candidates listed
    #[arg(long, value_name = "K", default_value = "5", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Report")]
    candidates: usize,
    /// A folder for temperature_step1_<device>.json, which is written anew, or NAME.json for the file itself
    #[arg(
        long,
        value_name = "PATH",
        default_value = "sample_output",
        help_heading = "Report"
    )]
    out: PathBuf,
    #[command(flatten)]
    show: ShowArgs,
    #[command(flatten)]
    model: ModelRequest,
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
    /// When to colour; NO_COLOR and CLICOLOR_FORCE are honoured by auto
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = ColorWhen::Auto)]
    color: ColorWhen,
}

impl RunArgs {
    fn into_request(self, matches: &ArgMatches) -> Result<RunRequest, String> {
        if let Some(run) = self.run.filter(|&run| run >= self.samples) {
            return Err(match self.samples {
                0 => "--run needs --samples to be at least 1".to_owned(),
                samples => format!(
                    "--run {run} is out of range (expected 0 to {}; --samples sets how many)",
                    samples - 1
                ),
            });
        }
        if !(self.mass > 0.0 && self.mass <= 1.0) {
            return Err(format!(
                "--mass {} is out of range (expected above 0, up to 1)",
                self.mass
            ));
        }
        if !(0.0..=1.0).contains(&self.threshold) {
            return Err(format!(
                "--threshold {} is out of range (expected 0 to 1)",
                self.threshold
            ));
        }
        let settings = match matches.value_source("settings") {
            Some(ValueSource::CommandLine) => self.settings,
            _ => groups(&self.temps, &self.top_p)?,
        };
        let mut distinct: Vec<Setting> = Vec::with_capacity(settings.len());
        for setting in settings {
            if !distinct.contains(&setting) {
                distinct.push(setting);
            }
        }
        Ok(RunRequest {
            output: self.show.into_request(self.out),
            model: self.model,
            chat: self.chat,
            prompts: self.prompts,
            prompts_file: self.prompts_file,
            max_new_tokens: self.max_new_tokens,
            samples: self.samples,
            run: self.run,
            seed: self.seed,
            settings: distinct,
            candidates: self.candidates,
            mass: self.mass,
            threshold: self.threshold,
        })
    }
}

impl Step1Args {
    fn into_request(self) -> Result<Step1Request, String> {
        let temperatures = self
            .temps
            .iter()
            .map(|&t| {
                Setting::OFF
                    .with_temperature(t)
                    .map(|setting| setting.temperature())
            })
            .collect::<anyhow::Result<_>>()
            .map_err(|error| format!("--temps: {error:#}"))?;
        Ok(Step1Request {
            output: self.show.into_request(self.out),
            model: self.model,
            chat: self.chat,
            prompt: self.prompt,
            temperatures,
            candidates: self.candidates,
        })
    }
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
            color: self.color,
        }
    }
}

/// One group for each temperature, and one at temperature 1 for each nucleus below 1.
fn groups(temps: &[f64], top_p: &[f64]) -> Result<Vec<Setting>, String> {
    let temperatures = temps.iter().map(|&t| {
        let setting = Setting::OFF.with_temperature(t);
        setting.map_err(|error| format!("--temps: {error:#}"))
    });
    let nuclei = top_p.iter().filter(|&&p| p != 1.0).map(|&p| {
        let setting = Setting::OFF.with_top_p(p);
        setting.map_err(|error| format!("--top-p: {error:#}"))
    });
    temperatures.chain(nuclei).collect()
}

fn number(text: &str) -> Result<f64, String> {
    let value: f64 = text
        .trim()
        .parse()
        .map_err(|_| "expected a number such as 0.7".to_owned())?;
    let is_zero = text
        .trim()
        .chars()
        .take_while(|c| !matches!(c, 'e' | 'E'))
        .all(|c| !('1'..='9').contains(&c));
    match value {
        _ if value.is_nan() => Err("expected a number such as 0.7".to_owned()),
        0.0 if !is_zero => Err("too small to tell from 0 (write 0 for greedy)".to_owned()),
        _ => Ok(value),
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(format!("expected a whole number from 1 to {}", usize::MAX)),
    }
}

fn setting(text: &str) -> Result<Setting, String> {
    let mut setting = Setting::OFF;
    let mut seen = Vec::new();
    for part in text.split(',') {
        let (key, value) = part
            .split_once('=')
            .map(|(key, value)| (key.trim(), value.trim()))
            .ok_or_else(|| {
                format!(
                    "`{part}` has no `=` (expected temperature=1.5,top_k=40,top_p=0.9,min_p=0.05)"
                )
            })?;
        if seen.contains(&key) {
            return Err(format!("{key} is given twice"));
        }
        seen.push(key);
        let float = || number(value).map_err(|error| format!("{key}: {error}"));
        let changed = match key {
            "temperature" => setting.with_temperature(float()?),
            "top_p" => setting.with_top_p(float()?),
            "min_p" => setting.with_min_p(float()?),
            "top_k" => {
                let top_k = value
                    .parse()
                    .map_err(|_| "top_k: expected a whole number from 0 up; 0 is off".to_owned())?;
                Ok(setting.with_top_k(top_k))
            }
            _ => {
                return Err(format!(
                    "`{key}` is no part of a setting (expected temperature, top_k, top_p or min_p)"
                ));
            }
        };
        setting = changed.map_err(|error| error.to_string())?;
    }
    Ok(setting)
}

/// Text that must be UTF-8, with the place where it is not.
fn utf8() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().try_map(|text: OsString| {
        let bytes = text.as_encoded_bytes();
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(format!(
                "not valid UTF-8 at byte {} (expected UTF-8 text)",
                error.valid_up_to()
            )),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &[&str]) -> Result<Request, clap::Error> {
        let arguments = std::iter::once("logprobs").chain(line.iter().copied());
        Request::parse(arguments.map(OsString::from))
    }

    fn run(line: &[&str]) -> RunRequest {
        match parse(line) {
            Ok(Request::Run(request)) => request,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    fn refused(line: &[&str]) -> String {
        let error = parse(line).expect_err("this command line contradicts itself");
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    }

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn without_arguments_the_defaults_are_those_of_the_documentation() {
        let request = run(&[]);
        let labels: Vec<_> = request.settings.iter().map(ToString::to_string).collect();
        assert_eq!(
            labels,
            [
                "temperature 0.3",
                "temperature 0.7",
                "temperature 1.0",
                "temperature 1.5",
                "temperature 1.0, top_p 0.9"
            ]
        );
        assert_eq!(
            (request.max_new_tokens, request.samples, request.seed),
            (64, 5, 0)
        );
        assert_eq!(
            (request.candidates, request.mass, request.threshold),
            (5, 0.9, 0.3)
        );
        assert_eq!(request.model.model, "Qwen/Qwen3.5-2B");
        assert_eq!(request.output.out, Out::Folder("results".into()));
    }

    #[test]
    fn a_list_takes_commas_several_values_and_repetition() {
        let expected = run(&["--temps", "0.5,1.0,2"]).settings;
        assert_eq!(run(&["--temps", "0.5", "1.0", "2"]).settings, expected);
        assert_eq!(
            run(&["--temps", "0.5", "--temps", "1.0,2"]).settings,
            expected
        );
        assert_eq!(expected.len(), 4);
    }

    #[test]
    fn top_p_one_makes_no_group_and_a_setting_given_twice_is_one_group() {
        assert_eq!(run(&["--top-p", "1"]).settings.len(), 4);
        assert_eq!(
            run(&["--temps", "1", "1.0", "--top-p", "1"]).settings,
            [Setting::OFF]
        );
    }

    #[test]
    fn settings_replace_the_groups() -> anyhow::Result<()> {
        let settings = run(&[
            "--setting",
            "temperature=1.5,top_p=0.9,top_k=40,min_p=0.05",
            "--setting",
            "top_k=0",
        ])
        .settings;
        let full = Setting::OFF
            .with_temperature(1.5)?
            .with_top_k(40)
            .with_top_p(0.9)?
            .with_min_p(0.05)?;
        assert_eq!(settings, [full, Setting::OFF]);
        Ok(())
    }

    #[test]
    fn prompts_may_start_with_a_hyphen_and_be_empty() {
        assert_eq!(
            run(&["-p", "- a list", "--prompt", ""]).prompts,
            ["- a list", ""]
        );
    }

    #[test]
    fn out_is_a_file_when_its_name_ends_in_json() {
        assert_eq!(
            run(&["--out", "a/r.json"]).output.out,
            Out::File("a/r.json".into())
        );
        assert_eq!(run(&["--out", "a/"]).output.out, Out::Folder("a/".into()));
        assert_eq!(run(&["--out", "-"]).output.out, Out::Stdout);
        assert_eq!(run(&["--json"]).output.out, Out::Stdout);
    }

    #[test]
    fn impossible_values_are_refused_by_name() {
        for (line, expected) in [
            (vec!["--temps", "-1"], "temperature -1 is out of range"),
            (vec!["--temps", "nan"], "expected a number"),
            (vec!["--temps", "1e-400"], "too small"),
            (vec!["--temps", "inf"], "temperature inf"),
            (vec!["--top-p", "2"], "top_p 2 is out of range"),
            (vec!["--top-p", "-0.1"], "top_p -0.1 is out of range"),
            (vec!["--setting", "min_p=1.5"], "min_p 1.5 is out of range"),
            (vec!["--setting", "top_k=-1"], "whole number from 0 up"),
            (
                vec!["--setting", "top_q=1"],
                "`top_q` is no part of a setting",
            ),
            (vec!["--setting", "top_k"], "has no `=`"),
            (vec!["--setting", "top_k=1,top_k=2"], "given twice"),
            (vec!["--mass", "0"], "--mass 0 is out of range"),
            (
                vec!["--threshold", "1.1"],
                "--threshold 1.1 is out of range",
            ),
            (vec!["--max-new-tokens", "0"], "from 1 to"),
            (vec!["--max-new-tokens", "-1"], "from 1 to"),
            (vec!["--candidates", "-1"], "from 1 to"),
            (
                vec!["--max-new-tokens", "99999999999999999999"],
                "from 1 to",
            ),
            (vec!["--seed", "-1"], "-1"),
            (vec!["--seed", "18446744073709551616"], "seed"),
            (vec!["--samples", "-1"], "-1"),
            (vec!["--candidates", "0"], "from 1 to"),
            (vec!["--threads", "0"], "1..=1024"),
            (vec!["--nonsense"], "--nonsense"),
            (vec!["stray"], "stray"),
        ] {
            let message = refused(&line);
            assert!(message.contains(expected), "{line:?}: {message}");
        }
    }

    #[test]
    fn contradictory_pairs_are_refused() {
        for line in [
            vec!["--setting", "top_k=1", "--temps", "1"],
            vec!["--setting", "top_k=1", "--top-p", "0.5"],
            vec!["--raw", "--system", "Be brief."],
            vec!["--raw", "--thinking"],
            vec!["--plain-text"],
            vec!["--json", "--out", "results"],
            vec!["--run", "5"],
            vec!["--samples", "0", "--run", "0"],
            vec!["--prompt", "x", "temperature-step1"],
        ] {
            refused(&line);
        }
    }

    #[test]
    fn large_numbers_are_kept() {
        assert_eq!(run(&["--seed", "18446744073709551615"]).seed, u64::MAX);
        assert_eq!(run(&["--candidates", "9999999"]).candidates, 9_999_999);
    }

    #[cfg(unix)]
    #[test]
    fn a_prompt_that_is_no_utf8_is_refused_with_the_place() {
        use std::os::unix::ffi::OsStringExt;
        let arguments = [
            b"logprobs".to_vec(),
            b"--prompt".to_vec(),
            b"ab\xff".to_vec(),
        ];
        let error =
            Request::parse(arguments.map(OsString::from_vec)).expect_err("0xff is never UTF-8");
        assert!(
            error.to_string().contains("not valid UTF-8 at byte 2"),
            "{error}"
        );
    }

    #[test]
    fn the_subcommand_has_its_own_defaults() {
        let Ok(Request::TemperatureStep1(request)) =
            parse(&["temperature-step1", "--temps", "0", "1e38"])
        else {
            panic!("a temperature may be 0 or huge");
        };
        assert_eq!(
            (request.temperatures, request.candidates),
            (vec![0.0, 1e38], 5)
        );
        assert_eq!(request.output.out, Out::Folder("sample_output".into()));
    }
}
