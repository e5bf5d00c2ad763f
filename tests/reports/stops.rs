//! Group 5: stop handling and lengths.

use serde_json::{Value, json};

use crate::crafted::{Crafted, id};
use crate::program::{Program, fixture};

/// B62: the end id was absent from config.json and the reply never stopped.
#[test]
fn a_stop_id_is_found_in_any_file_and_its_absence_is_a_warning() {
    let program = Program::new();
    let reply = || {
        Crafted::new()
            .probs(b'A', &[(b'X', 1.0)])
            .probs(b'X', &[(b'X', 1.0)])
    };
    let more = [
        "--raw",
        "-p",
        "A",
        "--samples",
        "0",
        "--max-new-tokens",
        "4",
    ];
    for crafted in [
        reply().config("eos_token_id", json!(id(b'X'))),
        reply().config("eos_token_id", json!([id(b'X'), id(b'Y')])),
        reply().config("eos_token_id", Value::Null).file(
            "generation_config.json",
            json!({"eos_token_id": [id(b'X')]}),
        ),
        reply().file("generation_config.json", json!({"eos_token_id": id(b'X')})),
        reply().file("tokenizer_config.json", json!({"eos_token": "X"})),
    ] {
        let record = program.record(crafted.write().path(), &more);
        let run = &record.done(0).greedy;
        assert_eq!(
            (
                run.finish_reason.as_str(),
                run.steps.len(),
                run.text.as_str()
            ),
            ("stop", 1, "")
        );
    }
    let ran = program.json(reply().write().path(), &more).success();
    assert!(
        ran.stderr
            .contains("warning: no file of the model names a token that ends a reply"),
        "{}",
        ran.stderr
    );
    let record = ran.record();
    assert_eq!(
        (
            record.done(0).greedy.finish_reason.as_str(),
            record.settings.stop_ids.len()
        ),
        ("length", 0)
    );
}

/// B64: the stop token was trimmed from one list and not from another.
#[test]
fn the_text_is_that_of_all_steps_but_the_stop() {
    let program = Program::new();
    let record = program.record(
        &fixture("qwen3"),
        &["-p", "hello", "-p", "x", "--max-new-tokens", "40"],
    );
    let mut stopped = 0;
    for run in record.runs() {
        let is_stopped = run.finish_reason == "stop";
        stopped += usize::from(is_stopped);
        let stops: Vec<bool> = run
            .steps
            .iter()
            .map(|step| record.settings.stop_ids.contains(&step.token_id))
            .collect();
        assert_eq!(
            stops.iter().filter(|&&stop| stop).count(),
            usize::from(is_stopped)
        );
        assert_eq!(
            stops.last() == Some(&true),
            is_stopped,
            "the stop is the last step"
        );
        let bytes: Vec<u8> = run
            .steps
            .iter()
            .filter(|step| !step.special)
            .flat_map(|step| step.bytes.clone())
            .collect();
        let text = [run.text.as_bytes(), &run.incomplete_bytes].concat();
        if let Ok(bytes) = std::str::from_utf8(&bytes) {
            assert_eq!(bytes.as_bytes(), text);
        }
    }
    assert!(stopped > 0);
}

/// B65: a limit of 0 or less meant no limit.
#[test]
fn a_limit_of_nothing_is_refused_and_a_limit_of_one_is_one() {
    let program = Program::new();
    for limit in ["0", "-1", "99999999999999999999", "1e3"] {
        program
            .run(&["-p", "x", "--max-new-tokens", limit])
            .refused(2, &["--max-new-tokens"]);
    }
    let record = program.record(&fixture("smollm"), &["-p", "x", "--max-new-tokens", "1"]);
    assert!(record.runs().all(|run| run.steps.len() == 1));
    let record = program.record(
        &fixture("llama"),
        &[
            "-p",
            "x",
            "--max-new-tokens",
            "999999999999",
            "--samples",
            "0",
        ],
    );
    assert!(["stop", "context"].contains(&record.done(0).greedy.finish_reason.as_str()));
}

/// B66: an empty prompt was a division by zero.
#[test]
fn an_empty_prompt_needs_a_template_and_stops_no_batch() {
    let program = Program::new();
    let more = [
        "-p",
        "",
        "-p",
        " ",
        "-p",
        "a",
        "--samples",
        "1",
        "--max-new-tokens",
        "2",
    ];
    let chat = program.record(&fixture("qwen2"), &more);
    assert_eq!(
        [0, 1, 2].map(|index| chat.done(index).prompt.as_str()),
        ["", " ", "a"]
    );
    let raw = program.json(&fixture("qwen2"), &[&more[..], &["--raw"]].concat());
    let record = raw.record();
    assert!(record.error(0).contains("the prompt has no tokens"));
    assert_eq!(
        (
            record.done(1).prompt_token_ids.len(),
            record.done(2).prompt_token_ids.len()
        ),
        (1, 1)
    );
    raw.refused(
        1,
        &[
            "prompt 1 could not be run",
            "1 of 3 prompts could not be run",
        ],
    );
}

/// B67: a prompt longer than the context was cut at the front.
#[test]
fn a_prompt_is_never_cut_and_a_reply_ends_where_the_context_does() {
    let program = Program::new();
    let run = |tokens: usize| {
        let prompt = "a".repeat(tokens);
        program.json(
            &fixture("llama"),
            &[
                "--raw",
                "-p",
                &prompt,
                "--samples",
                "1",
                "--max-new-tokens",
                "50",
            ],
        )
    };
    run(256).refused(
        1,
        &["the prompt has 256 tokens, the model takes 256 with the reply"],
    );
    run(300).refused(1, &["the prompt has 300 tokens, the model takes 256"]);
    let record = run(246).success().record();
    assert_eq!(record.done(0).prompt_token_ids.len(), 246);
    for run in record.runs() {
        assert!(run.steps.len() <= 10);
        assert_eq!(
            run.finish_reason,
            if run.steps.len() == 10 {
                "context"
            } else {
                "stop"
            }
        );
    }
}
