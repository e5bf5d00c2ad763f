//! `report`: its flags, and the request that they make.

use std::path::{Path, PathBuf};

use clap::Args;

/// `report`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportRequest {
    /// Files of records, at least one; `-` is standard input.
    pub records: Vec<PathBuf>,
    /// The page's file, which must not exist; `-` is standard output, and `None` a file beside the first record.
    pub out: Option<PathBuf>,
}

pub(super) const REPORT_EXAMPLES: &str = "\
Examples:
  logprobs report results/*.json
  logprobs report sample_output/demo.json sample_output/temperature_step1_cpu.json --out page.html
  logprobs --model demo --json | logprobs report - --out page.html";

#[derive(Args)]
pub(super) struct ReportArgs {
    /// Records of the main command and of temperature-step1, a section each; - is standard input
    #[arg(value_name = "RECORD.json", required = true)]
    records: Vec<PathBuf>,
    /// The page's file, which must not exist yet; - is standard output [default: beside the first record, NAME.html, or NAME_2.html where that is taken]
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
}

impl ReportArgs {
    pub(super) fn into_request(self) -> Result<ReportRequest, String> {
        let from_stdin = self.records.iter().filter(|path| *path == Path::new("-"));
        match from_stdin.count() {
            0 => {}
            1 if self.out.is_some() || self.records[0] != Path::new("-") => {}
            1 => return Err("a record from standard input has no name: --out is needed".to_owned()),
            _ => return Err("- is given twice, and standard input can be read once".to_owned()),
        }
        Ok(ReportRequest {
            records: self.records,
            out: self.out,
        })
    }
}
