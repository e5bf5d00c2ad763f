//! The job of the main command without its screen: prompts and settings in, a record out, prompt by prompt.

use std::cell::Cell;
use std::ops::ControlFlow;

use anyhow::{Error, Result};
use indicatif::ProgressBar;

use crate::cli::ExploreRequest;
use crate::engine::{Engine, Local};
use crate::explore::{Exploration, Plan, Progress, explore_all};
use crate::input::Input;
use crate::interrupt::Interrupt;
use crate::model::LanguageModel;
use crate::prompts::Prompt;
use crate::record::{PROGRAM, PromptEntry, PromptError, PromptRecord, Record, SCHEMA, Settings};
use crate::remote::Remote;
use crate::screen::Stderr;
use crate::setting::{FILTER_ORDER, Setting};
use crate::transcript::Transcript;
use crate::{analysis, progress};

/// What a job has done.
pub(crate) struct Outcome {
    /// The prompts that are complete, in order.
    pub(crate) record: Record,
    /// The exit code of the signal that ended the job before all prompts were complete.
    pub(crate) interrupted: Option<u8>,
}

/// How a record has grown.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Growth {
    /// Model and settings are known; there is no prompt yet.
    Begun,
    /// The last prompt was taken over from an earlier record.
    Kept,
    /// The last prompt was run, or could not be.
    Added,
}

/// Runs prompts and returns their record. `resume` may hand back entries of an earlier record, one for each prompt, once
/// model and settings are known; those prompts are not run. `follow` sees the record grow, in the order of the prompts, and may end the job by breaking.
///
/// # Errors
/// When the model cannot be used, or `resume` refuses. What is wrong with one prompt alone is in its entry.
pub(crate) fn run(
    request: &ExploreRequest,
    prompts: &[Prompt],
    messages: &Stderr,
    resume: impl FnOnce(&Record, &[Setting]) -> Result<Vec<Option<PromptEntry>>>,
    follow: &mut dyn FnMut(Growth, &Record) -> ControlFlow<()>,
) -> Result<Outcome> {
    let (model, chat) = (&request.model, &request.chat);
    match &model.server.server {
        None => {
            let mut local = Local::open(&model.local, chat, messages)?;
            if let Some(date) = &request.template_date {
                local.repeat_date(date);
            }
            run_on(&local, request, prompts, messages, resume, follow)
        }
        Some(address) => {
            let candidates = request.candidates;
            let mut remote = Remote::connect(address, model, chat, candidates, messages)?;
            if let Some(date) = &request.template_date {
                remote.repeat_date(date);
            }
            run_on(&remote, request, prompts, messages, resume, follow)
        }
    }
}

fn run_on<E: Engine>(
    engine: &E,
    request: &ExploreRequest,
    prompts: &[Prompt],
    messages: &Stderr,
    resume: impl FnOnce(&Record, &[Setting]) -> Result<Vec<Option<PromptEntry>>>,
    follow: &mut dyn FnMut(Growth, &Record) -> ControlFlow<()>,
) -> Result<Outcome> {
    let mut settings = to_settings(request, engine);
    let inputs: Vec<Result<Input>> = prompts
        .iter()
        .map(|prompt| engine.input(prompt, &request.chat, request.max_new_tokens))
        .collect();
    settings.template_date = inputs.iter().flatten().find_map(|input| input.date.clone());
    let plan = to_plan(request, &settings, engine.vocab_size());
    let record = Record {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        model: engine.info(),
        settings,
        prompts: Vec::with_capacity(prompts.len()),
    };
    let mut kept = resume(&record, &plan.settings)?.into_iter();
    let starts = inputs.into_iter().map(|input| match (kept.next(), input) {
        (Some(Some(entry)), _) => Start::Kept(entry),
        (_, Ok(input)) => Start::Ready(input),
        (_, Err(error)) => Start::Failed(error),
    });
    let starts: Vec<Start> = starts.collect();
    let is_over = Cell::new(follow(Growth::Begun, &record).is_break());

    // the model is loaded only when some prompt can be run
    let is_ready = |start: &Start| matches!(start, Start::Ready(_));
    let model = match starts.iter().any(is_ready) {
        true => Some(engine.load(messages)?),
        false => None,
    };
    // until here nothing is lost when a signal ends the program as usual
    let interrupt = Interrupt::listen()?;
    let mut job = Job {
        engine,
        prompts,
        transcript: Transcript {
            vocabulary: engine.vocabulary(),
            threshold: request.threshold,
        },
        settings: &plan.settings,
        messages,
        bar: progress::bar("generating", 0, messages.quiet),
        record,
        follow,
        is_over: &is_over,
    };
    job.explore(starts, model.as_ref(), &plan, request.batch, &interrupt);
    engine.close(messages);
    let is_cut = job.record.prompts.len() < prompts.len();
    Ok(Outcome {
        record: job.record,
        interrupted: interrupt.exit_code().filter(|_| is_cut),
    })
}

/// How a prompt begins.
enum Start {
    /// It is complete already.
    Kept(PromptEntry),
    /// It can be run.
    Ready(Input),
    /// It cannot be run.
    Failed(Error),
}

/// What becomes of the prompts, as it is recorded and followed.
struct Job<'a, E> {
    engine: &'a E,
    prompts: &'a [Prompt],
    transcript: Transcript<'a>,
    settings: &'a [Setting],
    messages: &'a Stderr,
    bar: ProgressBar,
    record: Record,
    follow: &'a mut dyn FnMut(Growth, &Record) -> ControlFlow<()>,
    /// Whether nobody follows any more.
    is_over: &'a Cell<bool>,
}

