//! The first step at several temperatures as a section: a row for each candidate, a column of bars for each temperature.

use std::io::{self, Write};

use serde::Serialize;

use super::{model_facts, model_gist, share};
use crate::record::TemperatureStep1;
use crate::report::templates::Templates;
use crate::text::display::{cell, escape_line, escape_text};

#[derive(Serialize)]
struct Step1 {
    number: usize,
    model: String,
    note: Option<String>,
    program: String,
    gist: String,
    facts: Vec<(&'static str, String)>,
    prompt: String,
    rendered: String,
    num_prompt_tokens: usize,
    temperatures: Vec<String>,
    rows: Vec<Row>,
}

/// A candidate, or all others together.
#[derive(Serialize)]
struct Row {
    name: String,
    logit: Option<String>,
    cells: Vec<Cell>,
}

/// A probability, and the bar of that length.
#[derive(Serialize)]
struct Cell {
    percent: String,
    width: String,
}

pub(super) fn write(
    record: &TemperatureStep1,
    number: usize,
    page: &Templates,
    out: &mut impl Write,
) -> io::Result<()> {
    let cells = |probs: &[f32]| {
        let cells = probs.iter().map(|&prob| Cell {
            percent: format!("{:.1} %", 100.0 * prob),
            width: share(f64::from(prob)),
        });
        cells.collect()
    };
    let candidates = record.candidates.iter().map(|candidate| Row {
        name: cell(&candidate.token, &candidate.bytes),
        logit: candidate.logit.map(|logit| format!("{logit:.2}")),
        cells: cells(&candidate.probs),
    });
    let rest = Row {
        name: "rest".to_owned(),
        logit: None,
        cells: cells(&record.rest),
    };
    let view = Step1 {
        number,
        model: escape_line(&record.model.id),
        note: record.model.note.as_deref().map(escape_text),
        program: escape_line(&record.program),
        gist: model_gist(&record.model),
        facts: model_facts(&record.model),
        prompt: escape_text(&record.prompt),
        rendered: escape_text(&record.rendered),
        num_prompt_tokens: record.prompt_token_ids.len(),
        temperatures: record
            .temperatures
            .iter()
            .map(|t| format!("{t:?}"))
            .collect(),
        rows: candidates.chain([rest]).collect(),
    };
    page.write("step1.html", &view, out)
}
