//! llama.cpp's server: `/completion` with token ids in, one forced token out.
//!
//! It says nothing of a token that leaves the text in the middle of a character, so it is never left to choose: a bias makes it
//! choose a token that is a whole character, and the candidates beside that one are the model's own, before any sampler.

use std::collections::HashMap;
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::dialect::{Asked, Best, Dialect, Encoded, Forced, Served, place_of};
use super::http::{Client, SMALL};
use crate::text::chat::Messages;

const COMPLETION: &str = "/completion";

/// The lowest f32, which stands for no probability at all; what is near it, too.
const NEVER: f64 = -1e30;

/// One entry is `{"id":248319,"token":"…","bytes":[…],"logprob":…}`, with up to 4 bytes for each of a token's; long tokens are
/// few.
const ENTRY_BYTES: u64 = 512;

/// A bias that no logit reaches.
const CERTAIN: f64 = 1e9;

/// A llama.cpp server.
pub(super) struct LlamaCpp {
    /// A token that is a whole character.
    plain: u32,
    /// What candidates were made of; control tokens come without bytes.
    bytes: Mutex<HashMap<u32, Vec<u8>>>,
}

#[derive(Deserialize)]
struct Props {
    build_info: String,
    default_generation_settings: Generation,
    #[serde(default)]
    model_ftype: Option<String>,
}

#[derive(Deserialize)]
struct Generation {
    n_ctx: usize,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    meta: Option<Meta>,
}

#[derive(Deserialize)]
struct Meta {
    n_vocab: usize,
}

/// One prompt gives one answer, several a list.
#[derive(Deserialize)]
#[serde(untagged)]
enum Completions {
    Many(Vec<Completion>),
    One(Box<Completion>),
}

#[derive(Deserialize)]
struct Completion {
    #[serde(default)]
    index: usize,
    #[serde(default)]
    tokens: Vec<u32>,
    #[serde(default)]
    stop_type: String,
    #[serde(default)]
    content: String,
    #[serde(default)]
    completion_probabilities: Vec<Chosen>,
}

#[derive(Deserialize)]
struct Chosen {
    id: u32,
    top_logprobs: Vec<Candidate>,
}

#[derive(Deserialize)]
struct Candidate {
    id: u32,
    #[serde(default)]
    bytes: Vec<u8>,
    logprob: f64,
}

#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<Piece>,
}

#[derive(Deserialize)]
struct Piece {
    id: u32,
    piece: Bytes,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Bytes {
    Text(String),
    Bytes(Vec<u8>),
}

#[derive(Deserialize)]
struct Content {
    content: String,
}

#[derive(Deserialize)]
struct Rendered {
    prompt: String,
}

impl LlamaCpp {
    /// Returns the server where it is one, with what it says of itself; `None` where it is another kind.
    ///
    /// # Errors
    /// When it does not answer, or serves another model than is wanted.
    pub(super) fn detect(client: &Client, wanted: Option<&str>) -> Result<Option<(Self, Served)>> {
        let answer = client.get("/props")?;
        let Ok(props) = answer.read::<Props>("/props") else {
            return match answer.status {
                200..300 | 404 | 405 => Ok(None),
                _ => Err(answer.refusal("/props")),
            };
        };
        let models: Models = client.get("/v1/models")?.read("/v1/models")?;
        let names: Vec<&str> = models.data.iter().map(|model| model.id.as_str()).collect();
        let model = &models.data[place_of(wanted, &names)?];
        let meta = model.meta.as_ref();
        let meta = meta.context(
            "/v1/models does not say how large the vocabulary is (expected meta.n_vocab)",
        )?;
        let served = Served {
            kind: "llama.cpp",
            version: props.build_info,
            fingerprint: None,
            model: model.id.clone(),
            vocab_size: meta.n_vocab,
            most: meta.n_vocab,
            max_positions: props.default_generation_settings.n_ctx,
            weights_dtype: props.model_ftype.map(|dtype| dtype.to_lowercase()),
        };
        let mut this = Self {
            plain: 0,
            bytes: Mutex::default(),
        };
        for text in ["\n", " ", "a"] {
            if let [piece] = &this.tokenize(client, text, false, false)?[..] {
                this.plain = piece.id;
                return Ok(Some((this, served)));
            }
        }
        bail!(
            "the server's vocabulary has no token for a line break, a space or `a` (expected byte-level BPE)"
        )
    }

