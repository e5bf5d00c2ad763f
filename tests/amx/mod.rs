//! Products on matrix tiles: by the processor where it has them, else with each of their instructions emulated.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the differences are worth seeing, and why nothing was run"
)]

mod emulator;

use std::sync::atomic::Ordering;

use logprobs::kernels::Isa;
use logprobs::kernels::linear::{Weights, multiply};
use logprobs::kernels::simd::Amx;
use logprobs::model::Backend;

use crate::parity::{cases, in_pieces, load_on};
use crate::same_bits::assert_same;

/// Returns instructions with tiles, the processor's own or emulated.
#[allow(unsafe_code, reason = "the tile instructions are emulated")]
fn tiles() -> Option<Isa> {
    if let Some(amx) = Amx::detect() {
        return Some(Isa::Amx(amx));
    }
    emulator::install();
    // SAFETY: they are carried out from here on.
    let amx = unsafe { Amx::assume() };
    if amx.is_none() {
        eprintln!("skipped: this processor has no AVX-512");
    }
    amx.map(Isa::Amx)
}

/// Numbers between -1 and 1 that differ everywhere.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut bits = seed;
    let next = |_| {
        bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

fn upper(number: f32) -> f32 {
    f32::from_bits(number.to_bits() & 0xffff_0000)
}

/// The product, plainly, in the order of the tiles.
fn reference(xs: &[f32], weights: &[f32], inputs: usize) -> Vec<f32> {
    let mut ys = Vec::new();
    for x in xs.chunks_exact(inputs) {
        for w in weights.chunks_exact(inputs) {
            let mut total = 0f32;
            for (x, w) in x.chunks(32).zip(w.chunks(32)) {
                let high: Vec<f32> = x.iter().map(|&x| upper(x)).collect();
                let middle = x.iter().zip(&high).map(|(x, high)| upper(x - high));
                let middle: Vec<f32> = middle.collect();
                let low = x.iter().zip(&high).zip(&middle);
                let low: Vec<f32> = low.map(|((x, high), middle)| x - high - middle).collect();
                for part in [low, middle, high] {
                    let mut sums = [0f32; 2];
                    for (index, (x, w)) in part.iter().zip(w).enumerate() {
                        sums[index % 2] = x.mul_add(*w, sums[index % 2]);
                    }
                    total += sums[0] + sums[1];
                }
            }
            ys.push(total);
        }
    }
    ys
}

#[test]
fn products_on_tiles_are_the_plain_ones_bit_for_bit() {
    let Some(isa) = tiles() else { return };
    for (outputs, inputs) in [(1, 1), (16, 2), (33, 7), (5, 300), (80, 515), (64, 96)] {
        let numbers: Vec<f32> = noise(outputs * inputs, 7).into_iter().map(upper).collect();
        let weights = Weights::from_numbers(&numbers, outputs, inputs);
        for rows in [1, 2, 3, 7, 16, 17, 26, 33, 48, 64] {
            let xs = noise(rows * inputs, rows as u32);
            let ys = multiply(isa, &xs, inputs, &[&weights]).remove(0);
            let expected = reference(&xs, &numbers, inputs);
            assert!(ys == expected, "[{outputs}, {inputs}] {rows} rows");
        }
    }
}

#[test]
fn products_on_tiles_are_those_of_f64_to_rounding() {
    let Some(isa) = tiles() else { return };
    let (outputs, inputs, rows) = (32, 6144, 3);
    let numbers: Vec<f32> = noise(outputs * inputs, 7).into_iter().map(upper).collect();
    let weights = Weights::from_numbers(&numbers, outputs, inputs);
    let xs = noise(rows * inputs, 3);
    let ys = multiply(isa, &xs, inputs, &[&weights]).remove(0);
    for (row, x) in xs.chunks_exact(inputs).enumerate() {
        for (output, w) in numbers.chunks_exact(inputs).enumerate() {
            let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let size: f64 = terms.clone().map(|term| term * term).sum::<f64>().sqrt();
            let off = f64::from(ys[row * outputs + output]) - terms.sum::<f64>();
            assert!(off.abs() < 2e-6 * size, "{off} of {size}");
        }
    }
}

/// Weights that are no bf16 have no tiles, and none of a call's matrices change another.
#[test]
fn matrices_of_both_kinds_share_a_call() {
    let Some(isa) = tiles() else { return };
    let inputs = 70;
    let single = noise(40 * inputs, 9);
    let brain: Vec<f32> = single.iter().copied().map(upper).collect();
    let [single, brain] = [single, brain].map(|w| Weights::from_numbers(&w, 40, inputs));
    let xs = noise(20 * inputs, 5);
    let apart = [&single, &brain].map(|w| multiply(isa, &xs, inputs, &[w]).remove(0));
    assert!(multiply(isa, &xs, inputs, &[&single, &brain]) == apart);
    let on_vectors = multiply(Isa::Avx512(vectors(isa)), &xs, inputs, &[&single, &brain]);
    assert!(apart[0] == on_vectors[0], "the same vectors");
    assert!(apart[1] != on_vectors[1], "other sums");
}

fn vectors(isa: Isa) -> logprobs::kernels::simd::Avx512 {
    isa.amx().expect("instructions with tiles").vectors()
}

#[test]
fn batches_threads_and_pieces_change_no_bit_on_tiles() {
    let Some(isa) = tiles() else { return };
    for (name, path, trace) in cases() {
        // the same weights as the folders'
        if name.contains("gguf") {
            continue;
        }
        let model = load_on(&path, &Backend::Kernels(isa)).expect("it loads");
        assert_same(&model, &name, &trace.prompt_token_ids[..24]);
    }
}

/// Between two orders of the same sums, in a log-probability; measured 7.1e-5.
const LARGEST: f64 = 1e-4;
/// The same of the half that is nearest; measured 2.1e-6.
const MEDIAN: f64 = 1e-5;

#[test]
fn tiles_and_vectors_agree() {
    let Some(isa) = tiles() else { return };
    let before = emulator::PRODUCTS.load(Ordering::Relaxed);
    for (name, path, trace) in cases() {
        let tokens = &trace.prompt_token_ids[..30];
        let of = |isa| {
            let model = load_on(&path, &Backend::Kernels(isa)).expect("it loads");
            in_pieces(&model, tokens, &[30])
        };
        let (ours, theirs) = (of(isa), of(Isa::Avx512(vectors(isa))));
        let mut differences: Vec<f64> = ours
            .iter()
            .zip(&theirs)
            .flat_map(|(ours, theirs)| differences(ours, theirs))
            .collect();
        differences.sort_by(f64::total_cmp);
        let (median, largest) = (
            differences[differences.len() / 2],
            differences[differences.len() - 1],
        );
        println!(
            "{name}: tiles and vectors differ by {largest:.1e} at most, {median:.1e} in the median"
        );
        assert!(
            largest < LARGEST && median < MEDIAN,
            "{name}: {largest} and {median}"
        );
    }
    let emulated = emulator::PRODUCTS.load(Ordering::Relaxed) - before;
    assert!(
        Amx::detect().is_some() || emulated > 1000,
        "{emulated} products"
    );
}

/// How far every log-probability of one distribution is from the other's.
fn differences(ours: &[f32], theirs: &[f32]) -> Vec<f64> {
    let logprobs = |logits: &[f32]| -> Vec<f64> {
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let of = |&logit: &f32| f64::from(logit) - sum.ln();
        logits.iter().map(of).collect()
    };
    let pairs = logprobs(ours).into_iter().zip(logprobs(theirs));
    pairs.map(|(ours, theirs)| (ours - theirs).abs()).collect()
}
