//! `check`: a record is made again on today's program, model and machine, and held against what it was.

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use super::compare::BEYOND;
use crate::analysis::compare::gates::{self, Gates, is_gate};
use crate::analysis::compare::{Named, compare, is_within};
use crate::cli::CheckRequest;
use crate::prompts::is_jsonl;
use crate::record::Record;
use crate::record::compare::{Comparison, Finding, What, Which};
use crate::report::json;
use crate::screen::Stderr;
use crate::text::display::escape_line;
use crate::{job, output, recorded, report, rerun};

/// What today's record is called.
const TODAY: &str = "this run";

/// Runs what the golden record says, compares and prints. Exit code 3 says that today's run is beyond tolerance or does not pass
/// a gate, 2 that the record does not tell where its model is, 130 or 143 that a signal ended the job.
///
/// # Errors
/// When the record cannot be read, its model cannot be used, or a result cannot be printed or written.
pub(crate) fn run(request: &CheckRequest) -> Result<ExitCode> {
    let golden = recorded::read_prompts(&request.golden)?;
    let name = request.golden.display().to_string();
    let messages = Stderr {
        quiet: request.quiet,
        is_verbose: false,
    };
    let Some(model) = rerun::model(&golden, &request.again) else {
        messages.refuse(&format!(
            "{name}: its model `{}` was a folder, a file or on a server, whose place it does not tell (give it with --model or --server)",
            golden.model.id
        ));
        return Ok(ExitCode::from(2));
    };
    ensure!(
        !golden.prompts.is_empty(),
        "{name}: there is no prompt in it (expected at least one)"
    );
    let explore = rerun::request(&golden, model, request.again.batch);
    let explore = explore.with_context(|| name.clone())?;
    let prompts = rerun::prompts(&golden);
    let outcome = job::run(
        &explore,
        &prompts,
        &messages,
        |_, _| Ok(Vec::new()),
        &mut |_, _| ControlFlow::Continue(()),
    )?;
    if let Some(code) = outcome.interrupted {
        messages.warn("interrupted: nothing is compared");
        return Ok(ExitCode::from(code));
    }
    let today = outcome.record;
    let named = |name, record| Named { name, record };
    let mut comparison = compare(
        named(&name, &golden),
        named(TODAY, &today),
        request.terms.tolerance,
        request.terms.strict,
    );
    gates::add(
        &Gates {
            fail_below: request.gates.fail_below,
            max_low: request.gates.max_low,
        },
        &today,
        &mut comparison,
    );
    if request.print.json || !request.quiet {
        super::print(&comparison, request.print, report::compare::table)?;
    }
    let is_stopped = match request.update {
        true => !update(&request.golden, &today, &comparison, &messages)?,
        false => !is_within(&comparison),
    };
    Ok(match is_stopped {
        true => ExitCode::from(BEYOND),
        false => ExitCode::SUCCESS,
    })
}

/// Writes today's record in place of the golden one, unless that is the same or a gate stops it; returns whether none does.
fn update(
    golden: &Path,
    today: &Record,
    comparison: &Comparison,
    messages: &Stderr,
) -> Result<bool> {
    let name = golden.display().to_string();
    let has_failed = |finding: &Finding| matches!(finding.what, What::Failed { from: Which::B });
    for (is_stopped, why) in [
        (
            comparison.findings.iter().any(is_gate),
            "a gate stops this run",
        ),
        (
            comparison.findings.iter().any(has_failed),
            "a prompt could not be run that it holds",
        ),
    ] {
        if is_stopped {
            messages.warn(&format!("{name} is not written: {why}"));
            return Ok(false);
        }
    }
    let mut bytes = Vec::new();
    match is_jsonl(golden) {
        true => (0..today.prompts.len()).try_for_each(|at| json::write_line(today, at, &mut bytes)),
        false => json::write(today, &mut bytes),
    }
    .expect("a vector takes everything");
    let name = escape_line(&name);
    let old = std::fs::read(golden).with_context(|| format!("{name}: cannot be read"))?;
    if old == bytes {
        messages.say(&format!("{name} is as it was"));
    } else {
        output::replace(golden, |file| file.write_all(&bytes))?;
        messages.say(&format!("written to {name}"));
    }
    Ok(true)
}
