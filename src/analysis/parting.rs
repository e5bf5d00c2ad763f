//! Where runs part: the first step at which they took different tokens, and who went which way.
//!
//! Up to that step all of them saw the same context, so the probabilities of what they took come from one distribution.
//! Run i of every sweep draws with the same coins (common random numbers), hence the comparison run by run.

use std::collections::BTreeMap;

use crate::record::{
    Branch, Candidate, PairAnalysis, PairBranch, PairParting, Parting, Run, RunParting,
    SecondParts, Step, Sweep,
};

/// Returns the first step at which some of the runs differ, and how they divide there; `None` where all are the same.
pub fn parting(runs: &[Run]) -> Option<Parting> {
    let runs: Vec<&Run> = runs.iter().collect();
    let at = parts_at(&runs, 0)?;
    let branches = divide(&runs, at).into_iter().map(|(step, members)| Branch {
        took: candidate(step),
        runs: members.iter().map(|&member| runs[member].run).collect(),
    });
    Some(Parting {
        step: at + 1,
        branches: branches.collect(),
    })
}

/// Compares two sweeps: where their runs part, which of them does so first, and run by run.
pub fn pair(one: &Sweep, other: &Sweep) -> PairAnalysis {
    let (first, second) = match is_filtered_twin(other, one) {
        true => (other, one),
        false => (one, other),
    };
    let by_itself = |sweep: &Sweep| parts_at(&sweep.runs.iter().collect::<Vec<_>>(), 0);
    let second_parts = match (by_itself(first), by_itself(second)) {
        (_, None) => SecondParts::Never,
        (Some(first), Some(second)) if second == first => SecondParts::Same,
        (Some(first), Some(second)) if second > first => SecondParts::Later,
        (_, Some(_)) => SecondParts::Earlier,
    };
    let both = first.runs.iter().filter_map(|run| {
        let found = second
            .runs
            .binary_search_by_key(&run.run, |other| other.run);
        Some((run, &second.runs[found.ok()?]))
    });
    let mut same_runs = 0;
    let mut run_by_run = Vec::new();
    for (one, other) in both {
        match run_parting(one, other) {
            Some(parting) => run_by_run.push(parting),
            None => same_runs += 1,
        }
    }
    PairAnalysis {
        first: first.label.clone(),
        second: second.label.clone(),
        second_parts,
        parting: pair_parting(&first.runs, &second.runs),
        same_runs,
        run_by_run,
    }
}

/// Whether filters are all that two sweeps differ in, and only `filtered` has any.
pub fn is_filtered_twin(plain: &Sweep, filtered: &Sweep) -> bool {
    let is_filtered = |sweep: &Sweep| sweep.top_k > 0 || sweep.top_p < 1.0 || sweep.min_p > 0.0;
    plain.temperature == filtered.temperature && !is_filtered(plain) && is_filtered(filtered)
}

fn pair_parting(first: &[Run], second: &[Run]) -> Option<PairParting> {
    let runs: Vec<&Run> = first.iter().chain(second).collect();
    let at = parts_at(&runs, 0)?;
    let branches = divide(&runs, at).into_iter().map(|(step, members)| {
        let (of_first, of_second): (Vec<usize>, Vec<usize>) =
            members.iter().partition(|&&member| member < first.len());
        let indices = |members: Vec<usize>| members.iter().map(|&m| runs[m].run).collect();
        PairBranch {
            took: candidate(step),
            first_runs: indices(of_first),
            second_runs: indices(of_second),
        }
    });
    Some(PairParting {
        step: at + 1,
        branches: branches.collect(),
    })
}

fn run_parting(first: &Run, second: &Run) -> Option<RunParting> {
    let at = differs_at(first, second, 0)?;
    Some(RunParting {
        run: first.run,
        step: at + 1,
        first: candidate(first.steps.get(at)?),
        second: candidate(second.steps.get(at)?),
    })
}

