//! The gated delta rule of Qwen3.5's linear-attention layers: short convolution, recurrence, gated norm.
//!
//! Source: transformers `modeling_qwen3_5.py` (`torch_recurrent_gated_delta_rule`); Yang et al. 2024 (Gated Delta
//! Networks). Columns of a head's state never meet, so sixteen of them at a time go through all new tokens: a state is read
//! and written once, however many tokens there are. What a token gives depends on its row alone.
#![allow(unsafe_code, reason = "heads of a row are computed by several threads")]

use std::ops::Range;
use std::sync::Arc;

use super::math::{self, load_part, store_part};
use super::norm::{scale_to_unit_mean, sum_of_squares};
use super::parallel::{self, Shared};
use super::simd::{Isa, Job, LANES, Simd};

/// Sums that run beside each other over the keys, so that none waits for the one before.
const CHAINS: usize = 4;

/// Inside the norm of queries and keys.
const UNIT_EPS: f32 = 1e-6;

/// The sizes of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeltaSizes {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, a multiple of `key_heads`: value head h uses key head h / (value heads / key heads).
    pub value_heads: usize,
    /// Numbers of a query or key.
    pub key_head_dim: usize,
    /// Numbers of a value.
    pub value_head_dim: usize,
    /// Tokens that the convolution sees: the new one and those before it.
    pub kernel: usize,
}

impl DeltaSizes {
    fn key_dim(&self) -> usize {
        self.key_heads * self.key_head_dim
    }

    fn value_dim(&self) -> usize {
        self.value_heads * self.value_head_dim
    }

    /// Returns the number of channels of the convolution: all queries, all keys, all values.
    pub fn channels(&self) -> usize {
        2 * self.key_dim() + self.value_dim()
    }

    fn padded_key(&self) -> usize {
        self.key_head_dim.next_multiple_of(CHAINS)
    }

    /// Numbers of a value head's state: strips of sixteen columns, in each the columns of one key side by side.
    fn head_state(&self) -> usize {
        self.value_head_dim.div_ceil(LANES) * self.padded_key() * LANES
    }
}

/// What one layer remembers of one row; a clone is copied when it is first extended.
#[derive(Debug, Clone)]
pub struct DeltaState {
    /// Conv state: the last `kernel - 1` inputs of the convolution, `[kernel - 1, channels]`.
    conv: Arc<Vec<f32>>,
    /// Recurrent state: `[value heads, strips, keys, 16]`.
    recurrent: Arc<Vec<f32>>,
}

impl DeltaState {
    /// Returns the state before the first token: zeros.
    pub fn new(sizes: &DeltaSizes) -> Self {
        Self {
            conv: Arc::new(vec![0.0; (sizes.kernel - 1) * sizes.channels()]),
            recurrent: Arc::new(vec![0.0; sizes.value_heads * sizes.head_state()]),
        }
    }
}

/// The weights of one layer that are not matrices.
#[derive(Debug, Clone)]
pub struct DeltaWeights {
    /// Factors of the convolution, `[kernel, channels]`, the oldest token's first.
    pub conv: Vec<f32>,
    /// `-exp(A_log)`, one a value head.
    pub neg_a: Vec<f32>,
    /// One a value head.
    pub dt_bias: Vec<f32>,
    /// Of the norm, `[value_head_dim]`.
    pub norm: Vec<f32>,
    /// Inside the norm.
    pub eps: f32,
}

/// What the projections made of some tokens, each `[tokens, …]`.
#[derive(Debug, Clone, Copy)]
pub struct DeltaInputs<'a> {
    /// Channels: all queries, all keys, all values.
    pub qkv: &'a [f32],
    /// The output's gate, `[value heads, value_head_dim]`.
    pub z: &'a [f32],
    /// How much of a token is learnt, before the sigmoid, `[value heads]`.
    pub b: &'a [f32],
    /// How much is forgotten, `[value heads]`.
    pub a: &'a [f32],
}

