//! `softmax`: its flags, and the request that they make.
//!
//! A negative number is a number here, wherever it stands: clap knows `-1`, but takes `-.5`, `-1e-3` and `-inf` for flags.

use std::ffi::OsString;

use clap::Args;

use super::PrintRequest;
use super::values::{at_least_zero, number, utf8};
use crate::setting::Setting;

/// Most draws of one setting; more would be a mistake in the command rather than a wish.
const MAX_DRAWS: i64 = 1_000_000;

/// What [`with_minus_signs`] writes for the hyphen of a negative number.
const MINUS_SIGN: char = '\u{2212}';

/// `softmax`.
#[derive(Debug, Clone, PartialEq)]
pub struct SoftmaxRequest {
    /// How the result is shown.
    pub print: PrintRequest,
    /// The logits, at least one of them finite; -inf is a candidate without probability.
    pub logits: Vec<f32>,
    /// One label for each logit.
    pub labels: Option<Vec<String>>,
    /// One setting for each temperature, all with the same filters.
    pub settings: Vec<Setting>,
    /// Draws at each setting.
    pub draws: u32,
    /// First part of every coin.
    pub seed: u64,
}

pub(super) const SOFTMAX_EXAMPLES: &str = "\
Examples:
  logprobs softmax 5 3 2.5 1 -1 --labels Paris,Lyon,France,a,banana
  logprobs softmax 2 1 0 --temps 0.5,1,2
  logprobs softmax 5 3 2.5 1 -1 --temps 1 --top-p 0.9 --draws 1000
  logprobs softmax 1.5 -.5 -inf --top-k 2 --json";

#[derive(Args)]
pub(super) struct SoftmaxArgs {
    /// Raw scores, one a candidate; -inf is a candidate without any probability
    #[arg(required = true, num_args = 1.., value_name = "LOGIT", value_delimiter = ',', value_parser = logit)]
    logits: Vec<f32>,
    /// A name for each candidate, in the order of the logits
    #[arg(long, value_name = "A,B,…", value_delimiter = ',', allow_hyphen_values = true, value_parser = utf8())]
    labels: Vec<String>,
    /// Temperatures; 0 is greedy
    #[arg(long, value_name = "T", num_args = 1.., value_delimiter = ',', default_value = "0.5,1.0,2.0", value_parser = number)]
    temps: Vec<f64>,
    /// Keep the best K candidates; 0 keeps all
    #[arg(long, value_name = "K", default_value = "0", value_parser = at_least_zero)]
    top_k: usize,
    /// Then keep the smallest best-first set of this mass; 1 keeps all
    #[arg(long, value_name = "P", default_value = "1.0", value_parser = number)]
    top_p: f64,
    /// Then keep candidates with at least this share of the best one's probability; 0 keeps all
    #[arg(long, value_name = "P", default_value = "0.0", value_parser = number)]
    min_p: f64,
    /// Draw N times at each temperature, and count
    #[arg(long, value_name = "N", default_value = "0", value_parser = clap::value_parser!(u32).range(0..=MAX_DRAWS))]
    draws: u32,
    /// Seed of the draws, 0 to 2^64 - 1; draw i uses the coin of the first token of run i
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
    #[command(flatten)]
    print: PrintRequest,
}

impl SoftmaxArgs {
    pub(super) fn into_request(self) -> Result<SoftmaxRequest, String> {
        if !self.logits.iter().any(|logit| logit.is_finite()) {
            return Err("every logit is -inf (expected at least one finite number)".to_owned());
        }
        if !self.labels.is_empty() && self.labels.len() != self.logits.len() {
            return Err(format!(
                "--labels has {} for {} (expected one for each)",
                count(self.labels.len(), "label"),
                count(self.logits.len(), "logit")
            ));
        }
        let filters = Setting::OFF
            .with_top_k(self.top_k)
            .with_top_p(self.top_p)
            .map_err(|error| format!("--top-p: {error:#}"))?
            .with_min_p(self.min_p)
            .map_err(|error| format!("--min-p: {error:#}"))?
            .clamped(self.logits.len());
        let settings = self.temps.iter().map(|&t| filters.with_temperature(t));
        Ok(SoftmaxRequest {
            print: self.print,
            settings: settings
                .collect::<anyhow::Result<_>>()
                .map_err(|error| format!("--temps: {error:#}"))?,
            logits: self.logits,
            labels: Some(self.labels).filter(|labels| !labels.is_empty()),
            draws: self.draws,
            seed: self.seed,
        })
    }
}

fn count(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// Returns the program's arguments with the hyphen of every negative number of `softmax` as a minus sign, which
/// [`number`] reads and clap takes for no flag. Labels stay as they are.
pub(super) fn with_minus_signs(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    if arguments.get(1).is_none_or(|command| command != "softmax") {
        return arguments;
    }
    let mut is_label = false;
    for argument in arguments.iter_mut().skip(2) {
        let rest = argument.to_str().and_then(|text| text.strip_prefix('-'));
        let is_number = |text: &str| text.trim().parse::<f64>().is_ok();
        if let Some(rest) = rest.filter(|rest| !is_label && rest.split(',').all(is_number)) {
            *argument = format!("{MINUS_SIGN}{rest}").into();
        }
        is_label = argument == "--labels";
    }
    arguments
}

fn logit(text: &str) -> Result<f32, String> {
    const EXPECTED: &str = "expected a number such as 2.5, or -inf";
    let value: f64 = text
        .trim()
        .replace(MINUS_SIGN, "-")
        .parse()
        .map_err(|_| EXPECTED.to_owned())?;
    let logit = value as f32;
    match () {
        () if value.is_nan() || value == f64::INFINITY => Err(EXPECTED.to_owned()),
        () if value.is_finite() && !logit.is_finite() => Err(format!(
            "beyond what a logit can be (expected -{max:e} to {max:e}, or -inf)",
            max = f32::MAX
        )),
        () => Ok(logit + 0.0),
    }
}
