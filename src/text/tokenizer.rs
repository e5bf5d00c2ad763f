//! Text to ids and ids to bytes, for byte-level BPE tokenizers; every other kind is refused by name.
//!
//! The work is the `tokenizers` crate's; added here are the three readings of a text, the real bytes of a token, and
//! the added tokens that only `tokenizer_config.json` knows (Qwen3.5 has seven). Nothing is ever cut, padded or left
//! out, and no token gets another id than the files say.

use std::ops::Range;

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, DecoderWrapper, Encoding, Model, NormalizedString, Normalizer, NormalizerWrapper,
    OffsetReferential, OffsetType, PostProcessorWrapper, PreTokenizedString, PreTokenizer,
    PreTokenizerWrapper, Tokenizer, TokenizerImpl,
};

use crate::text::byte_level;
use crate::text::display;

/// How control tokens in a text are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// A rendered chat template: added tokens are parsed, nothing is put around the text.
    Template,
    /// A hand-written prompt: added tokens are parsed, and the tokenizer puts around it what it is made to (BOS).
    Raw,
    /// As `Raw`, but no added token is parsed: `<|im_end|>` is ten characters.
    Plain,
    /// Text that goes on where other tokens end: no added token is parsed, and nothing is put around it.
    Continued,
}

/// What there is to know of one id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// Its text as [`display::escape`] shows it; `<|id:248100|>` for an id without a name.
    pub text: String,
    /// Its bytes; none for an id without a name.
    pub bytes: Vec<u8>,
    /// Whether it is a control token or has no name: no text.
    pub special: bool,
}

/// The text of many ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Text up to the last whole character; U+FFFD where bytes are no UTF-8.
    pub text: String,
    /// Bytes of an unfinished character at the end.
    pub incomplete_bytes: Vec<u8>,
}

/// A byte-level BPE tokenizer.
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    /// Bytes that the vocabulary cannot spell: most have none, SmolLM2's has 21.
    missing_bytes: Vec<u8>,
}

impl TextTokenizer {
    /// Reads `tokenizer.json`, and the added tokens of `tokenizer_config.json`, whose flags win.
    ///
    /// # Errors
    /// When the file cannot be read, is no byte-level BPE tokenizer, or a token would not get the id that a file says.
    pub fn from_json(tokenizer_json: &[u8], tokenizer_config: Option<&Value>) -> Result<Self> {
        let declared: Declared =
            serde_json::from_slice(tokenizer_json).context("tokenizer.json")?;
        let tokenizer = match declared.model.kind.as_deref() {
            Some("BPE") => read_bpe(tokenizer_json),
            _ => Tokenizer::from_bytes(tokenizer_json).map_err(anyhow::Error::from_boxed),
        };
        let mut text_tokenizer = tokenizer.and_then(Self::new).context("tokenizer.json")?;
        for token in declared.added_tokens {
            text_tokenizer
                .check_id(&token.content, token.id)
                .context("tokenizer.json")?;
        }
        if let Some(decoder) =
            tokenizer_config.and_then(|config| config.get("added_tokens_decoder"))
        {
            text_tokenizer
                .add(decoder)
                .context("tokenizer_config.json: added_tokens_decoder")?;
        }
        Ok(text_tokenizer)
    }

    /// Takes a tokenizer that is made already.
    ///
    /// # Errors
    /// When it is no byte-level BPE tokenizer.
    pub fn new(mut tokenizer: Tokenizer) -> Result<Self> {
        byte_level::check(&tokenizer)?;
        tokenizer
            .with_truncation(None)
            .map_err(anyhow::Error::from_boxed)?;
        tokenizer.with_padding(None);
        let missing_bytes = byte_level::missing_bytes(&tokenizer);
        Ok(Self {
            tokenizer,
            missing_bytes,
        })
    }

    /// Returns the number of ids that have a name.
    #[expect(clippy::len_without_is_empty, reason = "a tokenizer is never empty")]
    pub fn len(&self) -> usize {
        self.tokenizer.get_vocab_size(true)
    }

    /// Returns the id of a token by its name: an added token's content, or a base token as the vocabulary spells it.
    pub fn id_of(&self, name: &str) -> Option<u32> {
        self.tokenizer.token_to_id(name)
    }

