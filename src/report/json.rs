//! The record as JSON: deterministic bytes, indented, one step a line.
//!
//! Characters stay as they are (UTF-8); beyond what JSON requires, control characters of the C1 range, DEL and bidi
//! controls are written as `\u` escapes, so that a record on a terminal is harmless.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter, Serializer};

use crate::record::{ModelInfo, PromptEntry, Record, Settings};

/// Lists that have a line for every entry; all others are lists of plain values, on one line.
const LISTS: [&str; 16] = [
    "prompts",
    "sweeps",
    "runs",
    "steps",
    "candidates",
    "texts",
    "tokens",
    "totals",
    "pairs",
    "branches",
    "run_by_run",
    "named",
    "findings",
    "differences",
    "variants",
    "skipped",
];

/// Lists whose entries are on one line each, whatever is in them.
const LISTS_OF_LINES: [&str; 8] = [
    "steps",
    "candidates",
    "tokens",
    "totals",
    "branches",
    "run_by_run",
    "findings",
    "differences",
];

/// Writes a record and a final line break.
///
/// # Errors
/// When `writer` fails.
pub fn write(record: &impl Serialize, mut writer: impl Write) -> io::Result<()> {
    let formatter = Outline {
        pretty: PrettyFormatter::new(),
        key: String::new(),
        in_key: false,
        in_lines: false,
        flat: 0,
    };
    record.serialize(&mut Serializer::with_formatter(&mut writer, formatter))?;
    writer.write_all(b"\n")
}

/// Writes one prompt of a record as a record of its own, on one line.
///
/// # Errors
/// When `writer` fails.
pub fn write_line(record: &Record, prompt: usize, mut writer: impl Write) -> io::Result<()> {
    #[derive(Serialize)]
    struct Line<'a> {
        schema: u32,
        program: &'a str,
        model: &'a ModelInfo,
        settings: &'a Settings,
        prompts: [&'a PromptEntry; 1],
    }
    let line = Line {
        schema: record.schema,
        program: &record.program,
        model: &record.model,
        settings: &record.settings,
        prompts: [&record.prompts[prompt]],
    };
    write_compact(&line, &mut writer)
}

/// Writes anything on one line, and a line break.
///
/// # Errors
/// When `writer` fails.
pub(super) fn write_compact(value: &impl Serialize, writer: &mut impl Write) -> io::Result<()> {
    value.serialize(&mut Serializer::with_formatter(&mut *writer, OneLine))?;
    writer.write_all(b"\n")
}

/// No spaces and no line breaks; text as in [`write`].
struct OneLine;

impl Formatter for OneLine {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        write_text(writer, fragment)
    }
}

/// Indents like serde_json's pretty formatter, but writes a step, and a list of plain values, in one line.
struct Outline {
    pretty: PrettyFormatter<'static>,
    /// The last key written.
    key: String,
    in_key: bool,
    /// Whether the innermost list that has lines is one of [`LISTS_OF_LINES`].
    in_lines: bool,
    /// How many of the open lists and objects are written in one line.
    flat: usize,
}

impl Outline {
    /// Returns whether what opens here is indented.
    fn open(&mut self, is_flat: bool) -> bool {
        let is_flat = self.flat > 0 || is_flat;
        self.flat += usize::from(is_flat);
        !is_flat
    }

    /// Returns whether what closes here was indented.
    fn close(&mut self) -> bool {
        let was_flat = self.flat > 0;
        self.flat -= usize::from(was_flat);
        !was_flat
    }
}

impl Formatter for Outline {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.open(!LISTS.contains(&self.key.as_str())) {
            true => {
                self.in_lines = LISTS_OF_LINES.contains(&self.key.as_str());
                self.pretty.begin_array(writer)
            }
            false => writer.write_all(b"["),
        }
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.close() {
            true => {
                self.in_lines = false;
                self.pretty.end_array(writer)
            }
            false => writer.write_all(b"]"),
        }
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match (self.flat, first) {
            (0, _) => self.pretty.begin_array_value(writer, first),
            (_, true) => Ok(()),
            (_, false) => writer.write_all(b", "),
        }
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.open(self.in_lines) {
            true => self.pretty.begin_object(writer),
            false => writer.write_all(b"{"),
        }
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.close() {
            true => self.pretty.end_object(writer),
            false => writer.write_all(b"}"),
        }
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.in_key = true;
        self.key.clear();
        match (self.flat, first) {
            (0, _) => self.pretty.begin_object_key(writer, first),
            (_, true) => Ok(()),
            (_, false) => writer.write_all(b", "),
        }
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.in_key = false;
        Ok(())
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.pretty.end_object_value(writer)
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if self.in_key {
            self.key.push_str(fragment);
        }
        write_text(writer, fragment)
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.pretty.write_char_escape(writer, escape)
    }
}

fn write_text<W: ?Sized + Write>(writer: &mut W, text: &str) -> io::Result<()> {
    let mut rest = text;
    while let Some((at, c)) = rest.char_indices().find(|(_, c)| is_escaped(*c)) {
        writer.write_all(&rest.as_bytes()[..at])?;
        write!(writer, "\\u{:04x}", u32::from(c))?;
        rest = &rest[at + c.len_utf8()..];
    }
    writer.write_all(rest.as_bytes())
}

/// Controls that JSON lets through and a terminal does not.
fn is_escaped(c: char) -> bool {
    matches!(c, '\u{7f}'..='\u{9f}' | '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(value: &serde_json::Value) -> String {
        let mut bytes = Vec::new();
        write(value, &mut bytes).expect("a vector takes everything");
        String::from_utf8(bytes).expect("JSON is UTF-8")
    }

    #[test]
    fn a_step_and_a_list_of_numbers_are_one_line_each() {
        let record = serde_json::json!({"prompts": [{"ids": [1, 2], "steps": [{"bytes": [3], "top": [{"id": 4}]}, {}], "runs": []}]});
        insta::assert_snapshot!(written(&record), @r#"
        {
          "prompts": [
            {
              "ids": [1, 2],
              "steps": [
                {"bytes": [3], "top": [{"id": 4}]},
                {}
              ],
              "runs": []
            }
          ]
        }
        "#);
    }

    #[test]
    fn text_stays_readable_and_controls_are_escaped() {
        let text = written(&serde_json::json!(
            "你好 🤗 é \u{2028} \u{1b}[31m \u{9b} \u{202e} \u{fffd}"
        ));
        assert_eq!(
            text,
            "\"你好 🤗 é \u{2028} \\u001b[31m \\u009b \\u202e \u{fffd}\"\n"
        );
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(text in any::<String>(), float in any::<f32>().prop_filter("JSON", |f| f.is_finite())) {
            let value = serde_json::json!({"text": text, "list": [float], "empty": [], "none": {}});
            let back: serde_json::Value = serde_json::from_str(&written(&value)).expect("valid JSON");
            prop_assert_eq!(back, value);
        }
    }
}
