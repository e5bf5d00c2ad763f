//! The settings beside each other: one row for each sweep of a prompt.

use std::io::{self, Write};

use crate::record::{PromptRecord, Settings};
use crate::report::columns;
use crate::report::table::{BOLD, percent};
use crate::text::display::escape_line;

/// What a server left open.
const OPEN: &str = "?";

/// Writes what each setting did; nothing where there are no samples.
pub(super) fn settings(
    prompt: &PromptRecord,
    settings: &Settings,
    out: &mut impl Write,
) -> io::Result<()> {
    let rows = rows(prompt, settings);
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{BOLD}settings beside each other{BOLD:#}")?;
    columns::write_numbers(rows, out)
}

/// Returns the table of [`settings`]: titles, then a row for each sweep; nothing where there are no samples.
pub(super) fn rows(prompt: &PromptRecord, settings: &Settings) -> Vec<Vec<String>> {
    let Some(analysis) = &prompt.analysis else {
        return Vec::new();
    };
    let title = [
        "setting".to_owned(),
        "distinct".to_owned(),
        "mean prob".to_owned(),
        "lowest".to_owned(),
        format!("below {:.2}", settings.threshold),
        "mean kept".to_owned(),
        "mass".to_owned(),
        format!("outside n{}", percent(settings.mass)),
    ];
    let rows = prompt.sweeps.iter().zip(&analysis.sweeps);
    let rows = rows.map(|(sweep, analysis)| {
        vec![
            escape_line(&sweep.label),
            format!("{} of {}", sweep.distinct_replies, sweep.runs.len()),
            format!("{:.2}", analysis.mean_prob),
            lowest(analysis.lowest_prob),
            sweep.low_probability_tokens.to_string(),
            analysis
                .mean_kept
                .map_or(OPEN.to_owned(), |kept| format!("{kept:.1}")),
            analysis
                .mean_kept_mass
                .map_or(OPEN.to_owned(), |mass| format!("{mass:.2}")),
            format!("{:.1} %", 100.0 * analysis.outside_mass),
        ]
    });
    std::iter::once(title.to_vec()).chain(rows).collect()
}

/// A probability that may be too small for two decimals.
fn lowest(prob: f32) -> String {
    match prob {
        p if p > 0.0 && p < 0.01 => format!("{p:.0e}"),
        p => format!("{p:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lowest_probability_is_never_shown_as_nothing() {
        assert_eq!(
            [0.25, 0.01, 0.005, 2.4e-7, 0.0].map(lowest),
            ["0.25", "0.01", "5e-3", "2e-7", "0.00"]
        );
    }
}
