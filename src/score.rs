//! The confidence trace of a given text: what the model thought of each of its tokens, in one pass.
//!
//! The numbers come from the same distributions as those of a generated run. The module knows no tokenizer and prints
//! nothing.

use anyhow::{Context, Result};

use crate::distribution::outlook::Outlook;
use crate::explore::Summary;
use crate::model::{LanguageModel, widen_until};

/// What to score.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    /// What comes before; may be empty.
    pub prompt: &'a [u32],
    /// The tokens to score.
    pub text: &'a [u32],
    /// Ids of which the most probable is scored as the end of the text; none leaves the end open.
    pub ends: &'a [u32],
    /// Token sequences to score after the text, none of them empty; those of one token at every step, too.
    pub named: &'a [Vec<u32>],
    /// Candidates noted at every step.
    pub candidates: usize,
    /// The mass that `mass_count` counts up to.
    pub mass: f64,
}

/// What the model thought of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// One entry a token, the end included.
    pub steps: Vec<TraceStep>,
    /// One entry for each of [`Plan::named`]: its tokens, each after the text and those before it. The end is not there yet.
    pub named: Vec<Vec<Odds>>,
}

/// One token of the text.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceStep {
    /// Its id.
    pub token_id: u32,
    /// What the model expected; `None` for a first token without context.
    pub seen: Option<Seen>,
}

/// What the model expected where a token stands.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    /// Raw score of the token; `None` where it was not shown.
    pub logit: Option<f32>,
    /// What the distribution says of it.
    pub odds: Odds,
    /// The distribution.
    pub summary: Summary,
    /// One entry for each of [`Plan::named`]; `None` for those of several tokens, and for a token that was not shown.
    pub named: Vec<Option<Odds>>,
}

/// What a distribution says of one token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Odds {
    /// Natural logarithm of `prob`; -inf where that is 0 exactly.
    pub logprob: f32,
    /// Raw probability, in [0, 1].
    pub prob: f32,
    /// 1 for the best candidate.
    pub rank: usize,
}

impl Odds {
    /// `None` where the token was not shown.
    fn of(outlook: &Outlook, token_id: u32) -> Option<Self> {
        let logprob = outlook.logprob(token_id)?;
        Some(Self {
            logprob: logprob as f32,
            prob: logprob.exp() as f32,
            rank: outlook.rank(token_id)?,
        })
    }
}

/// Scores a text; `watch` is told how many of its tokens are done.
///
/// # Errors
/// When there is neither a prompt nor a text, they do not fit the model, or it fails.
pub fn score<M: LanguageModel>(
    model: &M,
    plan: &Plan,
    watch: &mut dyn FnMut(usize),
) -> Result<Trace> {
    let mut row = model.start();
    let mut expected = match plan.prompt {
        [] => None,
        prompt => {
            let shown = model.extend(&mut row, prompt)?;
            let wanted = plan.text.first().copied().into_iter();
            let wanted: Vec<u32> = wanted.chain(plan.singles()).collect();
            Some(see(
                model,
                &row,
                shown.try_into().map_err(Into::into)?,
                &wanted,
            )?)
        }
    };
    let mut steps = Vec::with_capacity(plan.text.len() + 1);
    if !plan.text.is_empty() {
        model.score(&mut row, plan.text, &mut |index, shown| {
            steps.push(plan.step(plan.text[index], expected.as_ref())?);
            expected = Some(shown.try_into().map_err(Into::into)?);
            watch(index + 1);
            Ok(())
        })?;
    }
    let expected = expected.ok_or_else(|| {
        anyhow::anyhow!("there is neither a prompt nor a text (expected at least one token)")
    })?;
    let firsts = plan.named.iter().map(|tokens| tokens[0]);
    let wanted: Vec<u32> = firsts.chain(plan.ends.iter().copied()).collect();
    let expected = see(model, &row, expected, &wanted)?;
    let named = plan.named.iter();
    let named = named.map(|tokens| sequence(model, &row, &expected, tokens));
    let named = named.collect::<Result<_>>()?;
    let end = plan.ends.iter().min_by_key(|&&id| expected.rank(id));
    if let Some(&end) = end {
        steps.push(plan.step(end, Some(&expected))?);
    }
    Ok(Trace { steps, named })
}

