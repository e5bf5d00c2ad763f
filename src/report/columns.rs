//! Rows of cells under each other: columns as wide as what is shown in them, CJK characters counted as two.

use std::io::{self, Write};

use anstyle::Style;
use unicode_width::UnicodeWidthStr;

use super::table::{DIM, left, right};

/// To which side a column's cells are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// One row and how it is coloured; it may have fewer cells than there are columns.
pub(super) struct Line {
    pub(super) style: Style,
    pub(super) cells: Vec<String>,
}

impl Line {
    pub(super) fn title(cells: Vec<String>) -> Self {
        Self { style: DIM, cells }
    }

    pub(super) fn plain(cells: Vec<String>) -> Self {
        Self {
            style: Style::new(),
            cells,
        }
    }
}

/// Writes rows with two spaces in front and between columns, and nothing behind the last cell that shows something.
///
/// # Errors
/// When `out` fails.
pub(super) fn write(sides: &[Side], lines: &[Line], out: &mut impl Write) -> io::Result<()> {
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.cells.get(column));
        cells.map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..sides.len()).map(width).collect();
    for Line { style, cells } in lines {
        let mut shown = String::new();
        for ((cell, &width), side) in cells.iter().zip(&widths).zip(sides) {
            shown.push_str("  ");
            shown.push_str(&match side {
                Side::Left => left(cell, width),
                Side::Right => right(cell, width),
            });
        }
        writeln!(out, "{style}{}{style:#}", shown.trim_end())?;
    }
    Ok(())
}

/// Writes rows of the same number of cells, the first of which are titles: names on the left, then numbers.
///
/// # Errors
/// When `out` fails.
pub(super) fn write_numbers(rows: Vec<Vec<String>>, out: &mut impl Write) -> io::Result<()> {
    let columns = rows.first().map_or(0, Vec::len);
    let sides: Vec<Side> = std::iter::once(Side::Left)
        .chain(std::iter::repeat(Side::Right))
        .take(columns)
        .collect();
    let mut lines: Vec<Line> = rows.into_iter().map(Line::plain).collect();
    if let Some(title) = lines.first_mut() {
        title.style = DIM;
    }
    write(&sides, &lines, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_count_two_and_no_line_ends_in_spaces() {
        let line = |cells: [&str; 3]| Line::plain(cells.map(str::to_owned).to_vec());
        let lines = [
            line(["token", "n", "rest"]),
            line(["法国", "10", ""]),
            line(["a", "7", "x"]),
        ];
        let mut out = Vec::new();
        let sides = [Side::Left, Side::Right, Side::Left];
        write(&sides, &lines, &mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("UTF-8");
        assert_eq!(text, "  token   n  rest\n  法国   10\n  a       7  x\n");
    }
}
