//! Breaks a reply into lines that fit the terminal: at spaces, around marks, and between wide (CJK) characters. A word that is
//! longer than a line stays whole.

use std::io::{self, Write};

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::table::NARROWEST;

const JOINER: char = '\u{200D}';
/// Chinese and Japanese punctuation that begins no line.
const NEVER_FIRST: &str = "。，、！？；：）」』】》";

/// Columns in front of a sentence, and of the lines that it goes on in.
const INDENTS: [usize; 2] = [2, 4];

/// Writes a sentence, broken to fit `width` columns.
///
/// # Errors
/// When `out` fails.
pub(super) fn write_sentence(
    sentence: &str,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let [first, others] = INDENTS;
    let room = width.filter(|&width| width >= NARROWEST);
    let mut lines = Lines::new(room.map(|width| width - others));
    lines.text(sentence);
    for (index, line) in lines.finish().iter().enumerate() {
        let indent = if index == 0 { first } else { others };
        writeln!(out, "{:indent$}{line}", "")?;
    }
    Ok(())
}

/// Lines in the making; what is in one unit is never broken.
#[derive(Debug)]
pub(super) struct Lines {
    /// Widest line; `None` breaks at line breaks alone.
    room: Option<usize>,
    done: Vec<String>,
    line: String,
    width: usize,
    /// Spaces that are written only if something follows them on the line.
    spaces: usize,
    /// A word that may still grow.
    word: String,
}

impl Lines {
    pub(super) fn new(room: Option<usize>) -> Self {
        Self {
            room,
            done: Vec::new(),
            line: String::new(),
            width: 0,
            spaces: 0,
            word: String::new(),
        }
    }

    /// Adds running text.
    pub(super) fn text(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '\n' => self.end_line(),
                ' ' => {
                    self.end_word();
                    self.spaces += 1;
                }
                _ => {
                    let is_joined = c.width() == Some(0)
                        || self.word.ends_with(JOINER)
                        || NEVER_FIRST.contains(c);
                    let is_wide = |c: char| c.width() == Some(2);
                    let after_wide = self.word.chars().next_back().is_some_and(is_wide);
                    if !is_joined && (is_wide(c) || after_wide) {
                        self.end_word();
                    }
                    self.word.push(c);
                }
            }
        }
    }

    /// Adds a unit that shows `plain`, written as `styled`.
    pub(super) fn unit(&mut self, plain: &str, styled: &str) {
        self.end_word();
        self.place(plain.width(), styled);
    }

    /// Returns the lines, at least one, none with blanks at its end.
    pub(super) fn finish(mut self) -> Vec<String> {
        self.end_line();
        self.done
    }

    fn end_word(&mut self) {
        if !self.word.is_empty() {
            let word = std::mem::take(&mut self.word);
            self.place(word.width(), &word);
        }
    }

    fn place(&mut self, width: usize, shown: &str) {
        let needed = self.width + self.spaces + width;
        if self.room.is_some_and(|room| needed > room) && self.width > 0 {
            self.done.push(std::mem::take(&mut self.line));
            (self.width, self.spaces) = (0, 0);
        }
        self.line.push_str(&" ".repeat(self.spaces));
        self.line.push_str(shown);
        self.width += self.spaces + width;
        self.spaces = 0;
    }

    fn end_line(&mut self) {
        self.end_word();
        self.done.push(std::mem::take(&mut self.line));
        (self.width, self.spaces) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn wrapped(text: &str, room: usize) -> Vec<String> {
        let mut lines = Lines::new(Some(room));
        lines.text(text);
        lines.finish()
    }

    #[test]
    fn lines_break_at_spaces_and_between_wide_characters() {
        assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
        assert_eq!(
            wrapped("法国的首都 is 巴黎。", 8),
            ["法国的首", "都 is 巴", "黎。"]
        );
        assert_eq!(wrapped("巴黎巴黎。", 8), ["巴黎巴", "黎。"]);
        assert_eq!(wrapped("a unbreakable b", 4), ["a", "unbreakable", "b"]);
        assert_eq!(wrapped("a\n\n  b ", 8), ["a", "", "  b"]);
        assert_eq!(wrapped("", 8), [""]);
    }

    #[test]
    fn a_mark_is_never_broken_and_its_style_has_no_width() {
        let mut lines = Lines::new(Some(10));
        lines.text("abc");
        lines.unit("【de|0.02】", "<【de|0.02】>");
        lines.text("fg h");
        assert_eq!(lines.finish(), ["abc", "<【de|0.02】>", "fg h"]);
    }

    #[test]
    fn a_joined_emoji_stays_one() {
        let family = "👨\u{200D}👩\u{200D}👧";
        assert_eq!(wrapped(&[family, family].concat(), 3), [family, family]);
    }

    proptest! {
        #[test]
        fn nothing_but_blanks_is_lost(text in "[a-c你🏕 \\n]{0,40}", room in 1usize..20) {
            let kept = |text: &str| text.replace([' ', '\n'], "");
            prop_assert_eq!(kept(&wrapped(&text, room).concat()), kept(&text));
            let mut lines = Lines::new(None);
            lines.text(&text);
            prop_assert_eq!(lines.finish().len(), text.split('\n').count());
        }

        #[test]
        fn a_line_is_wider_than_the_room_only_for_one_word(text in "[a-c你 ]{0,40}", room in 2usize..20) {
            for line in wrapped(&text, room) {
                prop_assert!(line.width() <= room || !line.trim().contains(' '));
            }
        }
    }
}
