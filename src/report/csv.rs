//! The record for a spreadsheet: one row a step, of every run of every prompt.
//!
//! Text is as the console shows it: control characters escaped, a leading space as `␠`. A cell of text that a spreadsheet would
//! take for a formula gets an apostrophe in front. The file begins with a byte-order mark: without it Excel takes UTF-8 for
//! something else.

use std::io::{self, Write};

use csv::Writer;

use crate::record::{
    Candidate, PromptEntry, PromptRecord, Record, Run, Step, Sweep, TemperatureStep1,
};
use crate::text::display::{cell, escape_line};

/// Candidates that have columns at most; no spreadsheet has room for many more.
const MOST_CANDIDATES: usize = 4096;

/// Writes every step of a record. A prompt that could not be run is a row with its error.
///
/// # Errors
/// When `out` fails.
pub fn record(record: &Record, out: &mut impl Write) -> io::Result<()> {
    let num_candidates = record.settings.candidates.min(MOST_CANDIDATES);
    let mut rows = begin(out)?;
    let titles = [
        "prompt_number",
        "prompt_id",
        "prompt",
        "setting",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "run",
        "finish_reason",
        "step",
        "token_id",
        "token",
        "bytes",
        "special",
        "prob",
        "logprob",
        "logit",
        "rank",
        "entropy_bits",
        "mass_count",
        "margin",
        "sampling_prob",
        "kept",
        "kept_mass",
        "error",
    ];
    let numbers = 1..=num_candidates;
    let of_candidates = numbers.flat_map(|number| {
        [
            format!("candidate_{number}"),
            format!("candidate_{number}_prob"),
        ]
    });
    let titles: Vec<String> = titles
        .into_iter()
        .map(str::to_owned)
        .chain(of_candidates)
        .collect();
    rows.write_record(&titles)?;
    for (number, entry) in (1..).zip(&record.prompts) {
        match entry {
            PromptEntry::Done(done) => {
                let place = Place {
                    number,
                    done,
                    columns: titles.len(),
                };
                place.write(None, &done.greedy, &mut rows)?;
                for sweep in &done.sweeps {
                    sweep
                        .runs
                        .iter()
                        .try_for_each(|run| place.write(Some(sweep), run, &mut rows))?;
                }
            }
            PromptEntry::Failed(failed) => {
                let mut row = vec![
                    number.to_string(),
                    text(&escape_line(failed.id.as_deref().unwrap_or_default())),
                    text(&escape_line(&failed.prompt)),
                ];
                row.resize(25, String::new());
                row.push(text(&escape_line(&failed.error)));
                row.resize(titles.len(), String::new());
                rows.write_record(&row)?;
            }
        }
    }
    rows.flush()
}

/// Writes the candidates of the first step, a row each, and the rest.
///
/// # Errors
/// When `out` fails.
pub fn temperature_step1(record: &TemperatureStep1, out: &mut impl Write) -> io::Result<()> {
    let mut rows = begin(out)?;
    let titles = ["token_id", "token", "bytes", "special", "logit"]
        .map(str::to_owned)
        .into_iter();
    let temperatures = record.temperatures.iter().map(|t| format!("prob_at_{t:?}"));
    rows.write_record(titles.chain(temperatures))?;
    for candidate in &record.candidates {
        let row = [
            candidate.token_id.to_string(),
            text(&cell(&candidate.token, &candidate.bytes)),
            hex(&candidate.bytes),
            candidate.special.to_string(),
            optional(candidate.logit),
        ];
        rows.write_record(
            row.into_iter()
                .chain(candidate.probs.iter().map(|&prob| number(prob))),
        )?;
    }
    let rest = ["", "rest", "", "", ""].map(str::to_owned).into_iter();
    rows.write_record(rest.chain(record.rest.iter().map(|&prob| number(prob))))?;
    rows.flush()
}

fn begin<W: Write>(mut out: W) -> io::Result<Writer<W>> {
    out.write_all("\u{feff}".as_bytes())?;
    Ok(Writer::from_writer(out))
}

/// Whose steps are written.
struct Place<'a> {
    number: usize,
    done: &'a PromptRecord,
    columns: usize,
}

impl Place<'_> {
    fn write<W: Write>(
        &self,
        sweep: Option<&Sweep>,
        run: &Run,
        rows: &mut Writer<W>,
    ) -> io::Result<()> {
        let id = self.done.id.as_deref().unwrap_or_default();
        let mut head = vec![
            self.number.to_string(),
            text(&escape_line(id)),
            text(&escape_line(&self.done.prompt)),
        ];
        head.extend(match sweep {
            None => ["greedy", "0", "", "", ""].map(str::to_owned),
            Some(sweep) => [
                text(&escape_line(&sweep.label)),
                format!("{:?}", sweep.temperature),
                sweep.top_k.to_string(),
                format!("{:?}", sweep.top_p),
                format!("{:?}", sweep.min_p),
            ],
        });
        head.push(run.run.to_string());
        head.push(run.finish_reason.as_str().to_owned());
        for (number, step) in (1..).zip(&run.steps) {
            let mut row = head.clone();
            row.push(number.to_string());
            row.extend(of_step(step));
            row.push(String::new());
            let pair = |candidate: &Candidate| {
                [
                    text(&cell(&candidate.token, &candidate.bytes)),
                    self::number(candidate.prob),
                ]
            };
            row.extend(
                step.top_logprobs
                    .iter()
                    .take(MOST_CANDIDATES)
                    .flat_map(pair),
            );
            // fewer candidates than asked for leave their cells empty
            row.resize(self.columns, String::new());
            rows.write_record(&row)?;
        }
        Ok(())
    }
}

fn of_step(step: &Step) -> [String; 14] {
    let sampling = step.sampling.as_ref();
    [
        step.token_id.to_string(),
        text(&cell(&step.token, &step.bytes)),
        hex(&step.bytes),
        step.special.to_string(),
        number(step.prob),
        number(step.logprob),
        optional(step.logit),
        step.rank.to_string(),
        optional(step.entropy_bits),
        count(step.mass_count),
        optional(step.margin),
        optional(sampling.and_then(|sampling| sampling.prob)),
        count(sampling.and_then(|sampling| sampling.kept)),
        optional(sampling.and_then(|sampling| sampling.kept_mass)),
    ]
}

/// Empty where it is not known.
fn optional(value: Option<f32>) -> String {
    value.map(number).unwrap_or_default()
}

fn count(value: Option<usize>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// As the record has it: the shortest digits that are this f32.
fn number(value: f32) -> String {
    format!("{value:?}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What begins like a formula is text all the same.
fn text(shown: &str) -> String {
    match shown.starts_with(['=', '+', '-', '@', '\t', '\r', '\'']) {
        true => format!("'{shown}"),
        false => shown.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_never_a_formula() {
        assert_eq!(
            ["=1+1", "+1", "-x", "@a", "'", "a=1", "␠=", "", "5"].map(text),
            ["'=1+1", "'+1", "'-x", "'@a", "''", "a=1", "␠=", "", "5"]
        );
    }
}
