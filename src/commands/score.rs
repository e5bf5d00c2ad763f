//! `score`: a given text becomes ids, a trace, a record, and what is printed of it.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use super::{check_out, write_record};
use crate::analysis;
use crate::cli::{Given, ScoreRequest, Subject};
use crate::engine::{Engine, Local};
use crate::input::Input;
use crate::progress;
use crate::prompts::{self, Prompt};
use crate::record::score::{Named, NamedToken, Odds, Recorded, Score, ScoreSettings, ScoredStep};
use crate::record::{
    FinishReason, ModelInfo, PROGRAM, PromptEntry, PromptRecord, Record, Run, SCHEMA,
};
use crate::recorded;
use crate::remote::Remote;
use crate::report;
use crate::score::{self, Plan, Trace, TraceStep};
use crate::screen::{Screen, Stderr};
use crate::server::OWN_TOKENIZER;
use crate::text::display;
use crate::text::tokenizer::Reading;
use crate::transcript::{Transcript, plain_text};

/// What stands where neither a flag nor a record says otherwise: candidates, mass, threshold.
const DEFAULTS: (usize, f64, f64) = (5, 0.9, 0.3);

/// Scores a text, prints its trace and writes it.
///
/// # Errors
/// When the model or the text cannot be used, or the record cannot be written.
pub(crate) fn run(request: &ScoreRequest) -> Result<ExitCode> {
    check_out(&request.output.out)?;
    let source = Source::read(&request.subject)?;
    let messages = Stderr::new(&request.output);
    let (model, chat) = (&request.model, &request.chat);
    match &model.server.server {
        None => run_on(
            &Local::open(&model.local, chat, &messages)?,
            source,
            request,
            &messages,
        ),
        Some(address) => {
            let candidates = request.candidates.unwrap_or(DEFAULTS.0);
            let remote = Remote::connect(address, model, chat, candidates, &messages)?;
            run_on(&remote, source, request, &messages)
        }
    }
}

fn run_on<E: Engine>(
    engine: &E,
    source: Source,
    request: &ScoreRequest,
    messages: &Stderr,
) -> Result<ExitCode> {
    if request.end && engine.stop_ids().is_empty() {
        let server = engine.info().server;
        match server.is_some_and(|server| server.tokenizer == OWN_TOKENIZER) {
            true => bail!(
                "the server ends a reply with none of the usual end tokens (leave out --end, or give --tokenizer)"
            ),
            false => bail!("the model's files name no end token (leave out --end)"),
        }
    }
    let material = source.into_material(request, engine, messages)?;
    let named = named_ids(request, engine)?;
    let behind = named.iter().map(|ids| ids.len() - 1).max().unwrap_or(0);
    let length = material.prompt_ids.len() + material.ids.len() + behind;
    engine.check_text(length)?;

    let model = engine.load(messages)?;
    let bar = progress::bar("scoring", material.ids.len() as u64, messages.quiet);
    let plan = Plan {
        prompt: &material.prompt_ids,
        text: &material.ids,
        ends: match request.end {
            true => engine.stop_ids(),
            false => &[],
        },
        named: &named,
        candidates: material.settings.candidates,
        mass: material.settings.mass,
    };
    let trace = score::score(&model, &plan, &mut |done| bar.set_position(done as u64))?;
    bar.finish_and_clear();

    let vocabulary = engine.vocabulary();
    vocabulary.learn(&ids_of(&trace, &named), &[])?;
    engine.close(messages);
    let transcript = Transcript {
        vocabulary,
        threshold: material.settings.threshold,
    };
    let named = request.named.iter().zip(&named);
    let named = named.enumerate().map(|(index, (text, ids))| {
        let at_steps = trace.steps.iter().map(|step| {
            let seen = step.seen.as_ref()?;
            seen.named[index].map(odds)
        });
        to_named(
            &transcript,
            text,
            ids,
            &trace.named[index],
            at_steps.collect(),
        )
    });
    let named = named.collect();
    let record = to_record(material, &trace, named, &transcript, engine.info());
    let mut screen = Screen::new(&request.output);
    screen.show(|out, width| report::score::score(&record, width, out));
    let path = write_record(&record, "score", &record.model, &request.output.out)?;
    if let Some(path) = path {
        messages.say(&format!("written to {}", display::escape_line(&path)));
    }
    screen.close()?;
    Ok(ExitCode::SUCCESS)
}

