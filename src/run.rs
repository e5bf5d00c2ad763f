//! The one place where all stages meet: a request becomes prompts, a model, runs, a record, and what is printed of it.

mod score;

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::checkpoint::hub::HubOptions;
use crate::checkpoint::{Checkpoint, Source};
use crate::cli::{ModelRequest, Out, Request, RunRequest, Step1Request};
use crate::device::{self, Compute};
use crate::distribution::Distribution;
use crate::explore::{Exploration, Plan, Progress, explore_all};
use crate::input::{Input, to_input};
use crate::interrupt::Interrupt;
use crate::model::LanguageModel;
use crate::model::decoder::Decoder;
use crate::prompts::{self, Prompt};
use crate::record::{
    ModelInfo, PROGRAM, PromptEntry, PromptError, PromptRecord, Record, SCHEMA, Settings,
    TemperatureStep1,
};
use crate::report::table::View;
use crate::report::{json, table};
use crate::screen::{Screen, Stderr, ignore_closed_pipe};
use crate::setting::{FILTER_ORDER, Setting};
use crate::text::display;
use crate::transcript::Transcript;
use crate::{analysis, cli, commands, output, progress};

/// Does what was asked and returns the exit code: 0 done, 1 a prompt failed, 130 or 143 interrupted.
///
/// # Errors
/// When nothing can be done at all.
pub fn run(request: &Request) -> Result<ExitCode> {
    match request {
        Request::Run(request) => run_prompts(request),
        Request::TemperatureStep1(request) => temperature_step1(request),
        Request::Score(request) => score::score(request),
        Request::Tokens(request) => commands::tokens::run(request),
        Request::Context(request) => commands::context::run(request),
        Request::Softmax(request) => commands::softmax::run(request),
        Request::Completions(shell) => completions(*shell),
    }
}

/// The main command.
fn run_prompts(request: &RunRequest) -> Result<ExitCode> {
    check_out(&request.output.out)?;
    let prompts = collect_prompts(request)?;
    let compute = prepare(&request.model)?;
    let messages = Stderr::new(&request.output);
    let checkpoint = open(&request.model, &messages)?;
    messages.chat_notes(&request.chat, checkpoint.template.as_ref());

    let mut settings = to_settings(request, &checkpoint);
    let inputs: Vec<Result<Input>> = prompts
        .iter()
        .map(|prompt| to_input(prompt, &request.chat, request.max_new_tokens, &checkpoint))
        .collect();
    settings.template_date = inputs.iter().flatten().find_map(|input| input.date.clone());
    let mut record = Record {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        model: model_info(&checkpoint, &compute),
        settings,
        prompts: Vec::with_capacity(prompts.len()),
    };
    let mut screen = Screen::new(&request.output);
    screen.show(|out, _| table::header(&record, out));
    let plan = to_plan(request, &record.settings, &checkpoint);

    // the model is loaded only when some prompt can be run
    let decoder = match inputs.iter().any(Result::is_ok) {
        true => Some(load(&checkpoint, &compute, &messages)?),
        false => None,
    };
    // until here nothing is lost when a signal ends the program as usual
    let interrupt = Interrupt::listen()?;
    let mut results = Results {
        prompts: &prompts,
        weight_bytes: checkpoint.memory_bytes,
        transcript: Transcript {
            vocabulary: &checkpoint.tokenizer,
            threshold: request.threshold,
        },
        settings: &plan.settings,
        messages: &messages,
        bar: progress::bar("generating", 0, request.output.quiet),
        view: View {
            width: None,
            one_line: request.one_line,
            tree: request.tree,
        },
        record: &mut record,
        screen: &mut screen,
    };
    results.explore(inputs, decoder.as_ref(), &plan, request.batch, &interrupt);
    let code = finish(request, &record, prompts.len(), &interrupt, &messages)?;
    screen.close()?;
    Ok(code)
}

/// What becomes of the prompts, as it is recorded and printed.
struct Results<'a> {
    prompts: &'a [Prompt],
    /// What the weights take in memory.
    weight_bytes: u64,
    transcript: Transcript<'a>,
    settings: &'a [Setting],
    messages: &'a Stderr,
    bar: ProgressBar,
    view: View,
    record: &'a mut Record,
    screen: &'a mut Screen,
}

