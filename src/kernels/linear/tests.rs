//! Products by vectors against plain ones, and what all products share.

use super::vectors::BLOCK;
use super::*;
use crate::kernels::simd::Portable;

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
fn products_on_vectors_are_the_plain_ones_bit_for_bit_on_every_processor() {
    for (outputs, inputs) in [(1, 1), (16, 2), (33, 7), (5, 300), (80, 515)] {
        for (weights, numbers) in matrices(outputs, inputs) {
            for rows in [1, 2, 3, 7, 26, 27, 64] {
                let xs = noise(rows * inputs, rows as u32);
                let expected = reference(&xs, &numbers, inputs);
                let portable = Isa::Portable(Portable);
                let vectors = |isa: &Isa| isa.has_bits_of(portable);
                for isa in Isa::available().into_iter().filter(vectors) {
                    let ys = multiply(isa, &xs, inputs, &[&weights]).remove(0);
                    assert!(
                        ys == expected,
                        "{} {:?} [{outputs}, {inputs}] {rows} rows",
                        isa.name(),
                        weights.format
                    );
                    let by_row = multiply_rows(isa, &xs, inputs, &weights);
                    assert!(by_row.concat() == expected, "{} by row", isa.name());
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
    let formats =
        [1.5, 1.0 + f32::EPSILON].map(|number| Weights::from_numbers(&[number; 4], 2, 2).format);
    assert_eq!(formats, [Format::Bf16, Format::F32]);
    assert!(is_finite(&[0, 0x7b]) && !is_finite(&[0, 0, 0, 0xfc]));
}

#[test]
fn no_rows_are_no_work() {
    let (weights, _) = matrices(3, 4).remove(0);
    assert_eq!(multiply(Isa::current(), &[], 4, &[&weights]), [[0f32; 0]]);
    assert!(multiply_rows(Isa::current(), &[], 4, &weights).is_empty());
}
