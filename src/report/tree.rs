//! Replies as an indented tree: what runs share stands once, and every branch says how many runs took it, by which token,
//! and how probable that was.

use std::io::{self, Write};

use crate::analysis::tree::{Node, tree};
use crate::analysis::{Glyph, pieces_of};
use crate::record::{FinishReason, Settings, Step, Sweep};
use crate::report::table::{BOLD, DIM, LOW, NARROWEST, TOKEN_WIDTH, cut, ending, marked};
use crate::report::wrap::Lines;
use crate::text::display::{cell, escape_line};

/// What is put in front of a branch, and in front of what is below it.
struct Rails {
    branch: &'static str,
    below: &'static str,
}

const ROOT: Rails = Rails {
    branch: "",
    below: "",
};
const MORE: Rails = Rails {
    branch: "├─ ",
    below: "│  ",
};
const LAST: Rails = Rails {
    branch: "└─ ",
    below: "   ",
};

/// Writes a tree for each sweep, each node as `3  token 0.23  text`.
pub(super) fn trees(
    sweeps: &[Sweep],
    settings: &Settings,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    for sweep in sweeps {
        writeln!(out, "\n{BOLD}tree of {}{BOLD:#}", escape_line(&sweep.label))?;
        if let Some(root) = tree(&sweep.runs) {
            let page = Page {
                threshold: settings.threshold,
                count_width: root.runs.len().to_string().len(),
                width: width.filter(|&width| width >= NARROWEST),
            };
            page.node(&root, "  ", &ROOT, out)?;
        }
    }
    Ok(())
}

/// What all nodes of a tree are written with.
struct Page {
    threshold: f64,
    /// Digits of the largest count.
    count_width: usize,
    width: Option<usize>,
}

impl Page {
    fn node(&self, node: &Node, rail: &str, rails: &Rails, out: &mut impl Write) -> io::Result<()> {
        let below = format!("{rail}{}", rails.below);
        // deep down no room is left, and the terminal breaks what it must
        let used = below.chars().count() + self.count_width + 2;
        let room = self
            .width
            .map(|width| width.saturating_sub(used).max(NARROWEST));
        let lines = self.lines(node, rails.branch.is_empty(), room);
        let head = format!(
            "{DIM}{rail}{}{DIM:#}{:>count_width$}",
            rails.branch,
            node.runs.len(),
            count_width = self.count_width
        );
        // the line down to the first child starts below the count
        let trunk = if node.children.is_empty() { " " } else { "│" };
        for (index, line) in lines.iter().enumerate() {
            match (index, line.as_str()) {
                (0, "") => writeln!(out, "{head}")?,
                (0, _) => writeln!(out, "{head}  {line}")?,
                _ => writeln!(
                    out,
                    "{DIM}{below}{trunk:count_width$}{DIM:#}  {line}",
                    count_width = self.count_width
                )?,
            }
        }
        let last = node.children.len().saturating_sub(1);
        for (index, child) in node.children.iter().enumerate() {
            let rails = if index == last { &LAST } else { &MORE };
            self.node(child, &below, rails, out)?;
        }
        Ok(())
    }

    /// The token that a node begins with and its probability, the text after it, and at an end which runs ended there.
    fn lines(&self, node: &Node, is_root: bool, room: Option<usize>) -> Vec<String> {
        let mut lines = Lines::new(room);
        let (label, text) = match node.steps.split_first() {
            Some((step, rest)) if !is_root => (Some(step), rest),
            _ => (None, node.steps),
        };
        let is_end = node.children.is_empty();
        let stops = is_end && node.runs[0].finish_reason == FinishReason::Stop;
        let text_len = text.len().saturating_sub(usize::from(stops));
        if let Some(step) = label {
            let (plain, styled) = self.label(step);
            lines.unit(&plain, &styled);
            lines.text(if text_len > 0 { "  " } else { "" });
        }
        let pieces = pieces_of(text.iter().map(Glyph::from), text_len, self.threshold);
        marked(&pieces, escape_line, &mut lines);
        if is_end {
            if let Some(ending) = ending(node.runs[0]) {
                lines.text(" ");
                lines.unit(&ending, &format!("{DIM}{ending}{DIM:#}"));
            }
            let runs: Vec<String> = node.runs.iter().map(|run| run.run.to_string()).collect();
            let noun = if runs.len() == 1 { "run" } else { "runs" };
            let runs = format!("({noun} {})", runs.join(", "));
            lines.text("  ");
            lines.unit(&runs, &format!("{DIM}{runs}{DIM:#}"));
        }
        lines.finish()
    }

