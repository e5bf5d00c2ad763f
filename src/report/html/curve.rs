//! The chart over a reply's steps: probability on a linear axis, and the number of candidates on a logarithmic one.
//!
//! Positions are shares of the drawing's width and height, so that it fits any screen while its text keeps its size.

use serde::Serialize;

use super::{least_count, mass_count, share, thousands};
use crate::record::{Settings, Step};
use crate::text::display::cell;

/// Share of a step's room that its bar takes, and of the whole width that it takes at most.
const BAR: (f64, f64) = (0.72, 0.05);
/// Most numbers below the chart.
const MOST_LABELS: usize = 16;

/// A chart of two drawings below each other, with one column for each step.
#[derive(Serialize)]
pub(super) struct Curve {
    columns: Vec<Column>,
    bar_width: String,
    /// Where the threshold's line is.
    threshold: String,
    probs: Vec<Tick>,
    counts: Vec<Tick>,
    steps: Vec<Tick>,
}

/// One step.
#[derive(Serialize)]
struct Column {
    left: String,
    middle: String,
    top: String,
    height: String,
    is_low: bool,
    count: String,
    title: String,
}

/// A number on an axis.
#[derive(Serialize)]
struct Tick {
    at: String,
    label: String,
}

impl Curve {
    pub(super) fn new(steps: &[Step], settings: &Settings) -> Self {
        let room = 1.0 / steps.len().max(1) as f64;
        let width = (BAR.0 * room).min(BAR.1);
        let most = steps.iter().map(least_count).max().unwrap_or(1);
        let decades = (most.max(2) as f64).log10().ceil();
        let column = |(index, step): (usize, &Step)| {
            let (middle, prob) = ((index as f64 + 0.5) * room, f64::from(step.prob));
            Column {
                left: share(middle - width / 2.0),
                middle: share(middle),
                top: share(1.0 - prob),
                height: share(prob),
                is_low: prob < settings.threshold,
                count: share(1.0 - (least_count(step).max(1) as f64).log10() / decades),
                title: format!(
                    "{}  {}: {:.2}, {}",
                    index + 1,
                    cell(&step.token, &step.bytes),
                    step.prob,
                    mass_count(step)
                ),
            }
        };
        let tick = |at: f64, label: String| Tick {
            at: share(at),
            label,
        };
        let stride = stride(steps.len());
        let labelled = (1..=steps.len()).filter(|number| number % stride == 0);
        Self {
            columns: steps.iter().enumerate().map(column).collect(),
            bar_width: share(width),
            threshold: share(1.0 - settings.threshold),
            probs: [0.0, 0.5, 1.0]
                .map(|prob| tick(1.0 - prob, prob.to_string()))
                .into(),
            counts: (0..=decades as u32)
                .map(|power| {
                    let label = thousands(10usize.saturating_pow(power));
                    tick(1.0 - f64::from(power) / decades, label)
                })
                .collect(),
            steps: labelled
                .map(|number| tick((number as f64 - 0.5) * room, number.to_string()))
                .collect(),
        }
    }
}

/// Every which step has its number below the chart.
fn stride(steps: usize) -> usize {
    let strides = (0..).flat_map(|power| [1, 2, 5].map(|factor| factor * 10usize.pow(power)));
    let mut strides = strides.take_while(|&stride| stride <= steps.max(1));
    strides
        .find(|stride| steps / stride <= MOST_LABELS)
        .unwrap_or(steps.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_most_sixteen_steps_are_numbered_and_never_none() {
        assert_eq!(
            [0, 1, 16, 17, 64, 120, 170, 1000, 100_000].map(stride),
            [1, 1, 1, 2, 5, 10, 20, 100, 10_000]
        );
        for steps in 1..2000 {
            assert!(
                (1..=MOST_LABELS).contains(&(steps / stride(steps))),
                "{steps}"
            );
        }
    }
}
