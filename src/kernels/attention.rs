//! Softmax attention of new tokens over their own rows, with grouped key-value heads; keys and values in blocks of sixteen.
//!
//! A clone of a cache shares every block until one of the two writes to it, so the runs of a prompt share the prompt's.
//! Scores, softmax and sums run over a row's positions in their order: what a token gives depends on its row alone.
#![allow(unsafe_code, reason = "heads of a row are computed by several threads")]

use std::sync::Arc;

use rayon::prelude::*;

use super::math::{self, load_part, store_part};
use super::norm::scale_to_unit_mean;
use super::parallel::{self, Shared};
use super::simd::{Isa, Job, LANES, Simd};

/// Queries that share a pass over the keys.
const QUERIES: usize = 8;

/// Blocks of values that are summed before their sum is added to the total.
const BLOCKS: usize = 16;

/// The sizes of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionSizes {
    /// Heads of queries, a multiple of `kv_heads`: query head h looks at kv head h / (heads / kv heads).
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Numbers of a query, key or value.
    pub head_dim: usize,
    /// Whether each query is followed by a gate of its size.
    pub is_gated: bool,
}

/// Norms of queries and keys, `[head_dim]` each.
#[derive(Debug, Clone)]
pub struct QkNorm {
    /// Of queries.
    pub query: Vec<f32>,
    /// Of keys.
    pub key: Vec<f32>,
    /// Inside both.
    pub eps: f32,
}

/// Keys (rotated) and values of one row in one layer.
#[derive(Debug, Clone, Default)]
pub struct KvCache {
    len: usize,
    blocks: Vec<Arc<Block>>,
}

/// Sixteen positions; those that are not there yet are zero.
#[derive(Debug, Clone)]
struct Block {
    /// `[kv heads, head_dim, 16 positions]`.
    keys: Vec<f32>,
    /// `[kv heads, chunks of 16 dimensions, 16 positions, 16]`.
    values: Vec<f32>,
}

impl Block {
    fn new(sizes: &AttentionSizes) -> Self {
        Self {
            keys: vec![0.0; sizes.kv_heads * sizes.head_dim * LANES],
            values: vec![0.0; sizes.kv_heads * value_block(sizes)],
        }
    }
}

fn value_block(sizes: &AttentionSizes) -> usize {
    sizes.head_dim.next_multiple_of(LANES) * LANES
}

impl KvCache {
    /// Appends the key and value of one token, each `[kv heads, head_dim]`.
    fn push(&mut self, sizes: &AttentionSizes, key: &[f32], value: &[f32]) {
        let place = self.len % LANES;
        if place == 0 {
            self.blocks.push(Arc::new(Block::new(sizes)));
        }
        let block = self.blocks.last_mut().expect("a block was there or is new");
        let block = Arc::make_mut(block);
        for (index, number) in key.iter().enumerate() {
            block.keys[index * LANES + place] = *number;
        }
        for (head, value) in value.chunks_exact(sizes.head_dim).enumerate() {
            let values = &mut block.values[head * value_block(sizes)..][..value_block(sizes)];
            for (chunk, numbers) in value.chunks(LANES).enumerate() {
                let start = (chunk * LANES + place) * LANES;
                values[start..start + numbers.len()].copy_from_slice(numbers);
            }
        }
        self.len += 1;
    }
}

/// What the projections made of some tokens, each `[tokens, …]`, and the angles of their positions.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInputs<'a> {
    /// `[heads, head_dim]`, or `[heads, 2 · head_dim]` with gates.
    pub q: &'a [f32],
    /// `[kv heads, head_dim]`.
    pub k: &'a [f32],
    /// `[kv heads, head_dim]`.
    pub v: &'a [f32],
    /// Cosines, `[rotary_dim / 2]`.
    pub cos: &'a [f32],
    /// Sines, `[rotary_dim / 2]`.
    pub sin: &'a [f32],
}

