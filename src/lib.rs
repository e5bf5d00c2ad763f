//! `logprobs` shows where a language model is guessing.
//!
//! ```text
//! prompt → chat template → token ids → model → logits → Distribution → coin → token → Step → Record → terminal | JSON
//! ```
//!
//! Three zones. The *edge* does I/O and speaks `anyhow`: [`cli`], [`run`], `commands`, `job`, `rerun`, [`server`], `remote`, [`checkpoint`],
//! `loading`, [`prompts`], `input`, `recorded`, [`output`], `screen`, [`device`], [`progress`], `raster`, [`interrupt`]. The *tensor zone* is
//! [`model`], with [`kernels`] below it. The *core* is numbers and strings, without files, clock or printing: [`setting`], `ranking`,
//! [`distribution`], [`sampler`], [`explore`], [`score`], [`audit`], [`transcript`], [`record`], `resume`, [`analysis`], [`report`], [`text`],
//! [`tokenization`], [`context`], [`softmax`]. Imports point downwards only.
//!
//! The library serves the program of the same name; its interface may change with any version.

pub mod analysis;
pub mod audit;
pub mod checkpoint;
pub mod cli;
mod commands;
pub mod context;
#[cfg(feature = "demo")]
pub mod demo;
pub mod device;
pub mod distribution;
mod engine;
pub mod explore;
mod input;
pub mod interrupt;
mod job;
pub mod kernels;
mod loading;
pub mod model;
pub mod output;
pub mod progress;
pub mod prompts;
mod ranking;
#[cfg(feature = "png")]
mod raster;
pub mod record;
mod recorded;
mod remote;
pub mod report;
mod rerun;
mod resume;
pub mod run;
pub mod sampler;
pub mod score;
mod screen;
pub mod server;
pub mod setting;
pub mod softmax;
pub mod text;
pub mod tokenization;
pub mod transcript;
