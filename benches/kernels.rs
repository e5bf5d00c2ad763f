//! The kernels by themselves, at the sizes that Qwen3.5-0.8B gives them, with every instruction set of this processor.
//!
//!     cargo bench --bench kernels                     # all
//!     cargo bench --bench kernels -- linear/avx512    # those whose name has this in it
//!
//! Throughput is in f32 operations (a multiply-add is two) for matrix products, in numbers for everything else.

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BatchSize, BenchmarkGroup, Criterion, Throughput};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use logprobs::distribution::Distribution;
use logprobs::distribution::outlook::Outlook;
use logprobs::explore::Summary;
use logprobs::kernels::attention::{self, AttentionInputs, AttentionSizes, KvCache, QkNorm};
use logprobs::kernels::gated_delta::{self, DeltaInputs, DeltaSizes, DeltaState, DeltaWeights};
use logprobs::kernels::linear::{self, Weights};
use logprobs::kernels::{Isa, norm};
use logprobs::setting::Setting;

const HIDDEN: usize = 1024;
const INTERMEDIATE: usize = 3584;
const VOCAB: usize = 248_320;
/// Rows of the job's prompt, and of a batch's edge.
const ROWS: [usize; 4] = [1, 5, 26, 64];
/// A prompt's tokens.
const PROMPT: usize = 512;

fn main() {
    logprobs::device::set_threads(None);
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .without_plots()
        .configure_from_args();
    linear(&mut criterion);
    head(&mut criterion);
    gated_delta(&mut criterion);
    attention(&mut criterion);
    passes(&mut criterion);
    distribution(&mut criterion);
    criterion.final_summary();
}

/// Numbers around 0 with a spread of `scale`, the same every time.
fn numbers(count: usize, scale: f32) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(count as u64);
    let uniform = |rng: &mut ChaCha8Rng| rng.next_u32() as f32 / u32::MAX as f32 - 0.5;
    // a sum of four is bell-shaped enough; one has a standard deviation of 0.289
    let sum = |rng: &mut ChaCha8Rng| (0..4).map(|_| uniform(rng)).sum::<f32>();
    (0..count).map(|_| sum(&mut rng) * scale / 0.577).collect()
}

/// As [`numbers`], each of them a bf16.
fn bf16_numbers(count: usize) -> Vec<f32> {
    let upper = |number: f32| f32::from_bits(number.to_bits() & 0xffff_0000);
    numbers(count, 0.02).into_iter().map(upper).collect()
}

