//! What llama.cpp calls the tensors of a Hugging Face checkpoint, and what its converter did to each of them.
//!
//! Sources: llama.cpp `gguf-py/gguf/constants.py` (names), `conversion/llama.py` and `conversion/qwen.py` (changes).

/// What a converter did to a tensor, and a reader has to undo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// 1 was added to the weight of a zero-centred norm.
    PlusOne,
    /// The two halves of each query head's rows were interleaved, so that rotated pairs are neighbours.
    QueryHalves,
    /// The same for each key head.
    KeyHalves,
    /// The value heads, one row each, were reordered from grouped by key head to tiled.
    ValueHeads,
    /// The same for heads of as many rows as a value head is wide.
    ValueRows,
    /// The same for rows that follow those of all q and k heads.
    ValueRowsAfterKeys,
    /// The same for columns.
    ValueColumns,
    /// The logarithms of the decay rates became negative rates, one for each (reordered) value head.
    NegativeRates,
}

/// A tensor's name in a Hugging Face checkpoint, its name in a GGUF file, and the change between them. Where both end in
/// `.weight` or both in `.bias` the ending is left out.
type Row = (&'static str, &'static str, Change);

const OUTSIDE: &[Row] = &[
    ("embed_tokens", "token_embd", Change::None),
    ("norm", "output_norm", Change::PlusOne),
    ("lm_head", "output", Change::None),
];

const IN_LAYERS: &[Row] = &[
    ("input_layernorm", "attn_norm", Change::PlusOne),
    ("post_attention_layernorm", "ffn_norm", Change::None),
    ("mlp.gate_proj", "ffn_gate", Change::None),
    ("mlp.up_proj", "ffn_up", Change::None),
    ("mlp.down_proj", "ffn_down", Change::None),
    ("self_attn.q_proj", "attn_q", Change::QueryHalves),
    ("self_attn.k_proj", "attn_k", Change::KeyHalves),
    ("self_attn.v_proj", "attn_v", Change::None),
    ("self_attn.o_proj", "attn_output", Change::None),
    ("self_attn.q_norm", "attn_q_norm", Change::PlusOne),
    ("self_attn.k_norm", "attn_k_norm", Change::PlusOne),
];

/// Rows that only Qwen3.5 has; they come before those of all families.
const IN_QWEN3_5_LAYERS: &[Row] = &[
    (
        "post_attention_layernorm",
        "post_attention_norm",
        Change::PlusOne,
    ),
    (
        "linear_attn.in_proj_qkv",
        "attn_qkv",
        Change::ValueRowsAfterKeys,
    ),
    ("linear_attn.in_proj_z", "attn_gate", Change::ValueRows),
    ("linear_attn.in_proj_b", "ssm_beta", Change::ValueHeads),
    ("linear_attn.in_proj_a", "ssm_alpha", Change::ValueHeads),
    (
        "linear_attn.conv1d",
        "ssm_conv1d",
        Change::ValueRowsAfterKeys,
    ),
    ("linear_attn.A_log", "ssm_a", Change::NegativeRates),
    ("linear_attn.dt_bias", "ssm_dt.bias", Change::ValueHeads),
    ("linear_attn.norm", "ssm_norm", Change::None),
    ("linear_attn.out_proj", "ssm_out", Change::ValueColumns),
];

/// Returns a tensor's name in a GGUF file and what was changed; `None` where files of this family (`model_type`) have no
/// such tensor.
pub(super) fn in_file(name: &str, model_type: &str) -> Option<(String, Change)> {
    let (layer, part) = match name.strip_prefix("layers.") {
        Some(rest) => rest
            .split_once('.')
            .map(|(layer, part)| (Some(layer), part))?,
        None => (None, name),
    };
    let (stem, ending) = split_ending(part);
    let (_, stored, change) = rows(layer.is_some(), model_type).find(|row| row.0 == stem)?;
    let change = match (change, model_type) {
        (Change::QueryHalves | Change::KeyHalves, family) if family != "llama" => Change::None,
        (Change::PlusOne, family) if family != "qwen3_5" => Change::None,
        _ => *change,
    };
    let block = layer.map_or(String::new(), |layer| format!("blk.{layer}."));
    Some((format!("{block}{stored}{ending}"), change))
}

