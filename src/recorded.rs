//! Files that the program wrote earlier, read back: which kind of record one holds, and whether this program knows its schema.
//!
//! A file of lines (`--jsonl`) is the record of all its prompts: each line is a record of one prompt, with model and settings.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Deserializer;

use crate::prompts::{content, is_jsonl};
use crate::record::{Record, SCHEMA, TemperatureStep1};

/// What a file holds.
#[derive(Debug, PartialEq)]
pub(crate) enum Recorded {
    /// The main command's record.
    Prompts(Record),
    /// What `temperature-step1` wrote.
    Step1(TemperatureStep1),
}

/// A record of prompts, as far as its file goes.
#[derive(Debug, PartialEq)]
pub(crate) struct Partial {
    /// The prompts that are there; `None` where not even the first line is whole.
    pub(crate) record: Option<Record>,
    /// The number of a last line that its writer did not finish.
    pub(crate) cut_line: Option<usize>,
}

/// Reads a file of any kind that has a view; `-` is standard input.
///
/// # Errors
/// When the file cannot be read, or is no such record.
pub(crate) fn read(path: &Path) -> Result<Recorded> {
    let (name, bytes) = read_bytes(path)?;
    let recorded = match kind(&bytes) {
        Ok(Kind::Step1) => parse_one(&bytes).map(Recorded::Step1),
        Ok(Kind::Prompts) => parse_prompts(&bytes).and_then(whole).map(Recorded::Prompts),
        Err(error) => Err(error),
    };
    recorded.with_context(|| name)
}

/// Reads a record of the main command; `-` is standard input.
///
/// # Errors
/// When the file cannot be read, or is no such record, or ends in the middle of a line.
pub(crate) fn read_prompts(path: &Path) -> Result<Record> {
    let (name, bytes) = read_bytes(path)?;
    let partial = prompts(&bytes);
    partial.and_then(whole).with_context(|| name)
}

/// Reads what there is of a record of the main command: the last line of a file of lines may be cut off, and be its first.
///
/// # Errors
/// When the file cannot be read or is no such record.
pub(crate) fn read_partial(path: &Path) -> Result<Partial> {
    let (name, bytes) = read_bytes(path)?;
    let is_lines = is_jsonl(path);
    let first = Deserializer::from_slice(&bytes)
        .into_iter::<IgnoredAny>()
        .next();
    match first {
        None if is_lines => Ok(Partial {
            record: None,
            cut_line: None,
        }),
        Some(Err(error)) if is_lines && error.is_eof() => Ok(Partial {
            record: None,
            cut_line: Some(1),
        }),
        _ => prompts(&bytes).with_context(|| name),
    }
}

/// Returns a file's name and its bytes without a byte-order mark.
fn read_bytes(path: &Path) -> Result<(String, Vec<u8>)> {
    let (name, mut bytes) = content(path)?;
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    Ok((name, bytes))
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Prompts,
    Step1,
}

/// The keys that tell what a file holds.
#[derive(Deserialize)]
struct Keys {
    schema: Option<u64>,
    prompts: Option<IgnoredAny>,
    temperatures: Option<IgnoredAny>,
}

fn prompts(bytes: &[u8]) -> Result<Partial> {
    let expected = "(expected a record of the main command)";
    match kind(bytes)? {
        Kind::Prompts => parse_prompts(bytes),
        Kind::Step1 => bail!("is a record of temperature-step1 {expected}"),
    }
}

fn kind(bytes: &[u8]) -> Result<Kind> {
    let expected = "(expected a file that logprobs wrote: a record of the main command or of temperature-step1)";
    let first = Deserializer::from_slice(bytes).into_iter::<Keys>().next();
    let keys = first.with_context(|| format!("is empty {expected}"))?;
    let keys = keys.map_err(|error| match error.is_data() {
        true => anyhow::anyhow!("is no record {expected}"),
        false => anyhow::anyhow!("is no JSON: {error} {expected}"),
    })?;
    let kind = match keys {
        Keys {
            prompts: Some(_), ..
        } => Kind::Prompts,
        Keys {
            temperatures: Some(_),
            ..
        } => Kind::Step1,
        _ => bail!("is no record of the main command nor of temperature-step1 {expected}"),
    };
    match keys.schema {
        Some(schema) if schema == u64::from(SCHEMA) => Ok(kind),
        Some(schema) if schema > u64::from(SCHEMA) => bail!(
            "has schema {schema}, a newer one than this program reads (expected {SCHEMA}; install a newer logprobs)"
        ),
        Some(schema) => bail!("has schema {schema} (expected {SCHEMA})"),
        None => bail!("says nothing of its schema (expected {SCHEMA})"),
    }
}

