//! Shows where a language model is guessing.
pub mod cli;
pub mod distribution;
pub mod explore;
pub mod model;
pub mod record;
pub mod sampler;
pub mod setting;
