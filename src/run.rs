//! The one place where all stages meet: a request becomes prompts, a model, runs, a record, and what is printed of it.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::checkpoint::hub::HubOptions;
use crate::checkpoint::{Checkpoint, Source};
use crate::cli::{ModelRequest, Out, Request, RunRequest, Step1Request};
use crate::device::{self, Compute};
use crate::distribution::Distribution;
use crate::explore::{Plan, Progress, explore};
use crate::input::{Input, to_input};
use crate::interrupt::Interrupt;
use crate::model::LanguageModel;
use crate::model::decoder::Decoder;
use crate::prompts::{self, Prompt};
use crate::record::{
    ModelInfo, PromptEntry, PromptError, PromptRecord, Record, SCHEMA, Settings, TemperatureStep1,
};
use crate::report::{json, table};
use crate::screen::{Screen, Stderr, ignore_closed_pipe};
use crate::setting::{FILTER_ORDER, Setting};
use crate::text::display;
use crate::transcript::Transcript;
use crate::{cli, output, progress};

const PROGRAM: &str = concat!("logprobs ", env!("CARGO_PKG_VERSION"));

/// Does what was asked and returns the exit code: 0 done, 1 a prompt failed, 130 or 143 interrupted.
///
/// # Errors
/// When nothing can be done at all.
pub fn run(request: &Request) -> Result<ExitCode> {
    match request {
        Request::Run(request) => run_prompts(request),
        Request::TemperatureStep1(request) => temperature_step1(request),
        Request::Completions(shell) => completions(*shell),
    }
}

/// The main command.
fn run_prompts(request: &RunRequest) -> Result<ExitCode> {
    check_out(&request.output.out)?;
    let prompts = collect_prompts(request)?;
    let compute = prepare(&request.model)?;
    let messages = Stderr {
        quiet: request.output.quiet,
    };
    let checkpoint = open(&request.model, &messages)?;
    messages.chat_notes(&request.chat, &checkpoint);

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

    // the model is loaded only when some prompt can be run
    let decoder = match inputs.iter().any(Result::is_ok) {
        true => Some(load(&checkpoint, &compute, &messages)?),
        false => None,
    };
    // until here nothing is lost when a signal ends the program as usual
    let interrupt = Interrupt::listen()?;
    let plan = to_plan(request, &record.settings, &checkpoint);
    let transcript = Transcript {
        vocabulary: &checkpoint.tokenizer,
        threshold: request.threshold,
    };
    for (prompt, input) in prompts.iter().zip(inputs) {
        let done = match (input, &decoder) {
            (Ok(input), Some(decoder)) => {
                let title = format!("prompt {} of {}", record.prompts.len() + 1, prompts.len());
                run_prompt(
                    prompt,
                    input,
                    decoder,
                    &plan,
                    &transcript,
                    &mut messages.watch(&title, &interrupt),
                )
            }
            (Err(error), _) => Err(error),
            (Ok(_), None) => break,
        };
        let entry = match done {
            Ok(Some(done)) => PromptEntry::Done(done),
            Ok(None) => break,
            Err(error) => {
                let error = format!("{error:#}");
                if !screen.is_terminal() {
                    let number = record.prompts.len() + 1;
                    messages.warn(&format!("prompt {number} could not be run: {error}"));
                }
                PromptEntry::Failed(PromptError {
                    id: prompt.id.clone(),
                    prompt: prompt.prompt.clone(),
                    error,
                })
            }
        };
        record.prompts.push(entry);
        screen.show(|out, width| table::prompt(&record, record.prompts.len() - 1, width, out));
        if interrupt.exit_code().is_some() {
            break;
        }
    }
    let code = finish(request, &record, prompts.len(), &interrupt, &messages)?;
    screen.close()?;
    Ok(code)
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
        _ => write_record(record, &request.output.out)?,
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

fn write_record(record: &Record, out: &Out) -> Result<Option<String>> {
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
            let model = output::safe_name(&record.model.id);
            let device = &record.model.device;
            folder.join(format!("logprobs_{model}_{device}_{time}.json"))
        }
    };
    let path = output::write_new(&path, |file| json::write(record, file))?;
    Ok(Some(path.display().to_string()))
}

fn run_prompt(
    prompt: &Prompt,
    input: Input,
    decoder: &Decoder,
    plan: &Plan,
    transcript: &Transcript,
    watch: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<Option<PromptRecord>> {
    let Some(exploration) = explore(decoder, &input.ids, plan, watch)? else {
        return Ok(None);
    };
    let (greedy, sweeps) = transcript.of(&exploration, &plan.settings);
    Ok(Some(PromptRecord {
        id: prompt.id.clone(),
        prompt: prompt.prompt.clone(),
        system: prompt.system.clone(),
        rendered: input.text,
        prompt_token_ids: input.ids,
        greedy,
        sweeps,
    }))
}

/// `temperature-step1`.
fn temperature_step1(request: &Step1Request) -> Result<ExitCode> {
    if let Out::Folder(folder) = &request.output.out {
        output::check_folder(folder)?;
    }
    let prompt = Prompt::from(request.prompt.as_deref().unwrap_or(prompts::BUILT_IN[0]));
    let compute = prepare(&request.model)?;
    let messages = Stderr {
        quiet: request.output.quiet,
    };
    let checkpoint = open(&request.model, &messages)?;
    messages.chat_notes(&request.chat, &checkpoint);
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
    let source = Source::locate(&request.model, request.revision.as_deref())?;
    let options = HubOptions {
        offline: request.offline,
        progress: !messages.quiet,
    };
    let checkpoint = Checkpoint::open(&source, &options);
    #[cfg(feature = "demo")]
    let checkpoint = checkpoint.map_err(|error| match source {
        Source::Hub { .. } => {
            anyhow::anyhow!("{error:#} (--model demo is built in and needs no download)")
        }
        _ => error,
    });
    let checkpoint = checkpoint?;
    checkpoint.notes.iter().for_each(|note| messages.warn(note));
    Ok(checkpoint)
}

fn load(checkpoint: &Checkpoint, compute: &Compute, messages: &Stderr) -> Result<Decoder> {
    compute.check_memory(checkpoint.memory_bytes)?;
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
        stop_ids: checkpoint.stop_ids.clone(),
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
