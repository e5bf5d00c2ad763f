//! Every family against transformers in float32, on tiny checkpoints (fixtures/README.md): folders and GGUF files.
//!
//! Run with `--nocapture` to see the largest difference of each.

#![allow(clippy::print_stdout, reason = "the differences are worth seeing")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use logprobs::checkpoint::hub::HubOptions;
use logprobs::checkpoint::{Checkpoint, Source};
use logprobs::distribution::Distribution;
use logprobs::explore::{Plan, explore};
use logprobs::kernels::Isa;
use logprobs::model::decoder::Decoder;
use logprobs::model::{Backend, LanguageModel, Logits};
use logprobs::setting::Setting;
use serde::Deserialize;

/// Largest difference of a log-probability between two correct float32 forward passes. On these checkpoints float32 itself
/// is up to 3e-4 from float64 (fixtures/README.md).
const LOGPROB_TOLERANCE: f64 = 1e-3;
/// A smaller margin between the two best logits may be decided by rounding.
const DECIDED_MARGIN: f64 = 1e-3;
/// A mass closer to a count's border may be decided by rounding.
const DECIDED_SLACK: f64 = 1e-4;

const FOLDERS: [&str; 6] = ["qwen35", "qwen35-text", "qwen2", "qwen3", "llama", "smollm"];
const GGUFS: [&str; 5] = ["qwen35", "qwen2", "qwen3", "llama", "smollm-q8_0"];

/// What transformers computed for one checkpoint.
#[derive(Deserialize)]
pub(crate) struct Trace {
    pub(crate) prompt_token_ids: Vec<u32>,
    pub(crate) steps: Vec<ReferenceStep>,
    #[serde(default)]
    positions: Vec<Vec<(u32, f64)>>,
}

/// One greedy step of the reference.
#[derive(Deserialize)]
pub(crate) struct ReferenceStep {
    id: u32,
    logit: f64,
    logprob: f64,
    entropy_bits: f64,
    mass_count: usize,
    mass_slack: [f64; 2],
    margin: f64,
    top: Vec<(u32, f64)>,
}

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Opens a checkpoint and loads it on the CPU in f32.
pub(crate) fn load(path: &Path) -> Decoder {
    load_on(path, &Backend::Kernels(Isa::current())).expect("the checkpoint loads")
}

/// As [`load`], on candle's tensor operations.
fn load_on_tensors(path: &Path, dtype: DType) -> Decoder {
    let device = Device::Cpu;
    load_on(path, &Backend::Tensors { device, dtype }).expect("the checkpoint loads")
}

pub(crate) fn load_on(path: &Path, backend: &Backend) -> Result<Decoder> {
    let source = Source::locate(path.as_os_str(), None)?;
    let checkpoint = Checkpoint::open(
        &source,
        &HubOptions {
            offline: true,
            progress: false,
        },
    )?;
    Decoder::load(
        &checkpoint.config,
        checkpoint.weights.as_ref(),
        backend,
        &|| (),
    )
}

pub(crate) fn trace(path: &Path) -> Trace {
    let bytes = std::fs::read(path).expect("the reference is in the repository");
    serde_json::from_slice(&bytes).expect("the reference is JSON")
}

/// Every checkpoint with its reference.
pub(crate) fn cases() -> Vec<(String, PathBuf, Trace)> {
    let folders = FOLDERS.iter().map(|name| {
        let folder = fixtures().join(name);
        let trace = trace(&folder.join("trace.json"));
        ((*name).to_owned(), folder, trace)
    });
    let files = GGUFS.iter().map(|name| {
        let gguf = fixtures().join("gguf");
        (
            format!("{name}.gguf"),
            gguf.join(format!("{name}.gguf")),
            trace(&gguf.join(format!("{name}.trace.json"))),
        )
    });
    folders.chain(files).collect()
}

