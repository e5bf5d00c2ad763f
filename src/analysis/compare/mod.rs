//! Two records of the same prompts beside each other: what of the replies and their numbers changed, and whether that is more
//! than two precisions explain. Pure; prints and reads nothing.
//!
//! Only what had the same context is compared: greedy replies to the same token ids, up to the first step at which they took
//! different tokens. Beyond the tolerance is
//!
//! - a log-probability that differs by more, of any token that both list there;
//! - a first different token that is no near tie. A near tie is where the two tokens' margins, A's log-probability of its
//!   token over B's and B's of its token over A's, are together at most twice what a log-probability moves without meaning: the
//!   tolerance, or the largest other difference seen up to there where that is more, but never more than bf16 explains;
//! - a prompt that one record lacks, or that could not be run in one alone, or that became other tokens;
//! - a reply that is the beginning of the other, although limit and ends were the same.
//!
//! Under `strict` every token has to be the same: near ties and samples count, too.

mod divergence;
pub mod gates;
mod greedy;
mod pairs;
mod sweeps;
mod tolerance;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::record::compare::{
    Comparison, Difference, Finding, GreedyComparison, Outcome, PromptComparison, Replies, Side,
    Tolerance, Totals, What, Which,
};
use crate::record::{PROGRAM, PromptEntry, PromptRecord, Record, SCHEMA};
use greedy::Terms;
use pairs::Pair;

/// A record and what it is called.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// Its file, as it was named.
    pub name: &'a str,
    /// What is in it.
    pub record: &'a Record,
}

/// Compares B with A. Without a tolerance the precisions of the two decide.
pub fn compare(a: Named, b: Named, tolerance: Option<f64>, strict: bool) -> Comparison {
    let tolerance = tolerance.map_or_else(
        || tolerance::of(&a.record.model, &b.record.model),
        |value| Tolerance {
            value,
            reason: "as asked for".to_owned(),
        },
    );
    let settings = [&a.record.settings, &b.record.settings];
    let same_mass = settings[0].mass == settings[1].mass;
    let terms = Terms {
        vocab_sizes: [a.record.model.vocab_size, b.record.model.vocab_size],
        tolerance: tolerance.value,
        same_mass,
    };
    let rules = Rules {
        tolerance: tolerance.value,
        strict,
        same_ends: settings[0].max_new_tokens == settings[1].max_new_tokens
            && settings[0].stop_ids == settings[1].stop_ids,
    };
    let pairs = pairs::pairs(a.record, b.record);
    let prompts = pairs.into_iter().map(|pair| of_pair(pair, a, b, &terms));
    let prompts: Vec<PromptComparison> = prompts.collect();
    let findings = (1..).zip(&prompts).flat_map(|(number, prompt)| {
        let found = rules.findings(prompt).into_iter();
        found.map(move |what| Finding {
            prompt: number,
            what,
        })
    });
    Comparison {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        differences: differences(a.record, b.record),
        a: side(a),
        b: side(b),
        tolerance,
        strict,
        mass: same_mass.then_some(settings[0].mass),
        findings: findings.collect(),
        totals: totals(&prompts),
        prompts,
    }
}

fn side(named: Named) -> Side {
    Side {
        name: named.name.to_owned(),
        program: named.record.program.clone(),
        model: named.record.model.clone(),
    }
}

/// Returns whether something was compared and nothing is to be said against it.
pub fn is_within(comparison: &Comparison) -> bool {
    comparison.findings.is_empty() && comparison.totals.compared > 0
}

/// Returns the fields of model and settings that are not the same.
fn differences(a: &Record, b: &Record) -> Vec<Difference> {
    let mut differences = Vec::new();
    for (name, a, b) in [
        ("model", fields(&a.model), fields(&b.model)),
        ("settings", fields(&a.settings), fields(&b.settings)),
    ] {
        let only_b = b.keys().filter(|&field| !a.contains_key(field));
        for field in a.keys().chain(only_b) {
            let value = |side: &Map<String, Value>| side.get(field).cloned().unwrap_or_default();
            let (a, b) = (value(&a), value(&b));
            if a != b {
                differences.push(Difference {
                    field: format!("{name}.{field}"),
                    a,
                    b,
                });
            }
        }
    }
    differences
}

fn fields(part: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(part) {
        Ok(Value::Object(fields)) => fields,
        // numbers and strings under names are always an object
        _ => Map::new(),
    }
}

fn of_pair(pair: Pair, a: Named, b: Named, terms: &Terms) -> PromptComparison {
    let in_a = pair.a.map(|place| (place, &a.record.prompts[place]));
    let in_b = pair.b.map(|place| (place, &b.record.prompts[place]));
    let (id, prompt) = match (in_a.or(in_b), in_b) {
        // a name that only B has is better than none
        (Some((_, known)), Some((_, other))) => {
            let (id, prompt) = name(known);
            (id.or(name(other).0), prompt)
        }
        (Some((_, known)), None) => name(known),
        (None, _) => (None, ""),
    };
    let both = done(in_a).zip(done(in_b));
    let (mut compared, mut samples) = (None, Vec::new());
    let mut differs_in = Vec::new();
    if let Some((in_a, in_b)) = both {
        differs_in = differing(in_a, in_b, a.record, b.record);
        if in_a.prompt_token_ids == in_b.prompt_token_ids {
            compared = Some(greedy::greedy(&in_a.greedy, &in_b.greedy, terms));
        }
        samples = sweeps::sweeps(&in_a.sweeps, &in_b.sweeps);
    }
    PromptComparison {
        id: id.map(str::to_owned),
        prompt: prompt.to_owned(),
        a: in_a.map(outcome),
        b: in_b.map(outcome),
        differs_in,
        greedy: compared,
        sweeps: samples,
    }
}

