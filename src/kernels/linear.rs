//! Matrix products with weights as they are published (bf16, f16 or f32): activations and results are f32.
//!
//! Weights are tiled once: a *panel* is sixteen outputs, their inputs interleaved, two a 64-byte line for the 16-bit types.
//! A vector holds one product of sixteen outputs; every output is summed over its inputs in their order, in blocks of
//! `BLOCK`, whatever the number of rows, the threads and the processor: the bits of a result depend on its row alone.
#![allow(
    unsafe_code,
    reason = "panels write columns of a matrix whose rows are contiguous"
)]

use std::ops::Range;

use super::lines::Lines;
use super::parallel::{self, Shared};
use super::simd::{Isa, Job, LANES, Line, Simd};

/// Inputs that are summed before their sum is added to the total: the error of a long sum stays that of a short one.
const BLOCK: usize = 256;

/// Panels that are taken through all rows before the next: with their weights a row's activations stay in the cache.
const GROUP: usize = 4;

/// Weights that a part of the work has at least, in lines: 64 KiB, far more than handing it to a thread costs.
const LEAST_LINES: usize = 1024;

/// How a weight matrix is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The upper half of an f32.
    Bf16,
    /// Half precision; finite numbers only.
    F16,
    /// Single precision.
    F32,
}

/// A weight matrix, tiled.
#[derive(Debug)]
pub struct Weights {
    format: Format,
    outputs: usize,
    inputs: usize,
    lines: Lines,
}

impl Weights {
    /// Tiles a matrix `[outputs, inputs]` whose numbers lie in `bytes`, little-endian, row by row.
    ///
    /// # Panics
    /// When the length is not that of the matrix.
    pub fn from_bytes(format: Format, bytes: &[u8], outputs: usize, inputs: usize) -> Self {
        let size = match format {
            Format::Bf16 | Format::F16 => 2,
            Format::F32 => 4,
        };
        assert_eq!(bytes.len(), outputs * inputs * size, "bytes of a matrix");
        let row = inputs * size;
        Self::tiled(format, outputs, inputs, |first, last, panel| {
            tile(&bytes[first * row..last * row], row, panel);
        })
    }

    /// Tiles a matrix `[outputs, inputs]` whose numbers lie row by row; numbers that are all bf16 are kept as such.
    ///
    /// # Panics
    /// When the length is not that of the matrix.
    pub fn from_numbers(numbers: &[f32], outputs: usize, inputs: usize) -> Self {
        assert_eq!(numbers.len(), outputs * inputs, "numbers of a matrix");
        let is_bf16 = |number: &f32| number.to_bits() & 0xffff == 0;
        let (format, skipped) = match numbers.iter().all(is_bf16) {
            true => (Format::Bf16, 2),
            false => (Format::F32, 0),
        };
        Self::tiled(format, outputs, inputs, |first, last, panel| {
            let numbers = &numbers[first * inputs..last * inputs];
            let mut bytes = Vec::with_capacity(4 * numbers.len());
            for number in numbers {
                bytes.extend_from_slice(&number.to_le_bytes()[skipped..]);
            }
            tile(&bytes, inputs * (4 - skipped), panel);
        })
    }

    /// Lets `tile` write the rows from a first to a last into every panel, whose lines are zeros.
    fn tiled(
        format: Format,
        outputs: usize,
        inputs: usize,
        tile: impl Fn(usize, usize, &mut [Line]) + Sync + Send,
    ) -> Self {
        let panel = panel_lines(format, inputs);
        let mut lines = Lines::zeros(outputs.div_ceil(LANES) * panel);
        let target = Shared::new(&mut lines);
        parallel::ranges(outputs.div_ceil(LANES), 1, |panels| {
            for index in panels {
                // SAFETY: every panel is one thread's.
                let panel = unsafe { target.part(index * panel..(index + 1) * panel) };
                let first = index * LANES;
                tile(first, (first + LANES).min(outputs), panel);
            }
        });
        Self {
            format,
            outputs,
            inputs,
            lines,
        }
    }

