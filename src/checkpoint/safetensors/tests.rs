//! Tests of [`SafetensorsFiles`] on files written by hand.

use candle_core::DType;
use serde_json::{Map, json};
use tempfile::TempDir;

use super::*;

/// A tensor to write: name, type, shape, bytes.
type Written<'a> = (&'a str, &'a str, &'a [usize], &'a [u8]);

const EMBEDDING: Written = (
    "model.embed_tokens.weight",
    "F32",
    &[1, 1],
    &[0, 0, 128, 63],
);

fn write(folder: &TempDir, file: &str, tensors: &[Written]) -> PathBuf {
    let mut header = Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert((*name).to_owned(), entry);
        data.extend_from_slice(bytes);
    }
    let header = serde_json::to_vec(&header).expect("a header");
    let mut content = (header.len() as u64).to_le_bytes().to_vec();
    content.extend(header);
    content.extend(data);
    let path = folder.path().join(file);
    std::fs::write(&path, content).expect("a file");
    path
}

/// One f32 of this name.
fn one(name: &str) -> Written<'_> {
    (name, "F32", &[1], &[0, 0, 128, 63])
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn opened(tensors: &[Written]) -> SafetensorsFiles {
    let folder = folder();
    let path = write(&folder, "model.safetensors", tensors);
    SafetensorsFiles::open(&[path], None).expect("a model")
}

fn refusal(paths: &[PathBuf], index: Option<&WeightMap>) -> String {
    let opened = SafetensorsFiles::open(paths, index);
    format!("{:#}", opened.err().expect("must be refused"))
}

#[test]
fn every_prefix_is_stripped_and_other_models_are_passed_over() {
    for (prefix, head) in [
        ("model.language_model.", "lm_head.weight"),
        ("language_model.model.", "language_model.lm_head.weight"),
        ("model.", "lm_head.weight"),
        ("", "lm_head.weight"),
    ] {
        let named = |name: &str| format!("{prefix}{name}");
        let names = [
            "embed_tokens.weight",
            "layers.0.linear_attn.A_log",
            "norm.weight",
        ]
        .map(named);

        let files = opened(&[
            one(&names[0]),
            one(&names[1]),
            one(&names[2]),
            one(head),
            one("model.visual.patch_embed.weight"),
            one("mtp.layers.0.norm.weight"),
        ]);
        let expected = [
            "embed_tokens.weight",
            "layers.0.linear_attn.A_log",
            "lm_head.weight",
            "norm.weight",
        ];
        assert_eq!(
            files.names().collect::<Vec<_>>(),
            expected,
            "prefix `{prefix}`"
        );
        assert_eq!(files.num_skipped(), 2);
        assert!(files.contains("lm_head.weight") && !files.contains("mtp.layers.0.norm.weight"));
        assert_eq!(files.memory_bytes(), 16);
    }
}

#[test]
fn sixteen_bits_become_f32_exactly() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for (name, dtype) in [("F16", DType::F16), ("BF16", DType::BF16)] {
        let ours = to_f32(name, &halves).expect("a known type");
        let candle = Tensor::from_raw_buffer(&halves, dtype, &[1 << 16], &Device::Cpu)
            .and_then(|tensor| tensor.to_dtype(DType::F32)?.to_vec1::<f32>())
            .expect("candle reads it too");
        for (half, (a, b)) in ours.iter().zip(&candle).enumerate() {
            let same = a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            assert!(same, "{name} {half:#06x}: {a} and {b}");
        }
    }
}

#[test]
fn tensors_come_as_f32_in_their_shape() {
    let half: Vec<u8> = [0x3c00_u16, 0xc000, 0x3800, 0]
        .into_iter()
        .flat_map(u16::to_le_bytes)
        .collect();
    let double: Vec<u8> = [0.1_f64, -2.0]
        .into_iter()
        .flat_map(f64::to_le_bytes)
        .collect();
    let files = opened(&[
        EMBEDDING,
        ("model.layers.0.a", "F16", &[2, 2], &half),
        ("model.layers.0.b", "F64", &[2], &double),
        ("model.norm.weight", "BF16", &[1], &[0x80, 0x3f]),
    ]);
    let tensor = |name: &str, shape: &[usize]| files.tensor(name, shape).expect("a tensor");
    let matrix: Vec<Vec<f32>> = tensor("layers.0.a", &[2, 2]).to_vec2().expect("2-d");
    assert_eq!(matrix, [[1.0, -2.0], [0.5, 0.0]]);
    assert_eq!(
        tensor("layers.0.b", &[2]).to_vec1::<f32>().expect("1-d"),
        [0.1, -2.0]
    );
    assert_eq!(
        tensor("norm.weight", &[1]).to_vec1::<f32>().expect("1-d"),
        [1.0]
    );
    assert_eq!(files.weights_dtype(), "f64");
}

