//! The default model itself, for whoever has it: figures that were published for Qwen/Qwen3.5-2B.
//!
//!     LOGPROBS_QWEN35_2B=/path/to/Qwen3.5-2B cargo test --release qwen35_2b -- --ignored
//!
//! The figures come from bf16 hardware and are rounded to two places, so probabilities are held to 0.04 and counts to a fifth.

use std::process::Command;

use serde_json::Value;

const PROB_TOLERANCE: f64 = 0.04;
const COUNT_TOLERANCE: f64 = 0.2;
const FRANCE: &str = "What is the capital of France? Answer in one sentence.";
const SEATTLE: &str = "Recommend an independent coffee shop in Seattle with its name and street address, in one sentence.";

fn run(arguments: &[&str]) -> Value {
    let model = std::env::var_os("LOGPROBS_QWEN35_2B")
        .expect("LOGPROBS_QWEN35_2B names the model's folder");
    let output = Command::new(env!("CARGO_BIN_EXE_logprobs"))
        .args(arguments)
        .args(["--json", "--model"])
        .arg(model)
        .output()
        .expect("the program runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("a record")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn assert_prob(value: &Value, expected: f64) {
    let prob = number(value);
    assert!(
        (prob - expected).abs() <= PROB_TOLERANCE,
        "{prob} is not {expected}"
    );
}

fn assert_step(step: &Value, token: &str, prob: f64, count: Option<f64>) {
    assert_eq!(step["token"].as_str().map(str::trim), Some(token));
    assert_prob(&step["prob"], prob);
    if let Some(expected) = count {
        let count = number(&step["mass_count"]);
        assert!(
            (count - expected).abs() <= COUNT_TOLERANCE * expected,
            "{token}: {count} is not {expected}"
        );
    }
}

#[test]
#[ignore = "needs Qwen/Qwen3.5-2B in the folder named by LOGPROBS_QWEN35_2B"]
fn a_known_fact_is_near_certain() {
    let record = run(&["-p", FRANCE, "--samples", "0"]);
    let greedy = &record["prompts"][0]["greedy"];
    assert_eq!(greedy["text"], "The capital of France is Paris.");
    let steps = greedy["steps"].as_array().expect("steps");
    assert_eq!(
        (steps.len(), &greedy["finish_reason"]),
        (8, &Value::from("stop"))
    );
    assert_step(&steps[0], "The", 0.98, Some(1.0));
    assert_eq!(steps[0]["top_logprobs"][1]["token"], "Paris");
    assert_prob(&steps[0]["top_logprobs"][1]["prob"], 0.02);
    assert!((number(&steps[0]["logit"]) - 22.88).abs() < 0.2);
}

#[test]
#[ignore = "needs Qwen/Qwen3.5-2B in the folder named by LOGPROBS_QWEN35_2B"]
fn temperature_spreads_the_first_step_as_published() {
    let step1 = run(&["temperature-step1", "-p", FRANCE]);
    for (index, (best, rest)) in [(1.0, None), (0.976, Some(0.004)), (0.725, Some(0.211))]
        .into_iter()
        .enumerate()
    {
        assert_prob(&step1["candidates"][0]["probs"][index], best);
        if let Some(rest) = rest {
            assert_prob(&step1["rest"][index], rest);
        }
    }
}

#[test]
#[ignore = "needs Qwen/Qwen3.5-2B in the folder named by LOGPROBS_QWEN35_2B"]
fn an_invented_detail_is_a_guess_among_hundreds() {
    let record = run(&["-p", SEATTLE, "--samples", "0"]);
    let greedy = &record["prompts"][0]["greedy"];
    assert_eq!(
        greedy["text"],
        "For a cozy atmosphere, visit **The Roasted Bean** located at 1234 Pike Street in Seattle."
    );
    let steps = greedy["steps"].as_array().expect("steps");
    assert_step(&steps[6], "**", 0.12, Some(1800.0));
    assert_step(&steps[7], "The", 0.29, Some(480.0));
    assert_step(&steps[8], "Ro", 0.15, Some(1000.0));
    assert_step(&steps[9], "asted", 0.43, Some(8.0));
    assert_step(&steps[10], "Bean", 0.84, Some(8.5));
    let is_digit = |step: &&Value| {
        step["token"]
            .as_str()
            .is_some_and(|t| t.trim().len() == 1 && t.trim().parse::<u8>().is_ok())
    };
    let digits: Vec<f64> = steps
        .iter()
        .filter(is_digit)
        .map(|step| number(&step["prob"]))
        .collect();
    assert_eq!(digits.len(), 4, "{digits:?}");
    for (prob, expected) in digits.iter().zip([0.53, 0.37, 0.43, 0.63]) {
        assert!(
            (prob - expected).abs() <= PROB_TOLERANCE,
            "{prob} is not {expected}"
        );
    }
    let pike = steps.iter().find(|step| {
        step["token"]
            .as_str()
            .is_some_and(|token| token.trim() == "Pike")
    });
    assert_prob(&pike.expect("a step says Pike")["prob"], 0.43);
}
