//! The samples of one setting: each distinct reply once, and all of them as a tree.

use serde::Serialize;

use super::token::shade;
use crate::analysis::tree::{Node, tree};
use crate::analysis::{Glyph, Piece, pieces, pieces_of, replies};
use crate::record::{FinishReason, Run, Settings, Step, Sweep};
use crate::report::table::{ending, replies_in_words};
use crate::text::display::{cell, escape_line, escape_text};

/// All runs of a setting.
#[derive(Serialize)]
pub(super) struct Samples {
    label: String,
    found: String,
    replies: Vec<Reply>,
    /// The nodes in the order of reading; none where all replies are the same.
    tree: Vec<Branch>,
}

/// A reply, and the runs that gave it.
#[derive(Serialize)]
struct Reply {
    count: usize,
    runs: String,
    pieces: Vec<Stretch>,
    ending: Option<String>,
}

/// A stretch of a reply: a token with its shade and probability, or text without.
#[derive(Serialize)]
struct Stretch {
    text: String,
    shade: Option<usize>,
    prob: String,
}

/// A node of a tree.
#[derive(Serialize)]
struct Branch {
    count: usize,
    /// The token that it begins with; a root has none.
    token: Option<Stretch>,
    pieces: Vec<Stretch>,
    ending: Option<String>,
    /// The runs that end here.
    runs: Option<String>,
    /// How many lists of siblings end after it.
    closes: usize,
}

impl Samples {
    pub(super) fn new(sweep: &Sweep, settings: &Settings) -> Self {
        let threshold = settings.threshold;
        let reply = |runs: Vec<&Run>| Reply {
            count: runs.len(),
            runs: indices(&runs),
            pieces: stretches(pieces(runs[0], threshold)),
            ending: ending(runs[0]),
        };
        let mut branches = Vec::new();
        if let Some(root) = tree(&sweep.runs).filter(|root| !root.children.is_empty()) {
            push(&root, true, threshold, &mut branches);
        }
        Self {
            label: escape_line(&sweep.label),
            found: replies_in_words(sweep, settings),
            replies: replies(&sweep.runs).into_iter().map(reply).collect(),
            tree: branches,
        }
    }
}

impl Stretch {
    fn token(step: &Step) -> Self {
        Self {
            text: cell(&step.token, &step.bytes),
            shade: Some(shade(step.prob)),
            prob: format!("{:.2}", step.prob),
        }
    }
}

fn stretches(pieces: Vec<Piece>) -> Vec<Stretch> {
    let stretch = |piece| match piece {
        Piece::Text(text) => Stretch {
            text: escape_text(&text),
            shade: None,
            prob: String::new(),
        },
        Piece::Low { token, prob } => Stretch {
            text: token,
            shade: Some(shade(prob)),
            prob: format!("{prob:.2}"),
        },
    };
    pieces.into_iter().map(stretch).collect()
}

/// Adds a node and all below it.
fn push(node: &Node, is_root: bool, threshold: f64, branches: &mut Vec<Branch>) {
    let is_end = node.children.is_empty();
    let (token, text) = match node.steps.split_first() {
        Some((step, rest)) if !is_root => (Some(Stretch::token(step)), rest),
        _ => (None, node.steps),
    };
    let stops = is_end && node.runs[0].finish_reason == FinishReason::Stop;
    let text_len = text.len().saturating_sub(usize::from(stops));
    let glyphs = text.iter().map(Glyph::from);
    branches.push(Branch {
        count: node.runs.len(),
        token,
        pieces: stretches(pieces_of(glyphs, text_len, threshold)),
        ending: ending(node.runs[0]).filter(|_| is_end),
        runs: is_end.then(|| indices(&node.runs)),
        closes: 0,
    });
    for child in &node.children {
        push(child, false, threshold, branches);
    }
    if let Some(last) = branches.last_mut().filter(|_| !is_end) {
        last.closes += 1;
    }
}

fn indices(runs: &[&Run]) -> String {
    let noun = if runs.len() == 1 { "run" } else { "runs" };
    let indices: Vec<String> = runs.iter().map(|run| run.run.to_string()).collect();
    format!("{noun} {}", indices.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::table::tests::{run, settings, sweep, taken};

    /// A sweep of replies, one character a token.
    fn of(replies: &[&str]) -> Samples {
        let runs = replies.iter().zip(0..).map(|(reply, index)| {
            let steps = reply.chars().map(|c| taken(&c.to_string(), 0.5));
            Run {
                run: index,
                ..run(FinishReason::Length, steps.collect())
            }
        });
        Samples::new(&sweep(runs.collect()), &settings())
    }

    /// A tree as text: each node's runs, and its list of children in brackets.
    fn outline(tree: &[Branch]) -> String {
        let mut text = String::new();
        for branch in tree {
            text += &branch.count.to_string();
            text += if branch.runs.is_none() { "(" } else { " " };
            text += &") ".repeat(branch.closes);
        }
        text
    }

    #[test]
    fn lists_of_a_tree_end_where_they_should_and_equal_replies_stand_once() {
        let samples = of(&["ab.", "axc", "ab.", "axd", "z.."]);
        assert_eq!(outline(&samples.tree), "5(4(2 2(1 1 ) ) 1 ) ");
        let groups = samples.replies.iter();
        let groups: Vec<_> = groups.map(|r| (r.count, r.runs.as_str())).collect();
        assert_eq!(
            groups,
            [(2, "runs 0, 2"), (1, "run 1"), (1, "run 3"), (1, "run 4")]
        );
        assert!(of(&["a", "a"]).tree.is_empty(), "one reply is no tree");
    }
}
