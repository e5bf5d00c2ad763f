//! The record for a terminal: header, step table, samples. Formats only; every number is in the record.
//!
//! Everything a model or a prompt wrote is escaped before it is printed. Colours are written always and taken out by the
//! stream where they are not wanted. Columns are as wide as what is shown in them (CJK characters count two).

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr;

use crate::record::{
    Candidate, FinishReason, ModelInfo, PromptEntry, PromptRecord, Record, Run, Settings, Step,
    Sweep, TemperatureStep1,
};
use crate::text::display::{escape, escape_line, escape_text};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const LOW: Style = AnsiColor::Red.on_default().bold();

/// Widest cell of a token; longer ones are cut.
const TOKEN_WIDTH: usize = 24;

/// Writes what holds for all prompts: model and settings.
///
/// # Errors
/// When `out` fails.
pub fn header(record: &Record, out: &mut impl Write) -> io::Result<()> {
    model(&record.program, &record.model, out)?;
    let Settings {
        seed,
        samples,
        max_new_tokens,
        mass,
        threshold,
        ..
    } = &record.settings;
    let percent = percent(*mass);
    writeln!(
        out,
        "seed {seed}, {samples} samples a setting, at most {max_new_tokens} new tokens"
    )?;
    writeln!(
        out,
        "prob: the model's own, at temperature 1 over all candidates; n{percent}: how many of the best cover {percent} %; 【…】: below {threshold:.2}"
    )
}

/// Writes one prompt's entry: step table of the greedy reply, then the samples. `width` is that of the terminal.
///
/// # Errors
/// When `out` fails.
pub fn prompt(
    record: &Record,
    index: usize,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let entry = &record.prompts[index];
    let (text, id) = match entry {
        PromptEntry::Done(done) => (&done.prompt, &done.id),
        PromptEntry::Failed(failed) => (&failed.prompt, &failed.id),
    };
    let id = id
        .as_ref()
        .map(|id| format!(" [{}]", escape_line(id)))
        .unwrap_or_default();
    writeln!(
        out,
        "\n{BOLD}Prompt {}{id}: {}{BOLD:#}",
        index + 1,
        escape_line(text)
    )?;
    match entry {
        PromptEntry::Done(done) => {
            steps(done, &record.settings, width, out)?;
            done.sweeps
                .iter()
                .try_for_each(|s| sweep(s, &record.settings, out))
        }
        PromptEntry::Failed(failed) => writeln!(
            out,
            "\n{LOW}could not be run{LOW:#}: {}",
            escape_text(&failed.error)
        ),
    }
}

