//! The record for a terminal: header, step table, samples, and what is to be said of them. Formats only; every number is in the record.
//!
//! Everything a model or a prompt wrote is escaped before it is printed. Colours are written always and taken out by the
//! stream where they are not wanted. Columns are as wide as what is shown in them (CJK characters count two).

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use unicode_width::UnicodeWidthStr;

use crate::analysis::{Piece, pieces};
use crate::record::{
    Bounds, Candidate, FinishReason, ModelInfo, PromptEntry, PromptRecord, Record, Run, Settings,
    Step, Sweep, TemperatureStep1,
};
use crate::report::wrap::Lines;
use crate::report::{columns, parting, summary, tree};
use crate::text::display::{cell, escape_line, escape_text};

pub(super) const BOLD: Style = Style::new().bold();
pub(super) const DIM: Style = Style::new().dimmed();
pub(super) const LOW: Style = AnsiColor::Red.on_default().bold();

/// Widest cell of a token; longer ones are cut.
pub(super) const TOKEN_WIDTH: usize = 24;
/// Columns in front of a reply.
pub(super) const INDENT: usize = 7;
/// Terminals with fewer columns break replies themselves.
pub(super) const NARROWEST: usize = 30;
/// Longest prompt that is shown whole.
const PROMPT_WIDTH: usize = 240;

/// How a prompt's entry is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct View {
    /// Columns of the terminal; `None` breaks no line.
    pub width: Option<usize>,
    /// Whether a reply is one line: its line breaks escaped, cut at the terminal's width.
    pub one_line: bool,
    /// Whether the replies are shown as trees, too.
    pub tree: bool,
}

/// Writes what holds for all prompts: model and settings.
///
/// # Errors
/// When `out` fails.
pub fn header(record: &Record, out: &mut impl Write) -> io::Result<()> {
    model(&record.program, &record.model, out)?;
    writeln!(out, "{}", runs_in_words(&record.settings))?;
    let Settings {
        mass, threshold, ..
    } = &record.settings;
    let percent = percent(*mass);
    let count = format!("n{percent}");
    for (name, meaning) in [
        (
            "prob",
            "the model's own probability: temperature 1, whole vocabulary, before any filter",
        ),
        (
            &count,
            &format!("how many of the best candidates together reach {percent} %"),
        ),
        ("【…】", &format!("a token with prob below {threshold:.2}")),
    ] {
        writeln!(out, "{DIM}  {}  {meaning}{DIM:#}", left(name, 6))?;
    }
    Ok(())
}

/// Returns how many runs there were, of what length and seed.
pub(super) fn runs_in_words(settings: &Settings) -> String {
    let Settings {
        seed,
        samples,
        run,
        max_new_tokens,
        ..
    } = settings;
    let runs = match (run, samples) {
        (Some(run), _) => format!("run {run} of each setting"),
        (None, 0) => "no samples".to_owned(),
        (None, 1) => "1 sample of each setting".to_owned(),
        (None, samples) => format!("{samples} samples of each setting"),
    };
    let tokens = plural(*max_new_tokens, "new token");
    format!("seed {seed}, {runs}, at most {tokens}")
}

