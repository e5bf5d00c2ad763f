//! Shows where a language model is guessing.

pub mod checkpoint;
pub mod model;
pub mod record;
pub mod text;
