//! `render`: a record in another shape. Nothing is computed anew.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::cli::{RenderRequest, Shape};
use crate::record::PromptEntry;
use crate::recorded::{self, Recorded};
use crate::report::table::View;
use crate::report::{csv, json, markdown, openai, table};
use crate::screen::{Screen, Stderr, ignore_closed_pipe};

/// Reads a record and prints it.
///
/// # Errors
/// When the file is no record, its kind has no such shape, or standard output takes no more.
pub(crate) fn run(request: &RenderRequest) -> Result<ExitCode> {
    let recorded = recorded::read(&request.record)?;
    if request.format == Shape::Table {
        show(&recorded, request)?;
        return Ok(ExitCode::SUCCESS);
    }
    ensure!(
        request.format != Shape::Openai || matches!(recorded, Recorded::Prompts(_)),
        "{}: a record of temperature-step1 has no reply, and so no openai shape (expected a record of the main command)",
        request.record.display()
    );
    if let (Recorded::Prompts(record), Shape::Openai) = (&recorded, request.format) {
        let failed = |entry: &&PromptEntry| matches!(entry, PromptEntry::Failed(_));
        let num_failed = record.prompts.iter().filter(failed).count();
        if num_failed > 0 {
            let num_prompts = record.prompts.len();
            Stderr::USUAL.warn(&format!(
                "{num_failed} of {num_prompts} prompts could not be run and are left out"
            ));
        }
    }
    let mut text = Vec::new();
    let written = match (&recorded, request.format) {
        (Recorded::Prompts(record), Shape::Markdown) => markdown::record(record, &mut text),
        (Recorded::Prompts(record), Shape::Csv) => csv::record(record, &mut text),
        (Recorded::Prompts(record), Shape::Openai) => openai::record(record, &mut text),
        (Recorded::Prompts(record), _) => json::write(record, &mut text),
        (Recorded::Step1(record), Shape::Markdown) => {
            markdown::temperature_step1(record, &mut text)
        }
        (Recorded::Step1(record), Shape::Csv) => csv::temperature_step1(record, &mut text),
        (Recorded::Step1(record), _) => json::write(record, &mut text),
    };
    written.expect("a vector takes everything");
    ignore_closed_pipe(io::stdout().write_all(&text)).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn show(recorded: &Recorded, request: &RenderRequest) -> Result<()> {
    let mut screen = Screen::always(request.color);
    match recorded {
        Recorded::Prompts(record) => {
            screen.show(|out, _| table::header(record, out));
            for index in 0..record.prompts.len() {
                screen.show(|out, width| {
                    let view = View {
                        width,
                        one_line: request.one_line,
                        tree: request.tree,
                    };
                    table::prompt(record, index, view, out)
                });
            }
        }
        Recorded::Step1(record) => screen.show(|out, _| table::temperature_step1(record, out)),
    }
    screen.close()
}