#[test]
fn a_missing_tensor_a_wrong_shape_and_an_unread_type_are_named() {
    let files = opened(&[
        EMBEDDING,
        ("model.layers.0.q.weight", "F8_E4M3", &[2], &[0, 0]),
    ]);
    let error = |name: &str, shape: &[usize]| {
        format!(
            "{:#}",
            files.tensor(name, shape).expect_err("must be refused")
        )
    };
    assert!(error("norm.weight", &[1]).contains("tensor `norm.weight` is missing from /"));
    let message = error("embed_tokens.weight", &[2, 1]);
    assert!(
        message.contains("`model.embed_tokens.weight` has shape [1, 1] (expected [2, 1])"),
        "{message}"
    );
    let message = error("layers.0.q.weight", &[2]);
    assert!(
        message.contains("stored as F8_E4M3, which is not read"),
        "{message}"
    );
}

#[test]
fn a_file_that_is_no_weight_file_is_named() {
    let folder = folder();
    let whole = write(&folder, "model.safetensors", &[EMBEDDING]);
    let content = std::fs::read(&whole).expect("the file");
    let refused = |content: &[u8]| {
        std::fs::write(&whole, content).expect("a file");
        let message = refusal(std::slice::from_ref(&whole), None);
        assert!(message.contains("model.safetensors: "), "{message}");
        message
    };
    for length in [0, 7, content.len() / 2, content.len() - 1] {
        let message = refused(&content[..length]);
        assert!(
            message.contains(&format!(": {length} bytes, expected ")),
            "{message}"
        );
    }
    assert!(refused(b"version https://git-lfs.github.com/spec/v1\n").contains("Git LFS pointer"));
    assert!(refused(b"<!doctype html>").contains("a web page"));
    let gone = folder.path().join("gone.safetensors");
    assert!(refusal(&[gone], None).contains("cannot read /"));
}

#[test]
fn what_the_index_promises_must_be_there() {
    let folder = folder();
    let one = ("model.layers.0.a", "F32", &[1][..], &[0, 0, 0, 0][..]);
    let paths = [
        write(&folder, "a", &[EMBEDDING]),
        write(&folder, "b", &[one]),
    ];
    let index = |names: &[(&str, &str)]| -> WeightMap {
        names
            .iter()
            .map(|&(name, file)| (name.to_owned(), file.to_owned()))
            .collect()
    };
    let whole = index(&[
        ("model.embed_tokens.weight", "a"),
        ("model.layers.0.a", "b"),
    ]);
    let files = SafetensorsFiles::open(&paths, Some(&whole)).expect("a model");
    assert_eq!(files.names().count(), 2);
    let other_file = index(&[
        ("model.embed_tokens.weight", "a"),
        ("model.layers.0.a", "a"),
    ]);
    let message = refusal(&paths, Some(&other_file));
    assert!(
        message.starts_with("1 tensors that the index names are missing: `model.layers.0.a` in a"),
        "{message}"
    );
    let names: Vec<String> = (0..7).map(|n| format!("model.layers.{n}.x")).collect();
    let many = index(
        &names
            .iter()
            .map(|name| (name.as_str(), "a"))
            .collect::<Vec<_>>(),
    );
    let message = refusal(&paths, Some(&many));
    assert!(
        message.starts_with("7 tensors") && message.contains("layers.4.x` in a, …;"),
        "{message}"
    );
}

#[test]
fn a_tensor_in_two_files_is_refused_unless_the_index_decides() {
    let folder = folder();
    let other = (
        "model.embed_tokens.weight",
        "F32",
        &[1, 1][..],
        &[0, 0, 0, 64][..],
    );
    let paths = [
        write(&folder, "a", &[EMBEDDING]),
        write(&folder, "b", &[other]),
    ];
    let message = refusal(&paths, None);
    assert!(
        message.starts_with("tensor `model.embed_tokens.weight` is in both /"),
        "{message}"
    );
    let index = WeightMap::from([("model.embed_tokens.weight".to_owned(), "b".to_owned())]);
    let files = SafetensorsFiles::open(&paths, Some(&index)).expect("the index decides");
    let tensor = files
        .tensor("embed_tokens.weight", &[1, 1])
        .expect("a tensor");
    assert_eq!(tensor.to_vec2::<f32>().expect("2-d"), [[2.0]]);
}

#[test]
fn files_without_an_embedding_are_no_text_model() {
    let folder = folder();
    let path = write(
        &folder,
        "a",
        &[("transformer.wte.weight", "F32", &[1], &[0, 0, 0, 0])],
    );
    let message = refusal(&[path], None);
    assert!(
        message.contains("among 1 tensors; the first is `transformer.wte.weight`"),
        "{message}"
    );
}
