//! README.md as a test: its commands run, and print what it says they print.
//!
//! A `console` block is a session: lines that start with `$ ` are commands for bash, in a folder that only has `tests` in it;
//! what follows is all that a terminal shows of them, stdout and stderr. A command must succeed unless `$ echo $?` follows.
//! `<!-- paragraphs 1 2 4 -->` above a block means that of each output only these are shown, and `…` for what is left out.
//! In `sh` and `yaml` blocks, lines with `logprobs` are only parsed: they need the hub, or hours. `LOGPROBS_UPDATE_README=1 cargo test
//! readme` writes today's output, and the file map, into README.md.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use logprobs::cli::Request;
use logprobs::kernels::Isa;
use logprobs::prompts;

use crate::smollm;

/// Numbers may differ by this share, or by one in the second decimal: other processors add up in another order.
const TOLERANCE: f64 = 0.01;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).expect("README.md is there")
}

/// A fenced block: its language, the comment on the line above it, and its lines.
struct Block<'a> {
    language: &'a str,
    above: &'a str,
    lines: Vec<&'a str>,
    /// Index of its first line in the file.
    start: usize,
}

fn blocks(readme: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    let mut above = "";
    for (index, line) in readme.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(language), None) => {
                let is_known = ["console", "sh", "yaml"].contains(&language);
                assert!(is_known, "line {}: a block of kind `{language}`", index + 1);
                open = Some(Block {
                    language,
                    above,
                    lines: Vec::new(),
                    start: index + 1,
                });
            }
            (None, Some(mut block)) => {
                block.lines.push(line);
                open = Some(block);
            }
            (None, None) => above = line,
        }
    }
    blocks
}

/// A command and the output shown under it.
struct Exchange<'a> {
    command: &'a str,
    shown: Vec<&'a str>,
}

fn exchanges<'a>(block: &Block<'a>) -> Vec<Exchange<'a>> {
    let mut exchanges: Vec<Exchange> = Vec::new();
    for line in &block.lines {
        match (line.strip_prefix("$ "), exchanges.last_mut()) {
            (Some(command), _) => exchanges.push(Exchange {
                command,
                shown: Vec::new(),
            }),
            (None, Some(exchange)) => exchange.shown.push(line),
            (None, None) => panic!("output before any command: {line}"),
        }
    }
    exchanges
}

/// A folder to run commands in, as a user's would be after cloning and building.
struct Shell {
    folder: tempfile::TempDir,
    path: OsString,
}

impl Shell {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::os::unix::fs::symlink(root().join("tests"), folder.path().join("tests"))
            .expect("a link in a new folder");
        let binary = Path::new(env!("CARGO_BIN_EXE_logprobs"));
        let own = binary.parent().map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path)));
        Self {
            folder,
            path: path.expect("a list of folders"),
        }
    }

    fn run(&self, script: &str) -> Output {
        let mut command = Command::new("bash");
        command
            .args(["-c", script])
            .current_dir(self.folder.path())
            .env("PATH", &self.path)
            .env("HF_HOME", self.folder.path())
            .env("HF_HUB_OFFLINE", "1");
        for name in ["COLUMNS", "NO_COLOR", "CLICOLOR_FORCE", "SOURCE_DATE_EPOCH"] {
            command.env_remove(name);
        }
        // numbers in the README are those of vectors: tiles have last digits of their own
        let mut vectors = Isa::available().into_iter().filter(|isa| !isa.has_tiles());
        let vectors = vectors.next().expect("every processor has plain loops");
        command.env("LOGPROBS_ISA", vectors.name());
        if let Some(model) = smollm::model() {
            command.env("MODEL", model);
        }
        command.output().expect("bash runs")
    }

    fn knows(&self, program: &str) -> bool {
        let is_there = self.run(&format!("command -v {program}")).status.success();
        assert!(
            is_there || std::env::var_os("CI").is_none(),
            "{program} is needed"
        );
        is_there
    }

    /// Returns what a terminal shows of a command, and its exit code.
    fn session(&self, command: &str) -> (String, i32) {
        let command = command.replace("cargo run --release --locked --", "logprobs");
        let output = self.run(&format!(
            "set -o pipefail; exec 2>&1 < /dev/null; {command}"
        ));
        let text = String::from_utf8(output.stdout).expect("output is UTF-8");
        (text, output.status.code().expect("no signal ended it"))
    }
}

