//! A crafted checkpoint fixes any distribution through files: exact counts, ties, filters and marks, end to end.
//!
//! One Llama layer whose `o_proj` and `down_proj` are zero, an identity embedding, a final norm of 1/√d and an untied head: the
//! logits after token i are column i of `lm_head.weight` (to rounding; equal entries stay equal).

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Tokens, hidden size and rows of the head.
const SIZE: usize = 64;
/// A logit whose probability is nothing beside the others'.
const NEVER: f32 = -60.0;

/// The vocabulary: one token for each byte; the last three are the bytes of 你.
const BYTES: &[u8; SIZE] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456.\n\xe4\xbd\xa0";

/// A checkpoint in the making: the distribution after each token, as far as it was set.
pub(crate) struct Crafted {
    columns: BTreeMap<u8, Vec<(u8, f32)>>,
    config: Value,
    files: Vec<(&'static str, Value)>,
}

impl Crafted {
    pub(crate) fn new() -> Self {
        let config = json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": SIZE, "hidden_size": SIZE,
            "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "max_position_embeddings": 128, "rms_norm_eps": 1e-12, "hidden_act": "silu", "tie_word_embeddings": false
        });
        Self {
            columns: BTreeMap::new(),
            config,
            files: Vec::new(),
        }
    }

    /// Sets the logits after a token; all others are never drawn.
    pub(crate) fn logits(mut self, after: u8, logits: &[(u8, f32)]) -> Self {
        self.columns.insert(after, logits.to_vec());
        self
    }

    /// Sets the probabilities after a token.
    pub(crate) fn probs(self, after: u8, probs: &[(u8, f64)]) -> Self {
        let logits: Vec<_> = probs
            .iter()
            .map(|&(token, prob)| (token, prob.ln() as f32))
            .collect();
        self.logits(after, &logits)
    }

    pub(crate) fn config(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    pub(crate) fn file(mut self, name: &'static str, value: Value) -> Self {
        self.files.push((name, value));
        self
    }

    pub(crate) fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        self.write_tensors(folder.path())
            .expect("the tensors are written");
        let vocab: serde_json::Map<String, Value> = BYTES
            .iter()
            .enumerate()
            .map(|(id, &byte)| (byte_char(byte).to_string(), id.into()))
            .collect();
        let tokenizer = json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false},
            "model": {"type": "BPE", "vocab": vocab, "merges": []}
        });
        let files = [
            ("config.json", &self.config),
            ("tokenizer.json", &tokenizer),
        ]
        .into_iter();
        for (name, value) in files.chain(self.files.iter().map(|(name, value)| (*name, value))) {
            std::fs::write(folder.path().join(name), value.to_string()).expect(name);
        }
        folder
    }

    fn write_tensors(&self, folder: &Path) -> candle_core::Result<()> {
        let mut head = vec![NEVER; SIZE * SIZE];
        for (&after, logits) in &self.columns {
            for &(token, logit) in logits {
                head[usize::from(id(token)) * SIZE + usize::from(id(after))] = logit;
            }
        }
        let cpu = &Device::Cpu;
        let zeros = |rows, columns| Tensor::zeros((rows, columns), candle_core::DType::F32, cpu);
        let ones = |value: f64| Tensor::full(value as f32, SIZE, cpu);
        let layer = "model.layers.0";
        let tensors = std::collections::HashMap::from([
            (
                "model.embed_tokens.weight".to_owned(),
                Tensor::eye(SIZE, candle_core::DType::F32, cpu)?,
            ),
            (
                "model.norm.weight".to_owned(),
                ones(1.0 / (SIZE as f64).sqrt())?,
            ),
            (
                "lm_head.weight".to_owned(),
                Tensor::from_vec(head, (SIZE, SIZE), cpu)?,
            ),
            (format!("{layer}.input_layernorm.weight"), ones(1.0)?),
            (
                format!("{layer}.post_attention_layernorm.weight"),
                ones(1.0)?,
            ),
            (
                format!("{layer}.self_attn.q_proj.weight"),
                zeros(SIZE, SIZE)?,
            ),
            (
                format!("{layer}.self_attn.k_proj.weight"),
                zeros(SIZE / 2, SIZE)?,
            ),
            (
                format!("{layer}.self_attn.v_proj.weight"),
                zeros(SIZE / 2, SIZE)?,
            ),
            (
                format!("{layer}.self_attn.o_proj.weight"),
                zeros(SIZE, SIZE)?,
            ),
            (format!("{layer}.mlp.gate_proj.weight"), zeros(4, SIZE)?),
            (format!("{layer}.mlp.up_proj.weight"), zeros(4, SIZE)?),
            (format!("{layer}.mlp.down_proj.weight"), zeros(SIZE, 4)?),
        ]);
        candle_core::safetensors::save(&tensors, folder.join("model.safetensors"))
    }

    /// Runs the program on the prompt `A` and returns its record.
    fn run(&self, arguments: &[&str]) -> Value {
        let folder = self.write();
        record(
            folder.path(),
            &[&["--raw", "--json", "--prompt", "A"], arguments].concat(),
        )
    }
}

