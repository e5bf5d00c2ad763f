//! Two records beside each other, for a terminal: what is not the same, how far numbers moved, where replies part, and the verdict.
//!
//! What a model or a prompt wrote, and names of files and fields, are escaped before they are printed.

use std::io::{self, Write};

use serde_json::Value;

use crate::analysis::compare::gates::is_gate;
use crate::record::Candidate;
use crate::record::compare::{
    Comparison, Finding, FirstDifference, GreedyComparison, Outcome, PromptComparison, Replies,
    Spread, SweepComparison, Weight, What, Which,
};
use crate::report::columns::{self, Line, Side};
use crate::report::table::{BOLD, DIM, LOW, TOKEN_WIDTH, cut, model, percent, plural, title};
use crate::report::wrap::write_sentence;
use crate::text::display::{cell, escape_line};

/// Widest value of a setting, or reply, that is shown whole.
const VALUE_WIDTH: usize = 60;

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
    let tolerance = &comparison.tolerance;
    let strict = match comparison.strict {
        true => "; strict: every token must be the same",
        false => "",
    };
    writeln!(
        out,
        "tolerance {}: {}{strict}",
        tolerance.value,
        escape_line(&tolerance.reason)
    )
}

fn value(value: &Value) -> String {
    let shown = match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    cut(&escape_line(&shown), VALUE_WIDTH)
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
    let number = |outcome: &Option<Outcome>| outcome.as_ref().map(|outcome| outcome.number);
    if let (Some(a), Some(b)) = (number(&prompt.a), number(&prompt.b))
        && a != b
    {
        writeln!(out, "  prompt {a} in A, prompt {b} in B")?;
    }
    for (letter, outcome) in [("A", &prompt.a), ("B", &prompt.b)] {
        match outcome {
            None => writeln!(out, "  {LOW}not in {letter}{LOW:#}")?,
            Some(Outcome {
                error: Some(error), ..
            }) => write_sentence(
                &format!("could not be run in {letter}: {}", escape_line(error)),
                width,
                out,
            )?,
            Some(_) => {}
        }
    }
    if !prompt.differs_in.is_empty() {
        let fields = prompt.differs_in.iter().map(|field| escape_line(field));
        let fields = fields.collect::<Vec<_>>().join(", ");
        write_sentence(&format!("not the same: {fields}"), width, out)?;
    }
    if let Some(greedy) = &prompt.greedy {
        self::greedy(greedy, comparison.mass, width, out)?;
    }
    replies(prompt, out)?;
    sweeps(&prompt.sweeps, out)
}

fn greedy(
    greedy: &GreedyComparison,
    mass: Option<f64>,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let same = greedy.steps.len();
    let ending = match (&greedy.first_difference, greedy.steps_a == greedy.steps_b) {
        (Some(parted), _) => format!(", then other ones at step {}", parted.step),
        (None, true) => String::new(),
        (None, false) => format!(
            ", then {} ends and {} goes on to step {}",
            if greedy.steps_a < greedy.steps_b {
                "A"
            } else {
                "B"
            },
            if greedy.steps_a < greedy.steps_b {
                "B"
            } else {
                "A"
            },
            greedy.steps_a.max(greedy.steps_b)
        ),
    };
    let sentence = format!("greedy: {} the same{ending}", plural(same, "token"));
    write_sentence(&sentence, width, out)?;
    numbers(greedy, mass, width, out)?;
    match &greedy.first_difference {
        Some(parted) => first_difference(parted, greedy, width, out),
        None => Ok(()),
    }
}

/// How far the numbers are from each other; one sentence where they are not.
fn numbers(
    greedy: &GreedyComparison,
    mass: Option<f64>,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let Some(candidates) = &greedy.candidates else {
        return Ok(());
    };
    if candidates.largest == Some(0.0) {
        let sentence = "every log-probability that both list is the same";
        return write_sentence(sentence, width, out);
    }
    let of_chosen = greedy.chosen.as_ref();
    let of_chosen = of_chosen.map(|chosen| format!("; of the tokens taken, by {}", spread(chosen)));
    let of_chosen = of_chosen.unwrap_or_default();
    let sentence = format!(
        "log-probabilities differ by {}{of_chosen}",
        spread(candidates)
    );
    write_sentence(&sentence, width, out)?;
    if let (Some(changed), Some(mass)) = (greedy.changed_mass_counts, mass)
        && changed > 0
    {
        write_sentence(&counts(greedy, changed, mass), width, out)?;
    }
    let Some(divergence) = &greedy.divergence else {
        return Ok(());
    };
    let upper = divergence.kl_upper;
    let upper = upper.map(|upper| format!(" and at most {}", small(upper)));
    let sentence = format!(
        "a step in the mean: KL divergence at least {}{} nats; {} to {} of the probability moved",
        small(divergence.kl_lower),
        upper.unwrap_or_default(),
        share(divergence.moved_lower),
        share(divergence.moved_upper)
    );
    write_sentence(&sentence, width, out)
}

