//! The record in the shape of the OpenAI API: a `chat.completion` a prompt, one a line, its runs as choices.
//!
//! `logprobs.content[]` has the model's own log-probabilities. A candidate that the sampler could not draw, because a filter
//! excluded it, has -9999.0 there, as servers write it. `bytes` are a token's real bytes, and null for control tokens, which are
//! no text; a run's stop token is the last entry.

use std::io::{self, Write};

use serde::Serialize;

use crate::record::{Candidate, FinishReason, PromptEntry, PromptRecord, Record, Run, Step};
use crate::report::json;

/// The log-probability of what cannot be drawn.
const EXCLUDED: f32 = -9999.0;

#[derive(Serialize)]
struct Completion<'a> {
    id: String,
    object: &'static str,
    /// There is no clock in a record.
    created: u64,
    model: &'a str,
    choices: Vec<Choice<'a>>,
    usage: Usage,
}

#[derive(Serialize)]
struct Choice<'a> {
    index: usize,
    message: Message<'a>,
    finish_reason: &'static str,
    logprobs: Content<'a>,
    /// Not the API's: `greedy`, or the setting.
    setting: &'a str,
    /// Not the API's: the run's index in its sweep.
    run: u32,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
}

#[derive(Serialize)]
struct Content<'a> {
    content: Vec<Token<'a>>,
}

#[derive(Serialize)]
struct Token<'a> {
    token: &'a str,
    logprob: f32,
    bytes: Option<&'a [u8]>,
    top_logprobs: Vec<TopToken<'a>>,
}

#[derive(Serialize)]
struct TopToken<'a> {
    token: &'a str,
    logprob: f32,
    bytes: Option<&'a [u8]>,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
}

/// Writes one line for each prompt that was run.
///
/// # Errors
/// When `out` fails.
pub fn record(record: &Record, out: &mut impl Write) -> io::Result<()> {
    for (number, entry) in (1..).zip(&record.prompts) {
        if let PromptEntry::Done(done) = entry {
            json::write_compact(&completion(&record.model.id, number, done), out)?;
        }
    }
    Ok(())
}

fn completion<'a>(model: &'a str, number: usize, done: &'a PromptRecord) -> Completion<'a> {
    let sampled = done
        .sweeps
        .iter()
        .flat_map(|sweep| sweep.runs.iter().map(|run| (sweep.label.as_str(), run)));
    let runs = std::iter::once(("greedy", &done.greedy)).chain(sampled);
    let choices: Vec<Choice> = runs
        .enumerate()
        .map(|(index, (setting, run))| choice(index, setting, run))
        .collect();
    let completion_tokens = choices
        .iter()
        .map(|choice| choice.logprobs.content.len())
        .sum();
    let prompt_tokens = done.prompt_token_ids.len();
    Completion {
        id: done
            .id
            .clone()
            .unwrap_or_else(|| format!("prompt-{number}")),
        object: "chat.completion",
        created: 0,
        model,
        choices,
        usage: Usage {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
        },
    }
}

fn choice<'a>(index: usize, setting: &'a str, run: &'a Run) -> Choice<'a> {
    Choice {
        index,
        message: Message {
            role: "assistant",
            content: &run.text,
        },
        // the API has no word of its own for a full context
        finish_reason: match run.finish_reason {
            FinishReason::Stop => "stop",
            FinishReason::Length | FinishReason::Context => "length",
        },
        logprobs: Content {
            content: run.steps.iter().map(token).collect(),
        },
        setting,
        run: run.run,
    }
}

fn token(step: &Step) -> Token<'_> {
    // what is kept are the best so many
    let kept = step.sampling.and_then(|sampling| sampling.kept);
    let kept = kept.unwrap_or(usize::MAX);
    Token {
        token: &step.token,
        logprob: step.logprob,
        bytes: text_bytes(&step.bytes, step.special),
        top_logprobs: step
            .top_logprobs
            .iter()
            .enumerate()
            .map(|(index, top)| top_token(top, index < kept))
            .collect(),
    }
}

fn top_token(candidate: &Candidate, is_kept: bool) -> TopToken<'_> {
    TopToken {
        token: &candidate.token,
        logprob: if is_kept { candidate.logprob } else { EXCLUDED },
        bytes: text_bytes(&candidate.bytes, candidate.special),
    }
}

fn text_bytes(bytes: &[u8], is_special: bool) -> Option<&[u8]> {
    (!is_special && !bytes.is_empty()).then_some(bytes)
}
