//! Tests of the command line: what is understood, what is refused and how.

use super::*;
use crate::setting::Setting;

fn parse(line: &[&str]) -> Result<Request, clap::Error> {
    let arguments = std::iter::once("logprobs").chain(line.iter().copied());
    Request::parse(arguments.map(OsString::from))
}

fn run(line: &[&str]) -> RunRequest {
    match parse(line) {
        Ok(Request::Run(request)) => request,
        other => panic!("{line:?}: {other:?}"),
    }
}

fn refused(line: &[&str]) -> String {
    let error = parse(line).expect_err("this command line contradicts itself");
    assert_eq!(error.exit_code(), 2, "{error}");
    error.to_string()
}

#[test]
fn the_definition_is_sound() {
    command().debug_assert();
}

#[test]
fn without_arguments_the_defaults_are_those_of_the_documentation() {
    let request = run(&[]);
    let labels: Vec<_> = request
        .explore
        .settings
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        labels,
        [
            "temperature 0.3",
            "temperature 0.7",
            "temperature 1.0",
            "temperature 1.5",
            "temperature 1.0, top_p 0.9"
        ]
    );
    assert_eq!(
        (
            request.explore.max_new_tokens,
            request.explore.samples,
            request.explore.seed
        ),
        (64, 5, 0)
    );
    assert_eq!(
        (
            request.explore.candidates,
            request.explore.mass,
            request.explore.threshold
        ),
        (5, 0.9, 0.3)
    );
    let source = &request.explore.model.local.source;
    assert_eq!(
        (&source.model, source.model()),
        (&None, "Qwen/Qwen3.5-2B".as_ref())
    );
    assert_eq!(request.output.out, Out::Folder("results".into()));
}

/// The help says by hand which model nobody has to name.
#[test]
fn the_help_names_the_model_of_whoever_names_none() {
    let mut command = command();
    let commands = ["temperature-step1", "score", "audit", "tokens", "context"];
    let mut helps = vec![command.render_long_help()];
    for name in commands {
        let found = command.find_subcommand_mut(name).expect("a command");
        helps.push(found.render_long_help());
    }
    for help in helps {
        let help = help.to_string();
        let words: Vec<&str> = help.split_whitespace().collect();
        let expected = format!("[default: {DEFAULT_MODEL}]");
        assert!(words.join(" ").contains(&expected), "{help}");
    }
}

#[test]
fn a_list_takes_commas_several_values_and_repetition() {
    let expected = run(&["--temps", "0.5,1.0,2"]).explore.settings;
    assert_eq!(
        run(&["--temps", "0.5", "1.0", "2"]).explore.settings,
        expected
    );
    assert_eq!(
        run(&["--temps", "0.5", "--temps", "1.0,2"])
            .explore
            .settings,
        expected
    );
    assert_eq!(expected.len(), 4);
}

#[test]
fn top_p_one_makes_no_group_and_a_setting_given_twice_is_one_group() {
    assert_eq!(run(&["--top-p", "1"]).explore.settings.len(), 4);
    assert_eq!(
        run(&["--temps", "1", "1.0", "--top-p", "1"])
            .explore
            .settings,
        [Setting::OFF]
    );
}

#[test]
fn settings_replace_the_groups() -> anyhow::Result<()> {
    let settings = run(&[
        "--setting",
        "temperature=1.5,top_p=0.9,top_k=40,min_p=0.05",
        "--setting",
        "top_k=0",
    ])
    .explore
    .settings;
    let full = Setting::OFF
        .with_temperature(1.5)?
        .with_top_k(40)
        .with_top_p(0.9)?
        .with_min_p(0.05)?;
    assert_eq!(settings, [full, Setting::OFF]);
    Ok(())
}

#[test]
fn prompts_may_start_with_a_hyphen_and_be_empty() {
    assert_eq!(
        run(&["-p", "- a list", "--prompt", ""]).prompts,
        ["- a list", ""]
    );
}