fn spread(spread: &Spread) -> String {
    match spread.largest {
        Some(largest) if largest > 0.0 => format!(
            "{} at most (step {}), {} in the mean",
            small(largest),
            spread.largest_step,
            spread.mean.map_or("infinity".to_owned(), small)
        ),
        Some(_) => "nothing".to_owned(),
        None => format!("infinity (step {})", spread.largest_step),
    }
}

/// Which counts changed, as many as a line takes.
fn counts(greedy: &GreedyComparison, changed: usize, mass: f64) -> String {
    const MOST_NAMED: usize = 5;
    let steps = (1..).zip(&greedy.steps);
    let counts = steps.filter_map(|(number, step)| {
        let (a, b) = step.mass_count_a.zip(step.mass_count_b)?;
        (a != b).then(|| format!("{a} became {b} at step {number}"))
    });
    let named = counts.take(MOST_NAMED);
    let named = named.collect::<Vec<_>>().join(", ");
    let others = match changed.saturating_sub(MOST_NAMED) {
        0 => String::new(),
        others => format!(", and {others} more"),
    };
    format!("n{} changed: {named}{others}", percent(mass))
}

fn first_difference(
    parted: &FirstDifference,
    greedy: &GreedyComparison,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let FirstDifference {
        step,
        a,
        b,
        b_in_a,
        a_in_b,
        ..
    } = parted;
    let sentence = format!(
        "step {step}: {} {:.2} over {} {} became {} under {:.2}",
        token(a),
        a.prob,
        token(b),
        weight(b_in_a),
        weight(a_in_b),
        b.prob
    );
    write_sentence(&sentence, width, out)?;
    let margin = |margin: Option<f32>, other: &Weight| {
        let least = if other.is_bound { "at least " } else { "" };
        let margin = margin.map_or("infinity".to_owned(), small);
        format!("{least}{margin}")
    };
    let others = match greedy.candidates.and_then(|candidates| candidates.largest) {
        Some(largest) => format!("other log-probabilities moved by up to {}", small(largest)),
        None => "there is nothing else to measure by".to_owned(),
    };
    let verdict = match parted.near_tie {
        true => "a near tie",
        false if b_in_a.is_bound || a_in_b.is_bound => "not known to be a near tie",
        false => "no near tie",
    };
    let sentence = format!(
        "{verdict}: the two are {} apart in A and {} in B; {others}",
        margin(parted.margin_a, b_in_a),
        margin(parted.margin_b, a_in_b)
    );
    write_sentence(&sentence, width, out)
}

fn token(candidate: &Candidate) -> String {
    format!(
        "`{}`",
        cut(&cell(&candidate.token, &candidate.bytes), TOKEN_WIDTH)
    )
}

fn weight(weight: &Weight) -> String {
    match weight.is_bound {
        true => format!("at most {:.2} (not listed)", weight.prob),
        false => format!("{:.2}", weight.prob),
    }
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
    if sweeps.is_empty() {
        return Ok(());
    }
    let titles = [
        "setting",
        "distinct in A",
        "in B",
        "same runs",
        "first difference",
    ];
    let mut lines = vec![Line::title(titles.map(str::to_owned).to_vec())];
    lines.extend(sweeps.iter().map(|sweep| {
        let distinct = |replies: Option<Replies>| match replies {
            Some(replies) => format!("{} of {}", replies.distinct_replies, replies.runs),
            None => "none".to_owned(),
        };
        let same = match sweep.compared_runs {
            0 => String::new(),
            compared => format!("{} of {compared}", sweep.same_runs),
        };
        let first = sweep.first_difference.as_ref().map(|first| {
            let (a, b) = (took(&first.a), took(&first.b));
            format!("run {}, step {}: {a}, in B {b}", first.run, first.step)
        });
        Line::plain(vec![
            escape_line(&sweep.label),
            distinct(sweep.a),
            distinct(sweep.b),
            same,
            first.unwrap_or_default(),
        ])
    }));
    let sides = [
        Side::Left,
        Side::Right,
        Side::Right,
        Side::Right,
        Side::Left,
    ];
    columns::write(&sides, &lines, out)
}