fn name(entry: &PromptEntry) -> (Option<&str>, &str) {
    match entry {
        PromptEntry::Done(done) => (done.id.as_deref(), &done.prompt),
        PromptEntry::Failed(failed) => (failed.id.as_deref(), &failed.prompt),
    }
}

fn done(entry: Option<(usize, &PromptEntry)>) -> Option<&PromptRecord> {
    match entry?.1 {
        PromptEntry::Done(done) => Some(done),
        PromptEntry::Failed(_) => None,
    }
}

fn outcome((place, entry): (usize, &PromptEntry)) -> Outcome {
    let (error, text) = match entry {
        PromptEntry::Done(done) => (None, Some(done.greedy.text.clone())),
        PromptEntry::Failed(failed) => (Some(failed.error.clone()), None),
    };
    Outcome {
        number: place + 1,
        error,
        text,
    }
}

fn differing(a: &PromptRecord, b: &PromptRecord, of_a: &Record, of_b: &Record) -> Vec<String> {
    let system = |prompt: &PromptRecord, record: &Record| {
        let own = prompt.system.clone();
        own.or_else(|| record.settings.system.clone())
    };
    let fields = [
        ("prompt", a.prompt != b.prompt),
        ("system", system(a, of_a) != system(b, of_b)),
        ("rendered", a.rendered != b.rendered),
        ("prompt_token_ids", a.prompt_token_ids != b.prompt_token_ids),
    ];
    let differing = fields.into_iter().filter(|&(_, differs)| differs);
    differing.map(|(field, _)| field.to_owned()).collect()
}

/// What counts as beyond the tolerance.
struct Rules {
    tolerance: f64,
    strict: bool,
    /// Whether replies end at the same limit and the same ids.
    same_ends: bool,
}

impl Rules {
    fn findings(&self, prompt: &PromptComparison) -> Vec<What> {
        let (a, b) = match (&prompt.a, &prompt.b) {
            (Some(a), Some(b)) => (a, b),
            (None, _) => return vec![What::Missing { from: Which::A }],
            (_, None) => return vec![What::Missing { from: Which::B }],
        };
        match (&a.error, &b.error) {
            (Some(_), Some(_)) => return Vec::new(),
            (Some(_), None) => return vec![What::Failed { from: Which::A }],
            (None, Some(_)) => return vec![What::Failed { from: Which::B }],
            (None, None) => {}
        }
        let mut findings = match &prompt.greedy {
            Some(greedy) => self.of_greedy(greedy),
            None => vec![What::OtherInput],
        };
        if self.strict {
            findings.extend(prompt.sweeps.iter().filter_map(|sweep| {
                let runs = |replies: Option<Replies>| replies.map_or(0, |r| r.runs);
                let most = runs(sweep.a).max(runs(sweep.b));
                (sweep.same_runs < most).then(|| What::OtherSamples {
                    label: sweep.label.clone(),
                    runs: most - sweep.same_runs,
                })
            }));
        }
        findings
    }

    fn of_greedy(&self, greedy: &GreedyComparison) -> Vec<What> {
        let spread = greedy.candidates.filter(|spread| {
            let is_within = |largest: f32| f64::from(largest) <= self.tolerance;
            !spread.largest.is_some_and(is_within)
        });
        let difference = spread.map(|spread| What::Difference {
            step: spread.largest_step,
            largest: spread.largest,
        });
        let parted = greedy.first_difference.as_ref();
        let other_token = parted
            .filter(|parted| self.strict || !parted.near_tie)
            .map(|parted| What::OtherToken {
                step: parted.step,
                near_tie: parted.near_tie,
            });
        let is_shorter = self.same_ends && parted.is_none() && greedy.steps_a != greedy.steps_b;
        let other_length = is_shorter.then_some(What::OtherLength);
        [difference, other_token, other_length]
            .into_iter()
            .flatten()
            .collect()
    }
}

fn totals(prompts: &[PromptComparison]) -> Totals {
    let compared = || prompts.iter().filter_map(|prompt| prompt.greedy.as_ref());
    let parted = || compared().filter_map(|greedy| greedy.first_difference.as_ref());
    let spreads = || compared().filter_map(|greedy| greedy.candidates);
    let largest: Option<Vec<f32>> = spreads().map(|spread| spread.largest).collect();
    Totals {
        compared: compared().count(),
        same_replies: compared().count() - parted().count(),
        near_ties: parted().filter(|parted| parted.near_tie).count(),
        largest_difference: largest.and_then(|all| all.into_iter().reduce(f32::max)),
    }
}

#[cfg(test)]
pub(crate) mod tests;
