//! `compare`: its flags, and the request that they make.

use std::path::{Path, PathBuf};

use clap::Args;

use super::PrintRequest;
use super::values::number;

/// `compare`: two records of the same prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct CompareRequest {
    /// The record that the other is measured by; `-` is standard input, for one of the two.
    pub a: PathBuf,
    /// The other record.
    pub b: PathBuf,
    /// What is within tolerance.
    pub terms: CompareTerms,
    /// A new file for the comparison as a page.
    pub html: Option<PathBuf>,
    /// How the result is shown.
    pub print: PrintRequest,
}

/// What is within tolerance.
#[derive(Debug, Clone, Copy, PartialEq, Args)]
#[command(next_help_heading = "Comparison")]
pub struct CompareTerms {
    /// Largest difference of two log-probabilities that passes [default: 0.001 in f32, 0.03125 where f16 computes, 0.25 where bf16 does]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = number)]
    pub tolerance: Option<f64>,
    /// Every token must be the same, at near ties and in samples too
    #[arg(long)]
    pub strict: bool,
}

pub(super) const COMPARE_EXAMPLES: &str = "\
Examples:
  logprobs compare before.json after.json
  logprobs compare before.json after.json --html difference.html
  logprobs compare cpu.json cuda.json --tolerance 0.1
  logprobs compare before.json after.json --strict --json | jq .findings

Exit codes: 0 within tolerance, 1 a record cannot be read, 2 wrong usage, 3 beyond tolerance";

#[derive(Args)]
pub(super) struct CompareArgs {
    /// The record that the other is measured by; - is standard input
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The other record; - is standard input
    #[arg(value_name = "B.json")]
    b: PathBuf,
    #[command(flatten)]
    terms: CompareTerms,
    /// Write the comparison as a page of HTML, too
    #[arg(long, value_name = "FILE.html", help_heading = "Report")]
    html: Option<PathBuf>,
    #[command(flatten)]
    print: PrintRequest,
}

impl CompareTerms {
    /// Refuses what can be no tolerance.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.tolerance {
            Some(tolerance) if !(tolerance >= 0.0 && tolerance.is_finite()) => Err(format!(
                "--tolerance {tolerance} is out of range (expected a finite number from 0 up)"
            )),
            _ => Ok(()),
        }
    }
}

impl CompareArgs {
    pub(super) fn into_request(self) -> Result<CompareRequest, String> {
        self.terms.check()?;
        let is_input = |path: &Path| path == Path::new("-");
        if is_input(&self.a) && is_input(&self.b) {
            return Err("only one of the two records can come from standard input".to_owned());
        }
        if self.html.as_deref().is_some_and(is_input) {
            return Err("--html needs a file".to_owned());
        }
        Ok(CompareRequest {
            a: self.a,
            b: self.b,
            terms: self.terms,
            html: self.html,
            print: self.print,
        })
    }
}