    /// Returns the ids of a text.
    ///
    /// # Errors
    /// When the vocabulary has no token for a byte of it, or the tokenizer fails.
    pub fn encode(&self, text: &str, reading: Reading) -> Result<Vec<u32>> {
        if matches!(reading, Reading::Plain | Reading::Continued) {
            self.check_bytes(text)?;
        } else if !self.missing_bytes.is_empty() {
            let pieces = self.split_at_added(text).into_iter();
            let mut texts = pieces.filter(|(_, added)| added.is_none());
            texts.try_for_each(|(range, _)| self.check_bytes(&text[range]))?;
        }
        let encoding = match reading {
            Reading::Template => self.tokenizer.encode_fast(text, false),
            Reading::Raw => self.tokenizer.encode_fast(text, true),
            Reading::Continued => self.encode_base(text),
            Reading::Plain => self
                .encode_base(text)
                .and_then(|encoding| self.tokenizer.post_process(encoding, None, true)),
        };
        Ok(encoding.map_err(failed)?.get_ids().to_vec())
    }

    /// Returns the ids of a text whose added tokens are found before `restore` is applied to what lies between them.
    /// Without anything to restore, the ids are those of [`Reading::Template`].
    pub(super) fn encode_restored(
        &self,
        text: &str,
        restore: impl Fn(&str) -> String,
    ) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for (range, added) in self.split_at_added(text) {
            match added {
                Some(id) => ids.push(id),
                None => {
                    let piece = restore(&text[range]);
                    self.check_bytes(&piece)?;
                    ids.extend(self.encode_base(&piece).map_err(failed)?.get_ids());
                }
            }
        }
        Ok(ids)
    }

    /// Returns the pieces of a text in order, with the id of those that the tokenizer takes for added tokens.
    pub(super) fn split_at_added(&self, text: &str) -> Vec<(Range<usize>, Option<u32>)> {
        let split = self
            .tokenizer
            .get_added_vocabulary()
            .extract_and_normalize(self.tokenizer.get_normalizer(), text);
        // Only the places of added tokens are the library's: its places of what lies between them miss marks at the
        // ends that the normaliser composed.
        let mut pieces = Vec::new();
        let mut end = 0;
        for (_, found, tokens) in split.get_splits(OffsetReferential::Original, OffsetType::Byte) {
            let Some(token) = tokens.as_ref().and_then(|tokens| tokens.first()) else {
                continue;
            };
            if end < found.0 {
                pieces.push((end..found.0, None));
            }
            pieces.push((found.0..found.1, Some(token.id)));
            end = end.max(found.1);
        }
        if end < text.len() {
            pieces.push((end..text.len(), None));
        }
        pieces
    }

    /// Returns the contents of all added tokens, in no order.
    pub(super) fn added_contents(&self) -> impl Iterator<Item = &str> {
        self.tokenizer
            .get_added_vocabulary()
            .get_vocab()
            .keys()
            .map(String::as_str)
    }

    /// Returns what there is to know of an id; any number is allowed.
    pub fn token(&self, id: u32) -> Token {
        let (bytes, special) = self.bytes_of(id);
        let text = match bytes.as_slice() {
            [] => format!("<|id:{id}|>"),
            bytes => display::escape(bytes),
        };
        Token {
            text,
            bytes,
            special,
        }
    }

    /// Returns the text of all ids that are not special, decoded at once.
    pub fn detokenize(&self, ids: &[u32]) -> Reply {
        let texts = ids
            .iter()
            .map(|id| self.bytes_of(*id))
            .filter(|(_, special)| !special);
        reply_of(&texts.flat_map(|(bytes, _)| bytes).collect::<Vec<u8>>())
    }

    /// Returns the bytes of an id, and whether it is special.
    fn bytes_of(&self, id: u32) -> (Vec<u8>, bool) {
        if let Some(token) = self
            .tokenizer
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .get(&id)
        {
            return (token.content.clone().into_bytes(), token.special);
        }
        let name = self
            .tokenizer
            .get_model()
            .id_to_token(id)
            .unwrap_or_default();
        // What is not written in the alphabet stands for itself, as in the library's decoder.
        let bytes: Option<Vec<u8>> = name.chars().map(byte_level::byte_of).collect();
        (
            bytes.unwrap_or_else(|| name.clone().into_bytes()),
            name.is_empty(),
        )
    }

    /// Refuses a text that the model would only see in part: BPE leaves out bytes without a token without a word.
    fn check_bytes(&self, text: &str) -> Result<()> {
        let is_missing = |c: &char| {
            let mut bytes = [0; 4];
            let bytes = c.encode_utf8(&mut bytes).as_bytes();
            bytes.iter().any(|byte| self.missing_bytes.contains(byte))
        };
        let missing = match self.missing_bytes.as_slice() {
            [] => None,
            _ => text.chars().find(is_missing),
        };
        match missing {
            None => Ok(()),
            Some(c) => bail!(
                "the model's vocabulary has no tokens for U+{:04X} (expected a text without it)",
                u32::from(c)
            ),
        }
    }

    /// Runs all of the tokenizer but its added tokens and its post-processor.
    fn encode_base(&self, text: &str) -> tokenizers::Result<Encoding> {
        let mut normalized = NormalizedString::from(text);
        if let Some(normalizer) = self.tokenizer.get_normalizer() {
            normalizer.normalize(&mut normalized)?;
        }
        let mut pieces = PreTokenizedString::from(normalized);
        if let Some(pre_tokenizer) = self.tokenizer.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        self.tokenizer
            .get_model()
            .tokenize_in_pretokenized(&mut pieces, None)?;
        pieces.into_encoding(None, 0, OffsetType::None)
    }

    fn add(&mut self, decoder: &Value) -> Result<()> {
        let decoder = decoder
            .as_object()
            .context("is not an object of tokens by their ids")?;
        let mut tokens = Vec::with_capacity(decoder.len());
        for (id, token) in decoder {
            let token: ConfigToken =
                serde_json::from_value(token.clone()).with_context(|| format!("id `{id}`"))?;
            let id: u32 = id.parse().with_context(|| format!("`{id}` is not an id"))?;
            tokens.push((id, token));
        }
        tokens.sort_by_key(|(id, _)| *id);
        let added = self
            .tokenizer
            .add_tokens(tokens.iter().map(|(_, token)| token.to_added()));
        added.map_err(anyhow::Error::from_boxed)?;
        tokens
            .iter()
            .try_for_each(|(id, token)| self.check_id(&token.content, *id))
    }

    fn check_id(&self, content: &str, id: u32) -> Result<()> {
        let given = self.id_of(content);
        let given_id = given.map_or("none".to_owned(), |id| id.to_string());
        ensure!(
            given == Some(id),
            "token `{content}` has id {id} here, but would get {given_id}"
        );
        Ok(())
    }
}