fn record(model: &Path, arguments: &[&str]) -> Value {
    let (before, after) = match arguments.split_first() {
        Some((&"temperature-step1", rest)) => (&["temperature-step1"][..], rest),
        _ => (&[][..], arguments),
    };
    let output = Command::new(env!("CARGO_BIN_EXE_logprobs"))
        .args(before)
        .arg("--model")
        .arg(model)
        .args(after)
        .output()
        .expect("the program runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("a record")
}

pub(crate) fn id(byte: u8) -> u8 {
    BYTES
        .iter()
        .position(|&other| other == byte)
        .expect("the vocabulary has it") as u8
}

/// How a byte-level vocabulary writes a byte: printable ones as they are, the others from U+0100 up (GPT-2).
fn byte_char(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|&other| !is_printable(other)).count() as u32;
    char::from_u32(256 + before).expect("a letter")
}

fn greedy(record: &Value) -> &Vec<Value> {
    record["prompts"][0]["greedy"]["steps"]
        .as_array()
        .expect("steps")
}

fn sweep(record: &Value, index: usize) -> &Value {
    &record["prompts"][0]["sweeps"][index]
}

fn first_steps(record: &Value, index: usize) -> Vec<&Value> {
    let runs = sweep(record, index)["runs"].as_array().expect("runs");
    runs.iter().map(|run| &run["steps"][0]).collect()
}

/// A number of the record, to the precision of probabilities that came through f32 logits.
fn assert_near(value: &Value, expected: f64) {
    let value = value.as_f64().expect("a number");
    assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
}

#[test]
fn probabilities_counts_and_entropy_are_exact() {
    let crafted = Crafted::new().probs(
        b'A',
        &[(b'B', 0.5), (b'C', 0.25), (b'D', 0.125), (b'E', 0.125)],
    );
    let record = crafted.run(&[
        "--samples",
        "0",
        "--max-new-tokens",
        "1",
        "--candidates",
        "9999999",
    ]);
    let step = &greedy(&record)[0];
    assert_eq!(
        (&step["token"], &step["rank"], &step["mass_count"]),
        (&json!("B"), &json!(1), &json!(4))
    );
    assert_near(&step["prob"], 0.5);
    assert_near(&step["entropy_bits"], 1.75);
    assert_near(&step["margin"], 2f64.ln());
    let candidates = step["top_logprobs"].as_array().expect("candidates");
    assert_eq!(
        (candidates.len(), &record["settings"]["candidates"]),
        (SIZE, &json!(SIZE))
    );
    let names: Vec<_> = candidates
        .iter()
        .take(4)
        .map(|candidate| &candidate["token"])
        .collect();
    assert_eq!(names, ["B", "C", "D", "E"]);
    let sum: f64 = candidates
        .iter()
        .filter_map(|candidate| candidate["logprob"].as_f64())
        .map(f64::exp)
        .sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
}

/// A sum that meets the mass exactly is enough (B21): 0.5 + 0.3 for 0.8, and three candidates for 0.9.
#[test]
fn a_nucleus_that_is_met_exactly_needs_no_further_candidate() {
    let crafted = Crafted::new().probs(b'A', &[(b'B', 0.5), (b'C', 0.3), (b'D', 0.1), (b'E', 0.1)]);
    let record = crafted.run(&["--setting", "top_p=0.8", "--max-new-tokens", "1"]);
    assert_eq!(greedy(&record)[0]["mass_count"], 3);
    for step in first_steps(&record, 0) {
        assert_eq!(step["sampling"]["kept"], 2);
        assert_near(&step["sampling"]["kept_mass"], 0.8);
        let raw = step["prob"].as_f64().expect("a number");
        assert_near(&step["sampling"]["prob"], raw / 0.8);
    }
}