    /// Returns the number of outputs.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Returns the number of inputs.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Writes the weights of one output, `inputs` of them, as f32: exact.
    ///
    /// # Panics
    /// When there is no such output, or `to` has another length.
    pub fn copy_row(&self, output: usize, to: &mut [f32]) {
        assert!(
            output < self.outputs && to.len() == self.inputs,
            "a row of the matrix"
        );
        let (panel, lane) = (output / LANES, output % LANES);
        let lines = &self.lines[panel * self.panel_lines()..(panel + 1) * self.panel_lines()];
        for (input, to) in to.iter_mut().enumerate() {
            *to = match self.format {
                Format::F32 => f32::from_bits(lines[input].0[lane]),
                Format::Bf16 => {
                    let pair = lines[input / 2].0[lane];
                    f32::from_bits(if input % 2 == 0 {
                        pair << 16
                    } else {
                        pair & 0xffff_0000
                    })
                }
                Format::F16 => {
                    let pair = lines[input / 2].0[lane];
                    super::simd::f16(pair >> (16 * (input % 2)) & 0xffff)
                }
            };
        }
    }

    fn panel_lines(&self) -> usize {
        panel_lines(self.format, self.inputs)
    }
}

fn panel_lines(format: Format, inputs: usize) -> usize {
    let pairs = inputs.div_ceil(2);
    match format {
        Format::Bf16 | Format::F16 => pairs,
        Format::F32 => 2 * pairs,
    }
}

/// Returns whether f16 numbers are all finite: the only ones that [`Format::F16`] holds.
pub fn is_finite(bytes: &[u8]) -> bool {
    let (numbers, _) = bytes.as_chunks::<2>();
    numbers
        .iter()
        .all(|bytes| u16::from_le_bytes(*bytes) & 0x7c00 != 0x7c00)
}

/// Interleaves up to sixteen rows of bytes, four at a time: two 16-bit numbers or one of 32 bits.
fn tile(rows: &[u8], row_bytes: usize, panel: &mut [Line]) {
    // blocks of a square kibibyte, which stay in the nearest cache
    for (block, lines) in panel.chunks_mut(LANES).enumerate() {
        let start = block * LANES * 4;
        for (lane, row) in rows.chunks_exact(row_bytes).enumerate() {
            let row = &row[start.min(row_bytes)..(start + 4 * lines.len()).min(row_bytes)];
            let (words, odd) = row.as_chunks::<4>();
            for (line, word) in lines.iter_mut().zip(words) {
                line.0[lane] = u32::from_le_bytes(*word);
            }
            if let [low, high] = odd {
                lines[words.len()].0[lane] = u32::from_le_bytes([*low, *high, 0, 0]);
            }
        }
    }
}

/// Multiplies rows of activations, `[rows, inputs]`, with several matrices of as many inputs; returns `[rows, outputs]` for
/// each: `y[r][o] = Σ_i x[r][i] · w[o][i]`.
///
/// # Panics
/// When a matrix has another number of inputs, or `xs` is no whole number of rows.
pub fn multiply(isa: Isa, xs: &[f32], inputs: usize, weights: &[&Weights]) -> Vec<Vec<f32>> {
    assert!(xs.len().is_multiple_of(inputs), "whole rows of activations");
    let rows = xs.len() / inputs;
    let mut results: Vec<Vec<f32>> = weights
        .iter()
        .map(|weights| vec![0.0; rows * weights.outputs])
        .collect();
    let mut targets: Vec<Vec<&mut [f32]>> = results
        .iter_mut()
        .zip(weights)
        .map(|(result, weights)| result.chunks_mut(weights.outputs).collect())
        .collect();
    multiply_into(isa, xs, inputs, weights, &mut targets);
    results
}