/// Returns the index of the first step at which the runs are not all the same; up to `from` they are known to be.
pub(super) fn parts_at(runs: &[&Run], from: usize) -> Option<usize> {
    let (first, others) = runs.split_first()?;
    let differ = others.iter().map(|run| differs_at(first, run, from));
    differ.flatten().min()
}

/// Returns the index of the first step at which two runs differ, which they do not before `from`.
pub(super) fn differs_at(one: &Run, other: &Run, from: usize) -> Option<usize> {
    let longest = one.steps.len().max(other.steps.len());
    let id = |run: &Run, at: usize| run.steps.get(at).map(|step| step.token_id);
    (from..longest).find(|&at| id(one, at) != id(other, at))
}

/// Divides runs by their token at a step: most runs first, then the more probable token, then the lower id. Gives the step
/// of each token, and the places in `runs` of those that took it.
pub(super) fn divide<'a>(runs: &[&'a Run], at: usize) -> Vec<(&'a Step, Vec<usize>)> {
    let mut by_token: BTreeMap<u32, (&Step, Vec<usize>)> = BTreeMap::new();
    for (member, run) in runs.iter().enumerate() {
        if let Some(step) = run.steps.get(at) {
            let branch = by_token.entry(step.token_id);
            branch.or_insert((step, Vec::new())).1.push(member);
        }
    }
    let mut branches: Vec<_> = by_token.into_values().collect();
    // stable: what is equal stays in the order of ids
    branches.sort_by(|(a, of_a), (b, of_b)| {
        let by_runs = of_b.len().cmp(&of_a.len());
        by_runs.then(b.prob.total_cmp(&a.prob))
    });
    branches
}

