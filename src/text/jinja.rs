//! A template engine that renders as transformers' own does: minijinja with jinja2's settings and Python's habits.
//!
//! The standard is `render_jinja_template` of transformers 5.24 (`utils/chat_template_utils.py`) on jinja2 3.1. Not for
//! files, includes or HTML: nothing is escaped, nothing is loaded.

use std::fmt;

use jiff::Timestamp;
use jiff::fmt::strtime::{BrokenDownTime, Config, PosixCustom};
use jiff::tz::TimeZone;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use minijinja_contrib::pycompat;

/// What a template's `raise_exception` said.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// What `strftime_now` returned during one rendering, each text once.
#[derive(Debug, Default)]
pub(super) struct Dates(pub(super) Vec<String>);

/// Returns an engine without templates, for which now is always `now`.
///
/// # Errors
/// Never in practice: the delimiters are the default ones.
pub(super) fn environment(now: Timestamp) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    // errors name what is undefined, in a release too
    environment.set_debug(true);
    environment.set_syntax(
        SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()?,
    );
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(method);
    environment.add_filter("tojson", to_json);
    environment.add_filter("trim", trim);
    // In Python a string is a sequence, and none cannot be iterated over.
    environment.add_test("sequence", |value: &Value| {
        use ValueKind::{Map, Seq, String, Undefined};
        matches!(value.kind(), Undefined | String | Seq | Map)
    });
    environment.add_test("iterable", |value: &Value| {
        !value.is_none() && value.try_iter().is_ok()
    });
    environment.add_function("raise_exception", |message: String| -> Result<(), Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    tell_time(&mut environment, now, Vec::new());
    Ok(environment)
}

/// Lets `strftime_now` return the first of `dates` that has the format asked for, and else tell the time that is `now`.
pub(super) fn tell_time(environment: &mut Environment, now: Timestamp, dates: Vec<String>) {
    environment.add_function("strftime_now", move |state: &mut State, format: &str| {
        let has_format = |date: &&String| BrokenDownTime::parse(format, date).is_ok();
        let date = match dates.iter().find(has_format) {
            Some(date) => date.clone(),
            None => strftime(now, format)?,
        };
        let dates = &mut state.get_or_insert_extension(Dates::default()).0;
        if !dates.contains(&date) {
            dates.push(date.clone());
        }
        Ok::<_, Error>(date)
    });
}

/// Returns a template's source as jinja2 reads it: with `\n` line ends, and with the blocks by which transformers marks
/// what the assistant said (`{% generation %}`) turned into blocks without effect. Lines keep their numbers.
pub(super) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut prepared = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find('{') {
        let (text, tag) = rest.split_at(start);
        prepared.push_str(text);
        let tag = &tag[..tag_len(tag)];
        let name = tag.trim_matches(['{', '%', '-', '+', '}']).trim();
        match (tag.starts_with("{%") && tag.ends_with("%}"), name) {
            (true, "generation") => prepared.push_str(&tag.replacen(name, "with", 1)),
            (true, "endgeneration") => prepared.push_str(&tag.replacen(name, "endwith", 1)),
            _ => prepared.push_str(tag),
        }
        rest = &rest[start + tag.len()..];
        if tag.starts_with("{%") && name == "raw" {
            let end = rest.find("endraw").unwrap_or(rest.len());
            prepared.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    prepared + rest
}

/// Returns the length of the tag, comment or lone brace that `source` starts with.
fn tag_len(source: &str) -> usize {
    let close = match source.as_bytes().get(1) {
        Some(b'#') => return source.find("#}").map_or(source.len(), |end| end + 2),
        Some(b'%') => "%}",
        Some(b'{') => "}}",
        _ => return 1,
    };
    let mut quote = None;
    let mut chars = source.char_indices().skip(2);
    while let Some((index, c)) = chars.next() {
        match (quote, c) {
            (Some(_), '\\') => _ = chars.next(),
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, _) if source[index..].starts_with(close) => return index + close.len(),
            _ => {}
        }
    }
    source.len()
}

/// Whether Python's `strip` removes a character: Unicode's white space and the four ASCII separators.
pub(super) fn is_python_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1C'..='\x1F')
}

fn trim(text: &str, chars: Option<&str>) -> String {
    let strips = |c: char| chars.map_or_else(|| is_python_space(c), |chars| chars.contains(c));
    text.trim_matches(strips).to_owned()
}

