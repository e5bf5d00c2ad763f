//! `compare`: two records are read and laid beside each other.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use super::report::write_page;
use crate::analysis::compare::{Named, compare, is_within};
use crate::cli::CompareRequest;
use crate::report;
use crate::report::html::Section;
use crate::screen::Stderr;
use crate::{output, recorded};

/// The exit code of a check that failed.
pub(super) const BEYOND: u8 = 3;

/// Compares and prints. Exit code 3 says that the two are beyond tolerance.
///
/// # Errors
/// When a record cannot be read, standard output fails, or the page cannot be written.
pub(crate) fn run(request: &CompareRequest) -> Result<ExitCode> {
    request.html.as_deref().map_or(Ok(()), output::check_new)?;
    let read = |path: &Path| recorded::read_prompts(path).map(|record| (name(path), record));
    let ((name_a, a), (name_b, b)) = (read(&request.a)?, read(&request.b)?);
    let terms = &request.terms;
    let comparison = compare(
        Named {
            name: &name_a,
            record: &a,
        },
        Named {
            name: &name_b,
            record: &b,
        },
        terms.tolerance,
        terms.strict,
    );
    super::print(&comparison, request.print, report::compare::table)?;
    if let Some(html) = &request.html {
        write_page(html, &[Section::Comparison(&comparison)], &Stderr::USUAL)?;
    }
    Ok(match is_within(&comparison) {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(BEYOND),
    })
}

fn name(path: &Path) -> String {
    path.display().to_string()
}
