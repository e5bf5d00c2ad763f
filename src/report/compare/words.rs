//! What there is to say of two records in words: sentences and rows that the terminal and the page share.
//!
//! What a model or a prompt wrote, and names of files and fields, are escaped in them.

use serde_json::Value;

use crate::analysis::compare::gates::is_gate;
use crate::analysis::compare::is_within;
use crate::record::Candidate;
use crate::record::compare::{
    Comparison, Finding, FirstDifference, GreedyComparison, Outcome, PromptComparison, Replies,
    Spread, SweepComparison, Weight, What, Which,
};
use crate::report::table::{TOKEN_WIDTH, cut, percent, plural};
use crate::text::display::{cell, escape_line};

/// Widest value of a setting that is shown whole.
const VALUE_WIDTH: usize = 60;

/// Returns a field's value for a line of its own.
pub(in crate::report) fn value(value: &Value) -> String {
    let shown = match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    cut(&escape_line(&shown), VALUE_WIDTH)
}

/// Returns what holds for log-probabilities: the tolerance, and where it comes from.
pub(in crate::report) fn tolerance(comparison: &Comparison) -> String {
    let tolerance = &comparison.tolerance;
    let strict = match comparison.strict {
        true => "; strict: every token must be the same",
        false => "",
    };
    format!(
        "tolerance {}: {}{strict}",
        tolerance.value,
        escape_line(&tolerance.reason)
    )
}

/// Returns what is to be said of one prompt: where it stands, what became of it, how far its greedy replies are from each other.
pub(in crate::report) fn sentences(prompt: &PromptComparison, mass: Option<f64>) -> Vec<String> {
    let mut said = Vec::new();
    let number = |outcome: &Option<Outcome>| outcome.as_ref().map(|outcome| outcome.number);
    if let (Some(a), Some(b)) = (number(&prompt.a), number(&prompt.b))
        && a != b
    {
        said.push(format!("prompt {a} in A, prompt {b} in B"));
    }
    for (letter, outcome) in [("A", &prompt.a), ("B", &prompt.b)] {
        match outcome {
            None => said.push(format!("not in {letter}")),
            Some(Outcome {
                error: Some(error), ..
            }) => {
                said.push(format!(
                    "could not be run in {letter}: {}",
                    escape_line(error)
                ));
            }
            Some(_) => {}
        }
    }
    if !prompt.differs_in.is_empty() {
        let fields = prompt.differs_in.iter().map(|field| escape_line(field));
        said.push(format!(
            "not the same: {}",
            fields.collect::<Vec<_>>().join(", ")
        ));
    }
    if let Some(greedy) = &prompt.greedy {
        said.push(extent(greedy));
        numbers(greedy, mass, &mut said);
        if let Some(parted) = &greedy.first_difference {
            first_difference(parted, greedy, &mut said);
        }
    }
    said
}

/// How far two greedy replies are the same.
fn extent(greedy: &GreedyComparison) -> String {
    let (a, b) = (greedy.steps_a, greedy.steps_b);
    let (short, long) = if a < b { ("A", "B") } else { ("B", "A") };
    let ending = match &greedy.first_difference {
        Some(parted) => format!(", then other ones at step {}", parted.step),
        None if a == b => String::new(),
        None => format!(
            ", then {short} ends and {long} goes on to step {}",
            a.max(b)
        ),
    };
    format!(
        "greedy: {} the same{ending}",
        plural(greedy.steps.len(), "token")
    )
}

