//! Tokens for a terminal: a row for each, or a table that lays several texts side by side.

use std::io::{self, Write};

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

use super::columns::{self, Line, Side};
use super::table::{BOLD, DIM, LOW, TOKEN_WIDTH, cut, plural, title};
use crate::text::display::{cell, escape_line};
use crate::tokenization::{TokenEntry, TokenizedText, TokensRecord};

/// Columns that an excerpt of a text gets at least.
const SHORTEST_EXCERPT: usize = 16;
/// Columns that it gets where nobody says how wide the terminal is.
const USUAL_EXCERPT: usize = 40;

/// Writes everything that `record` has of one text, the numbers of several, or what ids were asked for.
///
/// # Errors
/// When `out` fails.
pub fn table(record: &TokensRecord, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let model = &record.model;
    let revision = model
        .revision
        .as_ref()
        .map(|revision| format!(" at {}", escape_line(revision)))
        .unwrap_or_default();
    let vocabulary = match model.vocab_size {
        Some(rows) => format!(
            "vocabulary of {rows}, {} of them with a name",
            model.num_named
        ),
        None => format!("{} tokens with a name", model.num_named),
    };
    writeln!(
        out,
        "{}: {BOLD}{}{BOLD:#}{revision} ({vocabulary})",
        record.program,
        escape_line(&model.id)
    )?;
    if let Some(note) = &model.note {
        writeln!(out, "{BOLD}{}{BOLD:#}", escape_line(note))?;
    }
    match record.texts.as_slice() {
        [] => ids(record, out),
        [text] => one_text(text, out),
        texts => comparison(texts, width, out),
    }
}

fn ids(record: &TokensRecord, out: &mut impl Write) -> io::Result<()> {
    writeln!(out)?;
    rows(&record.tokens, out)?;
    match record.tokens.iter().all(|token| token.named) {
        true => Ok(()),
        false => writeln!(
            out,
            "\nan id without a name is a row of the output layer that no file of the model names: no text becomes it"
        ),
    }
}

fn one_text(text: &TokenizedText, out: &mut impl Write) -> io::Result<()> {
    let kind = match text.rendered {
        Some(_) => "Message, in the model's chat template",
        None => "Text",
    };
    writeln!(out, "\n{BOLD}{kind}: {}{BOLD:#}\n", title(&text.text))?;
    rows(&text.tokens, out)?;
    let special = match text.num_special {
        0 => String::new(),
        special => format!(" ({special} special)"),
    };
    let per_token = text
        .characters_per_token
        .map(|ratio| format!(": {ratio:.2} characters per token"))
        .unwrap_or_default();
    writeln!(
        out,
        "\n{}{special}, {}, {}{per_token}",
        plural(text.num_tokens, "token"),
        plural(text.num_characters, "character"),
        plural(text.num_bytes, "byte")
    )?;
    inexact(&[text], out)
}

/// One row for each token.
fn rows(tokens: &[TokenEntry], out: &mut impl Write) -> io::Result<()> {
    let has_positions = tokens.iter().any(|token| token.position.is_some());
    let has_special = tokens.iter().any(|token| token.special);
    let mut sides = vec![Side::Right, Side::Left];
    let mut titles = vec!["id".to_owned(), "token".to_owned()];
    if has_positions || tokens.is_empty() {
        sides.insert(0, Side::Right);
        titles.insert(0, "position".to_owned());
    }
    if has_special {
        sides.push(Side::Left);
        titles.push("special".to_owned());
    }
    sides.push(Side::Left);
    titles.push("bytes".to_owned());
    let mut lines = vec![Line::title(titles)];
    for token in tokens {
        let mut cells: Vec<String> = Vec::new();
        cells.extend(token.position.map(|position| position.to_string()));
        cells.push(token.token_id.to_string());
        cells.push(cut(&cell(&token.token, &token.bytes), 2 * TOKEN_WIDTH));
        if has_special {
            let special = match (token.special, token.named) {
                (true, false) => "no name",
                (true, true) => "yes",
                (false, _) => "",
            };
            cells.push(special.to_owned());
        }
        cells.push(hex(&token.bytes));
        let style = if token.special { DIM } else { Style::new() };
        lines.push(Line { style, cells });
    }
    columns::write(&sides, &lines, out)
}

/// Several texts side by side; the text comes last, where letters that run from right to left move nothing else.
fn comparison(
    texts: &[TokenizedText],
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let ratio = |ratio: Option<f32>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    let has_special = texts.iter().any(|text| text.num_special > 0);
    let mut titles = vec!["text", "tokens"];
    if has_special {
        titles.push("special");
    }
    titles.extend([
        "characters",
        "bytes",
        "characters/token",
        "bytes/token",
        "cost",
        "",
    ]);
    let mut sides = vec![Side::Right; titles.len() - 1];
    sides.push(Side::Left);
    let titles: Vec<String> = titles.into_iter().map(str::to_owned).collect();
    let used: usize = titles.iter().map(|title| title.width() + 2).sum();
    let room = match width {
        Some(width) => width.saturating_sub(used).max(SHORTEST_EXCERPT),
        None => USUAL_EXCERPT,
    };
    let mut lines = vec![Line::title(titles)];
    for (index, text) in texts.iter().enumerate() {
        let mut cells = vec![(index + 1).to_string(), text.num_tokens.to_string()];
        if has_special {
            cells.push(text.num_special.to_string());
        }
        cells.extend([
            text.num_characters.to_string(),
            text.num_bytes.to_string(),
            ratio(text.characters_per_token),
            ratio(text.bytes_per_token),
            ratio(text.relative_cost),
        ]);
        let excerpt = match &text.file {
            Some(file) => format!("{}: {}", escape_line(file), title(&text.text)),
            None => title(&text.text),
        };
        cells.push(cut(&excerpt, room));
        lines.push(Line::plain(cells));
    }
    writeln!(out)?;
    columns::write(&sides, &lines, out)?;
    writeln!(
        out,
        "\n{DIM}cost: tokens, as a multiple of the first text's{DIM:#}"
    )?;
    inexact(&texts.iter().collect::<Vec<_>>(), out)
}

