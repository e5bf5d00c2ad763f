//! The exploration of prompts: a greedy run and many sampled ones each, as a tree in which equal beginnings are computed once.
//!
//! All runs of a prompt start from one prefilled row. Runs with the same tokens so far are one *branch*: one row, one
//! distribution. A branch forks only where its runs draw different tokens. The branches of all prompts are stepped together.
//! The module knows no tokenizer and prints nothing.

mod grove;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use rayon::prelude::*;

use self::grove::Grove;
use crate::distribution::Distribution;
use crate::model::LanguageModel;
use crate::record::{FinishReason, Sampling};
use crate::setting::Setting;

/// Branches that are stepped together at most where nothing else is asked for. What waits shares its parent's memory, so
/// this bounds the memory of any number of runs. Two of the tallest tiles of the matrix products, which gain little above one.
pub const MAX_ROWS: usize = 52;

/// What to explore after every prompt.
#[derive(Debug, Clone)]
pub struct Plan {
    /// A run ends at this many tokens at the latest; at least 1.
    pub max_new_tokens: usize,
    /// One group of sampled runs each.
    pub settings: Vec<Setting>,
    /// Indices of the sampled runs of every setting.
    pub runs: Vec<u32>,
    /// First part of every coin.
    pub seed: u64,
    /// Ids that end a run.
    pub stop_ids: Vec<u32>,
    /// Candidates noted at every step.
    pub candidates: usize,
    /// The mass that `mass_count` counts up to.
    pub mass: f64,
}

/// All runs of one prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Exploration {
    /// The run that always takes the best candidate.
    pub greedy: Trace,
    /// The sampled runs: one entry a setting, in the order of [`Plan::runs`].
    pub sweeps: Vec<Vec<Trace>>,
    /// Rows whose next token was computed after the prompt: what the exploration cost.
    pub rows_computed: usize,
}

/// One run, token by token.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Its index: second part of every coin. 0 for the greedy run.
    pub run: u32,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// One entry a token, the stop token included.
    pub steps: Vec<TraceStep>,
}

/// One token of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceStep {
    /// The token with its raw score and probability.
    pub token: Scored,
    /// Its place in the order, 1 for the best.
    pub rank: usize,
    /// What the sampler saw; `None` in the greedy run.
    pub sampling: Option<Sampling>,
    /// The distribution it was taken from, shared by all runs of the branch.
    pub summary: Arc<Summary>,
}

/// What is kept of one distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Entropy in bits.
    pub entropy_bits: f32,
    /// The smallest number of best candidates that reach the plan's mass.
    pub mass_count: usize,
    /// Logit of the best candidate minus logit of the second.
    pub margin: Option<f32>,
    /// The best candidates, best first; those without any probability are left out.
    pub candidates: Vec<Scored>,
}

/// A token with its raw score and probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    /// Id.
    pub token_id: u32,
    /// Raw score.
    pub logit: f32,
    /// Natural logarithm of `prob`.
    pub logprob: f32,
    /// Raw probability, in [0, 1].
    pub prob: f32,
}

impl Scored {
    /// Returns what a distribution says of a token.
    pub fn of(distribution: &Distribution, token_id: u32) -> Self {
        Self {
            token_id,
            logit: distribution.logit(token_id),
            logprob: distribution.logprob(token_id) as f32,
            prob: distribution.prob(token_id) as f32,
        }
    }
}

impl Summary {
    /// Summarises one distribution.
    pub fn of(distribution: &Distribution, candidates: usize, mass: f64) -> Self {
        let best = distribution.best(candidates).into_iter();
        Self {
            entropy_bits: distribution.entropy_bits() as f32,
            mass_count: distribution.mass_count(mass),
            margin: distribution.margin(),
            candidates: best
                .map(|id| Scored::of(distribution, id))
                .filter(|candidate| candidate.logprob.is_finite())
                .collect(),
        }
    }
}

/// How far an exploration is; a run that has ended counts as if it had gone on to the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Tokens generated so far, in all runs.
    pub done: usize,
    /// Tokens that all runs have at most.
    pub total: usize,
}

/// Explores one prompt. `watch` is called before every step and ends the exploration by breaking; then there is no result.
///
/// # Errors
/// When the prompt is empty or leaves no room for a token, or the model fails.
pub fn explore<M: LanguageModel>(
    model: &M,
    prompt: &[u32],
    plan: &Plan,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Option<Exploration>> {
    let mut result = None;
    explore_all(model, &[prompt], plan, MAX_ROWS, watch, &mut |_, done| {
        result = Some(done);
    });
    result.transpose()
}

/// Explores several prompts together: the rows of all of them share each step, at most `batch` at once. Results are those
/// of each prompt alone.
///
/// Prompts begin in order, and while there are more rows than fit, earlier prompts go first. `done` is called with a
/// prompt's index and its result, or what went wrong with it alone, in the order of the prompts. `watch` is called before
/// every step; when it breaks, the prompts that are complete are still handed out, the others are not.
pub fn explore_all<M: LanguageModel>(
    model: &M,
    prompts: &[&[u32]],
    plan: &Plan,
    batch: usize,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    done: &mut dyn FnMut(usize, Result<Exploration>),
) {
    let mut all = All {
        model,
        plan,
        live: Vec::new(),
        finished: BTreeMap::new(),
    };
    let (mut begun, mut handed_out) = (0, 0);
    let num_runs = 1 + plan.settings.len() * plan.runs.len();
    loop {
        while begun < prompts.len() && all.num_waiting() < batch {
            all.begin(begun, prompts[begun]);
            begun += 1;
        }
        while let Some(result) = all.finished.remove(&handed_out) {
            done(handed_out, result);
            handed_out += 1;
        }
        let is_complete = handed_out == prompts.len();
        let unfinished = all.live.iter().map(|live| live.grove.num_done());
        let complete = begun - all.live.len();
        let progress = Progress {
            done: unfinished.sum::<usize>() + complete * num_runs * plan.max_new_tokens,
            total: prompts.len() * num_runs * plan.max_new_tokens,
        };
        // complete: an interruption from here on takes nothing away
        if watch(progress).is_break() || is_complete {
            break;
        }
        all.step(batch);
    }
    for (index, result) in all.finished {
        done(index, result);
    }
}

/// The prompts that have begun.
struct All<'a, M: LanguageModel> {
    model: &'a M,
    plan: &'a Plan,
    /// In the order of the prompts.
    live: Vec<Live<'a, M::Row>>,
    /// Results that wait for those of earlier prompts.
    finished: BTreeMap<usize, Result<Exploration>>,
}