/// Writes one prompt's entry: step table of the greedy reply, the samples, where they part.
///
/// # Errors
/// When `out` fails.
pub fn prompt(record: &Record, index: usize, view: View, out: &mut impl Write) -> io::Result<()> {
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
        title(text)
    )?;
    match entry {
        PromptEntry::Done(done) => {
            steps(done, &record.settings, view, out)?;
            done.sweeps
                .iter()
                .try_for_each(|s| sweep(s, &record.settings, view, out))?;
            parting::words(done, view.width, out)?;
            summary::settings(done, &record.settings, out)?;
            match view.tree {
                true => tree::trees(&done.sweeps, &record.settings, view.width, out),
                false => Ok(()),
            }
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
    writeln!(out, "\n{BOLD}Prompt: {}{BOLD:#}\n", title(&record.prompt))?;
    let mut rows = vec![vec!["token".to_owned(), "logit".to_owned()]];
    rows[0].extend(record.temperatures.iter().map(|t| format!("T = {t:?}")));
    for candidate in &record.candidates {
        let name = cell(&candidate.token, &candidate.bytes);
        let logit = candidate.logit.map(|logit| format!("{logit:.2}"));
        let mut row = vec![cut(&name, TOKEN_WIDTH), logit.unwrap_or_default()];
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
    columns::write_numbers(rows, out)
}

pub(super) fn model(program: &str, model: &ModelInfo, out: &mut impl Write) -> io::Result<()> {
    let revision = model
        .revision
        .as_ref()
        .map(|r| format!(" at {}", escape_line(r)))
        .unwrap_or_default();
    if let Some(server) = &model.server {
        let shown = match server.top < model.vocab_size {
            true => format!(", the best {} shown", server.top),
            false => String::new(),
        };
        return writeln!(
            out,
            "{}: {BOLD}{}{BOLD:#} ({} {}, vocabulary of {}{shown})",
            escape_line(program),
            escape_line(&model.id),
            escape_line(&server.kind),
            escape_line(&server.version),
            model.vocab_size,
        );
    }
    writeln!(
        out,
        "{}: {BOLD}{}{BOLD:#}{revision} ({}, vocabulary of {}, {} weights, {} on {})",
        escape_line(program),
        escape_line(&model.id),
        escape_line(&model.architecture),
        model.vocab_size,
        escape_line(&model.weights_dtype),
        escape_line(&model.compute_dtype),
        escape_line(&model.device)
    )?;
    match &model.note {
        Some(note) => writeln!(out, "{BOLD}{}{BOLD:#}", escape_line(note)),
        None => Ok(()),
    }
}

/// A number of candidates, or what it exceeds.
pub(super) fn mass_count(count: Option<usize>, bounds: Option<Bounds>) -> String {
    let exceeds = || bounds.map(|bounds| format!(">{}", bounds.shown));
    count
        .map(|count| count.to_string())
        .or_else(exceeds)
        .unwrap_or_default()
}

/// The step table of the greedy reply, and the reply.
fn steps(
    prompt: &PromptRecord,
    settings: &Settings,
    view: View,
    out: &mut impl Write,
) -> io::Result<()> {
    let steps = &prompt.greedy.steps;
    let tokens: Vec<String> = steps
        .iter()
        .map(|step| cut(&cell(&step.token, &step.bytes), TOKEN_WIDTH))
        .collect();
    let token_width = tokens
        .iter()
        .map(|token| token.width())
        .chain([5])
        .max()
        .unwrap_or(5);
    let count_title = format!("n{}", percent(settings.mass));
    let counts = steps
        .iter()
        .map(|step| mass_count(step.mass_count, step.bounds).len());
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
            right(&mass_count(step.mass_count, step.bounds), count_width)
        );
        let used = 2 + 4 + 2 + token_width + 2 + 4 + 2 + count_width;
        let runners_up = runners_up(
            &step.top_logprobs,
            step.token_id,
            view.width.map(|width| width.saturating_sub(used + 2)),
        );
        let runners_up = if runners_up.is_empty() {
            runners_up
        } else {
            format!("  {DIM}{runners_up}{DIM:#}")
        };
        writeln!(out, "{head}{runners_up}")?;
    }
    writeln!(out, "\n{BOLD}greedy{BOLD:#}")?;
    reply("", &prompt.greedy, settings.threshold, view, out)
}

/// The candidates that were not taken, as many as fit.
pub(super) fn runners_up(candidates: &[Candidate], taken: u32, room: Option<usize>) -> String {
    let mut line = String::new();
    for candidate in candidates
        .iter()
        .filter(|candidate| candidate.token_id != taken)
    {
        let Candidate {
            token, bytes, prob, ..
        } = candidate;
        let separator = if line.is_empty() { "" } else { "   " };
        let shown = format!(
            "{separator}{} {prob:.2}",
            cut(&cell(token, bytes), TOKEN_WIDTH)
        );
        if room.is_some_and(|room| line.width() + shown.width() > room) {
            break;
        }
        line.push_str(&shown);
    }
    line
}

