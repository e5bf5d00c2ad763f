//! A hostile server: nothing of what it says reaches a terminal, a file name or a page as it is.

use super::stand_in::{Fault, Kind, StandIn};
use super::{GREEDY, SHORT};
use crate::command::is_hostile;
use crate::program::{Program, Ran};

const HOSTILE: &str =
    "\u{1b}]0;x\u{7}\u{9b}\r\n</script><img src=x>\" onclick=y \u{202e}\u{2066}\u{7f}/../x";

fn assert_harmless(ran: &Ran, line: &[&str]) {
    for text in [&ran.stdout, &ran.stderr] {
        let found: Vec<char> = text.chars().filter(|&c| is_hostile(c)).collect();
        assert!(found.is_empty(), "{line:?} printed {found:?}: {text}");
    }
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
}

#[test]
fn nothing_that_a_server_says_is_shown_as_it_is() {
    for kind in [Kind::Vllm, Kind::LlamaCpp] {
        let server = StandIn::with(kind, Fault::Hostile(HOSTILE));
        let program = Program::new();
        let url = server.url();
        let to_server = ["--server", &url, "--server-top", "50"];
        let go = |line: &[&str]| {
            let ran = program.run(line);
            assert_harmless(&ran, line);
            ran
        };
        let main = ["--samples", "2", "--temps", "1", "--verbose"];
        go(&[&main[..], &SHORT, &to_server].concat()).success();
        let json = go(&[&["--json"], &SHORT[..], &GREEDY, &to_server[..2]].concat()).success();
        let shown = [
            "score",
            "-p",
            "法国",
            "--completion",
            "12",
            "--candidate",
            "x",
        ];
        go(&[&shown[..], &to_server].concat()).success();
        go(&[
            &["temperature-step1", "-p", "法国", "--out", "results"],
            &to_server[..],
        ]
        .concat())
        .success();

        let files = program.files("results");
        assert_eq!(files.len(), 3, "{files:?}");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        assert!(
            files.iter().all(|name| name.chars().all(is_plain)),
            "{files:?}"
        );

        // what it said is there, escaped
        let record: logprobs::record::Record =
            serde_json::from_str(&json.stdout).expect("a record");
        let said = &record
            .model
            .server
            .as_ref()
            .expect("a server was asked")
            .version;
        assert!(said.ends_with(HOSTILE), "{said}");
        assert!(
            record.model.id.contains("onclick") || record.model.id == "x",
            "{}",
            record.model.id
        );
        program.write("r.json", &json.stdout);
        for format in ["table", "markdown", "csv", "json", "openai"] {
            let ran = go(&["render", "r.json", "--format", format]);
            assert_eq!(ran.code, Some(0), "{format}: {}", ran.stderr);
        }
        let page = |name: &str, record: &str| {
            program.write("r.json", record);
            let line = ["report", "r.json", "--out", name];
            assert_harmless(&program.run(&line).success(), &line);
            std::fs::read_to_string(program.path(name)).expect("a page")
        };
        let hostile = page("hostile.html", &json.stdout);
        let found: Vec<char> = hostile.chars().filter(|&c| is_hostile(c)).collect();
        assert!(found.is_empty(), "the page has {found:?}");
        assert!(hostile.contains("onclick=y") && !hostile.contains("\" onclick"));
        // as many elements as in the page of a harmless server
        let calm = StandIn::new(kind);
        let url = calm.url();
        let line = [&["--json", "--server", &url], &SHORT[..], &GREEDY].concat();
        let calm = page("calm.html", &program.run(&line).success().stdout);
        for element in ["<script", "</script", "<style", "</style", "<img"] {
            let count = |page: &str| page.matches(element).count();
            assert_eq!(count(&hostile), count(&calm), "{element}");
        }
    }
}

#[test]
fn a_refusal_in_hostile_words_is_escaped() {
    let server = StandIn::with(Kind::Vllm, Fault::Status(500));
    server.take(Fault::Hostile(HOSTILE));
    let program = Program::new();
    let url = server.url();
    let line = ["--server", &url];
    let ran = program.run(&line);
    assert_harmless(&ran, &line);
    ran.refused(1, &["the stand-in refuses", "onclick"]);
}
