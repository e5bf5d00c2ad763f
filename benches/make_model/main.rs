//! Makes a random checkpoint of a real model's size: what a benchmark needs when the weights' values do not matter.
//!
//!     cargo bench --bench make_model -- --size 0.8b --tokenizer DIR --out DIR
//!
//! The folder is what transformers saves for a text-only Qwen3.5: bf16, tokenizer beside the weights. The same seed gives
//! the same bytes. It learns nothing from its tokenizer, so its replies are noise.

mod random_model;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

use random_model::{Size, write};

/// Makes a random Qwen3.5 checkpoint of true size
#[derive(Parser)]
struct Arguments {
    /// Which model's sizes
    #[arg(long, value_enum)]
    size: Size,
    /// A folder with tokenizer.json; it and the files that go with it are copied
    #[arg(long, value_name = "DIR")]
    tokenizer: PathBuf,
    /// The folder to make; it must not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only this many layers, every fourth of them full attention
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    layers: Option<u16>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value = "0")]
    seed: u64,
    /// Weights go to a new file when the one before would pass this
    #[arg(long, value_name = "BYTES", default_value = "2000000000")]
    shard_bytes: u64,
    /// What `cargo bench` adds to every command
    #[arg(long, hide = true)]
    bench: bool,
}

#[allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of its own"
)]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match make(&arguments) {
        Ok(bytes) => {
            let out = arguments.out.display();
            println!("{out}: {:.3} GB of weights", bytes as f64 * 1e-9);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn make(arguments: &Arguments) -> Result<u64> {
    let mut shape = arguments.size.shape();
    if let Some(layers) = arguments.layers {
        shape.num_hidden_layers = usize::from(layers);
    }
    write::checkpoint(
        &shape,
        &arguments.tokenizer,
        &arguments.out,
        &write::Options {
            seed: arguments.seed,
            shard_bytes: arguments.shard_bytes,
        },
    )
}