impl Plan<'_> {
    /// The tokens that are named at every step.
    fn singles(&self) -> impl Iterator<Item = u32> {
        let singles = self.named.iter().filter(|tokens| tokens.len() == 1);
        singles.flatten().copied()
    }

    fn step(&self, token_id: u32, expected: Option<&Outlook>) -> Result<TraceStep> {
        let seen = |expected: &Outlook| {
            let odds = Odds::of(expected, token_id).context("the token was not shown")?;
            anyhow::Ok(Seen {
                logit: expected.logit(token_id),
                odds,
                summary: Summary::of(expected, self.candidates, self.mass),
                named: self
                    .named
                    .iter()
                    .map(|tokens| match tokens[..] {
                        [token] => Odds::of(expected, token),
                        _ => None,
                    })
                    .collect(),
            })
        };
        Ok(TraceStep {
            token_id,
            seen: expected.map(seen).transpose()?,
        })
    }
}

/// Scores tokens one after the other behind what `row` has seen; `expected` is what comes first.
fn sequence<M: LanguageModel>(
    model: &M,
    row: &M::Row,
    expected: &Outlook,
    tokens: &[u32],
) -> Result<Vec<Odds>> {
    let mut row = row.clone();
    let mut odds = Vec::with_capacity(tokens.len());
    let mut outlook = expected.clone();
    for (index, &token) in tokens.iter().enumerate() {
        if index > 0 {
            let shown = model.extend(&mut row, &[tokens[index - 1]])?;
            let shown = shown.try_into().map_err(Into::into)?;
            outlook = see(model, &row, shown, &[token])?;
        }
        odds.push(Odds::of(&outlook, token).context("the token was not shown")?);
    }
    Ok(odds)
}

