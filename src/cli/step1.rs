//! `temperature-step1`: its flags, and the request that they make.

use std::path::PathBuf;

use clap::Args;

use super::values::{at_least_one, number, utf8};
use super::{ChatRequest, ModelRequest, OutputRequest, ShowArgs};
use crate::setting::Setting;

/// `temperature-step1`.
#[derive(Debug, Clone, PartialEq)]
pub struct Step1Request {
    /// Which model, on what.
    pub model: ModelRequest,
    /// How the prompt becomes what the model sees.
    pub chat: ChatRequest,
    /// Where the result goes.
    pub output: OutputRequest,
    /// A file for the chart as SVG, which must not exist.
    pub svg: Option<PathBuf>,
    /// A file for the chart as PNG, which must not exist; only in programs built with the feature `png`, as they are unless it is left out.
    pub png: Option<PathBuf>,
    /// The prompt; `None` is the first built-in one.
    pub prompt: Option<String>,
    /// The temperatures, as settings without filters.
    pub temperatures: Vec<f64>,
    /// Candidates listed; at least 1.
    pub candidates: usize,
}

pub(super) const STEP1_EXAMPLES: &str = "\
Examples:
  logprobs temperature-step1
  logprobs temperature-step1 -p 'What is the capital of France?' --temps 0.5,1,2 --candidates 10
  logprobs temperature-step1 --model ./SmolLM2-135M-Instruct.Q4_1.gguf --raw -p 'My favorite season is' --json";

#[derive(Args)]
pub(super) struct Step1Args {
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
    /// Draw the table as a chart, too; the file must not exist yet
    #[arg(long, value_name = "FILE.svg", help_heading = "Report")]
    svg: Option<PathBuf>,
    /// A file for the same as a PNG; its letters come from this machine's fonts
    #[arg(long, value_name = "FILE.png", help_heading = "Report")]
    png: Option<PathBuf>,
    #[command(flatten)]
    show: ShowArgs,
    #[command(flatten)]
    model: ModelRequest,
}

impl Step1Args {
    pub(super) fn into_request(self) -> Result<Step1Request, String> {
        if [&self.svg, &self.png]
            .into_iter()
            .flatten()
            .any(|file| file.as_os_str() == "-")
        {
            return Err("--svg and --png need files".to_owned());
        }
        if self.png.is_some() && cfg!(not(feature = "png")) {
            return Err(
                "this program was built without --png (build it with the feature png, or take --svg, which draws the same)"
                    .to_owned(),
            );
        }
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
            svg: self.svg,
            png: self.png,
            model: self.model,
            chat: self.chat,
            prompt: self.prompt,
            temperatures,
            candidates: self.candidates,
        })
    }
}
