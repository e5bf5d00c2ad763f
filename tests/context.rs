//! `context`: published sizes to the byte, without a weight; and the manners of the command.

use std::path::Path;
use std::process::Stdio;

use serde::{Deserialize, Deserializer};

use crate::program::{Program, Ran, fixture};

/// What `context --json` writes, written down a second time.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Context {
    schema: u32,
    program: String,
    model: Model,
    max_tokens: u64,
    num_attention_layers: u64,
    num_gated_delta_layers: u64,
    sizes: Sizes,
    num_parameters: u64,
    memory: Precisions<Memory>,
    prefill: Prefill,
    totals: Vec<Total>,
    #[serde(default)]
    prompt: Option<Prompt>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    id: String,
    #[serde(deserialize_with = "nullable")]
    revision: Option<String>,
    architecture: String,
    #[serde(deserialize_with = "nullable")]
    weights_dtype: Option<String>,
    #[serde(default)]
    stored_bytes: Option<u64>,
    #[serde(default)]
    note: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sizes {
    num_key_value_heads: u64,
    head_dim: u64,
    conv_dim: u64,
    linear_conv_kernel_dim: u64,
    linear_num_value_heads: u64,
    linear_key_head_dim: u64,
    linear_value_head_dim: u64,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Precisions<T> {
    bf16: T,
    f32: T,
    cpu: T,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Memory {
    weights_bytes: u64,
    kv_bytes_per_token: u64,
    conv_state_bytes: u64,
    recurrent_state_bytes: u64,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Prefill {
    flops_per_token: u64,
    attention_flops_per_pair: u64,
    head_flops: u64,
    #[serde(deserialize_with = "nullable")]
    attention_is_half_at: Option<u64>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Total {
    tokens: u64,
    fits: bool,
    prefill_flops: u64,
    attention_flops: u64,
    memory: Precisions<TotalMemory>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct TotalMemory {
    kv_bytes: u64,
    total_bytes: u64,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Prompt {
    prompt: String,
    num_tokens: u64,
    remaining: u64,
    fits: bool,
}

fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

fn ask(program: &Program, model: &Path, arguments: &[&str]) -> Ran {
    let mut command = program.command(&["context", "--model"]);
    Ran::of(command.arg(model).args(arguments))
}

fn record(program: &Program, model: &Path, arguments: &[&str]) -> Context {
    let ran = ask(program, model, &[arguments, &["--json"]].concat()).success();
    serde_json::from_str(&ran.stdout).expect("the schema")
}

/// A folder that has nothing but a published `config.json`.
fn published(program: &Program, size: &str) -> std::path::PathBuf {
    let folder = program.path(format!("Qwen3.5-{size}"));
    std::fs::create_dir_all(&folder).expect("a folder");
    let config = fixture(&format!("qwen35-real/config.Qwen3.5-{size}.json"));
    std::fs::copy(config, folder.join("config.json")).expect("a config");
    folder
}

#[test]
fn a_published_config_alone_gives_a_hybrid_models_costs() {
    let program = Program::new();
    let record = record(&program, &published(&program, "2B"), &[]);
    assert_eq!(record.model.weights_dtype.as_deref(), Some("bf16"));
    assert_eq!(
        (record.max_tokens, record.num_parameters),
        (262_144, 1_881_825_088)
    );
    assert_eq!(
        (record.num_attention_layers, record.num_gated_delta_layers),
        (6, 18)
    );
    let memory = &record.memory;
    // six layers of two heads of 256, keys and values
    assert_eq!(memory.bf16.kv_bytes_per_token, 12 * 1024);
    assert_eq!(memory.cpu.kv_bytes_per_token, 24 * 1024);
    assert_eq!(
        (memory.bf16.weights_bytes, memory.cpu.weights_bytes),
        (3_763_650_176, 3_763_650_176)
    );
    assert_eq!(memory.f32.weights_bytes, 7_527_300_352);
    assert_eq!(memory.cpu.recurrent_state_bytes, 18 * 16 * 128 * 128 * 4);
    assert_eq!(memory.cpu.conv_state_bytes, 18 * 3 * 6144 * 4);
    let lengths: Vec<u64> = record.totals.iter().map(|total| total.tokens).collect();
    assert_eq!(lengths, [1024, 8192, 32_768, 262_144]);
    let longest = &record.totals[3];
    assert_eq!(longest.memory.bf16.kv_bytes, 3 << 30);
    assert_eq!(longest.memory.cpu.kv_bytes, 6 << 30);
    assert!(longest.fits && longest.attention_flops * 2 > longest.prefill_flops);
    assert!(record.totals[0].attention_flops * 50 < record.totals[0].prefill_flops);
}

#[test]
fn the_formula_is_written_out() {
    let program = Program::new();
    let shown = ask(&program, &published(&program, "2B"), &[])
        .success()
        .stdout;
    for part in [
        "2 × 6 attention layers × 2 kv heads × 256 head_dim × 2 bytes = 12288 bytes in bf16",
        "18 layers × 3 inputs × 6144 channels × 2 bytes = 663552 bytes, at any length",
        "18 layers × 16 heads × 128 × 128 × 2 bytes = 9437184 bytes, at any length",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
}

#[test]
fn a_model_of_attention_alone_has_no_states() {
    let program = Program::new();
    let config = r#"{"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864,
        "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16"}"#;
    std::fs::create_dir(program.path("m")).expect("a folder");
    program.write("m/config.json", config);
    let model = program.path("m");
    let record = record(&program, &model, &[]);
    assert_eq!(record.memory.bf16.kv_bytes_per_token, 12_288);
    assert_eq!(
        (record.memory.bf16.conv_state_bytes, record.sizes.conv_dim),
        (0, 0)
    );
    assert_eq!(record.num_parameters, 494_032_768);
    let shown = ask(&program, &model, &[]).success().stdout;
    assert!(
        !shown.contains("recurrent") && shown.contains("24 layers of attention"),
        "{shown}"
    );
}

/// What is computed from sizes is what the checkpoints' own headers add up to.
#[test]
fn parameters_are_those_of_the_files() {
    let program = Program::new();
    for folder in ["llama", "qwen2", "qwen3", "qwen35"] {
        let file = fixture(&format!("gguf/{folder}.gguf"));
        let gguf = logprobs::checkpoint::gguf::GgufFile::open(&file).expect("a file");
        let bytes = gguf.memory_bytes();
        let from_file = record(&program, &file, &[]);
        assert_eq!(4 * from_file.num_parameters, bytes, "{folder}");
        assert_eq!(from_file.memory.cpu.weights_bytes, bytes, "{folder}");
        assert!(
            from_file
                .model
                .stored_bytes
                .is_some_and(|stored| stored <= bytes)
        );
        let from_config = record(&program, &fixture(folder), &[]);
        assert_eq!(
            from_config.num_parameters, from_file.num_parameters,
            "{folder}"
        );
        assert_eq!(from_config.memory.bf16, from_file.memory.bf16, "{folder}");
    }
}

#[test]
fn a_prompt_takes_the_tokens_that_the_main_command_gives_the_model() {
    let program = Program::new();
    let model = fixture("qwen35");
    for more in [
        &["-p", "Hi"][..],
        &["-p", "Hi", "--raw"],
        &["-p", "Hi", "--system", "Be brief."],
    ] {
        let prompt = record(&program, &model, more).prompt.expect("a prompt");
        let main = program.record(
            &model,
            &[more, &["--samples", "0", "--max-new-tokens", "1"]].concat(),
        );
        let tokens = main.done(0).prompt_token_ids.len() as u64;
        assert_eq!((prompt.prompt.as_str(), prompt.num_tokens), ("Hi", tokens));
        assert_eq!((prompt.remaining, prompt.fits), (512 - tokens, true));
    }
    let long = "word ".repeat(600);
    let prompt = record(&program, &model, &["-p", &long])
        .prompt
        .expect("a prompt");
    assert_eq!((prompt.remaining, prompt.fits), (0, false));
    let shown = ask(&program, &model, &["-p", &long]).success().stdout;
    assert!(shown.contains("it does not fit"), "{shown}");
}

#[test]
fn lengths_are_numbers_thousands_or_the_longest() {
    let program = Program::new();
    let model = fixture("smollm");
    let record = record(
        &program,
        &model,
        &["--tokens", "7,1k", "max", "--tokens", "1M"],
    );
    let max = record.max_tokens;
    let totals: Vec<_> = record
        .totals
        .iter()
        .map(|total| (total.tokens, total.fits))
        .collect();
    assert_eq!(
        totals,
        [
            (7, true),
            (1024, 1024 <= max),
            (max, true),
            (1 << 20, false)
        ]
    );
    let shown = ask(&program, &model, &["--tokens", "1M"]).success().stdout;
    assert!(
        shown.contains(&format!("* longer than the model's context of {max}")),
        "{shown}"
    );
    for length in [
        "0",
        "-1",
        "x",
        "1.5k",
        "99999999999999999999",
        "18446744073709551615k",
    ] {
        ask(&program, &model, &["--tokens", length]).refused(2, &["a number of tokens such as"]);
    }
    let huge = ask(&program, &model, &["--tokens", "18446744073709551615"])
        .success()
        .stdout;
    assert!(huge.contains("16 EiB"), "{huge}");
}

#[test]
fn neither_weights_nor_tokenizer_are_read() {
    let program = Program::new();
    let whole = record(&program, &fixture("qwen2"), &[]);
    let model = program.copy("qwen2", "qwen2");
    for name in ["model.safetensors", "tokenizer.json"] {
        std::fs::remove_file(model.join(name)).expect(name);
        assert_eq!(record(&program, &model, &[]), whole);
    }
    ask(&program, &model, &["-p", "x", "--raw"]).refused(1, &["tokenizer.json is missing"]);
    std::fs::remove_file(model.join("config.json")).expect("removed");
    ask(&program, &model, &[]).refused(1, &["missing config.json"]);
}

#[test]
fn what_is_refused_says_why() {
    let program = Program::new();
    std::fs::create_dir(program.path("m")).expect("a folder");
    program.write(
        "m/config.json",
        r#"{"model_type": "gemma3", "vocab_size": 10}"#,
    );
    ask(&program, &program.path("m"), &[]).refused(1, &["model_type `gemma3` is not supported"]);
    for line in [
        &["--raw"][..],
        &["--thinking"],
        &["--system", "x"],
        &["stray"],
        &["-p", "x", "--plain-text"],
    ] {
        ask(&program, Path::new("no/such/model"), line).refused(2, &["--help"]);
    }
}

#[test]
fn a_hostile_name_is_escaped_and_colour_follows_the_flag() {
    let program = Program::new();
    let hostile = "\u{1b}]0;x\u{7}\u{202e}";
    let model = program.copy("qwen2", hostile);
    let shown = ask(&program, &model, &["-p", hostile]).success().stdout;
    assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{shown}");
    let model = fixture("qwen2");
    let shown = ask(&program, &model, &["--color", "always"])
        .success()
        .stdout;
    assert!(shown.contains("\u{1b}["));
    let mut command = program.command(&["context", "--model"]);
    let shown = Ran::of(
        command
            .arg(&model)
            .env("NO_COLOR", "1")
            .env("CLICOLOR_FORCE", "1"),
    );
    assert!(!shown.success().stdout.contains('\u{1b}'));
}

#[test]
fn the_same_command_gives_the_same_bytes_and_a_closed_pipe_is_success() {
    let program = Program::new();
    let model = fixture("qwen35");
    let both = [(); 2].map(|()| ask(&program, &model, &["--json"]).success().stdout);
    assert_eq!(both[0], both[1]);
    let lengths = vec!["1,2,3,4,5,6,7,8,9"; 2000].join(",");
    for more in [&[][..], &["--json"]] {
        let mut child = program
            .command(&["context", "--tokens", &lengths, "--model"])
            .arg(&model)
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        assert_eq!(Ran::wait(child).success().stderr, "");
    }
}
