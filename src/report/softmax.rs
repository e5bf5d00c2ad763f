//! The arithmetic of one step for a terminal: all temperatures side by side, then what filters keep and draws hit.

use std::io::{self, Write};

use super::columns::{self, Line, Side};
use super::table::{BOLD, DIM, TOKEN_WIDTH, cut, plural};
use crate::softmax::{SoftmaxCandidate, SoftmaxRecord, SoftmaxSweep};
use crate::text::display::escape;

/// Longest bar; it stands for a certainty.
const LONGEST_BAR: usize = 20;
/// Below this many columns a bar says nothing.
const SHORTEST_BAR: usize = 5;
/// Taken where nobody says how wide the terminal is.
const USUAL_WIDTH: usize = 100;

/// Writes everything that `record` has. `width` is that of the terminal.
///
/// # Errors
/// When `out` fails.
pub fn table(record: &SoftmaxRecord, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let logits = plural(record.candidates.len(), "logit");
    writeln!(out, "{}: {BOLD}softmax of {logits}{BOLD:#}", record.program)?;
    for (name, meaning) in [
        (
            "T = …  ",
            "probability at this temperature: exp(logit / T), divided by the sum of all of them; 0 is greedy",
        ),
        ("entropy", "in bits: 0 is certainty, 1 a fair coin"),
    ] {
        writeln!(out, "{DIM}  {name}  {meaning}{DIM:#}")?;
    }
    writeln!(out)?;
    side_by_side(record, width.unwrap_or(USUAL_WIDTH), out)?;
    let is_filtered = |sweep: &&SoftmaxSweep| {
        record.draws > 0 || sweep.top_k > 0 || sweep.top_p < 1.0 || sweep.min_p > 0.0
    };
    let mut sweeps = record.sweeps.iter().filter(is_filtered);
    sweeps.try_for_each(|sweep| filtered(record, sweep, out))
}

/// One column for each temperature, and the entropies under them.
fn side_by_side(record: &SoftmaxRecord, width: usize, out: &mut impl Write) -> io::Result<()> {
    let names: Vec<String> = record.candidates.iter().map(name).collect();
    let logits: Vec<String> = record.candidates.iter().map(logit).collect();
    let entropies: Vec<String> = record
        .sweeps
        .iter()
        .map(|sweep| format!("{:.2} bits", sweep.entropy_bits))
        .collect();
    let widest = |cells: &[String]| {
        cells
            .iter()
            .map(|cell| unicode_width::UnicodeWidthStr::width(cell.as_str()))
            .max()
            .unwrap_or(0)
    };
    // two spaces in front of each of two columns; of each temperature's two, and "0.808 " in front of its bar
    let used = 4 + widest(&names).max(9) + widest(&logits).max(5) + record.sweeps.len() * 8;
    let room = width.saturating_sub(used) / record.sweeps.len().max(1);
    let longest = match room.min(LONGEST_BAR) {
        room if room < SHORTEST_BAR => 0,
        room => room,
    };
    let mut lines = vec![Line::title(
        [title(record), "logit".to_owned()]
            .into_iter()
            .chain(
                record
                    .sweeps
                    .iter()
                    .map(|sweep| format!("T = {:?}", sweep.temperature)),
            )
            .collect(),
    )];
    for (index, (name, logit)) in names.into_iter().zip(logits).enumerate() {
        let probs = record.sweeps.iter().map(|sweep| sweep.probs[index]);
        let cells = probs.map(|prob| {
            let cell = format!("{prob:.3} {}", bar(prob, longest));
            cell.trim_end().to_owned()
        });
        lines.push(Line::plain(
            [name, logit].into_iter().chain(cells).collect(),
        ));
    }
    let entropy = ["entropy".to_owned(), String::new()].into_iter();
    lines.push(Line::title(entropy.chain(entropies).collect()));
    let mut sides = vec![Side::Left, Side::Right];
    sides.resize(2 + record.sweeps.len(), Side::Left);
    columns::write(&sides, &lines, out)
}

/// What the filters keep at one temperature, and how often each candidate was drawn.
fn filtered(record: &SoftmaxRecord, sweep: &SoftmaxSweep, out: &mut impl Write) -> io::Result<()> {
    let all = record.candidates.len();
    let kept = match sweep.kept == all {
        true => "all kept".to_owned(),
        false => format!(
            "{} of {all} kept, {:.3} of the mass, entropy {:.2} bits",
            sweep.kept, sweep.tempered_mass, sweep.sampling_entropy_bits
        ),
    };
    let draws = match record.draws {
        0 => String::new(),
        draws => format!(
            ", {} with seed {}",
            plural(draws as usize, "draw"),
            record.seed
        ),
    };
    writeln!(out, "\n{BOLD}{}{BOLD:#}: {kept}{draws}\n", sweep.label)?;
    let mut title = vec![title(record), "before".to_owned(), "after".to_owned()];
    let mut sides = vec![Side::Left, Side::Right, Side::Right];
    if record.draws > 0 {
        title.extend(["drawn".to_owned(), "expected".to_owned()]);
        sides.extend([Side::Right, Side::Right]);
    }
    sides.push(Side::Left);
    let mut lines = vec![Line::title(title)];
    for (index, candidate) in record.candidates.iter().enumerate() {
        let is_kept = index < sweep.kept;
        let sampling_prob = sweep.sampling_probs[index];
        let after = match is_kept {
            true => format!("{sampling_prob:.3}"),
            false => "-".to_owned(),
        };
        let mut cells = vec![name(candidate), format!("{:.3}", sweep.probs[index]), after];
        if let (Some(drawn), Some(expected)) = (sweep.drawn.get(index), sweep.expected.get(index)) {
            cells.push(drawn.to_string());
            cells.push(match is_kept {
                true => format!("{expected:.1}"),
                false => "-".to_owned(),
            });
        }
        cells.push(bar(sampling_prob, LONGEST_BAR));
        lines.push(match is_kept {
            true => Line::plain(cells),
            false => Line::title(cells),
        });
    }
    columns::write(&sides, &lines, out)
}

