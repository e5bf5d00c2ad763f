//! The order of candidates, best first, without sorting a vocabulary.
//!
//! Every candidate is in one of a few thousand bins of falling logit; the bins that a question ends in are gathered and sorted
//! when it is asked. Order: falling logit, ties by lower id.

use std::ops::Range;

/// Bins at most: sums over them fit the first-level cache, and one holds about a hundred candidates of a large vocabulary.
const NUM_BINS: usize = 2048;

/// Bins end this far below the best logit, the last one holds the rest: e^-64 of the best weighs nothing at any ordinary
/// temperature, and one logit far below must not make the bins wide.
const REACH: f32 = 64.0;

/// Candidates whose bins are looked through at once; most such blocks have none of a given bin.
const BLOCK: usize = 64;

/// The bins of some candidates. Their logits are kept elsewhere, and must be the same in every call.
#[derive(Debug, Clone)]
pub(crate) struct Ranking {
    /// The bin of each candidate, by id.
    bins: Vec<u16>,
    /// How many candidates the bins before each one hold, and at the end all bins.
    starts: Vec<u32>,
}

impl Ranking {
    /// Puts logits of at most `largest` into bins; `smallest` is the smallest finite one.
    pub(crate) fn new(logits: &[f32], largest: f32, smallest: f32) -> Self {
        let num_bins = NUM_BINS.min(logits.len());
        let density = num_bins as f32 / (largest - smallest).min(REACH);
        // where all logits are equal the product may be NaN, which is bin 0
        let bin = |&logit: &f32| (((largest - logit) * density) as u32).min(num_bins as u32 - 1);
        let bins: Vec<u16> = logits.iter().map(|logit| bin(logit) as u16).collect();
        let mut starts = vec![0; num_bins + 1];
        for &bin in &bins {
            starts[usize::from(bin) + 1] += 1;
        }
        for bin in 0..num_bins {
            starts[bin + 1] += starts[bin];
        }
        Self { bins, starts }
    }

    /// Returns the bin of each candidate, by id; a worse one is in the same or a later bin.
    pub(crate) fn bins(&self) -> &[u16] {
        &self.bins
    }

    /// Returns how many candidates each bin holds, best first; some hold none.
    pub(crate) fn sizes(&self) -> impl ExactSizeIterator<Item = usize> {
        let ends = self.starts.windows(2);
        ends.map(|ends| (ends[1] - ends[0]) as usize)
    }

    /// Returns the ids of a bin, best first.
    pub(crate) fn sorted(&self, logits: &[f32], bin: usize) -> Vec<u32> {
        self.sorted_bins(logits, bin..bin + 1)
    }

    /// Returns the ids of the best candidates, best first; all of them where `count` is larger.
    pub(crate) fn best(&self, logits: &[f32], count: usize) -> Vec<u32> {
        let ends = &self.starts[1..];
        let enough = ends.partition_point(|&end| (end as usize) < count);
        let mut best = self.sorted_bins(logits, 0..(enough + 1).min(ends.len()));
        best.truncate(count);
        best
    }

    /// Returns a candidate's place in the order, 1 for the best.
    pub(crate) fn rank(&self, logits: &[f32], id: u32) -> usize {
        let bin = usize::from(self.bins[id as usize]);
        let wanted = key(logits, id);
        let better = self.ids(bin..bin + 1).into_iter();
        let better = better.filter(|&other| key(logits, other) < wanted).count();
        1 + self.starts[bin] as usize + better
    }

    fn sorted_bins(&self, logits: &[f32], bins: Range<usize>) -> Vec<u32> {
        let mut ids = self.ids(bins);
        ids.sort_unstable_by_key(|&id| key(logits, id));
        ids
    }

    /// Returns the ids of some bins, rising.
    fn ids(&self, bins: Range<usize>) -> Vec<u32> {
        let mut ids =
            Vec::with_capacity((self.starts[bins.end] - self.starts[bins.start]) as usize);
        let (first, count) = (bins.start as u16, bins.len() as u16);
        let is_in = |bin: &u16| bin.wrapping_sub(first) < count;
        for (block, bins) in self.bins.chunks(BLOCK).enumerate() {
            if bins.iter().fold(false, |any, bin| any | is_in(bin)) {
                let places = (0u32..).zip(bins).filter(|(_, bin)| is_in(bin));
                ids.extend(places.map(|(place, _)| (block * BLOCK) as u32 + place));
            }
        }
        ids
    }
}

/// A number that grows from better to worse candidates: falling logit, then rising id. -0 equals 0.
fn key(logits: &[f32], id: u32) -> u64 {
    let bits = (logits[id as usize] + 0.0).to_bits();
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

    fn best(logits: &[f32], count: usize) -> Vec<u32> {
        of(logits).best(logits, count)
    }

    #[test]
    fn equal_logits_and_distant_ones_keep_their_order() {
        assert_eq!(best(&[2.0; 4], 9), [0, 1, 2, 3]);
        let far = [f32::NEG_INFINITY, -3e38, 3e38, -1e4, 3e38, -0.0, 0.0];
        assert_eq!(best(&far, 7), [2, 4, 5, 6, 3, 1, 0]);
        assert_eq!(best(&[f32::NEG_INFINITY, 1.0, 1.0], 3), [1, 2, 0]);
        assert_eq!(best(&[f32::MIN_POSITIVE, 0.0, 1e-45], 2), [0, 2]);
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
            prop_assert_eq!(&ranking.best(&logits, logits.len()), &sorted);
            prop_assert_eq!(&ranking.best(&logits, 3), &sorted[..logits.len().min(3)]);
            for (place, &id) in sorted.iter().enumerate() {
                prop_assert_eq!(ranking.rank(&logits, id), place + 1);
            }
            let mut by_bin = Vec::new();
            for (bin, size) in ranking.sizes().enumerate() {
                let ids = ranking.sorted(&logits, bin);
                prop_assert_eq!(ids.len(), size);
                by_bin.extend(ids);
            }
            prop_assert_eq!(&by_bin, &sorted);
        }
    }
}