#[test]
fn out_is_a_file_when_its_name_ends_in_json() {
    assert_eq!(
        run(&["--out", "a/r.json"]).output.out,
        Out::File("a/r.json".into())
    );
    assert_eq!(run(&["--out", "a/"]).output.out, Out::Folder("a/".into()));
    assert_eq!(run(&["--out", "-"]).output.out, Out::Stdout);
    assert_eq!(run(&["--json"]).output.out, Out::Stdout);
}

#[test]
fn impossible_values_are_refused_by_name() {
    for (line, expected) in [
        (vec!["--temps", "-1"], "temperature -1 is out of range"),
        (vec!["--temps", "nan"], "expected a number"),
        (vec!["--temps", "1e-400"], "too small"),
        (vec!["--temps", "inf"], "temperature inf"),
        (vec!["--top-p", "2"], "top_p 2 is out of range"),
        (vec!["--top-p", "-0.1"], "top_p -0.1 is out of range"),
        (vec!["--setting", "min_p=1.5"], "min_p 1.5 is out of range"),
        (vec!["--setting", "top_k=-1"], "whole number from 0 up"),
        (
            vec!["--setting", "top_q=1"],
            "`top_q` is no part of a setting",
        ),
        (vec!["--setting", "top_k"], "has no `=`"),
        (vec!["--setting", "top_k=1,top_k=2"], "given twice"),
        (vec!["--mass", "0"], "--mass 0 is out of range"),
        (
            vec!["--threshold", "1.1"],
            "--threshold 1.1 is out of range",
        ),
        (vec!["--max-new-tokens", "0"], "from 1 to"),
        (vec!["--max-new-tokens", "-1"], "from 1 to"),
        (vec!["--candidates", "-1"], "from 1 to"),
        (
            vec!["--max-new-tokens", "99999999999999999999"],
            "from 1 to",
        ),
        (vec!["--seed", "-1"], "-1"),
        (vec!["--seed", "18446744073709551616"], "seed"),
        (vec!["--samples", "-1"], "-1"),
        (vec!["--candidates", "0"], "from 1 to"),
        (vec!["--threads", "0"], "1..=1024"),
        (vec!["--nonsense"], "--nonsense"),
        (vec!["stray"], "stray"),
    ] {
        let message = refused(&line);
        assert!(message.contains(expected), "{line:?}: {message}");
    }
}

#[test]
fn contradictory_pairs_are_refused() {
    for line in [
        vec!["--setting", "top_k=1", "--temps", "1"],
        vec!["--setting", "top_k=1", "--top-p", "0.5"],
        vec!["--raw", "--system", "Be brief."],
        vec!["--raw", "--thinking"],
        vec!["--plain-text"],
        vec!["--json", "--out", "results"],
        vec!["--run", "5"],
        vec!["--samples", "0", "--run", "0"],
        vec!["--samples", "0", "--tree"],
        vec!["--tree", "--json"],
        vec!["--one-line", "--json"],
        vec!["--prompt", "x", "temperature-step1"],
    ] {
        refused(&line);
    }
}

fn score(line: &[&str]) -> ScoreRequest {
    match parse(&[&["score"], line].concat()) {
        Ok(Request::Score(request)) => request,
        other => panic!("{line:?}: {other:?}"),
    }
}

#[test]
fn score_takes_a_completion_a_text_a_file_or_a_record() {
    let completion = |completion| Subject::Completion {
        prompt: "p".into(),
        completion,
    };
    for (line, expected) in [
        (
            vec!["-p", "p", "--completion", "-c"],
            completion(Some(Given::Text("-c".into()))),
        ),
        (
            vec!["-p", "p", "--file", "f"],
            completion(Some(Given::File("f".into()))),
        ),
        (vec!["-p", "p", "--candidate", " Yes"], completion(None)),
        (vec!["-p", "p", "--end"], completion(None)),
        (
            vec!["--text", ""],
            Subject::Text(Given::Text(String::new())),
        ),
        (
            vec!["--raw", "--file", "-"],
            Subject::Text(Given::File("-".into())),
        ),
        (
            vec![
                "--record",
                "r",
                "--of-prompt",
                "2",
                "--sweep",
                "1",
                "--run",
                "4",
            ],
            Subject::Recorded {
                record: "r".into(),
                prompt: 2,
                sweep: Some(1),
                run: 4,
            },
        ),
        (
            vec!["--record", "r"],
            Subject::Recorded {
                record: "r".into(),
                prompt: 1,
                sweep: None,
                run: 0,
            },
        ),
    ] {
        assert_eq!(score(&line).subject, expected, "{line:?}");
    }
    let request = score(&["--text", "x", "--candidate", " a", "--candidate", "b"]);
    assert_eq!(request.named, [" a", "b"]);
    assert_eq!(
        (request.candidates, request.mass, request.end),
        (None, None, false)
    );
}

