//! Laws of comparing, on records of a few literal steps.

use super::*;
use crate::record::{Candidate, FinishReason, ModelInfo, PromptError, Run, Settings, Step, Sweep};
use proptest::prelude::*;

/// A step that lists these tokens with their probabilities and took the first.
pub(crate) fn step(tokens: &[(u32, f64)]) -> Step {
    let candidate = |&(token_id, prob): &(u32, f64)| Candidate {
        token_id,
        token: token_id.to_string(),
        bytes: token_id.to_string().into_bytes(),
        special: false,
        logprob: prob.ln() as f32,
        prob: prob as f32,
    };
    let top_logprobs: Vec<Candidate> = tokens.iter().map(candidate).collect();
    let took = top_logprobs[0].clone();
    Step {
        token_id: took.token_id,
        token: took.token,
        bytes: took.bytes,
        logit: Some(0.0),
        logprob: took.logprob,
        prob: took.prob,
        rank: 1,
        entropy_bits: Some(0.0),
        mass_count: Some(1),
        bounds: None,
        margin: None,
        special: false,
        sampling: None,
        top_logprobs,
    }
}

pub(crate) fn run(steps: &[&[(u32, f64)]]) -> Run {
    Run {
        run: 0,
        text: String::new(),
        marked: String::new(),
        finish_reason: FinishReason::Length,
        incomplete_bytes: Vec::new(),
        steps: steps.iter().map(|tokens| step(tokens)).collect(),
    }
}

/// A sweep of runs 0, 1, … that took these tokens.
pub(crate) fn sweep(temperature: f64, replies: &[&[u32]]) -> Sweep {
    let runs = replies.iter().zip(0..).map(|(reply, index)| Run {
        run: index,
        steps: reply.iter().map(|&id| step(&[(id, 0.5)])).collect(),
        ..run(&[])
    });
    Sweep {
        label: format!("temperature {temperature:?}"),
        temperature,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        distinct_replies: 0,
        low_probability_tokens: 0,
        runs: runs.collect(),
    }
}

pub(crate) fn done(prompt: &str, steps: &[&[(u32, f64)]]) -> PromptRecord {
    PromptRecord {
        id: None,
        prompt: prompt.into(),
        system: None,
        rendered: prompt.into(),
        prompt_token_ids: vec![1, 2],
        greedy: run(steps),
        sweeps: Vec::new(),
        analysis: None,
    }
}

pub(crate) fn failed(prompt: &str) -> PromptEntry {
    PromptEntry::Failed(PromptError {
        id: None,
        prompt: prompt.into(),
        system: None,
        error: "no room".into(),
    })
}

pub(crate) fn record(prompts: Vec<PromptEntry>) -> Record {
    Record {
        schema: SCHEMA,
        program: PROGRAM.into(),
        model: ModelInfo {
            id: "m".into(),
            revision: None,
            architecture: "llama".into(),
            vocab_size: 100,
            weights_dtype: "f32".into(),
            compute_dtype: "f32".into(),
            device: "cpu".into(),
            tiles: false,
            note: None,
            server: None,
        },
        settings: Settings {
            max_new_tokens: 8,
            samples: 1,
            seed: 0,
            candidates: 5,
            mass: 0.9,
            threshold: 0.3,
            thinking: None,
            raw: true,
            system: None,
            filter_order: Vec::new(),
            template_source: None,
            stop_ids: vec![0],
            ignore_eos: false,
            run: None,
            plain_text: false,
            template_date: None,
        },
        prompts,
    }
}

fn compared(a: &Record, b: &Record, tolerance: Option<f64>, strict: bool) -> Comparison {
    let named = |name, record| Named { name, record };
    compare(named("a.json", a), named("b.json", b), tolerance, strict)
}

fn found(a: &Record, b: &Record, strict: bool) -> Vec<What> {
    let findings = compared(a, b, None, strict).findings.into_iter();
    findings.map(|finding| finding.what).collect()
}

fn one(steps: &[&[(u32, f64)]]) -> Record {
    record(vec![PromptEntry::Done(done("hi", steps))])
}