/// Calls `add` for every instruction set with the group of its name.
fn for_each_isa(
    criterion: &mut Criterion,
    name: &str,
    add: impl Fn(&mut BenchmarkGroup<'_, WallTime>, Isa),
) {
    for isa in Isa::available() {
        let mut group = criterion.benchmark_group(format!("{name}/{}", isa.name()));
        add(&mut group, isa);
        group.finish();
    }
}

/// A layer's matrix, which stays in a cache: what the arithmetic takes.
fn linear(criterion: &mut Criterion) {
    let bf16 = Weights::from_numbers(&bf16_numbers(INTERMEDIATE * HIDDEN), INTERMEDIATE, HIDDEN);
    let single = Weights::from_numbers(&numbers(INTERMEDIATE * HIDDEN, 0.02), INTERMEDIATE, HIDDEN);
    for_each_isa(criterion, "linear", |group, isa| {
        for (format, weights) in [("bf16", &bf16), ("f32", &single)] {
            for rows in ROWS.into_iter().chain([PROMPT]) {
                multiply(group, isa, &format!("{format} rows {rows}"), weights, rows);
            }
        }
    });
}

/// The output layer, which no cache holds: what reading it takes.
fn head(criterion: &mut Criterion) {
    let weights = Weights::from_numbers(&bf16_numbers(VOCAB * HIDDEN), VOCAB, HIDDEN);
    for_each_isa(criterion, "head", |group, isa| {
        for rows in ROWS {
            multiply(group, isa, &format!("bf16 rows {rows}"), &weights, rows);
        }
    });
}

fn multiply(
    group: &mut BenchmarkGroup<'_, WallTime>,
    isa: Isa,
    name: &str,
    weights: &Weights,
    rows: usize,
) {
    let xs = numbers(rows * weights.inputs(), 1.0);
    let operations = 2 * rows * weights.inputs() * weights.outputs();
    group.throughput(Throughput::Elements(operations as u64));
    group.bench_function(name, |bencher| {
        bencher.iter(|| linear::multiply(isa, black_box(&xs), weights.inputs(), &[weights]));
    });
}

fn gated_delta(criterion: &mut Criterion) {
    let sizes = DeltaSizes {
        key_heads: 16,
        value_heads: 16,
        key_head_dim: 128,
        value_head_dim: 128,
        kernel: 4,
    };
    let values = sizes.value_heads * sizes.value_head_dim;
    let weights = DeltaWeights {
        conv: numbers(sizes.kernel * sizes.channels(), 0.25),
        neg_a: vec![-2.0; sizes.value_heads],
        dt_bias: vec![-1.0; sizes.value_heads],
        norm: vec![1.0; sizes.value_head_dim],
        eps: 1e-6,
    };
    for_each_isa(criterion, "gated_delta", |group, isa| {
        for (rows, length) in rows_and_lengths() {
            let tokens = rows * length;
            let (qkv, z) = (
                numbers(tokens * sizes.channels(), 1.0),
                numbers(tokens * values, 1.0),
            );
            let (b, a) = (
                numbers(tokens * sizes.value_heads, 1.0),
                numbers(tokens * sizes.value_heads, 0.5),
            );
            let inputs = DeltaInputs {
                qkv: &qkv,
                z: &z,
                b: &b,
                a: &a,
            };
            let mut states = vec![DeltaState::new(&sizes); rows];
            group.throughput(Throughput::Elements((tokens * values) as u64));
            group.bench_function(format!("rows {rows} × {length}"), |bencher| {
                bencher.iter(|| {
                    let mut states: Vec<_> = states.iter_mut().collect();
                    let lengths = vec![length; rows];
                    gated_delta::mix(isa, &sizes, &weights, &inputs, &lengths, &mut states)
                });
            });
        }
    });
}

fn attention(criterion: &mut Criterion) {
    let sizes = AttentionSizes {
        heads: 8,
        kv_heads: 2,
        head_dim: 256,
        is_gated: true,
    };
    let norm = QkNorm {
        query: vec![1.0; sizes.head_dim],
        key: vec![1.0; sizes.head_dim],
        eps: 1e-6,
    };
    for_each_isa(criterion, "attention", |group, isa| {
        for (rows, length) in rows_and_lengths() {
            // a step looks back at a prompt; the prompt's own tokens look back at each other
            let mut before = KvCache::default();
            if length == 1 {
                Tokens::new(&sizes, PROMPT).feed(isa, &sizes, &norm, &mut [&mut before]);
            }
            let tokens = Tokens::new(&sizes, rows * length);
            group.throughput(Throughput::Elements(
                (rows * length * sizes.heads * sizes.head_dim) as u64,
            ));
            group.bench_function(format!("rows {rows} × {length}"), |bencher| {
                bencher.iter_batched(
                    || vec![before.clone(); rows],
                    |mut caches| {
                        let mut caches: Vec<_> = caches.iter_mut().collect();
                        tokens.feed(isa, &sizes, &norm, &mut caches)
                    },
                    BatchSize::SmallInput,
                );
            });
        }
    });
}

/// What attention is given of some tokens.
struct Tokens {
    count: usize,
    q: Vec<f32>,
    kv: Vec<f32>,
    angles: Vec<f32>,
}

impl Tokens {
    const ROTARY_PAIRS: usize = 32;

    fn new(sizes: &AttentionSizes, count: usize) -> Self {
        Self {
            count,
            q: numbers(count * sizes.heads * 2 * sizes.head_dim, 1.0),
            kv: numbers(count * sizes.kv_heads * sizes.head_dim, 1.0),
            angles: numbers(count * Self::ROTARY_PAIRS, 1.0),
        }
    }

    /// Feeds them to some caches, as many to each.
    fn feed(
        &self,
        isa: Isa,
        sizes: &AttentionSizes,
        norm: &QkNorm,
        caches: &mut [&mut KvCache],
    ) -> Vec<f32> {
        let inputs = AttentionInputs {
            q: &self.q,
            k: &self.kv,
            v: &self.kv,
            cos: &self.angles,
            sin: &self.angles,
        };
        let lengths = vec![self.count / caches.len(); caches.len()];
        attention::mix(isa, sizes, Some(norm), &inputs, &lengths, caches)
    }
}

/// A step of one row and of a prompt's rows, and a prompt.
fn rows_and_lengths() -> [(usize, usize); 3] {
    [(1, 1), (26, 1), (1, PROMPT)]
}

/// The passes over a layer's activations, 26 rows.
fn passes(criterion: &mut Criterion) {
    let (xs, weight) = (numbers(26 * HIDDEN, 1.0), vec![1.0; HIDDEN]);
    let (gate, up) = (
        numbers(26 * INTERMEDIATE, 1.0),
        numbers(26 * INTERMEDIATE, 1.0),
    );
    for_each_isa(criterion, "passes", |group, isa| {
        group.throughput(Throughput::Elements(xs.len() as u64));
        group.bench_function("rms_norm rows 26", |bencher| {
            bencher.iter(|| norm::rms_norm(isa, black_box(&xs), &weight, 1e-6));
        });
        group.throughput(Throughput::Elements(gate.len() as u64));
        group.bench_function("swiglu rows 26", |bencher| {
            bencher.iter(|| norm::swiglu(isa, black_box(&gate), &up));
        });
    });
}

/// One row's distribution: nearly flat, as random weights give it and as nothing can be left out of, and peaked.
fn distribution(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("distribution");
    group.throughput(Throughput::Elements(VOCAB as u64));
    let settings = [
        ("temperature 0.7", Setting::OFF.with_temperature(0.7)),
        ("top_p 0.9", Setting::OFF.with_top_p(0.9)),
        ("top_k 40", Ok(Setting::OFF.with_top_k(40))),
    ];
    let settings = settings.map(|(name, setting)| (name, setting.expect("a setting")));
    for (shape, spread) in [("flat", 0.6), ("peaked", 3.0)] {
        let logits = numbers(VOCAB, spread);
        let of = |logits| Distribution::from_logits(logits).expect("finite logits");
        group.bench_function(format!("softmax, {shape}"), |bencher| {
            bencher.iter_batched(|| logits.clone(), of, BatchSize::LargeInput);
        });
        let distribution = of(logits.clone());
        let outlook = Outlook::Whole(distribution.clone());
        group.bench_function(format!("best 5, mass count, {shape}"), |bencher| {
            bencher.iter(|| Summary::of(black_box(&outlook), 5, 0.9));
        });
        for (name, setting) in &settings {
            group.bench_function(format!("draw at {name}, {shape}"), |bencher| {
                bencher.iter(|| {
                    let kept = black_box(&distribution).filtered(setting);
                    (kept.draw(0.5), kept.kept_mass())
                });
            });
        }
    }
    group.finish();
}
