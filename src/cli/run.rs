//! The main command: its flags, and the request that they make.

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use super::values::{at_least_one, check_shares, number, setting, utf8};
use super::{ChatRequest, ModelRequest, Out, OutputRequest, ShowArgs};
use crate::prompts::is_jsonl;
use crate::setting::Setting;

/// Most runs of one setting; more would be a mistake in the command rather than a wish.
pub(crate) const MAX_SAMPLES: i64 = 100_000;

/// The main command.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRequest {
    /// What is done with every prompt.
    pub explore: ExploreRequest,
    /// Where results go.
    pub output: OutputRequest,
    /// A file for the page of the record, which must not exist.
    pub html: Option<PathBuf>,
    /// Prompts given on the command line.
    pub prompts: Vec<String>,
    /// A file of prompts; `-` is standard input.
    pub prompts_file: Option<PathBuf>,
    /// The record of the same command, interrupted.
    pub resume: Option<PathBuf>,
    /// Show each reply on one line.
    pub one_line: bool,
    /// Show the replies as trees, too.
    pub tree: bool,
}

/// What is done with every prompt: all that decides a record but the prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct ExploreRequest {
    /// Which model, on what.
    pub model: ModelRequest,
    /// How a prompt becomes what the model sees.
    pub chat: ChatRequest,
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
    /// Whether the ids that end a reply do not.
    pub ignore_eos: bool,
    /// What a template is told of the date, where it has the format that it asks for; `None` is today.
    pub template_date: Option<String>,
    /// Rows that are computed together at most; at least 1. `None`: what fits into memory.
    pub batch: Option<usize>,
}

#[derive(Args)]
pub(super) struct RunArgs {
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
    /// Let every run go on to --max-new-tokens, past the tokens that end a reply
    #[arg(long, help_heading = "Runs")]
    ignore_eos: bool,
    /// Rows (different beginnings of replies) computed together at most; changes no number [default: 26 or 52, by the size of the model; fewer where memory is short]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one, help_heading = "Runs")]
    batch: Option<usize>,
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
    /// Show each reply on one line: its line breaks as \n, cut at the terminal's width
    #[arg(long, conflicts_with = "json", help_heading = "Report")]
    one_line: bool,
    /// Show the replies of each setting as a tree, too: what runs share stands once, with counts
    #[arg(long, conflicts_with = "json", help_heading = "Report")]
    tree: bool,
    /// A folder for the record, or NAME.json for the file itself; - is standard output, as --json
    #[arg(
        long,
        value_name = "PATH",
        default_value = "results",
        help_heading = "Report"
    )]
    out: PathBuf,
    /// Complete the record of a batch that was interrupted: its prompts are kept, the others are run; the same prompts and flags are needed. The record itself is replaced unless --out, --json or --jsonl says otherwise; lines of --jsonl need one of these
    #[arg(long, value_name = "RECORD", help_heading = "Report")]
    resume: Option<PathBuf>,
    /// Print every finished prompt at once as a line of JSON, a record of that prompt, on standard output; no tables, no file
    #[arg(long, conflicts_with_all = ["json", "out", "one_line", "tree"], help_heading = "Report")]
    jsonl: bool,
    /// Write the record as a page of HTML too, as report does; the file must not exist yet
    #[arg(long, value_name = "FILE.html", help_heading = "Report")]
    html: Option<PathBuf>,
    #[command(flatten)]
    show: ShowArgs,
    #[command(flatten)]
    model: ModelRequest,
}

impl RunArgs {
    pub(super) fn into_request(self, matches: &ArgMatches) -> Result<RunRequest, String> {
        if let Some(run) = self.run.filter(|&run| run >= self.samples) {
            return Err(match self.samples {
                0 => "--run needs --samples to be at least 1".to_owned(),
                samples => format!(
                    "--run {run} is out of range (expected 0 to {}; --samples sets how many)",
                    samples - 1
                ),
            });
        }
        if self.tree && self.samples == 0 {
            return Err("--tree needs --samples to be at least 1".to_owned());
        }
        check_shares(self.mass, self.threshold)?;
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
        check_page(self.html.as_deref(), &self.out)?;
        let mut output = self.show.into_request(self.out);
        if self.jsonl {
            output.out = Out::Lines;
        }
        let is_out_given = matches.value_source("out") == Some(ValueSource::CommandLine);
        if let (Some(path), Out::Folder(_), false) = (&self.resume, &output.out, is_out_given) {
            if path.as_os_str() == "-" || is_jsonl(path) {
                return Err(format!(
                    "--resume {}: lines cannot be replaced by a record (say where the result goes: --jsonl, --json or --out)",
                    path.display()
                ));
            }
            output.out = Out::Replace(path.clone());
        }
        Ok(RunRequest {
            explore: ExploreRequest {
                model: self.model,
                chat: self.chat,
                max_new_tokens: self.max_new_tokens,
                samples: self.samples,
                run: self.run,
                seed: self.seed,
                settings: distinct,
                candidates: self.candidates,
                mass: self.mass,
                threshold: self.threshold,
                ignore_eos: self.ignore_eos,
                template_date: None,
                batch: self.batch,
            },
            output,
            html: self.html,
            prompts: self.prompts,
            prompts_file: self.prompts_file,
            resume: self.resume,
            one_line: self.one_line,
            tree: self.tree,
        })
    }
}

/// Refuses a page that could not be told from the record.
fn check_page(html: Option<&Path>, out: &Path) -> Result<(), String> {
    match html {
        Some(html) if html == Path::new("-") => Err(
            "--html needs a file (logprobs --json … | logprobs report - --out - writes a page to standard output)"
                .to_owned(),
        ),
        Some(html) if html == out => Err("--html and --out name the same file".to_owned()),
        _ => Ok(()),
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
