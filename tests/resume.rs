//! Batches that survive: `--resume` completes an interrupted record to the byte, `--jsonl` hands out every prompt at once.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use crate::program::{Program, Ran, fixture};
use crate::schema;

const PROMPTS: [&str; 5] = ["a colour", "", "\u{1b}[31m 红 \"x\"", "a colour", "another"];

/// The arguments of short runs of a tiny checkpoint over a file of prompts.
fn arguments<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = [
        "--model",
        model,
        "--max-new-tokens",
        "3",
        "--samples",
        "2",
        "--temps",
        "1.5",
        "--top-p",
        "1",
    ];
    fixed.into_iter().chain(more.iter().copied()).collect()
}

/// Writes the first prompts as a file of objects.
fn write_prompts(program: &Program, name: &str, prompts: &[&str]) {
    let line = |prompt: &&str| serde_json::json!({ "prompt": prompt }).to_string() + "\n";
    program.write(name, prompts.iter().map(line).collect::<String>());
}

fn model() -> String {
    fixture("smollm").display().to_string()
}

fn bytes(program: &Program, name: &str) -> Vec<u8> {
    std::fs::read(program.path(name)).expect(name)
}

#[test]
fn a_resumed_batch_is_the_uninterrupted_one_to_the_byte() {
    let (program, model) = (Program::new(), model());
    write_prompts(&program, "all.jsonl", &PROMPTS);
    program
        .run(&arguments(
            &model,
            &["--prompts-file", "all.jsonl", "--out", "whole.json", "-q"],
        ))
        .success();
    for complete in [1, 3, 5] {
        write_prompts(&program, "some.jsonl", &PROMPTS[..complete]);
        let part = format!("part{complete}.json");
        let out = ["--prompts-file", "some.jsonl", "--out", &part, "-q"];
        program.run(&arguments(&model, &out)).success();
        let resumed = ["--prompts-file", "all.jsonl", "--resume", &part];
        let ran = program.run(&arguments(&model, &resumed)).success();
        assert!(
            ran.stderr
                .contains(&format!("{complete} of 5 prompts are kept from {part}")),
            "{}",
            ran.stderr
        );
        assert!(
            bytes(&program, &part) == bytes(&program, "whole.json"),
            "{complete}"
        );
        // what was shown the first time is not shown again
        assert!(!ran.stdout.contains("Prompt 1:"));
        assert_eq!(ran.stdout.contains("Prompt 5:"), complete < 5);
    }
    assert!(program.files(".").iter().all(|name| !name.contains("_2")));
}

#[cfg(unix)]
#[test]
fn a_batch_that_a_signal_ended_is_completed() {
    let (program, model) = (Program::new(), model());
    let prompts: Vec<String> = (0..600).map(|number| format!("Number {number}")).collect();
    let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
    write_prompts(&program, "all.jsonl", &prompts);
    let batch = ["--prompts-file", "all.jsonl", "--batch", "3"];
    let with = |more: &[&'static str]| {
        arguments(&model, &[&batch[..], more].concat())
            .iter()
            .map(|text| text.to_string())
            .collect::<Vec<_>>()
    };
    program.run(&with(&["--out", "whole.json", "-q"])).success();
    let mut child = program.command(&with(&["--out", "r.json"]));
    let mut child = child
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    while !line.starts_with("Prompt 3") {
        line.clear();
        assert!(
            stdout.read_line(&mut line).expect("text") > 0,
            "it ended by itself"
        );
    }
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(sent.expect("kill runs").success());
    stdout.read_to_string(&mut line).expect("text");
    Ran::wait(child).refused(130, &["interrupted: ", " of 600 prompts are complete"]);
    assert!(bytes(&program, "r.json") != bytes(&program, "whole.json"));
    program.run(&with(&["--resume", "r.json"])).success();
    assert!(bytes(&program, "r.json") == bytes(&program, "whole.json"));
}

#[test]
fn every_line_is_the_record_of_one_prompt() {
    let (program, model) = (Program::new(), model());
    write_prompts(&program, "all.jsonl", &PROMPTS);
    let whole = program
        .run(&arguments(
            &model,
            &["--prompts-file", "all.jsonl", "--json"],
        ))
        .success()
        .record();
    let lines = program
        .run(&arguments(
            &model,
            &["--prompts-file", "all.jsonl", "--jsonl"],
        ))
        .success();
    assert_eq!(program.files("."), ["all.jsonl"]);
    assert!(lines.stdout.ends_with("}\n") && !lines.stdout.contains('\u{1b}'));
    let records: Vec<schema::Record> = lines
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("a record"))
        .collect();
    assert_eq!(records.len(), PROMPTS.len());
    for (index, record) in records.iter().enumerate() {
        assert_eq!((record.schema, record.prompts.len()), (1, 1));
        assert_eq!(
            serde_json::to_string(&record.done(0).greedy.text).ok(),
            serde_json::to_string(&whole.done(index).greedy.text).ok()
        );
    }
}

