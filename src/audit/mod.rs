//! The greedy run again, computed in other ways: whether its numbers stay the same, and its reply.
//!
//! A run is repeated in two ways at once: it is *led* through the tokens of the reference, so that every step is compared
//! after the same context; and from the first step where its own best candidate is another one, a copy of it goes on *free*.
//! The module knows the model by its trait alone, no tokenizer, and prints nothing.

mod difference;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::ControlFlow;

use anyhow::{Context, Result, ensure};

pub use difference::{Difference, Flip, Sides, difference};

use crate::distribution::Distribution;
use crate::model::{LanguageModel, Logits};
use crate::record::FinishReason;

/// When a reply ends.
#[derive(Debug, Clone, Copy)]
pub struct Plan<'a> {
    /// At this many tokens at the latest; at least 1.
    pub max_new_tokens: usize,
    /// At any of these ids.
    pub stop_ids: &'a [u32],
}

/// How a run is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The prompt at once, then token by token, with nothing beside it.
    Alone,
    /// As alone, on so many threads.
    Threads(usize),
    /// As alone, stepped together with others: so many rows in all, which have seen other prompts of other lengths.
    Batch(usize),
    /// The prompt in pieces of these lengths, over and over; none is 0.
    Pieces(&'static [usize]),
    /// The prompt at once, then the whole reply at once.
    Scored,
}

/// What came out of a run that was left to itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Its tokens, a stop token included.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// The run that others are compared with.
#[derive(Debug, Clone, PartialEq)]
pub struct Reference {
    /// What came out.
    pub reply: Reply,
    /// The logits that each of its tokens was chosen from.
    pub logits: Vec<Logits>,
}

/// A run that was led through the tokens of a reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Led {
    /// The logits at each of the reference's steps.
    pub logits: Vec<Logits>,
    /// What comes out when the run is left to itself; `None` where that is the reference's reply, or where a reply cannot be
    /// made in this way ([`Way::Scored`]).
    pub free: Option<Reply>,
}

/// Told how many steps of the reference are done; breaks a run off.
pub type Watch<'a> = dyn FnMut(usize) -> ControlFlow<()> + Send + 'a;

impl Way {
    /// Returns whether a reply can be made in this way.
    pub fn can_generate(self) -> bool {
        self != Self::Scored
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Alone => f.write_str("alone"),
            Self::Threads(1) => f.write_str("1 thread"),
            Self::Threads(threads) => write!(f, "{threads} threads"),
            Self::Batch(rows) => write!(f, "in a batch of {rows}"),
            Self::Pieces([1]) => f.write_str("prompt token by token"),
            Self::Pieces(_) => f.write_str("prompt in uneven pieces"),
            Self::Scored => f.write_str("reply in one pass"),
        }
    }
}

/// Makes the greedy run; `None` where `watch` breaks it off.
///
/// # Errors
/// When the prompt is empty or leaves no room for a token, or the model fails.
pub fn reference<M: LanguageModel<Shown = Logits>>(
    model: &M,
    prompt: &[u32],
    plan: &Plan,
    watch: &mut Watch,
) -> Result<Option<Reference>> {
    let (mut walk, logits) = Walk::start(model, Way::Alone, prompt)?;
    let mut all = Vec::new();
    let mut keep = |logits| all.push(logits);
    let reply = walk.generate(logits, Vec::new(), plan, &mut keep, watch)?;
    Ok(reply.map(|reply| Reference { reply, logits: all }))
}

/// Leads another run through the tokens of a reference; `None` where `watch` breaks it off.
///
/// # Errors
/// As [`reference()`], or when there is no reply, or no thread can be started.
pub fn lead<M: LanguageModel<Shown = Logits> + Sync>(
    model: &M,
    way: Way,
    prompt: &[u32],
    reply: &[u32],
    plan: &Plan,
    watch: &mut Watch,
) -> Result<Option<Led>> {
    ensure!(
        !reply.is_empty(),
        "there is no reply to follow (expected at least one token)"
    );
    match way {
        Way::Threads(threads) => {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.with_context(|| format!("{threads} threads cannot be started"))?
                .install(|| stepped(model, Way::Alone, prompt, reply, plan, watch))
        }
        Way::Scored => scored(model, prompt, reply, watch),
        _ => stepped(model, way, prompt, reply, plan, watch),
    }
}

fn stepped<M: LanguageModel<Shown = Logits>>(
    model: &M,
    way: Way,
    prompt: &[u32],
    reply: &[u32],
    plan: &Plan,
    watch: &mut Watch,
) -> Result<Option<Led>> {
    let (mut walk, mut next) = Walk::start(model, way, prompt)?;
    let mut logits = Vec::with_capacity(reply.len());
    let mut parted = None;
    for (index, &token) in reply.iter().enumerate() {
        if index > 0 {
            next = walk.advance(reply[index - 1])?;
        }
        if parted.is_none() && argmax(&next)? != token {
            parted = Some((walk.clone(), next.clone(), reply[..index].to_vec()));
        }
        logits.push(next.clone());
        if watch(index + 1).is_break() {
            return Ok(None);
        }
    }
    let Some((mut walk, next, before)) = parted else {
        return Ok(Some(Led { logits, free: None }));
    };
    let mut on = |_| watch(reply.len());
    let free = walk.generate(next, before, plan, &mut |_| (), &mut on)?;
    Ok(free.map(|free| Led {
        logits,
        free: Some(free),
    }))
}

