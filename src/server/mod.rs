//! A server as the model: vLLM's or llama.cpp's, which runs what is too large for this machine.
//!
//! A row is its token ids. The server shows its best candidates after a row, with log-probabilities over its whole vocabulary;
//! coins, filters and the tree are this program's own, as for a local model. Nothing that a server says is believed unchecked:
//! ids must be distinct and those that were sent, log-probabilities at most 0 and their sum at most 1, and a self-test at the
//! start finds out whether they are the model's own or what a sampler made of them.

mod address;
mod dialect;
mod http;
mod llama_cpp;
mod names;
mod route;
mod vllm;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

pub use address::{Address, KEY_VARIABLE};

use crate::distribution::shown::Shown;
use crate::model::LanguageModel;
use crate::record::ServerInfo;
use crate::text::chat::Messages;
use crate::text::tokenizer::{Reply, Token};
use crate::transcript::Vocabulary;
use dialect::{Asked, Best, Dialect, Served, last_part};
use http::Client;
use llama_cpp::LlamaCpp;
use names::Names;
use vllm::Vllm;

/// Sizes that a vocabulary may have; the largest ones known have some 300,000 tokens.
const VOCABULARIES: std::ops::RangeInclusive<usize> = 2..=1 << 22;

/// Candidates of one request, all its prompts together: what an answer of some tens of megabytes holds.
const MOST_ENTRIES: usize = 1 << 19;

/// How much more is asked for where what was shown does not decide a draw.
const WIDER: usize = 16;

/// What a record calls the server's own tokenizer and template.
pub(crate) const OWN_TOKENIZER: &str = "server";

/// Tokens that may end a reply, by their names: a server does not list its own, but it says when one has ended a reply.
const ENDS: [&str; 14] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|eot|>",
    "<|endofturn|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<|user|>",
    "</s>",
    "<eos>",
];

/// How to reach a server, and what to ask of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Where it is.
    pub address: Address,
    /// What the server calls the model; `None` is its only one.
    pub model: Option<String>,
    /// Candidates to show at every step; `None` is all of them.
    pub top: Option<usize>,
    /// How long an answer may take.
    pub timeout: Duration,
}

/// A server that has proved fit for the job; a clone is the same connection.
#[derive(Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    dialect: Box<dyn Dialect>,
    served: Served,
    /// Candidates that are asked for at first.
    top: usize,
    names: Names,
}

impl Server {
    /// Finds out what kind of server answers, and whether it shows what the model itself thinks.
    ///
    /// # Errors
    /// When there is none, or it is not fit: then the sentence says which flag to start it with.
    pub fn connect(options: &Options) -> Result<Self> {
        let client = Client::new(options.address.clone(), options.timeout)?;
        let found = detect(&client, options.model.as_deref());
        let (dialect, served) = found.with_context(|| format!("--server {}", options.address))?;
        ensure!(
            VOCABULARIES.contains(&served.vocab_size) && served.most > 0,
            "the server claims a vocabulary of {} of which it shows {} (expected {} to {}, and at least 1)",
            served.vocab_size,
            served.most,
            VOCABULARIES.start(),
            VOCABULARIES.end()
        );
        let top = match options.top {
            None => served.vocab_size,
            Some(top) => top.min(served.vocab_size),
        };
        ensure!(
            top <= served.most,
            "the server shows {} candidates at most, {top} were asked for (start it with --max-logprobs -1, or ask for {} at \
             most with --server-top and --candidates)",
            served.most,
            served.most
        );
        let server = Self {
            inner: Arc::new(Inner {
                client,
                dialect,
                served,
                top,
                names: Names::default(),
            }),
        };
        server.inner.test_itself()?;
        Ok(server)
    }

    /// Returns what the server calls the model; of a path, the last part.
    pub fn model_name(&self) -> &str {
        last_part(&self.inner.served.model)
    }

    /// Returns what a record says of the server; `tokenizer` names the local one that is used, if one is.
    pub fn info(&self, tokenizer: Option<&str>) -> ServerInfo {
        let served = &self.inner.served;
        ServerInfo {
            kind: served.kind.to_owned(),
            version: served.version.clone(),
            fingerprint: served.fingerprint.clone(),
            top: self.inner.top,
            most: served.most,
            tokenizer: tokenizer.unwrap_or(OWN_TOKENIZER).to_owned(),
        }
    }

    /// Returns how the server's weights are stored, where it says so.
    pub fn weights_dtype(&self) -> Option<&str> {
        self.inner.served.weights_dtype.as_deref()
    }

    /// Returns how many requests were made, and how many bytes their answers had.
    pub fn totals(&self) -> (u64, u64) {
        self.inner.client.totals()
    }