/// Writes the first step's candidates at several temperatures.
///
/// # Errors
/// When `out` fails.
pub fn temperature_step1(record: &TemperatureStep1, out: &mut impl Write) -> io::Result<()> {
    model(&record.program, &record.model, out)?;
    writeln!(
        out,
        "\n{BOLD}Prompt: {}{BOLD:#}\n",
        escape_line(&record.prompt)
    )?;
    let mut rows = vec![vec!["token".to_owned(), "logit".to_owned()]];
    rows[0].extend(record.temperatures.iter().map(|t| format!("T = {t:?}")));
    for candidate in &record.candidates {
        let name = shown(&candidate.token, &candidate.bytes);
        let mut row = vec![cut(&name, TOKEN_WIDTH), format!("{:.2}", candidate.logit)];
        row.extend(
            candidate
                .probs
                .iter()
                .map(|p| format!("{:.1} %", 100.0 * p)),
        );
        rows.push(row);
    }
    let mut rest = vec!["rest".to_owned(), String::new()];
    rest.extend(record.rest.iter().map(|p| format!("{:.1} %", 100.0 * p)));
    rows.push(rest);
    let columns = rows[0].len();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .map(|row| row[column].width())
                .max()
                .unwrap_or(0)
        })
        .collect();
    for (index, row) in rows.iter().enumerate() {
        let mut line = format!("  {}", left(&row[0], widths[0]));
        for (cell, width) in row.iter().zip(&widths).skip(1) {
            line.push_str("  ");
            line.push_str(&right(cell, *width));
        }
        match index {
            0 => writeln!(out, "{DIM}{line}{DIM:#}")?,
            _ => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}

fn model(program: &str, model: &ModelInfo, out: &mut impl Write) -> io::Result<()> {
    let revision = model
        .revision
        .as_ref()
        .map(|r| format!(" at {}", escape_line(r)))
        .unwrap_or_default();
    writeln!(
        out,
        "{program}: {BOLD}{}{BOLD:#}{revision} ({}, {} candidates, {} weights, {} on {})",
        escape_line(&model.id),
        model.architecture,
        model.vocab_size,
        model.weights_dtype,
        model.compute_dtype,
        model.device
    )
}

/// The step table of the greedy reply, and the reply.
fn steps(
    prompt: &PromptRecord,
    settings: &Settings,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let steps = &prompt.greedy.steps;
    let tokens: Vec<String> = steps
        .iter()
        .map(|step| cut(&shown(&step.token, &step.bytes), TOKEN_WIDTH))
        .collect();
    let token_width = tokens
        .iter()
        .map(|token| token.width())
        .chain([5])
        .max()
        .unwrap_or(5);
    let count_title = format!("n{}", percent(settings.mass));
    let counts = steps.iter().map(|step| step.mass_count.to_string().len());
    let count_width = counts.chain([count_title.len()]).max().unwrap_or(3);
    let title = format!(
        "  step  {}  prob  {}  runners-up",
        left("token", token_width),
        right(&count_title, count_width)
    );
    writeln!(out, "\n{DIM}{title}{DIM:#}")?;
    for (index, (step, token)) in steps.iter().zip(&tokens).enumerate() {
        let style = if is_low(step, settings) {
            LOW
        } else {
            Style::new()
        };
        let head = format!(
            "  {:>4}  {style}{}  {:.2}{style:#}  {}",
            index + 1,
            left(token, token_width),
            step.prob,
            right(&step.mass_count.to_string(), count_width)
        );
        let used = 2 + 4 + 2 + token_width + 2 + 4 + 2 + count_width;
        let runners_up = runners_up(step, width.map(|width| width.saturating_sub(used + 2)));
        let runners_up = if runners_up.is_empty() {
            runners_up
        } else {
            format!("  {DIM}{runners_up}{DIM:#}")
        };
        writeln!(out, "{head}{runners_up}")?;
    }
    writeln!(out, "\n{BOLD}greedy{BOLD:#}")?;
    reply("", &prompt.greedy, out)
}

/// The candidates that were not taken, as many as fit.
fn runners_up(step: &Step, room: Option<usize>) -> String {
    let mut line = String::new();
    for candidate in step
        .top_logprobs
        .iter()
        .filter(|candidate| candidate.token_id != step.token_id)
    {
        let Candidate {
            token, bytes, prob, ..
        } = candidate;
        let separator = if line.is_empty() { "" } else { "   " };
        let cell = format!(
            "{separator}{} {prob:.2}",
            cut(&shown(token, bytes), TOKEN_WIDTH)
        );
        if room.is_some_and(|room| line.width() + cell.width() > room) {
            break;
        }
        line.push_str(&cell);
    }
    line
}

fn sweep(sweep: &Sweep, settings: &Settings, out: &mut impl Write) -> io::Result<()> {
    let replies = match (sweep.runs.len(), sweep.distinct_replies) {
        (runs, 1) if runs > 1 => format!("all {runs} replies are the same"),
        (runs, distinct) => format!("{distinct} distinct of {runs}"),
    };
    let tokens = sweep.low_probability_tokens;
    let plural = if tokens == 1 { "" } else { "s" };
    writeln!(
        out,
        "\n{BOLD}{}{BOLD:#}: {replies}, {tokens} token{plural} below {:.2}",
        sweep.label, settings.threshold
    )?;
    sweep
        .runs
        .iter()
        .try_for_each(|run| reply(&run.run.to_string(), run, out))
}

/// One reply, its lines under each other, with the marked tokens in colour and a word on why it was cut off.
fn reply(label: &str, run: &Run, out: &mut impl Write) -> io::Result<()> {
    let text = escape_text(&run.marked);
    let coloured = text
        .replace('【', &format!("{LOW}【"))
        .replace('】', &format!("】{LOW:#}"));
    for (index, line) in coloured.split('\n').enumerate() {
        match index {
            0 => write!(out, "  {DIM}{label:>3}{DIM:#}  {line}")?,
            _ => write!(out, "\n       {line}")?,
        }
    }
    match run.finish_reason {
        FinishReason::Stop => writeln!(out),
        FinishReason::Length => writeln!(out, " {DIM}(cut off by --max-new-tokens){DIM:#}"),
        FinishReason::Context => writeln!(
            out,
            " {DIM}(cut off at the model's longest sequence){DIM:#}"
        ),
    }
}

fn is_low(step: &Step, settings: &Settings) -> bool {
    f64::from(step.prob) < settings.threshold
}

/// A token as a cell shows it: its bytes escaped, or the name of an id that has none.
fn shown(token: &str, bytes: &[u8]) -> String {
    match bytes {
        [] => escape_line(token),
        _ => escape(bytes),
    }
}

/// Cuts a cell to `width` columns, the last of which then says so.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut cut = String::new();
    for c in text.chars() {
        cut.push(c);
        if cut.width() >= width {
            cut.pop();
            break;
        }
    }
    cut + "…"
}

fn left(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

fn right(text: &str, width: usize) -> String {
    format!("{}{text}", " ".repeat(width.saturating_sub(text.width())))
}

/// A mass as it stands in a title: 0.9 is `90`, 0.995 is `99.5`.
fn percent(mass: f64) -> String {
    format!("{}", (mass * 1e6).round() / 1e4)
}
