//! Tables as they are printed: Markdown, with columns aligned, so that they can be pasted.

use unicode_width::UnicodeWidthStr;

/// A table with a title.
pub(crate) struct Table {
    title: String,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    /// Starts a table with its title and the names of its columns.
    pub(crate) fn new(title: &str, columns: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            rows: vec![columns.iter().map(ToString::to_string).collect()],
            notes: Vec::new(),
        }
    }

    /// Adds a row.
    pub(crate) fn row<const N: usize>(&mut self, cells: [&str; N]) {
        self.rows.push(cells.map(str::to_owned).to_vec());
    }

    /// Adds a sentence below.
    pub(crate) fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    /// Prints it.
    #[allow(clippy::print_stdout, reason = "a program of its own")]
    pub(crate) fn print(&self) {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].width());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        println!("\n### {}\n", self.title);
        for (index, row) in self.rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).map(|(cell, width)| {
                let padding = " ".repeat(width - cell.width());
                format!("{cell}{padding}")
            });
            println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
            if index == 0 {
                let rules = widths.iter().map(|&width| "-".repeat(width));
                println!("| {} |", rules.collect::<Vec<_>>().join(" | "));
            }
        }
        if !self.notes.is_empty() {
            println!("\n{}", self.notes.join("\n"));
        }
    }
}

/// Says on stderr what is being measured: some of it takes a minute.
#[allow(clippy::print_stderr, reason = "a program of its own")]
pub(crate) fn say(what: &str) {
    eprintln!("{what} …");
}

/// A time in seconds.
pub(crate) fn seconds(value: f64) -> String {
    format!("{value:.*} s", if value < 10.0 { 2 } else { 1 })
}

/// A time in milliseconds.
pub(crate) fn milliseconds(value: f64) -> String {
    format!("{:.*} ms", if value < 0.01 { 2 } else { 0 }, value * 1e3)
}

/// A ratio.
pub(crate) fn times(ratio: f64) -> String {
    format!("{ratio:.*} ×", if ratio < 10.0 { 2 } else { 1 })
}

/// An amount of memory.
pub(crate) fn bytes(count: u64) -> String {
    format!("{:.2} GB", count as f64 * 1e-9)
}

/// How long something took that was done several times, in seconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// The middle one; every ratio is of it.
    pub(crate) median: f64,
    /// The shortest: far below the middle where something else ran beside.
    pub(crate) fastest: f64,
}

impl Times {
    /// Sums up some times, at least one.
    pub(crate) fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self {
            median: times[times.len() / 2],
            fastest: times[0],
        }
    }
}
