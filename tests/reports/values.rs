//! Group 1: log-probability values.

use logprobs::distribution::Distribution;

use crate::crafted::Crafted;
use crate::program::{Program, fixture};

const ALL: [&str; 2] = ["--candidates", "9999999"];

/// B01: each logit by itself was taken for a logprob.
#[test]
fn logprobs_are_never_positive_and_their_probabilities_sum_to_one() {
    let program = Program::new();
    for name in ["qwen35", "qwen2", "llama"] {
        let more = [
            "-p",
            "Two plus two is",
            "--raw",
            "--max-new-tokens",
            "3",
            "--samples",
            "1",
        ];
        let record = program.record(&fixture(name), &[&more[..], &ALL].concat());
        for step in record.steps() {
            assert_eq!(step.top_logprobs.len(), 320);
            let mut sum = 0.0;
            for candidate in &step.top_logprobs {
                assert!(candidate.logprob <= 0.0);
                sum += f64::from(candidate.logprob).exp();
            }
            assert!((sum - 1.0).abs() < 1e-5, "{name}: {sum}");
        }
    }
}

/// B02, B15: the chosen token's number was another one than its entry among the candidates, or 0.
#[test]
fn the_chosen_tokens_number_is_that_of_its_candidate_bit_for_bit() {
    let program = Program::new();
    let more = [
        "-p",
        "hello",
        "--max-new-tokens",
        "5",
        "--temps",
        "1",
        "--seed",
        "3",
    ];
    let record = program.record(&fixture("smollm"), &[&more[..], &ALL].concat());
    for step in record.steps() {
        let place = step.rank - 1;
        let candidate = &step.top_logprobs[place];
        assert_eq!(candidate.token_id, step.token_id);
        assert_eq!(candidate.logprob.to_bits(), step.logprob.to_bits());
        assert_eq!(candidate.prob.to_bits(), step.prob.to_bits());
        assert_eq!(
            (&candidate.token, &candidate.bytes),
            (&step.token, &step.bytes)
        );
    }
    let greedy = &record.done(0).greedy;
    assert!(greedy.steps.iter().all(|step| step.rank == 1));
    assert!(
        greedy
            .steps
            .iter()
            .any(|step| step.logprob != greedy.steps[0].logprob)
    );
}

/// B03: values were shifted by one position.
#[test]
fn the_second_row_is_the_first_row_of_the_longer_prompt() {
    let program = Program::new();
    let mut checked = 0;
    for prompt in ["a", "The", "1 2 3", "x y", "hello", "Q:", "if (", "9"] {
        for name in ["llama", "qwen35", "qwen3"] {
            let run = |prompt: &str, steps: &str| {
                let more = [
                    "-p",
                    prompt,
                    "--raw",
                    "--samples",
                    "0",
                    "--max-new-tokens",
                    steps,
                ];
                program.record(&fixture(name), &more)
            };
            let first = run(prompt, "2");
            let first = first.done(0);
            let [one, two] = &first.greedy.steps[..] else {
                continue;
            };
            let longer = [prompt, &one.token].concat();
            if one.special || !one.token.is_ascii() || one.token.contains('\\') {
                continue;
            }
            let second = run(&longer, "1");
            let second = second.done(0);
            let ids: Vec<u32> = first
                .prompt_token_ids
                .iter()
                .copied()
                .chain([one.token_id])
                .collect();
            if second.prompt_token_ids != ids {
                continue;
            }
            checked += 1;
            for (a, b) in two
                .top_logprobs
                .iter()
                .zip(&second.greedy.steps[0].top_logprobs)
            {
                assert_eq!(a.token_id, b.token_id);
                assert!(
                    (a.logprob - b.logprob).abs() < 1e-4,
                    "{name}: {} and {}",
                    a.logprob,
                    b.logprob
                );
            }
        }
    }
    assert!(checked > 0, "no greedy token could be typed");
}

/// B04, B07, B109: filters gave probabilities to removed tokens, or turned raw values into -inf.
#[test]
fn a_filter_changes_what_the_sampler_saw_and_no_raw_value() {
    let program = Program::new();
    for setting in [
        "top_k=2,temperature=0.8",
        "top_p=0.7,temperature=0.8",
        "top_k=1",
    ] {
        let more = [
            "-p",
            "hello",
            "--setting",
            setting,
            "--max-new-tokens",
            "3",
            "--samples",
            "3",
        ];
        let record = program.record(&fixture("smollm"), &[&more[..], &ALL].concat());
        for step in record.done(0).sweeps[0]
            .runs
            .iter()
            .flat_map(|run| &run.steps)
        {
            let sampling = step.sampling.expect("a sampled step");
            let kept = &step.top_logprobs[..sampling.kept];
            let mass: f64 = kept.iter().map(|candidate| f64::from(candidate.prob)).sum();
            assert!((mass - f64::from(sampling.kept_mass)).abs() < 1e-6);
            let temperature = record.done(0).sweeps[0].temperature;
            let weight = |logprob: f32| (f64::from(logprob) / temperature).exp();
            let total: f64 = kept.iter().map(|candidate| weight(candidate.logprob)).sum();
            assert!((weight(step.logprob) / total - f64::from(sampling.prob)).abs() < 1e-5);
            assert!(step.rank <= sampling.kept, "a removed token was drawn");
            assert_eq!(step.top_logprobs.len(), 320, "no candidate is missing");
            assert!(
                step.top_logprobs
                    .iter()
                    .all(|candidate| candidate.logprob.is_finite())
            );
        }
    }
}