    fn tokenize(
        &self,
        client: &Client,
        text: &str,
        around: bool,
        parsed: bool,
    ) -> Result<Vec<Piece>> {
        let body = json!({"content": text, "add_special": around, "parse_special": parsed, "with_pieces": true});
        let answer = client.post("/tokenize", &body, SMALL)?;
        Ok(answer.read::<Tokenized>("/tokenize")?.tokens)
    }

    fn body(&self, prefixes: &[&[u32]], forced: u32, count: usize, temperature: f64) -> Value {
        json!({
            "prompt": prefixes, "n_predict": 1, "temperature": temperature, "n_probs": count, "logit_bias": [[forced, CERTAIN]],
            "return_tokens": true, "cache_prompt": true, "seed": 0, "post_sampling_probs": false,
        })
    }

    /// Returns the candidates of an answer, and remembers what they are made of.
    fn take(&self, mut completion: Completion) -> Result<Best> {
        ensure!(
            completion.tokens == [self.plain],
            "{COMPLETION} gives tokens {:?} (expected {}, which was made certain)",
            completion.tokens,
            self.plain
        );
        let chosen = completion.completion_probabilities.pop();
        let chosen = chosen.filter(|chosen| chosen.id == self.plain);
        let chosen = chosen.context("there are no log-probabilities in the answer")?;
        let mut known = self.bytes.lock().expect("nothing panics with the bytes");
        let best = chosen.top_logprobs.into_iter().map(|candidate| {
            if !candidate.bytes.is_empty() {
                known.entry(candidate.id).or_insert(candidate.bytes);
            }
            match candidate.logprob <= NEVER {
                true => (candidate.id, f64::NEG_INFINITY),
                false => (candidate.id, candidate.logprob),
            }
        });
        Ok(best.collect())
    }

    fn complete(&self, client: &Client, body: &Value, most: u64) -> Result<Vec<Completion>> {
        let answer = client.post(COMPLETION, body, most)?;
        Ok(match answer.read(COMPLETION)? {
            Completions::Many(completions) => completions,
            Completions::One(completion) => vec![*completion],
        })
    }
}

impl Dialect for LlamaCpp {
    fn best(&self, client: &Client, asked: &Asked) -> Result<Vec<Best>> {
        let mut body = self.body(asked.prefixes, self.plain, asked.count, asked.temperature);
        body["response_fields"] = json!(["index", "tokens", "completion_probabilities"]);
        let entries = (asked.prefixes.len() * asked.count) as u64;
        let completions = self.complete(client, &body, SMALL + entries * ENTRY_BYTES)?;
        ensure!(
            completions.len() == asked.prefixes.len(),
            "{COMPLETION} gives {} answers (expected {}, one a prompt)",
            completions.len(),
            asked.prefixes.len()
        );
        let mut best: Vec<Option<Best>> = asked.prefixes.iter().map(|_| None).collect();
        for completion in completions {
            let index = completion.index;
            let place = best
                .get_mut(index)
                .filter(|place| place.is_none())
                .with_context(|| {
                    format!("{COMPLETION} gives answer {index} twice or out of range")
                })?;
            *place = Some(self.take(completion)?);
        }
        best.into_iter()
            .map(|best| best.context("every answer is there"))
            .collect()
    }

    fn encode(&self, client: &Client, text: &str, around: bool, parsed: bool) -> Result<Vec<u32>> {
        let pieces = self.tokenize(client, text, around, parsed)?;
        Ok(pieces.into_iter().map(|piece| piece.id).collect())
    }

