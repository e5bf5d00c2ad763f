//! The trace of a given text for a terminal: step table, the text, sums, and the candidates that were named.

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr;

use crate::analysis;
use crate::record::score::{Named, Recorded, Score, ScoredStep, Totals};
use crate::report::columns;
use crate::report::table::{
    BOLD, DIM, INDENT, LOW, NARROWEST, TOKEN_WIDTH, cut, left, marked, mass_count, model, percent,
    plural, right, runners_up, title,
};
use crate::report::wrap::Lines;
use crate::text::display::{cell, escape, escape_text};

/// What stands for a number that there is none of.
const NONE: &str = "-";

/// Writes a trace. `width` is that of the terminal.
///
/// # Errors
/// When `out` fails.
pub fn score(record: &Score, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    model(&record.program, &record.model, out)?;
    let percent = percent(record.settings.mass);
    for (name, meaning) in [
        (
            "prob",
            "the model's own probability: temperature 1, whole vocabulary, before any filter",
        ),
        ("rank", "1 for the model's best candidate"),
        (
            &format!("n{percent}"),
            &format!("how many of the best candidates together reach {percent} %"),
        ),
        (
            "【…】",
            &format!("a token with prob below {:.2}", record.settings.threshold),
        ),
    ] {
        writeln!(out, "{DIM}  {}  {meaning}{DIM:#}", left(name, 6))?;
    }
    match &record.prompt {
        Some(prompt) => writeln!(out, "\n{BOLD}Prompt: {}{BOLD:#}", title(prompt))?,
        None => writeln!(out, "\n{BOLD}Text without a prompt{BOLD:#}")?,
    }
    if !record.steps.is_empty() {
        steps(record, width, out)?;
        text(record, width, out)?;
        totals(record, out)?;
    }
    let when = match record.steps.is_empty() {
        true => "next token",
        false => "after the text",
    };
    named(&record.named, when, out)
}

/// One row a token, with a column for each named candidate of one token.
fn steps(record: &Score, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let named: Vec<&Named> = record
        .named
        .iter()
        .filter(|named| !named.is_sequence)
        .collect();
    let mut titles: Vec<String> = ["step", "token", "prob", "logprob", "rank"]
        .map(str::to_owned)
        .to_vec();
    titles.push(format!("n{}", percent(record.settings.mass)));
    titles.extend(named.iter().map(|named| name(named)));
    let rows: Vec<Vec<String>> = record
        .steps
        .iter()
        .enumerate()
        .map(|(index, step)| {
            let number = |value: Option<usize>| value.map_or(NONE.to_owned(), |n| n.to_string());
            let mut row = vec![
                (index + 1).to_string(),
                cut(&cell(&step.token, &step.bytes), TOKEN_WIDTH),
                step.prob
                    .map_or(NONE.to_owned(), |prob| format!("{prob:.2}")),
                logprob(step.logprob),
                number(step.rank),
                match step.bounds {
                    Some(bounds) => mass_count(step.mass_count, Some(bounds)),
                    None => number(step.mass_count),
                },
            ];
            row.extend(named.iter().map(|named| match named.steps.get(index) {
                Some(Some(odds)) => format!("{} #{}", logprob(odds.logprob), odds.rank),
                _ => NONE.to_owned(),
            }));
            row
        })
        .collect();
    let widths: Vec<usize> = (0..titles.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].width());
            cells.chain([titles[column].width(), 4]).max().unwrap_or(0)
        })
        .collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column {
            1 => left(cell, width),
            _ => right(cell, width),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    writeln!(out, "\n{DIM}  {}  runners-up{DIM:#}", line(&titles))?;
    let used: usize = widths.iter().map(|width| width + 2).sum::<usize>() + 2;
    for (step, row) in record.steps.iter().zip(&rows) {
        let room = width.map(|width| width.saturating_sub(used));
        let best = runners_up(&step.top_logprobs, step.token_id, room);
        let best = match best.is_empty() {
            true => best,
            false => format!("  {DIM}{best}{DIM:#}"),
        };
        let line = line(row);
        match is_low(step, record.settings.threshold) {
            true => writeln!(out, "  {LOW}{line}{LOW:#}{best}")?,
            false => writeln!(out, "  {line}{best}")?,
        }
    }
    let has_hidden = |named: &&Named| {
        let mut steps = record.steps.iter().zip(&named.steps);
        steps.any(|(step, odds)| step.prob.is_some() && odds.is_none())
    };
    if named.iter().any(has_hidden) {
        writeln!(
            out,
            "  {DIM}{NONE} under a candidate: not among those that the server shows there (--server-top all shows it){DIM:#}"
        )?;
    }
    Ok(())
}

