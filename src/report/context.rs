//! What a sequence costs for a terminal: the model's figures with the formulas written out, and totals by length.

use std::io::{self, Write};

use super::columns::{self, Line, Side};
use super::table::{BOLD, DIM, LOW, plural, title};
use crate::context::{ContextRecord, Memory, PromptLength, Total};
use crate::text::display::escape_line;

/// Writes everything that `record` has.
///
/// # Errors
/// When `out` fails.
pub fn table(record: &ContextRecord, out: &mut impl Write) -> io::Result<()> {
    header(record, out)?;
    writeln!(out)?;
    figures(record, out)?;
    writeln!(out)?;
    formulas(record, out)?;
    writeln!(out)?;
    totals(&record.totals, out)?;
    if record.totals.iter().any(|total| !total.fits) {
        writeln!(
            out,
            "{LOW}*{LOW:#} longer than the model's context of {}",
            record.max_tokens
        )?;
    }
    growth(record, out)?;
    match &record.prompt {
        Some(prompt) => remaining(prompt, record, out),
        None => Ok(()),
    }
}

fn header(record: &ContextRecord, out: &mut impl Write) -> io::Result<()> {
    let model = &record.model;
    let revision = model
        .revision
        .as_ref()
        .map(|revision| format!(" at {}", escape_line(revision)))
        .unwrap_or_default();
    let dtype = model
        .weights_dtype
        .as_ref()
        .map(|dtype| format!(", {} weights", escape_line(dtype)))
        .unwrap_or_default();
    let stored = model
        .stored_bytes
        .map(|bytes| format!(" of {}", in_words(bytes)))
        .unwrap_or_default();
    writeln!(
        out,
        "{}: {BOLD}{}{BOLD:#}{revision} ({}{dtype}{stored})",
        record.program,
        escape_line(&model.id),
        model.architecture
    )?;
    if let Some(note) = &model.note {
        writeln!(out, "{BOLD}{}{BOLD:#}", escape_line(note))?;
    }
    let (attention, delta) = (record.num_attention_layers, record.num_gated_delta_layers);
    let layers = match delta {
        0 => format!("{attention} layers of attention"),
        _ => format!(
            "{} layers: {attention} of attention, {}",
            attention + delta,
            plural(delta as usize, "gated delta net")
        ),
    };
    writeln!(
        out,
        "context of at most {}; {layers}; {} parameters",
        plural(record.max_tokens as usize, "token"),
        record.num_parameters
    )
}

/// Weights, KV and states in three precisions.
fn figures(record: &ContextRecord, out: &mut impl Write) -> io::Result<()> {
    let precisions = &record.memory;
    let row = |name: &str, bytes: fn(&Memory) -> u64| {
        let all = [&precisions.bf16, &precisions.f32, &precisions.cpu];
        let cells = all.into_iter().map(|memory| in_words(bytes(memory)));
        Line::plain(std::iter::once(name.to_owned()).chain(cells).collect())
    };
    let titles = ["", "bf16", "f32", "here, on the CPU"].map(str::to_owned);
    let mut lines = vec![
        Line::title(titles.to_vec()),
        row("weights", |memory| memory.weights_bytes),
        row("KV of a token", |memory| memory.kv_bytes_per_token),
    ];
    if record.num_gated_delta_layers > 0 {
        lines.push(row("conv states", |memory| memory.conv_state_bytes));
        lines.push(row("recurrent states", |memory| {
            memory.recurrent_state_bytes
        }));
    }
    let sides = [Side::Left, Side::Right, Side::Right, Side::Right];
    columns::write(&sides, &lines, out)?;
    writeln!(
        out,
        "{DIM}  here, on the CPU: weights as they are stored (f32 of a GGUF file), everything else f32{DIM:#}"
    )
}

fn formulas(record: &ContextRecord, out: &mut impl Write) -> io::Result<()> {
    let (sizes, bf16) = (&record.sizes, &record.memory.bf16);
    writeln!(
        out,
        "  KV of a token = 2 × {} × {} kv heads × {} head_dim × 2 bytes = {} bytes in bf16",
        plural(record.num_attention_layers as usize, "attention layer"),
        sizes.num_key_value_heads,
        sizes.head_dim,
        bf16.kv_bytes_per_token
    )?;
    if record.num_gated_delta_layers == 0 {
        return Ok(());
    }
    let delta = record.num_gated_delta_layers;
    writeln!(
        out,
        "  conv states = {delta} layers × {} inputs × {} channels × 2 bytes = {} bytes, at any length",
        sizes.linear_conv_kernel_dim.saturating_sub(1),
        sizes.conv_dim,
        bf16.conv_state_bytes
    )?;
    writeln!(
        out,
        "  recurrent states = {delta} layers × {} heads × {} × {} × 2 bytes = {} bytes, at any length",
        sizes.linear_num_value_heads,
        sizes.linear_key_head_dim,
        sizes.linear_value_head_dim,
        bf16.recurrent_state_bytes
    )
}

