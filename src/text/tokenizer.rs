//! To be written.

/// A tokenizer.
pub struct TextTokenizer;
