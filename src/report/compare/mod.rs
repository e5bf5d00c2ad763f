//! Two records beside each other, for a terminal: what is not the same, how far numbers moved, where replies part, and the verdict.

pub(super) mod words;

use std::io::{self, Write};

use self::words::{Verdict, rows, sentences, tolerance, value};
use crate::record::compare::{Comparison, Outcome, PromptComparison, SweepComparison};
use crate::report::columns::{self, Line, Side};
use crate::report::table::{BOLD, DIM, LOW, model, title};
use crate::report::wrap::write_sentence;
use crate::text::display::escape_line;

/// Writes the sides, their differences, a part for each prompt, and the verdict.
///
/// # Errors
/// When `out` fails.
pub fn table(
    comparison: &Comparison,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    header(comparison, width, out)?;
    for (index, prompt) in comparison.prompts.iter().enumerate() {
        self::prompt(index, prompt, comparison, width, out)?;
    }
    verdict(comparison, width, out)
}

fn header(comparison: &Comparison, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let (a, b) = (&comparison.a, &comparison.b);
    let is_same = (&a.program, &a.model) == (&b.program, &b.model);
    for (letter, side) in [("A", a), ("B", b)] {
        writeln!(out, "{BOLD}{letter}{BOLD:#}  {}", escape_line(&side.name))?;
        if !is_same {
            model(&side.program, &side.model, out)?;
        }
    }
    if is_same {
        model(&a.program, &a.model, out)?;
    }
    for difference in &comparison.differences {
        let (a, b) = (value(&difference.a), value(&difference.b));
        let sentence = format!("{}: {a} in A, {b} in B", escape_line(&difference.field));
        write_sentence(&sentence, width, out)?;
    }
    writeln!(out, "{}", tolerance(comparison))
}

fn prompt(
    index: usize,
    prompt: &PromptComparison,
    comparison: &Comparison,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let id = prompt.id.as_ref();
    let id = id.map(|id| format!(" [{}]", escape_line(id)));
    writeln!(
        out,
        "\n{BOLD}Prompt {}{}: {}{BOLD:#}",
        index + 1,
        id.unwrap_or_default(),
        title(&prompt.prompt)
    )?;
    sentences(prompt, comparison.mass)
        .iter()
        .try_for_each(|sentence| write_sentence(sentence, width, out))?;
    replies(prompt, out)?;
    sweeps(&prompt.sweeps, out)
}

/// The two replies under each other, where they are not the same.
fn replies(prompt: &PromptComparison, out: &mut impl Write) -> io::Result<()> {
    let text = |outcome: &Option<Outcome>| outcome.as_ref().and_then(|known| known.text.clone());
    let (Some(a), Some(b)) = (text(&prompt.a), text(&prompt.b)) else {
        return Ok(());
    };
    if a == b {
        return Ok(());
    }
    for (letter, text) in [("A", a), ("B", b)] {
        writeln!(out, "  {DIM}{letter}{DIM:#}  {}", title(&text))?;
    }
    Ok(())
}

fn sweeps(sweeps: &[SweepComparison], out: &mut impl Write) -> io::Result<()> {
    let mut rows = rows(sweeps).into_iter();
    let Some(titles) = rows.next() else {
        return Ok(());
    };
    let lines = std::iter::once(Line::title(titles)).chain(rows.map(Line::plain));
    let lines: Vec<Line> = lines.collect();
    let sides = [
        Side::Left,
        Side::Right,
        Side::Right,
        Side::Right,
        Side::Left,
    ];
    columns::write(&sides, &lines, out)
}