fn totals(totals: &[Total], out: &mut impl Write) -> io::Result<()> {
    let titles = [
        "tokens",
        "",
        "KV bf16",
        "all bf16",
        "KV here",
        "all here",
        "prefill",
        "attention",
    ];
    let mut lines = vec![Line::title(titles.map(str::to_owned).to_vec())];
    for total in totals {
        let memory = &total.memory;
        let share = 100.0 * total.attention_flops as f64 / total.prefill_flops.max(1) as f64;
        lines.push(Line::plain(vec![
            total.tokens.to_string(),
            if total.fits { "" } else { "*" }.to_owned(),
            in_words(memory.bf16.kv_bytes),
            in_words(memory.bf16.total_bytes),
            in_words(memory.cpu.kv_bytes),
            in_words(memory.cpu.total_bytes),
            in_flops(total.prefill_flops),
            format!("{share:.1} %"),
        ]));
    }
    let mut sides = [Side::Right; 8];
    sides[1] = Side::Left;
    columns::write(&sides, &lines, out)
}

fn growth(record: &ContextRecord, out: &mut impl Write) -> io::Result<()> {
    let prefill = &record.prefill;
    let attention = match prefill.attention_is_half_at {
        Some(half) => format!(
            ", and {} for every token that it sees: at {half} tokens attention is half of the work",
            in_flops(prefill.attention_flops_per_pair)
        ),
        None => String::new(),
    };
    writeln!(
        out,
        "\nprefill: {} a token{attention}",
        in_flops(prefill.flops_per_token)
    )
}

fn remaining(
    prompt: &PromptLength,
    record: &ContextRecord,
    out: &mut impl Write,
) -> io::Result<()> {
    writeln!(out, "\n{BOLD}Prompt: {}{BOLD:#}", title(&prompt.prompt))?;
    let tokens = plural(prompt.num_tokens as usize, "token");
    match prompt.fits {
        true => writeln!(
            out,
            "{tokens} of {}, {} remain",
            record.max_tokens, prompt.remaining
        ),
        false => writeln!(
            out,
            "{LOW}it does not fit{LOW:#}: {tokens}, and the model takes {} with the reply",
            record.max_tokens
        ),
    }
}

/// Bytes in the largest binary unit that leaves at least 1.
fn in_words(bytes: u64) -> String {
    in_units(
        bytes as f64,
        1024.0,
        ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"],
    )
}

/// Operations in the largest decimal unit that leaves at least 1.
fn in_flops(flops: u64) -> String {
    let units = ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"];
    in_units(flops as f64, 1000.0, units)
}

