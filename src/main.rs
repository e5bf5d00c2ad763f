//! The program: arguments in, exit code out; everything else is the library's.

use std::process::ExitCode;

use logprobs::cli::Request;
use logprobs::text::display::escape_text;

#[expect(
    clippy::print_stderr,
    reason = "the last word on a failure belongs there"
)]
fn main() -> ExitCode {
    let request = match Request::parse(std::env::args_os()) {
        Ok(request) => request,
        Err(error) => error.exit(),
    };
    logprobs::run::run(&request).unwrap_or_else(|error| {
        eprintln!("error: {}", escape_text(&format!("{error:#}")));
        ExitCode::FAILURE
    })
}