/// Feeds the tokens of several rows, `lengths[i]` of them to `caches[i]`; returns `[tokens, heads · head_dim]`.
///
/// # Panics
/// When lengths, caches and inputs do not fit together.
pub fn mix(
    isa: Isa,
    sizes: &AttentionSizes,
    norm: Option<&QkNorm>,
    inputs: &AttentionInputs,
    lengths: &[usize],
    caches: &mut [&mut KvCache],
) -> Vec<f32> {
    let tokens: usize = lengths.iter().sum();
    let (q_dim, kv_dim) = (
        sizes.heads * sizes.head_dim,
        sizes.kv_heads * sizes.head_dim,
    );
    assert!(
        lengths.len() == caches.len() && inputs.k.len() == tokens * kv_dim,
        "tokens of all rows"
    );

    // 1. Norm and rotation of queries and keys
    let mut queries = vec![0.0; tokens * q_dim];
    let mut keys = vec![0.0; tokens * kv_dim];
    let targets = (Shared::new(&mut queries), Shared::new(&mut keys));
    parallel::ranges(tokens, 1 + (1 << 14) / q_dim, |tokens| {
        for token in tokens {
            isa.run(Prepare {
                sizes,
                norm,
                inputs,
                token,
                // SAFETY: every token is one thread's.
                queries: unsafe { targets.0.part(token * q_dim..(token + 1) * q_dim) },
                // SAFETY: as above.
                keys: unsafe { targets.1.part(token * kv_dim..(token + 1) * kv_dim) },
            });
        }
    });

    // 2. Keys and values are remembered
    let mut firsts = Vec::with_capacity(lengths.len());
    let mut places = Vec::with_capacity(tokens);
    for (row, (&length, cache)) in lengths.iter().zip(&*caches).enumerate() {
        firsts.push(places.len());
        places.extend((1..=length).map(|new| (row, cache.len + new)));
    }
    caches.par_iter_mut().enumerate().for_each(|(row, cache)| {
        for token in firsts[row]..firsts[row] + lengths[row] {
            let place = token * kv_dim..(token + 1) * kv_dim;
            cache.push(sizes, &keys[place.clone()], &inputs.v[place]);
        }
    });

    // 3. Every token looks at its row up to itself; queries of one row and kv head share their passes
    let group = sizes.heads / sizes.kv_heads;
    let mut parts = Vec::new();
    let mut first = 0;
    for &length in lengths {
        let at_once = (QUERIES / group).max(1);
        for start in (first..first + length).step_by(at_once) {
            let end = (start + at_once).min(first + length);
            parts.extend((0..sizes.kv_heads).map(|kv_head| (start..end, kv_head)));
        }
        first += length;
    }
    let mut output = vec![0.0; tokens * q_dim];
    let target = Shared::new(&mut output);
    let caches: Vec<&KvCache> = caches.iter().map(|cache| &**cache).collect();
    parallel::each(parts.len(), |part| {
        let (tokens, kv_head) = parts[part].clone();
        let heads = kv_head * group..(kv_head + 1) * group;
        let all: Vec<Query> = tokens
            .flat_map(|token| heads.clone().map(move |head| (token, head)))
            .map(|(token, head)| Query {
                token,
                head,
                len: places[token].1,
            })
            .collect();
        for some in all.chunks(QUERIES) {
            isa.run(Attend {
                sizes,
                inputs,
                queries: &queries,
                some,
                kv_head,
                cache: caches[places[some[0].token].0],
                target: &target,
            });
        }
    });
    output
}

/// Norm and rotation of one token's queries and keys; queries are scaled.
struct Prepare<'a> {
    sizes: &'a AttentionSizes,
    norm: Option<&'a QkNorm>,
    inputs: &'a AttentionInputs<'a>,
    token: usize,
    queries: &'a mut [f32],
    keys: &'a mut [f32],
}

impl Job for Prepare<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self {
            sizes,
            inputs,
            token,
            ..
        } = self;
        let dim = sizes.head_dim;
        let stride = if sizes.is_gated { 2 * dim } else { dim };
        let half = inputs.cos.len() / (inputs.k.len() / (sizes.kv_heads * dim));
        let cos = &inputs.cos[token * half..(token + 1) * half];
        let sin = &inputs.sin[token * half..(token + 1) * half];
        let scale = 1.0 / (dim as f32).sqrt();
        for (head, query) in self.queries.chunks_exact_mut(dim).enumerate() {
            query.copy_from_slice(&inputs.q[(token * sizes.heads + head) * stride..][..dim]);
            if let Some(norm) = self.norm {
                scale_to_unit_mean(simd, query, &norm.query, norm.eps);
            }
            rotate(query, cos, sin);
            query.iter_mut().for_each(|q| *q *= scale);
        }
        for (head, key) in self.keys.chunks_exact_mut(dim).enumerate() {
            key.copy_from_slice(&inputs.k[(token * sizes.kv_heads + head) * dim..][..dim]);
            if let Some(norm) = self.norm {
                scale_to_unit_mean(simd, key, &norm.key, norm.eps);
            }
            rotate(key, cos, sin);
        }
    }
}

