//! What is printed: the record's views on standard output, everything said beside the data on stderr.
//!
//! Whoever closes a pipe has seen enough; a full disk behind standard output ends the printing, not the run.

use std::io::{self, IsTerminal, Write};

use anstream::{AutoStream, ColorChoice};
use anyhow::{Context, Result};

use crate::cli::{ChatRequest, ColorWhen, Out, OutputRequest};
use crate::text::chat::ChatTemplate;
use crate::text::display;

/// What is said beside the data.
pub(crate) struct Stderr {
    /// Errors and warnings alone.
    pub(crate) quiet: bool,
    /// How things are computed, too.
    pub(crate) is_verbose: bool,
}

impl Stderr {
    /// Messages as usual.
    pub(crate) const USUAL: Self = Self {
        quiet: false,
        is_verbose: false,
    };

    pub(crate) fn new(request: &OutputRequest) -> Self {
        Self {
            quiet: request.quiet,
            is_verbose: request.is_verbose,
        }
    }

    /// Says how something is computed, to those who asked.
    pub(crate) fn explain(&self, message: &str) {
        if self.is_verbose {
            self.say(message);
        }
    }

    pub(crate) fn say(&self, message: &str) {
        if !self.quiet {
            // whoever closed stderr does not want to know
            let _ = writeln!(io::stderr(), "{message}");
        }
    }

    pub(crate) fn warn(&self, message: &str) {
        let _ = writeln!(io::stderr(), "warning: {}", display::escape_line(message));
    }

    /// Says why nothing is done.
    pub(crate) fn refuse(&self, message: &str) {
        let _ = writeln!(io::stderr(), "error: {}", display::escape_line(message));
    }

    /// Says what of the request does not reach this model's template.
    pub(crate) fn chat_notes(&self, chat: &ChatRequest, template: Option<&ChatTemplate>) {
        let template = template.filter(|_| !chat.raw);
        if chat.thinking && template.is_some_and(|template| !template.has_thinking_switch()) {
            self.warn("--thinking has no effect: the model's chat template has no such switch");
        }
    }
}

/// Standard output as a person reads it; a closed pipe or a full disk ends the printing, not the run.
pub(crate) struct Screen {
    out: Option<AutoStream<io::Stdout>>,
    width: Option<usize>,
    failure: Option<io::Error>,
}

impl Screen {
    pub(crate) fn new(request: &OutputRequest) -> Self {
        let is_shown = !request.quiet && !matches!(request.out, Out::Stdout | Out::Lines);
        Self {
            out: is_shown.then(|| stdout(request.color)),
            width: width(),
            failure: None,
        }
    }

    /// A screen for a command that shows what it found and writes no file.
    pub(crate) fn always(color: ColorWhen) -> Self {
        Self {
            out: Some(stdout(color)),
            width: width(),
            failure: None,
        }
    }

    pub(crate) fn show(
        &mut self,
        print: impl FnOnce(&mut Vec<u8>, Option<usize>) -> io::Result<()>,
    ) {
        let Some(out) = &mut self.out else { return };
        let mut text = Vec::new();
        print(&mut text, self.width).expect("a vector takes everything");
        if let Err(error) = out.write_all(&text).and_then(|()| out.flush()) {
            self.out = None;
            self.failure = ignore_closed_pipe(Err(error)).err();
        }
    }

    /// Whether what is shown is before the user's eyes.
    pub(crate) fn is_terminal(&self) -> bool {
        self.out.is_some() && io::stdout().is_terminal()
    }

    /// Ends the printing.
    ///
    /// # Errors
    /// When something could not be printed, other than into a closed pipe.
    pub(crate) fn close(self) -> Result<()> {
        self.failure
            .map_or(Ok(()), |error| Err(error).context("standard output"))
    }
}

fn stdout(color: ColorWhen) -> AutoStream<io::Stdout> {
    let choice = match color {
        ColorWhen::Auto => AutoStream::choice(&io::stdout()),
        ColorWhen::Always => ColorChoice::Always,
        ColorWhen::Never => ColorChoice::Never,
    };
    AutoStream::new(io::stdout(), choice)
}

/// Columns of the terminal, where there is one or COLUMNS says so.
fn width() -> Option<usize> {
    let columns = std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok());
    let terminal =
        || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    columns.filter(|&columns| columns > 0).or_else(terminal)
}

/// Whoever closes the pipe has seen enough.
pub(crate) fn ignore_closed_pipe(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
