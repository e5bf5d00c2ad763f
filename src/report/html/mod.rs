//! Records as one page of HTML that needs nothing else: no network, no font, no script.
//!
//! Templates and styles lie beside this file; each section makes a *view* of its record, strings and positions that a template
//! only puts in place. Everything that a model, a prompt or a file wrote is made visible as on a terminal and then escaped by
//! the template engine. A Content-Security-Policy in the page forbids all but its own styles, which it names by their hash;
//! so there are no `style` attributes, and what is as long as a probability is drawn in SVG.

mod compare;
mod curve;
mod prompt;
mod run;
mod samples;
mod step1;
mod token;

use std::io::{self, Write};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::record::compare::Comparison;
use crate::record::{ModelInfo, Record, Step, TemperatureStep1};
use crate::report::templates::Templates;
use crate::text::display::escape_line;

/// A part of a page: what is shown of one record.
#[derive(Debug, Clone, Copy)]
pub enum Section<'a> {
    /// Of the main command.
    Run(&'a Record),
    /// Of `temperature-step1`.
    Step1(&'a TemperatureStep1),
    /// Of two records of the main command.
    Comparison(&'a Comparison),
}

/// Writes a page with a section for each record, in their order.
///
/// # Errors
/// When `out` fails.
pub fn write(sections: &[Section], out: &mut impl Write) -> io::Result<()> {
    let page = Templates::new(&TEMPLATES);
    let head = Head {
        title: title(sections),
        style: STYLE,
        style_hash: BASE64_STANDARD.encode(Sha256::digest(STYLE.as_bytes())),
    };
    page.write("head.html", &head, out)?;
    for (number, section) in (1..).zip(sections) {
        match section {
            Section::Run(record) => run::write(record, number, &page, out)?,
            Section::Step1(record) => step1::write(record, number, &page, out)?,
            Section::Comparison(both) => compare::write(both, number, &page, out)?,
        }
    }
    page.write("foot.html", &(), out)
}

const STYLE: &str = include_str!("page.css");

const TEMPLATES: [(&str, &str); 7] = [
    ("head.html", include_str!("head.html")),
    ("facts.html", include_str!("facts.html")),
    ("run.html", include_str!("run.html")),
    ("prompt.html", include_str!("prompt.html")),
    ("step1.html", include_str!("step1.html")),
    ("compare.html", include_str!("compare.html")),
    ("foot.html", include_str!("foot.html")),
];

#[derive(Serialize)]
struct Head {
    title: String,
    style: &'static str,
    style_hash: String,
}

/// The title of the window: the models, each once.
fn title(sections: &[Section]) -> String {
    let mut models: Vec<String> = Vec::new();
    for section in sections {
        let of_section = match section {
            Section::Run(record) => vec![&record.model],
            Section::Step1(record) => vec![&record.model],
            Section::Comparison(both) => vec![&both.a.model, &both.b.model],
        };
        for model in of_section {
            let id = escape_line(&model.id);
            if !models.contains(&id) {
                models.push(id);
            }
        }
    }
    models.join(", ")
}

/// A model in a few words.
fn model_gist(model: &ModelInfo) -> String {
    format!(
        "{} candidates at every step, {} weights, computed in {} on {}",
        thousands(model.vocab_size),
        escape_line(&model.weights_dtype),
        escape_line(&model.compute_dtype),
        escape_line(&model.device)
    )
}

/// What else there is to say of a model: names and values.
fn model_facts(model: &ModelInfo) -> Vec<(&'static str, String)> {
    let revision = model.revision.iter();
    let revision = revision.map(|revision| ("revision", escape_line(revision)));
    let architecture = ("architecture", escape_line(&model.architecture));
    revision.chain([architecture]).collect()
}

/// A share of the whole as a length in SVG, in percent.
fn share(part: f64) -> String {
    // JSON has no NaN; a foreign file may have anything else
    format!("{:.2}%", 100.0 * part.clamp(0.0, 1.0))
}

/// A probability with three decimals, or in powers of ten where those would show nothing.
fn precise(prob: f32) -> String {
    match prob {
        p if p > 0.0 && p < 0.0005 => format!("{p:.0e}"),
        p => format!("{p:.3}"),
    }
}

/// A step's mass count, or what it exceeds.
fn mass_count(step: &Step) -> String {
    match (step.mass_count, step.bounds) {
        (Some(count), _) => thousands(count),
        (None, Some(bounds)) => format!(">{}", thousands(bounds.shown)),
        (None, None) => String::new(),
    }
}

/// A step's mass count, or the most that it is known not to be below.
fn least_count(step: &Step) -> usize {
    let shown = step.bounds.map(|bounds| bounds.shown);
    step.mass_count.or(shown).unwrap_or(1)
}

/// `248,320`.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis;
    use crate::analysis::compare::{Named, compare};
    use crate::record::{FinishReason, PromptEntry, PromptError, Run, Step};
    use crate::report::table::tests::{record, run, step1, sweep, taken};
    use proptest::prelude::*;

    fn page(sections: &[Section]) -> String {
        let mut out = Vec::new();
        write(sections, &mut out).expect("a vector takes everything");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn numbers_are_short_and_never_hide_a_small_one() {
        assert_eq!(
            [0.5, 0.0005, 0.0004, 0.0].map(precise),
            ["0.500", "0.001", "4e-4", "0.000"]
        );
        assert_eq!(
            [7, 2972, 248_320, 1_000_000].map(thousands),
            ["7", "2,972", "248,320", "1,000,000"]
        );
        assert_eq!(
            [-1.0, 0.12345, 7.0].map(share),
            ["0.00%", "12.35%", "100.00%"]
        );
    }

    #[test]
    fn the_policy_names_the_styles_by_their_hash_and_allows_nothing_else() {
        let page = page(&[Section::Step1(&step1())]);
        let (_, after) = page.split_once("<style>").expect("styles");
        let (style, _) = after.split_once("</style>").expect("their end");
        let hash = BASE64_STANDARD.encode(Sha256::digest(style));
        let policy = format!(
            "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'"
        );
        assert!(page.contains(&policy), "{policy}");
        assert!(!page.contains(" style="), "a policy of hashes forbids them");
    }

    #[test]
    fn runs_without_steps_without_prompts_and_without_samples_have_a_page() {
        let mut empty = record(run(FinishReason::Context, Vec::new()), Vec::new());
        assert!(page(&[Section::Run(&empty)]).contains("0 of 0 tokens"));
        empty.prompts.clear();
        page(&[Section::Run(&empty)]);
        page(&[]);
    }

    /// Any text, markup among it, and never an angle bracket that is not followed by this.
    fn hostile() -> impl Strategy<Value = String> {
        let pieces = prop_oneof![
            any::<char>().prop_map(String::from),
            Just("<zz onx=\"1\">".to_owned()),
            Just("\u{202E}\u{2066}\u{2068}\u{2069}".to_owned()),
            Just("\u{0}\u{1B}\r\n\u{9B}".to_owned()),
            Just("{{ x }}{% if %}".to_owned()),
        ];
        proptest::collection::vec(pieces, 0..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn no_text_gets_into_a_page_as_markup_or_as_a_control(
            texts in proptest::collection::vec(hostile(), 5),
            bytes in proptest::collection::vec(any::<u8>(), 0..6),
            prob in 0f32..=1.0,
        ) {
            let [text, prompt, id, label, error] = &texts[..] else { unreachable!() };
            let steps: Vec<Step> = [text.as_bytes(), &bytes, b""].map(|bytes| Step {
                bytes: bytes.to_vec(),
                ..taken(text, prob)
            }).into();
            let runs = (0..2).map(|index| Run {
                run: index,
                text: text.clone(),
                ..run(FinishReason::Length, steps[index as usize..].to_vec())
            });
            let mut sampled = sweep(runs.collect());
            sampled.label.clone_from(label);
            let mut record = record(run(FinishReason::Stop, steps.clone()), vec![sampled]);
            record.model.id.clone_from(id);
            record.program.clone_from(id);
            record.settings.system = Some(label.clone());
            for entry in &mut record.prompts {
                if let PromptEntry::Done(done) = entry {
                    done.analysis = analysis::of(&done.sweeps);
                    done.prompt.clone_from(prompt);
                    done.rendered.clone_from(prompt);
                }
            }
            record.prompts.push(PromptEntry::Failed(PromptError {
                id: Some(id.clone()),
                system: None,
                prompt: prompt.clone(),
                error: error.clone(),
            }));
            let mut step1 = step1();
            step1.prompt.clone_from(prompt);
            step1.candidates[0].bytes.clone_from(&bytes);
            let mut other = record.clone();
            other.settings.system = None;
            if let Some(PromptEntry::Done(done)) = other.prompts.first_mut() {
                done.greedy.steps[0].token_id += 1;
                done.greedy.text.push_str(error);
            }
            let named = |record| Named { name: label, record };
            let comparison = compare(named(&record), named(&other), None, false);
            let page = page(&[
                Section::Run(&record),
                Section::Step1(&step1),
                Section::Comparison(&comparison),
            ]);
            prop_assert!(!page.contains("<zz"));
            let is_raw = |c: char| {
                let is_isolate = matches!(c, '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
                is_isolate || c.is_control() && !matches!(c, '\n' | '\t')
            };
            prop_assert_eq!(page.chars().find(|&c| is_raw(c)), None);
        }
    }
}
