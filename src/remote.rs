//! A model behind a server, with the server's own tokenizer and template or those of local files.

use std::ffi::OsStr;

use anyhow::{Context, Result, ensure};

use crate::checkpoint::Source;
use crate::checkpoint::description::Description;
use crate::checkpoint::hub::HubOptions;
use crate::cli::{ChatRequest, ModelRequest, Top};
use crate::engine::Engine;
use crate::explore::MAX_ROWS;
use crate::input::{
    Input, TextParts, check_ids, check_length_of_text, check_prompt, check_room, render,
};
use crate::model::LanguageModel;
use crate::prompts::Prompt;
use crate::record::ModelInfo;
use crate::screen::Stderr;
use crate::server::{Address, OWN_TOKENIZER, Options, Server};
use crate::text::chat::{ChatTemplate, Messages};
use crate::text::display;
use crate::text::tokenizer::{Reading, TextTokenizer};
use crate::transcript::Vocabulary;

/// What a text is cut into by both tokenizers, to see that they are the same: words, a number, other scripts, parts of characters.
const SAMPLE: &str =
    "The capital of France is Paris, 1789. 法国的首都是巴黎。 naïve 🙂\n\tfn main() {}";

/// What no server says of itself.
const UNKNOWN: &str = "unknown";

/// A model behind a server.
pub(crate) struct Remote {
    server: Server,
    texts: Option<Texts>,
    stop_ids: Vec<u32>,
    has_thinking_switch: bool,
}

/// Tokenizer and template of local files.
struct Texts {
    id: String,
    tokenizer: TextTokenizer,
    template: Option<ChatTemplate>,
    stop_ids: Vec<u32>,
}

impl Texts {
    fn open(model: &OsStr) -> Result<Self> {
        let source = Source::locate(model, None)?;
        let description = Description::open(&source, &HubOptions::default())?;
        let tokenizer = description.tokenizer()?;
        Ok(Self {
            stop_ids: description.stop_ids(&tokenizer),
            template: description.template()?,
            id: description.id,
            tokenizer,
        })
    }

    /// Refuses a tokenizer that cuts a text otherwise than the server's does; a server without one is believed.
    fn check(&self, server: &Server) -> Result<()> {
        let ours = self.tokenizer.encode(SAMPLE, Reading::Continued)?;
        let Ok(theirs) = server.encode(SAMPLE, false, true) else {
            return Ok(());
        };
        ensure!(
            ours == theirs,
            "--tokenizer {}: cuts a text into other tokens than the server does (expected the tokenizer of the served model)",
            self.id
        );
        Ok(())
    }
}

impl Remote {
    /// Connects to the server of a request; it shows at least `candidates` at every step.
    ///
    /// # Errors
    /// When there is no server that is fit for the job, or the local tokenizer is not the model's.
    pub(crate) fn connect(
        address: &Address,
        request: &ModelRequest,
        chat: &ChatRequest,
        candidates: usize,
        messages: &Stderr,
    ) -> Result<Self> {
        let name = request.local.source.model.as_deref().map(|name| {
            let name = name.to_str();
            name.context("--model is not UTF-8 (expected what the server calls the model)")
        });
        let texts = request.server.tokenizer.as_deref().map(Texts::open);
        let texts = texts.transpose().context("--tokenizer")?;
        let server = Server::connect(&Options {
            address: address.clone(),
            model: name.transpose()?.map(str::to_owned),
            top: match request.server.server_top {
                Top::All => None,
                Top::Best(top) => Some(top.max(candidates)),
            },
            timeout: request.server.server_timeout,
        })?;
        let (stop_ids, has_thinking_switch) = match &texts {
            Some(texts) => {
                texts.check(&server)?;
                let template = texts.template.as_ref();
                let has_switch = template.is_some_and(|template| template.has_thinking_switch());
                (texts.stop_ids.clone(), has_switch)
            }
            None => {
                // a server without a template may be asked raw prompts
                let has_switch = !chat.raw && server.has_thinking_switch()?;
                (server.stop_ids()?, has_switch)
            }
        };
        if stop_ids.is_empty() {
            messages.warn("no token is known that ends a reply: every reply runs to the limit (--tokenizer may know one)");
        }
        if chat.thinking && !has_thinking_switch {
            messages.warn("--thinking has no effect: the model's chat template has no such switch");
        }
        Ok(Self {
            server,
            texts,
            stop_ids,
            has_thinking_switch,
        })
    }

