//! The job of the main command without its screen: prompts and settings in, a record out, prompt by prompt.

use std::cell::Cell;
use std::ops::ControlFlow;

use anyhow::{Error, Result};
use indicatif::ProgressBar;

use crate::checkpoint::Checkpoint;
use crate::cli::ExploreRequest;
use crate::explore::{Exploration, Plan, Progress, explore_all};
use crate::input::{Input, to_input};
use crate::interrupt::Interrupt;
use crate::loading::{load, model_info, open, prepare};
use crate::model::LanguageModel;
use crate::model::decoder::Decoder;
use crate::prompts::Prompt;
use crate::record::{PROGRAM, PromptEntry, PromptError, PromptRecord, Record, SCHEMA, Settings};
use crate::screen::Stderr;
use crate::setting::{FILTER_ORDER, Setting};
use crate::transcript::Transcript;
use crate::{analysis, device, progress};

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
    let compute = prepare(&request.model)?;
    let mut checkpoint = open(&request.model, messages)?;
    if let (Some(template), Some(date)) = (&mut checkpoint.template, &request.template_date) {
        template.repeat_date(date);
    }
    messages.chat_notes(&request.chat, checkpoint.template.as_ref());
    let mut settings = to_settings(request, &checkpoint);
    let inputs: Vec<Result<Input>> = prompts
        .iter()
        .map(|prompt| to_input(prompt, &request.chat, request.max_new_tokens, &checkpoint))
        .collect();
    settings.template_date = inputs.iter().flatten().find_map(|input| input.date.clone());
    let plan = to_plan(request, &settings, &checkpoint);
    let record = Record {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        model: model_info(&checkpoint, &compute),
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
    let decoder = match starts.iter().any(is_ready) {
        true => Some(load(&checkpoint, &compute, messages)?),
        false => None,
    };
    // until here nothing is lost when a signal ends the program as usual
    let interrupt = Interrupt::listen()?;
    let mut job = Job {
        prompts,
        weight_bytes: checkpoint.memory_bytes,
        transcript: Transcript {
            vocabulary: &checkpoint.tokenizer,
            threshold: request.threshold,
        },
        settings: &plan.settings,
        messages,
        bar: progress::bar("generating", 0, messages.quiet),
        record,
        follow,
        is_over: &is_over,
    };
    job.explore(starts, decoder.as_ref(), &plan, request.batch, &interrupt);
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
struct Job<'a> {
    prompts: &'a [Prompt],
    /// What the weights take in memory.
    weight_bytes: u64,
    transcript: Transcript<'a>,
    settings: &'a [Setting],
    messages: &'a Stderr,
    bar: ProgressBar,
    record: Record,
    follow: &'a mut dyn FnMut(Growth, &Record) -> ControlFlow<()>,
    /// Whether nobody follows any more.
    is_over: &'a Cell<bool>,
}

impl Job<'_> {
    /// Explores every prompt that can be run, all together; results are added in the order of the prompts.
    fn explore(
        &mut self,
        starts: Vec<Start>,
        decoder: Option<&Decoder>,
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
        if let Some(decoder) = decoder {
            let batch = batch.unwrap_or_else(|| self.batch(decoder, &ids, plan));
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
            explore_all(
                decoder,
                &ids,
                plan,
                batch,
                &mut watch,
                &mut |done, result| {
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
                },
            );
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

    /// Returns how many rows to compute at once, and says so.
    fn batch(&self, decoder: &Decoder, ids: &[&[u32]], plan: &Plan) -> usize {
        let longest = ids.iter().map(|ids| ids.len()).max().unwrap_or(0);
        let row_bytes = decoder.row_bytes(longest + plan.max_new_tokens);
        let batch = device::rows_that_fit(row_bytes, self.weight_bytes);
        let mebibytes = row_bytes as f64 / f64::from(1 << 20);
        self.messages
            .explain(&format!("batch: up to {batch} rows of {mebibytes:.1} MiB"));
        batch
    }

    /// Records and shows what became of one prompt.
    fn add(&mut self, index: usize, done: Result<(Input, Exploration)>) {
        let prompt = &self.prompts[index];
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

fn to_settings(request: &ExploreRequest, checkpoint: &Checkpoint) -> Settings {
    let template = checkpoint.template.as_ref().filter(|_| !request.chat.raw);
    Settings {
        max_new_tokens: request.max_new_tokens,
        samples: request.samples,
        seed: request.seed,
        candidates: request.candidates.min(checkpoint.config.vocab_size),
        mass: request.mass,
        threshold: request.threshold,
        thinking: template
            .filter(|template| template.has_thinking_switch())
            .map(|_| request.chat.thinking),
        raw: request.chat.raw,
        system: request.chat.system.clone(),
        filter_order: FILTER_ORDER.map(str::to_owned).to_vec(),
        template_source: template.map(|template| template.source().to_owned()),
        stop_ids: match request.ignore_eos {
            true => Vec::new(),
            false => checkpoint.stop_ids.clone(),
        },
        ignore_eos: request.ignore_eos,
        run: request.run,
        plain_text: request.chat.plain_text,
        template_date: None,
    }
}

fn to_plan(request: &ExploreRequest, settings: &Settings, checkpoint: &Checkpoint) -> Plan {
    let vocab_size = checkpoint.config.vocab_size;
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
