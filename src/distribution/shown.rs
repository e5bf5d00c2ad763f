//! A distribution of which the best candidates alone were shown, and what is certain of the rest.
//!
//! A server shows the best K of V candidates with their log-probabilities over the whole vocabulary. The rest are N = V - K
//! candidates, none more probable than q, the probability of the last one shown; at temperature 1 their mass is R = 1 - Σ p.
//! At temperature T a candidate weighs p^a with a = 1/T, and the weight of the rest lies between two numbers, for the least and the
//! most R that the server's rounding leaves possible:
//!
//! - `R q^(a-1)`, since p^a = p · p^(a-1) and p ≤ q: the least where a ≤ 1, the most where a ≥ 1;
//! - `N (R/N)^a`, Jensen's inequality: the most where a ≤ 1, the least where a ≥ 1.
//!
//! Its entropy lies between -R ln q and R ln(N/R) nats for the same two reasons. Of the rest's best m, the weight is at least
//! m/N of the whole and at most m q^a. What these bounds decide is said, and is what the whole distribution would have said;
//! what they leave open is `None`. Candidates that tie with the last one shown may have unseen equals with lower ids: counts
//! and sums over them are exact, their order is not.

use anyhow::{Result, ensure};

use super::MASS_TOLERANCE;
use crate::record::{Bounds, Sampling};
use crate::setting::Setting;

/// How far log-probabilities may exceed 0, and a sum of probabilities 1: servers sum up in f32 (llama.cpp's sums over 49,152
/// candidates are 1.0002).
const SERVER_TOLERANCE: f64 = 1e-3;

/// The best candidates of a distribution over a vocabulary, perhaps all of them.
#[derive(Debug, Clone)]
pub struct Shown {
    /// Best first, ties by lower id.
    ids: Vec<u32>,
    /// Natural logarithms of the probabilities, at most 0; -inf is no probability at all.
    logprobs: Vec<f64>,
    vocab_size: usize,
    /// So many of the best are in an order that nothing unseen can change.
    firm: usize,
    /// Sum of the probabilities that were shown.
    mass: f64,
    /// Probability of all that was not.
    rest_mass: f64,
}

/// A number between two others.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Span<N> {
    low: N,
    high: N,
}

impl<N: Copy + PartialEq> Span<N> {
    fn exactly(number: N) -> Self {
        Self {
            low: number,
            high: number,
        }
    }

    fn known(self) -> Option<N> {
        (self.low == self.high).then_some(self.low)
    }
}