/// Says which texts the tokenizer changed.
fn inexact(texts: &[&TokenizedText], out: &mut impl Write) -> io::Result<()> {
    for (index, text) in texts.iter().enumerate() {
        let which = match texts.len() {
            1 => "the text".to_owned(),
            _ => format!("text {}", index + 1),
        };
        if !text.exact {
            writeln!(
                out,
                "{LOW}{which} is not what its tokens spell{LOW:#}: the tokenizer normalises it first"
            )?;
        }
    }
    Ok(())
}

/// `E6 B3 95`; `-` for none.
fn hex(bytes: &[u8]) -> String {
    match bytes {
        [] => "-".to_owned(),
        _ => {
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
            bytes.join(" ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{PROGRAM, SCHEMA};
    use crate::tokenization::TokensModel;

    fn token(position: usize, token_id: u32, bytes: &[u8], special: bool) -> TokenEntry {
        TokenEntry {
            position: Some(position),
            token_id,
            token: String::from_utf8_lossy(bytes).into_owned(),
            bytes: bytes.to_vec(),
            special,
            named: true,
        }
    }

    fn text(text: &str, tokens: Vec<TokenEntry>, relative_cost: f32, exact: bool) -> TokenizedText {
        let num_characters = text.chars().count();
        TokenizedText {
            file: None,
            text: text.to_owned(),
            rendered: None,
            num_tokens: tokens.len(),
            num_special: tokens.iter().filter(|token| token.special).count(),
            num_characters,
            num_bytes: text.len(),
            characters_per_token: Some(num_characters as f32 / tokens.len() as f32),
            bytes_per_token: Some(text.len() as f32 / tokens.len() as f32),
            relative_cost: Some(relative_cost),
            exact,
            tokens,
        }
    }

    fn shown(texts: Vec<TokenizedText>, tokens: Vec<TokenEntry>, width: Option<usize>) -> String {
        let record = TokensRecord {
            schema: SCHEMA,
            program: PROGRAM.to_owned(),
            model: TokensModel {
                id: "m\u{1b}".to_owned(),
                revision: None,
                vocab_size: Some(320),
                num_named: 300,
                note: None,
            },
            reading: None,
            texts,
            tokens,
        };
        let mut out = Vec::new();
        table(&record, width, &mut out).expect("a vector takes everything");
        anstream::adapter::strip_str(&String::from_utf8(out).expect("UTF-8")).to_string()
    }

    #[test]
    fn one_text_has_a_row_a_token() {
        let tokens = vec![
            token(0, 299, b"<|bos|>", true),
            token(1, 7, "巴黎".as_bytes(), false),
            token(2, 12, b"\xE4\xBD", false),
            token(3, 5, b"\x1b\n ", false),
        ];
        insta::assert_snapshot!(shown(vec![text("巴黎…", tokens, 1.0, false)], Vec::new(), None), @r"
        logprobs 0.1.0: m\u{1B} (vocabulary of 320, 300 of them with a name)

        Text: 巴黎…

          position   id  token      special  bytes
                 0  299  <|bos|>    yes      3C 7C 62 6F 73 7C 3E
                 1    7  巴黎                E5 B7 B4 E9 BB 8E
                 2   12  \xE4\xBD            E4 BD
                 3    5  \u{1B}\n␠           1B 0A 20

        4 tokens (1 special), 3 characters, 9 bytes: 0.75 characters per token
        the text is not what its tokens spell: the tokenizer normalises it first
        ");
    }

    #[test]
    fn several_texts_stand_side_by_side_with_the_text_last() {
        let a = |position| token(position, 1, b"a", false);
        let texts = vec![
            text("a", vec![a(0)], 1.0, true),
            text("مرحبا\u{202e}", vec![a(0), a(1), a(2)], 3.0, true),
        ];
        insta::assert_snapshot!(shown(texts, Vec::new(), None), @r"
        logprobs 0.1.0: m\u{1B} (vocabulary of 320, 300 of them with a name)

          text  tokens  characters  bytes  characters/token  bytes/token  cost
             1       1           1      1              1.00         1.00  1.00  a
             2       3           6     13              2.00         4.33  3.00  مرحبا\u{202E}

        cost: tokens, as a multiple of the first text's
        ");
    }

    #[test]
    fn an_id_without_a_name_is_said_to_be_one() {
        let nameless = TokenEntry {
            position: None,
            token_id: 310,
            token: "<|id:310|>".to_owned(),
            bytes: Vec::new(),
            special: true,
            named: false,
        };
        insta::assert_snapshot!(shown(Vec::new(), vec![nameless], None), @r"
        logprobs 0.1.0: m\u{1B} (vocabulary of 320, 300 of them with a name)

           id  token       special  bytes
          310  <|id:310|>  no name  -

        an id without a name is a row of the output layer that no file of the model names: no text becomes it
        ");
    }
}
