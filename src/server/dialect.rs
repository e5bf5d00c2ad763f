//! What is asked of a server, whatever kind it is: ids in, ids out.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::http::Client;
use crate::text::chat::Messages;

/// Candidates after one prefix, in any order: ids with natural logarithms of their probabilities.
pub(super) type Best = Vec<(u32, f64)>;

/// Returns the place of a model among those of a server; where none is wanted by name, that of the only one.
///
/// # Errors
/// When it is not there, or nobody chose between several.
pub(super) fn place_of(wanted: Option<&str>, names: &[&str]) -> Result<usize> {
    let served = names.join(", ");
    match (wanted, names) {
        (_, []) => bail!("the server serves no model"),
        (None, [_]) => Ok(0),
        (None, _) => bail!("the server serves several models (choose one with --model: {served})"),
        (Some(wanted), _) => {
            let called = names.iter().position(|&name| name == wanted);
            let place = called.or_else(|| names.iter().position(|name| last_part(name) == wanted));
            place
                .with_context(|| format!("the server has no model `{wanted}` (it serves {served})"))
        }
    }
}

/// Returns what a record calls a model: of a path, the last part.
pub(super) fn last_part(name: &str) -> &str {
    match name.starts_with(['/', '.', '~']) || name.contains('\\') {
        true => { name.trim_end_matches(['/', '\\']) }
            .rsplit(['/', '\\'])
            .next()
            .unwrap_or(name),
        false => name,
    }
}

/// What a server says of itself.
#[derive(Debug, Clone)]
pub(super) struct Served {
    /// `vllm` or `llama.cpp`.
    pub(super) kind: &'static str,
    pub(super) version: String,
    pub(super) fingerprint: Option<String>,
    /// What it calls the model.
    pub(super) model: String,
    pub(super) vocab_size: usize,
    /// The most candidates that it shows.
    pub(super) most: usize,
    /// Tokens of the longest sequence.
    pub(super) max_positions: usize,
    /// How its weights are stored, where it says so.
    pub(super) weights_dtype: Option<String>,
}

/// The next token after each of some prefixes.
pub(super) struct Asked<'a> {
    pub(super) prefixes: &'a [&'a [u32]],
    /// Candidates to show.
    pub(super) count: usize,
    /// What the server draws with, which must not change what it shows.
    pub(super) temperature: f64,
}

/// A conversation as the server's own template puts it.
pub(super) struct Encoded {
    pub(super) text: String,
    pub(super) ids: Vec<u32>,
}

/// What happens when the server is made to choose a token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forced {
    /// Whether it becomes text.
    pub(super) is_text: bool,
    /// Whether the reply ends with it.
    pub(super) is_stop: bool,
}

/// One kind of server.
pub(super) trait Dialect: Send + Sync {
    /// Returns the candidates after each prefix.
    fn best(&self, client: &Client, asked: &Asked) -> Result<Vec<Best>>;

    /// Returns the ids of a text; `around` says whether the tokenizer puts around it what it is made to (BOS), `parsed` whether
    /// control tokens in it are parsed.
    fn encode(&self, client: &Client, text: &str, around: bool, parsed: bool) -> Result<Vec<u32>>;

    /// Renders a conversation with the server's own template.
    fn encode_chat(&self, client: &Client, messages: &Messages, thinking: bool) -> Result<Encoded>;

    /// Returns the text of ids, control tokens by their names; what is no whole character is U+FFFD.
    fn text(&self, client: &Client, ids: &[u32]) -> Result<String>;

    /// Cuts a text into tokens and returns their bytes.
    fn spell(&self, client: &Client, text: &str) -> Result<Vec<(u32, Vec<u8>)>>;

    /// Returns the bytes of an id, where the server has told them with its candidates.
    fn bytes(&self, _id: u32) -> Option<Vec<u8>> {
        None
    }

    /// Makes the server choose a token.
    fn force(&self, client: &Client, id: u32) -> Result<Forced>;
}

/// A conversation as the OpenAI API writes it.
pub(super) fn turns(messages: &Messages) -> Value {
    let system = messages
        .system
        .map(|text| json!({"role": "system", "content": text}));
    let user = json!({"role": "user", "content": messages.user});
    system.into_iter().chain([user]).collect()
}
