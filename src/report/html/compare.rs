//! Two records beside each other as a section: what is not the same, the verdict, and for each prompt how far the steps moved.

use std::io::{self, Write};

use serde::Serialize;

use super::{model_gist, precise, share, thousands};
use crate::record::compare::{Comparison, Outcome, PromptComparison, StepComparison};
use crate::report::compare::words::{self, Verdict, rows, sentences};
use crate::report::table::{percent, title};
use crate::report::templates::Templates;
use crate::text::display::{cell, escape_line, escape_text};

/// A difference of log-probabilities that fills its bar: a probability that became a third, or three times as large.
const FULL_BAR: f32 = 1.0;

#[derive(Serialize)]
struct View {
    number: usize,
    sides: [Side; 2],
    differences: Vec<[String; 3]>,
    tolerance: String,
    is_within: bool,
    words: &'static str,
    facts: String,
    findings: Vec<String>,
    mass: Option<String>,
    prompts: Vec<Prompt>,
}

/// One of the two records.
#[derive(Serialize)]
struct Side {
    letter: &'static str,
    name: String,
    model: String,
    gist: String,
    program: String,
}

#[derive(Serialize)]
struct Prompt {
    id: String,
    number: usize,
    title: String,
    sentences: Vec<String>,
    /// A's reply and B's, where they are not the same.
    replies: Option<[String; 2]>,
    steps: Vec<Step>,
    samples: Vec<Vec<String>>,
}

/// A step at which both took the same token.
#[derive(Serialize)]
struct Step {
    number: usize,
    token: String,
    prob_a: String,
    prob_b: String,
    difference: String,
    bar: String,
    count_a: String,
    count_b: String,
}

pub(super) fn write(
    comparison: &Comparison,
    number: usize,
    page: &Templates,
    out: &mut impl Write,
) -> io::Result<()> {
    let sides = [("A", &comparison.a), ("B", &comparison.b)].map(|(letter, side)| Side {
        letter,
        name: escape_line(&side.name),
        model: escape_line(&side.model.id),
        gist: model_gist(&side.model),
        program: escape_line(&side.program),
    });
    let differences = comparison.differences.iter().map(|difference| {
        [
            escape_line(&difference.field),
            words::value(&difference.a),
            words::value(&difference.b),
        ]
    });
    let prompts = (1..).zip(&comparison.prompts);
    let verdict = Verdict::of(comparison);
    let view = View {
        number,
        sides,
        differences: differences.collect(),
        tolerance: words::tolerance(comparison),
        is_within: verdict.is_within,
        words: verdict.words,
        facts: verdict.facts,
        findings: verdict.findings,
        mass: comparison.mass.map(percent),
        prompts: prompts
            .map(|(at, prompt)| Prompt::new(prompt, format!("s{number}p{at}"), at, comparison.mass))
            .collect(),
    };
    page.write("compare.html", &view, out)
}

impl Prompt {
    fn new(prompt: &PromptComparison, id: String, number: usize, mass: Option<f64>) -> Self {
        let text = |outcome: &Option<Outcome>| {
            let text = outcome.as_ref().and_then(|known| known.text.as_deref());
            text.map(escape_text)
        };
        let replies = text(&prompt.a).zip(text(&prompt.b));
        let steps = prompt.greedy.iter().flat_map(|greedy| &greedy.steps);
        Self {
            id,
            number,
            title: title(&prompt.prompt),
            sentences: sentences(prompt, mass),
            replies: replies.filter(|(a, b)| a != b).map(|(a, b)| [a, b]),
            steps: (1..)
                .zip(steps)
                .map(|(number, step)| Step::new(number, step))
                .collect(),
            samples: rows(&prompt.sweeps),
        }
    }
}

impl Step {
    fn new(number: usize, step: &StepComparison) -> Self {
        let count = |count: Option<usize>| count.map(thousands).unwrap_or_default();
        Self {
            number,
            token: cell(&step.token, &step.bytes),
            prob_a: precise(step.prob_a),
            prob_b: precise(step.prob_b),
            difference: step.difference.map_or("infinity".to_owned(), words::small),
            bar: share(f64::from(step.difference.unwrap_or(FULL_BAR) / FULL_BAR)),
            count_a: count(step.mass_count_a),
            count_b: count(step.mass_count_b),
        }
    }
}