/// Feeds the tokens of several rows, `lengths[i]` of them to `states[i]`; returns `[tokens, value heads · value_head_dim]`.
///
/// # Panics
/// When lengths, states and inputs do not fit together.
pub fn mix(
    isa: Isa,
    sizes: &DeltaSizes,
    weights: &DeltaWeights,
    inputs: &DeltaInputs,
    lengths: &[usize],
    states: &mut [&mut DeltaState],
) -> Vec<f32> {
    let tokens: usize = lengths.iter().sum();
    assert!(
        lengths.len() == states.len() && inputs.qkv.len() == tokens * sizes.channels(),
        "tokens of all rows"
    );
    let mut output = vec![0.0; tokens * sizes.value_dim()];
    let target = Shared::new(&mut output);
    let mut first = 0;
    // rows without a new token stay as they are
    let rows: Vec<RowStates> = lengths
        .iter()
        .zip(states)
        .filter(|(length, _)| **length > 0)
        .map(|(&length, state)| {
            let row = RowStates::new(state, first..first + length);
            first += length;
            row
        })
        .collect();
    parallel::each(rows.len() * sizes.key_heads, |part| {
        isa.run(Heads {
            sizes,
            weights,
            inputs,
            row: &rows[part / sizes.key_heads],
            key_head: part % sizes.key_heads,
            target: &target,
        });
    });
    output
}

/// The states of a row, for several threads, and its new tokens.
struct RowStates<'a> {
    tokens: Range<usize>,
    conv: Shared<'a, f32>,
    recurrent: Shared<'a, f32>,
    /// What the recurrent state was, where a clone still needs it: then `recurrent` is to be copied from it.
    shared: Option<Arc<Vec<f32>>>,
}

impl<'a> RowStates<'a> {
    fn new(state: &'a mut DeltaState, tokens: Range<usize>) -> Self {
        let is_shared = Arc::get_mut(&mut state.recurrent).is_none();
        let shared = is_shared.then(|| {
            let new = Arc::new(vec![0.0; state.recurrent.len()]);
            std::mem::replace(&mut state.recurrent, new)
        });
        Self {
            tokens,
            conv: Shared::new(Arc::make_mut(&mut state.conv).as_mut_slice()),
            recurrent: Shared::new(Arc::make_mut(&mut state.recurrent).as_mut_slice()),
            shared,
        }
    }
}

/// One key head of one row over all its new tokens, with the value heads that look at it.
struct Heads<'a, 'b> {
    sizes: &'a DeltaSizes,
    weights: &'a DeltaWeights,
    inputs: &'a DeltaInputs<'a>,
    row: &'a RowStates<'b>,
    key_head: usize,
    target: &'a Shared<'b, f32>,
}

impl Job for Heads<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let sizes = self.sizes;
        let dim = sizes.key_head_dim;
        let group = sizes.value_heads / sizes.key_heads;
        let value_heads = self.key_head * group..(self.key_head + 1) * group;

        // 1. Queries and keys, queries scaled
        let start = self.key_head * dim;
        let queries = self.units(simd, start, 1.0 / (dim as f32).sqrt());
        let keys = self.units(simd, sizes.key_dim() + start, 1.0);

        // 2. The rule, and then the norm
        for head in value_heads {
            self.recur(simd, head, &queries, &keys);
            self.norm(simd, head);
        }
    }
}

impl Heads<'_, '_> {
    /// The convolved channels of a query or key as vectors of one length, `[tokens, padded]`.
    #[inline(always)]
    fn units<S: Simd>(&self, simd: S, start: usize, length: f32) -> Vec<f32> {
        let (dim, padded) = (self.sizes.key_head_dim, self.sizes.padded_key());
        let mut vectors = self.convolve(simd, start, dim, padded);
        for vector in vectors.chunks_exact_mut(padded) {
            let norm = (sum_of_squares(simd, &vector[..dim]) + UNIT_EPS).sqrt();
            vector.iter_mut().for_each(|x| *x = *x / norm * length);
        }
        vectors
    }

    /// Causal depthwise convolution of some channels and SiLU, `[tokens, padded]`; conv states become the last raw inputs.
    #[inline(always)]
    fn convolve<S: Simd>(&self, simd: S, start: usize, width: usize, padded: usize) -> Vec<f32> {
        let channels = self.sizes.channels();
        let before = self.sizes.kernel - 1;
        let tokens = self.row.tokens.clone();
        let raw = |token: usize| &self.inputs.qkv[token * channels + start..][..width];
        // SAFETY: these channels are this thread's.
        let conv = |index: usize| unsafe {
            let first = index * channels + start;
            self.row.conv.part(first..first + width)
        };
        let mut output = vec![0.0; tokens.len() * padded];
        for (index, output) in output.chunks_exact_mut(padded).enumerate() {
            for (chunk, output) in output[..width].chunks_mut(LANES).enumerate() {
                let place = chunk * LANES..chunk * LANES + output.len();
                let mut sum = simd.splat(0.0);
                for tap in 0..=before {
                    let seen = match (index + tap).checked_sub(before) {
                        Some(seen) => &raw(tokens.start + seen)[place.clone()],
                        None => &conv(index + tap)[place.clone()],
                    };
                    let weight = &self.weights.conv[tap * channels + start..][place.clone()];
                    let seen = load_part(simd, seen, 0.0);
                    sum = simd.mul_add(seen, load_part(simd, weight, 0.0), sum);
                }
                store_part(simd, math::silu(simd, sum), output);
            }
        }
        for index in 0..before {
            let last = match (index + tokens.len()).checked_sub(before) {
                Some(last) => raw(tokens.start + last),
                None => &conv(index + tokens.len())[..],
            };
            conv(index).copy_from_slice(last);
        }
        output
    }

