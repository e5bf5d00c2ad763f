//! A token of the greedy reply: its place in the heat map, its row in the step table, and the candidates behind it.

use serde::Serialize;

use super::{mass_count, precise, share, thousands};
use crate::analysis::unlisted;
use crate::record::{Candidate, Record, Step};
use crate::text::display::{after_space, cell};

/// Probabilities at which a token's background becomes a shade lighter; from the last one on there is none.
const SHADES: [f32; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];

/// One step of a reply.
#[derive(Serialize)]
pub(super) struct Token {
    id: String,
    number: usize,
    /// Whether a space of its own stands in front of it.
    is_spaced: bool,
    /// Its text without that space.
    text: String,
    /// Its text as it is in tables.
    cell: String,
    /// Whether a line ends with it.
    breaks: bool,
    shade: usize,
    is_low: bool,
    is_special: bool,
    token_id: u32,
    prob: String,
    precise_prob: String,
    logprob: String,
    rank: String,
    entropy_bits: String,
    mass_count: String,
    margin: Option<String>,
    candidates: Vec<Bar>,
    rest: Bar,
    /// Those that were not taken, with two decimals.
    runners_up: Vec<(String, String)>,
}

/// Something with a probability, as a row with a bar.
#[derive(Serialize)]
struct Bar {
    name: String,
    prob: String,
    width: String,
}

impl Token {
    pub(super) fn new(step: &Step, id: String, number: usize, record: &Record) -> Self {
        let cell = cell(&step.token, &step.bytes);
        let word = after_space(&cell);
        let others = record
            .model
            .vocab_size
            .saturating_sub(step.top_logprobs.len());
        Self {
            id,
            number,
            is_spaced: word.is_some(),
            text: word.unwrap_or(&cell).to_owned(),
            breaks: step.bytes.contains(&b'\n'),
            shade: shade(step.prob),
            is_low: f64::from(step.prob) < record.settings.threshold,
            is_special: step.special,
            token_id: step.token_id,
            prob: format!("{:.2}", step.prob),
            precise_prob: precise(step.prob),
            logprob: format!("{:.3}", step.logprob),
            rank: thousands(step.rank),
            entropy_bits: entropy(step),
            mass_count: mass_count(step),
            margin: step.margin.map(|margin| format!("{margin:.2}")),
            candidates: step.top_logprobs.iter().map(Bar::from).collect(),
            rest: Bar::new(format!("{} others", thousands(others)), unlisted(step)),
            runners_up: runners_up(step),
            cell,
        }
    }
}

/// The entropy, or the bounds that a server's candidates leave to it.
fn entropy(step: &Step) -> String {
    match (step.entropy_bits, step.bounds) {
        (Some(bits), _) => format!("{bits:.2}"),
        (None, Some(bounds)) => format!(
            "{:.2} to {:.2}",
            bounds.entropy_bits_at_least, bounds.entropy_bits_at_most
        ),
        (None, None) => String::new(),
    }
}

fn runners_up(step: &Step) -> Vec<(String, String)> {
    let others = step.top_logprobs.iter();
    let others = others.filter(|candidate| candidate.token_id != step.token_id);
    let shown = others.map(|other| {
        (
            cell(&other.token, &other.bytes),
            format!("{:.2}", other.prob),
        )
    });
    shown.collect()
}

impl Bar {
    fn new(name: String, prob: f32) -> Self {
        Self {
            name,
            prob: precise(prob),
            width: share(f64::from(prob)),
        }
    }
}

impl From<&Candidate> for Bar {
    fn from(candidate: &Candidate) -> Self {
        Self::new(cell(&candidate.token, &candidate.bytes), candidate.prob)
    }
}

/// Returns how strong a token's background is: 0 is none, for what is all but certain, 5 the strongest.
pub(super) fn shade(prob: f32) -> usize {
    SHADES.iter().filter(|&&bound| prob < bound).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_deepen_as_probabilities_fall() {
        assert_eq!(
            [1.0, 0.9, 0.89, 0.5, 0.3, 0.29, 0.1, 0.0].map(shade),
            [0, 0, 1, 2, 3, 4, 4, 5]
        );
    }
}
