//! The tokenizer of a GGUF file, rebuilt as the model's own `tokenizer.json` describes it.
//!
//! Only byte-level BPE, and only where the way in which text is cut before merging is known exactly: a wrong guess would
//! give plausible but other ids, so an unknown one is refused. Sources: llama.cpp `src/llama-vocab.cpp` (names, patterns,
//! token types) and the `tokenizer.json` of SmolLM2, Qwen2.5, Qwen3.5, Llama 3 and GPT-2 (normalisers, patterns, flags).

use anyhow::{Context, Error, Result, bail, ensure};
use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

use super::GgufFile;

const FOLDER: &str = "use the model's Hugging Face folder, which has its tokenizer.json";

/// Text is cut into pieces that the pattern matches, and those into bytes.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As Llama 3, with every digit alone.
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// As Qwen2, with combining marks counted as letters.
const QWEN_3_5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// What a name in `tokenizer.ggml.pre` stands for.
struct Scheme {
    cut: Cut,
    /// Whether text is brought to Unicode's composed form first.
    is_composed: bool,
    /// Whether a word that is a token needs no merges, and a text starts with the BOS token unless the file says otherwise.
    is_llama_3: bool,
}

/// How text is cut before merging.
enum Cut {
    /// Where a pattern matches.
    Pattern(&'static str),
    /// Into GPT-2's words.
    Words,
    /// Into single digits and what is between them, then into GPT-2's words.
    DigitsAndWords,
}

/// Builds the tokenizer.
///
/// # Errors
/// When the file has none, or one whose ids cannot be promised.
pub(super) fn build(file: &GgufFile) -> Result<Tokenizer> {
    let scheme = scheme(file)?;
    let tokens = tokens(file)?;
    let types = token_types(file, tokens.len())?;
    let named = tokens.iter().zip(0..).zip(&types);
    let named = named.filter(|(_, kind)| **kind != TokenType::Unused);
    let vocab: Vocab = named
        .map(|((text, id), _)| ((*text).to_owned(), id))
        .collect();
    let merges = merges(file, &vocab)?;
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .ignore_merges(scheme.is_llama_3)
        .build()
        .map_err(Error::from_boxed)?;
    let mut tokenizer = Tokenizer::new(model);
    if scheme.is_composed {
        tokenizer
            .with_normalizer(Some(NFC))
            .map_err(Error::from_boxed)?;
    }
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer(&scheme.cut)?));
    tokenizer.with_decoder(Some(ByteLevel::new(false, false, false)));
    tokenizer
        .add_tokens(added_tokens(&tokens, &types))
        .map_err(Error::from_boxed)?;
    if let Some(id) = leading_id(file, &scheme)? {
        tokenizer.with_post_processor(Some(leading(id, tokens[id as usize])?));
    }
    Ok(tokenizer)
}

/// Returns the text of every token, in id order.
///
/// # Errors
/// When the file has none, or more than the model has embeddings.
pub(super) fn tokens(file: &GgufFile) -> Result<Vec<&str>> {
    let key = "tokenizer.ggml.tokens";
    let list = file.header.list(key)?;
    let list = list.with_context(|| format!("`{key}` is missing: no tokenizer ({FOLDER})"))?;
    let embedding = file.header.tensors().get("token_embd.weight");
    let rows = embedding.and_then(|info| info.shape.first().copied());
    ensure!(
        rows.is_none_or(|rows| list.len() <= rows),
        "`{key}` has {} tokens, but `token_embd.weight` only {} rows",
        list.len(),
        rows.unwrap_or(0)
    );
    list.texts(&file.bytes).context(key)
}

/// Returns the id of a token with a role (`eos`), where one has it.
pub(super) fn special_id(file: &GgufFile, role: &str) -> Option<u32> {
    let key = format!("tokenizer.ggml.{role}_token_id");
    let id = file.header.number(&key).ok()??;
    let tokens = file.header.list("tokenizer.ggml.tokens").ok()??;
    // Some converters write an id behind all tokens, or -1, where no token has the role.
    u32::try_from(id).ok().filter(|_| id < tokens.len())
}