    /// The rule for one value head, sixteen columns of its state at a time.
    #[inline(always)]
    fn recur<S: Simd>(&self, simd: S, head: usize, queries: &[f32], keys: &[f32]) {
        let sizes = self.sizes;
        let (padded, value_dim) = (sizes.padded_key(), sizes.value_head_dim);
        let values = 2 * sizes.key_dim() + head * value_dim;
        let values = self.convolve(simd, values, value_dim, value_dim);
        let gates: Vec<(f32, f32)> = (self.row.tokens.clone())
            .map(|token| {
                let at = token * sizes.value_heads + head;
                let step = softplus(self.inputs.a[at] + self.weights.dt_bias[head]);
                let decay = exp(step * self.weights.neg_a[head]);
                let beta = 1.0 / (1.0 + exp(-self.inputs.b[at]));
                (decay, beta)
            })
            .collect();
        let place = head * sizes.head_state()..(head + 1) * sizes.head_state();
        // SAFETY: every head of every row is one thread's.
        let state = unsafe { self.row.recurrent.part(place.clone()) };
        if let Some(shared) = &self.row.shared {
            state.copy_from_slice(&shared[place]);
        }
        for (strip, state) in state.chunks_exact_mut(padded * LANES).enumerate() {
            let start = strip * LANES;
            let width = (value_dim - start).min(LANES);
            let tokens = queries.chunks_exact(padded).zip(keys.chunks_exact(padded));
            for (index, numbers) in tokens.enumerate() {
                let value = &values[index * value_dim + start..][..width];
                let value = load_part(simd, value, 0.0);
                let seen = learn(simd, state, numbers, value, gates[index]);
                let at = (self.row.tokens.start + index) * sizes.value_dim();
                let at = at + head * value_dim + start;
                // SAFETY: these numbers belong to this head.
                store_part(simd, seen, unsafe { self.target.part(at..at + width) });
            }
        }
    }

    /// Norm first, then the gate.
    #[inline(always)]
    fn norm<S: Simd>(&self, simd: S, head: usize) {
        let value_dim = self.sizes.value_head_dim;
        for token in self.row.tokens.clone() {
            let at = token * self.sizes.value_dim() + head * value_dim;
            // SAFETY: these numbers belong to this head.
            let output = unsafe { self.target.part(at..at + value_dim) };
            scale_to_unit_mean(simd, output, &self.weights.norm, self.weights.eps);
            let gate = &self.inputs.z[at..at + value_dim];
            for (output, gate) in output.chunks_mut(LANES).zip(gate.chunks(LANES)) {
                let gate = math::silu(simd, load_part(simd, gate, 0.0));
                store_part(simd, simd.mul(load_part(simd, output, 0.0), gate), output);
            }
        }
    }
}

/// One token and sixteen columns: `S ← decay · S`, `S ← S + k ⊗ beta · (v - kᵀS)`; returns `qᵀS`.
#[inline(always)]
fn learn<S: Simd>(
    simd: S,
    state: &mut [f32],
    (query, key): (&[f32], &[f32]),
    value: S::F32,
    (decay, beta): (f32, f32),
) -> S::F32 {
    let decay = simd.splat(decay);
    let mut sums = [simd.splat(0.0); CHAINS];
    for (rows, key) in state
        .chunks_exact(CHAINS * LANES)
        .zip(key.chunks_exact(CHAINS))
    {
        for (chain, row) in rows.chunks_exact(LANES).enumerate() {
            let row = load_part(simd, row, 0.0);
            sums[chain] = simd.mul_add(row, simd.splat(key[chain]), sums[chain]);
        }
    }
    let recalled = simd.mul(total(simd, sums), decay);
    let delta = simd.mul(simd.sub(value, recalled), simd.splat(beta));
    let mut sums = [simd.splat(0.0); CHAINS];
    let numbers = key.chunks_exact(CHAINS).zip(query.chunks_exact(CHAINS));
    for (rows, (key, query)) in state.chunks_exact_mut(CHAINS * LANES).zip(numbers) {
        for (chain, row) in rows.chunks_exact_mut(LANES).enumerate() {
            let kept = simd.mul(load_part(simd, row, 0.0), decay);
            let new = simd.mul_add(delta, simd.splat(key[chain]), kept);
            sums[chain] = simd.mul_add(new, simd.splat(query[chain]), sums[chain]);
            store_part(simd, new, row);
        }
    }
    total(simd, sums)
}

