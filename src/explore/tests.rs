//! Laws of exploring, on a scripted model.

use super::*;
use crate::model::Logits;
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
    type Shown = Logits;

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
            assert!(sampling.kept.is_some_and(|kept| step.rank <= kept));
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

/// Explores several prompts together; results in the order in which they came out.
fn run_all(
    model: &Scripted,
    prompts: &[&[u32]],
    plan: &Plan,
    batch: usize,
) -> Vec<(usize, Result<Exploration>)> {
    let mut results = Vec::new();
    let mut watch = |_: Progress| ControlFlow::Continue(());
    explore_all(
        model,
        prompts,
        plan,
        batch,
        &mut watch,
        &mut |index, done| {
            results.push((index, done));
        },
    );
    results
}

const PROMPTS: [&[u32]; 5] = [&[1, 2], &[3], &[5, 5, 5], &[0, 6], &[4]];

#[test]
fn prompts_together_give_what_each_gives_alone_and_in_order() -> Result<()> {
    for batch in [1, 2, 7, 64] {
        let model = Scripted::new();
        let together = run_all(&model, &PROMPTS, &plan()?, batch);
        assert!(model.batches.borrow().iter().all(|&rows| rows <= batch));
        for ((index, done), prompt) in together.into_iter().zip(0..) {
            assert_eq!(index, prompt);
            let alone = explore(&Scripted::new(), PROMPTS[index], &plan()?, &mut |_| {
                ControlFlow::Continue(())
            })?;
            assert_eq!(Some(done?), alone, "{batch} {index}");
        }
    }
    Ok(())
}

#[test]
fn prompts_share_their_steps() -> Result<()> {
    let steps = |batch| -> Result<usize> {
        let model = Scripted::new();
        assert_eq!(run_all(&model, &PROMPTS, &plan()?, batch).len(), 5);
        let steps = model.batches.borrow().len();
        Ok(steps)
    };
    assert!(steps(64)? < 20 && steps(1)? > 100);
    Ok(())
}

#[test]
fn a_prompt_that_cannot_be_run_does_not_touch_the_others() -> Result<()> {
    let prompts: [&[u32]; 3] = [&[1, 2], &[], &[3]];
    let results = run_all(&Scripted::new(), &prompts, &plan()?, 64);
    let is_ok: Vec<bool> = results.iter().map(|(_, done)| done.is_ok()).collect();
    assert_eq!(is_ok, [true, false, true]);
    assert_eq!(results[0].1.as_ref().ok(), Some(&run(&plan()?)?));
    Ok(())
}

/// The second prompt ends long before the first; an interruption then hands out what is complete.
#[test]
fn an_interruption_keeps_the_prompts_that_are_complete() -> Result<()> {
    let greedy = Plan {
        settings: Vec::new(),
        max_new_tokens: 500,
        ..plan()?
    };
    let lengths = PROMPTS.map(|prompt| {
        let alone = explore(&Scripted::new(), prompt, &greedy, &mut |_| {
            ControlFlow::Continue(())
        });
        let alone = alone.ok().flatten().expect("it is not interrupted");
        alone.greedy.steps.len()
    });
    let shortest = *lengths.iter().min().expect("five prompts");
    assert!(shortest < 500);
    let mut steps = 0;
    let mut complete = Vec::new();
    let mut watch = |_: Progress| {
        steps += 1;
        match steps > shortest {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let model = Scripted::new();
    explore_all(
        &model,
        &PROMPTS,
        &greedy,
        64,
        &mut watch,
        &mut |index, done| {
            complete.push((index, done.is_ok()));
        },
    );
    let expected: Vec<(usize, bool)> = (0..5)
        .filter(|&index| lengths[index] == shortest)
        .map(|index| (index, true))
        .collect();
    assert_eq!(complete, expected);
    Ok(())
}
