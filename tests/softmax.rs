//! `softmax`: known numbers, negative numbers that are no flags, and the manners of a command without a model.

use std::process::Stdio;

use serde::{Deserialize, Deserializer};

use crate::program::{Program, Ran};

/// What `softmax --json` writes, written down a second time.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Softmax {
    schema: u32,
    program: String,
    seed: u64,
    draws: u32,
    filter_order: Vec<String>,
    candidates: Vec<Candidate>,
    sweeps: Vec<Sweep>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Candidate {
    id: u32,
    #[serde(deserialize_with = "nullable")]
    label: Option<String>,
    #[serde(deserialize_with = "nullable")]
    logit: Option<f32>,
    rank: usize,
    #[serde(deserialize_with = "nullable")]
    logprob: Option<f32>,
    prob: f32,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sweep {
    label: String,
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
    probs: Vec<f32>,
    entropy_bits: f32,
    kept: usize,
    tempered_mass: f32,
    kept_mass: f32,
    sampling_probs: Vec<f32>,
    sampling_entropy_bits: f32,
    #[serde(default)]
    drawn: Vec<u32>,
    #[serde(default)]
    expected: Vec<f32>,
}

fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

fn run(arguments: &[&str]) -> Ran {
    Program::new().run(&[&["softmax"], arguments].concat())
}

fn record(arguments: &[&str]) -> Softmax {
    let ran = run(&[&["--json"], arguments].concat()).success();
    assert_eq!(ran.stderr, "");
    serde_json::from_str(&ran.stdout).expect("the schema")
}

fn logits(arguments: &[&str]) -> Vec<Option<f32>> {
    let mut candidates = record(arguments).candidates;
    candidates.sort_by_key(|candidate| candidate.id);
    candidates.iter().map(|candidate| candidate.logit).collect()
}

#[test]
fn known_logits_have_their_known_probabilities_and_entropies() {
    let record = record(&[
        "5",
        "3",
        "2.5",
        "1",
        "-1",
        "--labels",
        "Paris,Lyon,France,a,banana",
        "--temps",
        "0.2,0.5,1,2,5",
    ]);
    let labels: Vec<_> = record
        .candidates
        .iter()
        .map(|c| c.label.as_deref())
        .collect();
    assert_eq!(labels, ["Paris", "Lyon", "France", "a", "banana"].map(Some));
    for (candidate, expected) in record
        .candidates
        .iter()
        .zip([0.808, 0.109, 0.066, 0.015, 0.002])
    {
        assert!((candidate.prob - expected).abs() <= 0.0005, "{candidate:?}");
        let logprob = candidate.logprob.expect("above 0");
        assert!((logprob.exp() - candidate.prob).abs() < 1e-6);
    }
    for (sweep, (entropy, best)) in record.sweeps.iter().zip([
        (0.00, 1.000),
        (0.19, 0.975),
        (0.97, 0.808),
        (1.78, 0.544),
        (2.21, 0.330),
    ]) {
        assert!((sweep.entropy_bits - entropy).abs() <= 0.005, "{sweep:?}");
        assert!((sweep.probs[0] - best).abs() <= 0.0005, "{sweep:?}");
        assert_eq!(
            (sweep.kept, sweep.kept_mass, sweep.tempered_mass),
            (5, 1.0, 1.0)
        );
        assert_eq!(
            (&sweep.sampling_probs, sweep.drawn.len()),
            (&sweep.probs, 0)
        );
    }
}

#[test]
fn negative_numbers_are_numbers_wherever_they_stand() {
    let expected = [Some(-1.0), Some(-0.5), Some(-1000.0), None, Some(2.0)];
    assert_eq!(logits(&["-1", "-.5", "-1e3", "-inf", "2"]), expected);
    assert_eq!(logits(&["-1,-.5,-1E3,-INF,2"]), expected);
    assert_eq!(
        logits(&["--temps=1", "--", "-1", "-.5", "-1e3", "-inf", "2"]),
        expected
    );
    // a minus sign as a page has it
    assert_eq!(logits(&["−1", "−.5", "−1e3", "−inf", "2"]), expected);
    assert_eq!(logits(&["--draws", "3", "-1.5"])[..1], [Some(-1.5)]);
}

#[test]
fn a_label_may_look_like_a_number_or_a_flag() {
    let record = record(&["2", "1", "0", "--labels", "-1,--json,"]);
    let labels: Vec<_> = record
        .candidates
        .iter()
        .map(|c| c.label.as_deref())
        .collect();
    assert_eq!(labels, ["-1", "--json", ""].map(Some));
}

#[test]
fn filters_keep_the_best_and_draws_stay_among_them() {
    let line = [
        "5", "3", "2.5", "1", "-1", "--temps", "1,2", "--top-k", "4", "--top-p", "0.9",
    ];
    let record = record(
        &[
            &line[..],
            &["--min-p", "0.1", "--draws", "1000", "--seed", "7"],
        ]
        .concat(),
    );
    assert_eq!((record.seed, record.draws), (7, 1000));
    assert_eq!(
        record.sweeps[0].label,
        "temperature 1.0, top_k 4, top_p 0.9, min_p 0.1"
    );
    let kept: Vec<usize> = record.sweeps.iter().map(|sweep| sweep.kept).collect();
    // at 2: shares 0.559, 0.206, 0.160, 0.076 of the best four; three reach 0.9, all above a tenth of the best
    assert_eq!(kept, [2, 3]);
    for sweep in &record.sweeps {
        assert_eq!(sweep.drawn.iter().sum::<u32>(), 1000);
        assert!((sweep.sampling_probs.iter().sum::<f32>() - 1.0).abs() < 1e-6);
        for index in sweep.kept..5 {
            assert_eq!((sweep.drawn[index], sweep.sampling_probs[index]), (0, 0.0));
        }
        for (&drawn, &expected) in sweep.drawn.iter().zip(&sweep.expected) {
            // five standard deviations of a binomial(1000, 1/2), the widest there is, are 79
            assert!((drawn as f32 - expected).abs() < 80.0, "{sweep:?}");
        }
    }
}

#[test]
fn what_can_never_be_right_is_wrong_usage() {
    for (line, expected) in [
        (vec![], "<LOGIT>"),
        (vec!["nan"], "expected a number such as 2.5, or -inf"),
        (vec!["-nan"], "expected a number such as 2.5, or -inf"),
        (vec!["inf"], "expected a number such as 2.5, or -inf"),
        (vec!["1e39"], "beyond what a logit can be"),
        (vec!["1,,2"], "expected a number"),
        (vec!["-inf", "-inf"], "every logit is -inf"),
        (
            vec!["1", "2", "--labels", "a,b,c"],
            "--labels has 3 labels for 2 logits",
        ),
        (
            vec!["1", "--temps", "-.5"],
            "temperature -0.5 is out of range",
        ),
        (vec!["1", "--top-p", "-1"], "top_p -1 is out of range"),
        (vec!["1", "--min-p", "2"], "min_p 2 is out of range"),
        (vec!["1", "--top-k", "-1"], "whole number from 0 up"),
        (vec!["1", "--draws", "1000001"], "0..=1000000"),
        (vec!["1", "--seed", "-1"], "--seed"),
        (vec!["1", "--model", "demo"], "--model"),
    ] {
        let stderr = run(&line).refused(2, &[expected]);
        assert!(stderr.contains("--help"), "{stderr}");
    }
}

#[test]
fn a_top_k_above_the_number_of_logits_is_clamped_and_said() {
    let record = record(&["1", "0", "--top-k", "40"]);
    assert_eq!((record.sweeps[0].top_k, record.sweeps[0].kept), (2, 2));
}

#[test]
fn the_same_command_gives_the_same_bytes_and_no_file() {
    let program = Program::new();
    let line = ["softmax", "1", "0", "--draws", "50", "--json"];
    let both = [(); 2].map(|()| program.run(&line).success().stdout);
    assert_eq!(both[0], both[1]);
    assert_eq!(program.files("."), [""; 0]);
}

#[test]
fn hostile_labels_are_escaped_and_colour_follows_the_flag() {
    let hostile = "\u{1b}]0;x\u{7},\u{202e}abc";
    let ran = run(&["1", "0", "--labels", hostile]).success();
    assert!(ran.stdout.contains(r"\u{1B}]0;x\u{7}"), "{}", ran.stdout);
    assert!(
        !ran.stdout.contains(['\u{1b}', '\u{202e}', '\u{7}']),
        "{}",
        ran.stdout
    );
    let shown = run(&["1", "0", "--color", "always"]).success().stdout;
    assert!(shown.contains("\u{1b}["), "{shown}");
    let program = Program::new();
    let mut command = program.command(&["softmax", "1", "0"]);
    let shown = Ran::of(command.env("NO_COLOR", "1").env("CLICOLOR_FORCE", "1"))
        .success()
        .stdout;
    assert!(!shown.contains('\u{1b}'), "{shown}");
}

#[test]
fn a_closed_pipe_is_success() {
    for more in [&[][..], &["--json"]] {
        let many = vec!["1"; 20_000];
        let program = Program::new();
        let mut child = program
            .command(&[&["softmax"], &many[..], more].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        let stderr = Ran::wait(child).success().stderr;
        assert_eq!(stderr, "");
    }
}

#[test]
fn completions_and_help_know_it() {
    let program = Program::new();
    let script = program.run(&["completions", "bash"]).success().stdout;
    assert!(script.contains("softmax") && script.contains("--draws"));
    let help = run(&["--help"]).success().stdout;
    assert!(help.contains("Examples:") && help.contains("logprobs softmax 5 3 2.5 1 -1"));
}
