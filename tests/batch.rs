//! How runs are computed together, and what the program says of it.

use std::path::Path;

use crate::program::{Program, fixture};

/// The arguments of a short main command on a tiny checkpoint.
fn tiny(more: &[&str]) -> Vec<String> {
    let model = fixture("smollm").to_string_lossy().into_owned();
    let fixed = ["--max-new-tokens", "4", "--samples", "2", "--model", &model];
    fixed
        .iter()
        .chain(more)
        .map(|&text| text.to_owned())
        .collect()
}

#[test]
fn ignoring_the_end_tokens_lets_every_run_go_to_the_limit() {
    let program = Program::new();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo");
    let more = [
        "-p",
        "What is the capital of France?",
        "--max-new-tokens",
        "20",
    ];
    let usual = program.record(&demo, &more);
    assert!(usual.runs().any(|run| run.finish_reason == "stop"));
    assert!(!usual.settings.ignore_eos && !usual.settings.stop_ids.is_empty());
    let on = program.record(&demo, &[&more[..], &["--ignore-eos"]].concat());
    assert!(on.settings.ignore_eos && on.settings.stop_ids.is_empty());
    for (run, usual) in on.runs().zip(usual.runs()) {
        assert_eq!(
            (run.finish_reason.as_str(), run.steps.len()),
            ("length", 20)
        );
        assert_eq!(run.ids()[..usual.steps.len()], usual.ids());
    }
}

#[test]
fn verbose_says_what_computes_and_how_many_rows_at_once() {
    let program = Program::new();
    let ran = program
        .run(&tiny(&["-p", "hello", "--threads", "1", "-v"]))
        .success();
    assert!(ran.stderr.contains("cpu: ") && ran.stderr.contains(" kernels, 1 thread\n"));
    assert!(
        ran.stderr.contains("batch: up to 26 rows of "),
        "{}",
        ran.stderr
    );
    let ran = program.run(&tiny(&["-p", "hello"])).success();
    assert!(!ran.stderr.contains("batch"), "{}", ran.stderr);
    program
        .run(&tiny(&["-p", "hello", "--batch", "0"]))
        .refused(2, &["--batch <N>"]);
    program
        .run(&tiny(&["-p", "hello", "-v", "-q"]))
        .refused(2, &["cannot be used with"]);
}
