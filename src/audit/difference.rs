//! How far a run's numbers are from those of another after the same tokens, and what that did to the choice.

use anyhow::{Result, ensure};

use crate::distribution::Distribution;
use crate::model::Logits;

/// A probability that changes by more than this share of itself is counted: the band of the studies that compare batches.
const BAND: std::ops::RangeInclusive<f64> = 0.9..=1.1;

/// How far a run is from the one it is compared with.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// Whether every logit has the same bits.
    pub is_same_bits: bool,
    /// The largest difference of a logit, over all steps and the whole vocabulary; those that are not finite on both sides
    /// are left out.
    pub logit: f64,
    /// The largest difference of the log-probability of a token of the reply.
    pub logprob: f64,
    /// The same over the best candidates of every step.
    pub candidates_logprob: f64,
    /// Steps at which the probability of the reply's token changes by more than a tenth of itself.
    pub num_beyond_tenth: usize,
    /// Steps whose margin (best logit minus second) is at most twice `logit`: no others can flip by differences of that
    /// size. None where `logit` is 0.
    pub num_close: usize,
    /// Steps at which another candidate is the best.
    pub num_flips: usize,
    /// The first of them.
    pub first_flip: Option<Flip>,
}

/// A step at which two runs chose differently after the same tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flip {
    /// 1 for the first token.
    pub step: usize,
    /// The best candidate of the run that is compared with.
    pub expected: Sides,
    /// The best candidate of the run that is compared.
    pub took: Sides,
}

/// One token's probability in two runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sides {
    /// Id.
    pub token_id: u32,
    /// Probability in the run that is compared with, in [0, 1].
    pub expected: f64,
    /// Probability in the run that is compared, in [0, 1].
    pub found: f64,
}

/// Compares the logits of two runs that were led through `reply`, one entry a token of it: `found` with `expected`. The best
/// `candidates` are those of `expected`.
///
/// # Errors
/// When the runs do not have the same steps, or logits are no distribution.
pub fn difference(
    expected: &[Logits],
    found: &[Logits],
    reply: &[u32],
    candidates: usize,
) -> Result<Difference> {
    ensure!(
        expected.len() == reply.len() && found.len() == reply.len(),
        "runs of {} and {} steps cannot be compared over {} tokens",
        expected.len(),
        found.len(),
        reply.len()
    );
    let mut difference = Difference {
        is_same_bits: true,
        logit: 0.0,
        logprob: 0.0,
        candidates_logprob: 0.0,
        num_beyond_tenth: 0,
        num_close: 0,
        num_flips: 0,
        first_flip: None,
    };
    let mut margins = Vec::with_capacity(reply.len());
    for (index, &token) in reply.iter().enumerate() {
        let step = Step {
            expected: Distribution::from_logits(expected[index].clone())?,
            found: Distribution::from_logits(found[index].clone())?,
        };
        let logits = expected[index].iter().zip(&found[index]);
        for (a, b) in logits {
            difference.is_same_bits &= a.to_bits() == b.to_bits();
            let size = (f64::from(*a) - f64::from(*b)).abs();
            if size.is_finite() {
                difference.logit = difference.logit.max(size);
            }
        }
        let logprob = step.logprob(token);
        if logprob.is_finite() {
            difference.logprob = difference.logprob.max(logprob.abs());
        }
        difference.num_beyond_tenth += usize::from(!BAND.contains(&logprob.exp()));
        let best = step.expected.best(candidates).into_iter();
        let finite = best
            .map(|id| step.logprob(id).abs())
            .filter(|x| x.is_finite());
        difference.candidates_logprob = finite.fold(difference.candidates_logprob, f64::max);
        margins.extend(step.expected.margin().map(f64::from));
        let (expected, took) = (step.expected.argmax(), step.found.argmax());
        if expected != took {
            difference.num_flips += 1;
            difference.first_flip.get_or_insert(Flip {
                step: index + 1,
                expected: step.sides(expected),
                took: step.sides(took),
            });
        }
    }
    let reach = 2.0 * difference.logit;
    let close = margins
        .iter()
        .filter(|&&margin| reach > 0.0 && margin <= reach);
    difference.num_close = close.count();
    Ok(difference)
}

/// One step in both runs.
struct Step {
    expected: Distribution,
    found: Distribution,
}

impl Step {
    /// Log-probability in the one minus that in the other.
    fn logprob(&self, id: u32) -> f64 {
        self.found.logprob(id) - self.expected.logprob(id)
    }

    fn sides(&self, token_id: u32) -> Sides {
        Sides {
            token_id,
            expected: self.expected.prob(token_id),
            found: self.found.prob(token_id),
        }
    }
}
