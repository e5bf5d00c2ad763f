//! `check` against a server: the record of yesterday, and the server of today.

use super::stand_in::{Fault, Kind, StandIn};
use super::{GREEDY, SHORT};
use crate::program::{Program, Ran};

fn check(program: &Program, more: &[&str]) -> Ran {
    program.run(&[&["check", "golden.json"], more].concat())
}

#[test]
fn a_record_is_made_again_on_its_server_and_held_against_it() {
    for kind in [Kind::Vllm, Kind::LlamaCpp] {
        let server = StandIn::new(kind);
        let program = Program::new();
        let url = server.url();
        let line = ["--out", "golden.json", "--server", &url];
        program
            .run(&[&line[..], &SHORT, &GREEDY].concat())
            .success();

        // a record never tells where its server is
        let ran = check(&program, &[]);
        ran.refused(2, &["was a folder, a file or on a server", "--server"]);
        let again = [
            "--server",
            &url,
            "--server-top",
            "50",
            "--strict",
            "--tolerance",
            "0",
        ];
        let ran = check(&program, &again).success();
        assert!(
            ran.stdout.contains("\nwithin tolerance: "),
            "{}",
            ran.stdout
        );

        // the same tokens, other numbers
        server.take(Fault::Warmer(1.1));
        let ran = check(&program, &again);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(
            ran.stdout.contains("\nbeyond tolerance: "),
            "{}",
            ran.stdout
        );
    }
}

#[test]
fn a_server_that_does_not_serve_the_records_model_is_refused() {
    let server = StandIn::new(Kind::Vllm);
    let program = Program::new();
    let url = server.url();
    let model = crate::program::fixture("qwen3");
    let model = model.to_str().expect("UTF-8");
    let line = ["--out", "golden.json", "--model", model, "--samples", "0"];
    program.run(&[&line[..], &SHORT].concat()).success();
    let ran = check(&program, &["--server", &url]);
    ran.refused(1, &["has no model `qwen3` (it serves tiny)"]);
    let ran = check(&program, &["--server", &url, "--model", "tiny"]);
    assert!(matches!(ran.code, Some(0 | 3)), "{ran:?}");
}
