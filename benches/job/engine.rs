//! The library as the benchmark uses it: the one place that changes when its interface does.

use std::cell::Cell;
use std::ffi::OsStr;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use logprobs::checkpoint::hub::HubOptions;
use logprobs::checkpoint::{Checkpoint, Source};
use logprobs::cli::{DeviceChoice, DtypeChoice};
use logprobs::device::Compute;
use logprobs::explore::{MAX_ROWS, Plan, explore, explore_all};
use logprobs::model::decoder::Decoder;
use logprobs::model::{LanguageModel, Logits};
use logprobs::setting::Setting;
use logprobs::text::chat::Messages;
use logprobs::text::prompt::chat_prompt;

use super::table::{Times, say};

/// A prompt whose answer a small model knows.
pub(crate) const FRANCE: &str = "What is the capital of France? Answer in one sentence.";
/// Tokens of the prompts that steps follow and that the job in the library has.
const PROMPT_TOKENS: [usize; 2] = [24, 28];
/// Times that a step or a short prefill is repeated; the median counts.
const REPEATS: usize = 7;
/// … and one of more tokens than this, which takes seconds.
const LONG: usize = 256;
const LONG_REPEATS: usize = 3;

/// A model in memory.
pub(crate) struct Engine {
    decoder: Decoder,
    checkpoint: Checkpoint,
}

/// How much equal beginnings saved.
pub(crate) struct Shared {
    /// Rows that were computed after the prompt.
    pub(crate) rows: usize,
    /// Tokens of all runs after their first, which comes with the prompt.
    pub(crate) tokens: usize,
}

/// Sets the threads of the library and of the programs started from here; returns how many.
pub(crate) fn set_threads(threads: Option<u16>) -> usize {
    logprobs::device::set_threads(threads);
    rayon::current_num_threads()
}

impl Engine {
    /// Opens and loads a model; returns it with the seconds that took.
    pub(crate) fn load(model: &Path) -> Result<(Self, f64)> {
        let start = Instant::now();
        let source = Source::locate(OsStr::new(model), None)?;
        let options = HubOptions {
            offline: true,
            progress: false,
        };
        let checkpoint = Checkpoint::open(&source, &options)?;
        let weights = checkpoint.weights.as_ref();
        let compute = Compute::choose(DeviceChoice::Cpu, DtypeChoice::Auto)?;
        let decoder = Decoder::load(&checkpoint.config, weights, &compute.backend, &|| ())?;
        let seconds = start.elapsed().as_secs_f64();
        let engine = Self {
            decoder,
            checkpoint,
        };
        Ok((engine, seconds))
    }

    /// Returns the times of a step of `rows` rows, each behind a prompt.
    pub(crate) fn step(&self, rows: usize) -> Result<Times> {
        say(&format!("timing a step of {rows}"));
        let mut row = self.decoder.start();
        self.decoder
            .extend(&mut row, &self.tokens(0, PROMPT_TOKENS[0]))?;
        let mut rows = vec![row; rows];
        // the first step parts the rows' memory, which a fork shares
        let mut step = |index: usize| {
            let tokens = self.tokens(1000 * (index + 1), rows.len());
            let start = Instant::now();
            self.decoder.step(&mut rows, &tokens)?;
            Ok(start.elapsed().as_secs_f64())
        };
        step(0)?;
        let times = (1..=REPEATS).map(step).collect::<Result<_>>()?;
        Ok(Times::of(times))
    }

    /// Returns the times of reading a prompt of `tokens` tokens.
    pub(crate) fn prefill(&self, tokens: usize) -> Result<Times> {
        say(&format!("timing a prefill of {tokens}"));
        let ids = self.tokens(0, tokens);
        let repeats = if tokens > LONG { LONG_REPEATS } else { REPEATS };
        let prefill = |_| {
            let start = Instant::now();
            self.decoder.extend(&mut self.decoder.start(), &ids)?;
            Ok(start.elapsed().as_secs_f64())
        };
        let times = (0..repeats).map(prefill).collect::<Result<_>>()?;
        Ok(Times::of(times))
    }

