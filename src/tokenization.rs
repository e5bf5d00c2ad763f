//! How texts become tokens, as a record: the tokens of each text, what they add up to, and what one text costs beside another.
//!
//! Characters are Unicode's scalar values. A text is *exact* when the bytes of its tokens, one after the other, are the
//! text's own: a tokenizer that normalises (Qwen's composes accents) sees another text than the one that was given.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::text::tokenizer::Token;
use crate::transcript::{Vocabulary, plain_text};

/// What `tokens --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokensRecord {
    /// Version of this layout.
    pub schema: u32,
    /// Name and version of the program.
    pub program: String,
    /// Whose tokens they are.
    pub model: TokensModel,
    /// How the texts were read: `chat`, `raw` or `plain_text`; null where ids were asked for.
    pub reading: Option<String>,
    /// The texts, in the order given; none where ids were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<TokenizedText>,
    /// The ids that were asked for, in that order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<TokenEntry>,
}

/// A model's vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokensModel {
    /// Hub id, or the name of the folder or file.
    pub id: String,
    /// Commit on the hub.
    pub revision: Option<String>,
    /// Rows of the output layer: valid ids are below it. Null where no file says it.
    pub vocab_size: Option<usize>,
    /// Ids that the tokenizer has a name for.
    pub num_named: usize,
    /// What a reader must know of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// One text and its tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenizedText {
    /// Name of the file it was read from; `-` is standard input. Null for a text of the command line.
    pub file: Option<String>,
    /// The text that was given.
    pub text: String,
    /// What the template made of it; only in chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rendered: Option<String>,
    /// How many tokens the model sees.
    pub num_tokens: usize,
    /// How many of them are control tokens.
    pub num_special: usize,
    /// Characters of what the model sees.
    pub num_characters: usize,
    /// Bytes of it in UTF-8.
    pub num_bytes: usize,
    /// `num_characters / num_tokens`; null without a token.
    pub characters_per_token: Option<f32>,
    /// `num_bytes / num_tokens`; null without a token.
    pub bytes_per_token: Option<f32>,
    /// `num_tokens` over that of the first text; null where that has none.
    pub relative_cost: Option<f32>,
    /// Whether the bytes of the text's own tokens are those of the text.
    pub exact: bool,
    /// The tokens, in order.
    pub tokens: Vec<TokenEntry>,
}

/// One token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenEntry {
    /// Its place in the sequence, from 0; null where ids were asked for.
    pub position: Option<usize>,
    /// Its id.
    pub token_id: u32,
    /// Its text; escaped where its bytes are no text, `<|id:N|>` where it has no name.
    pub token: String,
    /// Its bytes; none where it has no name.
    pub bytes: Vec<u8>,
    /// Whether it is a control token or has no name.
    pub special: bool,
    /// Whether any file of the model names it.
    pub named: bool,
}

/// What the model is given of one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Name of the file it was read from.
    pub file: Option<String>,
    /// The text that was given.
    pub text: String,
    /// What the template made of it.
    pub rendered: Option<String>,
    /// The ids that the model sees.
    pub ids: Vec<u32>,
    /// Which of them spell the text; the others are put around it.
    pub own: Range<usize>,
}

/// Counts a list of texts and compares them with the first.
pub fn tokenized(vocabulary: &dyn Vocabulary, texts: Vec<Seen>) -> Vec<TokenizedText> {
    let first = texts.first().map_or(0, |seen| seen.ids.len());
    let one = |seen| one_text(vocabulary, seen, first);
    texts.into_iter().map(one).collect()
}

/// Returns what there is to know of an id, `position` included where it is in a text.
pub fn entry(vocabulary: &dyn Vocabulary, position: Option<usize>, token_id: u32) -> TokenEntry {
    let token: Token = vocabulary.token(token_id);
    TokenEntry {
        position,
        token_id,
        token: plain_text(&token),
        named: !token.bytes.is_empty(),
        special: token.special,
        bytes: token.bytes,
    }
}

fn one_text(vocabulary: &dyn Vocabulary, seen: Seen, first: usize) -> TokenizedText {
    let ids = seen.ids.iter().enumerate();
    let tokens: Vec<TokenEntry> = ids
        .map(|(position, &id)| entry(vocabulary, Some(position), id))
        .collect();
    let text = seen.rendered.as_ref().unwrap_or(&seen.text);
    let own = tokens.get(seen.own.clone()).unwrap_or(&tokens);
    let spelt = own.iter().flat_map(|token| &token.bytes);
    let num_characters = text.chars().count();
    let ratio =
        |part: usize, whole: usize| (whole > 0).then(|| (part as f64 / whole as f64) as f32);
    TokenizedText {
        num_tokens: tokens.len(),
        num_special: tokens.iter().filter(|token| token.special).count(),
        num_characters,
        num_bytes: text.len(),
        characters_per_token: ratio(num_characters, tokens.len()),
        bytes_per_token: ratio(text.len(), tokens.len()),
        relative_cost: ratio(tokens.len(), first),
        exact: spelt.eq(text.as_bytes()),
        file: seen.file,
        text: seen.text,
        rendered: seen.rendered,
        tokens,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::tokenizer::Reply;

    /// Each id is one byte; above them there are no names.
    struct Bytes;

    impl Vocabulary for Bytes {
        fn token(&self, id: u32) -> Token {
            let bytes: Vec<u8> = u8::try_from(id).into_iter().collect();
            Token {
                text: format!("<|id:{id}|>"),
                special: bytes.is_empty(),
                bytes,
            }
        }

        fn detokenize(&self, _: &[u32]) -> Reply {
            unreachable!("bytes are enough")
        }
    }

    fn seen(text: &str, ids: &[u32], own: Range<usize>) -> Seen {
        Seen {
            file: None,
            text: text.to_owned(),
            rendered: None,
            ids: ids.to_vec(),
            own,
        }
    }

    #[test]
    fn counts_are_those_of_the_text_and_costs_those_of_the_first() {
        let texts = vec![
            seen("ab", &[97, 98], 0..2),
            seen("é", &[195, 169], 0..2),
            seen("", &[], 0..0),
            seen("ab", &[300, 97, 98], 1..3),
        ];
        let texts = tokenized(&Bytes, texts);
        let numbers =
            |t: &TokenizedText| (t.num_tokens, t.num_special, t.num_characters, t.num_bytes);
        let all: Vec<_> = texts.iter().map(numbers).collect();
        assert_eq!(
            all,
            [(2, 0, 2, 2), (2, 0, 1, 2), (0, 0, 0, 0), (3, 1, 2, 2)]
        );
        let costs: Vec<_> = texts.iter().map(|text| text.relative_cost).collect();
        assert_eq!(costs, [Some(1.0), Some(1.0), Some(0.0), Some(1.5)]);
        assert_eq!(texts[1].characters_per_token, Some(0.5));
        assert_eq!(texts[2].characters_per_token, None);
        assert!(texts.iter().all(|text| text.exact));
        assert_eq!(texts[3].tokens[0].position, Some(0));
        assert!(!texts[3].tokens[0].named && texts[3].tokens[1].named);
    }

    #[test]
    fn tokens_that_spell_another_text_are_noticed() {
        let texts = tokenized(&Bytes, vec![seen("ab", &[97], 0..1), seen("", &[97], 0..1)]);
        assert!(!texts[0].exact && !texts[1].exact);
        assert_eq!(
            tokenized(&Bytes, vec![seen("", &[], 0..0), seen("a", &[97], 0..1)])[1].relative_cost,
            None
        );
    }
}
