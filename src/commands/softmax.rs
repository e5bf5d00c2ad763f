//! `softmax`: the arithmetic of one step, on logits from the command line.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::SoftmaxRequest;
use crate::report;
use crate::softmax::{Draws, softmax};

/// Computes and prints.
///
/// # Errors
/// When the logits are no distribution, or standard output fails.
pub(crate) fn run(request: &SoftmaxRequest) -> Result<ExitCode> {
    let draws = Draws {
        count: request.draws,
        seed: request.seed,
    };
    let record = softmax(
        &request.logits,
        request.labels.as_deref(),
        &request.settings,
        draws,
    )?;
    super::print(&record, request.print, report::softmax::table)?;
    Ok(ExitCode::SUCCESS)
}
