//! Products by vectors: one of sixteen outputs and an activation at a time, all sums of a tile of rows in registers.
//!
//! Sums run over the inputs in their order, in blocks of [`BLOCK`]: the same bits on every processor.

use std::ops::Range;

use super::{Format, GROUP, Groups};
use crate::kernels::parallel::{self, Shared};
use crate::kernels::simd::{Job, LANES, Line, Simd};

/// Inputs that are summed before their sum is added to the total: the error of a long sum stays that of a short one.
pub(super) const BLOCK: usize = 256;

/// Activations in the order in which the product reads them: tiles of rows, in each the rows of one input side by side.
pub(super) struct Activations {
    /// Rows of each tile, and where its numbers start.
    tiles: Vec<(usize, usize)>,
    numbers: Vec<f32>,
}

/// Arranges rows, `[rows, inputs]`.
pub(super) struct Pack<'a> {
    pub(super) xs: &'a [f32],
    pub(super) inputs: usize,
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
            few if few < 1 << 13 => 1,
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

/// Some groups of one matrix with all rows.
pub(super) struct Products<'a> {
    pub(super) groups: &'a Groups<'a>,
    pub(super) activations: &'a Activations,
}

impl Job for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.groups.weights.format {
            Format::Bf16 => self.all::<S, Bf16>(simd),
            Format::F16 => self.all::<S, F16>(simd),
            Format::F32 => self.all::<S, F32>(simd),
        }
    }
}

impl Products<'_> {
    #[inline(always)]
    fn all<S: Simd, W: Pairs>(&self, simd: S) {
        let padded = self.groups.weights.inputs.next_multiple_of(2);
        for group in self.groups.range.clone() {
            let mut row = 0;
            for &(rows, start) in &self.activations.tiles {
                let xs = &self.activations.numbers[start..start + rows * padded];
                macro_rules! by_rows {
                    ($($rows:literal)*) => {
                        match rows {
                            $($rows => {
                                if const { contains(S::TILES, $rows) } {
                                    self.tile::<S, W, $rows>(simd, xs, row, group);
                                }
                            })*
                            _ => unreachable!("activations lie in tiles of these sizes"),
                        }
                    };
                }
                by_rows!(1 2 3 4 5 6 8 10 13 16 20 26);
                row += rows;
            }
        }
    }

    /// A group with the rows of one tile, the first of which is `row`.
    #[inline(always)]
    fn tile<S: Simd, W: Pairs, const ROWS: usize>(
        &self,
        simd: S,
        xs: &[f32],
        row: usize,
        group: usize,
    ) {
        let panels = self.groups.panels(group);
        // few rows leave registers for all panels at once, whose sums do not wait for each other
        if panels.len() == GROUP && const { ROWS * GROUP <= S::TILES[0] } {
            self.product::<S, W, ROWS, GROUP>(simd, xs, row, panels);
        } else {
            self.product::<S, W, ROWS, 1>(simd, xs, row, panels);
        }
    }

    /// The panels of a group with the rows of one tile, `PANELS` at once: a block of activations meets all of them before the next.
    #[inline(always)]
    fn product<S: Simd, W: Pairs, const ROWS: usize, const PANELS: usize>(
        &self,
        simd: S,
        xs: &[f32],
        row: usize,
        panels: Range<usize>,
    ) {
        let lines = self.groups.weights.group(panels.start / GROUP);
        let pairs = self.groups.weights.inputs.div_ceil(2);
        let mut totals = [[[0.0; LANES]; ROWS]; GROUP];
        let mut start = 0;
        while start < pairs {
            let end = (start + BLOCK / 2).min(pairs);
            let lines = &lines[GROUP * W::LINES * start..GROUP * W::LINES * end];
            let xs = &xs[2 * ROWS * start..2 * ROWS * end];
            for first in (0..panels.len()).step_by(PANELS) {
                let sums = block::<S, W, ROWS, PANELS>(simd, lines, first, xs);
                let totals = &mut totals[first..first + PANELS];
                for (row, sums) in sums.into_iter().enumerate() {
                    for (totals, sum) in totals.iter_mut().zip(sums) {
                        let total = &mut totals[row];
                        simd.store(simd.add(simd.load(total), sum), total);
                    }
                }
            }
            start = end;
        }
        for (panel, totals) in panels.zip(&totals) {
            for (offset, total) in totals.iter().enumerate() {
                self.groups.write(row + offset, panel, total);
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

/// The inner loop: some pairs of inputs of `PANELS` panels of a group, from `first` on, with `ROWS` rows, all sums in registers.
#[inline(always)]
fn block<S: Simd, W: Pairs, const ROWS: usize, const PANELS: usize>(
    simd: S,
    lines: &[Line],
    first: usize,
    xs: &[f32],
) -> [[S::F32; PANELS]; ROWS] {
    /// Lines of a panel ahead that are asked for: what memory needs to answer. Where one or two rows leave nothing to do but to
    /// wait for it, the processor reads ahead by itself, and is slowed down by a quarter when asked.
    const AHEAD: usize = 24;
    // known to the compiler where it can be
    let first = if PANELS == GROUP { 0 } else { first };
    let mut sums = [[simd.splat(0.0); PANELS]; ROWS];
    let pairs = lines.chunks_exact(GROUP * W::LINES);
    for (lines, xs) in pairs.zip(xs.chunks_exact(2 * ROWS)) {
        let mut low = [simd.splat(0.0); PANELS];
        let mut high = low;
        for panel in 0..PANELS {
            let lines = &lines[first + panel..];
            if ROWS > 2 {
                for index in 0..W::LINES {
                    simd.prefetch(lines.as_ptr().wrapping_add(GROUP * (index + AHEAD)));
                }
            }
            (low[panel], high[panel]) = W::pair(simd, lines);
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
    /// Reads them where the panel's first line, of those of a group, is the first.
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
        (simd.line(&lines[0]), simd.line(&lines[GROUP]))
    }
}