impl Results<'_> {
    /// Explores every prompt that can be run, all together; results are added in the order of the prompts.
    fn explore(
        &mut self,
        inputs: Vec<Result<Input>>,
        decoder: Option<&Decoder>,
        plan: &Plan,
        batch: Option<usize>,
        interrupt: &Interrupt,
    ) {
        let places = (0..).zip(&inputs);
        let places = places.filter_map(|(place, input)| input.is_ok().then_some(place));
        let places: Vec<usize> = places.collect();
        let possible = inputs.iter().flatten();
        let ids: Vec<Vec<u32>> = possible.map(|input| input.ids.clone()).collect();
        let ids: Vec<&[u32]> = ids.iter().map(Vec::as_slice).collect();
        let mut inputs = inputs.into_iter().enumerate();
        if let Some(decoder) = decoder {
            let batch = batch.unwrap_or_else(|| self.batch(decoder, &ids, plan));
            let bar = self.bar.clone();
            let mut watch = |progress: Progress| {
                bar.set_length(progress.total as u64);
                bar.set_position(progress.done as u64);
                match interrupt.exit_code() {
                    Some(_) => ControlFlow::Break(()),
                    None => ControlFlow::Continue(()),
                }
            };
            explore_all(
                decoder,
                &ids,
                plan,
                batch,
                &mut watch,
                &mut |done, result| {
                    for (index, input) in inputs.by_ref() {
                        match input {
                            Ok(input) if index == places[done] => {
                                self.add(index, result.map(|exploration| (input, exploration)));
                                return;
                            }
                            // interrupted
                            Ok(_) => {}
                            // prompts that could not even begin keep their places
                            Err(error) => self.add(index, Err(error)),
                        }
                    }
                },
            );
        }
        self.bar.finish_and_clear();
        for (index, input) in inputs {
            match input {
                Err(error) if interrupt.exit_code().is_none() => self.add(index, Err(error)),
                _ => break,
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

    /// Records and prints what became of one prompt.
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
            Err(error) => {
                let error = format!("{error:#}");
                if !self.screen.is_terminal() {
                    let number = index + 1;
                    self.messages
                        .warn(&format!("prompt {number} could not be run: {error}"));
                }
                PromptEntry::Failed(PromptError {
                    id: prompt.id.clone(),
                    prompt: prompt.prompt.clone(),
                    error,
                })
            }
        };
        self.record.prompts.push(entry);
        let (record, screen, view) = (&*self.record, &mut *self.screen, self.view);
        self.bar.suspend(|| {
            screen.show(|out, width| {
                let view = View { width, ..view };
                table::prompt(record, record.prompts.len() - 1, view, out)
            });
        });
    }
}

