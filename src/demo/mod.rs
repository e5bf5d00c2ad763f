//! The built-in model of `--model demo`: a controlled experiment, not a model that knows things.
//!
//! The files beside this one (README.md says how they were made), embedded in the program. They are an ordinary checkpoint
//! in the hub's layout: `--model src/demo` reads the same files from disk and gives the same bits.

/// What `--model` calls it.
pub const NAME: &str = "demo";

/// What a reader must know of it, in a sentence.
pub const NOTE: &str = "the built-in demo is an experiment: it was taught a few facts and lists of made-up names, and knows nothing else";

/// `config.json`.
pub const CONFIG: &str = include_str!("config.json");
/// `tokenizer.json`.
pub const TOKENIZER: &[u8] = include_bytes!("tokenizer.json");
/// `tokenizer_config.json`.
pub const TOKENIZER_CONFIG: &str = include_str!("tokenizer_config.json");
/// `chat_template.jinja`.
pub const CHAT_TEMPLATE: &str = include_str!("chat_template.jinja");
/// `model.safetensors`.
pub const WEIGHTS: &[u8] = include_bytes!("model.safetensors");