    fn label(&self, step: &Step) -> (String, String) {
        let token = cut(&cell(&step.token, &step.bytes), TOKEN_WIDTH);
        let plain = format!("{token} {:.2}", step.prob);
        let styled = match f64::from(step.prob) < self.threshold {
            true => format!("{LOW}{plain}{LOW:#}"),
            false => format!("{BOLD}{plain}{BOLD:#}"),
        };
        (plain, styled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Run;
    use crate::report::table::tests::{run, settings, sweep, taken};

    fn shown(runs: Vec<Run>, width: Option<usize>) -> String {
        let mut out = Vec::new();
        trees(&[sweep(runs)], &settings(), width, &mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("UTF-8");
        let text = anstream::adapter::strip_str(&text).to_string();
        text.trim_start_matches('\n').to_owned()
    }

    fn numbered(runs: Vec<Vec<Step>>) -> Vec<Run> {
        let numbered = runs.into_iter().zip(0..);
        numbered
            .map(|(steps, index)| Run {
                run: index,
                ..run(FinishReason::Stop, steps)
            })
            .collect()
    }

    /// Four tokens and the end.
    fn reply(tokens: [(&str, f32); 3]) -> Vec<Step> {
        let tokens = tokens.iter().map(|&(token, prob)| taken(token, prob));
        tokens.chain([taken("<|im_end|>", 0.9)]).collect()
    }

    #[test]
    fn a_branch_has_its_count_its_token_and_its_probability() {
        let runs = numbered(vec![
            reply([("法国", 0.9), (" is\n", 0.1), (" here", 0.9)]),
            reply([("法国", 0.9), (" was", 0.6), (" there", 0.2)]),
            reply([("法国", 0.9), (" was", 0.6), ("\u{1b}[31m", 0.02)]),
            reply([("法国", 0.9), (" was", 0.6), (" there", 0.2)]),
        ]);
        insta::assert_snapshot!(shown(runs, None), @r"
        tree of temperature 1.0
          4  法国
          ├─ 3  ␠was 0.60
          │  ├─ 2  ␠there 0.20  (runs 1, 3)
          │  └─ 1  \u{1B}[31m 0.02  (run 2)
          └─ 1  ␠is\n 0.10   here  (run 0)
        ");
    }

    #[test]
    fn lines_that_do_not_fit_go_on_beside_the_rails() {
        let long = "到处都是花园和喷泉还有小路";
        let runs = numbered(vec![
            reply([("a", 0.9), ("b", 0.5), (long, 0.9)]),
            reply([(long, 0.9), ("b", 0.5), (long, 0.9)]),
            reply([(long, 0.9), ("c", 0.5), (long, 0.9)]),
        ]);
        insta::assert_snapshot!(shown(runs, Some(36)), @r"
        tree of temperature 1.0
          3
          ├─ 2  到处都是花园和喷泉还有… 0.90
          │  ├─ 1  b 0.50  到处都是花园和喷泉还有
          │  │     小路  (run 1)
          │  └─ 1  c 0.50  到处都是花园和喷泉还有
          │        小路  (run 2)
          └─ 1  a 0.90  b到处都是花园和喷泉还
                有小路  (run 0)
        ");
    }
}