/// Returns how many different replies a sweep has, and how many tokens in them are marked.
pub(super) fn replies_in_words(sweep: &Sweep, settings: &Settings) -> String {
    let replies = match (sweep.runs.len(), sweep.distinct_replies) {
        (1, _) => "1 reply".to_owned(),
        (runs, 1) => format!("all {runs} replies are the same"),
        (runs, distinct) => format!("{distinct} distinct replies of {runs}"),
    };
    let tokens = plural(sweep.low_probability_tokens, "token");
    format!("{replies}, {tokens} below {:.2}", settings.threshold)
}

fn sweep(sweep: &Sweep, settings: &Settings, view: View, out: &mut impl Write) -> io::Result<()> {
    let replies = replies_in_words(sweep, settings);
    let label = escape_line(&sweep.label);
    writeln!(out, "\n{BOLD}{label}{BOLD:#}: {replies}")?;
    sweep
        .runs
        .iter()
        .try_for_each(|run| reply(&run.run.to_string(), run, settings.threshold, view, out))
}

/// One reply, its lines under each other, with the marked tokens in colour and a word on why it was cut off.
fn reply(
    label: &str,
    run: &Run,
    threshold: f64,
    view: View,
    out: &mut impl Write,
) -> io::Result<()> {
    let room = view.width.filter(|&width| width >= NARROWEST);
    let room = room.map(|width| width - INDENT - usize::from(view.one_line));
    let escape = match view.one_line {
        true => escape_line,
        false => escape_text,
    };
    let mut lines = Lines::new(room);
    marked(&pieces(run, threshold), escape, &mut lines);
    if let Some(ending) = ending(run) {
        lines.text(" ");
        lines.unit(&ending, &format!("{DIM}{ending}{DIM:#}"));
    }
    let mut lines = lines.finish();
    if view.one_line && lines.len() > 1 {
        lines.truncate(1);
        lines[0].push('…');
    }
    for (index, line) in lines.iter().enumerate() {
        match (index, line.as_str()) {
            (0, _) => writeln!(out, "  {DIM}{label:>3}{DIM:#}  {line}")?,
            (_, "") => writeln!(out)?,
            _ => writeln!(out, "{:INDENT$}{line}", "")?,
        }
    }
    Ok(())
}

/// Adds a reply whose text `escape` makes safe, its marks in colour.
pub(super) fn marked(pieces: &[Piece], escape: fn(&str) -> String, lines: &mut Lines) {
    for piece in pieces {
        match piece {
            Piece::Text(text) => lines.text(&escape(text)),
            Piece::Low { token, prob } => {
                let mark = format!("【{token}|{prob:.2}】");
                lines.unit(&mark, &format!("{LOW}{mark}{LOW:#}"));
            }
        }
    }
}

/// A word on why a reply was cut off, where it was.
pub(super) fn ending(run: &Run) -> Option<String> {
    match run.finish_reason {
        FinishReason::Stop => None,
        FinishReason::Length => Some(format!(
            "(cut off after {})",
            plural(run.steps.len(), "token")
        )),
        FinishReason::Context => Some("(cut off at the model's longest sequence)".to_owned()),
    }
}

fn is_low(step: &Step, settings: &Settings) -> bool {
    f64::from(step.prob) < settings.threshold
}

