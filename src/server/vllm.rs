//! vLLM's server: `/v1/completions` with token ids in and token ids out.
//!
//! Without `return_tokens_as_token_ids` tokens come as text, where equal ones overwrite each other; so every key is checked to be
//! `token_id:N`. Unknown fields are accepted in silence, so every answer's shape is checked, too.

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::dialect::{Asked, Best, Dialect, Encoded, Forced, Served, place_of};
use super::http::{Client, SMALL};
use super::names::looks_like_control;
use crate::text::byte_level;
use crate::text::chat::Messages;

const COMPLETIONS: &str = "/v1/completions";

/// What vLLM calls no probability at all.
const NEVER: f64 = -9999.0;

/// One entry is `"token_id:248319":-12.345678901234567,`; the rest of an answer is small.
const ENTRY_BYTES: u64 = 48;

/// A vLLM server.
pub(super) struct Vllm {
    model: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    #[serde(default)]
    max_model_len: Option<usize>,
}

#[derive(Deserialize)]
struct Completions {
    choices: Vec<Choice>,
    #[serde(default)]
    system_fingerprint: Option<String>,
}

#[derive(Deserialize)]
struct Choice {
    index: usize,
    #[serde(default)]
    text: String,
    #[serde(default)]
    finish_reason: Option<String>,
    #[serde(default)]
    token_ids: Option<Vec<u32>>,
    #[serde(default)]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

#[derive(Deserialize)]
struct Logprobs {
    top_logprobs: Vec<Top>,
}

/// Ids with their log-probabilities.
struct Top(Vec<(u32, f64)>);

#[derive(Deserialize)]
struct Tokenized {
    tokens: Vec<u32>,
    #[serde(default)]
    token_strs: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Detokenized {
    prompt: String,
}

impl Vllm {
    /// Returns the server where it is one, with what it says of itself; `None` where it is another kind.
    ///
    /// # Errors
    /// When it does not answer, or does not serve the model.
    pub(super) fn detect(client: &Client, wanted: Option<&str>) -> Result<Option<(Self, Served)>> {
        let answer = client.get("/version")?;
        let Ok(Version { version }) = answer.read("/version") else {
            return match answer.status {
                200..300 | 404 | 405 => Ok(None),
                _ => Err(answer.refusal("/version")),
            };
        };
        let models: Models = client.get("/v1/models")?.read("/v1/models")?;
        let names: Vec<&str> = models.data.iter().map(|model| model.id.as_str()).collect();
        let model = &models.data[place_of(wanted, &names)?];
        let this = Self {
            model: model.id.clone(),
        };
        let (vocab_size, most, fingerprint) = this.limits(client)?;
        let served = Served {
            kind: "vllm",
            version,
            fingerprint,
            model: model.id.clone(),
            vocab_size,
            most,
            max_positions: model.max_model_len.context(
                "/v1/models does not say how long a sequence may be (expected max_model_len)",
            )?,
            weights_dtype: None,
        };
        Ok(Some((this, served)))
    }

    /// Asks for the whole vocabulary: the answer counts it, and a refusal says how many there are and how many are shown.
    fn limits(&self, client: &Client) -> Result<(usize, usize, Option<String>)> {
        let answer = client.post(COMPLETIONS, &self.body(&[&[0]], -1, 0.0), 1 << 28)?;
        if answer.status == 400 {
            let message = answer.message();
            let numbers = refused_count(&message);
            let (vocab_size, most) =
                numbers.with_context(|| format!("{COMPLETIONS} is refused: {message}"))?;
            return Ok((vocab_size, most, None));
        }
        let completions: Completions = answer.read(COMPLETIONS)?;
        let fingerprint = completions.system_fingerprint.clone();
        let best = completions.into_best(&[&[0]])?;
        let vocab_size = best[0].len();
        Ok((vocab_size, vocab_size, fingerprint))
    }