impl Shown {
    /// Takes the best candidates, in any order, with natural logarithms of their probabilities over all of `vocab_size`. Where
    /// they are all, they are renormalised.
    ///
    /// # Errors
    /// When they are none, an id comes twice or is outside the vocabulary, a log-probability is NaN or above 0, they sum to more
    /// than 1, all of them to less, or they cannot be the best ones: so much mass does not fit the others.
    pub fn from_best(vocab_size: usize, mut best: Vec<(u32, f64)>) -> Result<Self> {
        ensure!(!best.is_empty(), "no candidate was shown");
        for &(id, logprob) in &best {
            ensure!(
                (id as usize) < vocab_size,
                "token id {id} was shown (expected ids below the vocabulary of {vocab_size})"
            );
            ensure!(
                logprob <= SERVER_TOLERANCE,
                "the log-probability of token id {id} is {logprob} (expected at most 0)"
            );
        }
        best.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut sorted: Vec<u32> = best.iter().map(|&(id, _)| id).collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            anyhow::bail!(
                "token id {} was shown twice (expected distinct ids)",
                pair[0]
            );
        }
        let (ids, mut logprobs): (Vec<u32>, Vec<f64>) = best
            .into_iter()
            .map(|(id, logprob)| (id, logprob.min(0.0) + 0.0))
            .unzip();
        let mut mass: f64 = logprobs.iter().map(|logprob| logprob.exp()).sum();
        let last = logprobs[logprobs.len() - 1];
        let num_unseen = vocab_size - ids.len();
        // nothing is less probable than -inf
        let is_whole = num_unseen == 0 || last == f64::NEG_INFINITY;
        ensure!(
            mass <= 1.0 + SERVER_TOLERANCE,
            "the probabilities that were shown sum to {mass:.4} (expected at most 1)"
        );
        let unseen_at_most = num_unseen as f64 * last.exp();
        ensure!(
            mass + unseen_at_most >= 1.0 - SERVER_TOLERANCE,
            "{} candidates were shown whose probabilities sum to {mass:.4}, the others can have {unseen_at_most:.4} at most \
             (expected 1 together)",
            ids.len()
        );
        let firm = match num_unseen {
            0 => ids.len(),
            _ => ids.len() - logprobs.iter().rev().take_while(|&&l| l == last).count(),
        };
        if is_whole {
            let log_mass = mass.ln();
            logprobs
                .iter_mut()
                .for_each(|logprob| *logprob = (*logprob - log_mass).min(0.0) + 0.0);
            mass = 1.0;
        }
        Ok(Self {
            ids,
            logprobs,
            vocab_size,
            firm,
            mass: mass.min(1.0),
            rest_mass: (1.0 - mass).max(0.0),
        })
    }

    /// Returns the number of all candidates, shown or not.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Returns how many candidates were shown.
    pub fn num_shown(&self) -> usize {
        self.ids.len()
    }

    /// Returns the id of the best candidate; `None` where all that was shown is equal.
    pub fn argmax(&self) -> Option<u32> {
        self.ids[..self.firm].first().copied()
    }

    /// Returns the ids of the best candidates, best first; at most those that were shown.
    pub fn best(&self, count: usize) -> &[u32] {
        &self.ids[..count.min(self.ids.len())]
    }

    /// Returns the natural logarithm of a token's probability: at most 0, never -0; `None` where it was not shown.
    pub fn logprob(&self, id: u32) -> Option<f64> {
        self.place(id).map(|place| self.logprobs[place])
    }

    /// Returns the log-probabilities of all candidates in id order, as f32; `None` where not all were shown.
    pub fn to_logprobs(&self) -> Option<Vec<f32>> {
        if self.num_unseen() > 0 {
            return None;
        }
        let mut logprobs = vec![f32::NEG_INFINITY; self.vocab_size];
        for (&id, &logprob) in self.ids.iter().zip(&self.logprobs) {
            logprobs[id as usize] = logprob as f32;
        }
        Some(logprobs)
    }

    /// Returns a token's place in the order, 1 for the best; `None` where that is open.
    pub fn rank(&self, id: u32) -> Option<usize> {
        let place = self.place(id).filter(|&place| place < self.firm);
        place.map(|place| place + 1)
    }

    /// Returns the smallest number of best candidates whose probabilities reach `mass`; `None` where those shown do not.
    pub fn mass_count(&self, mass: f64) -> Option<usize> {
        let sums = self.logprobs.iter().scan(0.0, |sum, logprob| {
            *sum += logprob.exp();
            Some(*sum)
        });
        let place = { sums }.position(|sum| sum >= mass - MASS_TOLERANCE);
        match place {
            Some(place) => Some(place + 1),
            // rounding may leave the sum of all just below
            None => (self.num_unseen() == 0).then_some(self.vocab_size),
        }
    }

    /// Returns the entropy in bits; `None` where it is known between bounds alone.
    pub fn entropy_bits(&self) -> Option<f32> {
        let span = self.entropy();
        Span {
            low: span.low as f32,
            high: span.high as f32,
        }
        .known()
    }

    /// Returns the best log-probability minus the second, which is that of the logits; `None` where no second candidate has any
    /// probability, or none was shown.
    pub fn margin(&self) -> Option<f32> {
        let margin = self.logprobs[0] - self.logprobs.get(1)?;
        margin.is_finite().then_some(margin as f32)
    }

    /// Returns what is known of the rest; `None` where all is known. `mass` is what the caller asks of
    /// [`mass_count`](Self::mass_count).
    pub fn bounds(&self, mass: f64) -> Option<Bounds> {
        let entropy = self.entropy();
        (self.num_unseen() > 0).then(|| Bounds {
            shown: self.num_shown(),
            shown_mass: self.mass as f32,
            mass_count_at_least: match self.mass_count(mass) {
                Some(_) => None,
                None => Some(self.num_shown() + 1),
            },
            entropy_bits_at_least: entropy.low as f32,
            entropy_bits_at_most: entropy.high as f32,
        })
    }

    /// Returns what temperature and filters leave to draw from, as far as that is known.
    pub fn filtered(&self, setting: &Setting) -> FilteredShown<'_> {
        let weights = Weights::new(self, setting.temperature());
        let all = self.vocab_size;
        let mut kept = Span::exactly(match setting.top_k() {
            _ if setting.temperature() == 0.0 => 1,
            0 => all,
            top_k => top_k.min(all),
        });
        let mut total = weights.sum(kept.low);
        if setting.top_p() < 1.0 {
            let share = setting.top_p() - MASS_TOLERANCE;
            let most = kept.low;
            kept = Span {
                low: weights.num_reaching(share * total.low, most).low,
                high: weights.num_reaching(share * total.high, most).high,
            };
            total = weights.sum_of_any(kept);
        }
        if setting.min_p() > 0.0 {
            let passing = weights.num_weighing(setting.min_p());
            let fewer = Span {
                low: kept.low.min(passing.low.max(1)),
                high: kept.high.min(passing.high.max(1)),
            };
            if fewer != kept {
                kept = fewer;
                total = weights.sum_of_any(kept);
            }
        }
        FilteredShown {
            shown: self,
            weights,
            kept,
            total,
        }
    }

    fn place(&self, id: u32) -> Option<usize> {
        self.ids.iter().position(|&shown| shown == id)
    }

    /// How many candidates may have any probability without being shown.
    fn num_unseen(&self) -> usize {
        match self.last() {
            f64::NEG_INFINITY => 0,
            _ => self.vocab_size - self.ids.len(),
        }
    }

    /// The log-probability that nothing unseen exceeds.
    fn last(&self) -> f64 {
        self.logprobs[self.logprobs.len() - 1]
    }

    /// The entropy in bits.
    fn entropy(&self) -> Span<f64> {
        let possible = self.logprobs.iter().filter(|logprob| logprob.is_finite());
        let shown: f64 = possible.map(|logprob| -logprob.exp() * logprob).sum();
        let unseen = self.num_unseen() as f64;
        // what a difference from 1 leaves is as uncertain as the sum
        let most = (self.rest_mass + SERVER_TOLERANCE).min(unseen * self.last().exp());
        let least = (self.rest_mass - SERVER_TOLERANCE).clamp(0.0, most);
        let of_rest = match most > 0.0 {
            true => Span {
                low: -least * self.last(),
                high: most * (unseen / most).ln(),
            },
            false => Span::exactly(0.0),
        };
        // -1 × ln 1 is -0
        let bits = |nats: f64| (shown + nats).max(0.0) / std::f64::consts::LN_2 + 0.0;
        Span {
            low: bits(of_rest.low),
            high: bits(of_rest.high),
        }
    }
}

