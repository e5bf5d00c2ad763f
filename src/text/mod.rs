//! Text in and out: chat template to prompt, text to ids, ids to bytes, tokens made visible.

pub(crate) mod byte_level;
pub mod chat;
pub mod display;
mod jinja;
pub mod prompt;
pub mod tokenizer;
