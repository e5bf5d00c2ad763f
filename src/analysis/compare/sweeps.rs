//! The samples of two records, a setting each. Run i of both drew with the same coins where the seeds are the same.

use crate::analysis::distinct_replies;
use crate::analysis::parting::{candidate, differs_at};
use crate::record::compare::{Replies, SampleDifference, SweepComparison};
use crate::record::{Run, Sweep};

/// Compares the sweeps of one prompt: A's in their order, then those that only B has.
pub(super) fn sweeps(a: &[Sweep], b: &[Sweep]) -> Vec<SweepComparison> {
    let mut others: Vec<&Sweep> = b.iter().collect();
    let mut compared = Vec::with_capacity(a.len());
    for sweep in a {
        let found = others.iter().position(|other| is_same(sweep, other));
        let other = found.map(|place| others.remove(place));
        compared.push(of(Some(sweep), other));
    }
    compared.extend(others.into_iter().map(|other| of(None, Some(other))));
    compared
}

fn is_same(a: &Sweep, b: &Sweep) -> bool {
    let setting = |sweep: &Sweep| (sweep.temperature, sweep.top_k, sweep.top_p, sweep.min_p);
    setting(a) == setting(b)
}

fn of(a: Option<&Sweep>, b: Option<&Sweep>) -> SweepComparison {
    let replies = |sweep: &Sweep| Replies {
        runs: sweep.runs.len(),
        distinct_replies: distinct_replies(&sweep.runs),
    };
    let both = a.zip(b).map(|(a, b)| pairs(&a.runs, &b.runs));
    let both = both.unwrap_or_default();
    let differing = both.iter().filter_map(|(a, b)| difference(a, b));
    let differing: Vec<SampleDifference> = differing.collect();
    SweepComparison {
        label: a.or(b).map(|sweep| sweep.label.clone()).unwrap_or_default(),
        a: a.map(replies),
        b: b.map(replies),
        compared_runs: both.len(),
        same_runs: both.len() - differing.len(),
        first_difference: differing.into_iter().next(),
    }
}

/// The runs that both have, by their index.
fn pairs<'a>(a: &'a [Run], b: &'a [Run]) -> Vec<(&'a Run, &'a Run)> {
    let mut others = b.iter().collect::<Vec<_>>();
    others.sort_by_key(|run| run.run);
    let both = a.iter().filter_map(|run| {
        let found = others.binary_search_by_key(&run.run, |other| other.run);
        Some((run, others[found.ok()?]))
    });
    both.collect()
}

fn difference(a: &Run, b: &Run) -> Option<SampleDifference> {
    let at = differs_at(a, b, 0)?;
    Some(SampleDifference {
        run: a.run,
        step: at + 1,
        a: a.steps.get(at).map(candidate),
        b: b.steps.get(at).map(candidate),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare::tests::sweep;

    #[test]
    fn runs_are_compared_by_their_index_and_settings_by_their_values() {
        let a = [sweep(0.5, &[&[1, 2], &[1, 3], &[1]]), sweep(1.5, &[&[1]])];
        let mut b = [
            sweep(1.0, &[&[1]]),
            sweep(0.5, &[&[1, 2], &[1, 4], &[1, 5]]),
        ];
        b[1].runs.swap(0, 2);
        let compared = sweeps(&a, &b);
        let counts: Vec<_> = compared
            .iter()
            .map(|sweep| {
                (
                    sweep.a.is_some(),
                    sweep.b.is_some(),
                    sweep.compared_runs,
                    sweep.same_runs,
                )
            })
            .collect();
        assert_eq!(
            counts,
            [(true, true, 3, 1), (true, false, 0, 0), (false, true, 0, 0)]
        );
        let first = compared[0].first_difference.as_ref().expect("run 1");
        let ids = [&first.a, &first.b].map(|taken| taken.as_ref().map(|taken| taken.token_id));
        assert_eq!((first.run, first.step, ids), (1, 2, [Some(3), Some(4)]));
        let replies = compared[0].b.expect("B has it");
        assert_eq!((replies.runs, replies.distinct_replies), (3, 3));
    }

    #[test]
    fn a_run_that_had_ended_has_no_token_there() {
        let compared = sweeps(&[sweep(1.0, &[&[1]])], &[sweep(1.0, &[&[1, 2]])]);
        let first = compared[0].first_difference.as_ref().expect("it goes on");
        assert!(first.a.is_none() && first.b.is_some());
    }
}