/// The weights of candidates at one temperature, in units of the best one's.
#[derive(Debug, Clone)]
struct Weights {
    temperature: f64,
    vocab_size: usize,
    num_unseen: usize,
    /// Weights of those shown, best first.
    each: Vec<f64>,
    /// `sums[n]` is the weight of the best n.
    sums: Vec<f64>,
    /// No unseen candidate weighs more.
    unseen_at_most: f64,
    /// All unseen candidates together.
    rest: Span<f64>,
    best: f64,
}

impl Weights {
    fn new(shown: &Shown, temperature: f64) -> Self {
        let best = shown.logprobs[0];
        let mut weights = Self {
            temperature,
            vocab_size: shown.vocab_size,
            num_unseen: shown.num_unseen(),
            each: Vec::new(),
            sums: Vec::with_capacity(shown.num_shown() + 1),
            unseen_at_most: 0.0,
            rest: Span::exactly(0.0),
            best,
        };
        let each = shown.logprobs.iter().map(|&logprob| weights.of(logprob));
        weights.each = each.collect();
        let mut sum = 0.0;
        weights.sums.push(sum);
        for weight in &weights.each {
            sum += weight;
            weights.sums.push(sum);
        }
        if weights.num_unseen > 0 {
            weights.unseen_at_most = weights.of(shown.last());
            weights.rest = weights.rest(shown);
        }
        weights
    }

    /// `(p / p of the best)^(1 / temperature)`; at temperature 0 what equals the best alone.
    fn of(&self, logprob: f64) -> f64 {
        let shifted = logprob - self.best;
        match self.temperature {
            0.0 => f64::from(u8::from(shifted == 0.0)),
            temperature => (shifted / temperature).exp(),
        }
    }

    /// The two bounds of the module's head, in logarithms: temperatures go down to the smallest number above 0.
    fn rest(&self, shown: &Shown) -> Span<f64> {
        let (unseen, rest) = (self.num_unseen as f64, shown.rest_mass);
        if self.temperature == 1.0 {
            return Span::exactly(rest / self.best.exp());
        }
        if self.temperature == 0.0 {
            return Span::exactly(0.0);
        }
        let at_most = shown.last() - self.best;
        // what a difference from 1 leaves is as uncertain as the sum, and a small rest counts at high temperatures
        let ends = [rest - SERVER_TOLERANCE, rest + SERVER_TOLERANCE].map(|rest| {
            let mean = rest.max(0.0).ln() - self.best - unseen.ln();
            let mean = mean.min(at_most);
            let concentrated = mean + unseen.ln() - at_most + at_most / self.temperature;
            let even = unseen.ln() + mean / self.temperature;
            [concentrated.exp(), even.exp()]
        });
        let [[one, other], [another, last]] = ends;
        Span {
            low: one.min(other),
            high: another.max(last),
        }
    }

