//! The exploration of one prompt: a greedy run and many sampled ones, as a tree in which equal beginnings are computed once.
//!
//! All runs start from one prefilled prompt. Runs with the same tokens so far are one *branch*: one row, one distribution.
//! A branch forks only where its runs draw different tokens. The module knows no tokenizer and prints nothing.

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Result, ensure};

use crate::distribution::Distribution;
use crate::model::{LanguageModel, Logits};
use crate::record::{FinishReason, Sampling};
use crate::sampler::coin;
use crate::setting::Setting;

/// Branches that are stepped together at most. What waits shares its parent's memory, so this bounds the memory of any
/// number of runs; the matrix products gain little above it.
const MAX_ROWS: usize = 64;

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
    fn of(distribution: &Distribution, token_id: u32) -> Self {
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
        let best = distribution.ranked().iter().take(candidates);
        Self {
            entropy_bits: distribution.entropy_bits() as f32,
            mass_count: distribution.mass_count(mass),
            margin: distribution.margin(),
            candidates: best
                .map(|&id| Scored::of(distribution, id))
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

/// Explores one prompt. `watch` is called after every step and ends the exploration by breaking; then there is no result.
///
/// # Errors
/// When the prompt is empty or leaves no room for a token, or the model fails.
pub fn explore<M: LanguageModel>(
    model: &M,
    prompt: &[u32],
    plan: &Plan,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Option<Exploration>> {
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
    let mut row = model.start();
    let logits = model.extend(&mut row, prompt)?;
    let mut grove = Grove::new(plan, room);
    let all = (0..grove.runs.len()).collect();
    let mut waiting = grove.grow(vec![(Branch { row, runs: all }, logits)])?;
    let mut rows_computed = 0;
    while !waiting.is_empty() {
        if watch(grove.progress()).is_break() {
            return Ok(None);
        }
        // the deepest branches come first: they end soonest
        let next = waiting.split_off(waiting.len().saturating_sub(MAX_ROWS));
        let (mut rows, rest): (Vec<_>, Vec<_>) = next
            .into_iter()
            .map(|fork| (fork.row, (fork.token, fork.runs)))
            .unzip();
        let tokens: Vec<u32> = rest.iter().map(|(token, _)| *token).collect();
        let logits = model.step(&mut rows, &tokens)?;
        rows_computed += tokens.len();
        let branches = rows
            .into_iter()
            .zip(rest)
            .map(|(row, (_, runs))| Branch { row, runs });
        waiting.extend(grove.grow(branches.zip(logits).collect())?);
    }
    // complete: an interruption from here on takes nothing away
    let _ = watch(grove.progress());
    Ok(Some(grove.into_exploration(rows_computed)))
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

/// A run that is being made.
struct LiveRun {
    /// Index into the plan's settings; `None` is the greedy run.
    setting: Option<usize>,
    trace: Trace,
    is_finished: bool,
}

/// All runs of an exploration on their way.
struct Grove<'a> {
    plan: &'a Plan,
    /// Tokens that fit behind the prompt.
    room: usize,
    runs: Vec<LiveRun>,
}

impl<'a> Grove<'a> {
    fn new(plan: &'a Plan, room: usize) -> Self {
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

    /// Draws the next token of every run of every branch and returns the forks that go on.
    fn grow<R: Clone>(&mut self, branches: Vec<(Branch<R>, Logits)>) -> Result<Vec<Fork<R>>> {
        let mut forks = Vec::new();
        for (branch, logits) in branches {
            let distribution = Distribution::from_logits(logits)?;
            let children = self.draw(&distribution, &branch.runs);
            forks.extend(children.into_iter().map(|(token, runs)| Fork {
                row: branch.row.clone(),
                token,
                runs,
            }));
        }
        Ok(forks)
    }

    /// Draws a token for each of `runs` from their common distribution; returns those that go on, grouped by token.
    fn draw(&mut self, distribution: &Distribution, runs: &[usize]) -> Vec<(u32, Vec<usize>)> {
        let plan = self.plan;
        let summary = Arc::new(Summary::of(distribution, plan.candidates, plan.mass));
        let mut filtered = vec![None; plan.settings.len()];
        let mut children: Vec<(u32, Vec<usize>)> = Vec::new();
        for &index in runs {
            let run = &mut self.runs[index];
            let (token, sampling) = match run.setting {
                None => (distribution.ranked()[0], None),
                Some(setting) => {
                    let (kept, kept_mass) = *filtered[setting].get_or_insert_with(|| {
                        let kept = distribution.filtered(&plan.settings[setting]);
                        (kept, kept.kept_mass() as f32)
                    });
                    let token = kept.draw(coin(plan.seed, run.trace.run, run.trace.steps.len()));
                    let sampling = Sampling {
                        prob: kept.prob(token) as f32,
                        kept: kept.kept(),
                        kept_mass,
                    };
                    (token, Some(sampling))
                }
            };
            run.trace.steps.push(TraceStep {
                token: Scored::of(distribution, token),
                rank: distribution.rank(token),
                sampling,
                summary: summary.clone(),
            });
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

    fn progress(&self) -> Progress {
        let most = self.plan.max_new_tokens;
        let done = |run: &LiveRun| {
            if run.is_finished {
                most
            } else {
                run.trace.steps.len()
            }
        };
        Progress {
            done: self.runs.iter().map(done).sum(),
            total: self.runs.len() * most,
        }
    }

    fn into_exploration(self, rows_computed: usize) -> Exploration {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// A model whose logits are a function of the last two tokens; it counts its rows and remembers its batches.
    struct Scripted {
        max_positions: usize,
        rows: Cell<usize>,
        batches: RefCell<Vec<usize>>,
    }

    const VOCAB: u32 = 8;
    const STOP: u32 = 7;

    impl Scripted {
        fn new() -> Self {
            Self {
                max_positions: 1000,
                rows: Cell::new(0),
                batches: RefCell::default(),
            }
        }

        fn logits(row: &[u32]) -> Logits {
            let last = row.last().copied().unwrap_or(0);
            let before = row.iter().rev().nth(1).copied().unwrap_or(0);
            (0..VOCAB)
                .map(|id| ((id * 5 + last * 3 + before) % 8) as f32 * 0.5)
                .collect()
        }
    }

    impl LanguageModel for Scripted {
        type Row = Vec<u32>;

        fn vocab_size(&self) -> usize {
            VOCAB as usize
        }

        fn max_positions(&self) -> usize {
            self.max_positions
        }

        fn start(&self) -> Vec<u32> {
            Vec::new()
        }

        fn extend(&self, row: &mut Vec<u32>, tokens: &[u32]) -> Result<Logits> {
            row.extend(tokens);
            Ok(Self::logits(row))
        }

        fn step(&self, rows: &mut [Vec<u32>], tokens: &[u32]) -> Result<Vec<Logits>> {
            self.rows.set(self.rows.get() + rows.len());
            self.batches.borrow_mut().push(rows.len());
            let pairs = rows.iter_mut().zip(tokens);
            pairs
                .map(|(row, &token)| self.extend(row, &[token]))
                .collect()
        }

        fn score(
            &self,
            _: &mut Vec<u32>,
            _: &[u32],
            _: &mut dyn FnMut(usize, Logits) -> Result<()>,
        ) -> Result<()> {
            Ok(())
        }
    }

    fn plan() -> Result<Plan> {
        Ok(Plan {
            max_new_tokens: 12,
            settings: vec![
                Setting::OFF.with_temperature(0.3)?,
                Setting::OFF,
                Setting::OFF.with_top_p(0.9)?,
            ],
            runs: (0..5).collect(),
            seed: 0,
            stop_ids: vec![STOP],
            candidates: 3,
            mass: 0.9,
        })
    }

    fn run(plan: &Plan) -> Result<Exploration> {
        run_on(&Scripted::new(), plan)
    }

    fn run_on(model: &Scripted, plan: &Plan) -> Result<Exploration> {
        let exploration = explore(model, &[1, 2], plan, &mut |_| ControlFlow::Continue(()))?;
        exploration.ok_or_else(|| anyhow::anyhow!("nobody interrupted it"))
    }

    fn ids(trace: &Trace) -> Vec<u32> {
        trace.steps.iter().map(|step| step.token.token_id).collect()
    }

    #[test]
    fn the_greedy_run_takes_the_best_candidate_and_ignores_the_seed() -> Result<()> {
        let (one, other) = (
            run(&plan()?)?,
            run(&Plan {
                seed: 99,
                ..plan()?
            })?,
        );
        assert_eq!(one.greedy, other.greedy);
        assert!(
            one.greedy
                .steps
                .iter()
                .all(|step| step.rank == 1 && step.sampling.is_none())
        );
        assert_ne!(one.sweeps, other.sweeps);
        Ok(())
    }

    #[test]
    fn a_run_alone_is_the_run_in_its_batch() -> Result<()> {
        let all = run(&plan()?)?;
        for (setting, sweep) in all.sweeps.iter().enumerate() {
            for trace in sweep {
                let alone = run(&Plan {
                    settings: vec![plan()?.settings[setting]],
                    runs: vec![trace.run],
                    ..plan()?
                })?;
                assert_eq!(alone.sweeps, [[trace.clone()]]);
                assert_eq!(alone.greedy, all.greedy);
            }
        }
        Ok(())
    }

    #[test]
    fn settings_in_another_order_give_the_same_runs() -> Result<()> {
        let mut reversed = plan()?;
        reversed.settings.reverse();
        let mut sweeps = run(&reversed)?.sweeps;
        sweeps.reverse();
        assert_eq!(sweeps, run(&plan()?)?.sweeps);
        Ok(())
    }

    /// Every distinct beginning that goes on is computed once, and nothing else is.
    #[test]
    fn equal_beginnings_share_one_row() -> Result<()> {
        let model = Scripted::new();
        let exploration = run_on(&model, &plan()?)?;
        let mut beginnings = std::collections::BTreeSet::new();
        let mut separate = 0;
        for trace in exploration
            .sweeps
            .iter()
            .flatten()
            .chain([&exploration.greedy])
        {
            let ids = ids(trace);
            separate += ids.len() - 1;
            beginnings.extend((1..ids.len()).map(|end| ids[..end].to_vec()));
        }
        assert_eq!(model.rows.get(), beginnings.len());
        assert_eq!(exploration.rows_computed, beginnings.len());
        assert!(
            beginnings.len() < separate,
            "{} of {separate}",
            beginnings.len()
        );
        Ok(())
    }

    #[test]
    fn greedy_replies_that_samples_repeat_cost_nothing() -> Result<()> {
        let zero = Plan {
            settings: vec![Setting::OFF.with_temperature(0.0)?; 3],
            ..plan()?
        };
        let exploration = run(&zero)?;
        assert_eq!(
            exploration.rows_computed,
            exploration.greedy.steps.len() - 1
        );
        for trace in exploration.sweeps.iter().flatten() {
            assert_eq!(ids(trace), ids(&exploration.greedy));
        }
        Ok(())
    }

    #[test]
    fn many_runs_go_in_bounded_batches_and_are_the_same_runs() -> Result<()> {
        let model = Scripted::new();
        let many = Plan {
            runs: (0..200).collect(),
            ..plan()?
        };
        let exploration = run_on(&model, &many)?;
        assert!(model.batches.borrow().iter().all(|&rows| rows <= MAX_ROWS));
        let few = run(&plan()?)?;
        for (sweep, expected) in exploration.sweeps.iter().zip(&few.sweeps) {
            assert_eq!(sweep.len(), 200);
            assert_eq!(sweep[..5], expected[..]);
        }
        Ok(())
    }

    #[test]
    fn a_run_ends_at_a_stop_id_at_the_limit_or_at_the_end_of_the_context() -> Result<()> {
        let exploration = run(&plan()?)?;
        let mut reasons = Vec::new();
        for trace in exploration.sweeps.iter().flatten() {
            let ids = ids(trace);
            let (last, before) = ids.split_last().expect("a run has at least one step");
            assert!(!before.contains(&STOP));
            match trace.finish_reason {
                FinishReason::Stop => assert_eq!(*last, STOP),
                _ => assert_eq!((ids.len(), *last != STOP), (12, true)),
            }
            reasons.push(trace.finish_reason);
        }
        assert!(reasons.contains(&FinishReason::Stop) && reasons.contains(&FinishReason::Length));

        let short = Scripted {
            max_positions: 5,
            ..Scripted::new()
        };
        let endless = Plan {
            stop_ids: Vec::new(),
            ..plan()?
        };
        for trace in run_on(&short, &endless)?.sweeps.iter().flatten() {
            assert_eq!(
                (trace.steps.len(), trace.finish_reason),
                (3, FinishReason::Context)
            );
        }
        Ok(())
    }

    #[test]
    fn a_prompt_that_leaves_no_room_is_refused_with_both_numbers() -> Result<()> {
        let short = Scripted {
            max_positions: 2,
            ..Scripted::new()
        };
        let error = run_on(&short, &plan()?)
            .expect_err("two tokens fill two places")
            .to_string();
        assert!(error.contains("has 2 tokens, the model takes 2"), "{error}");
        let empty = explore(&Scripted::new(), &[], &plan()?, &mut |_| {
            ControlFlow::Continue(())
        });
        assert!(empty.is_err());
        Ok(())
    }

    #[test]
    fn the_same_coins_are_used_at_every_setting() -> Result<()> {
        let twice = Plan {
            settings: vec![Setting::OFF, Setting::OFF],
            ..plan()?
        };
        let sweeps = run(&twice)?.sweeps;
        assert_eq!(sweeps[0], sweeps[1]);
        Ok(())
    }

    #[test]
    fn every_sampled_token_lies_in_its_kept_set_and_keeps_its_raw_probability() -> Result<()> {
        for trace in run(&plan()?)?.sweeps.iter().flatten() {
            for step in &trace.steps {
                let sampling = step
                    .sampling
                    .expect("a sampled run notes what the sampler saw");
                assert!(step.rank <= sampling.kept);
                let listed = step
                    .summary
                    .candidates
                    .iter()
                    .find(|c| c.token_id == step.token.token_id);
                assert!(listed.is_none_or(|candidate| *candidate == step.token));
            }
        }
        Ok(())
    }

    #[test]
    fn breaking_ends_the_exploration_without_a_result() -> Result<()> {
        let result = explore(
            &Scripted::new(),
            &[1],
            &plan()?,
            &mut |progress| match progress.done > 20 {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            },
        )?;
        assert_eq!(result, None);
        Ok(())
    }
}
