//! The prompts of a batch: the built-in pair, and files of one prompt a line or one JSON object a line.
//!
//! A line that cannot be a prompt becomes an entry with its error; the others go on. What a line says is taken to the
//! letter: only the line break is not part of it. A byte-order mark and blank lines are skipped.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// What runs without `--prompt`: a known fact and an ungrounded detail.
pub const BUILT_IN: [&str; 2] = [
    "法国的首都是哪里？请用一句话回答。",
    "推荐一家上海的独立咖啡馆，给出店名和具体地址，用一句话回答。",
];

/// How the error of a line ends that could not become a prompt.
pub(crate) const NO_OBJECT: &str = "(expected an object with prompt, and optional id and system)";

/// One prompt of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// As it was given; of a line that could not be read, the line.
    pub prompt: String,
    /// A name of the user's own.
    #[serde(default)]
    pub id: Option<String>,
    /// System message of this prompt alone.
    #[serde(default)]
    pub system: Option<String>,
    /// Why it cannot be run.
    #[serde(skip)]
    pub error: Option<String>,
}

impl From<&str> for Prompt {
    fn from(prompt: &str) -> Self {
        Self {
            prompt: prompt.to_owned(),
            id: None,
            system: None,
            error: None,
        }
    }
}

/// Reads a file of prompts; `-` is standard input. A name that ends in `.jsonl` holds JSON objects.
///
/// # Errors
/// When the file cannot be read, is not UTF-8 text, or holds no prompt.
pub fn read(path: &Path) -> Result<Vec<Prompt>> {
    let (name, bytes) = content(path)?;
    parse(&bytes, is_jsonl(path)).with_context(|| name)
}

/// Reads a file that is one text; `-` is standard input. A byte-order mark and one final line break are no part of it.
///
/// # Errors
/// When the file cannot be read or is not UTF-8 text.
pub fn read_text(path: &Path) -> Result<String> {
    let (name, bytes) = content(path)?;
    let text = decoded(&bytes).with_context(|| name)?;
    let text = text
        .strip_suffix('\n')
        .map_or(text, |text| text.strip_suffix('\r').unwrap_or(text));
    Ok(text.to_owned())
}

/// Returns a file's name for messages, and its bytes; `-` is standard input.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn content(path: &Path) -> Result<(String, Vec<u8>)> {
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().read_to_end(&mut bytes);
        read.context("standard input cannot be read")?;
        return Ok(("standard input".to_owned(), bytes));
    }
    let name = path.display().to_string();
    let bytes = std::fs::read(path).with_context(|| format!("{name}: cannot be read"))?;
    Ok((name, bytes))
}

/// Returns whether a file's name says that it holds an object a line.
pub(crate) fn is_jsonl(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("jsonl"))
}

/// Parses the bytes of a file of prompts.
fn parse(bytes: &[u8], is_jsonl: bool) -> Result<Vec<Prompt>> {
    let text = decoded(bytes)?;
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let prompts: Vec<Prompt> = match is_jsonl {
        true => lines.map(|(index, line)| object(index + 1, line)).collect(),
        false => lines.map(|(_, line)| line.into()).collect(),
    };
    ensure!(
        !prompts.is_empty(),
        "there is no prompt in it (expected one a line)"
    );
    Ok(prompts)
}

/// Returns a file's text without its byte-order mark.
fn decoded(bytes: &[u8]) -> Result<&str> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        bail!("the file is UTF-16 (expected UTF-8; save it as UTF-8)");
    }
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        anyhow::anyhow!(
            "line {line} is not valid UTF-8, at byte {} of the file (save it as UTF-8)",
            error.valid_up_to()
        )
    })
}

fn object(number: usize, line: &str) -> Prompt {
    serde_json::from_str(line).unwrap_or_else(|error| {
        let text = error.to_string();
        // every line is a document of its own: the place is ours to tell
        let message = text
            .rsplit_once(" at line ")
            .map_or(text.as_str(), |(message, _)| message);
        let column = error.column();
        Prompt {
            error: Some(format!(
                "line {number}, column {column}: {message} {NO_OBJECT}"
            )),
            ..line.into()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bytes: &[u8]) -> Vec<String> {
        let prompts = parse(bytes, false).expect("text");
        prompts.into_iter().map(|prompt| prompt.prompt).collect()
    }

    #[test]
    fn an_editors_line_breaks_and_byte_order_mark_are_not_part_of_a_prompt() {
        for bytes in [
            "The capital",
            "The capital\n",
            "The capital\r\n",
            "\u{feff}The capital\n\n",
            "\n \nThe capital\n",
        ] {
            assert_eq!(texts(bytes.as_bytes()), ["The capital"], "{bytes:?}");
        }
        assert_eq!(texts(b" a \nb"), [" a ", "b"]);
    }

    #[test]
    fn what_is_not_utf8_is_refused_with_the_place() {
        for (bytes, expected) in [
            (&b"ok\nab\xff"[..], "line 2 is not valid UTF-8, at byte 5"),
            (b"\xff\xfea\0", "UTF-16"),
            (b"", "no prompt"),
            (b"\n\n", "no prompt"),
        ] {
            let error = parse(bytes, false).expect_err(expected).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_bad_line_is_reported_with_its_number_and_the_others_stand() -> Result<()> {
        let lines = concat!(
            "{\"prompt\": \"a\", \"id\": \"x\", \"system\": \"\"}\n",
            "\n",
            "{\"prompt\": \"\\ud835\"}\n",
            "{\"prompt\": \"b\", \"extra\": 1}\n",
            "{\"id\": \"y\"}\n",
            "{\"prompt\": \"c\"}"
        );
        let prompts = parse(lines.as_bytes(), true)?;
        let good = Prompt {
            id: Some("x".into()),
            system: Some(String::new()),
            ..Prompt::from("a")
        };
        assert_eq!((&prompts[0], &prompts[4]), (&good, &Prompt::from("c")));
        for (prompt, expected) in
            prompts[1..4]
                .iter()
                .zip(["line 3", "unknown field `extra`", "missing field `prompt`"])
        {
            let error = prompt.error.as_deref().expect(expected);
            assert!(error.contains(expected), "{error}");
        }
        Ok(())
    }

    #[test]
    fn a_file_that_is_one_text_loses_its_mark_and_one_line_break() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("text");
        for (bytes, expected) in [
            (&b"a\nb"[..], "a\nb"),
            (b"a\n", "a"),
            (b"a\r\n", "a"),
            (b"a\n\n", "a\n"),
            (b"\xef\xbb\xbfa\r", "a\r"),
            (b"", ""),
        ] {
            std::fs::write(&path, bytes)?;
            assert_eq!(read_text(&path)?, expected, "{bytes:?}");
        }
        std::fs::write(&path, b"a\xff")?;
        let error = format!("{:#}", read_text(&path).expect_err("0xff is never UTF-8"));
        assert!(
            error.contains("line 1 is not valid UTF-8, at byte 1"),
            "{error}"
        );
        Ok(())
    }
}
