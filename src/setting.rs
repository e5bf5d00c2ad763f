//! What a sampler is told: a temperature and three filters, validated at birth.

use std::fmt;

use anyhow::{Result, ensure};

/// The order in which [`Setting`]'s parts act, each on the renormalised result of the one before (as in transformers).
pub const FILTER_ORDER: [&str; 4] = ["temperature", "top_k", "top_p", "min_p"];

/// One way to sample. Every part can be off; all off is sampling from the model's own distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    temperature: f64,
    top_k: usize,
    top_p: f64,
    min_p: f64,
}

impl Setting {
    /// Temperature 1 and no filter.
    pub const OFF: Self = Self {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
    };

    /// Returns the setting with another divisor of the logits; 0 is greedy, and so is -0.
    ///
    /// # Errors
    /// When it is negative, NaN or infinite.
    pub fn with_temperature(self, temperature: f64) -> Result<Self> {
        ensure!(
            temperature >= 0.0 && temperature.is_finite(),
            "temperature {temperature} is out of range (expected a finite number from 0 up)"
        );
        Ok(Self {
            temperature: temperature + 0.0,
            ..self
        })
    }

    /// Returns the setting that keeps the best `top_k` candidates; 0 keeps all.
    pub fn with_top_k(self, top_k: usize) -> Self {
        Self { top_k, ..self }
    }

    /// Returns the setting that keeps the nucleus of mass `top_p`; 1 keeps all, 0 the best candidate alone.
    ///
    /// # Errors
    /// When it is not in [0, 1].
    pub fn with_top_p(self, top_p: f64) -> Result<Self> {
        ensure!(
            (0.0..=1.0).contains(&top_p),
            "top_p {top_p} is out of range (expected 0 to 1)"
        );
        Ok(Self {
            top_p: top_p + 0.0,
            ..self
        })
    }

    /// Returns the setting that keeps candidates with at least `min_p` of the best one's probability; 0 keeps all.
    ///
    /// # Errors
    /// When it is not in [0, 1].
    pub fn with_min_p(self, min_p: f64) -> Result<Self> {
        ensure!(
            (0.0..=1.0).contains(&min_p),
            "min_p {min_p} is out of range (expected 0 to 1)"
        );
        Ok(Self {
            min_p: min_p + 0.0,
            ..self
        })
    }

    /// Returns the setting as it acts on `vocab_size` candidates: a larger `top_k` is clamped.
    pub fn clamped(self, vocab_size: usize) -> Self {
        Self {
            top_k: self.top_k.min(vocab_size),
            ..self
        }
    }

    /// Returns the divisor of the logits; 0 is greedy.
    pub fn temperature(&self) -> f64 {
        self.temperature
    }

    /// Returns how many of the best candidates are kept; 0 keeps all.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Returns the mass of the nucleus that is kept; 1 keeps all.
    pub fn top_p(&self) -> f64 {
        self.top_p
    }

    /// Returns the share of the best candidate's probability that is needed to be kept; 0 keeps all.
    pub fn min_p(&self) -> f64 {
        self.min_p
    }
}

impl fmt::Display for Setting {
    /// Writes the label of a sweep: `temperature 1.0, top_p 0.9`; filters that are off are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "temperature {:?}", self.temperature)?;
        if self.top_k > 0 {
            write!(f, ", top_k {}", self.top_k)?;
        }
        if self.top_p < 1.0 {
            write!(f, ", top_p {:?}", self.top_p)?;
        }
        if self.min_p > 0.0 {
            write!(f, ", min_p {:?}", self.min_p)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_can_never_be_right_are_refused() {
        for temperature in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Setting::OFF.with_temperature(temperature).is_err());
        }
        for share in [-0.1, 1.5, f64::NAN] {
            assert!(Setting::OFF.with_top_p(share).is_err());
            assert!(Setting::OFF.with_min_p(share).is_err());
        }
    }

    #[test]
    fn minus_zero_is_zero() -> Result<()> {
        let setting = Setting::OFF.with_temperature(-0.0)?;
        assert_eq!(setting.to_string(), "temperature 0.0");
        Ok(())
    }

    #[test]
    fn the_label_names_what_is_on() -> Result<()> {
        let setting = Setting::OFF.with_temperature(1.5)?.with_top_k(40);
        let setting = setting.with_top_p(0.95)?.with_min_p(0.05)?;
        assert_eq!(
            setting.to_string(),
            "temperature 1.5, top_k 40, top_p 0.95, min_p 0.05"
        );
        assert_eq!(Setting::OFF.to_string(), "temperature 1.0");
        Ok(())
    }
}
