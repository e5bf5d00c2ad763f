//! `context`: what a model and a sequence need, from the model's description alone.

use std::process::ExitCode;

use anyhow::{Result, ensure};

use crate::checkpoint::description::{Description, Storage};
use crate::cli::{ContextRequest, Length};
use crate::context::{
    ContextModel, ContextRecord, ContextSizes, PromptLength, memory, num_layers, num_parameters,
    prefill, total,
};
use crate::input::{TextParts, render};
use crate::model::config::LayerKind;
use crate::prompts::Prompt;
use crate::record::{PROGRAM, SCHEMA};
use crate::report;
use crate::screen::Stderr;

/// Lengths that totals are given for where none were asked for, as far as the model takes them.
const USUAL: [u64; 3] = [1 << 10, 8 << 10, 32 << 10];

/// Computes and prints.
///
/// # Errors
/// When the model's description is missing, damaged or not supported, or the prompt cannot be rendered.
pub(crate) fn run(request: &ContextRequest) -> Result<ExitCode> {
    let description = super::describe(&request.source)?;
    let config = description.config()?;
    let storage = description.storage();
    let max_tokens = config.max_positions() as u64;
    let memory = memory(&config, cpu_weight_bytes(storage.as_ref()));
    let prefill = prefill(&config);
    let lengths = lengths(&request.lengths, max_tokens);
    let totals = lengths
        .into_iter()
        .map(|tokens| total(tokens, max_tokens, &memory, &prefill));
    let record = ContextRecord {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        model: ContextModel {
            id: description.id.clone(),
            revision: description.revision.clone(),
            architecture: config.model_type.clone(),
            stored_bytes: storage.as_ref().and_then(|storage| storage.bytes),
            weights_dtype: storage.map(|storage| storage.dtype),
            note: description.note.map(str::to_owned),
        },
        max_tokens,
        num_attention_layers: num_layers(&config, LayerKind::FullAttention),
        num_gated_delta_layers: num_layers(&config, LayerKind::LinearAttention),
        sizes: ContextSizes::of(&config),
        num_parameters: num_parameters(&config),
        totals: totals.collect(),
        memory,
        prefill,
        prompt: match &request.prompt {
            Some(prompt) => Some(measure(prompt, request, &description, max_tokens)?),
            None => None,
        },
    };
    super::print(&record, request.print, |record, _, out| {
        report::context::table(record, out)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn lengths(asked: &[Length], max_tokens: u64) -> Vec<u64> {
    if asked.is_empty() {
        let usual = USUAL.into_iter().filter(|&tokens| tokens < max_tokens);
        return usual.chain([max_tokens]).collect();
    }
    let tokens = asked.iter().map(|length| match length {
        Length::Tokens(tokens) => *tokens,
        Length::Longest => max_tokens,
    });
    tokens.collect()
}

/// Bytes of one weight as this program keeps it on the CPU: as a folder's files have it, f32 of a GGUF file's.
fn cpu_weight_bytes(storage: Option<&Storage>) -> u64 {
    match storage {
        Some(storage)
            if storage.bytes.is_none() && matches!(storage.dtype.as_str(), "bf16" | "f16") =>
        {
            2
        }
        _ => 4,
    }
}

fn measure(
    prompt: &str,
    request: &ContextRequest,
    description: &Description,
    max_tokens: u64,
) -> Result<PromptLength> {
    let template = match request.chat.raw {
        true => None,
        false => description.template()?,
    };
    Stderr::USUAL.chat_notes(&request.chat, template.as_ref());
    let tokenizer = description.tokenizer()?;
    let parts = TextParts {
        id: &description.id,
        tokenizer: &tokenizer,
        template: template.as_ref(),
    };
    let input = render(&Prompt::from(prompt), &request.chat, &parts)?;
    ensure!(
        !input.ids.is_empty(),
        "the prompt has no tokens (expected at least one)"
    );
    let num_tokens = input.ids.len() as u64;
    Ok(PromptLength {
        prompt: prompt.to_owned(),
        num_tokens,
        remaining: max_tokens.saturating_sub(num_tokens),
        fits: num_tokens < max_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_lengths_end_with_the_longest() {
        assert_eq!(lengths(&[], 262_144), [1024, 8192, 32_768, 262_144]);
        assert_eq!(lengths(&[], 8192), [1024, 8192]);
        assert_eq!(lengths(&[], 512), [512]);
        let asked = [Length::Longest, Length::Tokens(9)];
        assert_eq!(lengths(&asked, 8), [8, 9]);
    }

    #[test]
    fn a_weight_takes_what_this_program_keeps_of_it() {
        let storage = |dtype: &str, bytes| Storage {
            dtype: dtype.to_owned(),
            bytes,
        };
        for (storage, expected) in [
            (Some(storage("bf16", None)), 2),
            (Some(storage("f32", None)), 4),
            (Some(storage("bf16", Some(10))), 4),
            (None, 4),
        ] {
            assert_eq!(cpu_weight_bytes(storage.as_ref()), expected, "{storage:?}");
        }
    }
}
