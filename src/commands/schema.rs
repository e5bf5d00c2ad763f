//! `schema`: the JSON Schema of what the program writes.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::cli::{SchemaRequest, SchemaSubject};
use crate::record::audit::Audit;
use crate::record::compare::Comparison;
use crate::record::score::Score;
use crate::record::{Record, TemperatureStep1};
use crate::report::schema;
use crate::screen::ignore_closed_pipe;

/// Prints the schema.
///
/// # Errors
/// When standard output takes no more.
pub(crate) fn run(request: SchemaRequest) -> Result<ExitCode> {
    let schema = match request.subject {
        SchemaSubject::Record => schema::of::<Record>(),
        SchemaSubject::TemperatureStep1 => schema::of::<TemperatureStep1>(),
        SchemaSubject::Score => schema::of::<Score>(),
        SchemaSubject::Audit => schema::of::<Audit>(),
        SchemaSubject::Compare => schema::of::<Comparison>(),
    };
    let written = writeln!(io::stdout(), "{schema:#}");
    ignore_closed_pipe(written).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}