fn title(record: &SoftmaxRecord) -> String {
    let has_labels = record.candidates.iter().any(|c| c.label.is_some());
    if has_labels { "candidate" } else { "id" }.to_owned()
}

fn name(candidate: &SoftmaxCandidate) -> String {
    match &candidate.label {
        Some(label) if label.is_empty() => "(empty)".to_owned(),
        Some(label) => cut(&escape(label.as_bytes()), TOKEN_WIDTH),
        None => candidate.id.to_string(),
    }
}

/// A logit as short as it can be told from every other.
fn logit(candidate: &SoftmaxCandidate) -> String {
    match candidate.logit {
        None => "-inf".to_owned(),
        Some(logit) if logit == 0.0 || (1e-4..1e7).contains(&logit.abs()) => logit.to_string(),
        Some(logit) => format!("{logit:e}"),
    }
}

/// A bar of `longest` columns for 1, in eighths of a column.
fn bar(share: f32, longest: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share * 8.0 * longest as f32).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Setting;
    use crate::softmax::{Draws, softmax};

    fn shown(record: &SoftmaxRecord, width: Option<usize>) -> String {
        let mut text = Vec::new();
        table(record, width, &mut text).expect("a vector takes everything");
        anstream::adapter::strip_str(&String::from_utf8(text).expect("UTF-8")).to_string()
    }

    fn settings(temps: &[f64]) -> Vec<Setting> {
        let setting = |&t: &f64| Setting::OFF.with_temperature(t).expect("a temperature");
        temps.iter().map(setting).collect()
    }

    const NONE: Draws = Draws { count: 0, seed: 0 };

    #[test]
    fn temperatures_stand_side_by_side_with_bars_that_fit() {
        let labels = ["巴黎", " Lyon", "\u{1b}[31m"].map(str::to_owned);
        let logits = [2.0, 1.0, f32::NEG_INFINITY];
        let record =
            softmax(&logits, Some(&labels), &settings(&[0.5, 1.0]), NONE).expect("a distribution");
        insta::assert_snapshot!(shown(&record, Some(60)), @r"
        logprobs 0.1.0: softmax of 3 logits
          T = …    probability at this temperature: exp(logit / T), divided by the sum of all of them; 0 is greedy
          entropy  in bits: 0 is certainty, 1 a fair coin

          candidate   logit  T = 0.5            T = 1.0
          巴黎            2  0.881 ██████████▋  0.731 ████████▊
          ␠Lyon           1  0.119 █▍           0.269 ███▎
          \u{1B}[31m   -inf  0.000              0.000
          entropy            0.53 bits          0.84 bits
        ");
    }

    #[test]
    fn filters_and_draws_have_a_table_for_each_temperature() {
        let setting = Setting::OFF.with_top_p(0.9).expect("a mass");
        let draws = Draws {
            count: 100,
            seed: 0,
        };
        let record =
            softmax(&[5.0, 3.0, 2.5, 1.0, -1.0], None, &[setting], draws).expect("a distribution");
        insta::assert_snapshot!(shown(&record, None), @"
        logprobs 0.1.0: softmax of 5 logits
          T = …    probability at this temperature: exp(logit / T), divided by the sum of all of them; 0 is greedy
          entropy  in bits: 0 is certainty, 1 a fair coin

          id       logit  T = 1.0
          0            5  0.808 ████████████████▏
          1            3  0.109 ██▏
          2          2.5  0.066 █▍
          3            1  0.015 ▎
          4           -1  0.002
          entropy         0.97 bits

        temperature 1.0, top_p 0.9: 2 of 5 kept, 0.917 of the mass, entropy 0.53 bits, 100 draws with seed 0

          id  before  after  drawn  expected
          0    0.808  0.881     86      88.1  █████████████████▋
          1    0.109  0.119     14      11.9  ██▍
          2    0.066      -      0         -
          3    0.015      -      0         -
          4    0.002      -      0         -
        ");
    }

    #[test]
    fn no_line_is_wider_than_a_narrow_terminal_and_bars_go_first() {
        let record =
            softmax(&[1.0, 0.0], None, &settings(&[0.5, 1.0, 2.0]), NONE).expect("a distribution");
        let text = shown(&record, Some(50));
        let table = text.split("\n\n").nth(1).expect("a table");
        assert!(
            table.lines().all(|line| line.chars().count() <= 50),
            "{text}"
        );
        assert!(!table.contains('█'), "{text}");
    }

    #[test]
    fn a_bar_is_as_long_as_its_share() {
        assert_eq!(
            [0.0, 0.25, 0.5, 1.0].map(|share| bar(share, 4)),
            ["", "█", "██", "████"]
        );
        assert_eq!(bar(0.03125, 4), "▏");
    }

    #[test]
    fn logits_are_as_short_as_they_can_be() {
        let shown = |value| {
            logit(&SoftmaxCandidate {
                id: 0,
                label: None,
                logit: value,
                rank: 1,
                logprob: None,
                prob: 0.0,
            })
        };
        let logits = [
            Some(5.0),
            Some(-0.5),
            Some(0.0),
            Some(1e30),
            Some(-1e-9),
            None,
        ];
        assert_eq!(
            logits.map(shown),
            ["5", "-0.5", "0", "1e30", "-1e-9", "-inf"]
        );
    }
}
