//! One prompt of a page: its greedy reply token by token, the samples, and where they part.

use serde::Serialize;

use super::curve::Curve;
use super::samples::Samples;
use super::thousands;
use super::token::Token;
use crate::analysis::low_probability_tokens;
use crate::record::{PromptEntry, PromptRecord, Record};
use crate::report::table::{ending, percent, plural, title};
use crate::report::{parting, summary};
use crate::text::display::{escape_line, escape_text};

/// What stands around a token in a sentence: isolates, which no token and no label gets through with.
const QUOTES: [char; 2] = ['\u{2068}', '\u{2069}'];

/// One entry of a record.
#[derive(Serialize)]
pub(super) struct Prompt {
    id: String,
    number: usize,
    is_open: bool,
    name: Option<String>,
    title: String,
    /// The prompt as it was given, where the title is not that.
    whole: Option<String>,
    error: Option<String>,
    done: Option<Done>,
}

/// What became of a prompt that was run.
#[derive(Serialize)]
struct Done {
    found: String,
    reply: String,
    ending: Option<String>,
    threshold: String,
    mass: String,
    vocab_size: String,
    tokens: Vec<Token>,
    curve: Curve,
    sweeps: Vec<Samples>,
    partings: Vec<Vec<Word>>,
    summary: Vec<Vec<String>>,
    system: Option<String>,
    rendered: String,
    num_prompt_tokens: usize,
}

/// A piece of a sentence.
#[derive(Serialize)]
struct Word {
    text: String,
    is_token: bool,
}

impl Prompt {
    /// Makes the view of entry `place`, counted from 1; `id` names it within the page.
    pub(super) fn new(record: &Record, place: usize, id: String, is_open: bool) -> Self {
        let entry = &record.prompts[place - 1];
        let (name, prompt) = match entry {
            PromptEntry::Done(done) => (&done.id, &done.prompt),
            PromptEntry::Failed(failed) => (&failed.id, &failed.prompt),
        };
        let title = title(prompt);
        let whole = escape_text(prompt);
        let (error, done) = match entry {
            PromptEntry::Done(done) => (None, Some(Done::new(done, record, &id))),
            PromptEntry::Failed(failed) => (Some(escape_text(&failed.error)), None),
        };
        Self {
            id,
            number: place,
            is_open,
            name: name.as_deref().map(escape_line),
            whole: (whole != title && !prompt.is_empty()).then_some(whole),
            title,
            error,
            done,
        }
    }
}

impl Done {
    fn new(prompt: &PromptRecord, record: &Record, id: &str) -> Self {
        let settings = &record.settings;
        let greedy = &prompt.greedy;
        let tokens: Vec<Token> = (1..)
            .zip(&greedy.steps)
            .map(|(number, step)| Token::new(step, format!("{id}t{number}"), number, record))
            .collect();
        let sweeps = prompt.sweeps.iter();
        Self {
            found: format!(
                "{} of {} below {:.2}",
                low_probability_tokens(std::slice::from_ref(greedy), settings.threshold),
                plural(tokens.len(), "token"),
                settings.threshold
            ),
            reply: escape_text(&greedy.text),
            ending: ending(greedy),
            threshold: format!("{:.2}", settings.threshold),
            mass: percent(settings.mass),
            vocab_size: thousands(record.model.vocab_size),
            curve: Curve::new(&greedy.steps, settings),
            tokens,
            sweeps: sweeps.map(|sweep| Samples::new(sweep, settings)).collect(),
            partings: partings(prompt),
            summary: summary::rows(prompt, settings),
            system: prompt.system.as_deref().map(escape_text),
            rendered: escape_text(&prompt.rendered),
            num_prompt_tokens: prompt.prompt_token_ids.len(),
        }
    }
}

/// The sentences on where runs part, their tokens by themselves.
fn partings(prompt: &PromptRecord) -> Vec<Vec<Word>> {
    let [open, close] = QUOTES;
    let sentences = parting::sentences(prompt, |token| format!("\u{2068}{token}\u{2069}"));
    let words = |sentence: String| {
        let pieces = sentence.split([open, close]).zip(0..);
        let words = pieces.map(|(text, place)| Word {
            text: text.to_owned(),
            is_token: place % 2 == 1,
        });
        words.collect()
    };
    sentences.into_iter().map(words).collect()
}