    /// Returns the ids of a text by the server's tokenizer; `around` says whether it puts around it what it is made to (BOS),
    /// `parsed` whether control tokens in it are parsed.
    ///
    /// # Errors
    /// When the server cannot, or does not answer.
    pub fn encode(&self, text: &str, around: bool, parsed: bool) -> Result<Vec<u32>> {
        let ids = self
            .inner
            .dialect
            .encode(&self.inner.client, text, around, parsed)?;
        self.inner.check_ids(&ids)?;
        Ok(ids)
    }

    /// Returns what the server's own template makes of a conversation, and its ids. The server would parse control tokens in
    /// messages, so those with any are refused.
    ///
    /// # Errors
    /// When there is no template or it refuses, or a message holds a control token.
    pub fn encode_chat(&self, messages: &Messages, thinking: bool) -> Result<(String, Vec<u32>)> {
        for text in messages.system.into_iter().chain([messages.user]) {
            let is_plain = self.encode(text, false, true)? == self.encode(text, false, false)?;
            ensure!(
                is_plain,
                "the text holds a control token, which the server's template does not keep apart from its own (give --tokenizer)"
            );
        }
        let encoded = self
            .inner
            .dialect
            .encode_chat(&self.inner.client, messages, thinking)?;
        self.inner.check_ids(&encoded.ids)?;
        Ok((encoded.text, encoded.ids))
    }

    /// Refuses ids that the model does not have.
    ///
    /// # Errors
    /// Names the first.
    pub fn check_ids(&self, ids: &[u32]) -> Result<()> {
        self.inner.check_ids(ids)
    }

    /// Returns whether the server's template lets thinking be switched.
    ///
    /// # Errors
    /// As [`encode_chat`](Self::encode_chat).
    pub fn has_thinking_switch(&self) -> Result<bool> {
        let messages = Messages {
            system: None,
            user: "Hi",
        };
        let (on, off) = (
            self.encode_chat(&messages, true)?,
            self.encode_chat(&messages, false)?,
        );
        Ok(on != off)
    }

    /// Returns the ids that end a reply, ascending: those of the usual names with which the server ends one.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn stop_ids(&self) -> Result<Vec<u32>> {
        let Inner {
            client, dialect, ..
        } = &*self.inner;
        let mut stop_ids = BTreeSet::new();
        for name in ENDS {
            let ids = dialect.encode(client, name, false, true)?;
            if let [id] = ids[..]
                && dialect.force(client, id)?.is_stop
            {
                stop_ids.insert(id);
            }
        }
        Ok(stop_ids.into_iter().collect())
    }
}

fn detect(client: &Client, wanted: Option<&str>) -> Result<(Box<dyn Dialect>, Served)> {
    if let Some((vllm, served)) = Vllm::detect(client, wanted)? {
        return Ok((Box::new(vllm), served));
    }
    if let Some((llama_cpp, served)) = LlamaCpp::detect(client, wanted)? {
        return Ok((Box::new(llama_cpp), served));
    }
    bail!(
        "this is neither vLLM's server nor llama.cpp's (expected an answer to /version or /props; other servers show 20 \
         candidates without ids, which is not enough)"
    )
}

impl Inner {
    /// Asks for the same candidates at temperatures 0 and 2: a server that shows what a sampler made of them halves the
    /// distances between them.
    fn test_itself(&self) -> Result<()> {
        const ADVICE: &str = "start it with --logprobs-mode raw_logprobs";
        let prefix: &[u32] = &[0];
        let gap = |temperature: f64| -> Result<f64> {
            let asked = Asked {
                prefixes: &[prefix],
                count: self.top,
                temperature,
            };
            let mut best = self.dialect.best(&self.client, &asked)?;
            let best = best.pop().context("one prefix was asked about")?;
            let mut logprobs: Vec<f64> = best.iter().map(|&(_, logprob)| logprob).collect();
            logprobs.sort_unstable_by(|a, b| b.total_cmp(a));
            logprobs.truncate(self.top);
            if temperature == 0.0 {
                let fine = Shown::from_best(self.served.vocab_size, best);
                fine.with_context(|| {
                    format!("what the server shows cannot be used (of vLLM: {ADVICE})")
                })?;
            }
            let first = *logprobs.first().context("the server shows no candidates")?;
            let last = logprobs.iter().rfind(|logprob| logprob.is_finite());
            Ok(first - last.copied().unwrap_or(first))
        };
        let (cold, warm) = (gap(0.0)?, gap(2.0)?);
        ensure!(
            (warm - cold).abs() <= (warm - 0.5 * cold).abs(),
            "the server shows probabilities after its sampler's temperature and filters, not the model's own ({ADVICE})"
        );
        Ok(())
    }

