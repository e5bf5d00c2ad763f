//! The random checkpoints of the benchmark: of the published sizes, the same every time, and models that run.

#[path = "../benches/make_model/random_model/mod.rs"]
mod random_model;

use std::path::{Path, PathBuf};

use random_model::{Dtype, Size, Tensor, Values, write};

use crate::program::{Program, fixture};

fn make(out: &Path, seed: u64, shard_bytes: u64) -> anyhow::Result<u64> {
    let options = write::Options { seed, shard_bytes };
    let tokenizer = fixture("qwen35-text");
    write::checkpoint(&Size::Tiny.shape(), &tokenizer, out, &options)
}

fn tiny(program: &Program, name: &str, seed: u64, shard_bytes: u64) -> PathBuf {
    let out = program.path(name);
    make(&out, seed, shard_bytes).expect("a model");
    out
}

/// Name, stored type and shape as the published list writes them, in order of name.
fn listed(tensors: &[Tensor]) -> Vec<String> {
    let mut lines: Vec<String> = tensors
        .iter()
        .map(|tensor| {
            let shape: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
            format!(
                "{}\t{}\t{}",
                tensor.name,
                tensor.dtype.name(),
                shape.join("x")
            )
        })
        .collect();
    lines.sort();
    lines
}

#[test]
fn a_random_model_has_every_tensor_of_the_published_text_model_and_no_other() {
    for (size, name) in [(Size::B08, "0.8B"), (Size::B2, "2B")] {
        let path = fixture("qwen35-real").join(format!("tensors.Qwen3.5-{name}.tsv"));
        let list = std::fs::read_to_string(path).expect(name);
        let mut published: Vec<&str> = list
            .lines()
            .filter_map(|line| line.strip_prefix("model.language_model."))
            .collect();
        published.sort_unstable();
        assert_eq!(published.len(), 320);
        assert_eq!(listed(&size.shape().tensors()), published, "{name}");
    }
}

#[test]
fn a_random_model_runs_and_no_file_of_it_ends_a_reply_early() {
    let program = Program::new();
    let model = tiny(&program, "tiny", 0, u64::MAX);
    assert_eq!(
        program.files("tiny"),
        [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json"
        ]
    );
    for file in ["config.json", "generation_config.json"] {
        let text = std::fs::read_to_string(model.join(file)).expect(file);
        assert!(!text.contains("eos"), "{text}");
    }
    let record = program.record(&model, &["-p", "Say hi.", "--max-new-tokens", "5"]);
    assert_eq!(record.model.architecture, "qwen3_5");
    assert_eq!(
        (record.model.vocab_size, record.model.weights_dtype.as_str()),
        (512, "bf16")
    );
    let greedy = record.runs().next().expect("the greedy run");
    assert_eq!(greedy.steps.len(), 5);
    // random weights of the usual spread know nothing: no candidate stands out
    let probs: Vec<f32> = greedy.steps.iter().map(|step| step.prob).collect();
    assert!(
        probs.iter().all(|&p| p > 1.0 / 512.0 && p < 0.5),
        "{probs:?}"
    );
}

#[test]
fn the_same_seed_makes_the_same_model_however_it_is_cut_into_files() {
    let program = Program::new();
    let read =
        |name: &str| std::fs::read(program.path(name).join("model.safetensors")).expect(name);
    tiny(&program, "a", 7, u64::MAX);
    tiny(&program, "b", 7, u64::MAX);
    tiny(&program, "other", 8, u64::MAX);
    assert!(read("a") == read("b") && read("a") != read("other"));

    let pieces = tiny(&program, "pieces", 7, 100_000);
    let files = program.files("pieces");
    let num_shards = files
        .iter()
        .filter(|name| name.ends_with(".safetensors"))
        .count();
    assert!(
        num_shards > 2 && files.contains(&"model.safetensors.index.json".to_owned()),
        "{files:?}"
    );
    let arguments = ["-p", "Say hi.", "--samples", "1", "--max-new-tokens", "3"];
    let (whole, cut) = (
        program.record(&program.path("a"), &arguments),
        program.record(&pieces, &arguments),
    );
    assert_eq!(whole.prompts, cut.prompts);
}

#[test]
fn a_folder_that_exists_is_left_alone_and_a_failure_leaves_nothing() {
    let program = Program::new();
    program.write("notes.txt", "mine");
    let error = make(&program.path("notes.txt"), 0, u64::MAX).expect_err("it exists");
    assert!(error.to_string().contains("exists already"), "{error}");

    let out = program.path("model");
    let options = write::Options {
        seed: 0,
        shard_bytes: u64::MAX,
    };
    let error = write::checkpoint(&Size::Tiny.shape(), &program.path("no"), &out, &options)
        .expect_err("no tokenizer");
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
    assert_eq!(program.files("."), ["notes.txt"]);
}

/// More than a thread makes at a time.
const MANY: usize = 1_100_000;

fn numbers(dtype: Dtype, values: Values) -> Vec<f32> {
    let tensor = Tensor {
        name: "x".to_owned(),
        shape: vec![MANY / 1000, 1000],
        dtype,
        values,
    };
    let mut bytes = Vec::new();
    let collect = &mut |piece: &[u8]| {
        bytes.extend(piece);
        Ok(())
    };
    write::numbers(&tensor, 3, 1, collect).expect("numbers");
    let number = |bytes: &[u8]| match bytes {
        [a, b] => f32::from_le_bytes([0, 0, *a, *b]),
        bytes => f32::from_le_bytes(bytes.try_into().expect("four bytes")),
    };
    bytes.chunks(dtype.size()).map(number).collect()
}

fn mean_and_std(numbers: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let mean = numbers.clone().sum::<f64>() / MANY as f64;
    let squares = numbers.map(|x| (x - mean).powi(2));
    (mean, (squares.sum::<f64>() / MANY as f64).sqrt())
}

#[test]
fn stored_numbers_have_the_mean_and_the_spread_they_were_asked_for() {
    for (dtype, mean) in [(Dtype::F32, 1.0), (Dtype::Bf16, 0.0)] {
        let numbers = numbers(dtype, Values::Normal { mean, std: 0.02 });
        assert_eq!(numbers.len(), MANY);
        let (m, std) = mean_and_std(numbers.iter().map(|&x| f64::from(x)));
        // four standard errors
        assert!(
            (m - mean).abs() < 7.6e-5 && (std - 0.02).abs() < 5.4e-5,
            "{m} {std}"
        );
        let is_far = |x: &&f32| (f64::from(**x) - mean).abs() > 0.06;
        // 0.27 % of a normal distribution lie beyond three standard deviations: 2970, give or take four times 54
        let far = numbers.iter().filter(is_far).count();
        assert!((2752..3188).contains(&far), "{far}");
        assert_ne!(numbers[..1000], numbers[1 << 20..][..1000]);
    }
    let (low, high) = (0.5, 8.0);
    let numbers = numbers(Dtype::F32, Values::LogUniform { low, high });
    assert!(numbers.iter().all(|x| (0.5..=8.0).contains(&x.exp())));
    let (mean, _) = mean_and_std(numbers.iter().map(|&x| f64::from(x).exp()));
    assert!((mean - 4.25).abs() < 0.0083, "{mean}");
}
