//! Group 6: loading models, through the program. What a hub says and does is in `hub`, hostile headers are next to the readers.

use std::path::Path;

use candle_core::safetensors::{load, save};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

use crate::program::{Program, Ran, fixture};

const ONE: [&str; 6] = ["-p", "hi", "--samples", "0", "--max-new-tokens", "3"];

fn open(program: &Program, model: &Path) -> Ran {
    program.json(model, &ONE)
}

fn set(folder: &Path, key: &str, value: Value) {
    let path = folder.join("config.json");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("a config")).expect("JSON");
    config[key] = value;
    std::fs::write(path, config.to_string()).expect("a config");
}

/// B68: a pointer file of Git LFS, or a web page, in place of the file.
#[test]
fn a_pointer_or_a_page_in_place_of_a_file_is_named_with_the_way_out() {
    let program = Program::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\nsize 139896\n";
    for name in ["model.safetensors", "tokenizer.json", "config.json"] {
        let model = program.copy("smollm", name);
        std::fs::write(model.join(name), pointer).expect(name);
        open(&program, &model).refused(1, &[name, "git lfs"]);
        std::fs::write(
            model.join(name),
            "<!DOCTYPE html><html><body>Sign in</body></html>",
        )
        .expect(name);
        open(&program, &model).refused(1, &[name]);
    }
}

/// B69: a half-downloaded weight file.
#[test]
fn a_weight_file_of_another_length_is_refused_with_both() {
    let program = Program::new();
    let model = program.copy("smollm", "model");
    let path = model.join("model.safetensors");
    let whole = std::fs::read(&path).expect("weights");
    for length in [whole.len() / 2, 100, 7, 0, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).expect("weights");
        open(&program, &model).refused(1, &["model.safetensors"]);
    }
    std::fs::write(&path, [&whole[..], b"x"].concat()).expect("weights");
    open(&program, &model).refused(1, &["model.safetensors", &whole.len().to_string()]);
}

/// B70: a part that the index names was missing and garbage took its place.
#[test]
fn what_an_index_promises_must_be_there() {
    let program = Program::new();
    let model = program.copy("llama", "model");
    std::fs::remove_file(model.join("weights_b.safetensors")).expect("a part");
    open(&program, &model).refused(1, &["weights_b.safetensors"]);
    let model = program.copy("llama", "outside");
    let index = model.join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).expect("an index");
    std::fs::write(&index, text.replace("weights_b", "../model/weights_b")).expect("an index");
    open(&program, &model).refused(1, &["model.safetensors.index.json"]);
    std::fs::write(&index, &text[..text.len() / 2]).expect("an index");
    open(&program, &model).refused(1, &["model.safetensors.index.json", "line"]);
}

/// B72: tied or not: the flag, the tensor, and what happens when they disagree.
#[test]
fn a_tied_head_is_the_embedding_and_an_untied_one_must_be_there() {
    let program = Program::new();
    let published = open(&program, &fixture("smollm")).success();
    let model = program.copy("smollm", "model");
    let weights = model.join("model.safetensors");
    let mut tensors = load(&weights, &Device::Cpu).expect("weights");
    let embedding = tensors["model.embed_tokens.weight"].clone();
    let other = Tensor::ones_like(&embedding).expect("a tensor");
    for head in [&embedding, &other] {
        tensors.insert("lm_head.weight".to_owned(), head.clone());
        save(&tensors, &weights).expect("weights");
        let tied = open(&program, &model).success();
        assert!(
            tied.stderr.contains("lm_head.weight is not used"),
            "{}",
            tied.stderr
        );
        let ids = |ran: &Ran| ran.record().done(0).greedy.ids();
        assert_eq!(ids(&tied), ids(&published));
    }
    set(&model, "tie_word_embeddings", json!(false));
    let untied = open(&program, &model).success().record();
    assert!(
        untied
            .done(0)
            .greedy
            .steps
            .iter()
            .all(|step| step.mass_count == 288),
        "a head of ones knows nothing"
    );
    tensors.remove("lm_head.weight");
    save(&tensors, &weights).expect("weights");
    open(&program, &model).refused(1, &["lm_head.weight"]);
}

/// B73, B74: nested Qwen3.5 files beside plain ones, and offsets of norm weights in folder and GGUF.
#[test]
fn a_folder_and_its_gguf_file_say_the_same() {
    let program = Program::new();
    for name in ["qwen35", "llama", "qwen2", "qwen3"] {
        let more = [
            "--raw",
            "-p",
            "The capital of France is",
            "--samples",
            "0",
            "--max-new-tokens",
            "8",
        ];
        let folder = program.record(&fixture(name), &more);
        let gguf = program.record(&fixture(&format!("gguf/{name}.gguf")), &more);
        // matrices of llama and qwen2 lose bits on the way
        assert_eq!(
            folder.done(0).prompt_token_ids,
            gguf.done(0).prompt_token_ids
        );
        let (a, b) = (
            &folder.done(0).greedy.steps[0],
            &gguf.done(0).greedy.steps[0],
        );
        assert_eq!(a.token_id, b.token_id, "{name}");
        assert!(
            (a.logprob - b.logprob).abs() < 0.01,
            "{name}: {} and {}",
            a.logprob,
            b.logprob
        );
    }
    program.record(&fixture("qwen35-text"), &ONE);
}

/// B75: a bf16 model on a CPU failed at the first prompt.
#[test]
fn bf16_weights_run_on_a_cpu_without_options() {
    let record = Program::new().record(&fixture("qwen2"), &ONE);
    assert_eq!(
        (
            record.model.weights_dtype.as_str(),
            record.model.compute_dtype.as_str()
        ),
        ("bf16", "f32")
    );
}

/// B81: a path that does not exist was taken for a repository's name.
#[test]
fn a_path_that_is_not_there_never_goes_to_the_network() {
    let program = Program::new();
    std::fs::create_dir(program.path("empty")).expect("a folder");
    program.write("weights.bin", "x");
    for (model, parts) in [
        ("./modles/x", &["no such directory"][..]),
        ("/no/such", &["no such directory"]),
        ("~/m", &["no such"]),
        ("C:\\m\\x", &["no such"]),
        ("a/b/c", &["a/b/c"]),
        ("missing.gguf", &["missing.gguf"]),
        ("empty", &["config.json", "tokenizer.json"]),
        ("weights.bin", &["name the folder"]),
        ("", &["--model"]),
    ] {
        let ran = program.run(&["-p", "x", "--model", model]);
        assert!(!ran.stderr.contains("cache"), "{model}: {}", ran.stderr);
        assert!(matches!(ran.code, Some(1 | 2)));
        for part in parts {
            assert!(
                ran.stderr.contains(part),
                "{model}: no {part:?} in {}",
                ran.stderr
            );
        }
    }
}

/// B82: a quantisation that is not read was called an unknown number.
#[test]
fn a_type_that_is_not_read_is_named_with_its_tensor_and_what_is() {
    let program = Program::new();
    open(&program, &fixture("gguf/iq4_xs.gguf")).refused(1, &["IQ4_XS", "blk.0.", "Q4_K"]);
    let whole = std::fs::read(fixture("gguf/llama.gguf")).expect("a file");
    let cut = program.write("cut.gguf", &whole[..whole.len() / 2]);
    open(&program, &cut).refused(1, &["cut.gguf"]);
    let other = program.write("other.gguf", [b"GGML", &whole[4..]].concat());
    open(&program, &other).refused(1, &["other.gguf", "GGUF"]);
}
