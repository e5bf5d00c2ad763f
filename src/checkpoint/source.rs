//! To be written.

/// Where a model's files are.
pub enum Source {}