    fn body(&self, prefixes: &[&[u32]], count: i64, temperature: f64) -> Value {
        json!({
            "model": self.model, "prompt": prefixes, "max_tokens": 1, "temperature": temperature, "logprobs": count,
            "return_token_ids": true, "return_tokens_as_token_ids": true, "top_p": 1, "top_k": 0, "min_p": 0,
            "repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "seed": 0,
        })
    }

    /// Refuses a text in which the server finds a control token: it cannot be told to take it for text.
    fn check_plain(&self, client: &Client, text: &str) -> Result<()> {
        let Tokenized { tokens, token_strs } =
            self.tokenize(client, spelling(&self.model, text))?;
        let names = token_strs.filter(|names| names.len() == tokens.len());
        let names = names
            .context("/tokenize gives no token_strs (expected one a token; give --tokenizer)")?;
        for (id, name) in tokens.into_iter().zip(names) {
            ensure!(
                !looks_like_control(&name) || self.force(client, id)?.is_text,
                "the text holds the control token {name}, which this server parses in any text (give --tokenizer, which does not)"
            );
        }
        Ok(())
    }

    fn tokenize(&self, client: &Client, body: Value) -> Result<Tokenized> {
        client.post("/tokenize", &body, SMALL)?.read("/tokenize")
    }
}

/// Asks how a text is cut, with the symbols of its tokens.
fn spelling(model: &str, text: &str) -> Value {
    json!({"model": model, "prompt": text, "add_special_tokens": false, "return_token_strs": true})
}

/// "Requested sample logprobs of 49152, which is greater than max allowed: 20".
fn refused_count(message: &str) -> Option<(usize, usize)> {
    let (_, after) = message.split_once("logprobs of ")?;
    let (_, most) = after.split_once("max allowed: ")?;
    let number = |text: &str| {
        let digits = text.chars().take_while(char::is_ascii_digit);
        digits.collect::<String>().parse().ok()
    };
    Some((number(after)?, number(most)?))
}

impl Dialect for Vllm {
    fn best(&self, client: &Client, asked: &Asked) -> Result<Vec<Best>> {
        let count = i64::try_from(asked.count).context("so many candidates")?;
        let body = self.body(asked.prefixes, count, asked.temperature);
        let entries = (asked.prefixes.len() * (asked.count + 1)) as u64;
        let prompts: usize = asked.prefixes.iter().map(|prefix| prefix.len()).sum();
        let most = SMALL + entries * ENTRY_BYTES + prompts as u64 * 16;
        let answer = client.post(COMPLETIONS, &body, most)?;
        let completions: Completions = answer.read(COMPLETIONS)?;
        completions.into_best(asked.prefixes)
    }

    fn encode(&self, client: &Client, text: &str, around: bool, parsed: bool) -> Result<Vec<u32>> {
        let body = json!({"model": self.model, "prompt": text, "add_special_tokens": around});
        let ids = self.tokenize(client, body)?.tokens;
        if !parsed {
            self.check_plain(client, text)?;
        }
        Ok(ids)
    }

    fn encode_chat(&self, client: &Client, messages: &Messages, thinking: bool) -> Result<Encoded> {
        let body = json!({
            "model": self.model, "messages": super::dialect::turns(messages), "add_generation_prompt": true,
            "chat_template_kwargs": {"enable_thinking": thinking},
        });
        let ids = self.tokenize(client, body)?.tokens;
        let text = self.text(client, &ids)?;
        Ok(Encoded { text, ids })
    }

    fn text(&self, client: &Client, ids: &[u32]) -> Result<String> {
        let body = json!({"model": self.model, "tokens": ids});
        let answer = client.post("/detokenize", &body, SMALL)?;
        Ok(answer.read::<Detokenized>("/detokenize")?.prompt)
    }

    fn spell(&self, client: &Client, text: &str) -> Result<Vec<(u32, Vec<u8>)>> {
        let Tokenized { tokens, token_strs } =
            self.tokenize(client, spelling(&self.model, text))?;
        let symbols = token_strs.unwrap_or_default();
        let spelt = tokens.into_iter().zip(symbols).filter_map(|(id, symbols)| {
            let bytes: Option<Vec<u8>> = symbols.chars().map(byte_level::byte_of).collect();
            Some((id, bytes?))
        });
        Ok(spelt.collect())
    }