/// As [`multiply`], writing row `r` of matrix `m` to `targets[m][r]`.
///
/// # Panics
/// As [`multiply`], or when a target has another length than its matrix has outputs.
pub fn multiply_into(
    isa: Isa,
    xs: &[f32],
    inputs: usize,
    weights: &[&Weights],
    targets: &mut [Vec<&mut [f32]>],
) {
    let rows = xs.len() / inputs;
    if rows == 0 {
        return;
    }
    for (weights, targets) in weights.iter().zip(targets.iter()) {
        assert_eq!(weights.inputs, inputs, "inputs of a matrix");
        assert!(
            targets.len() == rows && targets.iter().all(|row| row.len() == weights.outputs),
            "targets of a matrix"
        );
    }
    let activations = isa.run(Pack { xs, inputs });
    let targets: Vec<Vec<Shared<f32>>> = targets
        .iter_mut()
        .map(|rows| rows.iter_mut().map(|row| Shared::new(row)).collect())
        .collect();
    // the panels of all matrices, one after the other
    let mut ends = Vec::with_capacity(weights.len());
    let mut num_panels = 0;
    for weights in weights {
        num_panels += weights.outputs.div_ceil(LANES);
        ends.push(num_panels);
    }
    let panel_lines = weights.iter().map(|weights| weights.panel_lines()).min();
    let least = LEAST_LINES
        .div_ceil(panel_lines.unwrap_or(1).max(1))
        .next_multiple_of(GROUP);
    parallel::ranges(num_panels, least, |panels| {
        let mut start = 0;
        for ((weights, targets), &end) in weights.iter().zip(&targets).zip(&ends) {
            let part = panels.start.max(start)..panels.end.min(end);
            if part.start < part.end {
                isa.run(Panels {
                    weights,
                    activations: &activations,
                    targets,
                    panels: part.start - start..part.end - start,
                });
            }
            start = end;
        }
    });
}

/// Activations in the order in which the product reads them: tiles of rows, in each the rows of one input side by side.
struct Activations {
    /// Rows of each tile, and where its numbers start.
    tiles: Vec<(usize, usize)>,
    numbers: Vec<f32>,
}

struct Pack<'a> {
    xs: &'a [f32],
    inputs: usize,
}

impl Job for Pack<'_> {
    type Output = Activations;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> Activations {
        let Self { xs, inputs } = self;
        let rows = xs.len() / inputs;
        let padded = inputs.next_multiple_of(2);
        let mut starts = vec![0];
        let mut end = 0;
        while end < rows {
            let tile = S::TILES.iter().find(|&&tile| tile <= rows - end);
            end += tile.expect("a tile may be one row");
            starts.push(end);
        }
        let count = starts.len() - 1;
        let tiles = starts
            .windows(2)
            .map(|ends| (ends[1] - ends[0], ends[0] * padded))
            .collect();
        let mut numbers = vec![0.0; rows * padded];
        let target = Shared::new(&mut numbers);
        let bands = match rows * inputs {
            few if few < 1 << 15 => 1,
            _ => padded.div_ceil(BLOCK),
        };
        parallel::each(count * bands, |part| {
            let (tile, band) = (part / bands, part % bands);
            let (first, end) = (starts[tile], starts[tile + 1]);
            let height = end - first;
            let columns = inputs * band / bands..inputs * (band + 1) / bands;
            let start = first * padded + columns.start * height;
            // SAFETY: bands of a tile and tiles lie one after the other.
            let to = unsafe { target.part(start..start + columns.len() * height) };
            for row in first..end {
                let from = &xs[row * inputs..(row + 1) * inputs][columns.clone()];
                for (from, to) in from.iter().zip(to.chunks_exact_mut(height)) {
                    to[row - first] = *from;
                }
            }
        });
        Activations { tiles, numbers }
    }
}

/// Some panels of one matrix with all rows.
struct Panels<'a> {
    weights: &'a Weights,
    activations: &'a Activations,
    targets: &'a [Shared<'a, f32>],
    panels: Range<usize>,
}

impl Job for Panels<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.weights.format {
            Format::Bf16 => self.all::<S, Bf16>(simd),
            Format::F16 => self.all::<S, F16>(simd),
            Format::F32 => self.all::<S, F32>(simd),
        }
    }
}

