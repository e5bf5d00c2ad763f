//! `report`: records become one page of HTML.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::cli::ReportRequest;
use crate::output;
use crate::recorded::{self, Recorded};
use crate::report::html::{self, Section};
use crate::screen::{Stderr, ignore_closed_pipe};
use crate::text::display;

/// Reads the records and writes their page.
///
/// # Errors
/// When a record cannot be read or is of another kind, or the page cannot be written or would overwrite a file.
pub(crate) fn run(request: &ReportRequest) -> Result<ExitCode> {
    let to_stdout = request.out.as_deref() == Some(Path::new("-"));
    let file = request.out.as_deref().filter(|_| !to_stdout);
    file.map_or(Ok(()), output::check_new)?;
    let records = request.records.iter().map(|path| recorded::read(path));
    let records: Vec<Recorded> = records.collect::<Result<_>>()?;
    let sections: Vec<Section> = records.iter().map(Section::from).collect();
    if to_stdout {
        let written = html::write(&sections, &mut io::stdout().lock());
        ignore_closed_pipe(written).context("standard output")?;
        return Ok(ExitCode::SUCCESS);
    }
    let beside = request.records[0].with_extension("html");
    write_page(file.unwrap_or(&beside), &sections, &Stderr::USUAL)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a page to a new file, or to one beside it where that is there, and says where it is.
///
/// # Errors
/// When it cannot be written; then there is no file.
pub(super) fn write_page(path: &Path, sections: &[Section], messages: &Stderr) -> Result<()> {
    let path = output::write_new(path, |mut out| html::write(sections, &mut out))?;
    let path = path.display().to_string();
    messages.say(&format!("written to {}", display::escape_line(&path)));
    Ok(())
}

impl<'a> From<&'a Recorded> for Section<'a> {
    fn from(recorded: &'a Recorded) -> Self {
        match recorded {
            Recorded::Prompts(record) => Self::Run(record),
            Recorded::Step1(record) => Self::Step1(record),
        }
    }
}