/// Cuts a cell to `width` columns, the last of which then says so.
pub(super) fn cut(text: &str, width: usize) -> String {
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

/// A prompt on one line, cut where it would fill the screen.
pub(super) fn title(prompt: &str) -> String {
    let shown = escape_line(prompt);
    match shown.width() {
        0 => "(empty)".to_owned(),
        1..=PROMPT_WIDTH => shown,
        _ => format!(
            "{} ({} characters)",
            cut(&shown, PROMPT_WIDTH),
            prompt.chars().count()
        ),
    }
}

/// A count with its noun: `1 token`, `2 tokens`.
pub(super) fn plural(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

pub(super) fn left(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

pub(super) fn right(text: &str, width: usize) -> String {
    format!("{}{text}", " ".repeat(width.saturating_sub(text.width())))
}

/// A mass as it stands in a title: 0.9 is `90`, 0.995 is `99.5`.
pub(super) fn percent(mass: f64) -> String {
    format!("{}", (mass * 1e6).round() / 1e4)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::analysis;
    use crate::record::{FinishReason, PromptError, TemperedCandidate};

    pub(in crate::report) fn step(
        token: &str,
        prob: f32,
        mass_count: usize,
        runners_up: &[(&str, f32)],
    ) -> Step {
        let candidates = [(token, prob)];
        let candidates = candidates.iter().chain(runners_up).zip(0..);
        let top_logprobs: Vec<Candidate> = candidates
            .map(|(&(token, prob), token_id)| Candidate {
                token_id,
                token: token.into(),
                bytes: token.bytes().collect(),
                special: false,
                logprob: prob.ln(),
                prob,
            })
            .collect();
        Step {
            token_id: 0,
            token: token.into(),
            bytes: token.bytes().collect(),
            logit: Some(0.0),
            logprob: prob.ln(),
            prob,
            rank: 1,
            entropy_bits: Some(0.0),
            mass_count: Some(mass_count),
            bounds: None,
            margin: None,
            special: token.starts_with("<|"),
            sampling: None,
            top_logprobs,
        }
    }

    /// A step without runners-up, whose id is its token's own.
    pub(in crate::report) fn taken(token: &str, prob: f32) -> Step {
        Step {
            token_id: token.bytes().map(u32::from).sum(),
            ..step(token, prob, 1, &[])
        }
    }

    pub(in crate::report) fn run(finish_reason: FinishReason, steps: Vec<Step>) -> Run {
        Run {
            run: 0,
            text: String::new(),
            marked: String::new(),
            finish_reason,
            incomplete_bytes: Vec::new(),
            steps,
        }
    }

    pub(in crate::report) fn record(greedy: Run, sweeps: Vec<Sweep>) -> Record {
        let done = PromptRecord {
            id: None,
            prompt: "Where?\nHere.".into(),
            system: None,
            rendered: String::new(),
            prompt_token_ids: vec![1],
            greedy,
            analysis: analysis::of(&sweeps),
            sweeps,
        };
        let failed = PromptError {
            id: Some("second".into()),
            prompt: "x".repeat(300),
            system: None,
            error: "it is too long".into(),
        };
        Record {
            schema: 1,
            program: "logprobs 0.0.0".into(),
            model: model_info(),
            settings: settings(),
            prompts: vec![PromptEntry::Done(done), PromptEntry::Failed(failed)],
        }
    }

    pub(in crate::report) fn settings() -> Settings {
        Settings {
            max_new_tokens: 64,
            samples: 2,
            seed: 0,
            candidates: 5,
            mass: 0.9,
            threshold: 0.3,
            thinking: None,
            raw: false,
            system: None,
            filter_order: Vec::new(),
            template_source: None,
            stop_ids: Vec::new(),
            ignore_eos: false,
            run: None,
            plain_text: false,
            template_date: None,
        }
    }

    /// The runs at temperature 1, without filters.
    pub(in crate::report) fn sweep(runs: Vec<Run>) -> Sweep {
        Sweep {
            label: "temperature 1.0".into(),
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            distinct_replies: analysis::distinct_replies(&runs),
            low_probability_tokens: 0,
            runs,
        }
    }

    pub(in crate::report) fn model_info() -> ModelInfo {
        ModelInfo {
            id: "org/model".into(),
            revision: Some("abc".into()),
            architecture: "llama".into(),
            vocab_size: 320,
            weights_dtype: "bf16".into(),
            compute_dtype: "f32".into(),
            device: "cpu".into(),
            tiles: false,
            note: None,
            server: None,
        }
    }

    fn steps_of_a_reply() -> Vec<Step> {
        vec![
            step("The", 0.55, 22, &[("Paris", 0.12), ("法国", 0.04)]),
            step("法国", 0.02, 1234, &[(" capital", 0.02), ("\n", 0.01)]),
            step("🏕️", 0.9951, 1, &[("👨‍👩‍👧", 0.0049)]),
            step(" of", 1.0, 1, &[]),
            step("<|im_end|>", 0.92, 1, &[(" I", 0.02)]),
        ]
    }

    /// What `print` writes after its first blank line, escape sequences included.
    fn printed(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        print(&mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("UTF-8");
        text.trim_start_matches('\n').to_owned()
    }

    fn plain(print: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        anstream::adapter::strip_str(&printed(print)).to_string()
    }

    #[test]
    fn the_header_says_what_the_columns_are() {
        let record = record(run(FinishReason::Stop, Vec::new()), Vec::new());
        insta::assert_snapshot!(plain(|out| header(&record, out)), @r"
        logprobs 0.0.0: org/model at abc (llama, vocabulary of 320, bf16 weights, f32 on cpu)
        seed 0, 2 samples of each setting, at most 64 new tokens
          prob    the model's own probability: temperature 1, whole vocabulary, before any filter
          n90     how many of the best candidates together reach 90 %
          【…】   a token with prob below 0.30
        ");
    }

    #[test]
    fn one_row_a_step_and_columns_by_width() {
        let record = record(run(FinishReason::Stop, steps_of_a_reply()), Vec::new());
        insta::assert_snapshot!(plain(|out| prompt(&record, 0, View::default(), out)), @r"
        Prompt 1: Where?\nHere.

          step  token       prob   n90  runners-up
             1  The         0.55    22  Paris 0.12   法国 0.04
             2  法国        0.02  1234  ␠capital 0.02   \n 0.01
             3  🏕\u{FE0F}   1.00     1  👨\u{200D}👩\u{200D}👧 0.00
             4  ␠of         1.00     1
             5  <|im_end|>  0.92     1  ␠I 0.02

        greedy
               The【法国|0.02】🏕️ of
        ");
    }

    #[test]
    fn what_does_not_fit_the_terminal_is_left_out() {
        let record = record(run(FinishReason::Stop, steps_of_a_reply()), Vec::new());
        insta::assert_snapshot!(plain(|out| prompt(&record, 0, View { width: Some(50), ..View::default() }, out)), @r"
        Prompt 1: Where?\nHere.

          step  token       prob   n90  runners-up
             1  The         0.55    22  Paris 0.12
             2  法国        0.02  1234  ␠capital 0.02
             3  🏕\u{FE0F}   1.00     1
             4  ␠of         1.00     1
             5  <|im_end|>  0.92     1  ␠I 0.02

        greedy
               The【法国|0.02】🏕️ of
        ");
    }

    #[test]
    fn only_improbable_tokens_have_a_colour() {
        let steps = vec![step("a", 0.9, 1, &[]), step("b", 0.1, 9, &[])];
        let record = record(run(FinishReason::Length, steps), Vec::new());
        let coloured =
            printed(|out| prompt(&record, 0, View::default(), out)).replace('\u{1b}', "^");
        insta::assert_snapshot!(coloured, @r"
        ^[1mPrompt 1: Where?\nHere.^[0m

        ^[2m  step  token  prob  n90  runners-up^[0m
             1  a      0.90    1
             2  ^[1m^[31mb      0.10^[0m    9

        ^[1mgreedy^[0m
          ^[2m   ^[0m  a^[1m^[31m【b|0.10】^[0m ^[2m(cut off after 2 tokens)^[0m
        ");
    }

    #[test]
    fn sweeps_say_how_their_replies_differ() {
        let lines = [step("a\n\nb", 0.9, 1, &[]), step(" 【x】", 0.2, 1, &[])];
        let replies = [
            run(FinishReason::Length, lines.to_vec()),
            run(FinishReason::Context, lines.to_vec()),
        ];
        let sweep = |label: &str, distinct_replies, runs: &[Run]| Sweep {
            label: label.into(),
            distinct_replies,
            low_probability_tokens: runs.len(),
            ..sweep(runs.to_vec())
        };
        let sweeps = vec![
            sweep("temperature 0.3", 1, &replies),
            sweep("temperature 0.7", 2, &replies),
            sweep("temperature 1.0", 1, &replies[..1]),
        ];
        let greedy = vec![step("a", 0.9, 1, &[])];
        let record = record(run(FinishReason::Length, greedy), sweeps);
        insta::assert_snapshot!(plain(|out| prompt(&record, 0, View::default(), out)), @r"
        Prompt 1: Where?\nHere.

          step  token  prob  n90  runners-up
             1  a      0.90    1

        greedy
               a (cut off after 1 token)

        temperature 0.3: all 2 replies are the same, 2 tokens below 0.30
            0  a

               b 【【x】|0.20】 (cut off after 2 tokens)
            0  a

               b 【【x】|0.20】 (cut off at the model's longest sequence)

        temperature 0.7: 2 distinct replies of 2, 2 tokens below 0.30
            0  a

               b 【【x】|0.20】 (cut off after 2 tokens)
            0  a

               b 【【x】|0.20】 (cut off at the model's longest sequence)

        temperature 1.0: 1 reply, 1 token below 0.30
            0  a

               b 【【x】|0.20】 (cut off after 2 tokens)

        where runs part
          temperature 0.3: nowhere, all 2 runs are the same
          temperature 0.7: nowhere, all 2 runs are the same

        settings beside each other
          setting          distinct  mean prob  lowest  below 0.30  mean kept  mass  outside n90
          temperature 0.3    1 of 2       0.55    0.20           2        0.0  0.00        0.0 %
          temperature 0.7    2 of 2       0.55    0.20           2        0.0  0.00        0.0 %
          temperature 1.0    1 of 1       0.55    0.20           1        0.0  0.00        0.0 %
        ");
    }

    #[test]
    fn one_line_a_run_keeps_the_beginning_and_escapes_breaks() {
        let steps = vec![
            step("ab\n\nc", 0.9, 1, &[]),
            step(" 到处都是花园和喷泉", 0.2, 1, &[]),
        ];
        let record = record(run(FinishReason::Stop, steps), Vec::new());
        let shown = |width| {
            let view = View {
                width,
                one_line: true,
                ..View::default()
            };
            let shown = plain(|out| prompt(&record, 0, view, out));
            shown.lines().last().map(str::to_owned)
        };
        assert_eq!(
            shown(None).as_deref(),
            Some("       ab\\n\\nc 【到处都是花园和喷泉|0.20】")
        );
        assert_eq!(shown(Some(30)).as_deref(), Some("       ab\\n\\nc…"));
    }

    #[test]
    fn a_prompt_that_could_not_be_run_is_cut_and_says_why() {
        let record = record(run(FinishReason::Stop, Vec::new()), Vec::new());
        insta::assert_snapshot!(plain(|out| prompt(&record, 1, View::default(), out)), @r"
        Prompt 2 [second]: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx… (300 characters)

        could not be run: it is too long
        ");
    }

    pub(in crate::report) fn step1() -> TemperatureStep1 {
        let candidate = |token: &str, logit, probs: [f32; 2]| TemperedCandidate {
            token_id: 0,
            token: token.into(),
            bytes: token.bytes().collect(),
            special: false,
            logit,
            probs: probs.to_vec(),
        };
        TemperatureStep1 {
            schema: 1,
            program: "logprobs 0.0.0".into(),
            model: model_info(),
            prompt: "Where?".into(),
            rendered: String::new(),
            prompt_token_ids: vec![1],
            temperatures: vec![0.5, 1e38],
            candidates: vec![
                candidate("法国", Some(12.0), [1.0, 0.00312]),
                candidate(" Paris", Some(-1.256), [0.0, 0.00312]),
            ],
            rest: vec![0.0, 0.99376],
        }
    }

    #[test]
    fn step1_has_a_column_for_each_temperature() {
        insta::assert_snapshot!(plain(|out| temperature_step1(&step1(), out)), @r"
        logprobs 0.0.0: org/model at abc (llama, vocabulary of 320, bf16 weights, f32 on cpu)

        Prompt: Where?

          token   logit  T = 0.5  T = 1e38
          法国    12.00  100.0 %     0.3 %
          ␠Paris  -1.26    0.0 %     0.3 %
          rest             0.0 %    99.4 %
        ");
    }
}
