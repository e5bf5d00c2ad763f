//! The one place where all stages meet: a request becomes prompts, a model, runs, a record, and what is printed of it.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

use anstream::{AutoStream, ColorChoice};
use anyhow::{Context, Result};

use crate::checkpoint::hub::HubOptions;
use crate::checkpoint::{Checkpoint, Source};
use crate::cli::{
    ChatRequest, ColorWhen, ModelRequest, Out, OutputRequest, Request, RunRequest, Step1Request,
};
use crate::device::{self, Compute};
use crate::distribution::Distribution;
use crate::explore::{Plan, Progress, explore};
use crate::interrupt::Interrupt;
use crate::model::LanguageModel;
use crate::model::config::DecoderConfig;
use crate::model::decoder::Decoder;
use crate::prompts::{self, Prompt};
use crate::record::{
    ModelInfo, PromptEntry, PromptError, PromptRecord, Record, SCHEMA, Settings, TemperatureStep1,
};
use crate::report::{json, table};
use crate::setting::{FILTER_ORDER, Setting};
use crate::text::chat::Messages;
use crate::text::display;
use crate::text::prompt::{self, chat_prompt};
use crate::text::tokenizer::Reading;
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
        .map(|prompt| {
            let input = to_input(prompt, &request.chat, &checkpoint)?;
            check_length(input.ids.len(), request.max_new_tokens, &checkpoint.config)?;
            Ok(input)
        })
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
    let input = to_input(&prompt, &request.chat, &checkpoint)?;
    check_length(input.ids.len(), 1, &checkpoint.config)?;
    let decoder = load(&checkpoint, &compute, &messages)?;
    let logits = decoder.extend(&mut decoder.start(), &input.ids)?;
    let distribution = Distribution::from_logits(logits)?;

    let best = &distribution.ranked()[..request.candidates.min(distribution.vocab_size())];
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
        distribution.ranked()[best.len()..]
            .iter()
            .map(|&id| probs[id as usize])
            .sum::<f64>()
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

/// What a prompt became for the model.
struct Input {
    text: String,
    ids: Vec<u32>,
    date: Option<String>,
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
    compute.check_memory(checkpoint.f32_bytes)?;
    let bar = progress::bar(
        "loading",
        checkpoint.config.layer_types.len() as u64,
        messages.quiet,
    );
    let weights = checkpoint.weights.as_ref();
    let decoder = Decoder::load(
        &checkpoint.config,
        weights,
        &compute.device,
        compute.dtype,
        &|| bar.inc(1),
    );
    bar.finish_and_clear();
    decoder.with_context(|| checkpoint.id.clone())
}

fn to_input(prompt: &Prompt, chat: &ChatRequest, checkpoint: &Checkpoint) -> Result<Input> {
    if let Some(error) = &prompt.error {
        anyhow::bail!("{error}");
    }
    let tokenizer = &checkpoint.tokenizer;
    if chat.raw {
        anyhow::ensure!(
            prompt.system.is_none(),
            "the prompt has a system message, which --raw has no place for"
        );
        let reading = if chat.plain_text {
            Reading::Plain
        } else {
            Reading::Raw
        };
        let ids = tokenizer.encode(&prompt.prompt, reading)?;
        anyhow::ensure!(
            !ids.is_empty(),
            "the prompt has no tokens (expected at least one; an empty prompt needs a chat template)"
        );
        return Ok(Input {
            text: prompt.prompt.clone(),
            ids,
            date: None,
        });
    }
    let template = checkpoint.template.as_ref().with_context(|| {
        format!(
            "{} has no chat template (use --raw to feed prompts as they are)",
            checkpoint.id
        )
    })?;
    let system = prompt.system.as_deref().or(chat.system.as_deref());
    let prompt::Prompt { text, ids, date } = chat_prompt(
        template,
        tokenizer,
        &Messages {
            system,
            user: &prompt.prompt,
        },
        chat.thinking,
    )?;
    Ok(Input { text, ids, date })
}