/// Returns the lines of a block as they should be today, or `None` where what it needs is not on this machine.
fn replay(block: &Block, shell: &Shell) -> Option<Vec<String>> {
    let wanted: Option<Vec<usize>> = block
        .above
        .strip_prefix("<!-- paragraphs ")
        .and_then(|rest| rest.strip_suffix(" -->"))
        .map(|list| list.split(' ').map(|n| n.parse().expect(list)).collect());
    let mut lines = Vec::new();
    let mut last_code = 0;
    for Exchange { command, shown } in exchanges(block) {
        let today = if command == "echo $?" {
            std::mem::take(&mut last_code).to_string()
        } else {
            assert_eq!(last_code, 0, "the command before `{command}` failed");
            if command.contains("$MODEL") && smollm::model().is_none()
                || command.contains("jq ") && !shell.knows("jq")
            {
                return None;
            }
            let (output, code) = shell.session(command);
            last_code = code;
            match &wanted {
                Some(wanted) if !output.is_empty() => shortened(&output, wanted),
                _ => output,
            }
        };
        lines.push(format!("$ {command}"));
        if agrees(&shown.join("\n"), today.trim_end()) {
            lines.extend(shown.iter().map(|&line| line.to_owned()));
        } else {
            lines.extend(today.trim_end().lines().map(str::to_owned));
        }
    }
    assert_eq!(last_code, 0, "the last command of {:?} failed", block.lines);
    Some(lines)
}

/// Keeps whole paragraphs, counted from 1; `…` stands for those in between and after.
fn shortened(output: &str, wanted: &[usize]) -> String {
    let paragraphs: Vec<&str> = output.trim_end().split("\n\n").collect();
    let mut parts = Vec::new();
    let mut next = 1;
    for &number in wanted {
        if number > next {
            parts.push("…");
        }
        let paragraph = paragraphs.get(number - 1);
        parts.push(paragraph.unwrap_or_else(|| panic!("no paragraph {number} in:\n{output}")));
        next = number + 1;
    }
    if next <= paragraphs.len() {
        parts.push("…");
    }
    parts.join("\n\n")
}

/// Whether two outputs say the same: letter by letter, but for the time in a file's name and the last digits of numbers.
fn agrees(shown: &str, today: &str) -> bool {
    let lines = |text: &str| text.trim_end().lines().count();
    lines(shown) == lines(today)
        && shown.lines().zip(today.lines()).all(|(shown, today)| {
            let (shown, today) = (pieces(shown), pieces(today));
            let is_same = |(a, b): (&String, &String)| {
                a == b
                    || match (a.parse::<f64>(), b.parse::<f64>()) {
                        (Ok(x), Ok(y)) => {
                            let is_decimal = a.contains('.') && b.contains('.');
                            let unit: f64 = if is_decimal { 0.0101 } else { 0.0 };
                            (x - y).abs() <= unit.max(TOLERANCE * x.abs())
                        }
                        _ => false,
                    }
            };
            shown.len() == today.len() && shown.iter().zip(&today).all(is_same)
        })
}

/// Splits a line into words, and words into numbers and what is between them; a file's time is left out.
fn pieces(line: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    for word in line.split_whitespace() {
        if word.starts_with("results/") {
            let is_time = |c: char| c.is_ascii_digit() || c == '_';
            pieces.push(word.replace(is_time, ""));
            continue;
        }
        let mut was_number = None;
        for c in word.chars() {
            let is_number = c.is_ascii_digit() || c == '.';
            match pieces.last_mut() {
                Some(piece) if was_number == Some(is_number) => String::push(piece, c),
                _ => pieces.push(c.to_string()),
            }
            was_number = Some(is_number);
        }
    }
    pieces
}

/// One line for each source file: its name and the first sentence of its documentation.
fn file_map() -> Vec<String> {
    fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => walk(&path, files),
                false => files.push(path),
            }
        }
    }
    let mut files = Vec::new();
    walk(&root().join("src"), &mut files);
    files.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.sort();
    files
        .iter()
        .map(|path| {
            let text = std::fs::read_to_string(path).expect("a source file");
            let docs: Vec<&str> = text
                .lines()
                .map_while(|line| line.strip_prefix("//!"))
                .take_while(|line| !line.is_empty())
                .map(str::trim)
                .collect();
            let docs = docs.join(" ").replace("[`", "`").replace("`]", "`");
            let sentence = docs.split(". ").next().unwrap_or_default();
            let name = path.strip_prefix(root()).expect("below the root").display();
            format!("| `{name}` | {} |", sentence.trim_end_matches('.'))
        })
        .collect()
}