/// B05: with temperature 0 the candidates of the first token were broken.
#[test]
fn temperature_zero_gives_the_raw_numbers_of_the_greedy_run() {
    let program = Program::new();
    let record = program.record(
        &fixture("smollm"),
        &[
            "-p",
            "A, B or C?",
            "--temps",
            "0",
            "--samples",
            "1",
            "--max-new-tokens",
            "5",
            "--candidates",
            "10",
        ],
    );
    let done = record.done(0);
    let sampled = &done.sweeps[0].runs[0];
    assert_eq!(sampled.ids(), done.greedy.ids());
    for (a, b) in sampled.steps.iter().zip(&done.greedy.steps) {
        assert_eq!(a.top_logprobs, b.top_logprobs);
        assert_eq!(a.sampling.map(|s| (s.prob, s.kept)), Some((1.0, 1)));
    }
}

/// B06: nobody could tell whether the numbers were raw or scaled by temperature.
#[test]
fn the_raw_number_ignores_the_setting_and_step1_agrees_with_the_sampler() {
    let program = Program::new();
    let model = fixture("smollm");
    let record = program.record(
        &model,
        &[
            "-p",
            "hello",
            "--temps",
            "0.5,1,2",
            "--max-new-tokens",
            "1",
            "--candidates",
            "320",
        ],
    );
    let step1 = program.step1(
        &model,
        &["-p", "hello", "--temps", "0.5,1,2", "--candidates", "320"],
    );
    let raw = &record.done(0).greedy.steps[0].top_logprobs;
    for (index, sweep) in record.done(0).sweeps[..3].iter().enumerate() {
        for run in &sweep.runs {
            let step = &run.steps[0];
            assert_eq!(&step.top_logprobs, raw);
            let tempered = step1
                .candidates
                .iter()
                .find(|candidate| candidate.token_id == step.token_id);
            let tempered = tempered.expect("every token is listed").probs[index];
            let sampled = step.sampling.expect("a sampled step").prob;
            assert!(
                (tempered - sampled).abs() < 1e-6,
                "{tempered} and {sampled}"
            );
        }
    }
}

/// B13: softmax and running sums in low precision stopped growing before the tail.
#[test]
fn counts_over_a_large_vocabulary_are_those_of_exact_sums() {
    // every logit is a multiple of 1/8 and tens of thousands of candidates have none but a tiny share
    let logits: Vec<f32> = (0..248_320u32)
        .map(|id| (id.wrapping_mul(2_654_435_761) >> 25) as f32 / 8.0)
        .collect();
    let distribution = Distribution::from_logits(logits.clone()).expect("finite");
    for temperature in [1.0, 5.0, 20.0] {
        let probs = distribution.probs_at(temperature);
        let mut counts = [0u64; 128];
        logits
            .iter()
            .for_each(|logit| counts[(logit * 8.0) as usize] += 1);
        let weight = |eighths: usize| (eighths as f64 / 8.0 / temperature).exp();
        let total: f64 = (0..128).map(|e| counts[e] as f64 * weight(e)).sum();
        for (id, logit) in logits.iter().enumerate().step_by(997) {
            let exact = weight((logit * 8.0) as usize) / total;
            assert!((probs[id] / exact - 1.0).abs() < 1e-9);
        }
        let divided = logits
            .iter()
            .map(|logit| logit / temperature as f32)
            .collect();
        let count = Distribution::from_logits(divided)
            .expect("finite")
            .mass_count(0.9);
        let (mut mass, mut expected) = (0.0, 0.0);
        for eighths in (0..128).rev() {
            let level = counts[eighths] as f64 * weight(eighths) / total;
            if mass + level >= 0.9 {
                expected += ((0.9 - mass) * total / weight(eighths)).ceil();
                break;
            }
            mass += level;
            expected += counts[eighths] as f64;
        }
        // the tolerance of the mass is worth a few of so many
        let slack = 2.0 + 1e-6 * 3.0 * logits.len() as f64;
        assert!(
            (count as f64 - expected).abs() <= slack,
            "{count} and {expected}"
        );
    }
}

/// B14: a near-certain token's logprob was slightly positive and became null.
#[test]
fn a_certainty_is_zero_and_neither_null_nor_minus_zero() {
    let crafted = Crafted::new()
        .logits(b'A', &[(b'B', 90.0)])
        .logits(b'B', &[(b'B', 90.0)]);
    let program = Program::new();
    let ran = program
        .json(
            crafted.write().path(),
            &["--raw", "-p", "A", "--max-new-tokens", "3"],
        )
        .success();
    for step in ran.record().steps() {
        assert_eq!((step.logprob.to_bits(), step.prob), (0, 1.0));
    }
    assert!(!ran.stdout.contains("-0.0,") && !ran.stdout.contains("\"logprob\": null"));
}