#[test]
fn lines_that_were_cut_off_are_completed() {
    let (program, model) = (Program::new(), model());
    write_prompts(&program, "all.jsonl", &PROMPTS);
    let run = |more: &[&str]| {
        program.run(&arguments(
            &model,
            &[&["--prompts-file", "all.jsonl"], more].concat(),
        ))
    };
    let (lines, whole) = (
        run(&["--jsonl"]).success().stdout,
        run(&["--json"]).success().stdout,
    );
    let second = lines.match_indices('\n').nth(1).expect("five lines").0;
    for (cut, kept, warning) in [
        (second + 1, 2, None),
        (second + 100, 2, Some("line 3 is cut off and is not kept")),
        (lines.len() - 1, 5, None),
    ] {
        program.write("cut.jsonl", &lines[..cut]);
        let ran = run(&["--resume", "cut.jsonl", "--jsonl"]).success();
        assert!(ran.stdout == lines, "{cut}");
        assert!(
            ran.stderr
                .contains(&format!("{kept} of 5 prompts are kept")),
            "{}",
            ran.stderr
        );
        assert_eq!(ran.stderr.contains("cut off"), warning.is_some());
        assert!(
            warning.is_none_or(|warning| ran.stderr.contains(warning)),
            "{}",
            ran.stderr
        );
        assert!(
            run(&["--resume", "cut.jsonl", "--json"]).success().stdout == whole,
            "{cut}"
        );
        assert_eq!(bytes(&program, "cut.jsonl"), &lines.as_bytes()[..cut]);
    }
}

#[test]
fn a_record_of_another_command_is_refused_and_stays_as_it_is() {
    let (program, model) = (Program::new(), model());
    let out = ["-p", "a", "-p", "b", "--out", "r.json", "-q"];
    program.run(&arguments(&model, &out)).success();
    let before = bytes(&program, "r.json");
    for (more, expected) in [
        (
            &["-p", "a", "-p", "b", "--seed", "1"][..],
            "settings.seed is 0 in it, here 1",
        ),
        (
            &["-p", "a", "-p", "b", "--system", "s"],
            "settings.system is null in it, here \"s\"",
        ),
        (
            &["-p", "a", "-p", "b", "--max-new-tokens", "4"],
            "settings.max_new_tokens is 3",
        ),
        (
            &["-p", "a", "-p", "b", "--temps", "0.5"],
            "`temperature 1.5; temperature 0.5`",
        ),
        (&["-p", "a"], "its prompt 2 is none of these"),
        (&["-p", "b", "-p", "c"], "its prompt 1 is none of these"),
    ] {
        let with_model = [
            "--model",
            &model,
            "--samples",
            "2",
            "--top-p",
            "1",
            "--resume",
            "r.json",
        ];
        let mut line: Vec<&str> = with_model.into_iter().chain(["--temps", "1.5"]).collect();
        line.extend(more);
        if !more.contains(&"--max-new-tokens") {
            line.extend(["--max-new-tokens", "3"]);
        }
        program.run(&line).refused(1, &["r.json: ", expected]);
        assert_eq!(bytes(&program, "r.json"), before);
    }
    let other = fixture("llama").display().to_string();
    let line = ["-p", "a", "-p", "b", "--resume", "r.json"];
    program
        .run(&arguments(&other, &line))
        .refused(1, &["r.json: model.id is \"smollm\" in it, here \"llama\""]);
    program.write("old.json", r#"{"schema": 7, "prompts": []}"#);
    program
        .run(&arguments(&model, &["-p", "a", "--resume", "old.json"]))
        .refused(1, &["old.json: has schema 7, a newer one"]);
    program
        .run(&arguments(&model, &["-p", "a", "--resume", "missing.json"]))
        .refused(1, &["missing.json: cannot be read"]);
}

/// What stood in a prompt's way may be gone.
#[test]
fn a_prompt_that_failed_is_run_again_and_keeps_its_place() {
    let (program, model) = (Program::new(), model());
    let long = "word ".repeat(1000);
    write_prompts(&program, "all.jsonl", &["a", &long, "b"]);
    let run = |more: &[&str]| {
        program.run(&arguments(
            &model,
            &[&["--prompts-file", "all.jsonl"], more].concat(),
        ))
    };
    run(&["--out", "whole.json", "-q"]).refused(1, &["prompt 2 could not be run"]);
    let before = bytes(&program, "whole.json");
    let ran = run(&["--resume", "whole.json"]);
    ran.refused(1, &["2 of 3 prompts are kept", "prompt 2 could not be run"]);
    assert!(bytes(&program, "whole.json") == before);
}

#[cfg(unix)]
#[test]
fn whoever_stops_reading_lines_ends_the_job() {
    let (program, model) = (Program::new(), model());
    program.write("prompts.txt", "Name a colour.\n".repeat(2000));
    let line = ["--prompts-file", "prompts.txt", "--jsonl", "--batch", "3"];
    let mut child = program.command(&arguments(&model, &line));
    let mut child = child
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut first = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    stdout.read_line(&mut first).expect("text");
    drop(stdout);
    let ran = Ran::wait(child).success();
    assert_eq!(ran.stderr, "");
    serde_json::from_str::<schema::Record>(&first).expect("a record");
}
