//! Where runs part, in plain words.

use std::io::{self, Write};

use crate::analysis::parting::is_filtered_twin;
use crate::record::{
    Branch, Candidate, PairAnalysis, PromptRecord, RunParting, SecondParts, Sweep, SweepAnalysis,
};
use crate::report::table::{BOLD, TOKEN_WIDTH, cut, plural};
use crate::report::wrap::write_sentence;
use crate::text::display::{cell, escape_line};

/// Tokens, or runs, that a sentence names; the record has all.
const MOST_NAMED: usize = 5;

/// Writes a sentence for each sweep of several runs, and one for each two sweeps that a filter alone tells apart.
pub(super) fn words(
    prompt: &PromptRecord,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let sentences = sentences(prompt, |token| format!("`{token}`"));
    if sentences.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{BOLD}where runs part{BOLD:#}")?;
    sentences
        .iter()
        .try_for_each(|sentence| write_sentence(sentence, width, out))
}

/// Returns the sentences of [`words`]; `quote` sets tokens off from the words around them.
pub(super) fn sentences(prompt: &PromptRecord, quote: fn(&str) -> String) -> Vec<String> {
    let Some(analysis) = &prompt.analysis else {
        return Vec::new();
    };
    let sweeps = prompt.sweeps.iter().zip(&analysis.sweeps);
    let of_sweeps = sweeps.filter(|(sweep, _)| sweep.runs.len() > 1);
    let mut sentences: Vec<String> = of_sweeps
        .map(|(sweep, analysis)| of_sweep(sweep, analysis, quote))
        .collect();
    // pairs come in the order of `analysis::of`
    let twos = prompt.sweeps.iter().enumerate().flat_map(|(index, sweep)| {
        let others = prompt.sweeps[index + 1..].iter();
        others.map(move |other| (sweep, other))
    });
    let of_pairs = twos
        .zip(&analysis.pairs)
        .filter(|((one, other), _)| is_filtered_twin(one, other) || is_filtered_twin(other, one));
    sentences.extend(of_pairs.map(|((one, _), pair)| of_pair(pair, one.runs.len(), quote)));
    sentences
}

fn of_sweep(sweep: &Sweep, analysis: &SweepAnalysis, quote: fn(&str) -> String) -> String {
    let label = escape_line(&analysis.label);
    let Some(parting) = &analysis.parting else {
        return format!(
            "{label}: nowhere, all {} runs are the same",
            sweep.runs.len()
        );
    };
    let named = parting.branches.iter().take(MOST_NAMED);
    let named: Vec<String> = named
        .zip(std::iter::once(" took").chain(std::iter::repeat("")))
        .map(|(Branch { took, runs }, verb)| format!("{}{verb} {}", runs.len(), token(took, quote)))
        .collect();
    let rest = parting.branches.iter().skip(MOST_NAMED);
    let others: usize = rest.map(|branch| branch.runs.len()).sum();
    let others = match others {
        0 => String::new(),
        _ => format!(", {others} with other tokens"),
    };
    let named = named.join(", ");
    format!("{label}: at step {}; {named}{others}", parting.step)
}

fn of_pair(pair: &PairAnalysis, num_runs: usize, quote: fn(&str) -> String) -> String {
    let order = match pair.second_parts {
        _ if num_runs == 1 => String::new(),
        SecondParts::Same => "parts at the same step; ".to_owned(),
        SecondParts::Later => "parts later; ".to_owned(),
        SecondParts::Earlier => "parts earlier; ".to_owned(),
        SecondParts::Never => "never parts; ".to_owned(),
    };
    let compared = pair.same_runs + pair.run_by_run.len();
    let of_runs = match (pair.same_runs, compared) {
        (0, 1) => "the same coins give another reply".to_owned(),
        (_, 1) => "the same coins give the same reply".to_owned(),
        (0, all) => format!("the same coins give other replies in all {all} runs"),
        (same, all) if same == all => format!("the same coins give the same {all} replies"),
        (same, all) => format!("the same coins give the same reply in {same} of {all} runs"),
    };
    let named = pair.run_by_run.iter().take(MOST_NAMED).map(|parting| {
        let RunParting {
            run,
            step,
            first,
            second,
        } = parting;
        let (first, second) = (token(first, quote), token(second, quote));
        format!("; run {run} parts at step {step} ({first}, with it {second})")
    });
    let named: String = named.collect();
    let others = match pair.run_by_run.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        others => format!("; and {}", plural(others, "other run")),
    };
    let (first, second) = (escape_line(&pair.first), escape_line(&pair.second));
    format!("{second} beside {first}: {order}{of_runs}{named}{others}")
}

