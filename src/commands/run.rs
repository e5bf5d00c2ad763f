//! The main command: prompts are run, printed one by one, and written as a record.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::report::write_page;
use super::{check_out, write_record};
use crate::cli::{Out, RunRequest};
use crate::job::{self, Growth, Outcome};
use crate::output;
use crate::prompts::{self, Prompt};
use crate::record::{PromptEntry, Record};
use crate::recorded::{self, Partial};
use crate::report::html::Section;
use crate::report::json;
use crate::report::table::{self, View};
use crate::resume;
use crate::screen::{Screen, Stderr, ignore_closed_pipe};
use crate::setting::Setting;
use crate::text::display;

/// Runs the prompts, prints and records what becomes of them. Exit code 1 says that a prompt failed, 130 or 143 that a signal
/// ended the job.
///
/// # Errors
/// When nothing can be done at all, or the record cannot be written.
pub(crate) fn run(request: &RunRequest) -> Result<ExitCode> {
    check_out(&request.output.out)?;
    request.html.as_deref().map_or(Ok(()), output::check_new)?;
    let prompts = collect_prompts(request)?;
    let messages = Stderr::new(&request.output);
    let mut screen = Screen::new(&request.output);
    let mut lines = Lines::new(&request.output.out);
    let mut follow = |growth: Growth, record: &Record| {
        match growth {
            Growth::Begun => screen.show(|out, _| table::header(record, out)),
            Growth::Kept => return lines.write(record),
            Growth::Added => {
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
                return lines.write(record);
            }
        }
        ControlFlow::Continue(())
    };
    let take_up = |record: &Record, settings: &[Setting]| match &request.resume {
        Some(path) => take_up(path, record, settings, &prompts, &messages),
        None => Ok(Vec::new()),
    };
    let outcome = job::run(&request.explore, &prompts, &messages, take_up, &mut follow)?;
    lines.close()?;
    let code = finish(request, &outcome, prompts.len(), &messages)?;
    screen.close()?;
    Ok(code)
}

/// Returns the entries of the prompts that an earlier record holds, and says how many.
fn take_up(
    path: &Path,
    record: &Record,
    settings: &[Setting],
    prompts: &[Prompt],
    messages: &Stderr,
) -> Result<Vec<Option<PromptEntry>>> {
    let name = path.display().to_string();
    let Partial {
        record: earlier,
        cut_line,
    } = recorded::read_partial(path)?;
    let kept = match earlier {
        Some(earlier) => {
            resume::kept(earlier, record, settings, prompts).with_context(|| name.clone())?
        }
        None => Vec::new(),
    };
    let name = display::escape_line(&name);
    if let Some(line) = cut_line {
        messages.warn(&format!("{name}: line {line} is cut off and is not kept"));
    }
    let num_kept = kept.iter().flatten().count();
    let num_prompts = prompts.len();
    messages.say(&format!(
        "{num_kept} of {num_prompts} prompts are kept from {name}"
    ));
    Ok(kept)
}

/// Finished prompts on standard output, a line each, where that is asked for.
struct Lines {
    is_asked_for: bool,
    failure: Option<io::Error>,
}

impl Lines {
    fn new(out: &Out) -> Self {
        Self {
            is_asked_for: *out == Out::Lines,
            failure: None,
        }
    }

    /// Writes the last prompt of a record; breaks when standard output takes no more.
    fn write(&mut self, record: &Record) -> ControlFlow<()> {
        if !self.is_asked_for {
            return ControlFlow::Continue(());
        }
        let mut line = Vec::new();
        json::write_line(record, record.prompts.len() - 1, &mut line)
            .expect("a vector takes everything");
        let mut out = io::stdout().lock();
        match out.write_all(&line).and_then(|()| out.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failure = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// Ends the lines.
    ///
    /// # Errors
    /// When one could not be written, other than into a closed pipe.
    fn close(self) -> Result<()> {
        let written = self.failure.map_or(Ok(()), Err);
        ignore_closed_pipe(written).context("standard output")
    }
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
        let rest = match (complete, &request.output.out) {
            (0, _) => "nothing is written",
            (_, Out::Lines) => "the others are not printed",
            _ => "the others are not in the record",
        };
        messages.warn(&format!(
            "interrupted: {complete} of {num_prompts} prompts are complete, {rest}"
        ));
    }
    if let Some(path) = path {
        messages.say(&format!("written to {}", display::escape_line(&path)));
    }
    if let Some(html) = request.html.as_deref().filter(|_| complete > 0) {
        write_page(html, &[Section::Run(record)], messages)?;
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
