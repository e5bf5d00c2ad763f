//! `check`: a recorded run made again and held against what it was, through the program.

use std::path::Path;

use serde_json::{Value, json};

use crate::compare::Comparison;
use crate::program::{Program, Ran, fixture, send_when_handled};

/// Writes a golden record of a model.
fn golden(program: &Program, model: &Path, arguments: &[&str]) -> Ran {
    let mut command = program.command(&["--quiet", "--out", "golden.json", "--model"]);
    Ran::of(command.arg(model).args(arguments))
}

fn check(program: &Program, model: &Path, more: &[&str]) -> Ran {
    let mut command = program.command(&["check", "golden.json", "--model"]);
    Ran::of(command.arg(model).args(more))
}

/// Changes the golden record as JSON.
fn change(program: &Program, change: impl FnOnce(&mut Value)) {
    let text = std::fs::read_to_string(program.path("golden.json")).expect("a record");
    let mut record: Value = serde_json::from_str(&text).expect("JSON");
    change(&mut record);
    program.write("golden.json", record.to_string());
}

fn compared(ran: &Ran) -> Comparison {
    serde_json::from_str(&ran.stdout).expect("the schema")
}

/// Every flag that decides a record is in it: what is made again is the same to the byte.
#[test]
fn a_record_made_again_is_the_same_file() {
    let lines: [&[&str]; 6] = [
        &["-p", "hello", "-p", "你好", "--samples", "2"],
        &[
            "-p",
            "hello",
            "--system",
            "",
            "--seed",
            "18446744073709551615",
            "--run",
            "1",
            "--samples",
            "3",
            "--temps",
            "0,1.5",
            "--top-p",
            "1",
        ],
        &[
            "-p",
            "<|im_start|>a",
            "--raw",
            "--samples",
            "0",
            "--candidates",
            "999",
            "--mass",
            "0.5",
            "--threshold",
            "1",
        ],
        &[
            "-p",
            "<|im_start|>a",
            "--raw",
            "--plain-text",
            "--ignore-eos",
            "--setting",
            "temperature=1.5,top_k=40,top_p=0.95,min_p=0.05",
        ],
        &[
            "-p",
            "hello",
            "--thinking",
            "--samples",
            "1",
            "--setting",
            "top_k=1000",
        ],
        &[
            "--prompts-file",
            "p.jsonl",
            "--samples",
            "1",
            "--temps",
            "1",
        ],
    ];
    for line in lines {
        let program = Program::new();
        program.write(
            "p.jsonl",
            "{\"prompt\": \"one\", \"id\": \"1\", \"system\": \"s\"}\n{\"promt\": 1}\n{\"prompt\": \"one\"}\n",
        );
        let model = fixture("qwen35");
        let limited = [line, &["--max-new-tokens", "5"]].concat();
        let made = golden(&program, &model, &limited);
        assert!(
            matches!(made.code, Some(0 | 1)),
            "{line:?}: {}",
            made.stderr
        );
        let before = std::fs::read(program.path("golden.json")).expect("a record");
        let again = check(
            &program,
            &model,
            &["--update", "--strict", "--tolerance", "0"],
        )
        .success();
        assert!(
            again.stdout.contains("\nwithin tolerance: "),
            "{line:?}: {}",
            again.stdout
        );
        assert!(
            again.stderr.ends_with("golden.json is as it was\n"),
            "{line:?}: {}",
            again.stderr
        );
        let after = std::fs::read(program.path("golden.json")).expect("a record");
        assert!(before == after, "{line:?}");
    }
}