/// Returns README.md with today's outputs and file map.
fn renewed(readme: &str) -> String {
    let shell = Shell::new();
    let mut lines: Vec<String> = readme.lines().map(str::to_owned).collect();
    let sessions: Vec<_> = blocks(readme)
        .into_iter()
        .filter(|block| block.language == "console")
        .map(|block| (block.start, block.lines.len(), replay(&block, &shell)))
        .collect();
    for (start, length, session) in sessions.into_iter().rev() {
        if let Some(session) = session {
            lines.splice(start..start + length, session);
        }
    }
    let is_entry = |line: &String| line.starts_with("| `src/") && line.contains(".rs` |");
    let first = lines.iter().position(is_entry).expect("a file map");
    let length = lines[first..]
        .iter()
        .take_while(|line| is_entry(line))
        .count();
    lines.splice(first..first + length, file_map());
    lines.join("\n") + "\n"
}

#[test]
fn its_sessions_and_its_file_map_are_those_of_today() {
    let readme = readme();
    let renewed = renewed(&readme);
    if std::env::var_os("LOGPROBS_UPDATE_README").is_some() {
        std::fs::write(root().join("README.md"), renewed).expect("README.md is ours");
        return;
    }
    let mut differences = String::new();
    for (number, (written, today)) in (1..).zip(readme.lines().zip(renewed.lines())) {
        if written != today {
            write!(
                differences,
                "\nline {number}\n  README {written}\n  today  {today}"
            )
            .expect("a string takes everything");
            break;
        }
    }
    assert!(
        renewed == readme,
        "README.md is out of date (LOGPROBS_UPDATE_README=1 cargo test readme renews it): {differences}"
    );
}

#[test]
fn its_other_command_lines_are_understood() {
    let readme = readme();
    let blocks = blocks(&readme);
    let lines = blocks
        .iter()
        .filter(|block| block.language != "console")
        .flat_map(|block| &block.lines)
        .map(|line| line.trim().trim_start_matches("- run: "))
        .filter(|line| {
            ["logprobs -", "logprobs temp", "logprobs check"]
                .iter()
                .any(|start| line.contains(start))
        });
    let mut number = 0;
    for line in lines {
        // bash splits the line; a function of the program's name shows what it was given
        let script = format!("logprobs() {{ printf '%s\\0' logprobs \"$@\" >&2; }}\n{line}");
        let output = Command::new("bash").args(["-c", &script]).output();
        let given = output.expect("bash runs").stderr;
        let given = String::from_utf8(given).expect("README is UTF-8");
        let arguments = given.trim_end_matches('\0').split('\0');
        let parsed = Request::parse(arguments.map(OsString::from));
        assert!(parsed.is_ok(), "{line}: {parsed:?}");
        number += 1;
    }
    assert!(number > 0, "the hub has its examples");
}

#[test]
fn it_gives_the_four_prompts_to_the_letter() {
    let readme = readme();
    for prompt in prompts::BUILT_IN.into_iter().chain([
        "What is the capital of France? Answer in one sentence.",
        "Recommend an independent coffee shop in Seattle with its name and street address, in one sentence.",
    ]) {
        assert!(readme.contains(prompt), "{prompt}");
    }
}

#[test]
fn numbers_of_another_processor_agree_and_other_words_do_not() {
    for (shown, today, expected) in [
        ("  1  The   0.55  22", "  1  The   0.54  22", true),
        ("【a|0.55】 b", "【a|0.57】 b", false),
        ("n90 629", "n90 631", true),
        ("n90 6", "n90 7", false),
        ("Paris 0.12", "London 0.12", false),
        ("a\nb", "a", false),
        (
            "results/logprobs_m_cpu_20260101_0900.json",
            "results/logprobs_m_cpu_20261130_1200.json",
            true,
        ),
    ] {
        assert_eq!(agrees(shown, today), expected, "{shown}");
    }
}