fn verdict(comparison: &Comparison, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let verdict = Verdict::of(comparison);
    let style = if verdict.is_within { BOLD } else { LOW };
    writeln!(
        out,
        "\n{style}{}{style:#}: {}",
        verdict.words, verdict.facts
    )?;
    verdict
        .findings
        .iter()
        .try_for_each(|sentence| write_sentence(sentence, width, out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare::tests::{done, failed, record, sweep};
    use crate::analysis::compare::{Named, compare};
    use crate::record::{PromptEntry, PromptRecord, Record};

    fn shown(a: &Record, b: &Record, tolerance: Option<f64>, strict: bool) -> String {
        let named = |name, record| Named { name, record };
        let comparison = compare(
            named("a.json", a),
            named("b\u{1b}.json", b),
            tolerance,
            strict,
        );
        let mut out = Vec::new();
        table(&comparison, None, &mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("UTF-8");
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_flip_is_a_sentence_with_both_probabilities_on_both_sides() {
        let a = [
            &[(7, 0.5), (8, 0.25)][..],
            &[(1, 0.24), (2, 0.21), (3, 0.1)],
        ];
        let b = [
            &[(7, 0.55), (8, 0.25)][..],
            &[(2, 0.24), (1, 0.22), (3, 0.1)],
        ];
        let of = |steps: &[&[(u32, f64)]], replies: &[&[u32]]| {
            let mut prompt = PromptRecord {
                sweeps: vec![sweep(1.0, replies)],
                ..done("Name a colour.", steps)
            };
            prompt.greedy.text = prompt.greedy.steps[1].token.clone();
            record(vec![PromptEntry::Done(prompt)])
        };
        let mut b = of(&b, &[&[4, 5], &[6], &[6]]);
        b.model.compute_dtype = "bf16".into();
        b.settings.seed = 1;
        let a = of(&a, &[&[4, 5], &[4, 6], &[6]]);
        insta::assert_snapshot!(shown(&a, &b, None, false), @r"
        A  a.json
        logprobs 0.1.0: m (llama, vocabulary of 100, f32 weights, f32 on cpu)
        B  b\u{1B}.json
        logprobs 0.1.0: m (llama, vocabulary of 100, f32 weights, bf16 on cpu)
          model.compute_dtype: f32 in A, bf16 in B
          settings.seed: 0 in A, 1 in B
        tolerance 0.25: B computes in bf16

        Prompt 1: Name a colour.
          greedy: 1 token the same, then other ones at step 2
          log-probabilities differ by 0.095 at most (step 1), 0.032 in the mean; of the tokens taken, by 0.095 at most (step 1), 0.095 in the mean
          a step in the mean: KL divergence at least 0.0081 nats; 5.00 % to 25.00 % of the probability moved
          step 2: `1` 0.24 over `2` 0.21 became 0.22 under 0.24
          a near tie: the two are 0.13 apart in A and 0.087 in B; other log-probabilities moved by up to 0.095
          A  1
          B  2
          setting          distinct in A    in B  same runs  first difference
          temperature 1.0         3 of 3  2 of 3     2 of 3  run 1, step 1: `4` 0.50, in B `6` 0.50

        within tolerance: 0 of 1 greedy replies the same, 1 near tie, largest difference 0.095
        ");
        insta::assert_snapshot!(shown(&a, &b, Some(0.01), true), @r"
        A  a.json
        logprobs 0.1.0: m (llama, vocabulary of 100, f32 weights, f32 on cpu)
        B  b\u{1B}.json
        logprobs 0.1.0: m (llama, vocabulary of 100, f32 weights, bf16 on cpu)
          model.compute_dtype: f32 in A, bf16 in B
          settings.seed: 0 in A, 1 in B
        tolerance 0.01: as asked for; strict: every token must be the same

        Prompt 1: Name a colour.
          greedy: 1 token the same, then other ones at step 2
          log-probabilities differ by 0.095 at most (step 1), 0.032 in the mean; of the tokens taken, by 0.095 at most (step 1), 0.095 in the mean
          a step in the mean: KL divergence at least 0.0081 nats; 5.00 % to 25.00 % of the probability moved
          step 2: `1` 0.24 over `2` 0.21 became 0.22 under 0.24
          no near tie: the two are 0.13 apart in A and 0.087 in B; other log-probabilities moved by up to 0.095
          A  1
          B  2
          setting          distinct in A    in B  same runs  first difference
          temperature 1.0         3 of 3  2 of 3     2 of 3  run 1, step 1: `4` 0.50, in B `6` 0.50

        beyond tolerance: 0 of 1 greedy replies the same, largest difference 0.095
          prompt 1: step 1: log-probabilities differ by 0.095, more than 0.01
          prompt 1: step 2: another token, and no near tie
          prompt 1: temperature 1.0: not the same in 1 run
        ");
    }

    #[test]
    fn prompts_that_cannot_be_compared_are_listed() {
        let entry = |prompt: &str| PromptEntry::Done(done(prompt, &[&[(1, 0.5)]]));
        let mut named = done("other", &[&[(1, 0.5)]]);
        named.id = Some("x\u{1b}".into());
        let mut changed = named.clone();
        changed.prompt_token_ids.push(9);
        changed.rendered.push('\u{202e}');
        let a = record(vec![
            entry("a"),
            failed("f"),
            failed("g"),
            PromptEntry::Done(named),
        ]);
        let b = record(vec![
            entry("f"),
            failed("g"),
            PromptEntry::Done(changed),
            entry("b"),
        ]);
        insta::assert_snapshot!(shown(&a, &b, None, false), @r"
        A  a.json
        B  b\u{1B}.json
        logprobs 0.1.0: m (llama, vocabulary of 100, f32 weights, f32 on cpu)
        tolerance 0.001: both compute in f32

        Prompt 1: a
          not in B

        Prompt 2: f
          prompt 2 in A, prompt 1 in B
          could not be run in A: no room

        Prompt 3: g
          prompt 3 in A, prompt 2 in B
          could not be run in A: no room
          could not be run in B: no room

        Prompt 4 [x\u{1B}]: other
          prompt 4 in A, prompt 3 in B
          not the same: rendered, prompt_token_ids

        Prompt 5: b
          not in A

        beyond tolerance: nothing could be compared
          prompt 1: not in B
          prompt 2: could not be run in A, and was in B
          prompt 4: the model was given other tokens
          prompt 5: not in A
        ");
    }

    #[test]
    fn a_token_that_is_not_listed_is_said_to_be_at_most_so_probable() {
        let of = |steps: &[&[(u32, f64)]]| record(vec![PromptEntry::Done(done("p", steps))]);
        let a = of(&[&[(1, 0.24), (3, 0.2)]]);
        let b = of(&[&[(2, 0.24), (1, 0.22)]]);
        let text = shown(&a, &b, None, false);
        assert!(
            text.contains(
                "step 1: `1` 0.24 over `2` at most 0.20 (not listed) became 0.22 under 0.24"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "not known to be a near tie: the two are at least 0.18 apart in A and 0.087 in B"
            ),
            "{text}"
        );
    }
}
