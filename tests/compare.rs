//! `compare`: two records beside each other, through the program.

use std::io::Write;
use std::process::Stdio;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::command::is_hostile;
use crate::program::{Program, Ran, fixture};
use crate::schema::{Candidate, ModelInfo};

/// What `compare --json` writes, written down a second time.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Comparison {
    pub(crate) schema: u32,
    pub(crate) program: String,
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) differences: Vec<Difference>,
    pub(crate) tolerance: Tolerance,
    pub(crate) strict: bool,
    #[serde(deserialize_with = "nullable")]
    pub(crate) mass: Option<f64>,
    pub(crate) findings: Vec<Value>,
    pub(crate) totals: Totals,
    pub(crate) prompts: Vec<Prompt>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) program: String,
    pub(crate) model: ModelInfo,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Difference {
    pub(crate) field: String,
    pub(crate) a: Value,
    pub(crate) b: Value,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Tolerance {
    pub(crate) value: f64,
    pub(crate) reason: String,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Totals {
    pub(crate) compared: usize,
    pub(crate) same_replies: usize,
    pub(crate) near_ties: usize,
    #[serde(deserialize_with = "nullable")]
    pub(crate) largest_difference: Option<f32>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Prompt {
    #[serde(default)]
    pub(crate) id: Option<String>,
    pub(crate) prompt: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) a: Option<Outcome>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) b: Option<Outcome>,
    pub(crate) differs_in: Vec<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) greedy: Option<Greedy>,
    pub(crate) sweeps: Vec<Sweep>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Outcome {
    pub(crate) number: usize,
    #[serde(deserialize_with = "nullable")]
    pub(crate) error: Option<String>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) text: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Greedy {
    pub(crate) steps_a: usize,
    pub(crate) steps_b: usize,
    #[serde(deserialize_with = "nullable")]
    pub(crate) chosen: Option<Spread>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) candidates: Option<Spread>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) changed_mass_counts: Option<usize>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) divergence: Option<Divergence>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) first_difference: Option<FirstDifference>,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spread {
    pub(crate) count: usize,
    #[serde(deserialize_with = "nullable")]
    pub(crate) largest: Option<f32>,
    pub(crate) largest_step: usize,
    #[serde(deserialize_with = "nullable")]
    pub(crate) mean: Option<f32>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Divergence {
    pub(crate) kl_lower: f32,
    #[serde(deserialize_with = "nullable")]
    pub(crate) kl_upper: Option<f32>,
    pub(crate) moved_lower: f32,
    pub(crate) moved_upper: f32,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FirstDifference {
    pub(crate) step: usize,
    pub(crate) a: Candidate,
    pub(crate) b_in_a: Weight,
    pub(crate) b: Candidate,
    pub(crate) a_in_b: Weight,
    #[serde(deserialize_with = "nullable")]
    pub(crate) margin_a: Option<f32>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) margin_b: Option<f32>,
    pub(crate) reach: f32,
    pub(crate) near_tie: bool,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Weight {
    #[serde(deserialize_with = "nullable")]
    pub(crate) logprob: Option<f32>,
    pub(crate) prob: f32,
    pub(crate) is_bound: bool,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) token_id: u32,
    pub(crate) token: String,
    pub(crate) bytes: Vec<u8>,
    pub(crate) special: bool,
    pub(crate) prob_a: f32,
    pub(crate) prob_b: f32,
    #[serde(deserialize_with = "nullable")]
    pub(crate) difference: Option<f32>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) largest_difference: Option<f32>,
    pub(crate) shared: usize,
    pub(crate) mass_count_a: usize,
    pub(crate) mass_count_b: usize,
    pub(crate) kl_lower: f32,
    #[serde(deserialize_with = "nullable")]
    pub(crate) kl_upper: Option<f32>,
    pub(crate) moved_lower: f32,
    pub(crate) moved_upper: f32,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sweep {
    pub(crate) label: String,
    #[serde(deserialize_with = "nullable")]
    pub(crate) a: Option<Replies>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) b: Option<Replies>,
    pub(crate) compared_runs: usize,
    pub(crate) same_runs: usize,
    #[serde(deserialize_with = "nullable")]
    pub(crate) first_difference: Option<SampleDifference>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Replies {
    pub(crate) runs: usize,
    pub(crate) distinct_replies: usize,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SampleDifference {
    pub(crate) run: u32,
    pub(crate) step: usize,
    #[serde(deserialize_with = "nullable")]
    pub(crate) a: Option<Candidate>,
    #[serde(deserialize_with = "nullable")]
    pub(crate) b: Option<Candidate>,
}

fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

/// Writes a record of some prompts on a fixture.
fn record(program: &Program, model: &str, name: &str, arguments: &[&str]) {
    let fixed = ["--raw", "--quiet", "--out", name, "--model"];
    let mut command = program.command(&fixed);
    Ran::of(command.arg(fixture(model)).args(arguments)).success();
}

fn compared(ran: &Ran) -> Comparison {
    serde_json::from_str(&ran.stdout).expect("the schema")
}

#[test]
fn a_run_is_within_any_tolerance_of_the_same_run() {
    let program = Program::new();
    let arguments = [
        "-p",
        "hello",
        "-p",
        "你好",
        "--max-new-tokens",
        "6",
        "--samples",
        "2",
    ];
    for name in ["a.json", "b.json"] {
        record(&program, "smollm", name, &arguments);
    }
    let line = [
        "compare",
        "a.json",
        "b.json",
        "--strict",
        "--tolerance",
        "0",
    ];
    let ran = program.run(&line).success();
    assert!(
        ran.stdout
            .contains("within tolerance: 2 of 2 greedy replies the same, largest difference 0"),
        "{}",
        ran.stdout
    );
    assert_eq!(ran.stderr, "");
    let json = compared(&program.run(&[&line[..], &["--json"]].concat()).success());
    assert_eq!((json.schema, json.program.as_str()), (1, "logprobs 0.1.0"));
    assert_eq!(
        (json.a.name.as_str(), json.b.name.as_str()),
        ("a.json", "b.json")
    );
    assert_eq!(json.differences, []);
    for prompt in &json.prompts {
        assert_eq!(prompt.sweeps.len(), 5);
        assert!(prompt.sweeps.iter().all(|sweep| sweep.same_runs == 2));
        let greedy = prompt.greedy.as_ref().expect("the same ids");
        assert_eq!(
            (greedy.steps.len(), greedy.changed_mass_counts),
            (6, Some(0))
        );
    }
}

/// A model and its 8-bit file: the numbers move, replies part at near ties, and only a tolerance for it lets that pass.
#[test]
fn a_quantised_file_moves_the_numbers_and_the_tolerance_decides() {
    let program = Program::new();
    let arguments = ["-p", "The capital of France is", "--samples", "0"];
    record(&program, "smollm", "a.json", &arguments);
    record(&program, "gguf/smollm-q8_0.gguf", "b.json", &arguments);
    let compare = |more: &[&str]| program.run(&[&["compare", "a.json", "b.json"], more].concat());
    let beyond = compare(&[]);
    assert_eq!(beyond.code, Some(3), "{}", beyond.stderr);
    for part in [
        "model.weights_dtype: f16 in A, q8_0 in B",
        "tolerance 0.001: both compute in f32; weights of another type may differ by more",
        "a near tie: the two are ",
        "beyond tolerance: 0 of 1 greedy replies the same, 1 near tie, ",
    ] {
        assert!(
            beyond.stdout.contains(part),
            "no {part:?} in: {}",
            beyond.stdout
        );
    }
    let json = compared(&compare(&["--json", "--tolerance", "1"]).success());
    let greedy = json.prompts[0].greedy.as_ref().expect("the same ids");
    let parted = greedy.first_difference.as_ref().expect("they part");
    assert_eq!(parted.step, greedy.steps.len() + 1);
    assert!(parted.near_tie && !parted.b_in_a.is_bound && !parted.a_in_b.is_bound);
    let largest = greedy.candidates.as_ref().and_then(|spread| spread.largest);
    let largest = largest.expect("finite");
    let seen = greedy
        .steps
        .iter()
        .filter_map(|step| step.largest_difference);
    assert!(largest > 0.01 && seen.fold(0.0, f32::max) <= largest);
    let divergence = greedy.divergence.as_ref().expect("there are steps");
    assert!(divergence.kl_lower > 0.0 && divergence.kl_upper.is_none());
    assert!(divergence.moved_lower < divergence.moved_upper);

    let strict = compare(&["--tolerance", "1", "--strict", "--json"]);
    assert_eq!(strict.code, Some(3));
    let finding =
        json!({"prompt": 1, "kind": "other_token", "step": parted.step, "near_tie": true});
    assert_eq!(compared(&strict).findings, [finding]);
}

#[test]
fn other_prompts_settings_and_failures_are_listed_and_the_rest_is_compared() {
    let program = Program::new();
    let prompts = |lines: &str| program.write("p.jsonl", lines);
    let run = |name: &str, more: &[&str]| {
        let model = fixture("smollm");
        let fixed = [
            "--raw",
            "--quiet",
            "--samples",
            "0",
            "--prompts-file",
            "p.jsonl",
            "--out",
            name,
            "--model",
        ];
        Ran::of(program.command(&fixed).arg(&model).args(more))
    };
    prompts(
        "{\"prompt\": \"one\", \"id\": \"1\"}\n{\"prompt\": \"\", \"id\": \"2\"}\n{\"prompt\": \"gone\"}\n{\"prompt\": \"five\", \"id\": \"5\"}\n",
    );
    assert_eq!(run("a.json", &["--max-new-tokens", "4"]).code, Some(1));
    prompts(
        "{\"prompt\": \"five!\", \"id\": \"5\"}\n{\"prompt\": \"\", \"id\": \"2\"}\n{\"prompt\": \"one\", \"id\": \"1\"}\n",
    );
    assert_eq!(run("b.json", &["--max-new-tokens", "3"]).code, Some(1));
    let ran = program.run(&["compare", "a.json", "b.json"]);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    for part in [
        "settings.max_new_tokens: 4 in A, 3 in B",
        "Prompt 1 [1]: one\n  prompt 1 in A, prompt 3 in B\n  greedy: 3 tokens the same, then B ends and A goes on to step 4",
        "Prompt 2 [2]: (empty)\n  could not be run in A: the prompt has no tokens",
        "Prompt 3: gone\n  not in B",
        "Prompt 4 [5]: five\n  prompt 4 in A, prompt 1 in B\n  not the same: prompt, rendered, prompt_token_ids",
        "  prompt 3: not in B\n  prompt 4: the model was given other tokens\n",
    ] {
        assert!(ran.stdout.contains(part), "no {part:?} in: {}", ran.stdout);
    }
}

#[test]
fn what_is_no_record_is_refused_and_one_may_come_from_standard_input() {
    let program = Program::new();
    record(
        &program,
        "smollm",
        "a.json",
        &["-p", "hello", "--samples", "0", "--max-new-tokens", "2"],
    );
    program.write("other.json", "{\"schema\": 2, \"prompts\": []}");
    for (line, code, parts) in [
        (
            &["compare", "a.json", "none.json"][..],
            1,
            &["none.json", "cannot be read"][..],
        ),
        (
            &["compare", "other.json", "a.json"],
            1,
            &["other.json", "has schema 2"],
        ),
        (&["compare", "a.json"], 2, &["B.json"]),
        (&["compare", "-", "-"], 2, &["only one of the two"]),
        (
            &["compare", "a.json", "a.json", "--tolerance", "-1"],
            2,
            &["--tolerance -1 is out of range"],
        ),
        (
            &["compare", "a.json", "a.json", "--tolerance", "nan"],
            2,
            &["expected a number"],
        ),
    ] {
        program.run(line).refused(code, parts);
    }
    let mut command = program.command(&["compare", "-", "a.json"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let bytes = std::fs::read(program.path("a.json")).expect("a record");
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(&bytes).expect("it reads");
    drop(input);
    let ran = Ran::wait(child).success();
    assert!(ran.stdout.starts_with("A  -\n"), "{}", ran.stdout);
}

/// A record is a file that anybody may have written: no text of it reaches the terminal as it is, no number stops the program.
#[test]
fn a_hostile_record_is_shown_escaped_and_broken_numbers_are_beyond_tolerance() {
    let program = Program::new();
    record(
        &program,
        "smollm",
        "a.json",
        &["-p", "hello", "--samples", "1", "--max-new-tokens", "2"],
    );
    let text = std::fs::read_to_string(program.path("a.json")).expect("a record");
    let mut value: Value = serde_json::from_str(&text).expect("JSON");
    poison(&mut value, "");
    program.write("b.json", value.to_string());
    for line in [
        vec!["compare", "a.json", "b.json"],
        vec!["compare", "b.json", "a.json", "--json"],
        vec!["compare", "b.json", "b.json"],
    ] {
        let ran = program.run(&line);
        assert!(matches!(ran.code, Some(0 | 3)), "{line:?}: {}", ran.stderr);
        let found: Vec<char> = ran.stdout.chars().filter(|&c| is_hostile(c)).collect();
        assert!(found.is_empty(), "{line:?} printed {found:?}");
    }
    for number in ["1e39", "-1e39", "7"] {
        let broken = text.replacen(
            "\"logprob\": -",
            &format!("\"logprob\": {number}, \"was\": -"),
            1,
        );
        assert_ne!(broken, text);
        program.write("c.json", broken);
        for tolerance in ["0.001", "1e30"] {
            let ran = program.run(&["compare", "a.json", "c.json", "--tolerance", tolerance]);
            let is_beyond = tolerance == "0.001" || number != "7";
            assert_eq!(
                ran.code,
                Some(if is_beyond { 3 } else { 0 }),
                "{number}: {}",
                ran.stdout
            );
        }
    }
}

/// Makes every text of a record hostile, but for those that a program goes by.
fn poison(value: &mut Value, key: &str) {
    match value {
        Value::String(text) if !["finish_reason", "second_parts"].contains(&key) => {
            text.push_str("\u{1b}[31m\u{9b}2J\u{202e}\r\n\u{7f}");
        }
        Value::Array(values) => values.iter_mut().for_each(|value| poison(value, key)),
        Value::Object(fields) => fields
            .iter_mut()
            .for_each(|(key, value)| poison(value, key)),
        _ => {}
    }
}

#[test]
fn the_page_has_both_records_and_what_moved() {
    let program = Program::new();
    let model = fixture("smollm").display().to_string();
    for (name, seed) in [("a.json", "0"), ("b.json", "1")] {
        let line = [
            "--model",
            &model,
            "-p",
            "<b>x</b>",
            "--max-new-tokens",
            "3",
            "--temps",
            "1.5",
            "--seed",
            seed,
            "--out",
            name,
            "-q",
        ];
        program.run(&line).success();
    }
    let line = ["compare", "a.json", "b.json", "--html", "page.html"];
    let ran = program.run(&line).success();
    assert!(
        ran.stderr.contains("written to page.html"),
        "{}",
        ran.stderr
    );
    let page = std::fs::read_to_string(program.path("page.html")).expect("a page");
    for part in [
        "A: <bdi>a.json</bdi>",
        "B: <bdi>b.json</bdi>",
        "within tolerance",
        "settings.seed",
        "&lt;b&gt;x",
        "temperature 1.5",
        "The 3 steps that both took",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<b>x") && page.contains("default-src 'none'"));
    program
        .run(&line)
        .refused(1, &["page.html: exists already"]);
}
