//! The recorded runs in `sample_output` and `sample_output_en`: their files agree with each other and with today's renderer and schema.

use std::path::Path;

use logprobs::record::{FinishReason, PromptEntry, PromptRecord, Record, TemperatureStep1};
use logprobs::report::html::{self, Section};
use logprobs::report::{json, table};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A recorded run: where it is, and whether its first prompt's first step is beside it.
struct Sample {
    record: &'static str,
    text: &'static str,
    step1: Option<&'static str>,
    prompts: [&'static str; 2],
    fact: &'static str,
}

const ENGLISH: [&str; 2] = [
    "What is the capital of France? Answer in one sentence.",
    "Recommend an independent coffee shop in Seattle with its name and street address, in one sentence.",
];

const SAMPLES: [Sample; 3] = [
    Sample {
        record: "sample_output_en/smollm2-135m-instruct.json",
        text: "sample_output_en/smollm2-135m-instruct.txt",
        step1: Some("sample_output_en/temperature_step1_cpu.json"),
        prompts: ENGLISH,
        fact: "The capital of France is Paris.",
    },
    Sample {
        record: "sample_output_en/demo.json",
        text: "sample_output_en/demo.txt",
        step1: None,
        prompts: ENGLISH,
        fact: "The capital of France is Paris.",
    },
    Sample {
        record: "sample_output/demo.json",
        text: "sample_output/demo.txt",
        step1: Some("sample_output/temperature_step1_cpu.json"),
        prompts: logprobs::prompts::BUILT_IN,
        fact: "法国的首都是巴黎。",
    },
];

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn parsed<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&text(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn prompt(record: &Record, index: usize) -> &PromptRecord {
    match &record.prompts[index] {
        PromptEntry::Done(done) => done,
        PromptEntry::Failed(failed) => panic!("{}: {}", failed.prompt, failed.error),
    }
}

fn written(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    json::write(value, &mut bytes).expect("a vector takes everything");
    String::from_utf8(bytes).expect("JSON is UTF-8")
}

#[test]
fn the_console_text_is_what_the_record_renders_to() {
    for sample in &SAMPLES {
        let record: Record = parsed(sample.record);
        let mut rendered = Vec::new();
        table::header(&record, &mut rendered).expect("a vector takes everything");
        for index in 0..record.prompts.len() {
            table::prompt(&record, index, table::View::default(), &mut rendered)
                .expect("a vector takes everything");
        }
        let plain = anstream::adapter::strip_bytes(&rendered).into_vec();
        let plain = String::from_utf8(plain).expect("tables are UTF-8");
        let stored = text(sample.text);
        for (number, (rendered, stored)) in (1..).zip(plain.lines().zip(stored.lines())) {
            assert_eq!(
                rendered, stored,
                "{}, line {number}; after a change of the renderer run sample_output_en/record.sh",
                sample.text
            );
        }
        assert_eq!(plain, stored);
    }
}

#[test]
fn the_stored_records_are_read_and_written_to_the_same_bytes() {
    for sample in &SAMPLES {
        assert!(written(&parsed::<Record>(sample.record)) == text(sample.record));
        if let Some(step1) = sample.step1 {
            assert!(written(&parsed::<TemperatureStep1>(step1)) == text(step1));
        }
    }
}

#[test]
fn temperature_one_of_the_first_step_is_step_one_of_the_record_to_the_bit() {
    for sample in &SAMPLES {
        let Some(step1) = sample.step1 else { continue };
        let (record, step1): (Record, TemperatureStep1) = (parsed(sample.record), parsed(step1));
        let prompt = prompt(&record, 0);
        assert_eq!(
            (&step1.prompt, &step1.rendered, &step1.prompt_token_ids),
            (&prompt.prompt, &prompt.rendered, &prompt.prompt_token_ids)
        );
        let column = step1.temperatures.iter().position(|&t| t == 1.0);
        let column = column.expect("temperature 1 is a default");
        let of_step1 = step1.candidates.iter();
        let of_step1: Vec<_> = of_step1
            .map(|c| (c.token_id, &c.bytes, c.probs[column].to_bits()))
            .collect();
        let of_record = prompt.greedy.steps[0].top_logprobs.iter();
        let of_record: Vec<_> = of_record
            .map(|c| (c.token_id, &c.bytes, c.prob.to_bits()))
            .collect();
        assert_eq!(of_step1, of_record);
        assert_eq!(
            step1.candidates[0].logit.map(f32::to_bits),
            prompt.greedy.steps[0].logit.map(f32::to_bits)
        );
    }
}

#[test]
fn the_greedy_reply_to_a_known_fact_is_right_and_ends_by_itself() {
    for sample in &SAMPLES {
        let record: Record = parsed(sample.record);
        let greedy = &prompt(&record, 0).greedy;
        assert_eq!(
            (greedy.text.as_str(), greedy.finish_reason),
            (sample.fact, FinishReason::Stop)
        );
    }
}

#[test]
fn the_records_are_runs_of_the_documented_prompts_with_defaults() {
    for sample in &SAMPLES {
        let record: Record = parsed(sample.record);
        assert_eq!(
            [0, 1].map(|index| prompt(&record, index).prompt.as_str()),
            sample.prompts
        );
        let settings = &record.settings;
        assert_eq!(
            (settings.samples, settings.seed, settings.max_new_tokens),
            (5, 0, 64)
        );
        for index in [0, 1] {
            let labels = prompt(&record, index)
                .sweeps
                .iter()
                .map(|sweep| &sweep.label);
            assert_eq!(
                labels.collect::<Vec<_>>(),
                [
                    "temperature 0.3",
                    "temperature 0.7",
                    "temperature 1.0",
                    "temperature 1.5",
                    "temperature 1.0, top_p 0.9"
                ]
            );
        }
    }
}

#[test]
fn the_page_is_what_the_records_beside_it_are_rendered_to() {
    let record: Record = parsed("sample_output_en/smollm2-135m-instruct.json");
    let step1: TemperatureStep1 = parsed("sample_output_en/temperature_step1_cpu.json");
    let mut page = Vec::new();
    html::write(&[Section::Run(&record), Section::Step1(&step1)], &mut page)
        .expect("a vector takes everything");
    assert!(
        page == text("sample_output_en/smollm2-135m-instruct.html").as_bytes(),
        "the page is out of date (sample_output_en/README.md has the command)"
    );
}