/// Feeds a reference's greedy reply behind its prompt and compares every listed number.
pub(crate) fn assert_steps(
    name: &str,
    model: &impl LanguageModel<Shown = Vec<f32>>,
    trace: &Trace,
) -> f64 {
    let mut row = model.start();
    let mut logits = model.extend(&mut row, &trace.prompt_token_ids).expect(name);
    let mut worst = 0f64;
    for (index, step) in trace.steps.iter().enumerate() {
        let d = Distribution::from_logits(logits).expect(name);
        let here = format!("{name}, step {}", index + 1);
        for &(id, logprob) in step.top.iter().chain([&(step.id, step.logprob)]) {
            worst = worst.max((d.logprob(id) - logprob).abs());
        }
        assert!(worst <= LOGPROB_TOLERANCE, "{here}: {worst}");
        assert!(
            (f64::from(d.logit(step.id)) - step.logit).abs() <= 10.0 * LOGPROB_TOLERANCE,
            "{here}"
        );
        assert!(
            (d.entropy_bits() - step.entropy_bits).abs() <= 10.0 * LOGPROB_TOLERANCE,
            "{here}"
        );
        if step.margin > DECIDED_MARGIN {
            assert_eq!(d.argmax(), step.id, "{here}");
            let margin = f64::from(d.margin().expect("a second candidate"));
            assert!(
                (margin - step.margin).abs() <= 2.0 * LOGPROB_TOLERANCE,
                "{here}: {margin}"
            );
        }
        if step.mass_slack.iter().all(|slack| *slack > DECIDED_SLACK) {
            assert_eq!(d.mass_count(0.9), step.mass_count, "{here}");
        }
        match trace.steps.get(index + 1) {
            Some(_) => logits = model.extend(&mut row, &[step.id]).expect(name),
            None => break,
        }
    }
    worst
}

/// Returns the largest difference of the listed log-probabilities after every token of the prompt.
fn worst_position(trace: &Trace, positions: &[Logits]) -> f64 {
    assert_eq!(positions.len(), trace.positions.len());
    let mut worst = 0f64;
    for (logits, expected) in positions.iter().zip(&trace.positions) {
        let d = Distribution::from_logits(logits.clone()).expect("finite logits");
        worst = expected.iter().fold(worst, |worst, &(id, logprob)| {
            worst.max((d.logprob(id) - logprob).abs())
        });
    }
    worst
}