fn scheme(file: &GgufFile) -> Result<Scheme> {
    let model = file.header.text("tokenizer.ggml.model")?;
    match model.context("`tokenizer.ggml.model` is missing: no tokenizer")? {
        "gpt2" => {}
        "llama" => bail!(
            "a SentencePiece tokenizer (`tokenizer.ggml.model` is `llama`) is not supported (expected `gpt2`, byte-level BPE; {FOLDER})"
        ),
        other => bail!(
            "`tokenizer.ggml.model` is `{other}`, which is not supported (expected `gpt2`, byte-level BPE; {FOLDER})"
        ),
    }
    let pre = file.header.text("tokenizer.ggml.pre")?;
    let pre = pre.with_context(|| {
        format!(
            "`tokenizer.ggml.pre` is missing, so how this model cuts text is not known ({FOLDER})"
        )
    })?;
    let (cut, is_composed) = match pre {
        "llama-bpe" | "llama3" | "llama-v3" => (Cut::Pattern(LLAMA_3), false),
        "qwen2" => (Cut::Pattern(QWEN_2), true),
        "qwen35" => (Cut::Pattern(QWEN_3_5), true),
        "gpt-2" => (Cut::Words, false),
        "smollm" => (Cut::DigitsAndWords, false),
        other => bail!(
            "how this model cuts text (`tokenizer.ggml.pre` is `{other}`) is not known here (expected gpt-2, llama-bpe, qwen2, qwen35 or smollm; {FOLDER})"
        ),
    };
    Ok(Scheme {
        is_llama_3: matches!(cut, Cut::Pattern(LLAMA_3)),
        cut,
        is_composed,
    })
}

fn pre_tokenizer(cut: &Cut) -> Result<PreTokenizerWrapper> {
    let words = ByteLevel::new(false, true, true);
    Ok(match cut {
        Cut::Words => words.into(),
        Cut::DigitsAndWords => Sequence::new(vec![Digits::new(true).into(), words.into()]).into(),
        Cut::Pattern(pattern) => {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false);
            let split = split.map_err(Error::from_boxed)?;
            let bytes = ByteLevel::new(false, false, false);
            Sequence::new(vec![split.into(), bytes.into()]).into()
        }
    })
}

/// What a token is for, by the numbers of llama.cpp's `llama_token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TokenType {
    /// Text.
    Normal,
    /// Never part of a text: roles, ends, unknown.
    Control,
    /// Text that is cut out before merging.
    UserDefined,
    /// A row of the embedding that no token uses.
    Unused,
}

fn token_types(file: &GgufFile, num_tokens: usize) -> Result<Vec<TokenType>> {
    let key = "tokenizer.ggml.token_type";
    let list = file.header.list(key)?;
    let list = list.with_context(|| {
        format!("`{key}` is missing, so control tokens are not known ({FOLDER})")
    })?;
    ensure!(
        list.len() == num_tokens,
        "`{key}` has {} entries (expected one for each of {num_tokens} tokens)",
        list.len()
    );
    let types = list.integers(&file.bytes).context(key)?;
    Ok(types
        .map(|number| match number {
            2 | 3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            _ => TokenType::Normal,
        })
        .collect())
}