impl<E: Engine> Job<'_, E> {
    /// Explores every prompt that can be run, all together; results are added in the order of the prompts.
    fn explore(
        &mut self,
        starts: Vec<Start>,
        model: Option<&E::Model>,
        plan: &Plan,
        batch: Option<usize>,
        interrupt: &Interrupt,
    ) {
        let ready = starts
            .iter()
            .enumerate()
            .filter_map(|(place, start)| match start {
                Start::Ready(input) => Some((place, input.ids.clone())),
                _ => None,
            });
        let (places, ids): (Vec<usize>, Vec<Vec<u32>>) = ready.unzip();
        let ids: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
        let mut starts = starts.into_iter().enumerate();
        if let Some(model) = model {
            let longest = ids.iter().map(|ids| ids.len()).max().unwrap_or(0);
            let positions = longest.saturating_add(plan.max_new_tokens);
            let positions = positions.min(model.max_positions());
            let batch = batch.unwrap_or_else(|| self.engine.batch(model, positions, self.messages));
            let bar = self.bar.clone();
            let is_over = self.is_over;
            let mut watch = |progress: Progress| {
                bar.set_length(progress.total as u64);
                bar.set_position(progress.done as u64);
                match is_over.get() || interrupt.exit_code().is_some() {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            };
            explore_all(model, &ids, plan, batch, &mut watch, &mut |done, result| {
                for (index, start) in starts.by_ref() {
                    match start {
                        Start::Ready(input) if index == places[done] => {
                            self.add(index, result.map(|exploration| (input, exploration)));
                            return;
                        }
                        // interrupted
                        Start::Ready(_) => {}
                        // prompts that do not run keep their places
                        Start::Kept(entry) => self.keep(entry),
                        Start::Failed(error) => self.add(index, Err(error)),
                    }
                }
            });
        }
        self.bar.finish_and_clear();
        for (index, start) in starts {
            match start {
                Start::Kept(entry) => self.keep(entry),
                Start::Failed(error) if interrupt.exit_code().is_none() => {
                    self.add(index, Err(error));
                }
                _ => {}
            }
        }
    }

    /// Records and shows what became of one prompt.
    fn add(&mut self, index: usize, done: Result<(Input, Exploration)>) {
        let prompt = &self.prompts[index];
        let done = done.and_then(|(input, exploration)| {
            self.transcript.learn(&exploration)?;
            Ok((input, exploration))
        });
        let entry = match done {
            Ok((input, exploration)) => {
                let (greedy, sweeps) = self.transcript.of(&exploration, self.settings);
                PromptEntry::Done(PromptRecord {
                    id: prompt.id.clone(),
                    prompt: prompt.prompt.clone(),
                    system: prompt.system.clone(),
                    rendered: input.text,
                    prompt_token_ids: input.ids,
                    greedy,
                    analysis: analysis::of(&sweeps),
                    sweeps,
                })
            }
            Err(error) => PromptEntry::Failed(PromptError {
                id: prompt.id.clone(),
                prompt: prompt.prompt.clone(),
                system: prompt.system.clone(),
                error: format!("{error:#}"),
            }),
        };
        self.record.prompts.push(entry);
        self.follow(Growth::Added);
    }

    fn keep(&mut self, entry: PromptEntry) {
        self.record.prompts.push(entry);
        self.follow(Growth::Kept);
    }

    fn follow(&mut self, growth: Growth) {
        if !self.is_over.get() {
            let (record, follow) = (&self.record, &mut self.follow);
            let followed = self.bar.suspend(|| follow(growth, record));
            self.is_over.set(followed.is_break());
        }
    }
}

fn to_settings(request: &ExploreRequest, engine: &impl Engine) -> Settings {
    let in_chat = !request.chat.raw;
    Settings {
        max_new_tokens: request.max_new_tokens,
        samples: request.samples,
        seed: request.seed,
        candidates: request.candidates.min(engine.vocab_size()),
        mass: request.mass,
        threshold: request.threshold,
        thinking: (in_chat && engine.has_thinking_switch()).then_some(request.chat.thinking),
        raw: request.chat.raw,
        system: request.chat.system.clone(),
        filter_order: FILTER_ORDER.map(str::to_owned).to_vec(),
        template_source: engine.template_source().filter(|_| in_chat),
        stop_ids: match request.ignore_eos {
            true => Vec::new(),
            false => engine.stop_ids().to_vec(),
        },
        ignore_eos: request.ignore_eos,
        run: request.run,
        plain_text: request.chat.plain_text,
        template_date: None,
    }
}

fn to_plan(request: &ExploreRequest, settings: &Settings, vocab_size: usize) -> Plan {
    let sampled: Vec<Setting> = match request.samples {
        0 => Vec::new(),
        _ => request
            .settings
            .iter()
            .map(|setting| setting.clamped(vocab_size))
            .collect(),
    };
    Plan {
        max_new_tokens: request.max_new_tokens,
        settings: sampled,
        runs: request
            .run
            .map_or_else(|| (0..request.samples).collect(), |run| vec![run]),
        seed: request.seed,
        stop_ids: settings.stop_ids.clone(),
        candidates: settings.candidates,
        mass: request.mass,
    }
}