/// Returns whether a GGUF file's tensor belongs to the text model of `num_layers` layers, and not to a drafting block
/// behind them, an image encoder or the like.
pub(super) fn is_text(stored: &str, model_type: &str, num_layers: usize) -> bool {
    let (in_layer, part) = match stored.strip_prefix("blk.").map(|rest| rest.split_once('.')) {
        Some(Some((layer, part))) => match layer.parse::<usize>() {
            Ok(layer) if layer < num_layers => (true, part),
            _ => return false,
        },
        _ => (false, stored),
    };
    let (stem, _) = split_ending(part);
    rows(in_layer, model_type).any(|row| row.1 == stem || row.1 == part)
}

fn rows(in_layer: bool, model_type: &str) -> impl Iterator<Item = &'static Row> {
    let (first, then) = match (in_layer, model_type) {
        (false, _) => (&[][..], OUTSIDE),
        (true, "qwen3_5") => (IN_QWEN3_5_LAYERS, IN_LAYERS),
        (true, _) => (&[][..], IN_LAYERS),
    };
    first.iter().chain(then)
}

fn split_ending(part: &str) -> (&str, &str) {
    let length = [".weight", ".bias"]
        .iter()
        .find_map(|ending| part.strip_suffix(ending))
        .map_or(part.len(), str::len);
    part.split_at(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_family() {
        for (name, family, stored, change) in [
            (
                "embed_tokens.weight",
                "llama",
                "token_embd.weight",
                Change::None,
            ),
            ("lm_head.weight", "qwen3", "output.weight", Change::None),
            ("norm.weight", "qwen3", "output_norm.weight", Change::None),
            (
                "norm.weight",
                "qwen3_5",
                "output_norm.weight",
                Change::PlusOne,
            ),
            (
                "layers.7.self_attn.q_proj.weight",
                "llama",
                "blk.7.attn_q.weight",
                Change::QueryHalves,
            ),
            (
                "layers.7.self_attn.k_proj.bias",
                "qwen2",
                "blk.7.attn_k.bias",
                Change::None,
            ),
            (
                "layers.0.post_attention_layernorm.weight",
                "qwen3",
                "blk.0.ffn_norm.weight",
                Change::None,
            ),
            (
                "layers.0.post_attention_layernorm.weight",
                "qwen3_5",
                "blk.0.post_attention_norm.weight",
                Change::PlusOne,
            ),
            (
                "layers.1.linear_attn.A_log",
                "qwen3_5",
                "blk.1.ssm_a",
                Change::NegativeRates,
            ),
            (
                "layers.1.linear_attn.dt_bias",
                "qwen3_5",
                "blk.1.ssm_dt.bias",
                Change::ValueHeads,
            ),
            (
                "layers.1.linear_attn.norm.weight",
                "qwen3_5",
                "blk.1.ssm_norm.weight",
                Change::None,
            ),
        ] {
            assert_eq!(
                in_file(name, family),
                Some((stored.to_owned(), change)),
                "{name}"
            );
            assert!(is_text(stored, family, 8), "{stored}");
        }
        assert_eq!(in_file("layers.0.linear_attn.A_log", "qwen2"), None);
        assert_eq!(in_file("rope.freqs", "llama"), None);
    }

    #[test]
    fn blocks_behind_the_layers_and_other_models_are_not_text() {
        assert!(!is_text("blk.24.attn_q.weight", "qwen3_5", 24));
        assert!(!is_text("blk.23.nextn.eh_proj.weight", "qwen3_5", 24));
        assert!(!is_text("v.blk.0.attn_q.weight", "qwen3_5", 24));
        assert!(!is_text("rope_freqs.weight", "llama", 24));
    }
}
