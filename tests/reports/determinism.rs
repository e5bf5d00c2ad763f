//! Group 7: determinism, caches, hybrid state.

use std::path::Path;

use crate::command::same;
use crate::crafted::Crafted;
use crate::program::{Program, fixture};
use crate::schema::Done;

/// Two prompts of different lengths that begin alike.
const PROMPTS: [&str; 3] = [
    "hello",
    "A much longer second prompt, please, with some more words.",
    "A much longer second prompt, but another.",
];
const SHORT: [&str; 6] = [
    "--max-new-tokens",
    "8",
    "--samples",
    "2",
    "--temps",
    "0.7,1.5",
];

fn ask(program: &Program, model: &Path, prompts: &[&str]) -> Vec<Done> {
    let prompts: Vec<&str> = prompts.iter().flat_map(|&prompt| ["-p", prompt]).collect();
    let record = program.record(model, &[&prompts[..], &SHORT].concat());
    (0..record.prompts.len())
        .map(|index| record.done(index).clone())
        .collect()
}

/// B87, B88, B91, B95: what one text left behind changed the next; a cache kept the first prompt's length.
#[test]
fn a_prompt_in_a_batch_is_the_prompt_alone_bit_for_bit_in_any_order() {
    let program = Program::new();
    let [a, b, c] = PROMPTS;
    for name in [
        "qwen35",
        "qwen2",
        "qwen3",
        "llama",
        "smollm",
        "gguf/qwen35.gguf",
    ] {
        let model = fixture(name);
        let alone: Vec<Done> = PROMPTS
            .iter()
            .flat_map(|prompt| ask(&program, &model, &[prompt]))
            .collect();
        let batch = ask(&program, &model, &[c, a, b, a, a]);
        for (index, original) in [2, 0, 1, 0, 0].into_iter().enumerate() {
            assert!(
                batch[index] == alone[original],
                "{name}: prompt {index} of the batch"
            );
        }
    }
}

/// B94: a greedy text depended on what else was computed. With sums that are exact, nothing at all may differ.
#[test]
fn a_run_alone_is_the_run_among_many_bit_for_bit_where_sums_are_exact() {
    let program = Program::new();
    let mut crafted = Crafted::new();
    for after in *b"ABCDE" {
        crafted = crafted.probs(
            after,
            &[
                (b'A', 0.3),
                (b'B', 0.25),
                (b'C', 0.2),
                (b'D', 0.15),
                (b'E', 0.1),
            ],
        );
    }
    let model = crafted.write();
    let more = [
        "--raw",
        "-p",
        "A",
        "--max-new-tokens",
        "20",
        "--samples",
        "40",
    ];
    let all = program.record(model.path(), &more);
    for index in ["0", "17", "39"] {
        let alone = program.record(model.path(), &[&more[..], &["--run", index]].concat());
        assert_eq!(alone.done(0).greedy, all.done(0).greedy);
        for (alone, all) in alone.done(0).sweeps.iter().zip(&all.done(0).sweeps) {
            assert_eq!(
                alone.runs[0],
                all.runs[index.parse::<usize>().expect("a number")]
            );
        }
    }
}

/// B94: the same with the weights of a real layout: few runs or many, one thread or two.
#[test]
fn neither_the_number_of_runs_nor_that_of_threads_decides_a_reply() {
    let program = Program::new();
    let run = |samples: &str, threads: &str| {
        let more = [
            "-p",
            "hello",
            "--max-new-tokens",
            "16",
            "--samples",
            samples,
            "--threads",
            threads,
        ];
        program.record(&fixture("qwen35"), &more)
    };
    let few = run("2", "1");
    same(&few, &run("2", "2"));
    let mut many = run("40", "2");
    let Some(crate::schema::Entry::Done(done)) = many.prompts.first_mut() else {
        panic!("it runs")
    };
    done.sweeps
        .iter_mut()
        .for_each(|sweep| sweep.runs.truncate(2));
    same(&few, &many);
}

/// B92: seed 0 was taken as no seed; large seeds were rounded by JSON.
#[test]
fn every_seed_is_a_seed_and_survives() {
    let program = Program::new();
    let run = |seed: &str| {
        let more = [
            "-p",
            "hello",
            "--temps",
            "1",
            "--max-new-tokens",
            "6",
            "--seed",
            seed,
        ];
        program.json(&fixture("smollm"), &more).success()
    };
    assert_eq!(run("0").stdout, run("0").stdout);
    let mut texts = Vec::new();
    for seed in [0, 1, (1 << 53) + 1, u64::MAX] {
        let record = run(&seed.to_string()).record();
        assert_eq!(record.settings.seed, seed);
        let sweep = &record.done(0).sweeps[0];
        texts.push(sweep.runs.iter().map(|run| run.ids()).collect::<Vec<_>>());
    }
    for (index, text) in texts.iter().enumerate() {
        assert!(!texts[index + 1..].contains(text));
    }
    for seed in ["-1", "18446744073709551616", "0.5", ""] {
        program
            .run(&["-p", "x", "--seed", seed])
            .refused(2, &["--seed"]);
    }
}

/// B93: a "random" default was one fixed number, and nobody could tell.
#[test]
fn the_default_seed_is_printed_and_samples_of_one_run_differ() {
    let program = Program::new();
    let model = fixture("smollm").to_string_lossy().into_owned();
    let ran = program
        .run(&["--model", &model, "-p", "hello", "--max-new-tokens", "6"])
        .success();
    assert!(
        ran.stdout.contains("seed 0, 5 samples of each setting"),
        "{}",
        ran.stdout
    );
    let record = program.only_record("results");
    let sweep = &record.done(0).sweeps[3];
    assert_eq!((sweep.temperature, sweep.distinct_replies), (1.5, 5));
}
