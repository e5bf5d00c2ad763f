//! Group 9: JSON output. The schema itself is in `schema`, which every test here and in `command` reads through.

use crate::crafted::Crafted;
use crate::program::{Program, Ran, fixture};

/// B110: text that is not ASCII was escaped beyond reading, or written in the local code page.
#[test]
fn text_is_utf8_as_it_is_whatever_the_locale() {
    let program = Program::new();
    let prompt = "你好 🤗 Привет é \u{2028}";
    let mut command = program.command(&[
        "--json",
        "-p",
        prompt,
        "--samples",
        "0",
        "--max-new-tokens",
        "1",
        "--model",
    ]);
    let ran = Ran::of(
        command
            .arg(fixture("smollm"))
            .env("LANG", "C")
            .env("LC_ALL", "C"),
    )
    .success();
    assert!(
        ran.stdout.contains(&format!("\"prompt\": \"{prompt}\"")),
        "{}",
        ran.stdout
    );
    assert_eq!(ran.record().done(0).prompt, prompt);
}

/// B111: one bad line of a batch killed the run.
#[test]
fn every_kind_of_bad_line_is_one_entry() {
    let program = Program::new();
    program.write(
        "p.jsonl",
        "\u{feff}{\"prompt\": \"a\"}\r\n\r\n{\"prompt\": \"\\ud835\"}\r\n{\"prompt\": \"b\", \"extra\": 1}\n{\"prompt\": 1}\n[]\n{\"prompt\": \"c\"",
    );
    let ran = program.json(
        &fixture("smollm"),
        &[
            "--prompts-file",
            "p.jsonl",
            "--samples",
            "0",
            "--max-new-tokens",
            "1",
        ],
    );
    let record = ran.record();
    assert_eq!(record.prompts.len(), 6);
    assert_eq!(record.done(0).prompt, "a");
    for (index, line) in [
        (1, "line 3, column "),
        (2, "line 4, column "),
        (3, "line 5, column "),
        (4, "line 6, column "),
        (5, "line 7, column "),
    ] {
        assert!(
            record.error(index).starts_with(line),
            "{}",
            record.error(index)
        );
    }
    ran.refused(1, &["5 of 6 prompts could not be run"]);
}

/// B112: a key vanished when its list was empty.
#[test]
fn empty_lists_are_there() {
    let program = Program::new();
    let ran = program
        .json(
            &fixture("smollm"),
            &[
                "-p",
                "hi",
                "--samples",
                "0",
                "--max-new-tokens",
                "1",
                "--threshold",
                "0",
            ],
        )
        .success();
    assert!(
        ran.stdout.contains("\"sweeps\": []") && ran.stdout.contains("\"schema\": 1"),
        "{}",
        ran.stdout
    );
    assert!(ran.stdout.contains("\"program\": \"logprobs "));
    let crafted = Crafted::new().probs(b'A', &[(b'B', 1.0)]);
    let ran = program
        .json(
            crafted.write().path(),
            &[
                "--raw",
                "-p",
                "A",
                "--samples",
                "0",
                "--max-new-tokens",
                "1",
            ],
        )
        .success();
    assert!(ran.stdout.contains("\"stop_ids\": []"), "{}", ran.stdout);
}

/// B114: numbers did not survive writing and reading.
#[test]
fn a_number_is_the_shortest_that_reads_back_the_same() {
    let program = Program::new();
    let more = [
        "-p",
        "hi",
        "--samples",
        "1",
        "--temps",
        "0.1,1e-45",
        "--candidates",
        "320",
        "--max-new-tokens",
        "4",
    ];
    let ran = program.json(&fixture("smollm"), &more).success();
    let record: logprobs::record::Record = serde_json::from_str(&ran.stdout).expect("a record");
    let mut written = Vec::new();
    logprobs::report::json::write(&record, &mut written).expect("a vector takes everything");
    assert!(written == ran.stdout.as_bytes());
    assert!(
        ran.stdout.contains("\"temperature\": 0.1,")
            && ran.stdout.contains("\"temperature\": 1e-45,")
    );
    let digits = |number: &str| number.bytes().filter(u8::is_ascii_digit).count();
    let longest = ran
        .stdout
        .split("\"prob\": ")
        .skip(1)
        .map(|rest| digits(rest.split([',', '}']).next().unwrap_or("")))
        .max();
    assert!(
        longest.expect("probabilities") <= 14,
        "an f32 needs nine digits, an exponent and leading zeros"
    );
}
