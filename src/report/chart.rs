//! The chart of `temperature-step1` as a drawing of its own (SVG): bars of the best candidates, and of all others together, at
//! each temperature.
//!
//! Widths of names are estimated, a wide (CJK) character as two narrow ones: no font is opened here.

use std::io::{self, Write};

use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use crate::record::TemperatureStep1;
use crate::report::table::{TOKEN_WIDTH, cut};
use crate::report::templates::Templates;
use crate::text::display::{cell, escape_line};

/// Room around everything.
const MARGIN: f64 = 24.0;
/// Room of a column of a name in its font.
const LETTER: f64 = 8.4;
/// Room of a full bar, and of its number.
const BAR: f64 = 130.0;
const NUMBER: f64 = 62.0;
/// From row to row, and down to the first one.
const ROW: f64 = 28.0;
const TOP: f64 = 112.0;
/// Room around the line above `rest`.
const GAP: f64 = 10.0;
/// The least width, for the sake of the title, and the longest prompt in it, in columns.
const LEAST: f64 = 560.0;
const PROMPT_WIDTH: usize = 60;

#[derive(Serialize)]
struct Chart {
    width: f64,
    height: f64,
    prompt: String,
    model: String,
    columns: Vec<Column>,
    rows: Vec<Row>,
    /// Where the line above `rest` is.
    line: f64,
    right: f64,
}

#[derive(Serialize)]
struct Column {
    left: f64,
    temperature: String,
}

#[derive(Serialize)]
struct Row {
    name: String,
    is_rest: bool,
    /// Where names end.
    left: f64,
    top: f64,
    middle: f64,
    bars: Vec<Bar>,
}

#[derive(Serialize)]
struct Bar {
    left: f64,
    width: f64,
    number: f64,
    percent: String,
}

/// Writes the chart.
///
/// # Errors
/// When `out` fails.
pub fn write(record: &TemperatureStep1, out: &mut impl Write) -> io::Result<()> {
    let names = record.candidates.iter();
    let mut names: Vec<String> = names
        .map(|candidate| cut(&cell(&candidate.token, &candidate.bytes), TOKEN_WIDTH))
        .collect();
    names.push("rest".to_owned());
    let longest = names.iter().map(|name| name.width()).max().unwrap_or(0);
    let left = rounded(MARGIN + LETTER * longest as f64);
    let column = |index: usize| rounded(left + 14.0 + index as f64 * (BAR + NUMBER));
    let right = column(record.temperatures.len());
    let probs = record.candidates.iter().map(|candidate| &candidate.probs);
    let num_candidates = record.candidates.len();
    let rows = names
        .into_iter()
        .zip(probs.chain([&record.rest]))
        .zip(0usize..);
    let rows: Vec<Row> = rows
        .map(|((name, probs), index)| {
            let is_rest = index == num_candidates;
            let gap = if is_rest { GAP } else { 0.0 };
            let top = TOP + ROW * index as f64 + gap;
            let bars = probs.iter().enumerate().map(|(index, &prob)| {
                let width = rounded(BAR * f64::from(prob).clamp(0.0, 1.0));
                Bar {
                    left: column(index),
                    width,
                    number: rounded(column(index) + width + 6.0),
                    percent: format!("{:.1} %", 100.0 * prob),
                }
            });
            Row {
                name,
                is_rest,
                left,
                top,
                middle: top + 12.5,
                bars: bars.collect(),
            }
        })
        .collect();
    let chart = Chart {
        width: (right + MARGIN).max(LEAST),
        height: TOP + ROW * rows.len() as f64 + GAP + MARGIN,
        prompt: cut(&escape_line(&record.prompt), PROMPT_WIDTH),
        model: escape_line(&record.model.id),
        columns: record
            .temperatures
            .iter()
            .enumerate()
            .map(|(index, temperature)| Column {
                left: column(index),
                temperature: format!("T = {temperature:?}"),
            })
            .collect(),
        line: TOP + ROW * num_candidates as f64 + GAP / 2.0 - 1.0,
        right,
        rows,
    };
    Templates::new(&[("chart.svg", include_str!("chart.svg"))]).write("chart.svg", &chart, out)
}

/// A position to a tenth of a unit.
fn rounded(position: f64) -> f64 {
    (position * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::table::tests::step1;

    /// The values of an attribute, in order, of the elements that begin with `element`.
    fn values(svg: &str, element: &str, attribute: &str) -> Vec<String> {
        let elements = svg.lines().filter(|line| line.starts_with(element));
        let value = |line: &str| {
            let (_, after) = line.split_once(&format!(" {attribute}=\""))?;
            Some(after.split_once('"')?.0.to_owned())
        };
        elements.filter_map(value).collect()
    }

    #[test]
    fn a_bar_is_as_long_as_its_probability_and_rest_comes_last() {
        let mut record = step1();
        record.prompt = "<a href=\"x\">".into();
        let mut out = Vec::new();
        write(&record, &mut out).expect("a vector takes everything");
        let svg = String::from_utf8(out).expect("UTF-8");
        assert_eq!(
            values(&svg, "<rect x", "width"),
            ["130.0", "0.4", "0.0", "0.4", "0.0", "129.2"]
        );
        let names = svg.lines().filter(|line| line.contains("\"end\""));
        let names: Vec<_> = names
            .filter_map(|line| line.split(['<', '>']).nth(2))
            .collect();
        assert_eq!(names, ["法国", "␠Paris", "rest"]);
        assert!(svg.contains("&lt;a href=&quot;x&quot;&gt;") && !svg.contains("<a"));
    }

    #[test]
    fn a_wide_name_takes_twice_the_room() {
        let room = |name: &str| {
            let mut record = step1();
            record.candidates.truncate(1);
            record.candidates[0].bytes = name.into();
            let mut out = Vec::new();
            write(&record, &mut out).expect("a vector takes everything");
            let svg = String::from_utf8(out).expect("UTF-8");
            values(&svg, "<rect x", "x").remove(0)
        };
        assert_eq!(room("法国法国"), room("abcdefgh"));
        assert_ne!(room("法国法国"), room("法国法"));
    }
}
