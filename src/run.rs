//! From what was asked to the command that does it.

use std::process::ExitCode;

use anyhow::Result;

use crate::cli::Request;
use crate::commands;

/// Does what was asked and returns the exit code: 0 done, 1 a prompt failed, 3 a check failed, 130 or 143 interrupted.
///
/// # Errors
/// When nothing can be done at all.
pub fn run(request: &Request) -> Result<ExitCode> {
    match request {
        Request::Run(request) => commands::run::run(request),
        Request::TemperatureStep1(request) => commands::step1::run(request),
        Request::Score(request) => commands::score::run(request),
        Request::Render(request) => commands::render::run(request),
        Request::Schema(request) => commands::schema::run(*request),
        Request::Tokens(request) => commands::tokens::run(request),
        Request::Context(request) => commands::context::run(request),
        Request::Softmax(request) => commands::softmax::run(request),
        Request::Check(request) => commands::check::run(request),
        Request::Compare(request) => commands::compare::run(request),
        Request::Audit(request) => commands::audit::run(request),
        Request::Report(request) => commands::report::run(request),
        Request::Completions(shell) => commands::completions::run(*shell),
    }
}
