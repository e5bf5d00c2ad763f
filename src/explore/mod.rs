//! The exploration of prompts: a greedy run and many sampled ones each, as a tree in which equal beginnings are computed once.
//!
//! All runs of a prompt start from one prefilled row. Runs with the same tokens so far are one *branch*: one row, one
//! distribution. A branch forks only where its runs draw different tokens. The branches of all prompts are stepped together.
//! The module knows no tokenizer and prints nothing.

mod grove;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use rayon::prelude::*;

use self::grove::{Draw, Grove};
use crate::distribution::outlook::Outlook;
use crate::model::LanguageModel;
use crate::record::{Bounds, FinishReason, Sampling};
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
    /// Entropy in bits; `None` where it is known between bounds alone.
    pub entropy_bits: Option<f32>,
    /// The smallest number of best candidates that reach the plan's mass; `None` where those shown do not.
    pub mass_count: Option<usize>,
    /// Logit of the best candidate minus logit of the second.
    pub margin: Option<f32>,
    /// What is known of candidates that were not shown; `None` where there are none.
    pub bounds: Option<Bounds>,
    /// The best candidates, best first; those without any probability are left out.
    pub candidates: Vec<Scored>,
}

/// A token with its raw score and probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scored {
    /// Id.
    pub token_id: u32,
    /// Raw score; `None` where it was not shown.
    pub logit: Option<f32>,
    /// Natural logarithm of `prob`.
    pub logprob: f32,
    /// Raw probability, in [0, 1].
    pub prob: f32,
}

impl Scored {
    /// Returns what is known of a token; `None` where it was not shown.
    pub fn of(outlook: &Outlook, token_id: u32) -> Option<Self> {
        let logprob = outlook.logprob(token_id)?;
        Some(Self {
            token_id,
            logit: outlook.logit(token_id),
            logprob: logprob as f32,
            prob: logprob.exp() as f32,
        })
    }
}

impl Summary {
    /// Summarises one distribution.
    pub fn of(outlook: &Outlook, candidates: usize, mass: f64) -> Self {
        let best = outlook.best(candidates).into_iter();
        Self {
            entropy_bits: outlook.entropy_bits(),
            mass_count: outlook.mass_count(mass),
            margin: outlook.margin(),
            bounds: outlook.bounds(mass),
            candidates: best
                .filter_map(|id| Scored::of(outlook, id))
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
        // a limit may be as large as a number can be
        let of = |prompts: usize| {
            let runs = prompts.saturating_mul(num_runs);
            runs.saturating_mul(plan.max_new_tokens)
        };
        let progress = Progress {
            done: unfinished.fold(of(complete), usize::saturating_add),
            total: of(prompts.len()),
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
            let shown = self.model.extend(&mut row, prompt)?;
            let grove = Grove::new(self.plan, room);
            let runs: Vec<usize> = (0..grove.num_runs()).collect();
            let mut drawn = draw(self.model, &[&row], &[(&grove, &runs)], vec![shown]);
            let drawn = drawn.pop().context("one row was asked about")??;
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
        let shown = match self.model.step(&mut rows, &tokens) {
            Ok(shown) => shown,
            Err(error) => {
                let error = format!("{error:#}");
                for live in self.live.drain(..) {
                    self.finished.insert(live.index, Err(anyhow!("{error}")));
                }
                return;
            }
        };
        let groups: Vec<(&Grove, &[usize])> = places
            .iter()
            .zip(&runs)
            .map(|(&place, runs)| (&self.live[place].grove, runs.as_slice()))
            .collect();
        let seen: Vec<&M::Row> = rows.iter().collect();
        let drawn = draw(self.model, &seen, &groups, shown);
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

/// Draws for the runs behind each row, and has the model show more of a row until all its draws are decided.
fn draw<M: LanguageModel>(
    model: &M,
    rows: &[&M::Row],
    groups: &[(&Grove, &[usize])],
    shown: Vec<M::Shown>,
) -> Vec<Result<Vec<TraceStep>>> {
    let one = |group: usize, shown: M::Shown| -> Result<Draw> {
        let (grove, runs) = groups[group];
        let outlook: Outlook = shown.try_into().map_err(Into::into)?;
        Ok(grove.draw(&outlook, runs))
    };
    let mut drawn: Vec<Result<Draw>> = (0..groups.len())
        .into_par_iter()
        .zip(shown)
        .map(|(group, shown)| one(group, shown))
        .collect();
    loop {
        let open = drawn.iter().enumerate().filter_map(|(group, draw)| {
            let Ok(Draw::Open(shown)) = draw else {
                return None;
            };
            Some((group, *shown))
        });
        let (open, counts): (Vec<usize>, Vec<usize>) = open.unzip();
        let Some(&most) = counts.iter().max() else {
            break;
        };
        let again: Vec<&M::Row> = open.iter().map(|&group| rows[group]).collect();
        match model.widen(&again, most) {
            Ok(shown) => {
                for (group, shown) in open.into_iter().zip(shown) {
                    drawn[group] = one(group, shown);
                }
            }
            Err(error) => {
                let error = format!("{error:#}");
                for group in open {
                    drawn[group] = Err(anyhow!("{error}"));
                }
            }
        }
    }
    let steps = drawn.into_iter().map(|draw| match draw {
        Ok(Draw::Steps(steps)) => Ok(steps),
        Ok(Draw::Open(_)) => Err(anyhow!("a draw was left open")),
        Err(error) => Err(error),
    });
    steps.collect()
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