/// Rotates the pairs (i, i + half) of the first dimensions.
#[inline(always)]
fn rotate(xs: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, rest) = xs.split_at_mut(cos.len());
    for (((x1, x2), cos), sin) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
        let (a, b) = (*x1, *x2);
        *x1 = a * cos - b * sin;
        *x2 = b * cos + a * sin;
    }
}

/// One head of one token, and how many positions it sees.
#[derive(Debug, Clone, Copy)]
struct Query {
    token: usize,
    head: usize,
    len: usize,
}

/// Up to [`QUERIES`] queries of one row that look at one kv head.
struct Attend<'a, 'b> {
    sizes: &'a AttentionSizes,
    inputs: &'a AttentionInputs<'a>,
    /// All prepared queries, `[tokens, heads, head_dim]`.
    queries: &'a [f32],
    some: &'a [Query],
    kv_head: usize,
    cache: &'a KvCache,
    target: &'a Shared<'b, f32>,
}

impl Job for Attend<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.some.len() {
            1 => self.attend::<S, 1>(simd),
            2 => self.attend::<S, 2>(simd),
            3 => self.attend::<S, 3>(simd),
            4 => self.attend::<S, 4>(simd),
            5 => self.attend::<S, 5>(simd),
            6 => self.attend::<S, 6>(simd),
            7 => self.attend::<S, 7>(simd),
            _ => self.attend::<S, QUERIES>(simd),
        }
    }
}