pub(super) fn candidate(step: &Step) -> Candidate {
    Candidate {
        token_id: step.token_id,
        token: step.token.clone(),
        bytes: step.bytes.clone(),
        special: step.special,
        logprob: step.logprob,
        prob: step.prob,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::tests::run;
    use proptest::prelude::*;

    /// A sweep of runs 0, 1, …, each ending with token 0.
    pub(crate) fn sweep(top_p: f64, replies: &[&[(u32, f32)]]) -> Sweep {
        let runs = replies.iter().zip(0..).map(|(reply, index)| Run {
            run: index,
            ..run(&[*reply, &[(0, 0.9)]].concat())
        });
        Sweep {
            label: format!("top_p {top_p}"),
            temperature: 1.0,
            top_k: 0,
            top_p,
            min_p: 0.0,
            distinct_replies: 0,
            low_probability_tokens: 0,
            runs: runs.collect(),
        }
    }

    #[test]
    fn a_parting_names_the_step_the_tokens_and_who_took_them() {
        let replies: [&[(u32, f32)]; 4] = [
            &[(7, 0.5), (2, 0.1)],
            &[(7, 0.5), (1, 0.2), (3, 0.5)],
            &[(7, 0.5), (3, 0.3)],
            &[(7, 0.5), (1, 0.2), (4, 0.5)],
        ];
        let parting = parting(&sweep(1.0, &replies).runs).expect("they differ");
        assert_eq!(parting.step, 2);
        let branches = parting.branches.iter();
        let branches: Vec<_> = branches
            .map(|b| (b.took.token_id, b.took.prob, b.runs.clone()))
            .collect();
        assert_eq!(
            branches,
            [(1, 0.2, vec![1, 3]), (3, 0.3, vec![2]), (2, 0.1, vec![0])]
        );
    }

    #[test]
    fn the_same_replies_never_part_and_a_shorter_one_parts_at_its_end() {
        let same: [&[(u32, f32)]; 2] = [&[(7, 0.5)], &[(7, 0.5)]];
        assert_eq!(parting(&sweep(1.0, &same).runs), None);
        assert_eq!(parting(&[]), None);
        let shorter: [&[(u32, f32)]; 2] = [&[(7, 0.5)], &[(7, 0.5), (7, 0.5)]];
        let parting = parting(&sweep(1.0, &shorter).runs).expect("one ended");
        assert_eq!(
            (parting.step, parting.branches[0].took.token_id),
            (2, 0),
            "the end is a token"
        );
    }

    #[test]
    fn a_pair_says_whether_the_filter_moved_the_parting_and_compares_run_by_run() {
        let plain: [&[(u32, f32)]; 3] = [&[(1, 0.9)], &[(2, 0.1)], &[(1, 0.9), (3, 0.2)]];
        let filtered: [&[(u32, f32)]; 3] = [&[(1, 0.9)], &[(1, 0.9)], &[(1, 0.9), (4, 0.3)]];
        let (plain, filtered) = (sweep(1.0, &plain), sweep(0.9, &filtered));
        let pair = pair(&plain, &filtered);
        assert_eq!((pair.second_parts, pair.same_runs), (SecondParts::Later, 1));
        let runs = pair.run_by_run.iter();
        let runs: Vec<_> = runs
            .map(|r| (r.run, r.step, r.first.token_id, r.second.token_id))
            .collect();
        assert_eq!(runs, [(1, 1, 2, 1), (2, 2, 3, 4)]);
        let parting = pair.parting.as_ref().expect("run 1 differs at once");
        let branches = parting.branches.iter();
        let branches: Vec<_> = branches
            .map(|b| (b.first_runs.clone(), b.second_runs.clone()))
            .collect();
        assert_eq!(parting.step, 1);
        assert_eq!(branches, [(vec![0, 2], vec![0, 1, 2]), (vec![1], vec![])]);
        assert_eq!(
            super::pair(&filtered, &plain),
            pair,
            "the one without filters comes first"
        );
    }

    #[test]
    fn second_parts_has_a_word_for_every_order() {
        let same: [&[(u32, f32)]; 2] = [&[(1, 0.9)], &[(1, 0.9)]];
        let early: [&[(u32, f32)]; 2] = [&[(1, 0.9)], &[(2, 0.9)]];
        let order = |first: &[&[(u32, f32)]], second: &[&[(u32, f32)]]| {
            pair(&sweep(1.0, first), &sweep(0.9, second)).second_parts
        };
        assert_eq!(order(&early, &early), SecondParts::Same);
        assert_eq!(order(&same, &early), SecondParts::Earlier);
        assert_eq!(order(&early, &same), SecondParts::Never);
        assert_eq!(order(&same, &same), SecondParts::Never);
    }

    proptest! {
        #[test]
        fn a_parting_is_the_first_difference_and_loses_no_run(
            replies in prop::collection::vec(prop::collection::vec(1u32..3, 0..4), 1..8)
        ) {
            let replies: Vec<Vec<(u32, f32)>> = replies
                .into_iter()
                .map(|reply| reply.into_iter().map(|id| (id, 0.5)).collect())
                .collect();
            let replies: Vec<&[(u32, f32)]> = replies.iter().map(Vec::as_slice).collect();
            let runs = sweep(1.0, &replies).runs;
            let ids = |run: &Run, upto: usize| run.steps[..upto].iter().map(|s| s.token_id).collect::<Vec<_>>();
            match parting(&runs) {
                None => prop_assert!(replies.iter().all(|reply| *reply == replies[0])),
                Some(parting) => {
                    let before = parting.step - 1;
                    prop_assert!(parting.branches.len() > 1);
                    prop_assert!(runs.iter().all(|run| ids(run, before) == ids(&runs[0], before)));
                    let mut gone: Vec<u32> = parting.branches.iter().flat_map(|b| b.runs.clone()).collect();
                    gone.sort_unstable();
                    prop_assert_eq!(gone, (0..runs.len() as u32).collect::<Vec<_>>());
                    for branch in &parting.branches {
                        for &index in &branch.runs {
                            prop_assert_eq!(runs[index as usize].steps[before].token_id, branch.took.token_id);
                        }
                    }
                }
            }
        }
    }
}
