//! Coins: the random numbers of a run, each a function of (seed, run index, step) alone.
//!
//! Not of the setting, the prompt or the batch: any run can be repeated by itself, and run 3 at two settings uses the same
//! coins (common random numbers), so that where the two differ, the setting did it. The generator is ChaCha8 (Bernstein
//! 2008), whose stream `rand_chacha` documents as portable: the seed is its key, the run its stream, the step its place.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Returns the coin of one draw, uniform in [0, 1) with 53 random bits.
pub fn coin(seed: u64, run: u32, step: usize) -> f64 {
    const WORDS_PER_COIN: u128 = 2;
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(u64::from(run));
    rng.set_word_pos(step as u128 * WORDS_PER_COIN);
    (rng.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coin_depends_on_seed_run_and_step() {
        let coins = [
            coin(0, 0, 0),
            coin(1, 0, 0),
            coin(0, 1, 0),
            coin(0, 0, 1),
            coin(u64::MAX, 0, 0),
        ];
        for (i, a) in coins.iter().enumerate() {
            assert!((0.0..1.0).contains(a));
            assert!(coins[i + 1..].iter().all(|b| a != b));
        }
    }

    #[test]
    fn coins_are_spread_evenly() {
        let mut tenths = [0; 10];
        for step in 0..10_000 {
            tenths[(coin(7, 3, step) * 10.0) as usize] += 1;
        }
        // five standard deviations of a binomial(10000, 0.1) are 150
        assert!(
            tenths.iter().all(|&n| (850..1150).contains(&n)),
            "{tenths:?}"
        );
    }

    /// A change here would change every recorded run.
    #[test]
    fn the_stream_is_the_one_that_records_were_made_with() {
        let coins = [
            coin(0, 0, 0),
            coin(0, 0, 1),
            coin(0, 4, 63),
            coin(u64::MAX, 1, 0),
        ];
        assert_eq!(
            coins,
            [
                0.7090754154265618,
                0.46592172228961015,
                0.23155859867349327,
                0.2945139866314509
            ]
        );
    }
}