/// What is scored, as it was given.
enum Source {
    Completion { prompt: String, text: String },
    Text(String),
    Recorded(Box<RecordedRun>),
}

/// A run of a record, with its surroundings.
struct RecordedRun {
    record: Record,
    prompt: PromptRecord,
    sweep: Option<String>,
    run: Run,
    /// The prompt's place, from 1.
    number: usize,
}

/// What is scored, as the model sees it.
struct Material {
    prompt: Option<String>,
    rendered: Option<String>,
    prompt_ids: Vec<u32>,
    text: String,
    ids: Vec<u32>,
    settings: ScoreSettings,
    recorded: Option<Box<RecordedRun>>,
}

impl Source {
    /// Reads the files that a request names.
    fn read(subject: &Subject) -> Result<Self> {
        let text = |given: &Given| match given {
            Given::Text(text) => Ok(text.clone()),
            Given::File(path) => prompts::read_text(path),
        };
        Ok(match subject {
            Subject::Completion { prompt, completion } => Self::Completion {
                prompt: prompt.clone(),
                text: completion
                    .as_ref()
                    .map(text)
                    .transpose()?
                    .unwrap_or_default(),
            },
            Subject::Text(given) => Self::Text(text(given)?),
            Subject::Recorded {
                record,
                prompt,
                sweep,
                run,
            } => {
                let name = record.display().to_string();
                let record = recorded::read_prompts(record)?;
                let found = recorded_run(record, *prompt, *sweep, *run);
                let found = found.with_context(|| name)?;
                Self::Recorded(Box::new(found))
            }
        })
    }

    fn into_material(
        self,
        request: &ScoreRequest,
        engine: &impl Engine,
        messages: &Stderr,
    ) -> Result<Material> {
        let chat = &request.chat;
        match self {
            Self::Completion { prompt, text } => {
                let reading = match chat.raw && !chat.plain_text {
                    true => Reading::Template,
                    false => Reading::Continued,
                };
                let ids = engine.encode(&text, reading)?;
                ensure!(
                    !ids.is_empty() || request.end || !request.named.is_empty(),
                    "the completion has no tokens (expected at least one, or --candidate)"
                );
                let given = Prompt::from(prompt.as_str());
                let Input {
                    text: rendered,
                    ids: prompt_ids,
                    date,
                } = engine.input(&given, chat, ids.len())?;
                Ok(Material {
                    prompt: Some(prompt),
                    rendered: Some(rendered),
                    prompt_ids,
                    text,
                    ids,
                    settings: to_settings(request, engine, chat.raw, date),
                    recorded: None,
                })
            }
            Self::Text(text) => {
                let reading = match chat.plain_text {
                    true => Reading::Plain,
                    false => Reading::Raw,
                };
                let ids = engine.encode(&text, reading)?;
                ensure!(
                    !ids.is_empty(),
                    "the text has no tokens (expected at least one)"
                );
                Ok(Material {
                    prompt: None,
                    rendered: None,
                    prompt_ids: Vec::new(),
                    text,
                    ids,
                    settings: to_settings(request, engine, true, None),
                    recorded: None,
                })
            }
            Self::Recorded(found) => {
                let id = engine.info().id;
                if found.record.model.id != id {
                    let recorded = &found.record.model.id;
                    messages.warn(&format!(
                        "the record was made with {recorded}, this is {id}"
                    ));
                }
                found.into_material(request, engine)
            }
        }
    }
}