    fn check_ids(&self, ids: &[u32]) -> Result<()> {
        let vocab_size = self.served.vocab_size;
        match ids.iter().find(|&&id| id as usize >= vocab_size) {
            Some(id) => bail!(
                "the tokenizer gives token id {id} (expected ids below the model's vocabulary of {vocab_size})"
            ),
            None => Ok(()),
        }
    }

    /// Asks what comes after each prefix, in as few requests as answers of a bearable size allow.
    fn show(&self, prefixes: &[&[u32]], count: usize) -> Result<Vec<Shown>> {
        let mut shown = Vec::with_capacity(prefixes.len());
        for prefixes in prefixes.chunks((MOST_ENTRIES / count).max(1)) {
            let asked = Asked {
                prefixes,
                count,
                temperature: 0.0,
            };
            for best in self.dialect.best(&self.client, &asked)? {
                shown.push(self.checked(best, count)?);
            }
        }
        Ok(shown)
    }

    fn checked(&self, best: Best, count: usize) -> Result<Shown> {
        // a token that was chosen from outside the best comes with them
        ensure!(
            (count..=count + 1).contains(&best.len()),
            "the server shows {} candidates (expected the {count} that were asked for)",
            best.len()
        );
        Shown::from_best(self.served.vocab_size, best)
            .context("the server's answer cannot be right")
    }
}

impl LanguageModel for Server {
    type Row = Vec<u32>;
    type Shown = Shown;

    fn vocab_size(&self) -> usize {
        self.inner.served.vocab_size
    }

    fn max_positions(&self) -> usize {
        self.inner.served.max_positions
    }

    fn start(&self) -> Vec<u32> {
        Vec::new()
    }

    fn extend(&self, row: &mut Vec<u32>, tokens: &[u32]) -> Result<Shown> {
        row.extend(tokens);
        let mut shown = self.inner.show(&[row], self.inner.top)?;
        shown.pop().context("one row was asked about")
    }

    fn step(&self, rows: &mut [Vec<u32>], tokens: &[u32]) -> Result<Vec<Shown>> {
        rows.iter_mut()
            .zip(tokens)
            .for_each(|(row, &token)| row.push(token));
        let prefixes: Vec<&[u32]> = rows.iter().map(Vec::as_slice).collect();
        self.inner.show(&prefixes, self.inner.top)
    }

    fn score(
        &self,
        row: &mut Vec<u32>,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, Shown) -> Result<()>,
    ) -> Result<()> {
        let start = row.len();
        row.extend(tokens);
        let top = self.inner.top;
        let together = (MOST_ENTRIES / top).clamp(1, crate::explore::MAX_ROWS);
        let places: Vec<usize> = (0..tokens.len()).collect();
        for places in places.chunks(together) {
            let prefixes: Vec<&[u32]> = places.iter().map(|place| &row[..=start + place]).collect();
            for (&place, mut shown) in places.iter().zip(self.inner.show(&prefixes, top)?) {
                // the token that comes next must be seen
                if let Some(&next) = tokens.get(place + 1) {
                    while shown.rank(next).is_none() {
                        let prefix = row[..=start + place].to_vec();
                        let mut wider = self.widen(&[&prefix], shown.num_shown())?;
                        shown = wider.pop().context("one row was asked about")?;
                    }
                }
                each(place, shown)?;
            }
        }
        Ok(())
    }

    fn widen(&self, rows: &[&Vec<u32>], shown: usize) -> Result<Vec<Shown>> {
        let Served {
            most, vocab_size, ..
        } = self.inner.served;
        ensure!(
            shown < most,
            "the {most} candidates that the server shows do not decide what is drawn here (start it with --max-logprobs -1 to see \
             all {vocab_size})"
        );
        let wider = shown.saturating_mul(WIDER).min(most);
        let prefixes: Vec<&[u32]> = rows.iter().map(|row| row.as_slice()).collect();
        self.inner.show(&prefixes, wider)
    }
}

impl Vocabulary for Server {
    fn learn(&self, ids: &BTreeSet<u32>, replies: &[Vec<u32>]) -> Result<()> {
        let Inner {
            client,
            dialect,
            names,
            ..
        } = &*self.inner;
        names.learn(client, dialect.as_ref(), ids, replies)
    }

    fn token(&self, id: u32) -> Token {
        self.inner.names.token(id)
    }

    fn detokenize(&self, ids: &[u32]) -> Reply {
        self.inner.names.detokenize(ids)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    /// Returns what a real server answered.
    pub(super) fn kept(server: &str, name: &str) -> Value {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/servers");
        let bytes = std::fs::read(format!("{folder}/{server}.json")).expect("the answers are kept");
        let mut answers: Value = serde_json::from_slice(&bytes).expect("JSON");
        answers[name].take()
    }
}
