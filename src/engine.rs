//! What a command asks: a model on this machine or one behind a server, with what turns text into its ids and back.

use anyhow::Result;

use crate::checkpoint::Checkpoint;
use crate::cli::{ChatRequest, LocalRequest};
use crate::device::{self, Compute};
use crate::input::{Input, check_text, to_input};
use crate::loading::{load, model_info, open, prepare};
use crate::model::LanguageModel;
use crate::model::decoder::Decoder;
use crate::prompts::Prompt;
use crate::record::ModelInfo;
use crate::screen::Stderr;
use crate::text::tokenizer::Reading;
use crate::transcript::Vocabulary;

/// A model that can be asked.
pub(crate) trait Engine {
    /// What computes.
    type Model: LanguageModel;

    /// Returns what a record says of the model.
    fn info(&self) -> ModelInfo;

    /// Returns the rows of the output layer.
    fn vocab_size(&self) -> usize {
        self.info().vocab_size
    }

    /// Returns the ids that end a reply.
    fn stop_ids(&self) -> &[u32];

    /// Returns where the chat template came from; `None` where there is none.
    fn template_source(&self) -> Option<String>;

    /// Returns whether the chat template lets thinking be switched.
    fn has_thinking_switch(&self) -> bool;

    /// Renders and tokenises a prompt, and checks that the model can hold it with `max_new_tokens` more.
    ///
    /// # Errors
    /// Says why the prompt cannot be run.
    fn input(&self, prompt: &Prompt, chat: &ChatRequest, max_new_tokens: usize) -> Result<Input>;

    /// Returns the ids of a text.
    ///
    /// # Errors
    /// When the vocabulary has no token for a part of it, or the tokenizer fails.
    fn encode(&self, text: &str, reading: Reading) -> Result<Vec<u32>>;

    /// Refuses a whole text of so many tokens that the model cannot hold; nothing has to fit behind it.
    ///
    /// # Errors
    /// Says how long it may be.
    fn check_text(&self, tokens: usize) -> Result<()>;

    /// Returns what names the ids.
    fn vocabulary(&self) -> &dyn Vocabulary;

    /// Makes the model ready.
    ///
    /// # Errors
    /// When memory is short or a tensor is not what its config says.
    fn load(&self, messages: &Stderr) -> Result<Self::Model>;

    /// Returns how many rows of so many tokens to compute at once, and says so.
    fn batch(&self, model: &Self::Model, positions: usize, messages: &Stderr) -> usize;

    /// Says what asking the model took, to those who want to know.
    fn close(&self, _messages: &Stderr) {}
}

/// A model whose files are on this machine.
pub(crate) struct Local {
    compute: Compute,
    checkpoint: Checkpoint,
}

impl Local {
    /// Opens a model's files.
    ///
    /// # Errors
    /// When they cannot be found, read or used.
    pub(crate) fn open(
        request: &LocalRequest,
        chat: &ChatRequest,
        messages: &Stderr,
    ) -> Result<Self> {
        let compute = prepare(request)?;
        let checkpoint = open(request, messages)?;
        messages.chat_notes(chat, checkpoint.template.as_ref());
        Ok(Self {
            compute,
            checkpoint,
        })
    }

    /// Tells the chat template the date of an earlier rendering.
    pub(crate) fn repeat_date(&mut self, date: &str) {
        if let Some(template) = &mut self.checkpoint.template {
            template.repeat_date(date);
        }
    }
}

impl Engine for Local {
    type Model = Decoder;

    fn info(&self) -> ModelInfo {
        model_info(&self.checkpoint, &self.compute)
    }

    fn stop_ids(&self) -> &[u32] {
        &self.checkpoint.stop_ids
    }

    fn template_source(&self) -> Option<String> {
        let template = self.checkpoint.template.as_ref()?;
        Some(template.source())
    }

    fn has_thinking_switch(&self) -> bool {
        let template = self.checkpoint.template.as_ref();
        template.is_some_and(|template| template.has_thinking_switch())
    }

    fn input(&self, prompt: &Prompt, chat: &ChatRequest, max_new_tokens: usize) -> Result<Input> {
        to_input(prompt, chat, max_new_tokens, &self.checkpoint)
    }

    fn encode(&self, text: &str, reading: Reading) -> Result<Vec<u32>> {
        self.checkpoint.tokenizer.encode(text, reading)
    }

    fn check_text(&self, tokens: usize) -> Result<()> {
        check_text(tokens, &self.checkpoint.config)
    }

    fn vocabulary(&self) -> &dyn Vocabulary {
        &self.checkpoint.tokenizer
    }

    fn load(&self, messages: &Stderr) -> Result<Decoder> {
        load(&self.checkpoint, &self.compute, messages)
    }

    fn batch(&self, decoder: &Decoder, positions: usize, messages: &Stderr) -> usize {
        let row_bytes = decoder.row_bytes(positions);
        let batch = device::rows_that_fit(row_bytes, self.checkpoint.memory_bytes);
        let mebibytes = row_bytes as f64 / f64::from(1 << 20);
        messages.explain(&format!("batch: up to {batch} rows of {mebibytes:.1} MiB"));
        batch
    }
}