impl RecordedRun {
    fn into_material(self, request: &ScoreRequest, engine: &impl Engine) -> Result<Material> {
        let of_record = &self.record.settings;
        let vocab_size = engine.vocab_size();
        let ids: Vec<u32> = self.run.steps.iter().map(|step| step.token_id).collect();
        let mut all = self.prompt.prompt_token_ids.iter().chain(&ids);
        if let Some(id) = all.find(|&&id| id as usize >= vocab_size) {
            bail!(
                "the record has token id {id}, {} has {vocab_size} (expected the model of the record, {})",
                engine.info().id,
                self.record.model.id
            );
        }
        let candidates = request.candidates.unwrap_or(of_record.candidates);
        let settings = ScoreSettings {
            candidates: candidates.clamp(1, vocab_size),
            mass: request.mass.unwrap_or(of_record.mass),
            threshold: request.threshold.unwrap_or(of_record.threshold),
            thinking: of_record.thinking,
            raw: of_record.raw,
            system: self.prompt.system.clone().or(of_record.system.clone()),
            template_source: of_record.template_source.clone(),
            stop_ids: of_record.stop_ids.clone(),
            plain_text: of_record.plain_text,
            template_date: of_record.template_date.clone(),
        };
        Ok(Material {
            prompt: Some(self.prompt.prompt.clone()),
            rendered: Some(self.prompt.rendered.clone()),
            prompt_ids: self.prompt.prompt_token_ids.clone(),
            text: self.run.text.clone(),
            ids,
            settings,
            recorded: Some(Box::new(self)),
        })
    }
}

fn recorded_run(
    record: Record,
    number: usize,
    sweep: Option<usize>,
    index: u32,
) -> Result<RecordedRun> {
    let num_prompts = record.prompts.len();
    let prompt = match record.prompts.get(number - 1) {
        Some(PromptEntry::Done(prompt)) => prompt.clone(),
        Some(PromptEntry::Failed(failed)) => bail!(
            "prompt {number} could not be run: {} (expected a prompt with runs)",
            failed.error
        ),
        None => bail!("there is no prompt {number} (expected 1 to {num_prompts})"),
    };
    let (sweep, run) = match sweep {
        None => (None, prompt.greedy.clone()),
        Some(wanted) => {
            let sweep = prompt.sweeps.get(wanted - 1).with_context(|| {
                format!(
                    "there is no group {wanted} of samples (expected 1 to {})",
                    prompt.sweeps.len()
                )
            })?;
            let run = sweep.runs.iter().find(|run| run.run == index);
            let run = run.with_context(|| {
                let known: Vec<String> = sweep.runs.iter().map(|run| run.run.to_string()).collect();
                format!(
                    "there is no run {index} of {} (expected {})",
                    sweep.label,
                    known.join(", ")
                )
            })?;
            (Some(sweep.label.clone()), run.clone())
        }
    };
    ensure!(
        !run.steps.is_empty() && !prompt.prompt_token_ids.is_empty(),
        "the run or its prompt has no tokens (expected at least one each)"
    );
    Ok(RecordedRun {
        record,
        prompt,
        sweep,
        run,
        number,
    })
}

fn to_settings(
    request: &ScoreRequest,
    engine: &impl Engine,
    raw: bool,
    template_date: Option<String>,
) -> ScoreSettings {
    let (candidates, mass, threshold) = DEFAULTS;
    ScoreSettings {
        candidates: request
            .candidates
            .unwrap_or(candidates)
            .min(engine.vocab_size()),
        mass: request.mass.unwrap_or(mass),
        threshold: request.threshold.unwrap_or(threshold),
        thinking: (!raw && engine.has_thinking_switch()).then_some(request.chat.thinking),
        raw,
        system: request.chat.system.clone(),
        template_source: engine.template_source().filter(|_| !raw),
        stop_ids: engine.stop_ids().to_vec(),
        plain_text: request.chat.plain_text,
        template_date,
    }
}

/// Control tokens may be named, too; nothing is put around a candidate.
fn named_ids(request: &ScoreRequest, engine: &impl Engine) -> Result<Vec<Vec<u32>>> {
    let reading = match request.chat.plain_text {
        true => Reading::Continued,
        false => Reading::Template,
    };
    let named = request.named.iter().map(|text| {
        let ids = engine.encode(text, reading);
        let ids = ids.with_context(|| format!("--candidate `{text}`"))?;
        ensure!(
            !ids.is_empty(),
            "--candidate `{text}` has no tokens (expected at least one)"
        );
        Ok(ids)
    });
    named.collect()
}