impl Panels<'_> {
    #[inline(always)]
    fn all<S: Simd, W: Pairs>(&self, simd: S) {
        let padded = self.weights.inputs.next_multiple_of(2);
        let mut group = self.panels.clone();
        while group.start < group.end {
            let panels = group.start..(group.start + GROUP).min(group.end);
            let mut row = 0;
            for &(rows, start) in &self.activations.tiles {
                let xs = &self.activations.numbers[start..start + rows * padded];
                macro_rules! by_rows {
                    ($($rows:literal)*) => {
                        match rows {
                            $($rows => {
                                if const { contains(S::TILES, $rows) } {
                                    self.tile::<S, W, $rows>(simd, xs, row, panels.clone());
                                }
                            })*
                            _ => unreachable!("activations lie in tiles of these sizes"),
                        }
                    };
                }
                by_rows!(1 2 3 4 5 6 8 10 13 16 20 26);
                row += rows;
            }
            group.start = panels.end;
        }
    }

    /// Some panels with the rows of one tile, the first of which is `row`.
    #[inline(always)]
    fn tile<S: Simd, W: Pairs, const ROWS: usize>(
        &self,
        simd: S,
        xs: &[f32],
        row: usize,
        panels: Range<usize>,
    ) {
        let whole = panels.len() == GROUP;
        // few rows leave registers for several panels at once, whose sums do not wait for each other
        if whole && const { ROWS * GROUP <= S::TILES[0] } {
            self.product::<S, W, ROWS, GROUP>(simd, xs, row, panels.start);
        } else {
            for panel in panels {
                self.product::<S, W, ROWS, 1>(simd, xs, row, panel);
            }
        }
    }

    #[inline(always)]
    fn product<S: Simd, W: Pairs, const ROWS: usize, const PANELS: usize>(
        &self,
        simd: S,
        xs: &[f32],
        row: usize,
        panel: usize,
    ) {
        let pairs = self.weights.inputs.div_ceil(2);
        let length = self.weights.panel_lines();
        let panels: [&[Line]; PANELS] = std::array::from_fn(|index| {
            &self.weights.lines[(panel + index) * length..(panel + index + 1) * length]
        });
        let mut totals = [[[0.0; LANES]; PANELS]; ROWS];
        let mut start = 0;
        while start < pairs {
            let end = (start + BLOCK / 2).min(pairs);
            let sums = block::<S, W, ROWS, PANELS>(simd, &panels, xs, start..end);
            for (totals, sums) in totals.iter_mut().zip(sums) {
                for (total, sum) in totals.iter_mut().zip(sums) {
                    simd.store(simd.add(simd.load(total), sum), total);
                }
            }
            start = end;
        }
        for (offset, totals) in totals.iter().enumerate() {
            for (index, total) in totals.iter().enumerate() {
                let first = (panel + index) * LANES;
                let last = (first + LANES).min(self.weights.outputs);
                // SAFETY: every panel is one thread's.
                let target = unsafe { self.targets[row + offset].part(first..last) };
                target.copy_from_slice(&total[..last - first]);
            }
        }
    }
}

/// Whether a list holds a number, as a constant: code for other numbers is not even made.
const fn contains(list: &[usize], number: usize) -> bool {
    let mut index = 0;
    while index < list.len() {
        if list[index] == number {
            return true;
        }
        index += 1;
    }
    false
}