#[test]
fn score_refuses_what_contradicts_itself_or_says_nothing() {
    for line in [
        vec![],
        vec!["-p", "p"],
        vec!["--completion", "c"],
        vec!["-p", "p", "--completion", "c", "--file", "f"],
        vec!["-p", "p", "--text", "t"],
        vec!["--text", "t", "--file", "f"],
        vec!["--text", "t", "--system", "s"],
        vec!["--file", "f", "--thinking"],
        vec!["--record", "r", "--raw"],
        vec!["--record", "r", "-p", "p"],
        vec!["--record", "r", "--end"],
        vec!["--record", "r", "--run", "1"],
        vec!["--text", "t", "--sweep", "1"],
        vec!["--record", "r", "--of-prompt", "0"],
        vec!["--text", "t", "--candidate", ""],
        vec!["--text", "t", "--mass", "0"],
        vec!["--text", "t", "--threshold", "2"],
        vec!["--text", "t", "--candidates", "0"],
        vec!["--text", "t", "--json", "--out", "x"],
        vec!["--text", "t", "--temps", "1"],
    ] {
        refused(&[&["score"], &line[..]].concat());
    }
}

#[test]
fn large_numbers_are_kept() {
    assert_eq!(
        run(&["--seed", "18446744073709551615"]).explore.seed,
        u64::MAX
    );
    assert_eq!(
        run(&["--candidates", "9999999"]).explore.candidates,
        9_999_999
    );
}

#[cfg(unix)]
#[test]
fn a_prompt_that_is_no_utf8_is_refused_with_the_place() {
    use std::os::unix::ffi::OsStringExt;
    let arguments = [
        b"logprobs".to_vec(),
        b"--prompt".to_vec(),
        b"ab\xff".to_vec(),
    ];
    let error = Request::parse(arguments.map(OsString::from_vec)).expect_err("0xff is never UTF-8");
    assert!(
        error.to_string().contains("not valid UTF-8 at byte 2"),
        "{error}"
    );
}

#[test]
fn the_subcommand_has_its_own_defaults() {
    let Ok(Request::TemperatureStep1(request)) =
        parse(&["temperature-step1", "--temps", "0", "1e38"])
    else {
        panic!("a temperature may be 0 or huge");
    };
    assert_eq!(
        (request.temperatures, request.candidates),
        (vec![0.0, 1e38], 5)
    );
    assert_eq!(request.output.out, Out::Folder("sample_output".into()));
}

#[test]
fn a_page_needs_a_name_that_it_has_for_itself() {
    assert_eq!(
        run(&["--html", "p.html"]).html,
        Some(PathBuf::from("p.html"))
    );
    for (line, expected) in [
        (&["--html", "-"][..], "--html needs a file"),
        (&["--html", "r.json", "--out", "r.json"], "the same file"),
        (&["report"], "RECORD.json"),
        (&["report", "-"], "--out is needed"),
        (&["report", "a.json", "-", "-", "--out", "p"], "given twice"),
    ] {
        let error = refused(line);
        assert!(error.contains(expected), "{error}");
    }
    // the name is that of the first record
    assert!(parse(&["report", "a.json", "-"]).is_ok());
}

#[cfg(not(feature = "png"))]
#[test]
fn a_program_without_pixels_says_how_to_get_them() {
    let error = refused(&["temperature-step1", "--png", "a.png"]);
    assert!(
        error.contains("--features png") && error.contains("--svg"),
        "{error}"
    );
}