/// Python's methods, where the engine knows none.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), name, args) {
        (Some(text), "strip", []) => Ok(text.trim_matches(is_python_space).into()),
        (Some(text), "lstrip", []) => Ok(text.trim_start_matches(is_python_space).into()),
        (Some(text), "rstrip", []) => Ok(text.trim_end_matches(is_python_space).into()),
        _ => pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// Formats as C's `strftime` in the POSIX locale, in UTC.
fn strftime(now: Timestamp, format: &str) -> Result<String, Error> {
    let time = BrokenDownTime::from(&now.to_zoned_datetime(TimeZone::UTC));
    let formatted = time.to_string_with_config(&Config::new().custom(PosixCustom::new()), format);
    formatted.map_err(|error| {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("strftime_now: format `{format}` is not supported: {error}"),
        )
    })
}

/// `json.dumps`, of which transformers passes on four settings.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "tojson: expected two separators",
            ));
        }
        None => (if indent.is_some() { "," } else { ", " }, ": "),
    };
    let ascii = options
        .get::<Option<bool>>("ensure_ascii")?
        .unwrap_or(false);
    let sorted = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut json = Json {
        text: String::new(),
        indent,
        item,
        key,
        ascii,
        sorted,
    };
    json.push(value, 0)?;
    Ok(json.text)
}

struct Json<'a> {
    text: String,
    indent: Option<usize>,
    item: &'a str,
    key: &'a str,
    ascii: bool,
    sorted: bool,
}