fn in_units(number: f64, step: f64, units: [&str; 7]) -> String {
    let (mut rest, mut unit) = (number, 0);
    // 1023.995 would be shown as 1024.00
    while rest + 0.005 >= step && unit + 1 < units.len() {
        rest /= step;
        unit += 1;
    }
    let shown = format!("{rest:.2}");
    let shown = shown.trim_end_matches('0').trim_end_matches('.');
    format!("{shown} {}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{
        ContextModel, ContextSizes, memory, num_layers, num_parameters, prefill, total,
    };
    use crate::model::config::{DecoderConfig, LayerKind};
    use crate::record::{PROGRAM, SCHEMA};
    use serde_json::json;

    fn shown(is_hybrid: bool, tokens: u64, prompt: Option<PromptLength>) -> String {
        let family = if is_hybrid { "qwen3_5" } else { "llama" };
        let config = DecoderConfig::from_hf(&json!({
            "model_type": family, "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 512, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 16, "linear_value_head_dim": 8, "tie_word_embeddings": true
        }))
        .expect("a config");
        let (memory, prefill) = (memory(&config, 2), prefill(&config));
        let record = ContextRecord {
            schema: SCHEMA,
            program: PROGRAM.to_owned(),
            model: ContextModel {
                id: "m\u{1b}".to_owned(),
                revision: None,
                architecture: family.to_owned(),
                weights_dtype: Some("bf16".to_owned()),
                stored_bytes: None,
                note: None,
            },
            max_tokens: 512,
            num_attention_layers: num_layers(&config, LayerKind::FullAttention),
            num_gated_delta_layers: num_layers(&config, LayerKind::LinearAttention),
            sizes: ContextSizes::of(&config),
            num_parameters: num_parameters(&config),
            totals: [100, tokens]
                .map(|tokens| total(tokens, 512, &memory, &prefill))
                .to_vec(),
            memory,
            prefill,
            prompt,
        };
        let mut out = Vec::new();
        table(&record, &mut out).expect("a vector takes everything");
        anstream::adapter::strip_str(&String::from_utf8(out).expect("UTF-8")).to_string()
    }

    #[test]
    fn a_hybrid_model_has_a_cache_in_some_layers_and_states_in_the_others() {
        let prompt = PromptLength {
            prompt: "Where?".to_owned(),
            num_tokens: 12,
            remaining: 500,
            fits: true,
        };
        insta::assert_snapshot!(shown(true, 512, Some(prompt)), @r"
        logprobs 0.1.0: m\u{1B} (qwen3_5, bf16 weights)
        context of at most 512 tokens; 4 layers: 1 of attention, 3 gated delta nets; 212752 parameters

                                  bf16         f32  here, on the CPU
          weights           415.53 KiB  831.06 KiB        415.53 KiB
          KV of a token          128 B       256 B             256 B
          conv states         1.69 KiB    3.38 KiB          3.38 KiB
          recurrent states       3 KiB       6 KiB             6 KiB
          here, on the CPU: weights as they are stored (f32 of a GGUF file), everything else f32

          KV of a token = 2 × 1 attention layer × 2 kv heads × 16 head_dim × 2 bytes = 128 bytes in bf16
          conv states = 3 layers × 3 inputs × 96 channels × 2 bytes = 1728 bytes, at any length
          recurrent states = 3 layers × 4 heads × 16 × 8 × 2 bytes = 3072 bytes, at any length

          tokens     KV bf16    all bf16  KV here    all here      prefill  attention
             100    12.5 KiB  432.72 KiB   25 KiB  449.91 KiB  32.12 MFLOP      4.0 %
             512      64 KiB  484.22 KiB  128 KiB  552.91 KiB  190.9 MFLOP     17.6 %

        prefill: 306.94 kFLOP a token, and 256 FLOP for every token that it sees: at 2398 tokens attention is half of the work

        Prompt: Where?
        12 tokens of 512, 500 remain
        ");
    }

    #[test]
    fn what_does_not_fit_is_said_to_be_longer_than_the_context() {
        let prompt = PromptLength {
            prompt: "x".repeat(9),
            num_tokens: 600,
            remaining: 0,
            fits: false,
        };
        insta::assert_snapshot!(shown(false, 1024, Some(prompt)), @r"
        logprobs 0.1.0: m\u{1B} (llama, bf16 weights)
        context of at most 512 tokens; 4 layers of attention; 212032 parameters

                               bf16         f32  here, on the CPU
          weights        414.12 KiB  828.25 KiB        414.12 KiB
          KV of a token       512 B       1 KiB             1 KiB
          here, on the CPU: weights as they are stored (f32 of a GGUF file), everything else f32

          KV of a token = 2 × 4 attention layers × 2 kv heads × 16 head_dim × 2 bytes = 512 bytes in bf16

          tokens     KV bf16    all bf16  KV here    all here       prefill  attention
             100      50 KiB  464.12 KiB  100 KiB  514.12 KiB   34.79 MFLOP     14.9 %
            1024  *  512 KiB  926.12 KiB    1 MiB     1.4 MiB  839.51 MFLOP     64.0 %
        * longer than the model's context of 512

        prefill: 294.91 kFLOP a token, and 1.02 kFLOP for every token that it sees: at 576 tokens attention is half of the work

        Prompt: xxxxxxxxx
        it does not fit: 600 tokens, and the model takes 512 with the reply
        ");
    }

    #[test]
    fn numbers_are_in_the_largest_unit_that_leaves_one() {
        assert_eq!(
            [0, 1023, 1024, 12_288].map(in_words),
            ["0 B", "1023 B", "1 KiB", "12 KiB"]
        );
        assert_eq!(in_words((1 << 20) - 1), "1 MiB");
        assert_eq!(in_words(u64::MAX), "16 EiB");
        assert_eq!([999, 1_500_000].map(in_flops), ["999 FLOP", "1.5 MFLOP"]);
    }
}
