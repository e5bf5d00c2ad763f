//! Matrix products with weights as they are published (bf16, f16 or f32): activations and results are f32.
//!
//! Weights are tiled once: a *panel* is sixteen outputs, their inputs interleaved, two a 64-byte line for the 16-bit types;
//! four panels are a *group*, whose lines lie in turn, so that few rows read memory from one end to the other.
//! `vectors` multiplies them with the instructions that every kernel uses; where the processor has matrix tiles, `tiles`
//! does so for bf16. In both an output is summed over its inputs in one order, whatever the number of rows and the threads:
//! the bits of a result depend on its row alone, and on which of the two made it.
#![allow(
    unsafe_code,
    reason = "panels write columns of a matrix whose rows are contiguous; tiles have no intrinsics"
)]

#[cfg(target_arch = "x86_64")]
mod tiles;
mod vectors;

#[cfg(test)]
mod tests;

use std::mem::MaybeUninit;
use std::ops::Range;

use super::lines::Lines;
use super::parallel::{self, Shared};
use super::simd::{Isa, LANES, Line};

/// Panels of a group. They are taken through all rows before the next: with their weights a row's activations stay in the
/// cache.
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
        Self::tiled(format, outputs, inputs, |rows, panel| {
            tile(&bytes[rows.start * row..rows.end * row], row, panel);
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
        Self::tiled(format, outputs, inputs, |rows, panel| {
            let numbers = &numbers[rows.start * inputs..rows.end * inputs];
            let mut bytes = Vec::with_capacity(4 * numbers.len());
            for number in numbers {
                bytes.extend_from_slice(&number.to_le_bytes()[skipped..]);
            }
            tile(&bytes, inputs * (4 - skipped), panel);
        })
    }

    /// Lets `tile` write up to sixteen rows into every panel, whose lines are zeros.
    fn tiled(
        format: Format,
        outputs: usize,
        inputs: usize,
        tile: impl Fn(Range<usize>, &mut [Line]) + Sync + Send,
    ) -> Self {
        let num_groups = num_groups(outputs);
        let length = group_lines(format, inputs);
        let mut lines = Lines::zeros(num_groups * length);
        let target = Shared::new(&mut lines);
        parallel::ranges(num_groups, 1, |groups| {
            // panel by panel first: memory is fast where few places of it are read or written in turn
            let mut panels = vec![Line::ZERO; length];
            for index in groups {
                let first = index * GROUP * LANES;
                if first + GROUP * LANES > outputs {
                    panels.fill(Line::ZERO);
                }
                for (number, panel) in panels.chunks_exact_mut(length / GROUP).enumerate() {
                    let first = (first + number * LANES).min(outputs);
                    tile(first..(first + LANES).min(outputs), panel);
                }
                // SAFETY: every group is one thread's.
                let group = unsafe { target.part(index * length..(index + 1) * length) };
                take_turns(&panels, group);
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
        let lines = &self.group(panel / GROUP)[panel % GROUP..];
        for (input, to) in to.iter_mut().enumerate() {
            *to = match self.format {
                Format::F32 => f32::from_bits(lines[GROUP * input].0[lane]),
                Format::Bf16 => {
                    let pair = lines[GROUP * (input / 2)].0[lane];
                    f32::from_bits(if input % 2 == 0 {
                        pair << 16
                    } else {
                        pair & 0xffff_0000
                    })
                }
                Format::F16 => {
                    let pair = lines[GROUP * (input / 2)].0[lane];
                    super::simd::f16(pair >> (16 * (input % 2)) & 0xffff)
                }
            };
        }
    }

    /// Returns the lines of a group: line `i` of its panel `p` is number `GROUP * i + p`.
    fn group(&self, index: usize) -> &[Line] {
        let length = group_lines(self.format, self.inputs);
        &self.lines[index * length..(index + 1) * length]
    }
}

fn num_groups(outputs: usize) -> usize {
    outputs.div_ceil(GROUP * LANES)
}

fn group_lines(format: Format, inputs: usize) -> usize {
    let pairs = inputs.div_ceil(2);
    match format {
        Format::Bf16 | Format::F16 => GROUP * pairs,
        Format::F32 => 2 * GROUP * pairs,
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

/// Copies panels that lie one after the other into a group, where their lines lie in turn.
fn take_turns(panels: &[Line], group: &mut [Line]) {
    let length = panels.len() / GROUP;
    for (place, lines) in group.chunks_exact_mut(GROUP).enumerate() {
        for (number, line) in lines.iter_mut().enumerate() {
            *line = panels[number * length + place];
        }
    }
}

/// Multiplies rows of activations, `[rows, inputs]`, with several matrices of as many inputs; returns `[rows, outputs]` for
/// each: `y[r][o] = Σ_i x[r][i] · w[o][i]`.
///
/// # Panics
/// When a matrix has another number of inputs, or `xs` is no whole number of rows.
pub fn multiply(isa: Isa, xs: &[f32], inputs: usize, weights: &[&Weights]) -> Vec<Vec<f32>> {
    let rows = xs.len() / inputs;
    // not zeroed: that would be work of one thread, for which the others wait
    let mut results: Vec<Vec<f32>> = weights
        .iter()
        .map(|weights| Vec::with_capacity(rows * weights.outputs))
        .collect();
    let targets = results.iter_mut().zip(weights).map(|(result, weights)| {
        let numbers = &mut result.spare_capacity_mut()[..rows * weights.outputs];
        numbers.chunks_mut(weights.outputs).map(Shared::new)
    });
    let targets: Vec<Vec<_>> = targets.map(Iterator::collect).collect();
    multiply_into(isa, xs, inputs, weights, &targets);
    for (result, weights) in results.iter_mut().zip(weights) {
        // SAFETY: it has the capacity, and all of it is written.
        unsafe { result.set_len(rows * weights.outputs) };
    }
    results
}

/// As [`multiply`] with one matrix; returns the `outputs` of each row in a vector of their own.
///
/// # Panics
/// As [`multiply`].
pub fn multiply_rows(isa: Isa, xs: &[f32], inputs: usize, weights: &Weights) -> Vec<Vec<f32>> {
    let mut results: Vec<Vec<f32>> = (0..xs.len() / inputs)
        .map(|_| Vec::with_capacity(weights.outputs))
        .collect();
    let targets = results
        .iter_mut()
        .map(|row| Shared::new(&mut row.spare_capacity_mut()[..weights.outputs]));
    multiply_into(isa, xs, inputs, &[weights], &[targets.collect()]);
    for row in &mut results {
        // SAFETY: it has the capacity, and all of it is written.
        unsafe { row.set_len(weights.outputs) };
    }
    results
}

/// Writes the products of row `r` with matrix `m` to `targets[m][r]`, every one.
///
/// # Panics
/// As [`multiply`], or when a matrix has not a target for each row, as long as it has outputs.
fn multiply_into(
    isa: Isa,
    xs: &[f32],
    inputs: usize,
    weights: &[&Weights],
    targets: &[Vec<Shared<MaybeUninit<f32>>>],
) {
    assert!(xs.len().is_multiple_of(inputs), "whole rows of activations");
    let rows = xs.len() / inputs;
    if rows == 0 {
        return;
    }
    for (weights, targets) in weights.iter().zip(targets) {
        assert_eq!(weights.inputs, inputs, "inputs of a matrix");
        assert!(
            targets.len() == rows && targets.iter().all(|row| row.len() == weights.outputs),
            "targets of a matrix"
        );
    }
    let activations = Activations::pack(isa, xs, inputs, weights);
    // the groups of all matrices, one after the other
    let mut ends = Vec::with_capacity(weights.len());
    let mut total = 0;
    for weights in weights {
        total += num_groups(weights.outputs);
        ends.push(total);
    }
    let lines = weights
        .iter()
        .map(|weights| group_lines(weights.format, inputs));
    let least = LEAST_LINES.div_ceil(lines.min().unwrap_or(1).max(1));
    parallel::ranges(total, least, |groups| {
        let mut start = 0;
        for ((weights, targets), &end) in weights.iter().zip(targets).zip(&ends) {
            let part = groups.start.max(start)..groups.end.min(end);
            if part.start < part.end {
                activations.multiply(&Groups {
                    weights,
                    targets,
                    range: part.start - start..part.end - start,
                });
            }
            start = end;
        }
    });
}

/// Some groups of one matrix, and where their products with all rows go.
struct Groups<'a> {
    weights: &'a Weights,
    targets: &'a [Shared<'a, MaybeUninit<f32>>],
    range: Range<usize>,
}

impl Groups<'_> {
    /// Returns the panels of a group: the last group may have fewer than [`GROUP`].
    fn panels(&self, group: usize) -> Range<usize> {
        let panels = self.weights.outputs.div_ceil(LANES);
        GROUP * group..panels.min(GROUP * (group + 1))
    }

    /// Writes what a panel's outputs are for a row.
    fn write(&self, row: usize, panel: usize, outputs: &[f32; LANES]) {
        let first = panel * LANES;
        let last = (first + LANES).min(self.weights.outputs);
        // SAFETY: every group is one thread's.
        let target = unsafe { self.targets[row].part(first..last) };
        match <&mut [_; LANES]>::try_from(&mut *target) {
            // of a size that the compiler knows: one store
            Ok(whole) => *whole = outputs.map(MaybeUninit::new),
            Err(_) => {
                target.write_copy_of_slice(&outputs[..last - first]);
            }
        }
    }
}

/// Rows of activations, in the order in which the instructions that multiply them read them.
struct Activations {
    isa: Isa,
    vectors: Option<vectors::Activations>,
    #[cfg(target_arch = "x86_64")]
    tiles: Option<(super::simd::Amx, tiles::Activations)>,
}

impl Activations {
    /// Arranges rows, `[rows, inputs]`, for the products with some matrices.
    fn pack(isa: Isa, xs: &[f32], inputs: usize, weights: &[&Weights]) -> Self {
        let on_tiles = |weights: &&Weights| isa.has_tiles() && weights.format == Format::Bf16;
        let has_others = !weights.iter().all(on_tiles);
        Self {
            isa,
            vectors: has_others.then(|| isa.run(vectors::Pack { xs, inputs })),
            #[cfg(target_arch = "x86_64")]
            tiles: isa
                .amx()
                .filter(|_| weights.iter().any(on_tiles))
                .map(|amx| (amx, isa.run(tiles::Pack { xs, inputs }))),
        }
    }

    fn multiply(&self, groups: &Groups) {
        #[cfg(target_arch = "x86_64")]
        if let (Some((amx, activations)), Format::Bf16) = (&self.tiles, groups.weights.format) {
            return tiles::multiply(*amx, activations, groups);
        }
        let activations = self.vectors.as_ref().expect("packed for these weights");
        self.isa.run(vectors::Products {
            groups,
            activations,
        });
    }
}
