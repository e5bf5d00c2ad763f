//! A server that cannot do the job, or answers what cannot be right, is refused in one sentence that says what to do.

use super::stand_in::{Fault, Kind, StandIn, folder};
use super::{GREEDY, SAMPLED, ask};
use crate::program::Program;

fn refused(fault: Fault, more: &[&str]) -> String {
    let server = StandIn::with(Kind::Vllm, fault.clone());
    let program = Program::new();
    let ran = ask(&program, &server.url(), more);
    assert_eq!(ran.code, Some(1), "{fault:?}: {ran:?}");
    ran.stderr + &ran.stdout
}

#[test]
fn a_server_that_cannot_do_the_job_is_told_how_to_start() {
    for (fault, expected) in [
        (
            Fault::Cap(20),
            "shows 20 candidates at most, 50 were asked for (start it with --max-logprobs -1",
        ),
        (
            Fault::Processed,
            "start it with --logprobs-mode raw_logprobs",
        ),
        (Fault::Logits, "start it with --logprobs-mode raw_logprobs"),
        (Fault::TextKeys, "expected `token_id:N`"),
        (Fault::NoIds, "expected vLLM 0.11 or newer"),
        (
            Fault::Key("right"),
            "is LOGPROBS_API_KEY set to the server's key?",
        ),
        (
            Fault::Status(500),
            "is refused with status 500: the stand-in refuses",
        ),
        (Fault::Status(404), "neither vLLM's server nor llama.cpp's"),
    ] {
        let said = refused(fault, &GREEDY);
        assert!(said.contains(expected), "no {expected:?} in: {said}");
    }
}

#[test]
fn an_answer_that_cannot_be_right_is_refused() {
    for (fault, expected) in [
        (Fault::OtherPrompt, "saw other token ids than were sent"),
        (Fault::SameId, "shown twice"),
        (
            Fault::Fewer,
            "candidates (expected the 50 that were asked for)",
        ),
        (Fault::NoBest, "the others can have"),
        (Fault::Truncated, "answers with something else"),
    ] {
        let said = refused(fault, &GREEDY);
        assert!(said.contains(expected), "no {expected:?} in: {said}");
    }
}

/// A cap is no hindrance where what is shown suffices; where it does not the prompt says so.
#[test]
fn a_cap_is_respected_and_what_it_leaves_open_fails_with_the_flag_to_set() {
    let server = StandIn::with(Kind::Vllm, Fault::Cap(20));
    let program = Program::new();
    let greedy = ["--server-top", "20", "--samples", "0"];
    let ran = ask(&program, &server.url(), &greedy).success();
    assert!(ran.stdout.contains("\"most\": 20") || ran.stdout.contains("\"most\":20"));
    let asked = server.take_requests();
    let counts = asked
        .iter()
        .filter_map(|request| request.body["logprobs"].as_i64());
    assert!(counts.skip(1).all(|count| count <= 20));
    let sampled = [&SAMPLED[..], &["--server-top", "20"]].concat();
    let ran = ask(&program, &server.url(), &sampled);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stdout
            .contains("the 20 candidates that the server shows do not decide"),
        "{}",
        ran.stdout
    );
}

#[test]
fn another_models_tokenizer_is_noticed() {
    let server = StandIn::new(Kind::Vllm);
    let other = folder().with_file_name("qwen35-real");
    let other = other.to_str().expect("UTF-8");
    let ran = ask(&Program::new(), &server.url(), &["--tokenizer", other]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr
            .contains("into other tokens than the server does"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_model_that_is_not_served_is_named_with_those_that_are() {
    let server = StandIn::new(Kind::Vllm);
    let ran = ask(&Program::new(), &server.url(), &["--model", "large"]);
    assert!(
        ran.stderr.contains("has no model `large` (it serves tiny)"),
        "{}",
        ran.stderr
    );
    // named on the command line, the model of whoever names none is a name like any other
    let ran = ask(
        &Program::new(),
        &server.url(),
        &["--model", "Qwen/Qwen3.5-2B"],
    );
    assert!(
        ran.stderr
            .contains("has no model `Qwen/Qwen3.5-2B` (it serves tiny)"),
        "{}",
        ran.stderr
    );
    ask(
        &Program::new(),
        &server.url(),
        &["--model", "tiny", "--samples", "0"],
    )
    .success();
    let several = StandIn::with(Kind::Vllm, Fault::Several);
    let ran = ask(&Program::new(), &several.url(), &[]);
    assert!(
        ran.stderr
            .contains("serves several models (choose one with --model: tiny, Qwen/Qwen3.5-2B)"),
        "{}",
        ran.stderr
    );
}

/// A server knows no files; those of --tokenizer may name the token.
#[test]
fn an_end_that_no_server_knows_cannot_be_scored() {
    let server = StandIn::with(Kind::Vllm, Fault::NoEnd);
    let program = Program::new();
    let url = server.url();
    let line = [
        "score",
        "-p",
        "法国",
        "--completion",
        "12",
        "--end",
        "--server",
        &url,
    ];
    let expected = "the server ends a reply with none of the usual end tokens (leave out --end, or give --tokenizer)";
    program.run(&line).refused(1, &[expected]);
    let model = folder();
    let line = [&line[..], &["--tokenizer", model.to_str().expect("UTF-8")]].concat();
    program.run(&line).success();
}

#[test]
fn what_contradicts_a_server_is_a_usage_error() {
    for (line, expected) in [
        (&["--server", "localhost:8000"][..], "is no address"),
        (&["--server", "http://me:pw@host"], "LOGPROBS_API_KEY"),
        (
            &["--server", "http://host", "--device", "cpu"],
            "cannot be used with",
        ),
        (
            &["--server", "http://host", "--dtype", "f32"],
            "cannot be used with",
        ),
        (
            &["--server", "http://host", "--threads", "2"],
            "cannot be used with",
        ),
        (
            &["--server", "http://host", "--revision", "main"],
            "cannot be used with",
        ),
        (
            &["--server", "http://host", "--offline"],
            "cannot be used with",
        ),
        (
            &["--server", "http://host", "--server-top", "1"],
            "2 up, or all",
        ),
        (
            &["--server", "http://host", "--server-timeout", "0"],
            "above 0",
        ),
        // what promises bits computes here
        (&["audit", "--server", "http://host"], "unexpected argument"),
        (&["--tokenizer", "."], "--server"),
        (&["--server-top", "5"], "--server"),
    ] {
        let ran = Program::new().run(line);
        assert_eq!(ran.code, Some(2), "{line:?}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{}", ran.stderr);
    }
}
