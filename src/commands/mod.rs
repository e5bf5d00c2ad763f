//! The subcommands that load no weights, one file each: a request becomes a result, and the result is printed.

pub(crate) mod context;
pub(crate) mod softmax;
pub(crate) mod tokens;

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::checkpoint::Source;
use crate::checkpoint::description::Description;
use crate::checkpoint::hub::HubOptions;
use crate::cli::{PrintRequest, SourceRequest};
use crate::report::json;
use crate::screen::{Screen, ignore_closed_pipe};

/// Prints a result: as JSON, or through `table`, which is told the terminal's width. A closed pipe is success.
///
/// # Errors
/// When standard output takes no more, other than a closed pipe.
fn print<R: Serialize>(
    result: &R,
    request: PrintRequest,
    table: impl FnOnce(&R, Option<usize>, &mut Vec<u8>) -> io::Result<()>,
) -> Result<()> {
    if request.json {
        let mut text = Vec::new();
        json::write(result, &mut text).expect("a vector takes everything");
        return ignore_closed_pipe(io::stdout().write_all(&text)).context("standard output");
    }
    let mut screen = Screen::always(request.color);
    screen.show(|out, width| table(result, width, out));
    screen.close()
}

/// Opens a model's small files.
///
/// # Errors
/// As [`Source::locate`] and [`Description::open`].
fn describe(request: &SourceRequest) -> Result<Description> {
    let source = Source::locate(&request.model, request.revision.as_deref())?;
    let options = HubOptions {
        offline: request.offline,
        progress: true,
    };
    Description::open(&source, &options).map_err(|error| source.with_way_out(error))
}
