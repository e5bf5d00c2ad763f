//! Products on matrix tiles (AMX): sixteen rows of activations at a time with the 32 inputs of sixteen outputs.
//!
//! Tiles multiply bf16 and sum in f32. An f32 activation is the sum of three bf16 numbers, to the last bit, so that three
//! products, exact each, have the precision of one in f32. The 16 lines of a panel that hold 32 inputs are a tile of weights
//! as they lie, four lines apart. A sum takes 32 inputs at once (even and odd ones apart, then together), the smallest part
//! of the activations first; it is the same whatever the number of rows, whose sums tiles keep apart.
//!
//! Subnormal numbers count as 0 here, and an infinite activation gives NaN.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS.

use std::arch::asm;
use std::marker::PhantomData;

use super::{GROUP, Groups};
use crate::kernels::parallel::{self, Shared};
use crate::kernels::simd::{Amx, Job, LANES, Line, Simd};

/// Rows of a tile, at most; of a tile of weights always, each with two inputs.
const ROWS: usize = 16;
/// Inputs that one product takes.
const INPUTS: usize = 2 * ROWS;
/// bf16 numbers whose sum is an f32.
const PARTS: usize = 3;
/// Tiles of rows that are multiplied together: with two panels they fill four of the eight tiles with sums.
const TOGETHER: usize = 2;
/// Packed activations that a thread is given at once, in steps.
const BAND: usize = 8;

const _: () = assert!(GROUP == 4, "the assembly below has its strides");

/// Rows of activations in tiles: for every one or two tiles, for every [`INPUTS`], for every part, each tile's lines.
pub(super) struct Activations {
    rows: usize,
    shape: Shape,
    lines: Vec<Line>,
}

#[derive(Clone, Copy)]
struct Shape {
    /// Tiles in all.
    tiles: usize,
    /// Rows of each; what the last one lacks are zeros.
    height: usize,
    /// Products that a sum takes.
    steps: usize,
}

impl Shape {
    fn new(rows: usize, inputs: usize) -> Self {
        let tiles = rows.div_ceil(ROWS);
        Self {
            tiles,
            height: rows.div_ceil(tiles),
            steps: inputs.div_ceil(INPUTS),
        }
    }

    /// Returns the tiles that are multiplied together with tile `first`, and that one.
    fn together(self, first: usize) -> usize {
        TOGETHER.min(self.tiles - first)
    }

    /// Returns the lines of one step of so many tiles.
    fn step_lines(self, tiles: usize) -> usize {
        PARTS * tiles * self.height
    }
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
        let shape = Shape::new(rows, inputs);
        let mut lines = vec![Line::ZERO; shape.steps * shape.step_lines(shape.tiles)];
        let target = Shared::new(&mut lines);
        let bands = shape.steps.div_ceil(BAND);
        parallel::each(shape.tiles.div_ceil(TOGETHER) * bands, |part| {
            let (first, band) = (part / bands * TOGETHER, part % bands);
            let tiles = shape.together(first);
            let steps = BAND * band..shape.steps.min(BAND * (band + 1));
            let start = shape.steps * shape.step_lines(first);
            let length = shape.step_lines(tiles);
            // SAFETY: bands lie one after the other, and so do the tiles that are multiplied together.
            let lines =
                unsafe { target.part(start + steps.start * length..start + steps.end * length) };
            for (step, lines) in steps.zip(lines.chunks_exact_mut(length)) {
                let columns = INPUTS * step..inputs.min(INPUTS * (step + 1));
                for place in 0..(tiles * shape.height).min(rows - first * shape.height) {
                    let row = first * shape.height + place;
                    let parts = split(&xs[row * inputs..(row + 1) * inputs][columns.clone()]);
                    for (part, line) in parts.into_iter().enumerate() {
                        lines[part * tiles * shape.height + place] = line;
                    }
                }
            }
        });
        Activations { rows, shape, lines }
    }
}

/// Splits up to [`INPUTS`] numbers into lines of bf16 whose sums they are, the smallest first.
#[inline(always)]
fn split(numbers: &[f32]) -> [Line; PARTS] {
    let mut whole = [0.0; INPUTS];
    whole[..numbers.len()].copy_from_slice(numbers);
    let upper = |number: f32| f32::from_bits(number.to_bits() & 0xffff_0000);
    let mut lines = [Line::ZERO; PARTS];
    for part in (0..PARTS).rev() {
        for (pair, numbers) in lines[part].0.iter_mut().zip(whole.as_chunks().0) {
            let [even, odd]: &[f32; 2] = numbers;
            *pair = even.to_bits() >> 16 | odd.to_bits() & 0xffff_0000;
        }
        // exact: the upper half is the nearest number towards 0 with the leading eight bits
        whole = whole.map(|number| number - upper(number));
    }
    lines
}

/// Multiplies some groups with all rows.
pub(super) fn multiply(amx: Amx, activations: &Activations, groups: &Groups) {
    let shape = activations.shape;
    let length = shape.steps * ROWS * GROUP;
    let mut padded = Vec::new();
    let tiles = Tiles::configure(amx, shape.height);
    for group in groups.range.clone() {
        let mut weights = groups.weights.group(group);
        if weights.len() < length {
            padded.resize(length, Line::ZERO);
            padded[..weights.len()].copy_from_slice(weights);
            weights = &padded;
        }
        let panels = groups.panels(group);
        for first in (0..shape.tiles).step_by(TOGETHER) {
            let together = shape.together(first);
            let start = shape.steps * shape.step_lines(first);
            let xs = &activations.lines[start..start + shape.steps * shape.step_lines(together)];
            for pair in 0..panels.len().div_ceil(2) {
                let sums = tiles.products(xs, together, weights, pair);
                for (tile, sums) in sums[..together].iter().enumerate() {
                    let row = (first + tile) * shape.height;
                    let rows = shape.height.min(activations.rows - row);
                    for (panel, sums) in panels.clone().skip(2 * pair).zip(sums) {
                        for (offset, sums) in sums[..rows].iter().enumerate() {
                            groups.write(row + offset, panel, &sums.0);
                        }
                    }
                }
            }
        }
    }
}