fn scored<M: LanguageModel<Shown = Logits>>(
    model: &M,
    prompt: &[u32],
    reply: &[u32],
    watch: &mut Watch,
) -> Result<Option<Led>> {
    let mut row = model.start();
    let mut logits = vec![model.extend(&mut row, prompt)?];
    let before_last = &reply[..reply.len() - 1];
    if !before_last.is_empty() {
        model.score(&mut row, before_last, &mut |_, next| {
            logits.push(next);
            Ok(())
        })?;
    }
    let led = Led { logits, free: None };
    Ok(watch(reply.len()).is_continue().then_some(led))
}

/// A run on its way, with the rows beside it.
struct Walk<'a, M: LanguageModel<Shown = Logits>> {
    model: &'a M,
    rows: Vec<M::Row>,
    /// The next token of every row but the run's own.
    next: Vec<u32>,
    /// Which row is the run's own.
    own: usize,
    /// Tokens that fit behind the prompt.
    room: usize,
}

impl<M: LanguageModel<Shown = Logits>> Clone for Walk<'_, M> {
    fn clone(&self) -> Self {
        Self {
            rows: self.rows.clone(),
            next: self.next.clone(),
            ..*self
        }
    }
}

impl<'a, M: LanguageModel<Shown = Logits>> Walk<'a, M> {
    /// Feeds the prompt and returns the logits after it.
    fn start(model: &'a M, way: Way, prompt: &[u32]) -> Result<(Self, Logits)> {
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
        let mut logits = Logits::new();
        let lengths = match way {
            Way::Pieces(lengths) => lengths,
            _ => &[usize::MAX],
        };
        let mut rest = prompt;
        for &length in lengths.iter().cycle() {
            let (piece, after) = rest.split_at(length.min(rest.len()));
            logits = model.extend(&mut row, piece)?;
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        let (mut rows, mut next) = (vec![row], vec![0]);
        let mut own = 0;
        if let Way::Batch(size) = way {
            for neighbour in neighbours(prompt, size.saturating_sub(1)) {
                let mut row = model.start();
                next.push(argmax(&model.extend(&mut row, &neighbour)?)?);
                rows.push(row);
            }
            own = rows.len() / 2;
            rows.swap(0, own);
            next.swap(0, own);
        }
        let walk = Self {
            model,
            rows,
            next,
            own,
            room,
        };
        Ok((walk, logits))
    }

    /// Feeds the run's next token, with one to every row beside it, and returns the logits after it.
    fn advance(&mut self, token: u32) -> Result<Logits> {
        self.next[self.own] = token;
        let mut logits = self.model.step(&mut self.rows, &self.next)?;
        for (row, next) in self.next.iter_mut().enumerate() {
            if row != self.own {
                *next = argmax(&logits[row])?;
            }
        }
        Ok(logits.swap_remove(self.own))
    }

    /// Goes on from `tokens`, the logits after which are `logits`, always with the best candidate. `keep` is handed the
    /// logits that each token was chosen from.
    fn generate(
        &mut self,
        mut logits: Logits,
        mut tokens: Vec<u32>,
        plan: &Plan,
        keep: &mut dyn FnMut(Logits),
        watch: &mut Watch,
    ) -> Result<Option<Reply>> {
        loop {
            let token = argmax(&logits)?;
            keep(logits);
            tokens.push(token);
            if watch(tokens.len()).is_break() {
                return Ok(None);
            }
            let ended = match tokens.len() {
                _ if plan.stop_ids.contains(&token) => Some(FinishReason::Stop),
                steps if steps >= plan.max_new_tokens => Some(FinishReason::Length),
                steps if steps >= self.room => Some(FinishReason::Context),
                _ => None,
            };
            if let Some(finish_reason) = ended {
                return Ok(Some(Reply {
                    tokens,
                    finish_reason,
                }));
            }
            logits = self.advance(token)?;
        }
    }
}

/// Prompts to be computed beside one: its own ids backwards, from one of them up to all, so that no two are of one length
/// where there are enough.
fn neighbours(prompt: &[u32], count: usize) -> impl Iterator<Item = Vec<u32>> {
    (0..count).map(move |index| {
        let length = 1 + index * (prompt.len() - 1) / count.saturating_sub(1).max(1);
        prompt.iter().rev().take(length).copied().collect()
    })
}

fn argmax(logits: &Logits) -> Result<u32> {
    Ok(Distribution::from_logits(logits.clone())?.argmax())
}