    fn encode_chat(&self, client: &Client, messages: &Messages, thinking: bool) -> Result<Encoded> {
        let body = json!({
            "messages": super::dialect::turns(messages),
            "chat_template_kwargs": {"enable_thinking": thinking},
        });
        let answer = client.post("/apply-template", &body, SMALL)?;
        let Rendered { prompt } = answer.read("/apply-template")?;
        let ids = self.encode(client, &prompt, true, true)?;
        Ok(Encoded { text: prompt, ids })
    }

    fn text(&self, client: &Client, ids: &[u32]) -> Result<String> {
        let answer = client.post("/detokenize", &json!({"tokens": ids}), SMALL)?;
        Ok(answer.read::<Content>("/detokenize")?.content)
    }

    fn spell(&self, client: &Client, text: &str) -> Result<Vec<(u32, Vec<u8>)>> {
        let pieces = self.tokenize(client, text, false, true)?;
        let spelt = pieces.into_iter().map(|piece| match piece.piece {
            Bytes::Text(text) => (piece.id, text.into_bytes()),
            Bytes::Bytes(bytes) => (piece.id, bytes),
        });
        Ok(spelt.collect())
    }

    fn bytes(&self, id: u32) -> Option<Vec<u8>> {
        let known = self.bytes.lock().expect("nothing panics with the bytes");
        known.get(&id).cloned()
    }

    fn force(&self, client: &Client, id: u32) -> Result<Forced> {
        let body = self.body(&[&[self.plain]], id, 0, 0.0);
        let completion = self.complete(client, &body, SMALL)?.pop();
        let completion = completion.filter(|completion| completion.tokens == [id]);
        let completion = completion.with_context(|| {
            format!("{COMPLETION} does not take logit_bias (expected token id {id})")
        })?;
        Ok(Forced {
            is_text: !completion.content.is_empty(),
            is_stop: completion.stop_type == "eos",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of llama.cpp's server (0c1e570) on SmolLM2; the list of all 49,152 candidates is cut.
    fn kept(name: &str) -> Value {
        crate::server::tests::kept("llama_cpp", name)
    }

    fn server(plain: u32) -> LlamaCpp {
        LlamaCpp {
            plain,
            bytes: Mutex::default(),
        }
    }

    fn completion(name: &str) -> Completion {
        match serde_json::from_value(kept(name)).expect("a completion") {
            Completions::One(completion) => *completion,
            Completions::Many(_) => panic!("one was asked for"),
        }
    }

    #[test]
    fn a_kept_answer_is_read_with_the_bytes_of_parts_of_characters() {
        let server = server(198);
        let best = server
            .take(completion("forced"))
            .expect("it is what was asked for");
        assert_eq!(best[0], (19, -2.6193673610687256));
        assert_eq!(server.bytes(10813), Some(vec![240, 159]));
        assert_eq!(server.bytes(2), None);
        let props: Props = serde_json::from_value(kept("props")).expect("props");
        assert_eq!(props.default_generation_settings.n_ctx, 512);
        let models: Models = serde_json::from_value(kept("models")).expect("models");
        assert_eq!(
            models.data[0].meta.as_ref().map(|meta| meta.n_vocab),
            Some(49152)
        );
        let rendered: Rendered = serde_json::from_value(kept("template")).expect("a prompt");
        assert!(rendered.prompt.ends_with("<|im_start|>assistant\n"));
        let pieces: Tokenized = serde_json::from_value(kept("pieces")).expect("pieces");
        let parts = pieces
            .tokens
            .iter()
            .filter(|piece| matches!(piece.piece, Bytes::Bytes(_)));
        assert_eq!(parts.count(), 2);
    }

    /// Left to choose, it says nothing of the first two thirds of a character.
    #[test]
    fn an_answer_without_the_forced_token_is_refused() {
        let error = server(198)
            .take(completion("unforced"))
            .expect_err("it was not forced");
        assert!(
            error
                .to_string()
                .contains("(expected 198, which was made certain)"),
            "{error}"
        );
    }
}