/// Asks for the tile of weights that comes two steps after the one at `$panel`: what memory needs to answer.
macro_rules! ahead {
    ($panel:literal) => {
        ahead!($panel; "0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15")
    };
    ($panel:literal; $($line:literal)*) => {
        concat!($("prefetcht0 [{", $panel, "} + 8192 + 256 * ", $line, "]\n"),*)
    };
}

/// Loads the next tile of rows into `$xs` and adds its products with both panels to `$first` and `$second`.
macro_rules! rows {
    ($xs:literal, $first:literal, $second:literal) => {
        concat!(
            "tileloadd ",
            $xs,
            ", [{xs} + {line}]\n",
            "add {xs}, {tile}\n",
            "tdpbf16ps ",
            $first,
            ", ",
            $xs,
            ", tmm4\n",
            "tdpbf16ps ",
            $second,
            ", ",
            $xs,
            ", tmm5\n",
        )
    };
}

/// Sums of one row with one panel.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([f32; LANES]);

/// The tiles of a thread's processor, of one shape while this lives: 4 and 5 hold weights, all others have `height` rows. One at
/// a time, on the thread that made it.
struct Tiles {
    height: usize,
    not_send: PhantomData<*const ()>,
}

/// What LDTILECFG reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Tiles {
    fn configure(_: Amx, height: usize) -> Self {
        let mut rows = [0; 16];
        rows[..8].fill(height as u8);
        rows[4..6].fill(ROWS as u8);
        let mut row_bytes = [0; 16];
        row_bytes[..8].fill(size_of::<Line>() as u16);
        let config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes,
            rows,
        };
        // SAFETY: `Amx` is proof of the instruction; it reads 64 bytes, and nothing else in the program uses tiles.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly));
        }
        Self {
            height,
            not_send: PhantomData,
        }
    }

    /// Multiplies one or two tiles of rows, packed, with the first or second pair of a group's panels; returns
    /// `[tile][panel][row]`.
    fn products(
        &self,
        xs: &[Line],
        tiles: usize,
        weights: &[Line],
        pair: usize,
    ) -> [[[Sums; ROWS]; 2]; 2] {
        let steps = weights.len() / (ROWS * GROUP);
        assert!(
            weights.len() == steps * ROWS * GROUP
                && xs.len() == steps * PARTS * tiles * self.height
                && matches!(tiles, 1 | 2)
                && pair < GROUP / 2
                && steps > 0,
            "whole tiles"
        );
        let mut sums = [[[Sums([0.0; LANES]); ROWS]; 2]; 2];
        let one = weights[2 * pair..].as_ptr();
        let two = weights[2 * pair + 1..].as_ptr();
        let tile_bytes = self.height * size_of::<Line>();
        macro_rules! products {
            ($($rows:expr),*; $($more:literal)*) => {
                // SAFETY: tiles are configured while `self` lives. Each step reads a tile of either panel and `PARTS` times
                // `tiles` tiles of `height` lines, which the lengths above leave; a prefetch may name any address. At most
                // `ROWS` lines of each sum are written.
                unsafe {
                    asm!(
                        "tilezero tmm0",
                        "tilezero tmm1",
                        $(concat!("tilezero tmm", $more),)*
                        "2:",
                        ahead!("one"),
                        ahead!("two"),
                        "tileloadd tmm4, [{one} + {turn}]",
                        "tileloadd tmm5, [{two} + {turn}]",
                        $($rows,)*
                        "add {one}, 4096",
                        "add {two}, 4096",
                        "dec {steps}",
                        "jnz 2b",
                        "tilestored [{sums} + {line}], tmm0",
                        "tilestored [{sums} + {line} + 1024], tmm1",
                        $(concat!("tilestored [{sums} + {line} + 1024 * ", $more, "], tmm", $more),)*
                        one = inout(reg) one => _,
                        two = inout(reg) two => _,
                        xs = inout(reg) xs.as_ptr() => _,
                        steps = inout(reg) steps => _,
                        sums = in(reg) sums.as_mut_ptr(),
                        tile = in(reg) tile_bytes,
                        line = in(reg) size_of::<Line>(),
                        turn = in(reg) GROUP * size_of::<Line>(),
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            };
        }
        if tiles == 1 {
            products!(
                rows!("tmm2", "tmm0", "tmm1"),
                rows!("tmm3", "tmm0", "tmm1"),
                rows!("tmm6", "tmm0", "tmm1");
            );
        } else {
            products!(
                rows!("tmm6", "tmm0", "tmm1"), rows!("tmm7", "tmm2", "tmm3"),
                rows!("tmm6", "tmm0", "tmm1"), rows!("tmm7", "tmm2", "tmm3"),
                rows!("tmm6", "tmm0", "tmm1"), rows!("tmm7", "tmm2", "tmm3");
                2 3
            );
        }
        sums
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: they were configured with the same proof; from here on a switch of threads need not keep them.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}