/// All ids that a trace is written down with.
fn ids_of(trace: &Trace, named: &[Vec<u32>]) -> BTreeSet<u32> {
    let mut ids: BTreeSet<u32> = named.iter().flatten().copied().collect();
    for step in &trace.steps {
        ids.insert(step.token_id);
        let candidates = step.seen.iter().flat_map(|seen| &seen.summary.candidates);
        ids.extend(candidates.map(|scored| scored.token_id));
    }
    ids
}

fn to_record(
    material: Material,
    trace: &Trace,
    named: Vec<Named>,
    transcript: &Transcript,
    model: ModelInfo,
) -> Score {
    let steps: Vec<ScoredStep> = trace
        .steps
        .iter()
        .map(|step| to_step(transcript, step))
        .collect();
    let Material {
        prompt,
        rendered,
        prompt_ids,
        text,
        ids,
        settings,
        recorded,
    } = material;
    let stopped = recorded
        .as_ref()
        .is_some_and(|found| found.run.finish_reason == FinishReason::Stop);
    let end = stopped || steps.len() > ids.len();
    let pieces = analysis::score::pieces(&steps, end, settings.threshold);
    let recorded = recorded.map(|found| Recorded {
        prompt: found.number,
        sweep: found.sweep,
        run: found.run.run,
        largest_difference: analysis::score::largest_difference(&steps, &found.run.steps),
    });
    Score {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        model,
        settings,
        prompt,
        rendered,
        prompt_token_ids: prompt_ids,
        text,
        marked: analysis::marked(pieces),
        end,
        recorded,
        totals: analysis::score::totals(&steps, end),
        steps,
        named,
    }
}

fn to_step(transcript: &Transcript, step: &TraceStep) -> ScoredStep {
    let token = transcript.vocabulary.token(step.token_id);
    let seen = step.seen.as_ref();
    let candidates = seen.map(|seen| seen.summary.candidates.iter());
    ScoredStep {
        token_id: step.token_id,
        token: plain_text(&token),
        logit: seen
            .and_then(|seen| seen.logit)
            .filter(|logit| logit.is_finite()),
        logprob: seen.and_then(|seen| odds(seen.odds).logprob),
        prob: seen.map(|seen| seen.odds.prob),
        rank: seen.map(|seen| seen.odds.rank),
        entropy_bits: seen.and_then(|seen| seen.summary.entropy_bits),
        mass_count: seen.and_then(|seen| seen.summary.mass_count),
        margin: seen.and_then(|seen| seen.summary.margin),
        special: token.special,
        bytes: token.bytes,
        bounds: seen.and_then(|seen| seen.summary.bounds),
        top_logprobs: candidates
            .into_iter()
            .flatten()
            .map(|scored| transcript.candidate(scored))
            .collect(),
    }
}

fn to_named(
    transcript: &Transcript,
    text: &str,
    ids: &[u32],
    after: &[score::Odds],
    at_steps: Vec<Option<Odds>>,
) -> Named {
    let is_sequence = ids.len() > 1;
    let tokens: Vec<NamedToken> = ids
        .iter()
        .zip(after)
        .map(|(&token_id, &after)| {
            let token = transcript.vocabulary.token(token_id);
            let Odds {
                logprob,
                prob,
                rank,
            } = odds(after);
            NamedToken {
                token_id,
                token: plain_text(&token),
                bytes: token.bytes,
                special: token.special,
                logprob,
                prob,
                rank,
            }
        })
        .collect();
    // of one token its own numbers, of several the sum of theirs
    let sum: f64 = after.iter().map(|odds| f64::from(odds.logprob)).sum();
    let prob = match &tokens[..] {
        [token] => token.prob,
        _ => sum.exp() as f32,
    };
    Named {
        text: text.to_owned(),
        is_sequence,
        logprob: Some(sum as f32).filter(|sum| sum.is_finite()),
        prob,
        rank: tokens
            .first()
            .filter(|_| !is_sequence)
            .map(|token| token.rank),
        tokens,
        steps: match is_sequence {
            true => Vec::new(),
            false => at_steps,
        },
    }
}

fn odds(odds: score::Odds) -> Odds {
    Odds {
        logprob: Some(odds.logprob).filter(|logprob| logprob.is_finite()),
        prob: odds.prob,
        rank: odds.rank,
    }
}