#[inline(always)]
fn total<S: Simd>(simd: S, sums: [S::F32; CHAINS]) -> S::F32 {
    simd.add(simd.add(sums[0], sums[1]), simd.add(sums[2], sums[3]))
}

/// `ln(1 + exp(x))` without overflow. In f64, as [`exp`]: C libraries differ in the last bit of their f32 functions, which rounding
/// from f64 all but hides.
fn softplus(x: f32) -> f32 {
    let x = f64::from(x);
    (x.max(0.0) + (-x.abs()).exp().ln_1p()) as f32
}

/// e to the power of a number.
fn exp(x: f32) -> f32 {
    f64::from(x).exp() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two value heads a key head, and no size a multiple of sixteen.
    const SIZES: DeltaSizes = DeltaSizes {
        key_heads: 2,
        value_heads: 4,
        key_head_dim: 6,
        value_head_dim: 19,
        kernel: 4,
    };

    fn noise(count: usize, seed: f32) -> Vec<f32> {
        (0..count)
            .map(|i| ((i as f32 + seed) * 1.37).sin() * 2.0)
            .collect()
    }

    fn weights() -> DeltaWeights {
        DeltaWeights {
            conv: noise(SIZES.kernel * SIZES.channels(), 1.0),
            neg_a: vec![-0.1, -0.5, -1.0, -2.0],
            dt_bias: vec![0.3, -0.2, 0.0, 1.0],
            norm: noise(SIZES.value_head_dim, 2.0),
            eps: 1e-6,
        }
    }

    /// Projections of some tokens.
    struct Tokens {
        qkv: Vec<f32>,
        z: Vec<f32>,
        b: Vec<f32>,
        a: Vec<f32>,
    }

    impl Tokens {
        fn new(count: usize) -> Self {
            Self {
                qkv: noise(count * SIZES.channels(), 3.0),
                z: noise(count * SIZES.value_dim(), 4.0),
                b: noise(count * SIZES.value_heads, 5.0),
                a: noise(count * SIZES.value_heads, 6.0),
            }
        }

        fn part(&self, tokens: std::ops::Range<usize>) -> DeltaInputs<'_> {
            let of = |width: usize| tokens.start * width..tokens.end * width;
            DeltaInputs {
                qkv: &self.qkv[of(SIZES.channels())],
                z: &self.z[of(SIZES.value_dim())],
                b: &self.b[of(SIZES.value_heads)],
                a: &self.a[of(SIZES.value_heads)],
            }
        }
    }

    fn silu(x: f64) -> f64 {
        x / (1.0 + (-x).exp())
    }

    /// The layer in f64, token by token, as it is written in the paper.
    fn reference(weights: &DeltaWeights, tokens: &Tokens) -> Vec<f64> {
        let (channels, dim, value_dim) =
            (SIZES.channels(), SIZES.key_head_dim, SIZES.value_head_dim);
        let count = tokens.qkv.len() / channels;
        let mut output = Vec::new();
        let mut states = vec![vec![vec![0f64; value_dim]; dim]; SIZES.value_heads];
        for token in 0..count {
            let convolved: Vec<f64> = (0..channels)
                .map(|channel| {
                    let taps = (0..SIZES.kernel).filter_map(|tap| {
                        let at = (token + tap).checked_sub(SIZES.kernel - 1)?;
                        let weight = weights.conv[tap * channels + channel];
                        Some(f64::from(tokens.qkv[at * channels + channel]) * f64::from(weight))
                    });
                    silu(taps.sum())
                })
                .collect();
            for (head, state) in states.iter_mut().enumerate() {
                let key_head = head / (SIZES.value_heads / SIZES.key_heads);
                let unit = |start: usize| {
                    let numbers = &convolved[start..start + dim];
                    let norm = (numbers.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                    numbers.iter().map(|x| x / norm).collect::<Vec<f64>>()
                };
                let query = unit(key_head * dim);
                let key = unit(SIZES.key_dim() + key_head * dim);
                let value = &convolved[2 * SIZES.key_dim() + head * value_dim..][..value_dim];
                let at = token * SIZES.value_heads + head;
                let beta = 1.0 / (1.0 + f64::from(-tokens.b[at]).exp());
                let step = f64::from(tokens.a[at]) + f64::from(weights.dt_bias[head]);
                let decay = (step.exp().ln_1p() * f64::from(weights.neg_a[head])).exp();
                let mut seen = vec![0.0; value_dim];
                for column in 0..value_dim {
                    let recalled: f64 = (0..dim).map(|i| state[i][column] * decay * key[i]).sum();
                    let delta = beta * (value[column] - recalled);
                    for i in 0..dim {
                        state[i][column] = state[i][column] * decay + key[i] * delta;
                        seen[column] += state[i][column] * query[i] / (dim as f64).sqrt();
                    }
                }
                let mean = seen.iter().map(|x| x * x).sum::<f64>() / value_dim as f64;
                for (column, seen) in seen.iter().enumerate() {
                    let z = tokens.z[token * SIZES.value_dim() + head * value_dim + column];
                    let normed = seen / (mean + 1e-6).sqrt() * f64::from(weights.norm[column]);
                    output.push(normed * silu(f64::from(z)));
                }
            }
        }
        output
    }

    /// All tokens as one row, `piece` at a time.
    fn in_pieces(isa: Isa, tokens: &Tokens, piece: usize) -> Vec<f32> {
        let count = tokens.a.len() / SIZES.value_heads;
        let mut state = DeltaState::new(&SIZES);
        let mut output = Vec::new();
        for start in (0..count).step_by(piece) {
            let end = (start + piece).min(count);
            let part = tokens.part(start..end);
            let lengths = [end - start];
            output.extend(mix(
                isa,
                &SIZES,
                &weights(),
                &part,
                &lengths,
                &mut [&mut state],
            ));
        }
        output
    }

    #[test]
    fn the_rule_is_that_of_f64_to_rounding() {
        let tokens = Tokens::new(23);
        let ours = in_pieces(Isa::current(), &tokens, 23);
        let exact = reference(&weights(), &tokens);
        assert_eq!(ours.len(), exact.len());
        for (ours, exact) in ours.iter().zip(exact) {
            assert!((f64::from(*ours) - exact).abs() < 2e-5 * (1.0 + exact.abs()));
        }
    }

    #[test]
    fn pieces_and_processors_change_nothing() {
        let tokens = Tokens::new(11);
        let expected = in_pieces(Isa::current(), &tokens, 11);
        for isa in Isa::available() {
            for piece in [1, 2, 3, 5, 11] {
                assert!(
                    in_pieces(isa, &tokens, piece) == expected,
                    "{} {piece}",
                    isa.name()
                );
            }
        }
    }

    #[test]
    fn rows_and_clones_never_see_each_other() {
        let tokens = Tokens::new(6);
        let expected = in_pieces(Isa::current(), &tokens, 6);
        let width = SIZES.value_dim();
        let run = |part: std::ops::Range<usize>, lengths: &[usize], states: &mut [DeltaState]| {
            let mut states: Vec<&mut DeltaState> = states.iter_mut().collect();
            let part = tokens.part(part);
            mix(
                Isa::current(),
                &SIZES,
                &weights(),
                &part,
                lengths,
                &mut states,
            )
        };
        // two rows of three tokens in one call are two calls
        let mut rows = [DeltaState::new(&SIZES), DeltaState::new(&SIZES)];
        let both = run(0..6, &[3, 3], &mut rows);
        assert_eq!(both[..3 * width], expected[..3 * width]);
        assert_eq!(
            both[3 * width..],
            run(3..6, &[3], &mut [DeltaState::new(&SIZES)])
        );
        // a row without a new token stays as it is
        let mut idle = [rows[0].clone(), DeltaState::new(&SIZES)];
        assert_eq!(run(0..3, &[0, 3], &mut idle), expected[..3 * width]);
        let [mut idle, _] = idle;
        assert_eq!(
            run(3..6, &[3], std::slice::from_mut(&mut idle)),
            expected[3 * width..]
        );
        // a clone goes its own way, and the first row on as if there were none
        let [first, _] = rows;
        let mut clone = [first.clone()];
        let _ = run(0..2, &[2], &mut clone);
        assert_eq!(run(3..6, &[3], &mut [first]), expected[3 * width..]);
    }
}