/// Refuses before any weight is read what the model cannot hold. A reply may run into the end of the context, which its
/// record says; it may not run out of a sliding window, since the model would then be another one.
fn check_length(prompt: usize, max_new_tokens: usize, config: &DecoderConfig) -> Result<()> {
    let longest = config.max_position_embeddings;
    anyhow::ensure!(
        prompt < longest,
        "the prompt has {prompt} tokens, the model takes {longest} with the reply (shorten the prompt)"
    );
    if let Some(window) = config.sliding_window {
        anyhow::ensure!(
            prompt.saturating_add(max_new_tokens).min(longest) <= window,
            "the prompt's {prompt} tokens and {max_new_tokens} new ones are more than the model's sliding_window of {window}, \
             and windowed attention is not supported (shorten the prompt or lower --max-new-tokens)"
        );
    }
    Ok(())
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

/// What is said beside the data.
struct Stderr {
    quiet: bool,
}

impl Stderr {
    fn say(&self, message: &str) {
        if !self.quiet {
            // whoever closed stderr does not want to know
            let _ = writeln!(io::stderr(), "{message}");
        }
    }

    fn warn(&self, message: &str) {
        let _ = writeln!(io::stderr(), "warning: {}", display::escape_text(message));
    }

    /// Says what of the request does not reach this model's template.
    fn chat_notes(&self, chat: &ChatRequest, checkpoint: &Checkpoint) {
        let template = checkpoint.template.as_ref().filter(|_| !chat.raw);
        if chat.thinking && template.is_some_and(|template| !template.has_thinking_switch()) {
            self.warn("--thinking has no effect: the model's chat template has no such switch");
        }
    }

    /// Returns a watch over an exploration: a progress bar that ends when the user interrupts.
    fn watch(
        &self,
        title: &str,
        interrupt: &Interrupt,
    ) -> impl FnMut(Progress) -> ControlFlow<()> + use<> {
        let bar = progress::bar(title, 0, self.quiet);
        let interrupt = interrupt.clone();
        move |progress| {
            bar.set_length(progress.total as u64);
            bar.set_position(progress.done as u64);
            match interrupt.exit_code() {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        }
    }
}

/// Standard output as a person reads it; a closed pipe or a full disk ends the printing, not the run.
struct Screen {
    out: Option<AutoStream<io::Stdout>>,
    width: Option<usize>,
    failure: Option<io::Error>,
}

impl Screen {
    fn new(request: &OutputRequest) -> Self {
        let choice = match request.color {
            ColorWhen::Auto => AutoStream::choice(&io::stdout()),
            ColorWhen::Always => ColorChoice::Always,
            ColorWhen::Never => ColorChoice::Never,
        };
        let is_shown = !request.quiet && request.out != Out::Stdout;
        let columns = std::env::var("COLUMNS")
            .ok()
            .and_then(|columns| columns.parse().ok());
        let terminal = || terminal_size::terminal_size().map(|(width, _)| usize::from(width.0));
        Self {
            out: is_shown.then(|| AutoStream::new(io::stdout(), choice)),
            width: columns.filter(|&columns| columns > 0).or_else(terminal),
            failure: None,
        }
    }

    fn show(&mut self, print: impl FnOnce(&mut Vec<u8>, Option<usize>) -> io::Result<()>) {
        let Some(out) = &mut self.out else { return };
        let mut text = Vec::new();
        print(&mut text, self.width).expect("a vector takes everything");
        if let Err(error) = out.write_all(&text).and_then(|()| out.flush()) {
            self.out = None;
            self.failure = ignore_closed_pipe(Err(error)).err();
        }
    }

    /// Whether what is shown is before the user's eyes.
    fn is_terminal(&self) -> bool {
        self.out.is_some() && io::stdout().is_terminal()
    }

    /// Ends the printing.
    ///
    /// # Errors
    /// When something could not be printed, other than into a closed pipe.
    fn close(self) -> Result<()> {
        self.failure
            .map_or(Ok(()), |error| Err(error).context("standard output"))
    }
}

/// Whoever closes the pipe has seen enough.
fn ignore_closed_pipe(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_prompt_that_does_not_fit_is_refused_before_any_weight_is_read() -> Result<()> {
        let config = DecoderConfig::from_hf(&json!({
            "model_type": "qwen2", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 1, "max_position_embeddings": 100, "sliding_window": 40, "use_sliding_window": true
        }))?;
        check_length(20, 20, &config)?;
        for (prompt, new, expected) in [
            (
                100,
                1,
                "the prompt has 100 tokens, the model takes 100 with the reply",
            ),
            (20, 21, "sliding_window of 40"),
            (20, usize::MAX, "sliding_window of 40"),
        ] {
            let error = check_length(prompt, new, &config)
                .expect_err(expected)
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
        Ok(())
    }
}
