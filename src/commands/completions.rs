//! `completions`: a script that completes the program's own flags in a shell.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::cli;
use crate::screen::ignore_closed_pipe;

/// Prints the script.
///
/// # Errors
/// When standard output takes no more.
pub(crate) fn run(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut cli::command(), "logprobs", &mut script);
    ignore_closed_pipe(io::stdout().write_all(&script)).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}