    fn num_shown(&self) -> usize {
        self.sums.len() - 1
    }

    /// The weight of the best `count`.
    fn sum(&self, count: usize) -> Span<f64> {
        let shown = self.sums[count.min(self.num_shown())];
        let unseen = count.saturating_sub(self.num_shown());
        if unseen == 0 || self.num_unseen == 0 {
            return Span::exactly(shown);
        }
        let share = unseen as f64 / (self.vocab_size - self.num_shown()) as f64;
        let most = (unseen as f64 * self.unseen_at_most).min(self.rest.high);
        match count == self.vocab_size {
            true => Span {
                low: shown + self.rest.low,
                high: shown + self.rest.high,
            },
            false => Span {
                low: shown + (share * self.rest.low).min(most),
                high: shown + most,
            },
        }
    }

    fn sum_of_any(&self, count: Span<usize>) -> Span<f64> {
        Span {
            low: self.sum(count.low).low,
            high: self.sum(count.high).high,
        }
    }

    /// The smallest number of best candidates that weigh `needed`: `most` at most.
    fn num_reaching(&self, needed: f64, most: usize) -> Span<usize> {
        let shown = self.num_shown().min(most);
        let reaching = self.sums[1..=shown].partition_point(|&sum| sum < needed);
        match reaching < shown {
            true => Span::exactly(reaching + 1),
            false => Span {
                low: (shown + 1).min(most),
                high: most,
            },
        }
    }

    /// How many candidates weigh at least `least`, which is above 0.
    fn num_weighing(&self, least: f64) -> Span<usize> {
        let passing = self.each.partition_point(|&weight| weight >= least);
        match passing < self.num_shown() || self.unseen_at_most < least {
            true => Span::exactly(passing),
            false => Span {
                low: passing,
                high: self.vocab_size,
            },
        }
    }
}

/// What temperature and filters leave of a distribution whose best candidates were shown.
#[derive(Debug, Clone)]
pub struct FilteredShown<'a> {
    shown: &'a Shown,
    weights: Weights,
    kept: Span<usize>,
    total: Span<f64>,
}

impl FilteredShown<'_> {
    /// Returns the token that `coin`, in [0, 1), draws; `None` where what was shown does not decide it.
    pub fn draw(&self, coin: f64) -> Option<u32> {
        let exceeding = |target: f64| self.weights.sums[1..].partition_point(|&sum| sum <= target);
        let places = Span {
            low: exceeding(coin * self.total.low),
            high: exceeding(coin * self.total.high),
        };
        let mut place = places.known()?;
        if let Some(kept) = self.kept.known()
            && kept <= self.shown.num_shown()
            && place >= kept
        {
            // rounding left the sum of all at the target: then it is the last that can be drawn
            let mut possible = self.weights.each[..kept].iter();
            place = possible.rposition(|&weight| weight > 0.0).unwrap_or(0);
        }
        (place < self.shown.firm).then(|| self.shown.ids[place])
    }

    /// Returns what is known of the drawing of a token that was shown.
    pub fn sampling(&self, id: u32) -> Sampling {
        let place = self.shown.place(id);
        let weight = place.map_or(0.0, |place| self.weights.each[place]);
        let prob = Span {
            low: (weight / self.total.high).min(1.0) as f32,
            high: (weight / self.total.low).min(1.0) as f32,
        };
        let kept = self.kept.known();
        Sampling {
            prob: place.and_then(|_| prob.known()),
            kept,
            kept_mass: kept.and_then(|kept| self.mass_of(kept)),
        }
    }

    /// The raw mass of the best `kept`.
    fn mass_of(&self, kept: usize) -> Option<f32> {
        if kept == self.shown.vocab_size {
            return Some(1.0);
        }
        let best = self.shown.logprobs.get(..kept)?.iter();
        let mass: f64 = best.map(|logprob| logprob.exp()).sum();
        Some(mass.min(1.0) as f32)
    }
}

#[cfg(test)]
mod tests;
