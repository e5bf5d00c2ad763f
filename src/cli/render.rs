//! `render` and `schema`: their flags, and the requests that they make.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ColorWhen;

/// `render`.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct RenderRequest {
    /// A record of the main command or of temperature-step1; - is standard input
    #[arg(value_name = "RECORD")]
    pub record: PathBuf,
    /// The shape
    #[arg(short, long, value_enum, default_value_t = Shape::Table)]
    pub format: Shape,
    /// With the table: each reply on one line, cut at the terminal's width
    #[arg(long)]
    pub one_line: bool,
    /// With the table: the replies as trees, too
    #[arg(long)]
    pub tree: bool,
    /// When to colour the table; NO_COLOR and CLICOLOR_FORCE are honoured by auto
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = ColorWhen::Auto)]
    pub color: ColorWhen,
}

/// What a record is turned into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// What the command printed
    Table,
    /// Tables and fenced text, for a summary page of a CI job
    Markdown,
    /// One row a step, for spreadsheets
    Csv,
    /// The record itself; of a file of lines, the record of them all
    Json,
    /// A chat.completion with logprobs.content a prompt, one a line, as the OpenAI API has it
    Openai,
}

impl RenderRequest {
    /// Refuses what only the table has.
    pub(super) fn check(self) -> Result<Self, String> {
        match self.format != Shape::Table && (self.one_line || self.tree) {
            true => Err("--one-line and --tree are for --format table".to_owned()),
            false => Ok(self),
        }
    }
}

/// `schema`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
pub struct SchemaRequest {
    /// Whose output
    #[arg(value_enum, default_value_t = SchemaSubject::Record)]
    pub subject: SchemaSubject,
}

/// What a schema describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchemaSubject {
    /// The main command's record
    Record,
    /// What temperature-step1 writes
    TemperatureStep1,
    /// What score writes
    Score,
    /// What audit prints with --json
    Audit,
    /// What compare and check print with --json
    Compare,
}

pub(super) const RENDER_EXAMPLES: &str = "\
Examples:
  logprobs render results/run.json
  logprobs render results/run.json --format csv > run.csv
  logprobs render results/run.json --format markdown >> \"$GITHUB_STEP_SUMMARY\"
  logprobs render results/run.json --format openai | jq '.choices[0].logprobs.content[0]'
  logprobs --model demo --jsonl | logprobs render -";

pub(super) const SCHEMA_EXAMPLES: &str = "\
Examples:
  logprobs schema > logprobs.schema.json
  logprobs schema score";
