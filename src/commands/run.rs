//! The main command: prompts are run, printed one by one, and written as a record.

use std::process::ExitCode;

use anyhow::Result;

use super::{check_out, write_record};
use crate::cli::RunRequest;
use crate::job::{self, Growth, Outcome};
use crate::prompts::{self, Prompt};
use crate::record::PromptEntry;
use crate::report::table::{self, View};
use crate::screen::{Screen, Stderr};
use crate::text::display;

/// Runs the prompts, prints and records what becomes of them. Exit code 1 says that a prompt failed, 130 or 143 that a signal
/// ended the job.
///
/// # Errors
/// When nothing can be done at all, or the record cannot be written.
pub(crate) fn run(request: &RunRequest) -> Result<ExitCode> {
    check_out(&request.output.out)?;
    let prompts = collect_prompts(request)?;
    let messages = Stderr::new(&request.output);
    let mut screen = Screen::new(&request.output);
    let mut follow = |growth: Growth| match growth {
        Growth::Begun(record) => screen.show(|out, _| table::header(record, out)),
        Growth::Kept(_) => {}
        Growth::Added(record) => {
            let last = record.prompts.len() - 1;
            if let PromptEntry::Failed(failed) = &record.prompts[last]
                && !screen.is_terminal()
            {
                let number = last + 1;
                let error = &failed.error;
                messages.warn(&format!("prompt {number} could not be run: {error}"));
            }
            screen.show(|out, width| {
                let view = View {
                    width,
                    one_line: request.one_line,
                    tree: request.tree,
                };
                table::prompt(record, last, view, out)
            });
        }
    };
    let nothing_kept = |_: &_, _: &_| Ok(Vec::new());
    let outcome = job::run(
        &request.explore,
        &prompts,
        &messages,
        nothing_kept,
        &mut follow,
    )?;
    let code = finish(request, &outcome, prompts.len(), &messages)?;
    screen.close()?;
    Ok(code)
}

/// Writes the record and says what it holds.
fn finish(
    request: &RunRequest,
    outcome: &Outcome,
    num_prompts: usize,
    messages: &Stderr,
) -> Result<ExitCode> {
    let record = &outcome.record;
    let complete = record.prompts.len();
    let path = match complete {
        0 => None,
        _ => write_record(record, "logprobs", &record.model, &request.output.out)?,
    };
    if outcome.interrupted.is_some() {
        messages.warn(&format!(
            "interrupted: {complete} of {num_prompts} prompts are complete, the others are not in the record"
        ));
    }
    if let Some(path) = path {
        messages.say(&format!("written to {}", display::escape_line(&path)));
    }
    let failed = record
        .prompts
        .iter()
        .filter(|entry| matches!(entry, PromptEntry::Failed(_)))
        .count();
    if failed > 0 && num_prompts > 1 {
        messages.warn(&format!(
            "{failed} of {num_prompts} prompts could not be run"
        ));
    }
    Ok(match outcome.interrupted {
        Some(code) => ExitCode::from(code),
        None if failed > 0 => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    })
}

fn collect_prompts(request: &RunRequest) -> Result<Vec<Prompt>> {
    let mut collected: Vec<Prompt> = request
        .prompts
        .iter()
        .map(|prompt| prompt.as_str().into())
        .collect();
    if let Some(path) = &request.prompts_file {
        collected.extend(prompts::read(path)?);
    }
    if collected.is_empty() {
        collected.extend(prompts::BUILT_IN.map(Prompt::from));
    }
    Ok(collected)
}