/// One tie rule everywhere (B12): the lower id, in argmax, order, top_k and temperature 0.
#[test]
fn ties_go_to_the_lower_id_everywhere() {
    let crafted = Crafted::new().logits(b'A', &[(b'D', 2.0), (b'C', 2.0), (b'B', 1.0)]);
    let record = crafted.run(&[
        "--setting",
        "temperature=0",
        "--setting",
        "top_k=1",
        "--max-new-tokens",
        "1",
    ]);
    let step = &greedy(&record)[0];
    assert_eq!(
        (&step["token"], &step["margin"]),
        (&json!("C"), &json!(0.0))
    );
    assert_eq!(
        (
            &step["top_logprobs"][0]["token"],
            &step["top_logprobs"][1]["token"]
        ),
        (&json!("C"), &json!("D"))
    );
    for index in 0..2 {
        for step in first_steps(&record, index) {
            assert_eq!(
                (&step["token"], &step["sampling"]["kept"]),
                (&json!("C"), &json!(1))
            );
            assert_near(&step["sampling"]["prob"], 1.0);
        }
    }
    let folder = crafted.write();
    let step1 = record_of_step1(folder.path(), "0,1,0.0001");
    assert_eq!(step1["candidates"][0]["token"], "C");
    assert_eq!(step1["candidates"][0]["probs"][0], 1.0);
    assert_near(&step1["candidates"][1]["probs"][2], 0.5);
}

fn record_of_step1(model: &Path, temps: &str) -> Value {
    record(
        model,
        &[
            "temperature-step1",
            "--raw",
            "--json",
            "--prompt",
            "A",
            "--temps",
            temps,
        ],
    )
}

/// Temperature acts first (B27): at 0.5 the best of 3, 2, 1 is a nucleus of 0.8 by itself, at 1 it takes two.
#[test]
fn filters_act_in_the_order_that_the_record_names() {
    let crafted = Crafted::new().logits(b'A', &[(b'B', 3.0), (b'C', 2.0), (b'D', 1.0)]);
    let record = crafted.run(&[
        "--setting",
        "temperature=0.5,top_p=0.8",
        "--setting",
        "top_p=0.8",
        "--max-new-tokens",
        "1",
    ]);
    assert_eq!(
        record["settings"]["filter_order"],
        json!(["temperature", "top_k", "top_p", "min_p"])
    );
    assert_eq!(first_steps(&record, 0)[0]["sampling"]["kept"], 1);
    assert_eq!(first_steps(&record, 1)[0]["sampling"]["kept"], 2);
}

#[test]
fn every_temperature_of_step_one_is_the_softmax_of_the_divided_logits() {
    let crafted = Crafted::new().logits(b'A', &[(b'B', 2.0), (b'C', 1.0), (b'D', 0.0)]);
    let step1 = record_of_step1(crafted.write().path(), "0.5,1,2,1e-30,1e38");
    for (index, expected) in [
        (0, [0.867, 0.117, 0.016]),
        (1, [0.665, 0.245, 0.090]),
        (2, [0.506, 0.307, 0.186]),
        (3, [1.0, 0.0, 0.0]),
    ] {
        for (candidate, expected) in expected.iter().enumerate() {
            let prob = step1["candidates"][candidate]["probs"][index]
                .as_f64()
                .expect("a number");
            assert!((prob - expected).abs() < 6e-4, "{prob} is not {expected}");
        }
    }
    assert_near(&step1["candidates"][4]["probs"][4], 1.0 / SIZE as f64);
    assert_near(&step1["rest"][4], (SIZE - 5) as f64 / SIZE as f64);
}

/// 4,000 draws of one token: every share within five standard deviations of its probability.
#[test]
fn samples_follow_the_distribution_and_filters_renormalise_it() {
    const RUNS: f64 = 4000.0;
    let crafted = Crafted::new().probs(
        b'A',
        &[(b'B', 0.5), (b'C', 0.3), (b'D', 0.15), (b'E', 0.05)],
    );
    let record = crafted.run(&[
        "--setting",
        "temperature=1",
        "--setting",
        "top_k=2",
        "--samples",
        "4000",
        "--max-new-tokens",
        "1",
    ]);
    for (index, shares) in [
        vec![("B", 0.5), ("C", 0.3), ("D", 0.15), ("E", 0.05)],
        vec![("B", 0.625), ("C", 0.375), ("D", 0.0)],
    ]
    .into_iter()
    .enumerate()
    {
        let steps = first_steps(&record, index);
        for (token, share) in shares {
            let drawn = steps.iter().filter(|step| step["token"] == token).count() as f64;
            let deviation = (RUNS * share * (1.0 - share)).sqrt();
            assert!(
                (drawn - RUNS * share).abs() <= 5.0 * deviation,
                "{token}: {drawn} of {RUNS}"
            );
        }
    }
}