fn parse_one<R: DeserializeOwned>(bytes: &[u8]) -> Result<R> {
    serde_json::from_slice(bytes).context("is no record of this schema")
}

/// One record, or a record of one prompt a line.
fn parse_prompts(bytes: &[u8]) -> Result<Partial> {
    let mut lines = Deserializer::from_slice(bytes).into_iter::<Record>();
    let first = lines.next().context("is empty")?;
    let mut record = first.context("is no record of this schema")?;
    let mut cut_line = None;
    for (line, next) in (2..).zip(lines) {
        let next = match next {
            Err(error) if error.is_eof() => {
                cut_line = Some(line);
                break;
            }
            next => next.with_context(|| format!("record {line} in it is none of this schema"))?,
        };
        ensure!(
            (next.schema, &next.program, &next.model, &next.settings)
                == (
                    record.schema,
                    &record.program,
                    &record.model,
                    &record.settings
                ),
            "record {line} in it was made by another program, model or settings than the first (expected lines of one run)"
        );
        record.prompts.extend(next.prompts);
    }
    Ok(Partial {
        record: Some(record),
        cut_line,
    })
}

fn whole(partial: Partial) -> Result<Record> {
    if let Some(line) = partial.cut_line {
        bail!("line {line} is cut off (remove it, or complete the run with --resume)");
    }
    partial.record.context("is empty")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#""program":"p","model":{"id":"m","revision":null,"architecture":"llama","vocab_size":2,"weights_dtype":"f32",
        "compute_dtype":"f32","device":"cpu"},"settings":{"max_new_tokens":1,"samples":0,"seed":0,"candidates":1,"mass":0.9,"threshold":0.3,
        "thinking":null,"raw":true,"system":null,"filter_order":[],"template_source":null,"stop_ids":[]}"#;

    fn line(prompt: &str) -> String {
        let head = HEAD.replace('\n', " ");
        format!(r#"{{"schema":1,{head},"prompts":[{{"prompt":"{prompt}","error":"e"}}]}}"#) + "\n"
    }

    fn refusal(bytes: &str) -> String {
        let error = prompts(bytes.as_bytes()).and_then(whole);
        format!("{:#}", error.expect_err("it is refused"))
    }

    #[test]
    fn lines_are_the_record_of_all_their_prompts() -> Result<()> {
        let partial = prompts((line("a") + &line("b")).as_bytes())?;
        let all = partial.record.expect("two lines");
        assert_eq!((all.prompts.len(), partial.cut_line), (2, None));
        let one = prompts(line("a").as_bytes())?;
        assert_eq!(one.record.expect("a line").prompts, all.prompts[..1]);
        Ok(())
    }

    #[test]
    fn a_last_line_that_is_cut_off_is_told_from_one_that_is_wrong() -> Result<()> {
        let text = line("a") + &line("b");
        let partial = prompts(&text.as_bytes()[..text.len() - 9])?;
        assert_eq!(
            (
                partial.record.map(|record| record.prompts.len()),
                partial.cut_line
            ),
            (Some(1), Some(2))
        );
        assert!(refusal(&text[..text.len() - 9]).contains("line 2 is cut off"));
        assert!(refusal(&(line("a") + "{}\n")).contains("record 2"));
        Ok(())
    }

    #[test]
    fn lines_of_two_runs_are_no_record() {
        let other = line("b").replace(r#""seed":0"#, r#""seed":1"#);
        assert!(refusal(&(line("a") + &other)).contains("record 2"));
    }

    #[test]
    fn what_is_no_record_of_this_schema_is_refused_by_name() {
        for (bytes, expected) in [
            ("", "is empty"),
            ("{", "is no JSON"),
            ("hello", "is no JSON"),
            ("[1]", "is no record"),
            (r#"{"a":1}"#, "is no record"),
            (r#"{"schema":1,"temperatures":[]}"#, "temperature-step1"),
            (r#"{"prompts":[]}"#, "says nothing of its schema"),
            (r#"{"schema":2,"prompts":[]}"#, "has schema 2, a newer one"),
            (r#"{"schema":0,"prompts":[]}"#, "has schema 0 (expected 1)"),
            (r#"{"schema":1,"prompts":[]}"#, "missing field `program`"),
        ] {
            let error = refusal(bytes);
            assert!(error.contains(expected), "{bytes}: {error}");
        }
    }
}
