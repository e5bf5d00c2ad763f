//! The runs of one prompt while they are made: what each draws from a branch's distribution, and when it ends.

use std::sync::Arc;

use super::{Exploration, Plan, Scored, Summary, Trace, TraceStep};
use crate::distribution::outlook::{Left, Outlook};
use crate::record::FinishReason;
use crate::sampler::coin;

/// A run that is being made.
struct LiveRun {
    /// Index into the plan's settings; `None` is the greedy run.
    setting: Option<usize>,
    trace: Trace,
    is_finished: bool,
}

/// What runs draw from a distribution.
pub(super) enum Draw {
    /// A step for each run.
    Steps(Vec<TraceStep>),
    /// So many candidates were shown, and they do not decide it.
    Open(usize),
}

/// All runs of one prompt on their way.
pub(super) struct Grove<'a> {
    plan: &'a Plan,
    /// Tokens that fit behind the prompt.
    room: usize,
    runs: Vec<LiveRun>,
}

impl<'a> Grove<'a> {
    /// Returns runs without any token; `room` tokens fit behind the prompt.
    pub(super) fn new(plan: &'a Plan, room: usize) -> Self {
        let sampled = (0..plan.settings.len())
            .flat_map(|setting| plan.runs.iter().map(move |&run| (Some(setting), run)));
        let runs = std::iter::once((None, 0))
            .chain(sampled)
            .map(|(setting, run)| LiveRun {
                setting,
                trace: Trace {
                    run,
                    finish_reason: FinishReason::Length,
                    steps: Vec::new(),
                },
                is_finished: false,
            })
            .collect();
        Self { plan, room, runs }
    }

    /// Returns the number of runs, the greedy one included.
    pub(super) fn num_runs(&self) -> usize {
        self.runs.len()
    }

    /// Draws a token for each of `runs` from their common distribution.
    pub(super) fn draw(&self, outlook: &Outlook, runs: &[usize]) -> Draw {
        let plan = self.plan;
        let summary = Arc::new(Summary::of(outlook, plan.candidates, plan.mass));
        let mut filtered = vec![None; plan.settings.len()];
        let mut draw_for = |&index: &usize| {
            let run = &self.runs[index];
            let (token, sampling) = match run.setting {
                None => (outlook.argmax()?, None),
                Some(setting) => {
                    let kept: &Left = filtered[setting]
                        .get_or_insert_with(|| outlook.filtered(&plan.settings[setting]));
                    let token = kept.draw(coin(plan.seed, run.trace.run, run.trace.steps.len()))?;
                    (token, Some(kept.sampling(token)))
                }
            };
            Some(TraceStep {
                token: Scored::of(outlook, token)?,
                rank: outlook.rank(token)?,
                sampling,
                summary: summary.clone(),
            })
        };
        let steps: Option<Vec<TraceStep>> = runs.iter().map(&mut draw_for).collect();
        steps.map_or(Draw::Open(outlook.num_shown()), Draw::Steps)
    }

    /// Lets each of `runs` take its step; returns those that go on, grouped by their token.
    pub(super) fn take(&mut self, runs: &[usize], drawn: Vec<TraceStep>) -> Vec<(u32, Vec<usize>)> {
        let plan = self.plan;
        let mut children: Vec<(u32, Vec<usize>)> = Vec::new();
        for (&index, step) in runs.iter().zip(drawn) {
            let run = &mut self.runs[index];
            let token = step.token.token_id;
            run.trace.steps.push(step);
            let ended = match run.trace.steps.len() {
                _ if plan.stop_ids.contains(&token) => Some(FinishReason::Stop),
                steps if steps >= plan.max_new_tokens => Some(FinishReason::Length),
                steps if steps >= self.room => Some(FinishReason::Context),
                _ => None,
            };
            match ended {
                Some(finish_reason) => {
                    run.trace.finish_reason = finish_reason;
                    run.is_finished = true;
                }
                None => match children.iter_mut().find(|(other, _)| *other == token) {
                    Some((_, runs)) => runs.push(index),
                    None => children.push((token, vec![index])),
                },
            }
        }
        children
    }

    /// Returns how many tokens the runs have; one that has ended counts as if it had gone on to the limit.
    pub(super) fn num_done(&self) -> usize {
        let most = self.plan.max_new_tokens;
        let done = |run: &LiveRun| {
            if run.is_finished {
                most
            } else {
                run.trace.steps.len()
            }
        };
        let done = self.runs.iter().map(done);
        done.fold(0, usize::saturating_add)
    }

    /// Returns the traces of all runs.
    pub(super) fn into_exploration(self, rows_computed: usize) -> Exploration {
        let mut traces = self.runs.into_iter().map(|run| run.trace);
        let greedy = traces
            .next()
            .expect("the greedy run is the first of every grove");
        let sweeps = self
            .plan
            .settings
            .iter()
            .map(|_| traces.by_ref().take(self.plan.runs.len()).collect())
            .collect();
        Exploration {
            greedy,
            sweeps,
            rows_computed,
        }
    }
}