/// The inner loop: some pairs of inputs of `PANELS` panels with `ROWS` rows, all sums in registers.
#[inline(always)]
fn block<S: Simd, W: Pairs, const ROWS: usize, const PANELS: usize>(
    simd: S,
    panels: &[&[Line]; PANELS],
    xs: &[f32],
    pairs: Range<usize>,
) -> [[S::F32; PANELS]; ROWS] {
    /// Lines ahead that are asked for: what memory needs to answer.
    const AHEAD: usize = 24;
    let mut sums = [[simd.splat(0.0); PANELS]; ROWS];
    let xs = &xs[2 * pairs.start * ROWS..2 * pairs.end * ROWS];
    let panels = panels.map(|lines| &lines[pairs.start * W::LINES..pairs.end * W::LINES]);
    for (pair, xs) in xs.chunks_exact(2 * ROWS).enumerate() {
        let mut low = [simd.splat(0.0); PANELS];
        let mut high = low;
        for (panel, lines) in panels.iter().enumerate() {
            let line = &lines[pair * W::LINES];
            for next in 0..W::LINES {
                simd.prefetch(std::ptr::from_ref(line).wrapping_add(AHEAD + next));
            }
            (low[panel], high[panel]) = W::pair(simd, &lines[pair * W::LINES..]);
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            let x = simd.splat(xs[row]);
            for (sum, weights) in sums.iter_mut().zip(low) {
                *sum = simd.mul_add(weights, x, *sum);
            }
        }
        for (row, sums) in sums.iter_mut().enumerate() {
            let x = simd.splat(xs[ROWS + row]);
            for (sum, weights) in sums.iter_mut().zip(high) {
                *sum = simd.mul_add(weights, x, *sum);
            }
        }
    }
    sums
}

/// How two inputs of a panel are read.
trait Pairs {
    /// Lines that hold them.
    const LINES: usize;
    fn pair<S: Simd>(simd: S, lines: &[Line]) -> (S::F32, S::F32);
}

struct Bf16;
struct F16;
struct F32;

impl Pairs for Bf16 {
    const LINES: usize = 1;
    #[inline(always)]
    fn pair<S: Simd>(simd: S, lines: &[Line]) -> (S::F32, S::F32) {
        simd.bf16_pairs(&lines[0])
    }
}

impl Pairs for F16 {
    const LINES: usize = 1;
    #[inline(always)]
    fn pair<S: Simd>(simd: S, lines: &[Line]) -> (S::F32, S::F32) {
        simd.f16_pairs(&lines[0])
    }
}

