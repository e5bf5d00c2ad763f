//! A server as the model: the flags that say where it is and what is asked of it.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::values::number;
use crate::server::Address;

/// A server in place of a local model.
#[derive(Debug, Clone, PartialEq, Args)]
pub struct ServerRequest {
    /// Ask this vLLM or llama.cpp server in place of a local model; --model then names one of its models. Its key: LOGPROBS_API_KEY
    #[arg(
        long,
        value_name = "URL",
        value_parser = address,
        conflicts_with_all = ["revision", "offline", "device", "dtype", "threads"]
    )]
    pub server: Option<Address>,
    /// Candidates that the server shows at every step, or all; more are asked for where these do not decide what is drawn
    #[arg(
        long,
        value_name = "K|all",
        default_value = "1000",
        requires = "server",
        allow_negative_numbers = true,
        value_parser = top
    )]
    pub server_top: Top,
    /// Seconds that an answer of the server may take
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "120",
        requires = "server",
        allow_negative_numbers = true,
        value_parser = seconds
    )]
    pub server_timeout: Duration,
    /// Tokenizer and chat template of this model's files in place of the server's own; no weights are read
    #[arg(long, value_name = "ID|FOLDER|FILE.gguf", requires = "server")]
    pub tokenizer: Option<OsString>,
}

impl Default for ServerRequest {
    /// No server.
    fn default() -> Self {
        Self {
            server: None,
            server_top: Top::Best(1000),
            server_timeout: Duration::from_secs(120),
            tokenizer: None,
        }
    }
}

/// How many candidates a server shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Top {
    /// The best so many; at least 2.
    Best(usize),
    /// The whole vocabulary.
    All,
}

fn address(text: &str) -> Result<Address, String> {
    Address::parse(text).map_err(|error| error.to_string())
}

fn top(text: &str) -> Result<Top, String> {
    match text.trim() {
        text if text.eq_ignore_ascii_case("all") => Ok(Top::All),
        text => match text.parse() {
            Ok(count) if count >= 2 => Ok(Top::Best(count)),
            _ => Err("expected a whole number from 2 up, or all".to_owned()),
        },
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = number(text)?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("expected a number of seconds above 0".to_owned()),
    }
}