fn took(candidate: &Option<Candidate>) -> String {
    match candidate {
        Some(candidate) => format!("{} {:.2}", token(candidate), candidate.prob),
        None => "its end".to_owned(),
    }
}

fn verdict(comparison: &Comparison, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let totals = &comparison.totals;
    let near_ties = match totals.near_ties {
        0 => String::new(),
        count => format!(", {}", plural(count, "near tie")),
    };
    let largest = match totals.largest_difference {
        Some(largest) => format!(", largest difference {}", small(largest)),
        None => String::new(),
    };
    let facts = match totals.compared {
        0 => "nothing could be compared".to_owned(),
        compared => format!(
            "{} of {compared} greedy replies the same{near_ties}{largest}",
            totals.same_replies
        ),
    };
    let words = match comparison.findings.as_slice() {
        [] => return writeln!(out, "\n{BOLD}within tolerance{BOLD:#}: {facts}"),
        findings if findings.iter().all(is_gate) => "within tolerance, but stopped by a gate",
        _ => "beyond tolerance",
    };
    writeln!(out, "\n{LOW}{words}{LOW:#}: {facts}")?;
    let findings = comparison.findings.iter();
    findings
        .map(|finding| self::finding(finding, comparison))
        .try_for_each(|sentence| write_sentence(&sentence, width, out))
}

/// One finding in words.
fn finding(finding: &Finding, comparison: &Comparison) -> String {
    let other = |from: &Which| match from {
        Which::A => ("A", "B"),
        Which::B => ("B", "A"),
    };
    let tolerance = comparison.tolerance.value;
    let words = match &finding.what {
        What::Missing { from } => format!("not in {}", other(from).0),
        What::Failed { from } => {
            let (here, there) = other(from);
            format!("could not be run in {here}, and was in {there}")
        }
        What::OtherInput => "the model was given other tokens".to_owned(),
        What::Difference { step, largest } => format!(
            "step {step}: log-probabilities differ by {}, more than {tolerance}",
            largest.map_or("infinity".to_owned(), small)
        ),
        What::OtherToken {
            step,
            near_tie: true,
        } => format!("step {step}: another token, at a near tie"),
        What::OtherToken {
            step,
            near_tie: false,
        } => format!("step {step}: another token, and no near tie"),
        What::OtherLength => {
            "one greedy reply ends before the other, with the same limit".to_owned()
        }
        What::OtherSamples { label, runs } => {
            format!(
                "{}: not the same in {}",
                escape_line(label),
                plural(*runs, "run")
            )
        }
        What::BelowGate { step, took, limit } => format!(
            "step {step}: {} has probability {}, below {limit}",
            token(took),
            small(took.prob)
        ),
        What::TooManyLow { count, limit } => format!(
            "{} below the threshold, more than {limit}",
            plural(*count, "greedy token")
        ),
    };
    format!("prompt {}: {words}", finding.prompt)
}

/// A small number with two digits that say something.
fn small(number: f32) -> String {
    match number {
        0.0 => "0".to_owned(),
        n if (0.001..1000.0).contains(&n) => {
            let digits = (1 - n.log10().floor() as i32).clamp(0, 4) as usize;
            format!("{n:.digits$}")
        }
        n => format!("{n:.1e}"),
    }
}

fn share(share: f32) -> String {
    match 100.0 * share {
        0.0 => "0 %".to_owned(),
        percent if percent < 0.01 => "under 0.01 %".to_owned(),
        percent => format!("{percent:.2} %"),
    }
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

    #[test]
    fn small_numbers_keep_two_digits() {
        let shown = [0.0, 0.25, 0.0123, 0.001, 4.56e-5, 1.5, 12.3, 1e9].map(small);
        assert_eq!(
            shown,
            [
                "0", "0.25", "0.012", "0.0010", "4.6e-5", "1.5", "12", "1.0e9"
            ]
        );
        assert_eq!(
            [0.0, 1e-6, 0.0123, 1.0].map(share),
            ["0 %", "under 0.01 %", "1.23 %", "100.00 %"]
        );
    }
}
