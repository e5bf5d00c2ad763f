//! Where runs part: what the record says of it is what its runs are, and the screen shows it.

use crate::program::{Program, fixture};
use crate::schema::{Record, Run, Sweep};

const PROMPT: [&str; 6] = [
    "-p",
    "Where is Paris?",
    "--max-new-tokens",
    "6",
    "--samples",
    "6",
];

fn record(more: &[&str]) -> Record {
    Program::new().record(&fixture("qwen35"), &[&PROMPT[..], more].concat())
}

/// The first step, from 1, at which some of the runs differ.
fn first_difference(runs: &[&Run]) -> Option<usize> {
    let longest = runs.iter().map(|run| run.steps.len()).max()?;
    let at = |run: &Run, step: usize| run.ids().get(step).copied();
    (0..longest)
        .find(|&step| runs.iter().any(|run| at(run, step) != at(runs[0], step)))
        .map(|step| step + 1)
}

fn runs(sweep: &Sweep) -> Vec<&Run> {
    sweep.runs.iter().collect()
}

#[test]
fn every_sweep_and_every_pair_parts_where_its_runs_first_differ() {
    let record = record(&[]);
    let done = record.done(0);
    let analysis = done.analysis.as_ref().expect("there are samples");
    assert_eq!((analysis.sweeps.len(), analysis.pairs.len()), (5, 10));
    for (sweep, analysis) in done.sweeps.iter().zip(&analysis.sweeps) {
        assert_eq!(sweep.label, analysis.label);
        let parting = analysis.parting.as_ref();
        assert_eq!(
            parting.map(|parting| parting.step),
            first_difference(&runs(sweep))
        );
        if let Some(parting) = parting {
            let mut seen = 0;
            for branch in &parting.branches {
                for &run in &branch.runs {
                    let step = &sweep.runs[run as usize].steps[parting.step - 1];
                    assert_eq!(
                        (step.token_id, step.prob.to_bits()),
                        (branch.took.token_id, branch.took.prob.to_bits())
                    );
                    seen += 1;
                }
            }
            assert_eq!(seen, sweep.runs.len());
        }
    }
    for pair in &analysis.pairs {
        let sweep = |label: &str| {
            let found = done.sweeps.iter().find(|sweep| sweep.label == label);
            found.expect("a label of a sweep")
        };
        let (first, second) = (sweep(&pair.first), sweep(&pair.second));
        let both = [runs(first), runs(second)].concat();
        let parting = pair.parting.as_ref().map(|parting| parting.step);
        assert_eq!(parting, first_difference(&both));
        let expected = match (
            first_difference(&runs(first)),
            first_difference(&runs(second)),
        ) {
            (_, None) => "never",
            (None, Some(_)) => "earlier",
            (Some(first), Some(second)) if first == second => "same",
            (Some(first), Some(second)) if first < second => "later",
            _ => "earlier",
        };
        assert_eq!(pair.second_parts, expected);
        assert_eq!(pair.same_runs + pair.run_by_run.len(), 6);
        for parting in &pair.run_by_run {
            let [one, other] = [first, second].map(|sweep| &sweep.runs[parting.run as usize]);
            assert_eq!(first_difference(&[one, other]), Some(parting.step));
            assert_eq!(one.ids()[parting.step - 1], parting.first.token_id);
            assert_eq!(other.ids()[parting.step - 1], parting.second.token_id);
        }
    }
}

/// Before its first parting a run has the context of its twin, so the raw probabilities there are of one distribution, and
/// the same coin draws the same token wherever the kept sets are the same.
#[test]
fn a_filter_that_keeps_everything_parts_no_run() {
    let record = record(&["--setting", "top_k=0", "--setting", "top_k=100000"]);
    let analysis = record.done(0).analysis.as_ref().expect("samples");
    let pair = &analysis.pairs[0];
    assert_eq!((pair.same_runs, pair.run_by_run.len()), (6, 0));
}

#[test]
fn without_samples_there_is_no_analysis_and_no_word_of_it() {
    let program = Program::new();
    let model = fixture("qwen35").to_string_lossy().into_owned();
    let arguments = [
        "--model",
        &model,
        "-p",
        "hi",
        "--samples",
        "0",
        "--max-new-tokens",
        "2",
    ];
    let ran = program.run(&arguments).success();
    assert!(!ran.stdout.contains("where runs part"), "{}", ran.stdout);
    assert_eq!(program.only_record("results").done(0).analysis, None);
}

#[test]
fn the_words_come_always_and_the_tree_when_asked() {
    let program = Program::new();
    let model = fixture("qwen35").to_string_lossy().into_owned();
    let arguments = [&["--model", &model], &PROMPT[..], &["--temps", "1"]].concat();
    let plain = program.run(&arguments).success().stdout;
    assert!(
        plain.contains("\nwhere runs part\n  temperature 1.0: at step "),
        "{plain}"
    );
    assert!(
        plain.contains("top_p 0.9 beside temperature 1.0: "),
        "{plain}"
    );
    assert!(!plain.contains("tree of"), "{plain}");
    let tree = program
        .run(&[&arguments[..], &["--tree"]].concat())
        .success()
        .stdout;
    let rest = tree
        .strip_prefix(plain.trim_end())
        .expect("the tree comes after all else");
    assert_eq!(rest.matches("tree of temperature 1.0").count(), 2, "{rest}");
    for tree in rest.split("tree of ").skip(1) {
        let ends = tree.lines().filter_map(|line| line.rsplit_once("(run"));
        let runs = ends.flat_map(|(_, runs)| runs.trim_end_matches(')').split([',', ' ', 's']));
        let mut runs: Vec<u32> = runs.filter_map(|run| run.parse().ok()).collect();
        runs.sort_unstable();
        assert_eq!(runs, [0, 1, 2, 3, 4, 5], "{tree}");
    }
}
