//! To be written.

/// A chat template.
pub struct ChatTemplate;
