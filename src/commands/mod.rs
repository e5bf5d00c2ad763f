//! The commands, one file each: a request becomes a result, and the result is printed or written.

pub(crate) mod audit;
pub(crate) mod check;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod context;
pub(crate) mod render;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod score;
pub(crate) mod softmax;
pub(crate) mod step1;
pub(crate) mod tokens;

use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::checkpoint::Source;
use crate::checkpoint::description::Description;
use crate::checkpoint::hub::HubOptions;
use crate::cli::{Out, PrintRequest, SourceRequest};
use crate::output;
use crate::record::ModelInfo;
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
    let source = Source::locate(request.model(), request.revision.as_deref())?;
    let options = HubOptions {
        offline: request.offline,
        progress: true,
    };
    Description::open(&source, &options).map_err(|error| source.with_way_out(error))
}

/// Checks before any work that a record can be written.
///
/// # Errors
/// When it cannot.
fn check_out(out: &Out) -> Result<()> {
    match out {
        Out::Folder(folder) => output::check_folder(folder),
        Out::File(path) => output::check_new(path),
        Out::Replace(path) => output::check_replaceable(path),
        Out::Stdout | Out::Lines => Ok(()),
    }
}

/// Writes a record to where it shall go and returns the path; `name` begins the name of a new file.
///
/// # Errors
/// When it cannot be written; then there is no file.
fn write_record(
    record: &impl Serialize,
    name: &str,
    model: &ModelInfo,
    out: &Out,
) -> Result<Option<String>> {
    let path = match out {
        Out::Lines => return Ok(None),
        Out::Replace(path) => {
            output::replace(path, |file| json::write(record, file))?;
            return Ok(Some(path.display().to_string()));
        }
        Out::Stdout => {
            let written = json::write(record, io::stdout().lock());
            return ignore_closed_pipe(written)
                .map(|()| None)
                .context("standard output");
        }
        Out::File(path) => path.clone(),
        Out::Folder(folder) => {
            let time = jiff::Timestamp::now().strftime("%Y%m%d_%H%M");
            let device = &model.device;
            let model = output::safe_name(&model.id);
            folder.join(format!("{name}_{model}_{device}_{time}.json"))
        }
    };
    let path = output::write_new(&path, |file| json::write(record, file))?;
    Ok(Some(path.display().to_string()))
}
