//! What makes a tokenizer byte-level BPE: every text is a sequence of bytes, every byte is in the vocabulary, and the
//! vocabulary spells bytes in GPT-2's alphabet.

use anyhow::{Result, bail, ensure};
use serde_json::Value;
use tokenizers::models::ModelWrapper;
use tokenizers::{Model, Tokenizer};

/// Refuses every tokenizer of another kind, by its name.
///
/// # Errors
/// When it is one.
pub(super) fn check(tokenizer: &Tokenizer) -> Result<()> {
    let bpe = match tokenizer.get_model() {
        ModelWrapper::BPE(bpe) => bpe,
        ModelWrapper::WordPiece(_) => {
            bail!("WordPiece tokenizers are not supported (expected byte-level BPE)")
        }
        ModelWrapper::WordLevel(_) => {
            bail!("WordLevel tokenizers are not supported (expected byte-level BPE)")
        }
        ModelWrapper::Unigram(_) => {
            bail!("Unigram (SentencePiece) tokenizers are not supported (expected byte-level BPE)")
        }
    };
    if bpe.byte_fallback {
        bail!("BPE with byte fallback (SentencePiece) is not supported (expected byte-level BPE)");
    }
    if let Some(dropout) = bpe.dropout {
        bail!(
            "BPE dropout {dropout} is not supported (expected none: the ids of a text must not depend on chance)"
        );
    }
    for affix in [&bpe.continuing_subword_prefix, &bpe.end_of_word_suffix]
        .into_iter()
        .flatten()
    {
        ensure!(
            affix.is_empty(),
            "BPE with the affix `{affix}` is not supported (expected byte-level BPE)"
        );
    }
    let before = [
        types(&tokenizer.get_normalizer())?,
        types(&tokenizer.get_pre_tokenizer())?,
    ]
    .concat();
    let after = types(&tokenizer.get_decoder())?;
    if before.iter().chain(&after).any(|name| name == "Metaspace") {
        bail!("Metaspace (SentencePiece) tokenizers are not supported (expected byte-level BPE)");
    }
    for (part, names) in [("pre_tokenizer", before), ("decoder", after)] {
        let found = if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        };
        ensure!(
            names.iter().any(|name| name == "ByteLevel"),
            "{part} without ByteLevel is not supported (found {found}, expected byte-level BPE)"
        );
    }
    Ok(())
}

/// Returns the bytes that the vocabulary has no token for, where nothing else stands for them.
pub(super) fn missing_bytes(tokenizer: &Tokenizer) -> Vec<u8> {
    let model = tokenizer.get_model();
    if matches!(model, ModelWrapper::BPE(bpe) if bpe.unk_token.is_some()) {
        return Vec::new();
    }
    let is_missing = |c: &char| model.token_to_id(c.encode_utf8(&mut [0; 4])).is_none();
    ('!'..='\u{143}')
        .filter(is_missing)
        .filter_map(byte_of)
        .collect()
}

/// Returns the names of a pipeline part and of everything in it.
fn types(part: &impl serde::Serialize) -> Result<Vec<String>> {
    fn collect(value: &Value, names: &mut Vec<String>) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| collect(item, names)),
            Value::Object(fields) => {
                names.extend(
                    fields
                        .get("type")
                        .and_then(Value::as_str)
                        .map(str::to_owned),
                );
                fields.values().for_each(|field| collect(field, names));
            }
            _ => {}
        }
    }
    let mut names = Vec::new();
    collect(&serde_json::to_value(part)?, &mut names);
    Ok(names)
}

/// Returns the byte that a character of GPT-2's alphabet stands for: printable Latin-1 characters for themselves, U+0100
/// and up for the other bytes in order (<https://github.com/openai/gpt-2/blob/master/src/encoder.py>).
pub(crate) fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,        // 0x00 to 0x20
        0x121..=0x142 => code - 0x121 + 0x7F, // 0x7F to 0xA0
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_alphabet_spells_every_byte_once() {
        let alphabet = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        let bytes: BTreeSet<u8> = alphabet.into_iter().filter_map(byte_of).collect();
        assert_eq!(bytes.len(), 256);
        let spelled = ['A', 'Ġ', 'Ċ', 'ä', 'Ń'].map(byte_of);
        assert_eq!(
            spelled,
            [Some(b'A'), Some(b' '), Some(b'\n'), Some(0xE4), Some(0xAD)]
        );
        assert_eq!(['\u{144}', ' ', '▁'].map(byte_of), [None; 3]);
    }
}