#[test]
fn tokens_below_the_threshold_are_marked_and_counted() {
    let crafted = Crafted::new()
        .probs(b'A', &[(b'B', 0.75), (b'C', 0.25)])
        .probs(
            b'B',
            &[
                (b'\n', 0.25),
                (b'D', 0.2),
                (b'E', 0.2),
                (b'F', 0.2),
                (b'G', 0.15),
            ],
        )
        .probs(b'\n', &[(b'H', 1.0)]);
    let record = crafted.run(&["--setting", "temperature=0", "--max-new-tokens", "3"]);
    assert_eq!(record["prompts"][0]["greedy"]["marked"], "B【\\n|0.25】H");
    assert_eq!(record["prompts"][0]["greedy"]["text"], "B\nH");
    assert_eq!(
        (
            &sweep(&record, 0)["low_probability_tokens"],
            &sweep(&record, 0)["distinct_replies"]
        ),
        (&json!(5), &json!(1))
    );
}

/// Any of the stop ids ends a reply, wherever a file names it (B61), and the end is a step but no text (B64).
#[test]
fn a_reply_ends_at_any_stop_id_that_a_file_names() {
    let crafted = Crafted::new()
        .config("eos_token_id", json!(id(b'X')))
        .file(
            "generation_config.json",
            json!({"eos_token_id": [id(b'X'), id(b'Z')]}),
        )
        .file(
            "tokenizer_config.json",
            json!({"eos_token": {"content": "Y", "special": true}}),
        )
        .probs(b'A', &[(b'B', 1.0)])
        .probs(b'B', &[(b'Z', 1.0)])
        .probs(b'C', &[(b'Y', 1.0)]);
    let record = crafted.run(&["--samples", "0", "--prompt", "C"]);
    assert_eq!(
        record["settings"]["stop_ids"],
        json!([id(b'X'), id(b'Y'), id(b'Z')])
    );
    let run = &record["prompts"][0]["greedy"];
    assert_eq!(
        (&run["finish_reason"], greedy(&record).len()),
        (&json!("stop"), 2)
    );
    assert_eq!(run["steps"][1]["token_id"], id(b'Z'));
    assert_eq!(
        record["prompts"][1]["greedy"]["steps"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
}

/// A limit in the middle of a character (B34) and the whole character (B33).
#[test]
fn an_unfinished_character_is_listed_and_a_finished_one_is_text() {
    let crafted = Crafted::new()
        .probs(b'A', &[(0xe4, 1.0)])
        .probs(0xe4, &[(0xbd, 1.0)])
        .probs(0xbd, &[(0xa0, 1.0)])
        .probs(0xa0, &[(b'B', 1.0)]);
    let cut = crafted.run(&["--samples", "0", "--max-new-tokens", "2"]);
    let run = &cut["prompts"][0]["greedy"];
    assert_eq!(
        (&run["text"], &run["marked"]),
        (&json!(""), &json!("\\xE4\\xBD"))
    );
    assert_eq!(run["incomplete_bytes"], json!([0xe4, 0xbd]));
    assert_eq!(
        (&run["steps"][0]["token"], &run["steps"][0]["bytes"]),
        (&json!("\\xE4"), &json!([0xe4]))
    );
    let whole = crafted.run(&["--samples", "0", "--max-new-tokens", "4"]);
    assert_eq!(whole["prompts"][0]["greedy"]["text"], "你B");
    assert_eq!(
        whole["prompts"][0]["greedy"]["incomplete_bytes"],
        Value::Null
    );
}

/// The reply ends where the model's longest sequence does, with its own reason (B67).
#[test]
fn a_reply_that_fills_the_context_says_so() {
    let crafted = Crafted::new()
        .config("max_position_embeddings", json!(4))
        .probs(b'A', &[(b'B', 1.0)])
        .probs(b'B', &[(b'B', 1.0)]);
    let record = crafted.run(&["--samples", "0"]);
    let run = &record["prompts"][0]["greedy"];
    assert_eq!(
        (&run["finish_reason"], &run["text"]),
        (&json!("context"), &json!("BBB"))
    );
}