#[test]
fn a_difference_above_the_tolerance_is_found_where_it_is_largest() {
    let a = one(&[&[(1, 0.5)], &[(2, 0.5), (3, 0.1)], &[(4, 0.5)]]);
    let b = one(&[&[(1, 0.5)], &[(2, 0.5), (3, 0.2)], &[(4, 0.4)]]);
    let comparison = compared(&a, &b, Some(0.7), false);
    assert_eq!(comparison.findings, []);
    let largest = comparison.totals.largest_difference.expect("two replies");
    assert!((largest - 2f32.ln()).abs() < 1e-6);
    let beyond = compared(&a, &b, Some(0.69), false);
    let what = What::Difference {
        step: 2,
        largest: Some(largest),
    };
    assert_eq!(beyond.findings, [Finding { prompt: 1, what }]);
    let written = serde_json::to_string(&beyond).expect("it can be written");
    assert_eq!(
        serde_json::from_str::<Comparison>(&written).expect("it can be read"),
        beyond
    );
    assert_eq!(beyond.tolerance.reason, "as asked for");
}

#[test]
fn a_near_tie_is_a_finding_under_strict_alone_and_any_other_flip_always() {
    let near = (
        one(&[&[(1, 0.2401), (2, 0.24)]]),
        one(&[&[(2, 0.2401), (1, 0.24)]]),
    );
    assert_eq!(found(&near.0, &near.1, false), []);
    assert_eq!(compared(&near.0, &near.1, None, false).totals.near_ties, 1);
    let step = 1;
    let near_tie = true;
    assert_eq!(
        found(&near.0, &near.1, true),
        [What::OtherToken { step, near_tie }]
    );
    let far = one(&[&[(2, 0.3), (1, 0.2)]]);
    let near_tie = false;
    assert_eq!(
        found(&near.0, &far, false),
        [What::OtherToken { step, near_tie }]
    );
}

#[test]
fn what_one_record_lacks_is_found_and_what_failed_in_both_is_not() {
    let entry = |prompt: &str| PromptEntry::Done(done(prompt, &[&[(1, 0.5)]]));
    let a = record(vec![
        entry("a"),
        entry("both"),
        failed("x"),
        failed("y"),
        entry("z"),
    ]);
    let b = record(vec![
        entry("both"),
        entry("b"),
        failed("x"),
        entry("y"),
        failed("z"),
    ]);
    let findings: Vec<(usize, What)> = compared(&a, &b, None, false)
        .findings
        .into_iter()
        .map(|finding| (finding.prompt, finding.what))
        .collect();
    assert_eq!(
        findings,
        [
            (1, What::Missing { from: Which::B }),
            (4, What::Failed { from: Which::A }),
            (5, What::Failed { from: Which::B }),
            (6, What::Missing { from: Which::A }),
        ]
    );
}

#[test]
fn other_ids_are_not_compared_and_other_settings_are_said() {
    let a = one(&[&[(1, 0.5)]]);
    let mut b = one(&[&[(1, 0.25)]]);
    if let PromptEntry::Done(done) = &mut b.prompts[0] {
        done.prompt_token_ids.push(7);
        done.rendered.push('!');
    }
    b.settings.seed = 1;
    b.settings.run = Some(0);
    b.model.device = "cuda".into();
    let comparison = compared(&a, &b, None, false);
    assert_eq!(comparison.prompts[0].greedy, None);
    assert_eq!(
        comparison.prompts[0].differs_in,
        ["rendered", "prompt_token_ids"]
    );
    assert_eq!(found(&a, &b, false), [What::OtherInput]);
    let differences = comparison.differences.iter();
    let differences: Vec<_> = differences
        .map(|d| (d.field.as_str(), d.a.to_string(), d.b.to_string()))
        .collect();
    let expected = [
        ("model.device", "\"cpu\"", "\"cuda\""),
        ("settings.seed", "0", "1"),
        ("settings.run", "null", "0"),
    ];
    let expected = expected.map(|(field, a, b)| (field, a.to_owned(), b.to_owned()));
    assert_eq!(differences, expected);
}

