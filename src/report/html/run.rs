//! A run of the main command as a section: what was run, how to read it, the prompts.

use std::io::{self, Write};

use serde::Serialize;

use super::prompt::Prompt;
use super::{model_facts, model_gist};
use crate::analysis::low_probability_tokens;
use crate::record::{PromptEntry, Record, Settings};
use crate::report::table::{percent, runs_in_words, title};
use crate::report::templates::Templates;
use crate::text::display::{escape_line, escape_text};

/// So many prompts are shown open; of more, only the first.
const MOST_OPEN: usize = 3;

/// What stands above the prompts.
#[derive(Serialize)]
struct Run {
    number: usize,
    model: String,
    note: Option<String>,
    program: String,
    gist: String,
    facts: Vec<(&'static str, String)>,
    threshold: String,
    mass: String,
    contents: Vec<Entry>,
}

/// A line of the list of prompts.
#[derive(Serialize)]
struct Entry {
    href: String,
    title: String,
    /// Tokens of the greedy reply below the threshold; none of a prompt that could not be run.
    low: Option<usize>,
}

pub(super) fn write(
    record: &Record,
    number: usize,
    page: &Templates,
    out: &mut impl Write,
) -> io::Result<()> {
    let num_prompts = record.prompts.len();
    let run = Run {
        number,
        model: escape_line(&record.model.id),
        note: record.model.note.as_deref().map(escape_text),
        program: escape_line(&record.program),
        gist: format!(
            "{}; {}",
            model_gist(&record.model),
            runs_in_words(&record.settings)
        ),
        facts: facts(record),
        threshold: format!("{:.2}", record.settings.threshold),
        mass: percent(record.settings.mass),
        contents: (1..)
            .zip(&record.prompts)
            .map(|(place, entry)| contents_entry(entry, number, place, &record.settings))
            .collect(),
    };
    page.write("run.html", &run, out)?;
    for place in 1..=num_prompts {
        let is_open = place == 1 || num_prompts <= MOST_OPEN;
        let view = Prompt::new(record, place, format!("s{number}p{place}"), is_open);
        page.write("prompt.html", &view, out)?;
    }
    out.write_all(b"</section>\n")
}

fn contents_entry(entry: &PromptEntry, number: usize, place: usize, settings: &Settings) -> Entry {
    let (prompt, low) = match entry {
        PromptEntry::Done(done) => {
            let greedy = std::slice::from_ref(&done.greedy);
            let low = low_probability_tokens(greedy, settings.threshold);
            (&done.prompt, Some(low))
        }
        PromptEntry::Failed(failed) => (&failed.prompt, None),
    };
    Entry {
        href: format!("#s{number}p{place}"),
        title: title(prompt),
        low,
    }
}

fn facts(record: &Record) -> Vec<(&'static str, String)> {
    let settings = &record.settings;
    let mut facts = model_facts(&record.model);
    let labels = record.prompts.iter().find_map(|entry| match entry {
        PromptEntry::Done(done) if !done.sweeps.is_empty() => Some(&done.sweeps),
        _ => None,
    });
    if let Some(sweeps) = labels {
        let labels = sweeps.iter().map(|sweep| escape_line(&sweep.label));
        facts.push(("settings", labels.collect::<Vec<_>>().join("; ")));
    }
    facts.push((
        "order of filters",
        escape_line(&settings.filter_order.join(", ")),
    ));
    facts.push((
        "prompts",
        match (settings.raw, &settings.template_source) {
            (true, _) => "as they are, without a chat template".to_owned(),
            (false, Some(source)) => format!("in the chat template of {}", escape_line(source)),
            (false, None) => "in a chat template".to_owned(),
        },
    ));
    if let Some(thinking) = settings.thinking {
        facts.push(("thinking", if thinking { "on" } else { "off" }.to_owned()));
    }
    if let Some(system) = &settings.system {
        facts.push(("system message", escape_line(system)));
    }
    if let Some(date) = &settings.template_date {
        facts.push(("date in the template", escape_line(date)));
    }
    if settings.ignore_eos {
        facts.push(("end tokens", "ignored".to_owned()));
    }
    facts
}