/// Reads a `tokenizer.json` whose model is BPE. Not told so, the library makes a tree of the whole file first, a tenth of a
/// second for 250,000 tokens.
fn read_bpe(tokenizer_json: &[u8]) -> Result<Tokenizer> {
    let tokenizer: TokenizerImpl<
        BPE,
        NormalizerWrapper,
        PreTokenizerWrapper,
        PostProcessorWrapper,
        DecoderWrapper,
    > = serde_json::from_slice(tokenizer_json)?;
    Ok(tokenizer.into())
}

/// What tokenizer.json says of its model's kind, and of its added tokens' ids, which the library does not insist on.
#[derive(Deserialize)]
struct Declared {
    #[serde(default)]
    model: DeclaredModel,
    #[serde(default)]
    added_tokens: Vec<DeclaredToken>,
}

#[derive(Default, Deserialize)]
struct DeclaredModel {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(Deserialize)]
struct DeclaredToken {
    id: u32,
    content: String,
}

/// An entry of `added_tokens_decoder`.
#[derive(Deserialize)]
struct ConfigToken {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl ConfigToken {
    fn to_added(&self) -> AddedToken {
        AddedToken::from(self.content.as_str(), self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized)
    }
}

/// Returns the text that bytes are.
pub(crate) fn reply_of(bytes: &[u8]) -> Reply {
    let mut reply = Reply {
        text: String::with_capacity(bytes.len()),
        incomplete_bytes: Vec::new(),
    };
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        reply.text.push_str(chunk.valid());
        let is_unfinished =
            || str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
        if chunks.peek().is_none() && is_unfinished() {
            reply.incomplete_bytes = chunk.invalid().to_vec();
        } else if !chunk.invalid().is_empty() {
            reply.text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    reply
}

fn failed(error: tokenizers::Error) -> anyhow::Error {
    anyhow!("the tokenizer failed: {error}")
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::sync::LazyLock;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Qwen3.5's own tokenizer.
    pub(in crate::text) static REAL: LazyLock<TextTokenizer> =
        LazyLock::new(|| open("qwen35-real"));
    /// 301 tokens, 5 of them added, in the same kind of pipeline.
    pub(in crate::text) static TINY: LazyLock<TextTokenizer> = LazyLock::new(|| open("qwen35"));

    pub(in crate::text) fn fixture(path: &str) -> Vec<u8> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures")
            .join(path);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn fixture_json(path: &str) -> Value {
        serde_json::from_slice(&fixture(path)).expect("fixture is JSON")
    }

    fn open(folder: &str) -> TextTokenizer {
        let config = fixture_json(&format!("{folder}/tokenizer_config.json"));
        let tokenizer = fixture(&format!("{folder}/tokenizer.json"));
        TextTokenizer::from_json(&tokenizer, Some(&config)).expect("fixture is supported")
    }

    /// The tiny tokenizer.json with one field replaced, at a JSON pointer.
    pub(in crate::text) fn tiny_with(pointer: &str, value: Value) -> Result<TextTokenizer> {
        let mut tokenizer = fixture_json("qwen35/tokenizer.json");
        *tokenizer.pointer_mut(pointer).expect("field exists") = value;
        TextTokenizer::from_json(&serde_json::to_vec(&tokenizer)?, None)
    }

    fn refusal(result: Result<TextTokenizer>) -> String {
        format!("{:#}", result.err().expect("is refused"))
    }

    fn nfc(text: &str) -> String {
        let mut normalized = NormalizedString::from(text);
        normalized.nfc();
        normalized.get().to_owned()
    }

    /// What the ids stand for, control tokens included.
    pub(in crate::text) fn joined(tokenizer: &TextTokenizer, ids: &[u32]) -> String {
        let bytes = ids
            .iter()
            .flat_map(|id| tokenizer.token(*id).bytes)
            .collect();
        String::from_utf8(bytes).expect("whole text is UTF-8")
    }

    #[test]
    fn ids_are_those_of_the_reference() {
        let cases = fixture_json("tokenizer_cases.json");
        for (name, tokenizer) in [("tiny", &TINY), ("qwen35_real", &REAL)] {
            for case in cases[name].as_array().expect("cases") {
                let text = case["text"].as_str().expect("text");
                for (key, reading) in [
                    ("full", Reading::Template),
                    ("full", Reading::Raw),
                    ("plain", Reading::Plain),
                ] {
                    let ids = tokenizer.encode(text, reading).expect("encodes");
                    assert_eq!(json!(ids), case[key], "{name} {reading:?} {text:?}");
                    assert_eq!(joined(tokenizer, &ids), nfc(text), "{name} {reading:?}");
                }
            }
        }
    }

    #[test]
    fn a_tokenizer_is_read_to_what_the_library_reads() {
        for folder in ["qwen35", "qwen35-real", "llama"] {
            let file = fixture(&format!("{folder}/tokenizer.json"));
            let theirs = Tokenizer::from_bytes(&file).expect("a tokenizer");
            let ours = read_bpe(&file).expect("a tokenizer");
            let written = [ours, theirs].map(|read| read.to_string(false).expect("JSON"));
            assert!(written[0] == written[1], "{folder}");
        }
    }

    #[test]
    fn tokens_that_only_tokenizer_config_knows_get_its_ids() {
        assert_eq!(REAL.len(), 248_077);
        assert_eq!(REAL.id_of("<tts_pad>"), Some(248_072));
        let ids = REAL
            .encode("a<|audio_pad|>", Reading::Template)
            .expect("encodes");
        assert_eq!(ids, [64, 248_076]);
        assert!(REAL.token(248_070).special);
        assert!(!REAL.token(248_068).special, "<think> is text");
    }

    #[test]
    fn an_added_token_never_gets_another_id_than_the_files_say() {
        let tiny = fixture("qwen35/tokenizer.json");
        let refused = |decoder: Value| {
            refusal(TextTokenizer::from_json(
                &tiny,
                Some(&json!({ "added_tokens_decoder": decoder })),
            ))
        };
        let place = "tokenizer_config.json: added_tokens_decoder";
        assert_eq!(
            refused(json!({"400": {"content": "<far>"}})),
            format!("{place}: token `<far>` has id 400 here, but would get 301")
        );
        assert_eq!(
            refused(json!({"297": {"content": "<|im_start|>"}})),
            format!("{place}: token `<|im_start|>` has id 297 here, but would get 296")
        );
        assert!(
            refused(json!({"x": {"content": "<x>"}}))
                .starts_with(&format!("{place}: `x` is not an id"))
        );
        assert!(refused(json!([])).contains("is not an object"));
        let renumbered = tiny_with("/added_tokens/0/id", json!(299));
        assert_eq!(
            refusal(renumbered),
            "tokenizer.json: token `<|im_start|>` has id 299 here, but would get 296"
        );
    }

    #[test]
    fn flags_in_tokenizer_config_win() {
        let config =
            json!({"added_tokens_decoder": {"298": {"content": "<think>", "special": true}}});
        let tokenizer = TextTokenizer::from_json(&fixture("qwen35/tokenizer.json"), Some(&config))
            .expect("opens");
        assert!(tokenizer.token(298).special);
        assert!(!TINY.token(298).special);
    }

    #[test]
    fn other_kinds_of_tokenizers_are_refused_by_name() {
        let word_level = json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"});
        let unigram = json!({"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0]]});
        let word_piece = json!({
            "type": "WordPiece", "vocab": {"a": 0}, "unk_token": "a",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100
        });
        let metaspace = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        let sequence =
            json!({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]});
        for (pointer, value, message) in [
            (
                "/model",
                word_level,
                "WordLevel tokenizers are not supported",
            ),
            (
                "/model",
                unigram,
                "Unigram (SentencePiece) tokenizers are not supported",
            ),
            (
                "/model",
                word_piece,
                "WordPiece tokenizers are not supported",
            ),
            (
                "/model/byte_fallback",
                json!(true),
                "BPE with byte fallback (SentencePiece) is not supported",
            ),
            (
                "/model/end_of_word_suffix",
                json!("</w>"),
                "BPE with the affix `</w>` is not supported",
            ),
            (
                "/model/dropout",
                json!(0.1),
                "BPE dropout 0.1 is not supported",
            ),
            (
                "/pre_tokenizer",
                metaspace,
                "Metaspace (SentencePiece) tokenizers are not supported",
            ),
            (
                "/pre_tokenizer",
                json!(null),
                "pre_tokenizer without ByteLevel is not supported (found NFC",
            ),
            (
                "/decoder",
                sequence,
                "decoder without ByteLevel is not supported (found Sequence, Fuse, ByteFallback",
            ),
            (
                "/decoder",
                json!(null),
                "decoder without ByteLevel is not supported (found none",
            ),
        ] {
            let refused = refusal(tiny_with(pointer, value));
            assert!(
                refused.starts_with(&format!("tokenizer.json: {message}")),
                "{pointer}: {refused}"
            );
            assert!(refused.contains("expected"), "{refused}");
        }
        let pointer_file = b"version https://git-lfs.github.com/spec/v1\n";
        assert!(
            refusal(TextTokenizer::from_json(pointer_file, None))
                .starts_with("tokenizer.json: expected value")
        );
    }

    #[test]
    fn the_begin_token_comes_from_the_tokenizer_only_outside_templates() {
        let tokenizer = tiny_with(
            "/post_processor",
            json!({
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [300], "tokens": ["<|endoftext|>"]}}
            }),
        )
        .expect("opens");
        let encode = |reading| tokenizer.encode("<|im_end|>", reading).expect("encodes");
        assert_eq!(encode(Reading::Template), [297]);
        assert_eq!(encode(Reading::Raw), [300, 297]);
        let plain = encode(Reading::Plain);
        assert_eq!(plain[0], 300);
        assert_eq!(joined(&tokenizer, &plain[1..]), "<|im_end|>");
        assert!(!plain[1..].contains(&297));
    }

    #[test]
    fn added_tokens_that_claim_the_same_spaces_are_found_as_the_library_finds_them() {
        let token = |id: u32, content: &str| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": true, "rstrip": true,
                "normalized": false, "special": true
            })
        };
        let tokens = json!([token(296, "<a>"), token(297, "  "), token(298, "<b>")]);
        let tokenizer = tiny_with("/added_tokens", tokens).expect("opens");
        for text in ["x <a>    <b> x", "<a>  <b>", "  <a>  ", "x  <b>   <a>\n\nx"] {
            assert_eq!(
                tokenizer
                    .encode_restored(text, str::to_owned)
                    .expect("encodes"),
                tokenizer.encode(text, Reading::Template).expect("encodes"),
                "{text:?}"
            );
        }
    }

    #[test]
    fn no_text_is_cut_or_padded_whatever_the_file_asks_for() {
        let mut tokenizer = fixture_json("qwen35/tokenizer.json");
        tokenizer["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        tokenizer["padding"] = json!({
            "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 300, "pad_type_id": 0, "pad_token": "<|endoftext|>"
        });
        let tokenizer =
            TextTokenizer::from_json(&serde_json::to_vec(&tokenizer).expect("JSON"), None)
                .expect("opens");
        let text = "The capital of France";
        for reading in [Reading::Template, Reading::Raw, Reading::Plain] {
            assert_eq!(
                joined(
                    &tokenizer,
                    &tokenizer.encode(text, reading).expect("encodes")
                ),
                text
            );
        }
    }

    #[test]
    fn a_text_that_the_vocabulary_cannot_spell_is_refused_and_never_shortened() {
        let mut vocab = fixture_json("qwen35/tokenizer.json")["model"]["vocab"].clone();
        // The vocabulary without the bytes 0x04 and `<`.
        for name in ["Ą", "<"] {
            let vocab = vocab.as_object_mut().expect("object");
            let id = vocab.remove(name).expect("is there");
            vocab.insert(format!("unused{id}"), id);
        }
        let tokenizer = tiny_with("/model/vocab", vocab).expect("opens");
        let refusal = |text, reading| {
            format!(
                "{:#}",
                tokenizer.encode(text, reading).expect_err("is refused")
            )
        };
        for reading in [Reading::Template, Reading::Raw, Reading::Plain] {
            assert_eq!(tokenizer.encode("ab", reading).expect("encodes").len(), 2);
            assert_eq!(
                refusal("a\u{4}b", reading),
                "the model's vocabulary has no tokens for U+0004 (expected a text without it)"
            );
        }
        assert_eq!(
            tokenizer
                .encode("<think>", Reading::Raw)
                .expect("a token is no text"),
            [298]
        );
        assert!(refusal("<think>", Reading::Plain).contains("U+003C"));
        let restored = tokenizer.encode_restored("<think>x", |text| text.replace('x', "<"));
        assert!(restored.is_err());
    }

    #[test]
    fn every_id_can_be_shown() {
        let nameless = |id| Token {
            text: format!("<|id:{id}|>"),
            bytes: Vec::new(),
            special: true,
        };
        assert_eq!(REAL.token(248_100), nameless(248_100));
        assert_eq!(REAL.token(u32::MAX), nameless(u32::MAX));
        let control = REAL.token(248_046);
        assert_eq!(
            (control.text.as_str(), control.special),
            ("<|im_end|>", true)
        );
        let paris = REAL.token(11_751);
        assert_eq!(
            (paris.text.as_str(), paris.bytes.as_slice(), paris.special),
            ("␠Paris", &b" Paris"[..], false)
        );
        assert_eq!(REAL.token(198).text, r"\n");
    }

    #[test]
    fn parts_of_a_character_are_bytes_and_together_the_character() {
        let ids = REAL.encode("🧎", Reading::Plain).expect("encodes");
        assert!(ids.len() > 1);
        assert!(ids.iter().all(|id| REAL.token(*id).text.starts_with(r"\x")));
        assert_eq!(
            REAL.detokenize(&ids),
            Reply {
                text: "🧎".to_owned(),
                incomplete_bytes: Vec::new()
            }
        );
        let cut = REAL.detokenize(&ids[..ids.len() - 1]);
        assert_eq!(cut.text, "");
        assert!(
            "🧎".as_bytes().starts_with(&cut.incomplete_bytes) && !cut.incomplete_bytes.is_empty()
        );
    }

    #[test]
    fn only_an_unfinished_end_is_held_back() {
        // Ids below 256 of the tiny tokenizer are the bytes in the order of GPT-2's alphabet.
        let id_of_byte = |byte: u8| {
            (0..256)
                .find(|id| TINY.token(*id).bytes == [byte])
                .expect("byte has a token")
        };
        let reply = |bytes: &[u8]| {
            TINY.detokenize(&bytes.iter().copied().map(id_of_byte).collect::<Vec<_>>())
        };
        let expected = |text: &str, rest: &[u8]| Reply {
            text: text.to_owned(),
            incomplete_bytes: rest.to_vec(),
        };
        assert_eq!(
            reply("a\u{FFFD}b\u{FFFD}".as_bytes()),
            expected("a\u{FFFD}b\u{FFFD}", b"")
        );
        assert_eq!(reply(b"a\xE4\xBD"), expected("a", b"\xE4\xBD"));
        assert_eq!(reply(b"a\xE4\xBDb"), expected("a\u{FFFD}b", b""));
        assert_eq!(reply(b"a\xFF"), expected("a\u{FFFD}", b""));
        assert_eq!(
            reply(b"\xF0\x9F\x9F\xF0\x9F"),
            expected("\u{FFFD}", b"\xF0\x9F")
        );
    }

    #[test]
    fn control_tokens_are_no_text_and_other_added_tokens_are() {
        let ids = REAL
            .encode("<think>a<|im_end|>b", Reading::Template)
            .expect("encodes");
        assert_eq!(REAL.detokenize(&ids).text, "<think>ab");
        assert_eq!(REAL.detokenize(&[248_100, 64]).text, "a");
    }

    #[test]
    fn spaces_before_punctuation_survive_the_way_back() {
        let text = "if a != b : c , it's 'd' .\n| a | b |\n\\frac{1}{2} <br/> &amp; \t x";
        let ids = REAL.encode(text, Reading::Plain).expect("encodes");
        assert_eq!(REAL.detokenize(&ids).text, text);
    }

    proptest! {
        #[test]
        fn tokens_of_a_text_are_its_bytes(text in prop_oneof![
            proptest::collection::vec(any::<char>(), 0..40).prop_map(String::from_iter),
            "[ \\n\\t\\ra-c'é́<|>]{0,40}",
        ]) {
            for tokenizer in [&*TINY, &*REAL] {
                for reading in [Reading::Template, Reading::Raw, Reading::Plain] {
                    let ids = tokenizer.encode(&text, reading).expect("encodes");
                    prop_assert_eq!(joined(tokenizer, &ids), nfc(&text));
                }
            }
        }

        #[test]
        fn any_ids_have_a_text(ids in proptest::collection::vec(prop_oneof![0..320u32, any::<u32>()], 0..40)) {
            let reply = TINY.detokenize(&ids);
            prop_assert!(reply.incomplete_bytes.len() < 4);
            prop_assert!(ids.iter().all(|id| !TINY.token(*id).text.is_empty()));
        }

        #[test]
        fn restoring_nothing_is_reading_the_template(text in "(<think>|</think>|<\\|im_end\\|>|é|[ \\na-c<|>]|\\PC){0,20}") {
            for tokenizer in [&*TINY, &*REAL] {
                let restored = tokenizer.encode_restored(&text, str::to_owned).expect("encodes");
                prop_assert_eq!(restored, tokenizer.encode(&text, Reading::Template).expect("encodes"));
            }
        }
    }
}