impl Attend<'_, '_> {
    #[inline(always)]
    fn attend<S: Simd, const N: usize>(&self, simd: S) {
        let sizes = self.sizes;
        let dim = sizes.head_dim;
        let longest = self.some.iter().map(|query| query.len).max().unwrap_or(0);
        let blocks = &self.cache.blocks[..longest.div_ceil(LANES)];

        // 1. Scores, `[blocks, N, 16]`
        let mut packed = vec![0.0; dim * N];
        for (index, query) in self.some.iter().enumerate() {
            let numbers = &self.queries[(query.token * sizes.heads + query.head) * dim..][..dim];
            for (number, to) in numbers.iter().zip(packed.chunks_exact_mut(N)) {
                to[index] = *number;
            }
        }
        let mut scores = vec![0.0; blocks.len() * N * LANES];
        for (block, scores) in blocks.iter().zip(scores.chunks_exact_mut(N * LANES)) {
            let keys = &block.keys[self.kv_head * dim * LANES..][..dim * LANES];
            let mut sums = [simd.splat(0.0); N];
            for (key, query) in keys.chunks_exact(LANES).zip(packed.chunks_exact(N)) {
                let key = load_part(simd, key, 0.0);
                for (sum, query) in sums.iter_mut().zip(query) {
                    *sum = simd.mul_add(key, simd.splat(*query), *sum);
                }
            }
            for (sum, scores) in sums.iter().zip(scores.chunks_exact_mut(LANES)) {
                store_part(simd, *sum, scores);
            }
        }

        // 2. Softmax over what each query sees; the rest weighs nothing
        let mut totals = [0.0; N];
        for (index, query) in self.some.iter().enumerate() {
            let mut largest = simd.splat(f32::NEG_INFINITY);
            for (block, start) in (0..longest).step_by(LANES).enumerate() {
                let scores = &mut scores[(block * N + index) * LANES..][..LANES];
                let seen = query.len.saturating_sub(start).min(LANES);
                scores[seen..].fill(f32::NEG_INFINITY);
                largest = simd.max(largest, load_part(simd, scores, 0.0));
            }
            let largest = simd.splat(math::max(simd, largest));
            let mut sum = simd.splat(0.0);
            for block in 0..blocks.len() {
                let scores = &mut scores[(block * N + index) * LANES..][..LANES];
                let shifted = simd.sub(load_part(simd, scores, 0.0), largest);
                let weights = math::exp(simd, shifted);
                sum = simd.add(sum, weights);
                store_part(simd, weights, scores);
            }
            totals[index] = math::sum(simd, sum);
        }

        // 3. Weighted sums of values, sixteen dimensions at a time, and the gate
        for chunk in 0..dim.div_ceil(LANES) {
            let mut sums = [simd.splat(0.0); N];
            for (many, blocks) in blocks.chunks(BLOCKS).enumerate() {
                let mut part = [simd.splat(0.0); N];
                for (index, block) in blocks.iter().enumerate() {
                    let start = self.kv_head * value_block(sizes) + chunk * LANES * LANES;
                    let values = &block.values[start..start + LANES * LANES];
                    let weights = &scores[(many * BLOCKS + index) * N * LANES..][..N * LANES];
                    for (position, value) in values.chunks_exact(LANES).enumerate() {
                        let value = load_part(simd, value, 0.0);
                        for (query, part) in part.iter_mut().enumerate() {
                            let weight = simd.splat(weights[query * LANES + position]);
                            *part = simd.mul_add(value, weight, *part);
                        }
                    }
                }
                for (sum, part) in sums.iter_mut().zip(part) {
                    *sum = simd.add(*sum, part);
                }
            }
            for ((query, sum), total) in self.some.iter().zip(sums).zip(totals) {
                let start = chunk * LANES;
                let width = (dim - start).min(LANES);
                let at = (query.token * sizes.heads + query.head) * dim + start;
                let mut mixed = simd.div(sum, simd.splat(total));
                if sizes.is_gated {
                    let gate = (query.token * sizes.heads + query.head) * 2 * dim + dim + start;
                    let gate = load_part(simd, &self.inputs.q[gate..gate + width], 0.0);
                    mixed = simd.mul(mixed, math::sigmoid(simd, gate));
                }
                // SAFETY: every head of every token is one thread's.
                store_part(simd, mixed, unsafe { self.target.part(at..at + width) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three query heads a kv head, and no size a multiple of sixteen.
    const SIZES: AttentionSizes = AttentionSizes {
        heads: 6,
        kv_heads: 2,
        head_dim: 20,
        is_gated: true,
    };
    const HALF: usize = 4;

    fn noise(count: usize, seed: f32) -> Vec<f32> {
        (0..count)
            .map(|i| ((i as f32 + seed) * 1.37).sin() * 2.0)
            .collect()
    }

    fn norm() -> QkNorm {
        QkNorm {
            query: noise(SIZES.head_dim, 1.0),
            key: noise(SIZES.head_dim, 2.0),
            eps: 1e-6,
        }
    }

    /// Projections of some tokens of one row.
    struct Tokens {
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
        cos: Vec<f32>,
        sin: Vec<f32>,
    }

    impl Tokens {
        fn new(count: usize) -> Self {
            let angles = noise(count * HALF, 6.0);
            Self {
                q: noise(count * SIZES.heads * SIZES.head_dim * 2, 3.0),
                k: noise(count * SIZES.kv_heads * SIZES.head_dim, 4.0),
                v: noise(count * SIZES.kv_heads * SIZES.head_dim, 5.0),
                cos: angles.iter().map(|x| x.cos()).collect(),
                sin: angles.iter().map(|x| x.sin()).collect(),
            }
        }

        fn part(&self, tokens: std::ops::Range<usize>) -> AttentionInputs<'_> {
            let of = |width: usize| tokens.start * width..tokens.end * width;
            let kv = of(SIZES.kv_heads * SIZES.head_dim);
            AttentionInputs {
                q: &self.q[of(SIZES.heads * SIZES.head_dim * 2)],
                k: &self.k[kv.clone()],
                v: &self.v[kv],
                cos: &self.cos[of(HALF)],
                sin: &self.sin[of(HALF)],
            }
        }
    }

    /// The layer in f64.
    fn reference(tokens: &Tokens) -> Vec<f64> {
        let dim = SIZES.head_dim;
        let count = tokens.cos.len() / HALF;
        let prepared = |numbers: &[f32], weight: &[f32], token: usize| {
            let xs: Vec<f64> = numbers.iter().map(|&x| f64::from(x)).collect();
            let mean = xs.iter().map(|x| x * x).sum::<f64>() / dim as f64;
            let normed = xs.iter().zip(weight);
            let mut xs: Vec<f64> = normed
                .map(|(x, w)| x / (mean + 1e-6).sqrt() * f64::from(*w))
                .collect();
            for i in 0..HALF {
                let cos = f64::from(tokens.cos[token * HALF + i]);
                let sin = f64::from(tokens.sin[token * HALF + i]);
                let (a, b) = (xs[i], xs[i + HALF]);
                (xs[i], xs[i + HALF]) = (a * cos - b * sin, b * cos + a * sin);
            }
            xs
        };
        let norm = norm();
        let mut output = Vec::new();
        for token in 0..count {
            for head in 0..SIZES.heads {
                let start = (token * SIZES.heads + head) * 2 * dim;
                let query = prepared(&tokens.q[start..start + dim], &norm.query, token);
                let kv = |token: usize| (token * SIZES.kv_heads + head / 3) * dim;
                let scores: Vec<f64> = (0..=token)
                    .map(|at| {
                        let key = prepared(&tokens.k[kv(at)..kv(at) + dim], &norm.key, at);
                        let products = query.iter().zip(key).map(|(q, k)| q * k);
                        products.sum::<f64>() / (dim as f64).sqrt()
                    })
                    .collect();
                let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                for i in 0..dim {
                    let mixed = (0..=token).map(|at| weights[at] * f64::from(tokens.v[kv(at) + i]));
                    let gate = f64::from(tokens.q[start + dim + i]);
                    output.push(mixed.sum::<f64>() / total / (1.0 + (-gate).exp()));
                }
            }
        }
        output
    }

    fn in_pieces(isa: Isa, tokens: &Tokens, piece: usize) -> Vec<f32> {
        let count = tokens.cos.len() / HALF;
        let mut cache = KvCache::default();
        let mut output = Vec::new();
        for start in (0..count).step_by(piece) {
            let end = (start + piece).min(count);
            let part = tokens.part(start..end);
            let lengths = [end - start];
            output.extend(mix(
                isa,
                &SIZES,
                Some(&norm()),
                &part,
                &lengths,
                &mut [&mut cache],
            ));
        }
        output
    }

    #[test]
    fn attention_is_that_of_f64_to_rounding() {
        let tokens = Tokens::new(37);
        let ours = in_pieces(Isa::current(), &tokens, 37);
        let exact = reference(&tokens);
        assert_eq!(ours.len(), exact.len());
        for (ours, exact) in ours.iter().zip(exact) {
            assert!((f64::from(*ours) - exact).abs() < 1e-5, "{ours} {exact}");
        }
    }

    #[test]
    fn pieces_and_processors_change_nothing() {
        let tokens = Tokens::new(300);
        let expected = in_pieces(Isa::current(), &tokens, 300);
        for isa in Isa::available() {
            for piece in [1, 7, 16, 299] {
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
        let tokens = Tokens::new(40);
        let expected = in_pieces(Isa::current(), &tokens, 40);
        let width = SIZES.heads * SIZES.head_dim;
        let run = |part: std::ops::Range<usize>, lengths: &[usize], caches: &mut [KvCache]| {
            let mut caches: Vec<&mut KvCache> = caches.iter_mut().collect();
            let part = tokens.part(part);
            mix(
                Isa::current(),
                &SIZES,
                Some(&norm()),
                &part,
                lengths,
                &mut caches,
            )
        };
        let mut rows = [KvCache::default(), KvCache::default()];
        let both = run(0..40, &[20, 20], &mut rows);
        assert_eq!(both[..20 * width], expected[..20 * width]);
        assert_eq!(
            both[20 * width..],
            run(20..40, &[20], &mut [KvCache::default()])
        );
        // the clone shares the first, full block, copies the second and leaves the row as it was
        let [first, _] = rows;
        let mut clone = [first.clone()];
        let _ = run(0..5, &[5], &mut clone);
        assert!(Arc::ptr_eq(&clone[0].blocks[0], &first.blocks[0]));
        assert!(!Arc::ptr_eq(&clone[0].blocks[1], &first.blocks[1]));
        assert_eq!(run(20..40, &[20], &mut [first]), expected[20 * width..]);
    }
}