/// Has a model show more of what comes after a row, until all of `wanted` are in it.
fn see<M: LanguageModel>(
    model: &M,
    row: &M::Row,
    outlook: Outlook,
    wanted: &[u32],
) -> Result<Outlook> {
    let are_seen = |outlook: &Outlook| {
        let mut ranks = wanted.iter().map(|&id| outlook.rank(id));
        Ok(ranks.all(|rank| rank.is_some()).then_some(()))
    };
    widen_until(model, row, outlook, are_seen).map(|(outlook, ())| outlook)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explore::{Plan as RunPlan, explore};
    use crate::model::Logits;
    use crate::setting::Setting;
    use anyhow::ensure;
    use std::ops::ControlFlow;

    /// A model of five tokens whose logits depend on all that it has seen, in order.
    struct Scripted;

    impl LanguageModel for Scripted {
        type Row = Vec<u32>;
        type Shown = Logits;

        fn vocab_size(&self) -> usize {
            5
        }

        fn max_positions(&self) -> usize {
            64
        }

        fn start(&self) -> Vec<u32> {
            Vec::new()
        }

        fn extend(&self, row: &mut Vec<u32>, tokens: &[u32]) -> Result<Logits> {
            ensure!(!tokens.is_empty(), "no token");
            row.extend(tokens);
            let hash = row
                .iter()
                .fold(7u32, |hash, &id| hash.wrapping_mul(31).wrapping_add(id + 1));
            Ok((0..5).map(|id| (hash >> (3 * id) & 7) as f32).collect())
        }

        fn step(&self, rows: &mut [Vec<u32>], tokens: &[u32]) -> Result<Vec<Logits>> {
            let rows = rows.iter_mut().zip(tokens);
            rows.map(|(row, &token)| self.extend(row, &[token]))
                .collect()
        }

        fn score(
            &self,
            row: &mut Vec<u32>,
            tokens: &[u32],
            each: &mut dyn FnMut(usize, Logits) -> Result<()>,
        ) -> Result<()> {
            ensure!(!tokens.is_empty(), "no token");
            tokens.iter().enumerate().try_for_each(|(index, &token)| {
                let logits = self.extend(row, &[token])?;
                each(index, logits)
            })
        }
    }

    fn plan<'a>(prompt: &'a [u32], text: &'a [u32], named: &'a [Vec<u32>]) -> Plan<'a> {
        Plan {
            prompt,
            text,
            ends: &[],
            named,
            candidates: 3,
            mass: 0.9,
        }
    }

    fn scored(plan: &Plan) -> Trace {
        score(&Scripted, plan, &mut |_| ()).expect("scores")
    }

    #[test]
    fn a_run_that_is_scored_has_the_numbers_that_it_was_made_with() -> Result<()> {
        let run_plan = RunPlan {
            max_new_tokens: 9,
            settings: vec![Setting::OFF],
            runs: vec![0, 1, 2],
            seed: 0,
            stop_ids: vec![4],
            candidates: 3,
            mass: 0.9,
        };
        let mut on = |_| ControlFlow::Continue(());
        let exploration = explore(&Scripted, &[1, 2], &run_plan, &mut on)?.expect("not broken off");
        let runs = exploration.sweeps.iter().flatten();
        for run in runs.chain([&exploration.greedy]) {
            let ids: Vec<u32> = run.steps.iter().map(|step| step.token.token_id).collect();
            let trace = scored(&plan(&[1, 2], &ids, &[]));
            assert_eq!(trace.steps.len(), run.steps.len());
            for (scored, made) in trace.steps.iter().zip(&run.steps) {
                let seen = scored.seen.as_ref().expect("there is a prompt");
                assert_eq!((seen.logit, seen.odds.rank), (made.token.logit, made.rank));
                assert_eq!(
                    (seen.odds.logprob, seen.odds.prob),
                    (made.token.logprob, made.token.prob)
                );
                assert_eq!(seen.summary, *made.summary);
            }
        }
        Ok(())
    }

    #[test]
    fn a_text_without_a_prompt_has_a_first_token_without_a_number() {
        let trace = scored(&plan(&[], &[1, 2, 3], &[]));
        assert_eq!(trace.steps[0].seen, None);
        let with_prompt = scored(&plan(&[1], &[2, 3], &[]));
        assert_eq!(trace.steps[1..], with_prompt.steps);
        assert!(score(&Scripted, &plan(&[], &[], &[]), &mut |_| ()).is_err());
    }

    #[test]
    fn a_named_sequence_is_scored_as_if_it_were_the_text() {
        let named = [vec![3], vec![3, 0, 2]];
        let trace = scored(&plan(&[1], &[2], &named));
        let as_text = scored(&plan(&[1], &[2, 3, 0, 2], &[]));
        let odds: Vec<Odds> = as_text.steps[1..]
            .iter()
            .filter_map(|step| Some(step.seen.as_ref()?.odds))
            .collect();
        assert_eq!(trace.named, [odds[..1].to_vec(), odds]);
        let seen = trace.steps[0].seen.as_ref().expect("there is a prompt");
        assert!(seen.named[0].is_some() && seen.named[1].is_none());
    }

    #[test]
    fn the_end_is_the_most_probable_of_its_ids() {
        let ends = Plan {
            ends: &[0, 1, 2, 3],
            ..plan(&[1], &[2], &[])
        };
        let open = plan(&[1], &[2], &[]);
        let trace = scored(&ends);
        let best = scored(&Plan {
            named: &[vec![0], vec![1], vec![2], vec![3]],
            ..open.clone()
        });
        let ranks = best.named.iter().map(|odds| odds[0].rank);
        let best = ranks.zip(0u32..).min().map(|(_, id)| id);
        assert_eq!(Some(trace.steps[1].token_id), best);
        assert_eq!(trace.steps[..1], scored(&open).steps);
    }
}
