//! The order of candidates, best first, without sorting a vocabulary.
//!
//! Candidates lie in bins of falling logit, in no order within a bin; the few bins that a question ends in are sorted when it
//! is asked. Order: falling logit, ties by lower id.

use std::ops::Range;

/// Bins at most: one of them fits the first-level cache, and holds about a hundred candidates of a large vocabulary.
const NUM_BINS: usize = 2048;

/// Bins end this far below the best logit, the last one holds the rest: e^-64 of the best weighs nothing at any ordinary
/// temperature, and one logit far below must not make the bins wide.
const REACH: f32 = 64.0;

/// Candidates in bins of falling logit.
#[derive(Debug, Clone)]
pub(crate) struct Ranking {
    largest: f32,
    /// Bins for each unit of logit.
    density: f32,
    /// Where each bin begins, and where the last one ends.
    starts: Vec<u32>,
    logits: Vec<f32>,
    ids: Vec<u32>,
}

impl Ranking {
    /// Puts logits of at most `largest` into bins; `smallest` is the smallest finite one.
    pub(crate) fn new(logits: &[f32], largest: f32, smallest: f32) -> Self {
        let num_bins = NUM_BINS.min(logits.len());
        let density = num_bins as f32 / (largest - smallest).min(REACH);
        let mut ranking = Self {
            largest,
            density,
            starts: vec![0; num_bins + 1],
            logits: vec![0.0; logits.len()],
            ids: vec![0; logits.len()],
        };
        let bins: Vec<u16> = logits
            .iter()
            .map(|&logit| ranking.bin(logit) as u16)
            .collect();
        for &bin in &bins {
            ranking.starts[usize::from(bin) + 1] += 1;
        }
        for bin in 0..num_bins {
            ranking.starts[bin + 1] += ranking.starts[bin];
        }
        let mut next = ranking.starts.clone();
        for ((id, &logit), bin) in (0u32..).zip(logits).zip(bins) {
            let place = &mut next[usize::from(bin)];
            ranking.logits[*place as usize] = logit;
            ranking.ids[*place as usize] = id;
            *place += 1;
        }
        ranking
    }

    /// Returns the bin of a logit; a worse one is in the same or a later bin.
    fn bin(&self, logit: f32) -> usize {
        // where all logits are equal the product may be NaN, which is bin 0
        let bin = (self.largest - logit) * self.density;
        (bin as usize).min(self.starts.len() - 2)
    }

    /// Returns the bins, best first, as places in [`logits`](Self::logits); some are empty.
    pub(crate) fn bins(&self) -> impl Iterator<Item = Range<usize>> {
        let ends = self.starts.windows(2);
        ends.map(|ends| ends[0] as usize..ends[1] as usize)
    }

    /// Returns the logits of a bin, in no order.
    pub(crate) fn logits(&self, bin: Range<usize>) -> &[f32] {
        &self.logits[bin]
    }

    /// Returns the logits and ids of a bin, best first.
    pub(crate) fn sorted(&self, bin: Range<usize>) -> impl ExactSizeIterator<Item = (f32, u32)> {
        let candidates = self.ids[bin.clone()].iter().zip(&self.logits[bin.clone()]);
        let mut keys: Vec<(u64, usize)> = candidates
            .zip(bin)
            .map(|((&id, &logit), place)| (key(logit, id), place))
            .collect();
        keys.sort_unstable();
        keys.into_iter()
            .map(|(_, place)| (self.logits[place], self.ids[place]))
    }

    /// Returns the ids of the best candidates, best first; all of them where `count` is larger.
    pub(crate) fn best(&self, count: usize) -> Vec<u32> {
        let mut best = Vec::with_capacity(count.min(self.ids.len()));
        for bin in self.bins() {
            if best.len() >= count {
                break;
            }
            best.extend(self.sorted(bin).map(|(_, id)| id));
        }
        best.truncate(count);
        best
    }

    /// Returns a candidate's place in the order, 1 for the best.
    pub(crate) fn rank(&self, logit: f32, id: u32) -> usize {
        let bin = self.bin(logit);
        let bin = self.starts[bin] as usize..self.starts[bin + 1] as usize;
        let wanted = key(logit, id);
        let candidates = self.logits[bin.clone()].iter().zip(&self.ids[bin.clone()]);
        let better = candidates.filter(|&(&logit, &id)| key(logit, id) < wanted);
        1 + bin.start + better.count()
    }
}

/// A number that grows from better to worse candidates: falling logit, then rising id. -0 equals 0.
fn key(logit: f32, id: u32) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ascending = match bits >> 31 {
        0 => bits | 0x8000_0000,
        _ => !bits,
    };
    u64::from(!ascending) << 32 | u64::from(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(logits: &[f32]) -> Ranking {
        let finite = logits.iter().copied().filter(|logit| logit.is_finite());
        let smallest = finite.clone().fold(f32::INFINITY, f32::min);
        Ranking::new(logits, finite.fold(f32::NEG_INFINITY, f32::max), smallest)
    }

    #[test]
    fn equal_logits_and_distant_ones_keep_their_order() {
        assert_eq!(of(&[2.0; 4]).best(9), [0, 1, 2, 3]);
        let far = [f32::NEG_INFINITY, -3e38, 3e38, -1e4, 3e38, -0.0, 0.0];
        assert_eq!(of(&far).best(7), [2, 4, 5, 6, 3, 1, 0]);
        assert_eq!(of(&[f32::NEG_INFINITY, 1.0, 1.0]).best(3), [1, 2, 0]);
        assert_eq!(of(&[f32::MIN_POSITIVE, 0.0, 1e-45]).best(2), [0, 2]);
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_a_sort(
            logits in proptest::collection::vec(prop_oneof![
                6 => -9f32..9.0,
                2 => (-3i8..3).prop_map(f32::from),
                1 => Just(f32::NEG_INFINITY),
                1 => Just(-1e30f32),
            ], 1..300).prop_filter("one is finite", |l| l.iter().any(|l| l.is_finite())),
        ) {
            let mut sorted: Vec<u32> = (0..logits.len() as u32).collect();
            sorted.sort_by(|&a, &b| {
                let order = logits[b as usize].partial_cmp(&logits[a as usize]).expect("no NaN");
                order.then(a.cmp(&b))
            });
            let ranking = of(&logits);
            prop_assert_eq!(&ranking.best(logits.len()), &sorted);
            prop_assert_eq!(&ranking.best(3), &sorted[..logits.len().min(3)]);
            for (place, &id) in sorted.iter().enumerate() {
                prop_assert_eq!(ranking.rank(logits[id as usize], id), place + 1);
            }
            let all = ranking.bins().map(|bin| bin.len()).sum::<usize>();
            prop_assert_eq!(all, logits.len());
        }
    }
}