/// Writes the record and says what it holds.
fn finish(
    request: &RunRequest,
    record: &Record,
    num_prompts: usize,
    interrupt: &Interrupt,
    messages: &Stderr,
) -> Result<ExitCode> {
    let complete = record.prompts.len();
    let is_cut = complete < num_prompts;
    let path = match complete {
        0 => None,
        _ => write_record(record, "logprobs", &record.model, &request.output.out)?,
    };
    if is_cut {
        messages.warn(&format!(
            "interrupted: {complete} of {num_prompts} prompts are complete, the others are not in the record"
        ));
    }
    if let Some(path) = path {
        messages.say(&format!("written to {}", display::escape_line(&path)));
    }
    let failed = record
        .prompts
        .iter()
        .filter(|entry| matches!(entry, PromptEntry::Failed(_)))
        .count();
    if failed > 0 && num_prompts > 1 {
        messages.warn(&format!(
            "{failed} of {num_prompts} prompts could not be run"
        ));
    }
    Ok(match interrupt.exit_code() {
        Some(code) if is_cut => ExitCode::from(code),
        _ if failed > 0 => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// Writes a record to where it shall go and returns the path; `name` begins the name of a new file.
fn write_record(
    record: &impl Serialize,
    name: &str,
    model: &ModelInfo,
    out: &Out,
) -> Result<Option<String>> {
    let path = match out {
        Out::Stdout => {
            let written = json::write(record, io::stdout().lock());
            return ignore_closed_pipe(written)
                .map(|()| None)
                .context("standard output");
        }
        Out::File(path) => path.clone(),
        Out::Folder(folder) => {
            let time = jiff::Timestamp::now().strftime("%Y%m%d_%H%M");
            let device = &model.device;
            let model = output::safe_name(&model.id);
            folder.join(format!("{name}_{model}_{device}_{time}.json"))
        }
    };
    let path = output::write_new(&path, |file| json::write(record, file))?;
    Ok(Some(path.display().to_string()))
}

/// `temperature-step1`.
fn temperature_step1(request: &Step1Request) -> Result<ExitCode> {
    if let Out::Folder(folder) = &request.output.out {
        output::check_folder(folder)?;
    }
    let prompt = Prompt::from(request.prompt.as_deref().unwrap_or(prompts::BUILT_IN[0]));
    let compute = prepare(&request.model)?;
    let messages = Stderr::new(&request.output);
    let checkpoint = open(&request.model, &messages)?;
    messages.chat_notes(&request.chat, checkpoint.template.as_ref());
    let input = to_input(&prompt, &request.chat, 1, &checkpoint)?;
    let decoder = load(&checkpoint, &compute, &messages)?;
    let logits = decoder.extend(&mut decoder.start(), &input.ids)?;
    let distribution = Distribution::from_logits(logits)?;

    let best = distribution.best(request.candidates);
    let columns: Vec<Vec<f64>> = request
        .temperatures
        .iter()
        .map(|&t| distribution.probs_at(t))
        .collect();
    let transcript = Transcript {
        vocabulary: &checkpoint.tokenizer,
        threshold: 0.0,
    };
    let candidate = |&id: &u32| {
        let probs = columns
            .iter()
            .map(|probs| probs[id as usize] as f32)
            .collect();
        transcript.tempered(id, distribution.logit(id), probs)
    };
    let rest = |probs: &Vec<f64>| {
        let listed = |id: usize| best.iter().any(|&best| best as usize == id);
        let others = probs.iter().enumerate().filter(|&(id, _)| !listed(id));
        others.map(|(_, prob)| prob).sum::<f64>()
    };
    let record = TemperatureStep1 {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        model: model_info(&checkpoint, &compute),
        prompt: prompt.prompt,
        rendered: input.text,
        prompt_token_ids: input.ids,
        temperatures: request.temperatures.clone(),
        candidates: best.iter().map(candidate).collect(),
        rest: columns.iter().map(|probs| rest(probs) as f32).collect(),
    };
    let mut screen = Screen::new(&request.output);
    screen.show(|out, _| table::temperature_step1(&record, out));
    let path = match &request.output.out {
        Out::Stdout => {
            ignore_closed_pipe(json::write(&record, io::stdout().lock()))
                .context("standard output")?;
            return Ok(ExitCode::SUCCESS);
        }
        Out::File(path) => path.clone(),
        Out::Folder(folder) => {
            folder.join(format!("temperature_step1_{}.json", compute.device_name))
        }
    };
    output::replace(&path, |file| json::write(&record, file))?;
    messages.say(&format!(
        "written to {}",
        display::escape_line(&path.display().to_string())
    ));
    screen.close()?;
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "logprobs", &mut script);
    ignore_closed_pipe(io::stdout().write_all(&script)).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn check_out(out: &Out) -> Result<()> {
    match out {
        Out::Folder(folder) => output::check_folder(folder),
        Out::File(path) => output::check_new(path),
        Out::Stdout => Ok(()),
    }
}

fn collect_prompts(request: &RunRequest) -> Result<Vec<Prompt>> {
    let mut collected: Vec<Prompt> = request
        .prompts
        .iter()
        .map(|prompt| prompt.as_str().into())
        .collect();
    if let Some(path) = &request.prompts_file {
        collected.extend(prompts::read(path)?);
    }
    if collected.is_empty() {
        collected.extend(prompts::BUILT_IN.map(Prompt::from));
    }
    Ok(collected)
}

fn prepare(request: &ModelRequest) -> Result<Compute> {
    device::set_threads(request.threads);
    Compute::choose(request.device, request.dtype)
}

fn open(request: &ModelRequest, messages: &Stderr) -> Result<Checkpoint> {
    let source = Source::locate(&request.source.model, request.source.revision.as_deref())?;
    let options = HubOptions {
        offline: request.source.offline,
        progress: !messages.quiet,
    };
    let checkpoint =
        Checkpoint::open(&source, &options).map_err(|error| source.with_way_out(error))?;
    checkpoint.notes.iter().for_each(|note| messages.warn(note));
    Ok(checkpoint)
}

fn load(checkpoint: &Checkpoint, compute: &Compute, messages: &Stderr) -> Result<Decoder> {
    compute.check_memory(checkpoint.memory_bytes)?;
    messages.explain(&compute.describe());
    let bar = progress::bar(
        "loading",
        checkpoint.config.layer_types.len() as u64,
        messages.quiet,
    );
    let weights = checkpoint.weights.as_ref();
    let decoder = Decoder::load(&checkpoint.config, weights, &compute.backend, &|| {
        bar.inc(1)
    });
    bar.finish_and_clear();
    decoder.with_context(|| checkpoint.id.clone())
}

fn to_settings(request: &RunRequest, checkpoint: &Checkpoint) -> Settings {
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

fn to_plan(request: &RunRequest, settings: &Settings, checkpoint: &Checkpoint) -> Plan {
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

fn model_info(checkpoint: &Checkpoint, compute: &Compute) -> ModelInfo {
    ModelInfo {
        id: checkpoint.id.clone(),
        revision: checkpoint.revision.clone(),
        architecture: checkpoint.config.model_type.clone(),
        vocab_size: checkpoint.config.vocab_size,
        weights_dtype: checkpoint.weights_dtype.clone(),
        compute_dtype: compute.dtype_name().to_owned(),
        device: compute.device_name.to_owned(),
        note: checkpoint.note.map(str::to_owned),
    }
}