/// Reads the merges, in the order of their rank, and checks that each makes a token of two others.
fn merges(file: &GgufFile, vocab: &Vocab) -> Result<Merges> {
    let key = "tokenizer.ggml.merges";
    let list = file.header.list(key)?;
    let list = list.with_context(|| format!("`{key}` is missing: no tokenizer ({FOLDER})"))?;
    let mut merges = Merges::new();
    for merge in list.texts(&file.bytes).context(key)? {
        let (left, right) = merge.split_once(' ').with_context(|| {
            format!("`{key}`: `{merge}` is not two tokens with a space between")
        })?;
        for token in [left, right, &[left, right].concat()] {
            ensure!(
                vocab.contains_key(token),
                "`{key}`: `{merge}` needs the token `{token}`, which is missing"
            );
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    Ok(merges)
}

/// Returns the tokens that are cut out of a text before anything else.
fn added_tokens(tokens: &[&str], types: &[TokenType]) -> Vec<AddedToken> {
    let added = tokens.iter().zip(types).filter_map(|(text, kind)| {
        let is_special = match kind {
            TokenType::Control => true,
            TokenType::UserDefined => false,
            TokenType::Normal | TokenType::Unused => return None,
        };
        Some(AddedToken::from(*text, is_special).normalized(false))
    });
    added.collect()
}

/// Returns the id that every text starts with, where the model was trained so.
fn leading_id(file: &GgufFile, scheme: &Scheme) -> Result<Option<u32>> {
    let key = "tokenizer.ggml.add_bos_token";
    let bos = special_id(file, "bos");
    match file.header.flag(key)? {
        Some(true) if bos.is_none() => {
            bail!("`{key}` is true, but `tokenizer.ggml.bos_token_id` names no token")
        }
        Some(is_added) => Ok(bos.filter(|_| is_added)),
        // llama.cpp does the same; files of Llama 3 often leave the flag out.
        None => Ok(bos.filter(|_| scheme.is_llama_3)),
    }
}

fn leading(id: u32, text: &str) -> Result<TemplateProcessing> {
    // Templates name the token by a word of their own, since its text may hold what they use as signs.
    let token = tokenizers::processors::template::SpecialToken::new(
        "BOS".to_owned(),
        vec![id],
        vec![text.to_owned()],
    );
    TemplateProcessing::builder()
        .try_single("BOS $A")
        .and_then(|builder| builder.try_pair("BOS $A BOS:1 $B:1"))
        .map_err(Error::msg)?
        .special_tokens(vec![token.map_err(Error::from_boxed)?])
        .build()
        .context("cannot build the step that adds the BOS token")
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, fixture, path};
    use super::*;

    fn ids(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
        let encoding = tokenizer.encode_fast(text, true).expect("a text");
        encoding.get_ids().to_vec()
    }

    fn cases(name: &str) -> Vec<(String, Vec<u32>)> {
        let text = std::fs::read(path("tokenizer_cases.json")).expect("cases");
        let json: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        let cases = json[name].as_array().expect("a list").iter();
        let read = |case: &serde_json::Value| {
            let ids = case["full"].as_array().expect("ids").iter();
            let ids = ids.map(|id| id.as_u64().expect("an id") as u32).collect();
            (case["text"].as_str().expect("a text").to_owned(), ids)
        };
        cases.map(read).collect()
    }

    fn refusal(sample: &Sample) -> String {
        let file = sample.open().expect("a file that can be opened");
        format!("{:#}", file.tokenizer().expect_err("not supported"))
    }

    #[test]
    fn a_qwen_files_ids_are_those_of_its_tokenizer_json() {
        let ours = fixture("qwen35").tokenizer().expect("a tokenizer");
        let theirs = Tokenizer::from_file(path("qwen35/tokenizer.json")).expect("a tokenizer");
        let cases = cases("tiny");
        assert!(cases.len() > 20);
        for (text, expected) in cases {
            assert_eq!(ids(&ours, &text), expected, "{text:?}");
            assert_eq!(ids(&theirs, &text), expected, "{text:?}");
            let back = |tokenizer: &Tokenizer| tokenizer.decode(&expected, false).expect("a text");
            assert_eq!(back(&ours), back(&theirs), "{text:?}");
        }
        for id in 0..320 {
            assert_eq!(ours.id_to_token(id), theirs.id_to_token(id), "id {id}");
        }
        let specials = |tokenizer: &Tokenizer| {
            let added = tokenizer.get_added_tokens_decoder();
            let mut added: Vec<_> = added.into_iter().collect();
            added.sort_by_key(|(id, _)| *id);
            added
        };
        assert_eq!(specials(&ours), specials(&theirs));
    }

    /// The real SmolLM2-135M-Instruct, where it has been fetched.
    #[test]
    fn a_real_files_ids_are_those_of_its_tokenizer_json() {
        let Some(home) = std::env::home_dir() else {
            return;
        };
        let real = home.join(".cache/logprobs-test-models/SmolLM2-135M-Instruct.Q4_1.gguf");
        if !real.exists() {
            return;
        }
        let file = GgufFile::open(&real).expect("a good file");
        let tokenizer = file.tokenizer().expect("a tokenizer");
        for (text, expected) in cases("smollm2_gguf") {
            assert_eq!(ids(&tokenizer, &text), expected, "{text:?}");
        }
    }

    #[test]
    fn each_way_of_cutting_is_its_own() {
        let cut = |pre| {
            let sample = Sample::new().text("tokenizer.ggml.model", "gpt2");
            let file = sample
                .text("tokenizer.ggml.pre", pre)
                .open()
                .expect("a good file");
            let cut = pre_tokenizer(&scheme(&file).expect("known").cut).expect("a pattern");
            let mut text = "don't 2024 व\u{93f}x".into();
            tokenizers::PreTokenizer::pre_tokenize(&cut, &mut text).expect("cut");
            let pieces = text.get_splits(
                tokenizers::OffsetReferential::Original,
                tokenizers::OffsetType::Char,
            );
            pieces
                .iter()
                .map(|(_, (from, to), _)| to - from)
                .collect::<Vec<_>>()
        };
        // don 't _2024 _व ि x: the vowel sign is no letter. The digits may stay together, in threes, or alone.
        assert_eq!(cut("gpt-2"), [3, 2, 5, 2, 1, 1]);
        assert_eq!(cut("smollm"), [3, 2, 1, 1, 1, 1, 1, 2, 1, 1]);
        assert_eq!(cut("llama-bpe"), [3, 2, 1, 3, 1, 2, 2]);
        assert_eq!(cut("llama-bpe"), cut("llama3"));
        assert_eq!(cut("qwen2"), [3, 2, 1, 1, 1, 1, 1, 2, 2]);
        assert_eq!(cut("qwen35"), [3, 2, 1, 1, 1, 1, 1, 4]);
    }

    #[test]
    fn a_leading_token_comes_once_where_the_file_or_the_family_says_so() {
        let with = |flag: Option<bool>, pre| {
            let mut sample = Sample::new().text("tokenizer.ggml.model", "gpt2");
            if let Some(flag) = flag {
                sample = sample.flag("tokenizer.ggml.add_bos_token", flag);
            }
            let sample = sample
                .text("tokenizer.ggml.pre", pre)
                .texts("tokenizer.ggml.tokens", &["a", "b", "ab", "<s:>"])
                .numbers("tokenizer.ggml.token_type", &[1, 1, 1, 3])
                .texts("tokenizer.ggml.merges", &["a b"])
                .number("tokenizer.ggml.bos_token_id", 3);
            let tokenizer = sample.open().expect("a good file").tokenizer();
            ids(&tokenizer.expect("a tokenizer"), "abb")
        };
        assert_eq!(with(Some(true), "gpt-2"), [3, 2, 1]);
        assert_eq!(with(Some(false), "gpt-2"), [2, 1]);
        assert_eq!(with(None, "gpt-2"), [2, 1]);
        assert_eq!(with(None, "llama-bpe"), [3, 2, 1]);
        assert_eq!(with(Some(false), "llama-bpe"), [2, 1]);
    }

    #[test]
    fn only_llama_3_takes_words_that_are_tokens_without_merges() {
        let with = |pre| {
            let sample = Sample::new()
                .text("tokenizer.ggml.model", "gpt2")
                .text("tokenizer.ggml.pre", pre)
                .texts("tokenizer.ggml.tokens", &["a", "b", "ab"])
                .numbers("tokenizer.ggml.token_type", &[1, 1, 1])
                .texts("tokenizer.ggml.merges", &[]);
            let tokenizer = sample.open().expect("a good file").tokenizer();
            ids(&tokenizer.expect("a tokenizer"), "ab")
        };
        assert_eq!(with("llama-bpe"), [2]);
        assert_eq!(with("gpt-2"), [0, 1]);
    }

    #[test]
    fn rows_that_no_token_uses_have_no_name() {
        let file = Sample::tiny_llama().open().expect("a good file");
        let tokenizer = file.tokenizer().expect("a tokenizer");
        assert_eq!(tokenizer.id_to_token(6).as_deref(), Some("</s>"));
        assert_eq!(tokenizer.id_to_token(7), None);
        assert_eq!(tokenizer.id_to_token(8), None);
    }

    #[test]
    fn tokenizers_that_cannot_be_rebuilt_are_refused_by_name() {
        let model = |name| Sample::new().text("tokenizer.ggml.model", name);
        let gpt2 = || model("gpt2").text("tokenizer.ggml.pre", "gpt-2");
        let listed = || gpt2().texts("tokenizer.ggml.tokens", &["a", "b"]);
        let typed = || listed().numbers("tokenizer.ggml.token_type", &[1, 1]);
        for (sample, expected) in [
            (Sample::new(), "`tokenizer.ggml.model` is missing"),
            (
                model("llama"),
                "a SentencePiece tokenizer (`tokenizer.ggml.model` is `llama`) is not supported",
            ),
            (
                model("bert"),
                "`tokenizer.ggml.model` is `bert`, which is not supported",
            ),
            (
                model("gpt2"),
                "`tokenizer.ggml.pre` is missing, so how this model cuts text",
            ),
            (
                model("gpt2").text("tokenizer.ggml.pre", "tekken"),
                "(`tokenizer.ggml.pre` is `tekken`) is not known here (expected gpt-2, llama-bpe, qwen2, qwen35 or smollm; use the model's Hugging Face folder",
            ),
            (gpt2(), "`tokenizer.ggml.tokens` is missing"),
            (listed(), "`tokenizer.ggml.token_type` is missing"),
            (
                listed().numbers("tokenizer.ggml.token_type", &[1]),
                "`tokenizer.ggml.token_type` has 1 entries (expected one for each of 2 tokens)",
            ),
            (typed(), "`tokenizer.ggml.merges` is missing"),
            (
                typed().texts("tokenizer.ggml.merges", &["ab"]),
                "`ab` is not two tokens with a space between",
            ),
            (
                typed().texts("tokenizer.ggml.merges", &["a b"]),
                "`a b` needs the token `ab`, which is missing",
            ),
            (
                typed()
                    .texts("tokenizer.ggml.merges", &[])
                    .flag("tokenizer.ggml.add_bos_token", true),
                "`tokenizer.ggml.bos_token_id` names no token",
            ),
            (
                typed().zeros("token_embd.weight", &[1, 4]),
                "`tokenizer.ggml.tokens` has 2 tokens, but `token_embd.weight` only 1 rows",
            ),
            (
                listed().list("tokenizer.ggml.token_type", 6, 2, &[0; 8]),
                "tokenizer.ggml.token_type: not a list of whole numbers",
            ),
        ] {
            let message = refusal(&sample);
            assert!(message.contains(expected), "{message}");
        }
    }
}