    /// Does the job in the library and returns the share of its time that is not the model's: softmax, order, counts,
    /// draws, forks.
    pub(crate) fn distribution_share(&self, new: usize) -> Result<f64> {
        say("timing the parts of the job");
        let model = Timed {
            model: &self.decoder,
            spent: Cell::default(),
        };
        let plan = Plan {
            max_new_tokens: new,
            stop_ids: Vec::new(),
            ..self.plan(&[0.3, 0.7, 1.0, 1.5], true)?
        };
        let prompts = [0, 1].map(|index| self.tokens(index, PROMPT_TOKENS[index]));
        let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
        let mut failed = None;
        let start = Instant::now();
        explore_all(
            &model,
            &prompts,
            &plan,
            MAX_ROWS,
            &mut |_| ControlFlow::Continue(()),
            &mut |_, result| failed = failed.take().or(result.err()),
        );
        let total = start.elapsed();
        failed.map_or(Ok(()), Err)?;
        Ok(1.0 - model.spent.get().as_secs_f64() / total.as_secs_f64())
    }

    /// Explores a known fact with a greedy run and five samples each at 0.3 and 0.7.
    pub(crate) fn shared_rows(&self) -> Result<Shared> {
        let template = self.checkpoint.template.as_ref();
        let template = template.context("the model has no chat template")?;
        let messages = Messages {
            system: None,
            user: FRANCE,
        };
        let prompt = chat_prompt(template, &self.checkpoint.tokenizer, &messages, false)?;
        let plan = self.plan(&[0.3, 0.7], false)?;
        let watch = &mut |_| ControlFlow::Continue(());
        let explored = explore(&self.decoder, &prompt.ids, &plan, watch)?;
        let explored = explored.context("nobody interrupted it")?;
        let runs = explored.sweeps.iter().flatten().chain([&explored.greedy]);
        Ok(Shared {
            rows: explored.rows_computed,
            tokens: runs.map(|run| run.steps.len() - 1).sum(),
        })
    }

    fn plan(&self, temperatures: &[f64], with_nucleus: bool) -> Result<Plan> {
        let mut settings = temperatures
            .iter()
            .map(|&temperature| Setting::OFF.with_temperature(temperature))
            .collect::<Result<Vec<_>, _>>()?;
        if with_nucleus {
            settings.push(Setting::OFF.with_top_p(0.9)?);
        }
        Ok(Plan {
            max_new_tokens: 64,
            settings,
            runs: (0..5).collect(),
            seed: 0,
            stop_ids: self.checkpoint.stop_ids.clone(),
            candidates: 5,
            mass: 0.9,
        })
    }

    /// Some tokens, spread over the vocabulary.
    fn tokens(&self, start: usize, count: usize) -> Vec<u32> {
        let size = self.decoder.vocab_size();
        (start..start + count)
            .map(|index| (index * 7919 % size) as u32)
            .collect()
    }
}

/// A model that counts the time spent in it.
struct Timed<'a> {
    model: &'a Decoder,
    spent: Cell<Duration>,
}

impl Timed<'_> {
    fn count<T>(&self, start: Instant, value: T) -> T {
        self.spent.set(self.spent.get() + start.elapsed());
        value
    }
}

impl LanguageModel for Timed<'_> {
    type Row = <Decoder as LanguageModel>::Row;
    type Shown = Logits;

    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn max_positions(&self) -> usize {
        self.model.max_positions()
    }

    fn start(&self) -> Self::Row {
        self.model.start()
    }

    fn extend(&self, row: &mut Self::Row, tokens: &[u32]) -> Result<Logits> {
        let start = Instant::now();
        self.count(start, self.model.extend(row, tokens))
    }

    fn step(&self, rows: &mut [Self::Row], tokens: &[u32]) -> Result<Vec<Logits>> {
        let start = Instant::now();
        self.count(start, self.model.step(rows, tokens))
    }

    fn score(
        &self,
        row: &mut Self::Row,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, Logits) -> Result<()>,
    ) -> Result<()> {
        self.model.score(row, tokens, each)
    }
}
