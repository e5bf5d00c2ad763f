//! Folders in the hub's layout, opened through the public doors: files, stop ids, templates and tensors.

use std::path::Path;

use logprobs::checkpoint::folder::Folder;
use logprobs::checkpoint::safetensors::SafetensorsFiles;
use logprobs::model::TensorSource;
use logprobs::model::config::DecoderConfig;

fn folder(name: &str) -> Folder {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    Folder::open(&fixtures.join(name)).expect(name)
}

#[test]
fn every_family_opens_and_its_embedding_has_the_size_that_its_config_says() {
    for name in ["qwen35", "qwen35-text", "qwen2", "qwen3", "llama", "smollm"] {
        let folder = folder(name);
        let config = DecoderConfig::from_hf(&folder.config).expect(name);
        let weights = SafetensorsFiles::open(&folder.weight_files, folder.weight_map.as_ref());
        let weights = weights.expect(name);
        weights
            .tensor(
                "embed_tokens.weight",
                &[config.vocab_size, config.hidden_size],
            )
            .expect(name);
        assert!(weights.contains("norm.weight"), "{name}");
        assert!(
            weights.names().all(|tensor| !tensor.contains("visual")),
            "{name}"
        );
    }
}

#[test]
fn the_two_oddly_named_files_of_an_index_are_one_model_and_the_stray_is_not_opened() {
    let folder = folder("llama");
    let names: Vec<_> = folder
        .weight_files
        .iter()
        .filter_map(|path| path.file_name())
        .collect();
    assert_eq!(names, ["weights_a.safetensors", "weights_b.safetensors"]);
}