impl Pairs for F32 {
    const LINES: usize = 2;
    #[inline(always)]
    fn pair<S: Simd>(simd: S, lines: &[Line]) -> (S::F32, S::F32) {
        (simd.line(&lines[0]), simd.line(&lines[1]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers between -1 and 1 that differ everywhere.
    fn noise(count: usize, seed: u32) -> Vec<f32> {
        let mut bits = seed;
        let next = |_| {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (bits >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..count).map(next).collect()
    }

    fn bf16(number: f32) -> f32 {
        f32::from_bits(number.to_bits() & 0xffff_0000)
    }

    /// The product, plainly: every output is its own loop, in blocks as the kernel's.
    fn reference(xs: &[f32], weights: &[f32], inputs: usize) -> Vec<f32> {
        let mut ys = Vec::new();
        for x in xs.chunks_exact(inputs) {
            for w in weights.chunks_exact(inputs) {
                let blocks = x.chunks(BLOCK).zip(w.chunks(BLOCK));
                let sums = blocks.map(|(x, w)| {
                    let terms = x.iter().zip(w);
                    terms.fold(0f32, |sum, (x, w)| w.mul_add(*x, sum))
                });
                ys.push(sums.fold(0f32, |total, sum| total + sum));
            }
        }
        ys
    }

    /// A matrix in each format with the numbers that it holds.
    fn matrices(outputs: usize, inputs: usize) -> Vec<(Weights, Vec<f32>)> {
        let numbers = noise(outputs * inputs, 7);
        let rounded: Vec<f32> = numbers.iter().map(|&number| bf16(number)).collect();
        let brain: Vec<u8> = rounded
            .iter()
            .flat_map(|number| ((number.to_bits() >> 16) as u16).to_le_bytes())
            .collect();
        let half_bits = |index: usize| (index as u16).wrapping_mul(2_953) % 0x7c00;
        let half: Vec<u8> = (0..outputs * inputs)
            .flat_map(|index| half_bits(index).to_le_bytes())
            .collect();
        let halves = (0..outputs * inputs)
            .map(|index| super::super::simd::f16(u32::from(half_bits(index))))
            .collect();
        let single: Vec<u8> = numbers
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let of = |format, bytes: &[u8]| Weights::from_bytes(format, bytes, outputs, inputs);
        vec![
            (of(Format::Bf16, &brain), rounded.clone()),
            (Weights::from_numbers(&rounded, outputs, inputs), rounded),
            (of(Format::F16, &half), halves),
            (of(Format::F32, &single), numbers.clone()),
            (Weights::from_numbers(&numbers, outputs, inputs), numbers),
        ]
    }

    #[test]
    fn products_are_the_plain_ones_bit_for_bit_on_every_processor() {
        for (outputs, inputs) in [(1, 1), (16, 2), (33, 7), (5, 300), (80, 515)] {
            for (weights, numbers) in matrices(outputs, inputs) {
                for rows in [1, 2, 3, 7, 26, 27, 64] {
                    let xs = noise(rows * inputs, rows as u32);
                    let expected = reference(&xs, &numbers, inputs);
                    for isa in Isa::available() {
                        let ys = multiply(isa, &xs, inputs, &[&weights]).remove(0);
                        assert!(
                            ys == expected,
                            "{} {:?} [{outputs}, {inputs}] {rows} rows",
                            isa.name(),
                            weights.format
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn products_are_those_of_f64_to_rounding() {
        let (outputs, inputs, rows) = (32, 6144, 3);
        let (weights, numbers) = matrices(outputs, inputs).remove(0);
        let xs = noise(rows * inputs, 3);
        let ys = multiply(Isa::current(), &xs, inputs, &[&weights]).remove(0);
        for (row, x) in xs.chunks_exact(inputs).enumerate() {
            for (output, w) in numbers.chunks_exact(inputs).enumerate() {
                let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                let size: f64 = terms.clone().map(|term| term * term).sum::<f64>().sqrt();
                let off = f64::from(ys[row * outputs + output]) - terms.sum::<f64>();
                assert!(off.abs() < 2e-6 * size, "{off} of {size}");
            }
        }
    }

    #[test]
    fn threads_and_neighbours_change_nothing() {
        let inputs = 130;
        let (first, _) = matrices(900, inputs).remove(0);
        let (second, _) = matrices(40, inputs).remove(3);
        let xs = noise(26 * inputs, 5);
        let expected = [&first, &second].map(|weights| {
            let rows = xs.chunks_exact(inputs);
            rows.flat_map(|x| multiply(Isa::current(), x, inputs, &[weights]).remove(0))
                .collect::<Vec<f32>>()
        });
        for threads in [1, 2, 4] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let pool = pool.expect("a pool");
            let ys = pool.install(|| multiply(Isa::current(), &xs, inputs, &[&first, &second]));
            assert!(ys == expected, "{threads} threads");
        }
    }

    #[test]
    fn rows_are_given_back_as_they_came() {
        for (weights, numbers) in matrices(19, 5) {
            let mut row = [0.0; 5];
            for (output, expected) in numbers.chunks_exact(5).enumerate() {
                weights.copy_row(output, &mut row);
                assert_eq!(row, expected, "{:?}", weights.format);
            }
        }
    }

    #[test]
    fn numbers_that_are_bf16_take_two_bytes() {
        let formats = [1.5, 1.0 + f32::EPSILON]
            .map(|number| Weights::from_numbers(&[number; 4], 2, 2).format);
        assert_eq!(formats, [Format::Bf16, Format::F32]);
        assert!(is_finite(&[0, 0x7b]) && !is_finite(&[0, 0, 0, 0xfc]));
    }

    #[test]
    fn no_rows_are_no_work() {
        let (weights, _) = matrices(3, 4).remove(0);
        assert_eq!(multiply(Isa::current(), &[], 4, &[&weights]), [[0f32; 0]]);
    }
}
