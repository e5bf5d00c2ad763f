//! Group 2: edge cases of sampling settings.

use serde_json::json;

use crate::crafted::{Crafted, id};
use crate::program::{Program, fixture};
use crate::schema::Record;

/// Runs a tiny model with one group of samples for each setting.
fn run(settings: &[&str], more: &[&str]) -> Record {
    let settings = settings.iter().flat_map(|setting| ["--setting", setting]);
    let arguments: Vec<&str> = ["-p", "hello"]
        .into_iter()
        .chain(settings)
        .chain(more.iter().copied())
        .collect();
    Program::new().record(&fixture("smollm"), &arguments)
}

/// B16, B17, B20: tiny temperatures and masses gave NaN, nothing, or a draw from everything.
#[test]
fn a_tiny_temperature_or_mass_is_the_greedy_run() {
    let record = run(
        &[
            "temperature=0.0001",
            "temperature=1e-12",
            "temperature=1e-45",
            "temperature=5e-324",
            "top_p=0.0001",
            "top_p=0",
            "min_p=1",
            "temperature=0",
        ],
        &["--max-new-tokens", "20"],
    );
    let done = record.done(0);
    assert!(!done.greedy.text.is_empty());
    for sweep in &done.sweeps {
        assert_eq!(sweep.distinct_replies, 1, "{}", sweep.label);
        assert_eq!(sweep.runs[0].ids(), done.greedy.ids(), "{}", sweep.label);
    }
    assert_eq!(
        done.sweeps[2].temperature, 1e-45,
        "the value is recorded as it was given"
    );
}

/// B17, B19, B28: the same in the table of step 1; a huge temperature is nearly uniform.
#[test]
fn step1_survives_every_temperature() {
    let program = Program::new();
    let step1 = program.step1(
        &fixture("smollm"),
        &[
            "-p",
            "hello",
            "--temps",
            "0,-0.0,1e-45,1e-12,1,1e38",
            "--candidates",
            "320",
        ],
    );
    assert_eq!(step1.temperatures[..3], [0.0, 0.0, 1e-45]);
    assert!(step1.temperatures[1].is_sign_positive());
    for index in 0..4 {
        let column: Vec<f32> = step1
            .candidates
            .iter()
            .map(|candidate| candidate.probs[index])
            .collect();
        assert_eq!(column[0], 1.0);
        assert!(column[1..].iter().all(|&prob| prob == 0.0));
    }
    for candidate in &step1.candidates {
        assert!((candidate.probs[5] - 1.0 / 320.0).abs() < 1e-6);
    }
}

/// B22, B25: top_p 1 and top_k 0 are off.
#[test]
fn a_filter_that_is_off_changes_no_run() {
    let record = run(
        &["temperature=1.5"],
        &["--samples", "10", "--max-new-tokens", "3"],
    );
    let off = run(
        &["temperature=1.5,top_p=1,top_k=0,min_p=0"],
        &["--samples", "10", "--max-new-tokens", "3"],
    );
    assert_eq!(record.done(0).sweeps, off.done(0).sweeps);
    assert!(record.done(0).sweeps[0].distinct_replies > 1);
}

/// B24: top_k first without renormalising, then top_p, masked everything.
#[test]
fn filters_together_always_keep_a_token() {
    let record = run(
        &[
            "temperature=0.01,top_k=1,top_p=0.8",
            "temperature=3,top_k=2,top_p=0.95",
            "temperature=3,top_k=2,top_p=0.01,min_p=1",
        ],
        &["--max-new-tokens", "5"],
    );
    for sweep in &record.done(0).sweeps {
        for step in sweep.runs.iter().flat_map(|run| &run.steps) {
            let sampling = step.sampling.expect("a sampled step");
            assert!((1..=2).contains(&sampling.kept) && sampling.prob > 0.0);
        }
    }
}

/// B26: more candidates than the vocabulary has.
#[test]
fn what_exceeds_the_vocabulary_is_clamped_and_recorded() {
    let record = run(
        &["top_k=9999999"],
        &["--candidates", "9999999", "--max-new-tokens", "1"],
    );
    assert_eq!(
        (record.settings.candidates, record.done(0).sweeps[0].top_k),
        (320, 320)
    );
    assert_eq!(record.done(0).greedy.steps[0].top_logprobs.len(), 320);
    let step1 = Program::new().step1(
        &fixture("smollm"),
        &["-p", "hello", "--candidates", "9999999"],
    );
    assert_eq!(step1.candidates.len(), 320);
    assert!(step1.rest.iter().all(|&rest| rest == 0.0));
}

/// B28: temperature 0 was a tiny number, and noise decided near-ties.
#[test]
fn temperature_zero_uses_no_random_number() {
    let crafted = Crafted::new().logits(b'A', &[(b'C', 1.0), (b'D', 1.0), (b'B', 1.0)]);
    let program = Program::new();
    for seed in ["0", "1", "77"] {
        let more = [
            "--raw",
            "-p",
            "A",
            "--temps",
            "0",
            "--top-p",
            "1",
            "--seed",
            seed,
            "--max-new-tokens",
            "1",
        ];
        let record = program.record(crafted.write().path(), &more);
        let sweep = &record.done(0).sweeps[0];
        assert!(
            sweep
                .runs
                .iter()
                .all(|run| run.ids() == [u32::from(id(b'B'))])
        );
    }
}

/// B29: a draw at the end of [0, 1) left the kept set.
#[test]
fn every_draw_of_many_runs_lies_in_the_kept_set() {
    let record = run(
        &["temperature=0.7,top_p=0.8"],
        &[
            "--samples",
            "500",
            "--max-new-tokens",
            "12",
            "--candidates",
            "1",
        ],
    );
    let steps: Vec<_> = record.done(0).sweeps[0]
        .runs
        .iter()
        .flat_map(|run| &run.steps)
        .collect();
    assert!(steps.len() > 1000);
    for step in steps {
        let sampling = step.sampling.expect("a sampled step");
        assert!(step.rank <= sampling.kept && sampling.prob > 0.0);
    }
}

/// B30: a model's generation_config.json, or a hidden default, made sampling greedy.
#[test]
fn no_file_of_the_model_and_no_hidden_default_changes_a_setting() {
    let crafted = Crafted::new()
        .probs(b'A', &[(b'B', 0.5), (b'C', 0.3), (b'D', 0.2)])
        .file(
            "generation_config.json",
            json!({"top_k": 1, "temperature": 0.1, "top_p": 0.1, "do_sample": false}),
        );
    let program = Program::new();
    let more = [
        "--raw",
        "-p",
        "A",
        "--temps",
        "1.5",
        "--top-p",
        "1",
        "--samples",
        "40",
        "--max-new-tokens",
        "1",
    ];
    let record = program.record(crafted.write().path(), &more);
    let sweep = &record.done(0).sweeps[0];
    assert_eq!(
        (sweep.temperature, sweep.top_k, sweep.top_p, sweep.min_p),
        (1.5, 0, 1.0, 0.0)
    );
    assert_eq!(sweep.distinct_replies, 3);
}