/// How far the numbers are from each other; one sentence where they are not.
fn numbers(greedy: &GreedyComparison, mass: Option<f64>, said: &mut Vec<String>) {
    let Some(candidates) = &greedy.candidates else {
        return;
    };
    if candidates.largest == Some(0.0) {
        said.push("every log-probability that both list is the same".to_owned());
        return;
    }
    let of_chosen = greedy.chosen.as_ref();
    let of_chosen = of_chosen.map(|chosen| format!("; of the tokens taken, by {}", spread(chosen)));
    said.push(format!(
        "log-probabilities differ by {}{}",
        spread(candidates),
        of_chosen.unwrap_or_default()
    ));
    if let (Some(changed), Some(mass)) = (greedy.changed_mass_counts, mass)
        && changed > 0
    {
        said.push(counts(greedy, changed, mass));
    }
    if let Some(divergence) = &greedy.divergence {
        let upper = divergence.kl_upper;
        let upper = upper.map(|upper| format!(" and at most {}", small(upper)));
        said.push(format!(
            "a step in the mean: KL divergence at least {}{} nats; {} to {} of the probability moved",
            small(divergence.kl_lower),
            upper.unwrap_or_default(),
            share(divergence.moved_lower),
            share(divergence.moved_upper)
        ));
    }
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

fn first_difference(parted: &FirstDifference, greedy: &GreedyComparison, said: &mut Vec<String>) {
    let FirstDifference {
        step,
        a,
        b,
        b_in_a,
        a_in_b,
        ..
    } = parted;
    said.push(format!(
        "step {step}: {} {:.2} over {} {} became {} under {:.2}",
        token(a),
        a.prob,
        token(b),
        weight(b_in_a),
        weight(a_in_b),
        b.prob
    ));
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
    said.push(format!(
        "{verdict}: the two are {} apart in A and {} in B; {others}",
        margin(parted.margin_a, b_in_a),
        margin(parted.margin_b, a_in_b)
    ));
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

/// Returns the samples of a prompt: titles, then a row for each setting; nothing where there are none.
pub(in crate::report) fn rows(sweeps: &[SweepComparison]) -> Vec<Vec<String>> {
    if sweeps.is_empty() {
        return Vec::new();
    }
    let titles = [
        "setting",
        "distinct in A",
        "in B",
        "same runs",
        "first difference",
    ];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    rows.extend(sweeps.iter().map(|sweep| {
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
        vec![
            escape_line(&sweep.label),
            distinct(sweep.a),
            distinct(sweep.b),
            same,
            first.unwrap_or_default(),
        ]
    }));
    rows
}

fn took(candidate: &Option<Candidate>) -> String {
    match candidate {
        Some(candidate) => format!("{} {:.2}", token(candidate), candidate.prob),
        None => "its end".to_owned(),
    }
}

/// What it comes to.
pub(in crate::report) struct Verdict {
    /// Whether nothing was found.
    pub(in crate::report) is_within: bool,
    /// In two or three words.
    pub(in crate::report) words: &'static str,
    /// All prompts together.
    pub(in crate::report) facts: String,
    /// One sentence each.
    pub(in crate::report) findings: Vec<String>,
}

impl Verdict {
    pub(in crate::report) fn of(comparison: &Comparison) -> Self {
        let totals = &comparison.totals;
        let near_ties = match totals.near_ties {
            0 => String::new(),
            count => format!(", {}", plural(count, "near tie")),
        };
        let largest = match totals.largest_difference {
            Some(largest) => format!(", largest difference {}", small(largest)),
            None => String::new(),
        };
        let findings = &comparison.findings;
        Self {
            is_within: is_within(comparison),
            words: match findings.as_slice() {
                [] if totals.compared == 0 => "no result",
                [] => "within tolerance",
                findings if findings.iter().all(is_gate) => {
                    "within tolerance, but stopped by a gate"
                }
                _ => "beyond tolerance",
            },
            facts: match totals.compared {
                0 => "nothing could be compared".to_owned(),
                compared => format!(
                    "{} of {compared} greedy replies the same{near_ties}{largest}",
                    totals.same_replies
                ),
            },
            findings: findings
                .iter()
                .map(|finding| self::finding(finding, comparison))
                .collect(),
        }
    }
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
pub(in crate::report) fn small(number: f32) -> String {
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