fn text(record: &Score, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let title = match &record.recorded {
        None => "text".to_owned(),
        Some(Recorded {
            sweep: None,
            prompt,
            ..
        }) => format!("greedy run of prompt {prompt}"),
        Some(Recorded {
            sweep: Some(sweep),
            prompt,
            run,
            ..
        }) => format!("run {run} of prompt {prompt}, {}", escape_text(sweep)),
    };
    writeln!(out, "\n{BOLD}{title}{BOLD:#}")?;
    let room = width.filter(|&width| width >= NARROWEST);
    let mut lines = Lines::new(room.map(|width| width - INDENT));
    let pieces = analysis::score::pieces(&record.steps, record.end, record.settings.threshold);
    marked(&pieces, escape_text, &mut lines);
    for line in lines.finish() {
        match line.as_str() {
            "" => writeln!(out)?,
            _ => writeln!(out, "{:INDENT$}{line}", "")?,
        }
    }
    Ok(())
}

fn totals(record: &Score, out: &mut impl Write) -> io::Result<()> {
    let Totals {
        tokens,
        bytes,
        sum_logprob,
        mean_logprob,
        perplexity,
        bits_per_byte,
    } = record.totals;
    let number = |value: Option<f64>| value.map_or(NONE.to_owned(), |value| format!("{value:.2}"));
    writeln!(
        out,
        "\n{BOLD}{}, {} of text{BOLD:#}: sum of logprobs {}, mean {}, perplexity {}, bits per byte {}",
        plural(tokens, "token"),
        plural(bytes, "byte"),
        number(sum_logprob),
        number(mean_logprob),
        number(perplexity),
        number(bits_per_byte)
    )?;
    if record.steps.len() > tokens {
        writeln!(
            out,
            "  {DIM}the first token has no context and counts nowhere{DIM:#}"
        )?;
    }
    let end = match (record.end, &record.recorded) {
        (true, _) => "the last step is the end token",
        (false, None) => "no end token was added (--end scores it, too)",
        (false, Some(_)) => "the run was cut off: it has no end token",
    };
    writeln!(out, "  {DIM}{end}{DIM:#}")?;
    let Some(recorded) = &record.recorded else {
        return Ok(());
    };
    match recorded.largest_difference {
        Some(0.0) => writeln!(
            out,
            "  every log-probability is the recorded one, bit for bit"
        ),
        Some(difference) => writeln!(
            out,
            "  the recorded log-probabilities differ by up to {difference:.1e}"
        ),
        None => Ok(()),
    }
}

/// The named candidates where the text ends.
fn named(named: &[Named], when: &str, out: &mut impl Write) -> io::Result<()> {
    if named.is_empty() {
        return Ok(());
    }
    let rows = named.iter().map(|named| {
        let rank = match named.rank {
            Some(rank) => rank.to_string(),
            None => format!("sequence of {} tokens", named.tokens.len()),
        };
        vec![name(named), prob(named.prob), logprob(named.logprob), rank]
    });
    let titles = ["candidate", "prob", "logprob", "rank"]
        .map(str::to_owned)
        .to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(titles).chain(rows).collect();
    writeln!(out, "\n{BOLD}{when}{BOLD:#}")?;
    columns::write_numbers(rows, out)
}

fn name(named: &Named) -> String {
    cut(&escape(named.text.as_bytes()), TOKEN_WIDTH)
}

/// A probability that may be too small for four decimals.
fn prob(prob: f32) -> String {
    match prob {
        p if p > 0.0 && p < 1e-4 => format!("{p:.0e}"),
        p => format!("{p:.4}"),
    }
}

fn logprob(logprob: Option<f32>) -> String {
    // what rounds to nothing has no sign
    logprob.map_or(NONE.to_owned(), |logprob| match format!("{logprob:.2}") {
        shown if shown == "-0.00" => "0.00".to_owned(),
        shown => shown,
    })
}