impl Json<'_> {
    fn push(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => self.text.push_str("null"),
            ValueKind::Bool => self
                .text
                .push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.text.push_str(&value.to_string()),
            ValueKind::String => self.push_string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.push_all('[', items, ']', depth)?;
            }
            ValueKind::Map => {
                let keys: Vec<Value> = value.try_iter()?.collect();
                let mut items = Vec::with_capacity(keys.len());
                for key in keys {
                    items.push((Some(key.to_string()), value.get_item(&key)?));
                }
                if self.sorted {
                    items.sort_by(|(a, _), (b, _)| a.cmp(b));
                }
                self.push_all('{', items, '}', depth)?;
            }
            kind => {
                let message = format!("tojson: a value of type {kind} cannot be written as JSON");
                return Err(Error::new(ErrorKind::BadSerialization, message));
            }
        }
        Ok(())
    }

    fn push_all(
        &mut self,
        open: char,
        items: Vec<(Option<String>, Value)>,
        close: char,
        depth: usize,
    ) -> Result<(), Error> {
        self.text.push(open);
        let is_empty = items.is_empty();
        for (index, (key, value)) in items.into_iter().enumerate() {
            if index > 0 {
                self.text.push_str(self.item);
            }
            self.break_line(depth + 1);
            if let Some(key) = key {
                self.push_string(&key);
                self.text.push_str(self.key);
            }
            self.push(&value, depth + 1)?;
        }
        if !is_empty {
            self.break_line(depth);
        }
        self.text.push(close);
        Ok(())
    }

    fn break_line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn push_string(&mut self, text: &str) {
        let quoted = serde_json::Value::from(text).to_string();
        if !self.ascii {
            return self.text.push_str(&quoted);
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                self.text.push(c);
            } else {
                let units = c
                    .encode_utf16(&mut [0; 2])
                    .iter()
                    .map(|unit| format!("\\u{unit:04x}"))
                    .collect::<String>();
                self.text.push_str(&units);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    fn render(template: &str) -> String {
        let now = Timestamp::from_second(1_709_210_096).expect("in range"); // Thursday 29 February 2024, 12:34:56
        let environment = environment(now).expect("default delimiters");
        let variables = context! { text => " \x1F é b\u{B}", none => (), list => ["é", "<&>"] };
        match environment.render_named_str("t", &prepare(template), variables) {
            Ok(text) => text,
            Err(error) => format!("{error}"),
        }
    }

    /// Expected texts are those of jinja2 3.1.6 with transformers' settings.
    #[test]
    fn python_habits_are_those_of_jinja2() {
        for (template, expected) in [
            (
                "[{{ text | trim }}|{{ text.strip() }}|{{ text.rstrip() }}|{{ text.lstrip() }}]",
                "[é b|é b| \x1F é b|é b\u{B}]",
            ),
            ("{{ 'xxaxx'.strip('x') }}{{ 'xxb' | trim('x') }}", "ab"),
            (
                "{{ 'a' is sequence }} {{ 'a' is iterable }} {{ none is iterable }} {{ 3 is sequence }}",
                "True True False False",
            ),
            (
                "{{ true }} {{ none }} {{ [1, 'a', none] }}",
                "True None [1, 'a', None]",
            ),
            (
                "{{ 'a-b'.split('-')[-1] }}{{ 'ab'.startswith(('x', 'a')) }}{{ list[::-1][0] }}{{ 'Ab'.title() }}",
                "bTrue<&>Ab",
            ),
            (
                "{{ missing }}|{{ missing is defined }}|{% for x in missing %}x{% endfor %}",
                "|False|",
            ),
            (
                "{{ missing.attribute }}",
                "undefined value: `missing` is undefined (in t:1)",
            ),
            (
                "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% if x == 3 %}{% break %}{% endif %}{% endfor %}",
                "13",
            ),
        ] {
            assert_eq!(render(template), expected, "{template}");
        }
    }

    #[test]
    fn blocks_take_their_line_with_them_and_the_last_line_break_is_dropped() {
        assert_eq!(
            render("a\n  {% set x = 1 %}\n  {# note #}\n{{ x }}\n\n"),
            "a\n1\n"
        );
        assert_eq!(render("a\r\n{% if true %}\r\nb\r{% endif %}\r\n"), "a\nb\n");
    }

    #[test]
    fn tojson_writes_as_json_dumps_does() {
        for (template, expected) in [
            ("{{ list | tojson }}", r#"["é", "<&>"]"#),
            (
                "{{ {'b': [], 'a': {'x': none, 'y': true}} | tojson }}",
                r#"{"b": [], "a": {"x": null, "y": true}}"#,
            ),
            (
                "{{ {'b': [], 'a': [1, 2.5]} | tojson(indent=2, sort_keys=true) }}",
                "{\n  \"a\": [\n    1,\n    2.5\n  ],\n  \"b\": []\n}",
            ),
            (
                "{{ {'é': '😀'} | tojson(ensure_ascii=true, separators=(',', ':')) }}",
                r#"{"\u00e9":"\ud83d\ude00"}"#,
            ),
            (
                "{{ 'a\\n\\x1b\\x7f\"' | tojson }}",
                "\"a\\n\\u001b\x7f\\\"\"",
            ),
        ] {
            assert_eq!(render(template), expected, "{template}");
        }
        assert!(render("{{ missing | tojson }}").starts_with("could not serialize"));
        assert!(render("{{ 1 | tojson(depth=2) }}").contains("unknown keyword argument 'depth'"));
    }

    #[test]
    fn generation_blocks_are_transparent_and_scopes() {
        let marked =
            "{%- generation -%}\n a {% set x = 1 %}{{ x }}\n{%- endgeneration %}\n{{ x }}|";
        assert_eq!(render(marked), "a 1|");
        let spaced = "x\n  {%generation%}\n  a\n  {%+ endgeneration %}\nb";
        assert_eq!(render(spaced), "x\n  a\n  b");
    }

    #[test]
    fn generation_outside_tags_is_text() {
        let template = "{# {% generation %} #}{{ '{% generation %} }}' }}{ {% raw %}{% generation %}{{ {% endraw %} generation";
        assert_eq!(prepare(template), template);
        assert_eq!(
            render(template),
            "{% generation %} }}{ {% generation %}{{  generation"
        );
        for unfinished in [
            "{% generation",
            "{{ 'a",
            "{# a",
            "{",
            "{% raw %}{%",
            "a {% set x = '",
        ] {
            assert_eq!(prepare(unfinished), unfinished);
        }
    }

    #[test]
    fn dates_follow_strftime_in_utc() {
        let codes = "{{ strftime_now('%d %b %Y %H:%M:%S %j|%A %a %B %m %y|%I:%M %p|%-d %e|%Y-%m-%d|%c|%x|%X|%%') }}";
        let expected = concat!(
            "29 Feb 2024 12:34:56 060|Thursday Thu February 02 24|12:34 PM|29 29|2024-02-29|",
            "Thu Feb 29 12:34:56 2024|02/29/24|12:34:56|%"
        );
        assert_eq!(render(codes), expected);
        assert!(
            render("{{ strftime_now('%E') }}")
                .contains("strftime_now: format `%E` is not supported")
        );
    }
}
