//! Any grid of settings: what each did stands beside the others, on screen and in the record.

use crate::program::{Program, fixture};
use crate::schema::{Record, Step};

/// Greedy, the usual one, and a high temperature with and without a nucleus.
const GRID: [&str; 17] = [
    "--raw",
    "-p",
    "Three uses for a paperclip:",
    "--max-new-tokens",
    "8",
    "--samples",
    "4",
    "--seed",
    "3",
    "--setting",
    "temperature=0",
    "--setting",
    "temperature=0.7,top_p=0.95",
    "--setting",
    "temperature=1.5",
    "--setting",
    "temperature=1.5,top_p=0.9",
];

fn mean(steps: &[&Step], value: impl Fn(&Step) -> f64) -> f32 {
    (steps.iter().map(|step| value(step)).sum::<f64>() / steps.len() as f64) as f32
}

fn record() -> Record {
    Program::new().record(&fixture("qwen35"), &GRID)
}

#[test]
fn every_setting_has_its_means_over_all_its_tokens() {
    let record = record();
    let done = record.done(0);
    let analysis = done.analysis.as_ref().expect("there are samples");
    assert_eq!(analysis.sweeps.len(), 4);
    for (sweep, analysis) in done.sweeps.iter().zip(&analysis.sweeps) {
        let steps: Vec<&Step> = sweep.runs.iter().flat_map(|run| &run.steps).collect();
        let sampling = |step: &Step| step.sampling.expect("a sampled step");
        let lowest = steps.iter().map(|step| step.prob).reduce(f32::min);
        let outside = mean(&steps, |step| {
            if step.rank > step.mass_count {
                1.0
            } else {
                0.0
            }
        });
        assert_eq!(analysis.mean_prob, mean(&steps, |step| step.prob.into()));
        assert_eq!(Some(analysis.lowest_prob), lowest);
        assert_eq!(
            analysis.mean_kept,
            mean(&steps, |s| sampling(s).kept as f64)
        );
        let mass = mean(&steps, |step| sampling(step).kept_mass.into());
        assert_eq!(analysis.mean_kept_mass, mass);
        assert_eq!(analysis.outside_mass, outside);
    }
    let [greedy, _, hot, nucleus] = &analysis.sweeps[..] else {
        panic!("four settings");
    };
    assert_eq!((greedy.mean_kept, greedy.outside_mass), (1.0, 0.0));
    assert_eq!((hot.mean_kept, hot.mean_kept_mass), (320.0, 1.0));
    assert!(nucleus.mean_kept < hot.mean_kept && nucleus.mean_kept_mass < 1.0);
    assert!(
        hot.outside_mass > 0.0,
        "a flat distribution draws from its tail"
    );
}

#[test]
fn the_settings_stand_beside_each_other_in_the_order_given() {
    let program = Program::new();
    let model = fixture("qwen35").to_string_lossy().into_owned();
    let ran = program
        .run(&[&["--model", &model], &GRID[..]].concat())
        .success();
    let (_, table) = ran
        .stdout
        .split_once("\nsettings beside each other\n")
        .expect("the table");
    let lines: Vec<&str> = table.lines().collect();
    let names = lines
        .iter()
        .skip(1)
        .filter_map(|line| line.trim().split("  ").next());
    assert_eq!(
        names.collect::<Vec<_>>(),
        [
            "temperature 0.0",
            "temperature 0.7, top_p 0.95",
            "temperature 1.5",
            "temperature 1.5, top_p 0.9"
        ]
    );
    let last = lines.iter().map(|line| line.chars().count());
    assert_eq!(
        last.clone().min(),
        last.max(),
        "columns end together: {table}"
    );
}

#[test]
fn one_line_shows_every_run_on_one_line() {
    let program = Program::new();
    let model = fixture("qwen35").to_string_lossy().into_owned();
    let arguments = [&["--model", &model, "--one-line"], &GRID[..]].concat();
    let mut command = program.command(&arguments);
    let ran = crate::program::Ran::of(command.env("COLUMNS", "60")).success();
    for group in ran
        .stdout
        .split("\n\n")
        .filter(|part| part.starts_with("temperature"))
    {
        let lines: Vec<&str> = group.lines().collect();
        assert_eq!(lines.len(), 1 + 4, "{group}");
        for (line, run) in lines[1..].iter().zip(0..) {
            assert!(line.starts_with(&format!("    {run}  ")), "{line}");
            assert!(unicode_width::UnicodeWidthStr::width(*line) <= 60, "{line}");
        }
    }
    let cut = ran.stdout.matches("…\n").count();
    assert!(
        cut > 0,
        "eight tokens of a random model do not fit: {}",
        ran.stdout
    );
}