    /// Tells the local chat template, where there is one, the date of an earlier rendering.
    pub(crate) fn repeat_date(&mut self, date: &str) {
        let texts = self.texts.as_mut();
        if let Some(template) = texts.and_then(|texts| texts.template.as_mut()) {
            template.repeat_date(date);
        }
    }
}

impl Engine for Remote {
    type Model = Server;

    fn info(&self) -> ModelInfo {
        let unknown = || UNKNOWN.to_owned();
        let texts = self.texts.as_ref();
        ModelInfo {
            id: self.server.model_name().to_owned(),
            revision: None,
            architecture: unknown(),
            vocab_size: self.server.vocab_size(),
            weights_dtype: self
                .server
                .weights_dtype()
                .map_or_else(unknown, str::to_owned),
            compute_dtype: unknown(),
            device: "server".to_owned(),
            tiles: false,
            note: None,
            server: Some(self.server.info(texts.map(|texts| texts.id.as_str()))),
        }
    }

    fn vocab_size(&self) -> usize {
        self.server.vocab_size()
    }

    fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    fn template_source(&self) -> Option<String> {
        match &self.texts {
            Some(texts) => Some(texts.template.as_ref()?.source()),
            None => Some(OWN_TOKENIZER.to_owned()),
        }
    }

    fn has_thinking_switch(&self) -> bool {
        self.has_thinking_switch
    }

    fn input(&self, prompt: &Prompt, chat: &ChatRequest, _max_new_tokens: usize) -> Result<Input> {
        let input = match &self.texts {
            Some(texts) => {
                let parts = TextParts {
                    id: &texts.id,
                    tokenizer: &texts.tokenizer,
                    template: texts.template.as_ref(),
                };
                let input = render(prompt, chat, &parts)?;
                self.server.check_ids(&input.ids)?;
                input
            }
            None => self.rendered_there(prompt, chat)?,
        };
        check_room(input.ids.len(), self.server.max_positions())?;
        Ok(input)
    }

    fn encode(&self, text: &str, reading: Reading) -> Result<Vec<u32>> {
        let Some(texts) = &self.texts else {
            let is_around = matches!(reading, Reading::Raw | Reading::Plain);
            let is_parsed = matches!(reading, Reading::Raw | Reading::Template);
            return self.server.encode(text, is_around, is_parsed);
        };
        let ids = texts.tokenizer.encode(text, reading)?;
        self.server.check_ids(&ids)?;
        Ok(ids)
    }

    fn check_text(&self, tokens: usize) -> Result<()> {
        check_length_of_text(tokens, self.server.max_positions())
    }

    fn vocabulary(&self) -> &dyn Vocabulary {
        match &self.texts {
            Some(texts) => &texts.tokenizer,
            None => &self.server,
        }
    }

    fn load(&self, messages: &Stderr) -> Result<Server> {
        let info = self.server.info(None);
        messages.explain(&format!(
            "{} {}: {} of {} candidates at every step",
            info.kind,
            display::escape_line(&info.version),
            info.top,
            self.server.vocab_size()
        ));
        Ok(self.server.clone())
    }

    fn batch(&self, _: &Server, _: usize, _: &Stderr) -> usize {
        MAX_ROWS
    }

    fn close(&self, messages: &Stderr) {
        let (requests, bytes) = self.server.totals();
        let mebibytes = bytes as f64 / f64::from(1 << 20);
        messages.explain(&format!(
            "{requests} requests, answers of {mebibytes:.1} MiB"
        ));
    }
}

impl Remote {
    /// Has the server render and tokenise a prompt.
    fn rendered_there(&self, prompt: &Prompt, chat: &ChatRequest) -> Result<Input> {
        check_prompt(prompt, chat)?;
        let (text, ids) = match chat.raw {
            true => {
                let reading = match chat.plain_text {
                    true => Reading::Plain,
                    false => Reading::Raw,
                };
                (prompt.prompt.clone(), self.encode(&prompt.prompt, reading)?)
            }
            false => {
                let messages = Messages {
                    system: prompt.system.as_deref().or(chat.system.as_deref()),
                    user: &prompt.prompt,
                };
                self.server.encode_chat(&messages, chat.thinking)?
            }
        };
        check_ids(&ids)?;
        Ok(Input {
            text,
            ids,
            date: None,
        })
    }
}