#[test]
fn a_shorter_reply_is_found_where_nothing_explains_it() {
    let a = one(&[&[(1, 0.5)], &[(2, 0.5)]]);
    let mut b = one(&[&[(1, 0.5)]]);
    assert_eq!(found(&a, &b, false), [What::OtherLength]);
    b.settings.max_new_tokens = 1;
    assert_eq!(found(&a, &b, false), []);
}

#[test]
fn samples_count_under_strict() {
    let with = |replies: &[&[u32]]| {
        let prompt = PromptRecord {
            sweeps: vec![sweep(1.0, replies)],
            ..done("hi", &[&[(1, 0.5)]])
        };
        record(vec![PromptEntry::Done(prompt)])
    };
    let (a, b) = (with(&[&[1], &[2], &[3]]), with(&[&[1], &[4]]));
    assert_eq!(found(&a, &b, false), []);
    let label = "temperature 1.0".to_owned();
    assert_eq!(found(&a, &b, true), [What::OtherSamples { label, runs: 2 }]);
    assert_eq!(found(&a, &a, true), []);
}

/// Steps of any tokens with any numbers, sound or not.
fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let number = || prop_oneof![-30.0..0.1f32, Just(f32::NEG_INFINITY), Just(1e30)];
    let candidates = prop::collection::vec((0..6u32, number(), number()), 1..5);
    let of = |(candidates, mass_count): (Vec<(u32, f32, f32)>, usize)| {
        let mut step = step(&vec![(0, 0.5); candidates.len()]);
        for (candidate, (id, logprob, prob)) in step.top_logprobs.iter_mut().zip(candidates) {
            (candidate.token_id, candidate.logprob, candidate.prob) = (id, logprob, prob);
        }
        let took = step.top_logprobs[0].clone();
        (step.token_id, step.logprob, step.prob) = (took.token_id, took.logprob, took.prob);
        step.mass_count = Some(mass_count);
        step
    };
    prop::collection::vec((candidates, 0..9usize).prop_map(of), 0..5)
}

fn any_record() -> impl Strategy<Value = Record> {
    let prompt =
        (0..3u8, "[ab]", any_steps(), any_steps()).prop_map(|(kind, text, greedy, sampled)| {
            match kind {
                0 => failed(&text),
                _ => {
                    let mut done = done(&text, &[]);
                    done.greedy.steps = greedy;
                    let mut sweep = sweep(1.0, &[&[]]);
                    sweep.runs[0].steps = sampled;
                    done.sweeps.push(sweep);
                    done.id = (kind == 1).then(|| text.clone());
                    PromptEntry::Done(done)
                }
            }
        });
    prop::collection::vec(prompt, 0..6).prop_map(record)
}

proptest! {
    #[test]
    fn a_record_is_always_within_any_tolerance_of_itself(record in any_record()) {
        let comparison = compared(&record, &record, Some(0.0), true);
        prop_assert_eq!(&comparison.findings, &[]);
        prop_assert_eq!(&comparison.differences, &[]);
        for greedy in comparison.prompts.iter().filter_map(|prompt| prompt.greedy.as_ref()) {
            prop_assert_eq!(&greedy.first_difference, &None);
            prop_assert!(greedy.candidates.is_none_or(|spread| spread.largest == Some(0.0)));
            prop_assert!(greedy.steps.iter().all(|step| step.divergence.kl_lower == 0.0 && step.divergence.moved_lower == 0.0));
        }
    }

    #[test]
    fn any_two_records_can_be_compared_either_way_and_written(a in any_record(), b in any_record(), strict: bool) {
        let (there, back) = (compared(&a, &b, None, strict), compared(&b, &a, None, strict));
        prop_assert_eq!(there.findings.len(), back.findings.len());
        prop_assert_eq!(&there.totals, &back.totals);
        prop_assert!(serde_json::to_string(&there).is_ok());
    }
}
