//! What a model shows of the next token: all of its distribution, or the best candidates of it.
//!
//! A local model shows its logits, a server the log-probabilities of its best candidates. What the latter leave open is `None`
//! here; logits leave nothing open.

use anyhow::{Error, Result};

use super::shown::{FilteredShown, Shown};
use super::{Distribution, Filtered};
use crate::record::{Bounds, Sampling};
use crate::setting::Setting;

/// The next token, as far as a model shows it.
#[derive(Debug, Clone)]
pub enum Outlook {
    /// Every candidate with its logit.
    Whole(Distribution),
    /// The best candidates with their log-probabilities.
    Best(Shown),
}

impl TryFrom<Vec<f32>> for Outlook {
    type Error = Error;

    fn try_from(logits: Vec<f32>) -> Result<Self> {
        Distribution::from_logits(logits).map(Self::Whole)
    }
}

impl From<Shown> for Outlook {
    fn from(shown: Shown) -> Self {
        Self::Best(shown)
    }
}

impl Outlook {
    /// Returns the whole distribution; `None` where not all of it is shown. Log-probabilities stand for logits, which differ
    /// from them by a constant.
    ///
    /// # Errors
    /// As [`Distribution::from_logits`].
    pub fn to_distribution(&self) -> Result<Option<Distribution>> {
        let shown = match self {
            Self::Whole(distribution) => return Ok(Some(distribution.clone())),
            Self::Best(shown) => shown,
        };
        shown
            .to_logprobs()
            .map(Distribution::from_logits)
            .transpose()
    }

    /// Returns how many candidates are shown.
    pub fn num_shown(&self) -> usize {
        match self {
            Self::Whole(distribution) => distribution.vocab_size(),
            Self::Best(shown) => shown.num_shown(),
        }
    }

    /// Returns the id of the best candidate.
    pub fn argmax(&self) -> Option<u32> {
        match self {
            Self::Whole(distribution) => Some(distribution.argmax()),
            Self::Best(shown) => shown.argmax(),
        }
    }

    /// Returns the ids of the best candidates, best first, as far as they are shown.
    pub fn best(&self, count: usize) -> Vec<u32> {
        match self {
            Self::Whole(distribution) => distribution.best(count),
            Self::Best(shown) => shown.best(count).to_vec(),
        }
    }

    /// Returns a token's raw score; `None` where a server was asked.
    pub fn logit(&self, id: u32) -> Option<f32> {
        match self {
            Self::Whole(distribution) => Some(distribution.logit(id)),
            Self::Best(_) => None,
        }
    }

    /// Returns the natural logarithm of a token's probability: at most 0, never -0; -inf where it has none.
    pub fn logprob(&self, id: u32) -> Option<f64> {
        match self {
            Self::Whole(distribution) => Some(distribution.logprob(id)),
            Self::Best(shown) => shown.logprob(id),
        }
    }

    /// Returns a token's place in the order, 1 for the best.
    pub fn rank(&self, id: u32) -> Option<usize> {
        match self {
            Self::Whole(distribution) => Some(distribution.rank(id)),
            Self::Best(shown) => shown.rank(id),
        }
    }

    /// Returns the smallest number of best candidates whose probabilities reach `mass`.
    pub fn mass_count(&self, mass: f64) -> Option<usize> {
        match self {
            Self::Whole(distribution) => Some(distribution.mass_count(mass)),
            Self::Best(shown) => shown.mass_count(mass),
        }
    }

    /// Returns the entropy in bits.
    pub fn entropy_bits(&self) -> Option<f32> {
        match self {
            Self::Whole(distribution) => Some(distribution.entropy_bits() as f32),
            Self::Best(shown) => shown.entropy_bits(),
        }
    }

    /// Returns the best logit minus the second; `None` where there is no second one.
    pub fn margin(&self) -> Option<f32> {
        match self {
            Self::Whole(distribution) => distribution.margin(),
            Self::Best(shown) => shown.margin(),
        }
    }

    /// Returns what is known of what is not shown; `None` where everything is.
    pub fn bounds(&self, mass: f64) -> Option<Bounds> {
        match self {
            Self::Whole(_) => None,
            Self::Best(shown) => shown.bounds(mass),
        }
    }

    /// Returns what temperature and filters leave to draw from.
    pub fn filtered(&self, setting: &Setting) -> Left<'_> {
        match self {
            Self::Whole(distribution) => {
                let filtered = distribution.filtered(setting);
                let kept_mass = filtered.kept_mass() as f32;
                Left::Whole(filtered, kept_mass)
            }
            Self::Best(shown) => Left::Best(shown.filtered(setting)),
        }
    }
}

/// What temperature and filters leave to draw from.
#[derive(Debug, Clone)]
pub enum Left<'a> {
    /// Of a whole distribution, with its raw mass.
    Whole(Filtered<'a>, f32),
    /// Of the best candidates.
    Best(FilteredShown<'a>),
}

impl Left<'_> {
    /// Returns the token that `coin`, in [0, 1), draws.
    pub fn draw(&self, coin: f64) -> Option<u32> {
        match self {
            Self::Whole(filtered, _) => Some(filtered.draw(coin)),
            Self::Best(filtered) => filtered.draw(coin),
        }
    }

    /// Returns what the sampler saw when it drew this token.
    pub fn sampling(&self, id: u32) -> Sampling {
        match self {
            Self::Whole(filtered, kept_mass) => Sampling {
                prob: Some(filtered.prob(id) as f32),
                kept: Some(filtered.kept()),
                kept_mass: Some(*kept_mass),
            },
            Self::Best(filtered) => filtered.sampling(id),
        }
    }
}
