//! Runs as a tree: what they share stands once, and each parting has a branch for every token taken there.

use crate::analysis::parting::{divide, parts_at};
use crate::record::{Run, Step};

/// A stretch of tokens that some runs share, up to where they part or end.
#[derive(Debug)]
pub struct Node<'a> {
    /// The tokens; the first is the one that parts the node from its siblings. Only a root may have none.
    pub steps: &'a [Step],
    /// The runs that share them.
    pub runs: Vec<&'a Run>,
    /// Where they go on in different ways: at least two, most runs first, then the more probable. None at an end.
    pub children: Vec<Node<'a>>,
}

/// Returns the tree of some runs; `None` where there are none.
pub fn tree(runs: &[Run]) -> Option<Node<'_>> {
    (!runs.is_empty()).then(|| grow(runs.iter().collect(), 0))
}

/// The tree of runs that have `from` steps in common; there is at least one.
fn grow(runs: Vec<&Run>, from: usize) -> Node<'_> {
    let parting = parts_at(&runs, from);
    let end = parting.unwrap_or(runs[0].steps.len());
    let branches = parting.map(|at| divide(&runs, at)).unwrap_or_default();
    let children = branches.into_iter().map(|(_, members)| {
        let members = members.into_iter().map(|member| runs[member]);
        grow(members.collect(), end)
    });
    Node {
        children: children.collect(),
        steps: &runs[0].steps[from..end],
        runs,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::parting::parting;
    use crate::analysis::tests::run;
    use proptest::prelude::*;

    fn ids(steps: &[Step]) -> Vec<u32> {
        steps.iter().map(|step| step.token_id).collect()
    }

    #[test]
    fn what_runs_share_stands_once() {
        let runs = [
            run(&[(5, 0.5), (1, 0.5), (3, 0.5)]),
            run(&[(5, 0.5), (2, 0.5), (3, 0.5), (9, 0.5)]),
            run(&[(5, 0.5), (2, 0.5), (3, 0.5), (8, 0.5)]),
        ];
        let root = tree(&runs).expect("three runs");
        assert_eq!(ids(root.steps), [5]);
        let [most, one] = &root.children[..] else {
            panic!("{root:?}");
        };
        assert_eq!((ids(most.steps), most.runs.len()), (vec![2, 3], 2));
        assert_eq!((ids(one.steps), one.runs.len()), (vec![1, 3], 1));
        assert_eq!(most.children.len(), 2);
        assert!(tree(&[]).is_none());
    }

    /// Checks a node and returns every path through it with the runs at its end.
    fn paths(node: &Node, is_root: bool) -> Vec<(Vec<u32>, usize)> {
        assert!(is_root || !node.steps.is_empty());
        assert_ne!(node.children.len(), 1, "a single way on is no parting");
        if node.children.is_empty() {
            return vec![(ids(node.steps), node.runs.len())];
        }
        let below: usize = node.children.iter().map(|child| child.runs.len()).sum();
        assert_eq!(below, node.runs.len(), "counts add up");
        let mut taken: Vec<u32> = node.children.iter().map(|c| c.steps[0].token_id).collect();
        taken.sort_unstable();
        taken.dedup();
        assert_eq!(
            taken.len(),
            node.children.len(),
            "siblings begin differently"
        );
        let below = node.children.iter().flat_map(|child| paths(child, false));
        below
            .map(|(path, count)| ([ids(node.steps), path].concat(), count))
            .collect()
    }

    proptest! {
        #[test]
        fn counts_add_up_and_every_run_is_a_path(
            replies in prop::collection::vec(prop::collection::vec(1u32..4, 0..5), 1..12)
        ) {
            // all replies end with the same token, so that none is a proper beginning of another
            let with_end = replies.iter().map(|reply| [&reply[..], &[0]].concat());
            let runs: Vec<Run> = with_end
                .map(|ids| run(&ids.iter().map(|&id| (id, 0.5)).collect::<Vec<_>>()))
                .collect();
            let root = tree(&runs).expect("at least one run");
            let mut found: Vec<Vec<u32>> = paths(&root, true)
                .into_iter()
                .flat_map(|(path, count)| std::iter::repeat_n(path, count))
                .collect();
            let mut given: Vec<Vec<u32>> = runs.iter().map(|run| ids(&run.steps)).collect();
            found.sort();
            given.sort();
            prop_assert_eq!(found, given);
            prop_assert_eq!(parting(&runs).map(|p| p.step - 1), (!root.children.is_empty()).then_some(root.steps.len()));
        }
    }
}
