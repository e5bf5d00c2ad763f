//! From a prompt as it was given to the ids that the model sees, and what cannot be run at all.

use anyhow::{Context, Result, bail, ensure};

use crate::checkpoint::Checkpoint;
use crate::cli::ChatRequest;
use crate::model::config::DecoderConfig;
use crate::prompts::Prompt;
use crate::text::chat::{ChatTemplate, Messages};
use crate::text::prompt::{self, chat_prompt};
use crate::text::tokenizer::{Reading, TextTokenizer};

/// What a prompt became for the model.
pub(crate) struct Input {
    /// The text that the model sees.
    pub(crate) text: String,
    /// Its ids; at least one.
    pub(crate) ids: Vec<u32>,
    /// The date that the template asked for, where it did.
    pub(crate) date: Option<String>,
}

/// Renders and tokenises a prompt, and checks that the model can hold it with `max_new_tokens` more.
///
/// # Errors
/// Says why the prompt cannot be run.
pub(crate) fn to_input(
    prompt: &Prompt,
    chat: &ChatRequest,
    max_new_tokens: usize,
    checkpoint: &Checkpoint,
) -> Result<Input> {
    let input = render(prompt, chat, &TextParts::of(checkpoint))?;
    check_length(input.ids.len(), max_new_tokens, &checkpoint.config)?;
    Ok(input)
}

/// What of a model turns a prompt into ids.
pub(crate) struct TextParts<'a> {
    /// What errors call the model.
    pub(crate) id: &'a str,
    /// Text to ids.
    pub(crate) tokenizer: &'a TextTokenizer,
    /// Chat template, where the model has one.
    pub(crate) template: Option<&'a ChatTemplate>,
}

impl<'a> TextParts<'a> {
    fn of(checkpoint: &'a Checkpoint) -> Self {
        Self {
            id: &checkpoint.id,
            tokenizer: &checkpoint.tokenizer,
            template: checkpoint.template.as_ref(),
        }
    }
}

/// Renders and tokenises a prompt, however long it is.
///
/// # Errors
/// Says why the model cannot be given it.
pub(crate) fn render(prompt: &Prompt, chat: &ChatRequest, parts: &TextParts) -> Result<Input> {
    check_prompt(prompt, chat)?;
    let tokenizer = parts.tokenizer;
    if chat.raw {
        let reading = if chat.plain_text {
            Reading::Plain
        } else {
            Reading::Raw
        };
        let ids = tokenizer.encode(&prompt.prompt, reading)?;
        check_ids(&ids)?;
        return Ok(Input {
            text: prompt.prompt.clone(),
            ids,
            date: None,
        });
    }
    let template = parts.template.with_context(|| {
        format!(
            "{} has no chat template (use --raw to feed prompts as they are)",
            parts.id
        )
    })?;
    let system = prompt.system.as_deref().or(chat.system.as_deref());
    let prompt::Prompt { text, ids, date } = chat_prompt(
        template,
        tokenizer,
        &Messages {
            system,
            user: &prompt.prompt,
        },
        chat.thinking,
    )?;
    Ok(Input { text, ids, date })
}

/// Refuses a prompt that says itself what is wrong with it, or has what `--raw` has no place for.
///
/// # Errors
/// Says what.
pub(crate) fn check_prompt(prompt: &Prompt, chat: &ChatRequest) -> Result<()> {
    if let Some(error) = &prompt.error {
        bail!("{error}");
    }
    ensure!(
        !chat.raw || prompt.system.is_none(),
        "the prompt has a system message, which --raw has no place for"
    );
    Ok(())
}

/// Refuses a raw prompt without any token.
///
/// # Errors
/// Says what can be done.
pub(crate) fn check_ids(ids: &[u32]) -> Result<()> {
    ensure!(
        !ids.is_empty(),
        "the prompt has no tokens (expected at least one; an empty prompt needs a chat template)"
    );
    Ok(())
}

/// Refuses a prompt that leaves no room for a reply.
///
/// # Errors
/// Says how long it may be.
pub(crate) fn check_room(prompt: usize, longest: usize) -> Result<()> {
    ensure!(
        prompt < longest,
        "the prompt has {prompt} tokens, the model takes {longest} with the reply (shorten the prompt)"
    );
    Ok(())
}

/// Refuses before any weight is read what the model cannot hold. A reply may run into the end of the context, which its
/// record says; it may not run out of a sliding window, since the model would then be another one.
fn check_length(prompt: usize, max_new_tokens: usize, config: &DecoderConfig) -> Result<()> {
    let longest = config.max_position_embeddings;
    check_room(prompt, longest)?;
    if let Some(window) = config.sliding_window {
        ensure!(
            prompt.saturating_add(max_new_tokens).min(longest) <= window,
            "the prompt's {prompt} tokens and {max_new_tokens} new ones are more than the model's sliding_window of {window}, \
             and windowed attention is not supported (shorten the prompt or lower --max-new-tokens)"
        );
    }
    Ok(())
}

/// Refuses a whole text that is longer than a sequence may be.
///
/// # Errors
/// Says how long it may be.
pub(crate) fn check_length_of_text(tokens: usize, longest: usize) -> Result<()> {
    ensure!(
        tokens <= longest,
        "the text has {tokens} tokens with what comes before it, the model takes {longest} (shorten the text)"
    );
    Ok(())
}

/// Refuses a whole text that the model cannot hold; nothing has to fit behind it.
pub(crate) fn check_text(tokens: usize, config: &DecoderConfig) -> Result<()> {
    check_length_of_text(tokens, config.max_position_embeddings)?;
    if let Some(window) = config.sliding_window {
        ensure!(
            tokens <= window,
            "the text's {tokens} tokens are more than the model's sliding_window of {window}, and windowed attention is not \
             supported (shorten the text)"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_prompt_that_does_not_fit_is_refused_before_any_weight_is_read() -> Result<()> {
        let config = DecoderConfig::from_hf(&json!({
            "model_type": "qwen2", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
            "num_attention_heads": 1, "max_position_embeddings": 100, "sliding_window": 40, "use_sliding_window": true
        }))?;
        check_length(20, 20, &config)?;
        for (prompt, new, expected) in [
            (
                100,
                1,
                "the prompt has 100 tokens, the model takes 100 with the reply",
            ),
            (20, 21, "sliding_window of 40"),
            (20, usize::MAX, "sliding_window of 40"),
        ] {
            let error = check_length(prompt, new, &config)
                .expect_err(expected)
                .to_string();
            assert!(error.contains(expected), "{error}");
        }
        Ok(())
    }
}
