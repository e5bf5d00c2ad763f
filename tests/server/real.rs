//! Real servers on SmolLM2, for whoever has them (`tests/servers.sh` installs and starts them): the numbers of the program itself
//! on the same weights, and the same greedy tokens.

#![allow(clippy::print_stdout, reason = "figures are worth seeing")]

use logprobs::record::score::Score;
use logprobs::record::{PromptEntry, Record, Run};
use serde::de::DeserializeOwned;

use crate::program::{Program, Ran};

const PROMPTS: [&str; 4] = [
    "What is the capital of France? Answer in one sentence.",
    "Recommend an independent coffee shop in Seattle with its name and street address, in one sentence.",
    "法国的首都是哪里？请用一句话回答。",
    "Say something with 🎉 and 日本.",
];

/// What the differences of all tokens may come to, as shares of the largest that is allowed: measured on quantised weights were 0.18
/// in the root mean square, and 0.016 in the mean.
const RMS: f64 = 0.3;
const MEAN: f64 = 0.06;

/// Longest reply, so that the local side takes seconds, not minutes.
const STEPS: &str = "24";

/// A server, and the files that it serves.
struct Real {
    url: String,
    model: String,
}

impl Real {
    fn of(variables: [&str; 2]) -> Self {
        let [url, model] = variables.map(|name| {
            std::env::var(name)
                .unwrap_or_else(|_| panic!("{name} is not set (see tests/servers.sh)"))
        });
        Self { url, model }
    }

    /// Runs a command on the server, with the tokenizer of the files.
    fn ask<T: DeserializeOwned>(&self, program: &Program, line: &[&str]) -> T {
        let server = [
            "--json",
            "--server",
            &self.url,
            "--server-timeout",
            "600",
            "--tokenizer",
            &self.model,
        ];
        read(program.run(&[line, &server].concat()))
    }

    /// Compares the greedy run and a sampled one of every prompt with the server's numbers for their tokens.
    fn compare(&self, program: &Program, tokens: &str) -> Compared {
        let mut line = vec!["--max-new-tokens", tokens, "--samples", "1", "--temps", "1"];
        PROMPTS
            .iter()
            .for_each(|prompt| line.extend(["-p", prompt]));
        let here = [&line[..], &["--json", "--model", &self.model]].concat();
        let here = program.run(&here).success();
        let path = program.write("here.json", &here.stdout);
        let path = path.to_str().expect("UTF-8");
        let here: Record = read(here);
        let mut largest = 0f32;
        let mut differences = Vec::new();
        for (index, entry) in here.prompts.iter().enumerate() {
            let PromptEntry::Done(prompt) = entry else {
                panic!("the local run is complete");
            };
            let number = (index + 1).to_string();
            let runs = [
                (&[][..], &prompt.greedy),
                (&["--sweep", "1"], &prompt.sweeps[0].runs[0]),
            ];
            for (sweep, run) in runs {
                let line = ["score", "--record", path, "--of-prompt", &number];
                let score: Score = self.ask(program, &[&line[..], sweep].concat());
                let recorded = score.recorded.expect("a recorded run was scored");
                let difference = recorded.largest_difference.expect("all numbers are known");
                println!(
                    "prompt {number} {sweep:?}: {difference:.2e} in {} steps",
                    score.steps.len()
                );
                largest = largest.max(difference);
                assert_eq!(score.steps.len(), run.steps.len());
                for (there, here) in score.steps.iter().zip(&run.steps) {
                    let there = there.logprob.expect("it is shown");
                    differences.push(f64::from(there) - f64::from(here.logprob));
                }
            }
        }
        let count = differences.len() as f64;
        let compared = Compared {
            here,
            largest,
            rms: (differences.iter().map(|d| d * d).sum::<f64>() / count).sqrt(),
            mean: differences.iter().sum::<f64>() / count,
        };
        println!(
            "largest difference: {largest:.2e}; of the {count} tokens, rms {:.2e}, mean {:.2e}",
            compared.rms, compared.mean
        );
        compared
    }
}

/// How far log-probabilities of a server are from ours.
struct Compared {
    /// The local record.
    here: Record,
    /// Over the tokens and their best candidates.
    largest: f32,
    /// The root of the mean square, over the tokens.
    rms: f64,
    /// Theirs minus ours, over the tokens.
    mean: f64,
}

fn read<T: DeserializeOwned>(ran: Ran) -> T {
    let ran = ran.success();
    serde_json::from_str(&ran.stdout).expect("a result")
}

fn greedy(record: &Record) -> Vec<(String, Vec<u32>)> {
    let ids = |run: &Run| run.steps.iter().map(|step| step.token_id).collect();
    let entries = record.prompts.iter().map(|entry| match entry {
        PromptEntry::Done(prompt) => (prompt.greedy.text.clone(), ids(&prompt.greedy)),
        PromptEntry::Failed(failed) => panic!("{}", failed.error),
    });
    entries.collect()
}

#[test]
#[ignore = "needs a vLLM server (tests/servers.sh)"]
fn vllm_in_float32_gives_the_numbers_of_the_same_weights() {
    let real = Real::of(["LOGPROBS_VLLM", "LOGPROBS_VLLM_MODEL"]);
    let program = Program::new();
    let Compared { here, largest, .. } = real.compare(&program, STEPS);
    assert!(largest <= 1e-3);
    let mut line = vec!["--max-new-tokens", STEPS, "--samples", "0"];
    PROMPTS
        .iter()
        .for_each(|prompt| line.extend(["-p", prompt]));
    let there: Record = real.ask(&program, &line);
    assert_eq!(greedy(&there), greedy(&here));
    // the server's own tokenizer and template: the same prompts, the same text
    let line = [&line[..], &["--json", "--server", &real.url]].concat();
    let own: Record = read(program.run(&line));
    assert_eq!(greedy(&own), greedy(&here));
}

/// On float32 weights its numbers are ours but for the sum in float32. On quantised ones it multiplies blocks with activations of
/// eight bits, and attends in half precision unless told otherwise: `LOGPROBS_LLAMA_CPP_WITHIN` says how near they must be. A few
/// tokens are that far; most are much nearer, and to either side.
#[test]
#[ignore = "needs a llama.cpp server (tests/servers.sh)"]
fn llama_cpp_is_near_the_numbers_of_the_same_file() {
    let real = Real::of(["LOGPROBS_LLAMA_CPP", "LOGPROBS_LLAMA_CPP_MODEL"]);
    let within = std::env::var("LOGPROBS_LLAMA_CPP_WITHIN").map(|within| within.parse());
    let within: f32 = within.map_or(1e-3, |within| within.expect("a number"));
    let program = Program::new();
    let compared = real.compare(&program, STEPS);
    assert!(compared.largest <= within);
    assert!(
        compared.rms <= RMS * f64::from(within) && compared.mean.abs() <= MEAN * f64::from(within)
    );
    let here = compared.here;
    let mut line = vec![
        "--max-new-tokens",
        STEPS,
        "--samples",
        "0",
        "--json",
        "--server",
        &real.url,
    ];
    PROMPTS
        .iter()
        .for_each(|prompt| line.extend(["-p", prompt]));
    let own: Record = read(program.run(&line));
    let same = greedy(&own)
        .into_iter()
        .zip(greedy(&here))
        .filter(|(own, here)| own == here)
        .count();
    println!("{same} of {} greedy replies are the same", PROMPTS.len());
    assert!(within > 1e-3 || same == PROMPTS.len());
}