/// The logits after every token, fed in pieces of the given lengths, over and over.
pub(crate) fn in_pieces(model: &Decoder, tokens: &[u32], lengths: &[usize]) -> Vec<Logits> {
    let mut row = model.start();
    let mut positions = Vec::new();
    let mut rest = tokens;
    for &length in lengths.iter().cycle() {
        let (piece, after) = rest.split_at(length.min(rest.len()));
        model
            .score(&mut row, piece, &mut |_, logits| {
                positions.push(logits);
                Ok(())
            })
            .expect("the piece fits");
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    assert_eq!(row.len(), tokens.len());
    positions
}

/// On the kernels and on candle's tensor operations, which is what a GPU runs.
#[test]
fn every_family_gives_the_numbers_of_transformers() {
    for (name, path, trace) in cases() {
        let tensors = || load_on_tensors(&path, DType::F32);
        for (backend, model) in [("kernels", load(&path)), ("tensors", tensors())] {
            let steps = assert_steps(&name, &model, &trace);
            let positions =
                worst_position(&trace, &in_pieces(&model, &trace.prompt_token_ids, &[1000]));
            println!(
                "{name}, {backend}: largest log-probability difference {steps:.1e} in the reply, {positions:.1e} in the prompt"
            );
            assert!(positions <= LOGPROB_TOLERANCE, "{name}: {positions}");
        }
    }
}

/// State carried from one piece to the next is where recurrent models go wrong.
#[test]
fn a_prompt_in_uneven_pieces_on_tensors_is_the_prompt_in_one() {
    for (name, path, trace) in cases() {
        let model = load_on_tensors(&path, DType::F32);
        for lengths in [&[3, 2, 85, 1, 1, 40][..], &[1], &[64, 64], &[7]] {
            let worst =
                worst_position(&trace, &in_pieces(&model, &trace.prompt_token_ids, lengths));
            assert!(worst <= LOGPROB_TOLERANCE, "{name}, {lengths:?}: {worst}");
        }
    }
}

/// Rows of any lengths step together as each would alone, and clones fed different tokens are fresh runs: to the bit on the
/// kernels, to rounding on tensors.
#[test]
fn rows_of_a_batch_and_forks_of_a_row_never_see_each_other() {
    for (name, path, trace) in cases() {
        assert_rows_are_apart(&name, &load(&path), &trace.prompt_token_ids, 0.0);
        let tensors = load_on_tensors(&path, DType::F32);
        assert_rows_are_apart(&name, &tensors, &trace.prompt_token_ids, LOGPROB_TOLERANCE);
    }
}

fn assert_rows_are_apart(name: &str, model: &Decoder, tokens: &[u32], tolerance: f64) {
    let mut trunk = model.start();
    model.extend(&mut trunk, &tokens[..20]).expect(name);
    let mut rows = vec![trunk.clone(), model.start(), trunk.clone(), trunk.clone()];
    model.extend(&mut rows[1], &tokens[..3]).expect(name);
    model.extend(&mut rows[3], &tokens[20..60]).expect(name);
    for round in 0..3 {
        let next: Vec<u32> = (0..4).map(|row| tokens[60 + 7 * row + round]).collect();
        let together = model.step(&mut rows, &next).expect(name);
        for (index, logits) in together.iter().enumerate() {
            let begun: &[u32] = [&tokens[..20], &tokens[..3], &tokens[..20], &tokens[..60]][index];
            let fed = (0..=round).map(|round| tokens[60 + 7 * index + round]);
            let history: Vec<u32> = begun.iter().copied().chain(fed).collect();
            let alone = model.extend(&mut model.start(), &history).expect(name);
            let worst = difference(logits, &alone);
            assert!(
                worst <= tolerance,
                "{name}, row {index}, round {round}: {worst}"
            );
        }
    }
    assert_eq!(trunk.len(), 20);
}

#[test]
fn a_run_alone_is_the_run_in_its_batch() -> Result<()> {
    let settings =
        [0.3, 0.7, 1.0, 1.5].map(|t| Setting::OFF.with_temperature(t).expect("a temperature"));
    for name in ["qwen35", "llama", "smollm"] {
        let path = fixtures().join(name);
        let model = load(&path);
        let prompt = &trace(&path.join("trace.json")).prompt_token_ids[..24];
        let plan = Plan {
            max_new_tokens: 20,
            settings: settings.to_vec(),
            runs: (0..5).collect(),
            seed: 0,
            stop_ids: vec![300],
            candidates: 5,
            mass: 0.9,
        };
        let explored =
            |plan: &Plan| explore(&model, prompt, plan, &mut |_| ControlFlow::Continue(()));
        let all = explored(&plan)?.expect("nobody interrupts");
        for (setting, traces) in settings.iter().zip(&all.sweeps) {
            for together in traces {
                let one = Plan {
                    settings: vec![*setting],
                    runs: vec![together.run],
                    ..plan.clone()
                };
                let alone = explored(&one)?.expect("nobody interrupts");
                assert_eq!(alone.sweeps, [[together.clone()]], "{name}");
            }
        }
    }
    Ok(())
}

fn difference(a: &Logits, b: &Logits) -> f64 {
    let (a, b) = (
        Distribution::from_logits(a.clone()),
        Distribution::from_logits(b.clone()),
    );
    let (a, b) = (a.expect("finite logits"), b.expect("finite logits"));
    (0..a.vocab_size() as u32)
        .map(|id| (a.logprob(id) - b.logprob(id)).abs())
        .fold(0.0, f64::max)
}

/// All 150 positions and the hidden states after every layer, against a float64 run of the specification.
#[test]
fn qwen35_is_within_rounding_of_float64_in_logits_and_hidden_states() -> Result<()> {
    const LOGIT_TOLERANCE: f64 = 2e-3;
    let folder = fixtures().join("qwen35");
    let golden = candle_core::safetensors::load(folder.join("golden.safetensors"), &Device::Cpu)?;
    let f64s = |name: &str| {
        golden[name]
            .to_dtype(DType::F64)
            .and_then(|t| t.to_vec2::<f64>())
    };
    let tokens: Vec<u32> = golden["input_ids"]
        .to_dtype(DType::U32)?
        .flatten_all()?
        .to_vec1()?;
    let model = load(&folder);

    for lengths in [&[150][..], &[3, 2, 85, 1, 1]] {
        let logits = in_pieces(&model, &tokens, lengths);
        let worst = worst_of(&logits, &f64s("logits_f64")?);
        println!(
            "qwen35 in pieces of {lengths:?}: largest logit difference to float64 {worst:.1e}"
        );
        assert!(worst <= LOGIT_TOLERANCE, "{worst}");
    }

    let mut observed = Vec::new();
    let mut rows = [model.start()];
    let mut observe = |_: usize, xs: &Tensor| observed.push(xs.to_vec2::<f32>());
    let last = model.hidden(&mut rows, &[tokens.len()], &tokens, &mut observe)?;
    observed.pop();
    observed.push(last.to_vec2::<f32>());
    for (index, states) in observed.into_iter().enumerate() {
        let worst = worst_of(&states?, &f64s(&format!("hidden_{index}"))?);
        assert!(worst <= LOGIT_TOLERANCE, "hidden_{index}: {worst}");
    }
    Ok(())
}

fn worst_of(ours: &[Vec<f32>], golden: &[Vec<f64>]) -> f64 {
    assert_eq!((ours.len(), ours[0].len()), (golden.len(), golden[0].len()));
    let pairs = ours.iter().flatten().zip(golden.iter().flatten());
    pairs
        .map(|(ours, golden)| (f64::from(*ours) - golden).abs())
        .fold(0.0, f64::max)
}

/// candle's own models of the older families, as a second opinion that shares no line of the forward pass.
#[test]
fn candle_transformers_gives_the_same_numbers_for_the_families_it_has() -> Result<()> {
    use candle_transformers::models::{llama, qwen2, qwen3};
    for name in ["llama", "smollm", "qwen2", "qwen3"] {
        let folder = fixtures().join(name);
        let tokens = trace(&folder.join("trace.json")).prompt_token_ids;
        let config = std::fs::read(folder.join("config.json"))?;
        let files: Vec<PathBuf> = match name {
            "llama" => vec![
                folder.join("weights_a.safetensors"),
                folder.join("weights_b.safetensors"),
            ],
            _ => vec![folder.join("model.safetensors")],
        };
        let mut tensors = std::collections::HashMap::new();
        for file in files {
            tensors.extend(candle_core::safetensors::load(file, &Device::Cpu)?);
        }
        let vb = VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
        let input = Tensor::new(tokens.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
        let logits = match name {
            "qwen2" => {
                // candle's model slides its window although `use_sliding_window` is false
                let mut config: serde_json::Value = serde_json::from_slice(&config)?;
                config["sliding_window"] = 1_000_000.into();
                qwen2::ModelForCausalLM::new(&serde_json::from_value(config)?, vb)?
                    .forward(&input, 0)?
            }
            "qwen3" => qwen3::ModelForCausalLM::new(&serde_json::from_slice(&config)?, vb)?
                .forward(&input, 0)?,
            _ => {
                // candle reads the older layout of the rotary keys only
                let mut config: serde_json::Value = serde_json::from_slice(&config)?;
                if let Some(theta) = config.pointer("/rope_parameters/rope_theta").cloned() {
                    config["rope_theta"] = theta;
                }
                let config: llama::LlamaConfig = serde_json::from_value(config)?;
                let config = config.into_config(false);
                let mut cache = llama::Cache::new(false, DType::F32, &config, &Device::Cpu)?;
                llama::Llama::load(vb, &config)?.forward(&input, 0, &mut cache)?
            }
        };
        let theirs: Logits = logits.flatten_all()?.to_vec1()?;
        let model = load(&folder);
        let ours = model.extend(&mut model.start(), &tokens)?;
        let worst = difference(&ours, &theirs);
        println!("{name}: largest log-probability difference to candle-transformers {worst:.1e}");
        assert!(worst <= LOGPROB_TOLERANCE, "{name}: {worst}");
    }
    Ok(())
}

/// What a GPU computes in: the same code path in bf16 stays near float32 (8 bits of precision, so a loose bound).
#[test]
fn bf16_takes_the_same_path() -> Result<()> {
    for name in FOLDERS {
        let folder = fixtures().join(name);
        let tokens = trace(&folder.join("trace.json")).prompt_token_ids;
        let (exact, rounded) = (load(&folder), load_on_tensors(&folder, DType::BF16));
        let exact = exact.extend(&mut exact.start(), &tokens[..40])?;
        let rounded = rounded.extend(&mut rounded.start(), &tokens[..40])?;
        let mean = exact
            .iter()
            .zip(&rounded)
            .map(|(a, b)| f64::from((a - b).abs()))
            .sum::<f64>()
            / exact.len() as f64;
        assert!(mean > 0.0 && mean < 0.5, "{name}: {mean}");
    }
    Ok(())
}

#[test]
fn a_token_outside_the_vocabulary_or_a_sequence_that_is_too_long_is_refused() {
    let model = load(&fixtures().join("llama"));
    let mut row = model.start();
    for (tokens, expected) in [
        (
            vec![320],
            "token id 320 is outside the vocabulary (expected 0 to 319)",
        ),
        (
            vec![1; 257],
            "257 tokens do not fit (the model takes 256 and has seen 0)",
        ),
        (vec![], "there is no token"),
    ] {
        let error = model
            .extend(&mut row, &tokens)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}
