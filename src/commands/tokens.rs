//! `tokens`: texts and ids through a model's tokenizer.

use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};

use crate::checkpoint::description::Description;
use crate::cli::{Asked, ChatRequest, TextSource, TokensRequest};
use crate::input::{TextParts, render};
use crate::prompts::{self, Prompt};
use crate::record::{PROGRAM, SCHEMA};
use crate::report;
use crate::screen::Stderr;
use crate::text::chat::ChatTemplate;
use crate::text::tokenizer::{Reading, TextTokenizer};
use crate::tokenization::{Seen, TokensModel, TokensRecord, entry, tokenized};

/// Reads the texts, cuts them and prints what they became.
///
/// # Errors
/// When a text cannot be read, the tokenizer cannot be, or has no token for a character, or an id is out of range.
pub(crate) fn run(request: &TokensRequest) -> Result<ExitCode> {
    let texts = match &request.asked {
        Asked::Texts { texts, .. } => texts.iter().map(read).collect::<Result<Vec<_>>>()?,
        Asked::Ids(_) => Vec::new(),
    };
    let description = super::describe(&request.source)?;
    let tokenizer = description.tokenizer()?;
    let mut record = TokensRecord {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        model: model(&description, &tokenizer),
        reading: None,
        texts: Vec::new(),
        tokens: Vec::new(),
    };
    match &request.asked {
        Asked::Texts { chat, .. } => {
            let template = match chat.raw {
                true => None,
                false => description.template()?,
            };
            Stderr::USUAL.chat_notes(chat, template.as_ref());
            record.reading = Some(reading_name(chat).to_owned());
            let seen = texts.into_iter().enumerate().map(|(index, (file, text))| {
                let template = template.as_ref();
                let seen = see(file, text, chat, &description.id, &tokenizer, template);
                seen.with_context(|| format!("text {}", index + 1))
            });
            record.texts = tokenized(&tokenizer, seen.collect::<Result<_>>()?);
        }
        Asked::Ids(ids) => {
            let (ids_of, rows) = match record.model.vocab_size {
                Some(rows) => ("output layer", rows),
                None => ("tokenizer", record.model.num_named),
            };
            for &id in ids {
                ensure!(
                    (id as usize) < rows,
                    "--id {id} is out of range (expected 0 to {}: the model's {ids_of} has {rows})",
                    rows.saturating_sub(1)
                );
                record.tokens.push(entry(&tokenizer, None, id));
            }
        }
    }
    super::print(&record, request.print, report::tokens::table)?;
    Ok(ExitCode::SUCCESS)
}

fn model(description: &Description, tokenizer: &TextTokenizer) -> TokensModel {
    TokensModel {
        id: description.id.clone(),
        revision: description.revision.clone(),
        vocab_size: description.head_rows(),
        num_named: tokenizer.len(),
        note: description.note.map(str::to_owned),
    }
}

fn reading_name(chat: &ChatRequest) -> &'static str {
    match (chat.raw, chat.plain_text) {
        (false, _) => "chat",
        (true, false) => "raw",
        (true, true) => "plain_text",
    }
}

/// Returns a text and the name of the file it comes from.
fn read(source: &TextSource) -> Result<(Option<String>, String)> {
    let path = match source {
        TextSource::Given(text) => return Ok((None, text.clone())),
        TextSource::Stdin => Path::new("-"),
        TextSource::File(path) => path,
    };
    let (name, bytes) = prompts::content(path)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        anyhow!("{name}: not valid UTF-8 at byte {place} (save it as UTF-8)")
    })?;
    Ok((Some(last_part(path)), text))
}

fn last_part(path: &Path) -> String {
    path.file_name().map_or_else(
        || path.display().to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}

/// Returns what the model sees of a text.
fn see(
    file: Option<String>,
    text: String,
    chat: &ChatRequest,
    id: &str,
    tokenizer: &TextTokenizer,
    template: Option<&ChatTemplate>,
) -> Result<Seen> {
    if !chat.raw {
        let parts = TextParts {
            id,
            tokenizer,
            template,
        };
        let input = render(&Prompt::from(text.as_str()), chat, &parts)?;
        return Ok(Seen {
            file,
            text,
            rendered: Some(input.text),
            own: 0..input.ids.len(),
            ids: input.ids,
        });
    }
    let (ids, own) = match chat.plain_text {
        true => {
            let ids = tokenizer.encode(&text, Reading::Plain)?;
            let own = without_special_ends(&ids, tokenizer);
            (ids, own)
        }
        false => {
            let ids = tokenizer.encode(&text, Reading::Raw)?;
            let inner = tokenizer.encode(&text, Reading::Template)?;
            let own = place_of(&inner, &ids);
            (ids, own)
        }
    };
    Ok(Seen {
        file,
        text,
        rendered: None,
        ids,
        own,
    })
}

/// Returns where `inner` is in `ids`; all of them where it is not.
fn place_of(inner: &[u32], ids: &[u32]) -> Range<usize> {
    let num_around = ids.len().saturating_sub(inner.len());
    let start = (0..=num_around).find(|&start| ids[start..].starts_with(inner));
    start.map_or(0..ids.len(), |start| start..start + inner.len())
}

/// Plain text has no control token of its own: those at the ends are put around it.
fn without_special_ends(ids: &[u32], tokenizer: &TextTokenizer) -> Range<usize> {
    let is_text = |id: &u32| !tokenizer.token(*id).special;
    let start = ids.iter().position(is_text).unwrap_or(ids.len());
    let end = ids.iter().rposition(is_text).map_or(start, |last| last + 1);
    start..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_texts_own_tokens_are_found_among_those_put_around_it() {
        assert_eq!(place_of(&[1, 2], &[9, 1, 2, 8]), 1..3);
        assert_eq!(place_of(&[1, 2], &[1, 2]), 0..2);
        assert_eq!(place_of(&[], &[9]), 0..0);
        assert_eq!(place_of(&[3], &[1, 2]), 0..2);
    }
}
