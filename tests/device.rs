//! The decoder on a GPU, by the same code and against the same references as on the CPU. Without such a device, or without the
//! feature that it needs, a test has nothing to run and says so.

#![allow(
    clippy::print_stdout,
    reason = "what was skipped, and the differences, are worth seeing"
)]

use logprobs::cli::{DeviceChoice, DtypeChoice};
use logprobs::device::Compute;
use logprobs::distribution::Distribution;
use logprobs::model::LanguageModel;

use crate::parity::{assert_steps, cases, load, load_on};

/// Largest difference of a log-probability between a bf16 run and the float32 one. bf16 has 8 bits of precision: a step of
/// 2^-8 relative to logits of up to 30, of which a difference sees several.
const BF16_TOLERANCE: f64 = 1.0;

/// What can compute here besides the CPU.
fn gpus(dtype: DtypeChoice) -> Vec<Compute> {
    let mut found = Vec::new();
    for device in [DeviceChoice::Cuda, DeviceChoice::Metal] {
        match Compute::choose(device, dtype) {
            Ok(compute) => found.push(compute),
            Err(error) => println!("skipped: {error:#}"),
        }
    }
    found
}

#[test]
fn every_family_on_a_gpu_in_f32_is_its_reference() {
    for gpu in gpus(DtypeChoice::F32) {
        for (name, path, trace) in cases() {
            let model = load_on(&path, &gpu.backend).expect("the checkpoint loads");
            let worst = assert_steps(&name, &model, &trace);
            println!("{} f32, {name}: {worst:.1e}", gpu.device_name);
        }
    }
}

#[test]
fn rows_that_a_gpu_steps_together_are_those_alone() {
    for gpu in gpus(DtypeChoice::F32) {
        for (name, path, trace) in cases() {
            let model = load_on(&path, &gpu.backend).expect("the checkpoint loads");
            let ids = &trace.prompt_token_ids;
            let mut rows: Vec<_> = (1..=3).map(|_| model.start()).collect();
            for (row, length) in rows.iter_mut().zip([ids.len(), 1, ids.len() / 2 + 1]) {
                model.extend(row, &ids[..length]).expect(&name);
            }
            let mut alone = rows.clone();
            let together = model.step(&mut rows, &[1, 2, 3]).expect(&name);
            for ((row, token), together) in alone.iter_mut().zip([1, 2, 3]).zip(together) {
                let alone = model.extend(row, &[token]).expect(&name);
                let differences = alone.iter().zip(&together).map(|(a, b)| (a - b).abs());
                let worst = differences.fold(0f32, f32::max);
                assert!(worst <= 1e-2, "{name}: {worst}");
            }
        }
    }
}

#[test]
fn every_family_on_a_gpu_in_bf16_is_near_its_reference() {
    for gpu in gpus(DtypeChoice::Bf16) {
        for (name, path, trace) in cases() {
            let gpu_model = load_on(&path, &gpu.backend).expect("the checkpoint loads");
            let cpu_model = load(&path);
            let of = |logits| Distribution::from_logits(logits).expect(&name);
            let ids = &trace.prompt_token_ids;
            let on_gpu = of(gpu_model.extend(&mut gpu_model.start(), ids).expect(&name));
            let on_cpu = of(cpu_model.extend(&mut cpu_model.start(), ids).expect(&name));
            let best = on_cpu.best(5).into_iter();
            let worst = best
                .map(|id| (on_gpu.logprob(id) - on_cpu.logprob(id)).abs())
                .fold(0.0, f64::max);
            println!("{} bf16, {name}: {worst:.1e}", gpu.device_name);
            assert!(worst <= BF16_TOLERANCE, "{name}: {worst}");
        }
    }
}
