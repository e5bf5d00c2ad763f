//! The record as Markdown, for the summary page of a CI job or a comment: step table, reply, settings, samples.
//!
//! What a model or a prompt wrote stands in code spans and fenced blocks alone, behind fences that are longer than any in it:
//! there it is neither markup nor a link nor a mention.

use std::io::{self, Write};

use crate::analysis::{marked, pieces};
use crate::record::{
    ModelInfo, PromptEntry, PromptRecord, Record, Run, Settings, TemperatureStep1,
};
use crate::report::summary;
use crate::report::table::{TOKEN_WIDTH, cut, ending, mass_count, percent, runners_up};
use crate::text::display::{cell, escape_line, escape_text};

/// Writes a whole record.
///
/// # Errors
/// When `out` fails.
pub fn record(record: &Record, out: &mut impl Write) -> io::Result<()> {
    model(&record.program, &record.model, out)?;
    for (number, entry) in (1..).zip(&record.prompts) {
        let (prompt, id) = match entry {
            PromptEntry::Done(done) => (&done.prompt, &done.id),
            PromptEntry::Failed(failed) => (&failed.prompt, &failed.id),
        };
        let id = id
            .as_ref()
            .map(|id| format!(" {}", code(&escape_line(id))))
            .unwrap_or_default();
        writeln!(out, "\n## Prompt {number}{id}\n")?;
        fenced(&escape_text(prompt), out)?;
        match entry {
            PromptEntry::Done(done) => self::prompt(done, &record.settings, out)?,
            PromptEntry::Failed(failed) => {
                writeln!(
                    out,
                    "\n**could not be run:** {}",
                    code(&escape_line(&failed.error))
                )?;
            }
        }
    }
    Ok(())
}

/// Writes the candidates of the first step at several temperatures.
///
/// # Errors
/// When `out` fails.
pub fn temperature_step1(record: &TemperatureStep1, out: &mut impl Write) -> io::Result<()> {
    model(&record.program, &record.model, out)?;
    writeln!(out)?;
    fenced(&escape_text(&record.prompt), out)?;
    let percents = |probs: &[f32]| {
        probs
            .iter()
            .map(|prob| format!("{:.1} %", 100.0 * prob))
            .collect::<Vec<_>>()
    };
    let titles = ["token".to_owned(), "logit".to_owned()];
    let temperatures = record.temperatures.iter().map(|t| format!("T = {t:?}"));
    let mut rows: Vec<Vec<String>> = vec![titles.into_iter().chain(temperatures).collect()];
    for candidate in &record.candidates {
        let token = code(&cell(&candidate.token, &candidate.bytes));
        let mut row = vec![
            token,
            candidate
                .logit
                .map(|logit| format!("{logit:.2}"))
                .unwrap_or_default(),
        ];
        row.extend(percents(&candidate.probs));
        rows.push(row);
    }
    let mut rest = vec!["rest".to_owned(), String::new()];
    rest.extend(percents(&record.rest));
    rows.push(rest);
    table(&rows, out)
}

fn model(program: &str, model: &ModelInfo, out: &mut impl Write) -> io::Result<()> {
    let revision = model
        .revision
        .as_ref()
        .map(|r| format!(" at {}", code(&escape_line(r))))
        .unwrap_or_default();
    let part = |text: &str| code(&escape_line(text));
    writeln!(
        out,
        "# {}\n\n{}{revision}: {}, vocabulary of {}, {} weights, {} on {}",
        part(program),
        part(&model.id),
        part(&model.architecture),
        model.vocab_size,
        part(&model.weights_dtype),
        part(&model.compute_dtype),
        part(&model.device),
    )?;
    match &model.note {
        Some(note) => writeln!(out, "\n{}", part(note)),
        None => Ok(()),
    }
}

fn prompt(done: &PromptRecord, settings: &Settings, out: &mut impl Write) -> io::Result<()> {
    let titles = [
        "step",
        "token",
        "prob",
        &format!("n{}", percent(settings.mass)),
        "runners-up",
    ];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for (number, step) in (1..).zip(&done.greedy.steps) {
        let is_low = f64::from(step.prob) < settings.threshold;
        let prob = format!("{:.2}", step.prob);
        rows.push(vec![
            number.to_string(),
            code(&cut(&cell(&step.token, &step.bytes), TOKEN_WIDTH)),
            if is_low { format!("**{prob}**") } else { prob },
            mass_count(step.mass_count, step.bounds),
            code(&runners_up(&step.top_logprobs, step.token_id, None)),
        ]);
    }
    writeln!(out)?;
    table(&rows, out)?;
    writeln!(out, "\nGreedy reply:\n")?;
    reply("", &done.greedy, settings.threshold, out)?;
    if done.sweeps.is_empty() {
        return Ok(());
    }
    let mut rows = summary::rows(done, settings);
    // below the titles, the first column is what a record says
    rows.iter_mut()
        .skip(1)
        .for_each(|row| row[0] = code(&row[0]));
    if !rows.is_empty() {
        writeln!(out)?;
        table(&rows, out)?;
    }
    writeln!(out, "\n<details><summary>Samples</summary>")?;
    for sweep in &done.sweeps {
        writeln!(out, "\n{}\n", code(&escape_line(&sweep.label)))?;
        for run in &sweep.runs {
            reply(&format!("{}  ", run.run), run, settings.threshold, out)?;
        }
    }
    writeln!(out, "\n</details>")
}

/// A reply with its marks in a block of its own.
fn reply(label: &str, run: &Run, threshold: f64, out: &mut impl Write) -> io::Result<()> {
    let ending = ending(run)
        .map(|ending| format!(" {ending}"))
        .unwrap_or_default();
    fenced(
        &format!(
            "{label}{}{ending}",
            escape_text(&marked(pieces(run, threshold)))
        ),
        out,
    )
}

/// Rows under a title row; cells are Markdown. The first two columns are text, the rest numbers.
fn table(rows: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        writeln!(out, "| {} |", cells.join(" | "))?;
        if index == 0 {
            let rules: Vec<&str> = row.iter().map(|_| "---").collect();
            writeln!(out, "| {} |", rules.join(" | "))?;
        }
    }
    Ok(())
}

/// A code span; nothing for no text.
fn code(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let fence = "`".repeat(longest_run(text) + 1);
    // one space on both sides is taken away again
    let is_padded = text.starts_with(['`', ' ']) || text.ends_with(['`', ' ']);
    let pad = if is_padded { " " } else { "" };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// A fenced block.
fn fenced(text: &str, out: &mut impl Write) -> io::Result<()> {
    let fence = "`".repeat(longest_run(text).max(2) + 1);
    writeln!(out, "{fence}text\n{text}\n{fence}")
}

/// The longest row of backticks in a text.
fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_span_holds_any_text() {
        assert_eq!(
            ["", "a", "`", "a``b", " x", "<b>@me https://a.b"].map(code),
            [
                "",
                "`a`",
                "`` ` ``",
                "```a``b```",
                "`  x `",
                "`<b>@me https://a.b`"
            ]
        );
    }

    #[test]
    fn a_block_cannot_be_left_from_inside() {
        let mut out = Vec::new();
        fenced("a\n````\n# b", &mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("text");
        assert_eq!(text, "`````text\na\n````\n# b\n`````\n");
    }
}