/// A prompt that is being explored.
struct Live<'a, R> {
    /// Its place among the prompts.
    index: usize,
    grove: Grove<'a>,
    /// Shallow ones first.
    waiting: Vec<Fork<R>>,
    rows_computed: usize,
}

/// Runs with the same tokens so far, and the row that has seen them.
struct Branch<R> {
    row: R,
    runs: Vec<usize>,
}

/// A branch whose next token is drawn but not yet computed; its row is still the parent's.
struct Fork<R> {
    row: R,
    token: u32,
    runs: Vec<usize>,
}

impl<M: LanguageModel> All<'_, M> {
    fn num_waiting(&self) -> usize {
        self.live.iter().map(|live| live.waiting.len()).sum()
    }

    /// Feeds a prompt to the model and lets its runs begin.
    fn begin(&mut self, index: usize, prompt: &[u32]) {
        let begin = || {
            let room = room(self.model, prompt)?;
            let mut row = self.model.start();
            let logits = self.model.extend(&mut row, prompt)?;
            let grove = Grove::new(self.plan, room);
            let runs: Vec<usize> = (0..grove.num_runs()).collect();
            let drawn = grove.draw(&Distribution::from_logits(logits)?, &runs);
            let mut live = Live {
                index,
                grove,
                waiting: Vec::new(),
                rows_computed: 0,
            };
            live.grow(Branch { row, runs }, drawn);
            Ok(live)
        };
        match begin() {
            Ok(live) => self.live.push(live),
            Err(error) => {
                self.finished.insert(index, Err(error));
            }
        }
        self.retire();
    }

    /// Computes the next token of the first `batch` branches.
    fn step(&mut self, batch: usize) {
        let mut room = batch;
        let (mut places, mut rows, mut tokens, mut runs) = (vec![], vec![], vec![], vec![]);
        for (place, live) in self.live.iter_mut().enumerate() {
            // the deepest branches come first: they end soonest
            let next = live
                .waiting
                .split_off(live.waiting.len().saturating_sub(room));
            room -= next.len();
            live.rows_computed += next.len();
            for fork in next {
                places.push(place);
                rows.push(fork.row);
                tokens.push(fork.token);
                runs.push(fork.runs);
            }
        }
        let logits = match self.model.step(&mut rows, &tokens) {
            Ok(logits) => logits,
            Err(error) => {
                let error = format!("{error:#}");
                for live in self.live.drain(..) {
                    self.finished.insert(live.index, Err(anyhow!("{error}")));
                }
                return;
            }
        };
        let groves: Vec<&Grove> = places
            .iter()
            .map(|&place| &self.live[place].grove)
            .collect();
        let drawn: Vec<Result<Vec<TraceStep>>> = (&groves, &runs, logits)
            .into_par_iter()
            .map(|(grove, runs, logits)| {
                let distribution = Distribution::from_logits(logits)?;
                Ok(grove.draw(&distribution, runs))
            })
            .collect();
        let branches = rows
            .into_iter()
            .zip(runs)
            .map(|(row, runs)| Branch { row, runs });
        for ((place, branch), drawn) in places.into_iter().zip(branches).zip(drawn) {
            let live = &mut self.live[place];
            match drawn {
                Ok(drawn) => live.grow(branch, drawn),
                Err(error) => {
                    self.finished.entry(live.index).or_insert(Err(error));
                }
            }
        }
        self.retire();
    }

    /// Takes out the prompts whose runs have all ended, and those that have failed.
    fn retire(&mut self) {
        let finished = &mut self.finished;
        let ended = self.live.extract_if(.., |live| {
            live.waiting.is_empty() || finished.contains_key(&live.index)
        });
        let ended: Vec<_> = ended.collect();
        for live in ended {
            let exploration = live.grove.into_exploration(live.rows_computed);
            self.finished.entry(live.index).or_insert(Ok(exploration));
        }
    }
}

impl<R: Clone> Live<'_, R> {
    /// Lets every run of a branch take its step; those that go on wait, grouped by their token.
    fn grow(&mut self, branch: Branch<R>, drawn: Vec<TraceStep>) {
        let children = self.grove.take(&branch.runs, drawn);
        self.waiting
            .extend(children.into_iter().map(|(token, runs)| Fork {
                row: branch.row.clone(),
                token,
                runs,
            }));
    }
}

/// Returns how many tokens fit behind a prompt.
fn room(model: &impl LanguageModel, prompt: &[u32]) -> Result<usize> {
    ensure!(
        !prompt.is_empty(),
        "the prompt has no tokens (expected at least one)"
    );
    let room = model.max_positions().saturating_sub(prompt.len());
    ensure!(
        room > 0,
        "the prompt has {} tokens, the model takes {} with the reply (shorten the prompt)",
        prompt.len(),
        model.max_positions()
    );
    Ok(room)
}

#[cfg(test)]
mod tests;
