//! The network: what is tried again, what is not, how long and how far an answer is read, and who sees the key.

use std::collections::BTreeSet;
use std::time::Instant;

use super::stand_in::{Fault, Kind, StandIn};
use super::{GREEDY, SAMPLED, SHORT, ask};
use crate::program::{Program, Ran};

#[test]
fn a_server_that_is_not_ready_and_a_connection_that_breaks_are_tried_again() {
    for fault in [Fault::Unready(2), Fault::Cut] {
        let server = StandIn::with(Kind::Vllm, fault);
        ask(&Program::new(), &server.url(), &GREEDY).success();
    }
}

#[test]
fn an_answer_is_waited_for_and_read_no_longer_than_it_may_be() {
    let server = StandIn::with(Kind::Vllm, Fault::Slow);
    let more = [&GREEDY[..], &["--server-timeout", "0.5"]].concat();
    let ran = ask(&Program::new(), &server.url(), &more);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr
            .contains("has not answered within 0.5 s (raise --server-timeout"),
        "{}",
        ran.stderr
    );

    let server = StandIn::with(
        Kind::LlamaCpp,
        Fault::Huge {
            megabytes: 40,
            past: 0,
        },
    );
    let ran = ask(&Program::new(), &server.url(), &GREEDY);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("answers with more than"),
        "{}",
        ran.stderr
    );
}

#[test]
fn nobody_at_the_address_is_said_at_once() {
    let start = Instant::now();
    // no service has this port
    let ran = ask(&Program::new(), "http://127.0.0.1:1", &GREEDY);
    assert!(
        ran.stderr.contains("(is the server running?)"),
        "{}",
        ran.stderr
    );
    assert!(start.elapsed().as_secs() < 5);
}

/// The first of two prompts is complete when the server goes: it is recorded, and the server is not asked for the other any more.
#[test]
fn a_run_that_loses_its_server_writes_what_is_complete() {
    let server = StandIn::new(Kind::Vllm);
    let program = Program::new();
    let more = [&GREEDY[..], &["-p", "second", "--batch", "1"]].concat();
    ask(&program, &server.url(), &more).success();
    let asked = server.take_requests();
    let is_about_tokens = |path: &str| path == "/v1/completions";
    let count = asked
        .iter()
        .filter(|request| is_about_tokens(&request.path))
        .count();
    server.leave_after(count - 1);
    let ran = ask(&program, &server.url(), &more);
    assert_eq!(ran.code, Some(1));
    let record: logprobs::record::Record = serde_json::from_str(&ran.stdout).expect("a record");
    use logprobs::record::PromptEntry::{Done, Failed};
    let [Done(first), Failed(second)] = &record.prompts[..] else {
        panic!("{:?}", record.prompts);
    };
    assert_eq!(first.greedy.steps.len(), 6);
    assert!(
        second.error.contains("the connection to"),
        "{}",
        second.error
    );
}

/// Of three prompts the second one's answers are too long: that prompt fails, and the server is asked for the third.
#[test]
fn an_answer_that_is_too_long_fails_its_own_prompt_alone() {
    for kind in [Kind::Vllm, Kind::LlamaCpp] {
        let server = StandIn::with(
            kind,
            Fault::Huge {
                megabytes: 40,
                past: 60,
            },
        );
        let long = "long ".repeat(15);
        let more = ["-p", &long, "-p", "third", "--batch", "1"];
        let more = [&GREEDY[..], &more].concat();
        let ran = ask(&Program::new(), &server.url(), &more);
        assert_eq!(ran.code, Some(1));
        let record: logprobs::record::Record = serde_json::from_str(&ran.stdout).expect("a record");
        use logprobs::record::PromptEntry::{Done, Failed};
        let [Done(first), Failed(second), Done(third)] = &record.prompts[..] else {
            panic!("{:?}", record.prompts);
        };
        assert_eq!((first.greedy.steps.len(), third.greedy.steps.len()), (6, 6));
        assert!(
            second.error.contains("answers with more than"),
            "{}",
            second.error
        );
    }
}

#[test]
fn the_key_is_sent_and_never_shown_and_redirects_are_not_followed() {
    let server = StandIn::with(Kind::Vllm, Fault::Key("s3cret"));
    let program = Program::new();
    let line = ["--server", &server.url(), "--out", "r.json", "-v"];
    let arguments: Vec<&str> = line.iter().chain(&SHORT).chain(&GREEDY).copied().collect();
    let mut command = program.command(&arguments);
    let ran = Ran::of(command.env("LOGPROBS_API_KEY", "s3cret\n")).success();
    let record = std::fs::read_to_string(program.path("r.json")).expect("a record");
    let port = server.url();
    for text in [&ran.stdout, &ran.stderr, &record] {
        assert!(!text.contains("s3cret") && !text.contains(&port), "{text}");
    }
    let requests = server.take_requests();
    let has_key = |request: &super::stand_in::Request| {
        request.authorization.as_deref() == Some("Bearer s3cret")
    };
    assert!(requests.iter().all(has_key));

    let elsewhere = StandIn::new(Kind::Vllm);
    let server = StandIn::with(Kind::Vllm, Fault::Redirect(elsewhere.url() + "/version"));
    let mut command = program.command(&["--server", &server.url()]);
    let ran = Ran::of(command.env("LOGPROBS_API_KEY", "s3cret"));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("is not followed"), "{}", ran.stderr);
    assert_eq!(elsewhere.take_requests().len(), 0);
}

#[test]
fn equal_beginnings_are_asked_for_once_and_together() {
    let server = StandIn::new(Kind::Vllm);
    ask(
        &Program::new(),
        &server.url(),
        &[&SAMPLED[..], &["--server-top", "all"]].concat(),
    )
    .success();
    let requests = server.take_requests();
    let steps = requests
        .iter()
        .filter(|request| request.path == "/v1/completions");
    let mut rows = Vec::new();
    for step in steps {
        let prefixes = step.body["prompt"].as_array().expect("a list of prefixes");
        let distinct: BTreeSet<String> = prefixes.iter().map(ToString::to_string).collect();
        assert_eq!(distinct.len(), prefixes.len());
        rows.push(prefixes.len());
    }
    assert!(rows.iter().any(|&rows| rows > 3), "{rows:?}");
}
