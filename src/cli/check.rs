//! `check`: its flags, and the request that they make.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;

use super::compare::CompareTerms;
use super::values::{at_least_one, number};
use super::{DeviceChoice, DtypeChoice, PrintRequest, ServerRequest};

/// `check`: a record is made again and compared.
#[derive(Debug, Clone, PartialEq)]
pub struct CheckRequest {
    /// The golden record; `-` is standard input.
    pub golden: PathBuf,
    /// What makes it again.
    pub again: RerunRequest,
    /// What is within tolerance.
    pub terms: CompareTerms,
    /// What today's replies must keep to.
    pub gates: GateRequest,
    /// Whether today's record takes the golden one's place.
    pub update: bool,
    /// Whether nothing is printed but errors.
    pub quiet: bool,
    /// How the result is shown.
    pub print: PrintRequest,
}

/// What makes a record again, where the record does not say it or is not to be followed.
#[derive(Debug, Clone, PartialEq, Default, Args)]
#[command(next_help_heading = "Model")]
pub struct RerunRequest {
    /// Hub id, folder in Hugging Face layout, .gguf file or demo [default: the record's, where it is built in or on the hub]
    #[arg(long, value_name = "ID|FOLDER|FILE.gguf|demo")]
    pub model: Option<OsString>,
    /// Branch, tag or commit on the hub [default: the record's commit, where --model is left out]
    #[arg(long, value_name = "REV")]
    pub revision: Option<String>,
    /// Use only what is on this machine already (also: HF_HUB_OFFLINE=1)
    #[arg(long)]
    pub offline: bool,
    /// What computes [default: the CPU where the record has it, else auto]
    #[arg(long, value_enum)]
    pub device: Option<DeviceChoice>,
    /// Type of the forward pass [default: f32 where the record has it, else auto]
    #[arg(long, value_enum)]
    pub dtype: Option<DtypeChoice>,
    /// CPU threads [default: one a physical core; RAYON_NUM_THREADS is honoured]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// The server that computes in place of this machine, if one does.
    #[command(flatten)]
    pub server: ServerRequest,
    /// Rows (different beginnings of replies) computed together at most; changes no number
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = at_least_one)]
    pub batch: Option<usize>,
}

/// What greedy replies must keep to.
#[derive(Debug, Clone, Copy, PartialEq, Args)]
#[command(next_help_heading = "Gates")]
pub struct GateRequest {
    /// Fail where a greedy token, the one that ends the reply included, is less probable than P
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = number)]
    pub fail_below: Option<f64>,
    /// Fail where a greedy reply has more than N tokens below the record's threshold
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub max_low: Option<usize>,
}

pub(super) const CHECK_EXAMPLES: &str = "\
Examples:
  logprobs --model demo --out golden.json -p 'What is the capital of France? Answer in one sentence.'
  logprobs check golden.json
  logprobs check golden.json --fail-below 0.5
  logprobs check golden.json --model ./SmolLM2-135M-Instruct.Q4_1.gguf --update

Exit codes: 0 as recorded, 1 it could not be run, 2 wrong usage, 3 beyond tolerance or stopped by a gate, 130 interrupted";

#[derive(Args)]
pub(super) struct CheckArgs {
    /// The record to hold today's run against; - is standard input
    #[arg(value_name = "GOLDEN.json")]
    golden: PathBuf,
    /// Write today's record in place of the golden one where it is not the same
    #[arg(long, help_heading = "Comparison")]
    update: bool,
    #[command(flatten)]
    terms: CompareTerms,
    #[command(flatten)]
    gates: GateRequest,
    #[command(flatten)]
    again: RerunRequest,
    /// Print nothing but errors
    #[arg(short, long, help_heading = "Report")]
    quiet: bool,
    #[command(flatten)]
    print: PrintRequest,
}

impl CheckArgs {
    pub(super) fn into_request(self) -> Result<CheckRequest, String> {
        self.terms.check()?;
        if let Some(limit) = self.gates.fail_below
            && !(0.0..=1.0).contains(&limit)
        {
            return Err(format!(
                "--fail-below {limit} is out of range (expected 0 to 1)"
            ));
        }
        if self.update && self.golden == Path::new("-") {
            return Err("--update needs a file (expected its name, not -)".to_owned());
        }
        Ok(CheckRequest {
            golden: self.golden,
            again: self.again,
            terms: self.terms,
            gates: self.gates,
            update: self.update,
            quiet: self.quiet,
            print: self.print,
        })
    }
}