fn token(candidate: &Candidate, quote: fn(&str) -> String) -> String {
    let shown = cut(&cell(&candidate.token, &candidate.bytes), TOKEN_WIDTH);
    format!("{} {:.2}", quote(&shown), candidate.prob)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis;
    use crate::record::{FinishReason, Run};
    use crate::report::table::tests::{run, sweep, taken};

    /// The words on sweeps of one-token replies, with the given filters; `prob` of a token is its length in tenths.
    fn said(sweeps: &[(f64, &[&str])], width: Option<usize>) -> String {
        let sweeps = sweeps.iter().map(|(top_p, replies)| {
            let runs = replies.iter().zip(0..).map(|(token, index)| {
                let step = taken(token, token.len() as f32 / 10.0);
                Run {
                    run: index,
                    ..run(FinishReason::Length, vec![step])
                }
            });
            let filtered = if *top_p < 1.0 { ", top_p 0.9" } else { "" };
            Sweep {
                label: format!("temperature 1.0{filtered}"),
                top_p: *top_p,
                ..sweep(runs.collect())
            }
        });
        let sweeps: Vec<Sweep> = sweeps.collect();
        let prompt = PromptRecord {
            id: None,
            prompt: String::new(),
            system: None,
            rendered: String::new(),
            prompt_token_ids: vec![1],
            greedy: run(FinishReason::Length, Vec::new()),
            analysis: analysis::of(&sweeps),
            sweeps,
        };
        let mut out = Vec::new();
        words(&prompt, width, &mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("UTF-8");
        let text = anstream::adapter::strip_str(&text).to_string();
        text.trim_start_matches('\n').to_owned()
    }

    #[test]
    fn a_sentence_for_each_sweep_and_for_the_filter() {
        let plain = ["ab", "c", "ab"];
        let filtered = ["ab", "ab", "\u{1b}["];
        insta::assert_snapshot!(said(&[(1.0, &plain), (0.9, &filtered)], None), @r"
        where runs part
          temperature 1.0: at step 1; 2 took `ab` 0.20, 1 `c` 0.10
          temperature 1.0, top_p 0.9: at step 1; 2 took `ab` 0.20, 1 `\u{1B}[` 0.20
          temperature 1.0, top_p 0.9 beside temperature 1.0: parts at the same step; the same coins give the same reply in 1 of 3 runs; run 1 parts at step 1 (`c` 0.10, with it `ab` 0.20); run 2 parts at step 1 (`ab` 0.20, with it `\u{1B}[` 0.20)
        ");
        insta::assert_snapshot!(said(&[(0.9, &plain), (1.0, &plain)], Some(40)), @r"
        where runs part
          temperature 1.0, top_p 0.9: at step
            1; 2 took `ab` 0.20, 1 `c` 0.10
          temperature 1.0: at step 1; 2 took
            `ab` 0.20, 1 `c` 0.10
          temperature 1.0, top_p 0.9 beside
            temperature 1.0: parts at the same
            step; the same coins give the same 3
            replies
        ");
    }

    #[test]
    fn many_ways_are_counted_not_listed() {
        let many = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let same = ["a"; 8];
        insta::assert_snapshot!(said(&[(1.0, &many), (0.9, &same)], None), @r"
        where runs part
          temperature 1.0: at step 1; 1 took `a` 0.10, 1 `b` 0.10, 1 `c` 0.10, 1 `d` 0.10, 1 `e` 0.10, 3 with other tokens
          temperature 1.0, top_p 0.9: nowhere, all 8 runs are the same
          temperature 1.0, top_p 0.9 beside temperature 1.0: never parts; the same coins give the same reply in 1 of 8 runs; run 1 parts at step 1 (`b` 0.10, with it `a` 0.10); run 2 parts at step 1 (`c` 0.10, with it `a` 0.10); run 3 parts at step 1 (`d` 0.10, with it `a` 0.10); run 4 parts at step 1 (`e` 0.10, with it `a` 0.10); run 5 parts at step 1 (`f` 0.10, with it `a` 0.10); and 2 other runs
        ");
    }

    #[test]
    fn single_runs_have_nothing_to_part_from() {
        assert_eq!(said(&[(1.0, &["a"])], None), "");
        insta::assert_snapshot!(said(&[(1.0, &["a"]), (0.9, &["b"])], None), @r"
        where runs part
          temperature 1.0, top_p 0.9 beside temperature 1.0: the same coins give another reply; run 0 parts at step 1 (`a` 0.10, with it `b` 0.10)
        ");
    }
}
