//! The program: arguments in, exit code out; everything else is the library's.

use std::io::Write;
use std::process::ExitCode;

use logprobs::cli::Request;
use logprobs::text::display::{escape_line, escape_text};

fn main() -> ExitCode {
    let request = match Request::parse(std::env::args_os()) {
        Ok(request) => request,
        Err(error) if error.use_stderr() => {
            say(error.to_string().trim_end());
            return ExitCode::from(2);
        }
        Err(help) => help.exit(),
    };
    logprobs::run::run(&request).unwrap_or_else(|error| {
        say(&escape_line(&format!("error: {error:#}")));
        ExitCode::FAILURE
    })
}

/// Has the last word on a failure, escaped: it may quote what somebody else wrote.
fn say(message: &str) {
    // whoever closed stderr does not want to know
    let _ = writeln!(std::io::stderr(), "{}", escape_text(message));
}