fn is_low(step: &ScoredStep, threshold: f64) -> bool {
    step.prob.is_some_and(|prob| f64::from(prob) < threshold)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Candidate;
    use crate::record::score::{NamedToken, Odds, ScoreSettings};
    use crate::report::table::tests::model_info;

    fn step(token: &str, prob: Option<f32>, rank: usize) -> ScoredStep {
        let bytes = token.as_bytes().to_vec();
        let best = Candidate {
            token_id: 99,
            token: "法国".into(),
            bytes: "法国".into(),
            special: false,
            logprob: -0.5,
            prob: 0.61,
        };
        ScoredStep {
            token_id: 1,
            token: token.into(),
            bytes,
            logit: prob.map(|_| 1.0),
            logprob: prob.map(f32::ln),
            prob,
            rank: prob.map(|_| rank),
            entropy_bits: prob.map(|_| 1.0),
            mass_count: prob.map(|_| 12),
            margin: None,
            special: false,
            bounds: None,
            top_logprobs: prob.map(|_| best).into_iter().collect(),
        }
    }

    fn named(text: &str, steps: Vec<Option<Odds>>, ranks: &[usize]) -> Named {
        let tokens = ranks.iter().map(|&rank| NamedToken {
            token_id: 1,
            token: text.into(),
            bytes: text.into(),
            special: false,
            logprob: Some(-1.0),
            prob: 0.36,
            rank,
        });
        Named {
            text: text.into(),
            is_sequence: ranks.len() > 1,
            logprob: Some(-11.5),
            prob: 1e-5,
            rank: Some(ranks[0]).filter(|_| ranks.len() == 1),
            tokens: tokens.collect(),
            steps,
        }
    }

    fn record() -> Score {
        let steps = vec![
            step("a", None, 1),
            step(" \u{1b}[31m", Some(0.02), 1234),
            step("巴黎", Some(1.0), 1),
        ];
        let odds = Some(Odds {
            logprob: Some(-7.25),
            prob: 0.0007,
            rank: 321,
        });
        Score {
            schema: 1,
            program: "logprobs 0.0.0".into(),
            model: model_info(),
            settings: ScoreSettings {
                candidates: 5,
                mass: 0.9,
                threshold: 0.3,
                thinking: None,
                raw: true,
                system: None,
                template_source: None,
                stop_ids: Vec::new(),
                plain_text: false,
                template_date: None,
            },
            prompt: None,
            rendered: None,
            prompt_token_ids: Vec::new(),
            text: String::new(),
            marked: String::new(),
            end: false,
            recorded: None,
            totals: analysis::score::totals(&steps, false),
            steps,
            named: vec![
                named(" 里昂", vec![None, odds, odds], &[7]),
                named("\u{202e}x", Vec::new(), &[7, 8]),
            ],
        }
    }

    fn shown(record: &Score, width: Option<usize>) -> String {
        let mut out = Vec::new();
        score(record, width, &mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("UTF-8");
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_trace_has_its_steps_its_text_its_sums_and_its_candidates() {
        insta::assert_snapshot!(shown(&record(), None), @r"
        logprobs 0.0.0: org/model at abc (llama, vocabulary of 320, bf16 weights, f32 on cpu)
          prob    the model's own probability: temperature 1, whole vocabulary, before any filter
          rank    1 for the model's best candidate
          n90     how many of the best candidates together reach 90 %
          【…】   a token with prob below 0.30

        Text without a prompt

          step  token        prob  logprob  rank   n90       ␠里昂  runners-up
             1  a               -        -     -     -           -
             2  ␠\u{1B}[31m  0.02    -3.91  1234    12  -7.25 #321  法国 0.61
             3  巴黎         1.00     0.00     1    12  -7.25 #321  法国 0.61

        text
               a 【\u{1B}[31m|0.02】巴黎

        2 tokens, 12 bytes of text: sum of logprobs -3.91, mean -1.96, perplexity 7.07, bits per byte 0.47
          the first token has no context and counts nowhere
          no end token was added (--end scores it, too)

        after the text
          candidate  prob  logprob                  rank
          ␠里昂      1e-5   -11.50                     7
          \u{202E}x  1e-5   -11.50  sequence of 2 tokens
        ");
    }

    #[test]
    fn a_recorded_run_says_which_and_how_far_off() {
        let recorded = Recorded {
            prompt: 2,
            sweep: Some("temperature 1.0".into()),
            run: 3,
            largest_difference: Some(1.25e-4),
        };
        let record = Score {
            prompt: Some("Where?\nHere.".into()),
            end: true,
            recorded: Some(recorded),
            named: Vec::new(),
            ..record()
        };
        let shown = shown(&record, Some(50));
        let (_, shown) = shown.split_once("\n\n").expect("the header");
        insta::assert_snapshot!(shown, @r"
        Prompt: Where?\nHere.

          step  token        prob  logprob  rank   n90  runners-up
             1  a               -        -     -     -
             2  ␠\u{1B}[31m  0.02    -3.91  1234    12
             3  巴黎         1.00     0.00     1    12

        run 3 of prompt 2, temperature 1.0
               a 【\u{1B}[31m|0.02】

        2 tokens, 12 bytes of text: sum of logprobs -3.91, mean -1.96, perplexity 7.07, bits per byte 0.47
          the first token has no context and counts nowhere
          the last step is the end token
          the recorded log-probabilities differ by up to 1.3e-4
        ");
    }
}