#[test]
fn what_is_not_as_recorded_is_beyond_tolerance_and_update_takes_it_over() {
    let program = Program::new();
    let model = fixture("smollm");
    golden(
        &program,
        &model,
        &["-p", "hello", "--samples", "1", "--max-new-tokens", "4"],
    )
    .success();
    let before = std::fs::read(program.path("golden.json")).expect("a record");
    change(&program, |record| {
        record["prompts"][0]["greedy"]["steps"][2]["logprob"] = json!(-9.5);
    });
    let ran = check(&program, &model, &["--json"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    let comparison = compared(&ran);
    assert_eq!(
        (comparison.a.name.as_str(), comparison.b.name.as_str()),
        ("golden.json", "this run")
    );
    assert_eq!(comparison.findings.len(), 1);
    assert_eq!(comparison.findings[0]["kind"], "difference");
    assert_eq!(comparison.findings[0]["step"], 3);
    let quiet = check(&program, &model, &["--quiet"]);
    assert_eq!(
        (quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()),
        (Some(3), "", "")
    );

    let updated = check(&program, &model, &["--update"]).success();
    assert!(
        updated.stdout.contains("\nbeyond tolerance: "),
        "{}",
        updated.stdout
    );
    assert_eq!(updated.stderr, "written to golden.json\n");
    assert!(std::fs::read(program.path("golden.json")).expect("a record") == before);
    assert_eq!(program.files("."), ["golden.json"]);
}

#[test]
fn a_near_tie_passes_and_fails_under_strict() {
    let program = Program::new();
    golden(
        &program,
        &fixture("smollm"),
        &["--raw", "-p", "The capital of France is", "--samples", "0"],
    )
    .success();
    let quantised = fixture("gguf/smollm-q8_0.gguf");
    let ran = check(&program, &quantised, &["--tolerance", "1"]).success();
    assert!(ran.stdout.contains("\n  a near tie: "), "{}", ran.stdout);
    let strict = check(&program, &quantised, &["--tolerance", "1", "--strict"]);
    assert_eq!(strict.code, Some(3));
    assert!(
        strict.stdout.contains(": another token, at a near tie"),
        "{}",
        strict.stdout
    );
    assert_eq!(check(&program, &quantised, &[]).code, Some(3));
}

#[cfg(feature = "demo")]
#[test]
fn gates_hold_the_reply_itself() {
    let program = Program::new();
    let prompts = [
        "-p",
        "What is the capital of France? Answer in one sentence.",
        "-p",
        "Recommend an independent coffee shop in Seattle with its name and street address, in one sentence.",
        "--samples",
        "0",
    ];
    golden(&program, Path::new("demo"), &prompts).success();
    // the built-in model is found by its name
    let check = |more: &[&str]| program.run(&[&["check", "golden.json"], more].concat());
    check(&[]).success();
    let ran = check(&["--fail-below", "0.5", "--max-low", "0", "--update"]);
    ran.refused(3, &["golden.json is not written: a gate stops this run"]);
    let ran = check(&["--fail-below", "0.5", "--max-low", "0", "--json"]);
    assert_eq!(ran.code, Some(3));
    let findings = compared(&ran).findings;
    let (last, below) = findings.split_last().expect("the second prompt");
    let record = program.read("golden.json");
    let low: Vec<usize> = (1..)
        .zip(&record.done(1).greedy.steps)
        .filter(|(_, step)| step.prob < 0.5)
        .map(|(number, _)| number)
        .collect();
    let found: Vec<usize> = below
        .iter()
        .map(|finding| finding["step"].as_u64().expect("a step") as usize)
        .collect();
    assert_eq!(found, low);
    assert!(
        below
            .iter()
            .all(|finding| finding["prompt"] == 2 && finding["kind"] == "below_gate")
    );
    let low = record
        .done(1)
        .greedy
        .steps
        .iter()
        .filter(|step| step.prob < 0.3);
    assert_eq!(
        *last,
        json!({"prompt": 2, "kind": "too_many_low", "count": low.count(), "limit": 0})
    );
    let text = check(&["--fail-below", "0.5"]).stdout;
    let number = found[0];
    assert!(
        text.contains("\nwithin tolerance, but stopped by a gate: "),
        "{text}"
    );
    assert!(
        text.contains(&format!("\n  prompt 2: step {number}: `")) && text.contains(", below 0.5\n"),
        "{text}"
    );
}

#[test]
fn a_record_of_a_folder_asks_for_the_model_and_wrong_values_are_refused() {
    let program = Program::new();
    let made = ["-p", "hello", "--samples", "0", "--max-new-tokens", "1"];
    golden(&program, &fixture("smollm"), &made).success();
    for (line, code, parts) in [
        (
            &["check", "golden.json"][..],
            2,
            &[
                "golden.json: its model `smollm` was a folder, a file or on a server",
                "--model",
            ][..],
        ),
        (&["check"], 2, &["GOLDEN.json"]),
        (&["check", "none.json"], 1, &["none.json: cannot be read"]),
        (
            &["check", "golden.json", "--fail-below", "2"],
            2,
            &["--fail-below 2 is out of range (expected 0 to 1)"],
        ),
        (
            &["check", "golden.json", "--max-low", "-1"],
            2,
            &["--max-low"],
        ),
        (
            &["check", "golden.json", "--tolerance", "-1"],
            2,
            &["--tolerance -1 is out of range"],
        ),
        (&["check", "-", "--update"], 2, &["--update needs a file"]),
        (
            &["check", "golden.json", "--model", "./gone"],
            1,
            &["no such directory: `./gone`"],
        ),
    ] {
        program.run(line).refused(code, parts);
    }
    change(&program, |record| record["settings"]["mass"] = json!(0.0));
    check(&program, &fixture("smollm"), &[]).refused(1, &["golden.json: settings: mass 0 "]);
}

/// A model that cannot run today what it once did does not take the place of the record that it could.
#[test]
fn a_prompt_that_fails_today_leaves_the_golden_record_as_it_is() {
    let program = Program::new();
    let made = [
        "-p",
        "hello there",
        "--samples",
        "0",
        "--max-new-tokens",
        "1",
    ];
    golden(&program, &fixture("smollm"), &made).success();
    let before = std::fs::read(program.path("golden.json")).expect("a record");
    let short = program.copy("smollm", "smollm");
    let config = std::fs::read_to_string(short.join("config.json")).expect("a config");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["max_position_embeddings"] = json!(4);
    program.write("smollm/config.json", config.to_string());
    check(&program, &short, &["--update"]).refused(
        3,
        &["golden.json is not written: a prompt could not be run that it holds"],
    );
    assert_eq!(
        std::fs::read(program.path("golden.json")).expect("a record"),
        before
    );
}

/// A model on the hub is found by its id, at the commit that was recorded, whatever the branch has by now.
#[test]
fn a_record_of_a_model_on_the_hub_is_made_again_at_its_commit() {
    const COMMIT: &str = "1111111111111111111111111111111111111111";
    let program = Program::new();
    let repo = "hf/hub/models--org--tiny";
    std::fs::create_dir_all(program.path(format!("{repo}/snapshots"))).expect("a folder");
    std::fs::create_dir_all(program.path(format!("{repo}/refs"))).expect("a folder");
    program.copy("smollm", &format!("{repo}/snapshots/{COMMIT}"));
    program.write(&format!("{repo}/refs/main"), COMMIT);
    let made = ["-p", "hello", "--samples", "0", "--max-new-tokens", "2"];
    golden(&program, Path::new("org/tiny"), &made).success();
    assert_eq!(
        program.read("golden.json").model.revision.as_deref(),
        Some(COMMIT)
    );
    program.write(&format!("{repo}/refs/main"), "2".repeat(40));
    program.run(&["check", "golden.json", "--strict"]).success();
    program
        .run(&["check", "golden.json", "--model", "org/tiny"])
        .refused(1, &["org/tiny"]);
}

/// A template that asks for the date is told that of the record.
#[test]
fn the_date_of_the_record_is_told_again() {
    let program = Program::new();
    let model = program.copy("smollm", "dated");
    let template = "{{ strftime_now('%d %b %Y') }}: {{ messages[0]['content'] }}";
    std::fs::write(model.join("chat_template.jinja"), template).expect("a template");
    let fixed = [
        "--samples",
        "0",
        "--max-new-tokens",
        "1",
        "-p",
        "hello",
        "--out",
        "golden.json",
        "--model",
        "dated",
    ];
    Ran::of(
        program
            .command(&fixed)
            .env("SOURCE_DATE_EPOCH", "1709210096"),
    )
    .success();
    assert_eq!(
        program.read("golden.json").done(0).rendered,
        "29 Feb 2024: hello"
    );
    let ran = program
        .run(&["check", "golden.json", "--model", "dated", "--update"])
        .success();
    assert!(
        ran.stderr.ends_with("golden.json is as it was\n"),
        "{}",
        ran.stderr
    );
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_check_compares_and_writes_nothing() {
    use std::process::Stdio;

    let program = Program::new();
    golden(
        &program,
        &fixture("smollm"),
        &["-p", "hello", "--samples", "1"],
    )
    .success();
    change(&program, |record| {
        record["settings"]["samples"] = json!(100_000)
    });
    let before = std::fs::read(program.path("golden.json")).expect("a record");
    let mut command = program.command(&["check", "golden.json", "--update", "--model"]);
    command
        .arg(fixture("smollm"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    send_when_handled(&mut child, "-INT", 2);
    let ran = Ran::wait(child);
    assert_eq!(ran.stdout, "");
    ran.refused(130, &["interrupted: nothing is compared"]);
    assert!(std::fs::read(program.path("golden.json")).expect("a record") == before);
}