    fn force(&self, client: &Client, id: u32) -> Result<Forced> {
        let mut body = self.body(&[&[0]], 0, 0.0);
        body["allowed_token_ids"] = json!([id]);
        let answer = client.post(COMPLETIONS, &body, SMALL)?;
        let mut completions: Completions = answer.read(COMPLETIONS)?;
        let choice = completions.choices.pop();
        let choice = choice.filter(|choice| choice.token_ids.as_deref() == Some(&[id]));
        let choice = choice.with_context(|| {
            format!("{COMPLETIONS} does not take allowed_token_ids (expected token id {id})")
        })?;
        Ok(Forced {
            is_text: !choice.text.is_empty(),
            is_stop: choice.finish_reason.as_deref() == Some("stop"),
        })
    }
}

impl Completions {
    /// Returns what is shown after each prefix, checked against it.
    fn into_best(self, prefixes: &[&[u32]]) -> Result<Vec<Best>> {
        ensure!(
            self.choices.len() == prefixes.len(),
            "{COMPLETIONS} gives {} answers (expected {}, one a prompt)",
            self.choices.len(),
            prefixes.len()
        );
        let mut best: Vec<Option<Best>> = prefixes.iter().map(|_| None).collect();
        for choice in self.choices {
            let index = choice.index;
            let place = best
                .get_mut(index)
                .filter(|place| place.is_none())
                .with_context(|| {
                    format!("{COMPLETIONS} gives answer {index} twice or out of range")
                })?;
            *place = Some(choice.into_best(prefixes[index])?);
        }
        best.into_iter()
            .map(|best| best.context("every answer is there"))
            .collect()
    }
}

impl Choice {
    fn into_best(self, prefix: &[u32]) -> Result<Best> {
        let needs = "(expected vLLM 0.11 or newer, which knows return_token_ids)";
        let seen = self.prompt_token_ids;
        let seen =
            seen.with_context(|| format!("{COMPLETIONS} does not say which ids it saw {needs}"))?;
        ensure!(
            seen == prefix,
            "{COMPLETIONS} saw other token ids than were sent ({} of them, {} were sent)",
            seen.len(),
            prefix.len()
        );
        let chosen = match self.token_ids.as_deref() {
            Some(&[id]) => id,
            Some(ids) => bail!("{COMPLETIONS} gives {} tokens (expected 1)", ids.len()),
            None => bail!("{COMPLETIONS} gives no token ids {needs}"),
        };
        let logprobs = self
            .logprobs
            .context("there are no log-probabilities in the answer")?;
        let [Top(best)] = <[Top; 1]>::try_from(logprobs.top_logprobs)
            .map_err(|tops| anyhow!("{} lists of candidates for 1 token", tops.len()))?;
        ensure!(
            best.iter().any(|&(id, _)| id == chosen),
            "token id {chosen} is not among its own candidates"
        );
        Ok(best)
    }
}

impl<'de> Deserialize<'de> for Top {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Top;

            fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
                f.write_str("candidates by `token_id:N`")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Top, M::Error> {
                let mut best = Vec::with_capacity(map.size_hint().unwrap_or(0));
                while let Some(key) = map.next_key::<std::borrow::Cow<str>>()? {
                    let id = key.strip_prefix("token_id:").and_then(|id| id.parse().ok());
                    let id = id.ok_or_else(|| {
                        serde::de::Error::custom(
                            "a candidate is named by its text, which several share (expected `token_id:N`)",
                        )
                    })?;
                    let logprob: f64 = map.next_value()?;
                    let is_never = logprob <= NEVER;
                    best.push((id, if is_never { f64::NEG_INFINITY } else { logprob }));
                }
                Ok(Top(best))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of vLLM 0.32.0 on SmolLM2, three tokens or more each.
    fn kept(name: &str) -> Value {
        crate::server::tests::kept("vllm", name)
    }

    fn completions(answer: Value) -> Completions {
        serde_json::from_value(answer).expect("a completion")
    }

    /// Keeps the first of an answer's tokens: this program never asks for more.
    fn first_token(mut answer: Value) -> Value {
        let choice = &mut answer["choices"][0];
        for pointer in ["/token_ids", "/logprobs/top_logprobs"] {
            let list = choice.pointer_mut(pointer).and_then(Value::as_array_mut);
            list.expect("a list").truncate(1);
        }
        answer
    }

    #[test]
    fn a_kept_answer_is_read() {
        const PROMPT: &[u32] = &[504, 3575, 282, 4649, 314];
        let best = completions(first_token(kept("completions"))).into_best(&[PROMPT]);
        let best = best.expect("it is what was asked for").remove(0);
        assert_eq!((best.len(), best[0]), (5, (7042, -0.2606096565723419)));
        let version: Version = serde_json::from_value(kept("version")).expect("a version");
        assert_eq!(version.version, "0.32.0");
        let models: Models = serde_json::from_value(kept("models")).expect("models");
        assert_eq!(
            (models.data[0].id.as_str(), models.data[0].max_model_len),
            ("smol", Some(512))
        );
        let tokenized: Tokenized = serde_json::from_value(kept("tokenize_chat")).expect("ids");
        assert_eq!((tokenized.tokens.len(), tokenized.token_strs), (34, None));
    }

    #[test]
    fn a_kept_answer_to_another_question_is_refused() {
        let refusal = |answer: Value, prompts: &[&[u32]]| {
            let error = completions(answer).into_best(prompts);
            error.expect_err("it must be refused").to_string()
        };
        let answer = || kept("completions");
        assert!(refusal(answer(), &[&[504]]).contains("saw other token ids"));
        assert!(
            refusal(answer(), &[&[504, 3575, 282, 4649, 314]])
                .contains("gives 3 tokens (expected 1)")
        );
        assert!(refusal(first_token(answer()), &[]).contains("gives 1 answers (expected 0"));
        // tokens as text: parts of characters have all become one empty name
        let error = serde_json::from_value::<Completions>(kept("text_keys")).map(drop);
        assert!(
            error
                .expect_err("names are no ids")
                .to_string()
                .contains("`token_id:N`")
        );
    }

    #[test]
    fn symbols_of_a_kept_answer_are_bytes() {
        let tokenized: Tokenized = serde_json::from_value(kept("tokenize")).expect("ids");
        let symbols = tokenized.token_strs.expect("they were asked for");
        let bytes = |symbols: &str| -> Option<Vec<u8>> {
            symbols.chars().map(byte_level::byte_of).collect()
        };
        let bytes: Option<Vec<Vec<u8>>> = symbols.iter().map(|symbols| bytes(symbols)).collect();
        let text = bytes.expect("all are in the alphabet").concat();
        assert_eq!(
            String::from_utf8(text).expect("UTF-8"),
            "The capital of France is héé 🙂日 <|im_start|>"
        );
    }

    #[test]
    fn a_refusal_tells_the_vocabulary_and_how_much_of_it_is_shown() {
        let message = "Requested sample logprobs of 49152, which is greater than max allowed: 20";
        assert_eq!(refused_count(message), Some((49152, 20)));
        let said = |name: &str| {
            let answer = kept(name);
            answer["error"]["message"]
                .as_str()
                .map(str::to_owned)
                .expect("a message")
        };
        assert_eq!(refused_count(&said("too_many")), Some((49153, 49152)));
        assert_eq!(refused_count(&said("unknown_model")), None);
    }

    #[test]
    fn candidates_named_by_text_are_refused() {
        let top = |text: &str| serde_json::from_str::<Top>(text).map(|Top(best)| best);
        let best = top(r#"{"token_id:7":-0.5,"token_id:3":-9999.0}"#).expect("ids");
        assert_eq!(best, [(7, -0.5), (3, f64::NEG_INFINITY)]);
        for text in [
            r#"{" Paris":-0.5}"#,
            r#"{"token_id:x":-0.5}"#,
            r#"{"token_id:7":null}"#,
        ] {
            assert!(top(text).is_err(), "{text}");
        }
    }
}
