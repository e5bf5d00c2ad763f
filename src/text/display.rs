//! Makes any bytes safe to print and possible to tell apart. No colour, no widths, no knowledge of tokens.
//!
//! What cannot be seen, moves the cursor or reorders the line is written as an escape: control characters, bidi
//! controls, zero-width and other format characters, line separators, every space but the plain one, noncharacters,
//! private use and characters that Rust's tables do not know (`str::escape_debug` draws that line).

use std::fmt::Write;

use unicode_width::UnicodeWidthChar;

/// Stands for a space that would otherwise not be seen.
const SPACE_SYMBOL: char = '\u{2420}';
/// What a combining mark is put on that has nothing before it to combine with.
const DOTTED_CIRCLE: char = '\u{25CC}';

/// Returns a token's bytes for one cell of a table; different bytes give different texts.
///
/// - `\n`, `\t`, `\r`, and `\u{202E}` for every other character that does not show itself;
/// - `\xE4` for a byte that is not part of a whole UTF-8 character;
/// - `␠` for a space at either end or beside another space; a single space between two words stays;
/// - `\\` for a backslash that would otherwise read as the start of one of these; any other stays single;
/// - `◌` in front of a combining mark that has nothing to combine with.
///
/// Genuine `␠` and `◌` are written `\u{2420}` and `\u{25CC}`, and variation selectors and joiners are escaped too,
/// so that every cell has the width that it seems to have.
pub fn escape(bytes: &[u8]) -> String {
    let units = to_units(bytes);
    let mut shown = String::with_capacity(bytes.len() + 8);
    let mut has_base = false;
    for (index, unit) in units.iter().enumerate() {
        let previous = index.checked_sub(1).map(|before| &units[before]);
        let next = units.get(index + 1);
        let is_edge = |neighbour: Option<&Unit>| matches!(neighbour, None | Some(Unit::Char(' ')));
        match *unit {
            Unit::Char(' ') if is_edge(previous) || is_edge(next) => shown.push(SPACE_SYMBOL),
            Unit::Char('\\') => shown.push_str(if reads_as_escape(next) { r"\\" } else { r"\" }),
            Unit::Char(c) if is_plain_in_cell(c) => {
                if !has_base && c.width() == Some(0) {
                    shown.push(DOTTED_CIRCLE);
                }
                shown.push(c);
            }
            Unit::Char(c) => push_escaped(&mut shown, c),
            // Writing to a string cannot fail.
            Unit::Byte(byte) => _ = write!(shown, "\\x{byte:02X}"),
        }
        has_base = matches!(unit, Unit::Char(c) if *c != ' ' && is_plain_in_cell(*c));
    }
    shown
}

/// Returns a token of a record for one cell: its bytes as [`escape`] shows them, or the name of an id that has none.
pub fn cell(token: &str, bytes: &[u8]) -> String {
    match bytes {
        [] => escape_line(token),
        _ => escape(bytes),
    }
}

/// Returns what follows the single space at a word's start in a cell, where it has one: that space reads better in front
/// of a mark than within it.
pub fn after_space(cell: &str) -> Option<&str> {
    let word = cell.strip_prefix(SPACE_SYMBOL)?;
    (!word.is_empty() && !word.starts_with(SPACE_SYMBOL)).then_some(word)
}

/// Returns a reply or prompt for the terminal: line breaks, tabs, all kinds of spaces, backslashes and joined emoji stay
/// as they are, everything else that does not show itself is escaped as in [`escape`]. Meant for reading: different
/// texts may look the same.
pub fn escape_text(text: &str) -> String {
    escape_running(text, true)
}

/// Returns `text` for a line of its own: as [`escape_text`], but line breaks and tabs are escaped too.
pub fn escape_line(text: &str) -> String {
    escape_running(text, false)
}

/// A character, or a byte that belongs to none.
#[derive(Clone, Copy)]
enum Unit {
    Char(char),
    Byte(u8),
}

fn to_units(bytes: &[u8]) -> Vec<Unit> {
    let mut units = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        units.extend(chunk.valid().chars().map(Unit::Char));
        units.extend(chunk.invalid().iter().copied().map(Unit::Byte));
    }
    units
}

/// Whether a backslash in front of this would be taken for the start of an escape.
fn reads_as_escape(next: Option<&Unit>) -> bool {
    match next {
        None | Some(Unit::Char(' ')) => false,
        Some(Unit::Byte(_)) => true,
        Some(Unit::Char(c)) => {
            matches!(c, '\\' | 'n' | 't' | 'r' | 'x' | 'u') || !is_plain_in_cell(*c)
        }
    }
}

fn is_plain_in_cell(c: char) -> bool {
    has_glyph(c) && !is_variation_selector(c) && c != SPACE_SYMBOL && c != DOTTED_CIRCLE
}

fn escape_running(text: &str, keeps_lines: bool) -> String {
    let mut shown = String::with_capacity(text.len());
    // The last character that stayed, as far as a joiner or variation selector may follow it.
    let mut joinable = None;
    for c in text.chars() {
        let stays = match c {
            '\n' | '\t' => keeps_lines,
            '\u{200C}' | '\u{200D}' => joinable.is_some_and(|before: char| !before.is_ascii()),
            c if is_variation_selector(c) => {
                joinable.is_some_and(|before| !is_variation_selector(before))
            }
            c => has_glyph(c) || is_wide_space(c),
        };
        if stays {
            shown.push(c);
        } else {
            push_escaped(&mut shown, c);
        }
        joinable =
            Some(c).filter(|c| stays && (has_glyph(*c) || is_variation_selector(*c)) && *c != ' ');
    }
    shown
}

fn push_escaped(shown: &mut String, c: char) {
    match c {
        '\n' => shown.push_str(r"\n"),
        '\t' => shown.push_str(r"\t"),
        '\r' => shown.push_str(r"\r"),
        // Writing to a string cannot fail.
        c => _ = write!(shown, "\\u{{{:X}}}", u32::from(c)),
    }
}

/// Whether a character shows itself, alone or as a mark on the one before it. The plain space does.
fn has_glyph(c: char) -> bool {
    // Characters that count as printable and are blank all the same: fillers and a blank pattern of dots.
    let is_blank = matches!(
        c,
        '\u{34F}'
            | '\u{115F}'
            | '\u{1160}'
            | '\u{17B4}'
            | '\u{17B5}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{FFA0}'
    );
    // `str::escape_debug` escapes a mark only where it comes first.
    let is_printable = || ['a', c].iter().collect::<String>().escape_debug().count() == 2;
    matches!(c, ' '..='~') || (!is_blank && is_printable())
}

fn is_variation_selector(c: char) -> bool {
    matches!(c, '\u{180B}'..='\u{180F}' | '\u{FE00}'..='\u{FE0F}' | '\u{E0100}'..='\u{E01EF}')
}

/// Spaces of other widths; no line ends.
fn is_wide_space(c: char) -> bool {
    c.is_whitespace() && !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn every_kind_of_blank_token_is_visible_and_distinct() {
        let shown = [
            " ", "  ", "\t", "\n", "\r\n", "\u{200B}", "\u{3000}", "\u{A0}", "\u{2800}", "\u{FEFF}",
        ];
        let expected = [
            "␠",
            "␠␠",
            r"\t",
            r"\n",
            r"\r\n",
            r"\u{200B}",
            r"\u{3000}",
            r"\u{A0}",
            r"\u{2800}",
            r"\u{FEFF}",
        ];
        assert_eq!(shown.map(|text| escape(text.as_bytes())), expected);
    }

    #[test]
    fn spaces_show_at_the_ends_and_beside_each_other() {
        assert_eq!(escape(b" Paris"), "␠Paris");
        assert_eq!(escape(b"a b"), "a b");
        assert_eq!(escape(b"a  b "), "a␠␠b␠");
        assert_eq!(escape("␠".as_bytes()), r"\u{2420}");
    }

    #[test]
    fn bytes_outside_characters_are_hexadecimal() {
        assert_eq!(escape(b"\xE4\xBD"), r"\xE4\xBD");
        assert_eq!(escape(b"a\xFF\xE4\xBD\xA0"), "a\\xFF你");
        assert_eq!(escape("\u{FFFD}".as_bytes()), "\u{FFFD}");
    }

    #[test]
    fn what_moves_the_cursor_or_reorders_the_line_is_escaped() {
        let hostile = "\u{1B}[31m\u{202E}\u{2066}\u{200F}\u{61C}\u{2028}\u{AD}\u{E0041}\u{E000}\u{FDD0}\u{7F}\u{9B}\0";
        let expected = concat!(
            r"\u{1B}[31m\u{202E}\u{2066}\u{200F}\u{61C}\u{2028}\u{AD}\u{E0041}\u{E000}",
            r"\u{FDD0}\u{7F}\u{9B}\u{0}"
        );
        assert_eq!(escape(hostile.as_bytes()), expected);
        assert_eq!(escape_text(hostile), expected);
        assert_eq!(escape_line(hostile), expected);
    }

    #[test]
    fn a_backslash_is_doubled_only_where_it_would_start_an_escape() {
        assert_eq!(escape(br"\"), r"\");
        assert_eq!(escape(br"\frac"), r"\frac");
        assert_eq!(escape(br"\n"), r"\\n");
        assert_eq!(escape(b"\n"), r"\n");
        assert_eq!(escape(b"\\\n"), r"\\\n");
        assert_eq!(escape(br"\\"), r"\\\");
    }

    #[test]
    fn a_mark_without_a_base_gets_a_dotted_circle() {
        assert_eq!(
            escape("\u{301}e\u{301}".as_bytes()),
            "\u{25CC}\u{301}e\u{301}"
        );
        assert_eq!(escape(" \u{301}".as_bytes()), "␠\u{25CC}\u{301}");
        assert_eq!(
            escape("\u{25CC}\u{301}".as_bytes()),
            "\\u{25CC}\u{25CC}\u{301}"
        );
    }

    #[test]
    fn joiners_and_variation_selectors_are_escaped_in_cells_and_kept_in_text() {
        let text = "❤\u{FE0F} 👨\u{200D}👩\u{200D}👧 می\u{200C}خواهم";
        assert_eq!(escape("❤\u{FE0F}".as_bytes()), r"❤\u{FE0F}");
        assert_eq!(escape_text(text), text);
        assert_eq!(escape_text("pass\u{200D}word"), r"pass\u{200D}word");
        assert_eq!(
            escape_text("\u{FE0F}❤\u{FE0F}\u{FE0F}"),
            "\\u{FE0F}❤\u{FE0F}\\u{FE0F}"
        );
    }

    #[test]
    fn running_text_keeps_its_layout_and_a_line_keeps_to_one() {
        assert_eq!(
            escape_text("a\\n  b\n\tc\u{3000}d\r\n"),
            "a\\n  b\n\tc\u{3000}d\\r\n"
        );
        assert_eq!(escape_line("a\n\tb"), r"a\n\tb");
    }

    /// Reads back what [`escape`] wrote.
    fn unescape(shown: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut rest = shown;
        while let Some(c) = rest.chars().next() {
            let after = &rest[c.len_utf8()..];
            let (value, left) = match (c, after.chars().next()) {
                ('\\', Some('\\')) => (b"\\".to_vec(), &after[1..]),
                ('\\', Some('n')) => (b"\n".to_vec(), &after[1..]),
                ('\\', Some('t')) => (b"\t".to_vec(), &after[1..]),
                ('\\', Some('r')) => (b"\r".to_vec(), &after[1..]),
                ('\\', Some('x')) => (
                    vec![u8::from_str_radix(&after[1..3], 16).expect("valid escape")],
                    &after[3..],
                ),
                ('\\', Some('u')) => {
                    let (hex, left) = after[2..].split_once('}').expect("valid escape");
                    let code = u32::from_str_radix(hex, 16).expect("valid escape");
                    let c = char::from_u32(code).expect("valid escape");
                    (c.to_string().into_bytes(), left)
                }
                (SPACE_SYMBOL, _) => (b" ".to_vec(), after),
                (DOTTED_CIRCLE, _) => (Vec::new(), after),
                (c, _) => (c.to_string().into_bytes(), after),
            };
            bytes.extend(value);
            rest = left;
        }
        bytes
    }

    /// Texts that are rich in what needs care.
    fn awkward() -> impl Strategy<Value = String> {
        proptest::collection::vec(
            prop_oneof![
                any::<char>(),
                Just(' '),
                Just('\\'),
                Just('n'),
                Just('u'),
                Just('\n'),
                Just('\u{301}'),
                Just('\u{25CC}'),
                Just('\u{200D}'),
                Just('\u{FE0F}'),
                Just('\u{1B}'),
            ],
            0..12,
        )
        .prop_map(String::from_iter)
    }

    proptest! {
        #[test]
        fn escaping_can_be_undone(bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..12),
            awkward().prop_map(String::into_bytes),
        ]) {
            prop_assert_eq!(unescape(&escape(&bytes)), bytes);
        }

        #[test]
        fn no_control_character_gets_through(text in awkward()) {
            let is_unsafe = |c: char| c.is_control() || matches!(c, '\u{202A}'..='\u{202E}' | '\u{2028}' | '\u{200F}');
            prop_assert!(!escape(text.as_bytes()).contains(is_unsafe));
            prop_assert!(!escape_line(&text).contains(is_unsafe));
            prop_assert!(!escape_text(&text).replace(['\n', '\t'], "").contains(is_unsafe));
        }

        #[test]
        fn no_cell_is_blank(bytes in proptest::collection::vec(any::<u8>(), 1..6), text in "\\PC{1,8}") {
            prop_assert!(escape(&bytes).width() > 0);
            prop_assert!(escape(text.as_bytes()).trim().width() > 0);
        }
    }
}
