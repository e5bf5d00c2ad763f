//! The benchmark: what this machine can do, what the program makes of it, and what transformers makes of it.
//!
//!     cargo bench --bench job -- --model DIR [--python PYTHON] [--smollm FILE.gguf]
//!
//! The job is two prompts, each with a greedy reply and 25 samples of 60 new tokens, on a random model (`make_model`), so
//! that no two replies are alike. Everything is measured in this one run, and ratios are taken within it: machines differ,
//! and the same machine differs from hour to hour.

mod engine;
mod floor;
mod machine;
mod peers;
mod program;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, ValueEnum};

use engine::Engine;
use floor::{Floor, Weights};
use machine::Machine;
use program::Job;
use table::{Table, Times, bytes, milliseconds, seconds, times};

/// Rows that a step is timed with.
const ROWS: [usize; 4] = [1, 5, 26, 64];
/// Lengths of the prompts whose prefill is timed.
const PREFILLS: [usize; 3] = [24, 512, 2048];
/// Prompts of the job.
const PROMPTS: usize = 2;
/// Runs of a prompt: one greedy, five samples of each of five settings.
const RUNS: usize = 26;

/// Times this machine, the program and, where asked, transformers
#[derive(Parser)]
struct Arguments {
    /// A checkpoint's folder, such as `make_model` makes
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// A Python with torch and transformers, which then do the same work
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,
    /// Types that transformers computes in
    #[arg(
        long,
        value_name = "TYPE",
        value_delimiter = ',',
        default_value = "bfloat16"
    )]
    dtypes: Vec<String>,
    /// SmolLM2-135M-Instruct.Q4_1.gguf, whose 26 rows are then timed too
    #[arg(long, value_name = "FILE")]
    smollm: Option<PathBuf>,
    /// Threads, of the machine's limits, the program and transformers alike [default: one a physical core]
    #[arg(long, value_name = "N")]
    threads: Option<u16>,
    /// Tokens of a reply
    #[arg(long, value_name = "N", default_value = "60")]
    new: usize,
    /// Times that the job is done; the median counts
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// What to measure [default: all that the other flags allow]
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
    parts: Vec<Part>,
    /// What `cargo bench` adds to every command
    #[arg(long, hide = true)]
    bench: bool,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Time to load, of a step and of a prefill.
    Forward,
    /// The job, whole and by its parts.
    Job,
    /// transformers, where `--python` names one.
    Python,
    /// SmolLM2, where `--smollm` names it.
    Smollm,
}

impl Part {
    const ALL: [Self; 4] = [Self::Forward, Self::Job, Self::Python, Self::Smollm];
}

#[allow(clippy::print_stderr, reason = "a program of its own")]
fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match measure(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<()> {
    let threads = engine::set_threads(arguments.threads);
    let does = |part| arguments.parts.contains(&part);
    let weights = Weights::of(&arguments.model)?;
    table::say("measuring this machine");
    let machine = Machine::measure(threads);
    machine_table(&machine).print();
    let reading = machine.best().seconds(weights.bytes);

    let mut forward = None;
    if does(Part::Forward) {
        let measured = Forward::measure(&arguments.model)?;
        measured.table(&weights, reading).print();
        forward = Some(measured);
    }
    if does(Part::Job) {
        let (program, share) = our_job(arguments)?;
        let floor = weights.floor(&machine, arguments.new);
        job_table(&program, share, &floor, &weights).print();
    }
    if let Some(python) = arguments.python.as_deref().filter(|_| does(Part::Python)) {
        let forward = forward.map_or_else(|| Forward::measure(&arguments.model), Ok)?;
        for dtype in &arguments.dtypes {
            against_transformers(arguments, python, dtype, threads, &forward)?;
        }
    }
    if let Some(smollm) = arguments.smollm.as_deref().filter(|_| does(Part::Smollm)) {
        smollm_table(smollm, arguments.new)?.print();
    }
    Ok(())
}

fn machine_table(machine: &Machine) -> Table {
    let mut table = Table::new(
        "this machine",
        &["what", "1 thread", &machine.all_threads()],
    );
    let [one, all] = [&machine.one, &machine.all];
    let read = |limits: &machine::Limits| limits.best.to_string();
    table.row([
        "read, plain loop",
        &one.plain.to_string(),
        &all.plain.to_string(),
    ]);
    table.row([
        "read, best of several streams with prefetch",
        &read(one),
        &read(all),
    ]);
    let flops = |limits: &machine::Limits| format!("{:.0} GFLOP/s", limits.fma * 1e-9);
    table.row([
        &format!("f32 FMA, {}", machine::instructions()),
        &flops(one),
        &flops(all),
    ]);
    if let (Some(one), Some(all)) = (one.tiles, all.tiles) {
        let flops = |rate: f64| format!("{:.0} GFLOP/s", rate * 1e-9);
        table.row(["bf16 on tiles, AMX", &flops(one), &flops(all)]);
    }
    table.note(&machine.name);
    if machine.is_disturbed() {
        table.note("the threads got in each other's way, or something else is running: trust no time below");
    }
    table
}

/// Times of the forward pass, in seconds.
struct Forward {
    load: f64,
    steps: Vec<Times>,
    prefills: Vec<Times>,
}

impl Forward {
    fn measure(model: &Path) -> Result<Self> {
        let (engine, load) = Engine::load(model)?;
        let steps = ROWS
            .iter()
            .map(|&rows| engine.step(rows))
            .collect::<Result<_>>()?;
        let prefills = PREFILLS.iter().map(|&tokens| engine.prefill(tokens));
        Ok(Self {
            load,
            steps,
            prefills: prefills.collect::<Result<_>>()?,
        })
    }

    fn table(&self, weights: &Weights, reading: f64) -> Table {
        let read = format!(
            "÷ reading {} once ({})",
            bytes(weights.bytes),
            milliseconds(reading)
        );
        let columns = ["what", "time", "fastest", &read, "a second"];
        let mut table = Table::new("the forward pass, medians", &columns);
        table.row(["load", &seconds(self.load), "", "", ""]);
        let mut row = |what: String, tokens: usize, time: &Times| {
            table.row([
                &what,
                &milliseconds(time.median),
                &milliseconds(time.fastest),
                &times(time.median / reading),
                &format!("{:.0} tokens", tokens as f64 / time.median),
            ]);
        };
        for (&rows, time) in ROWS.iter().zip(&self.steps) {
            let plural = if rows == 1 { "" } else { "s" };
            row(format!("step of {rows} row{plural}"), rows, time);
        }
        for (&tokens, time) in PREFILLS.iter().zip(&self.prefills) {
            row(format!("prefill of {tokens}"), tokens, time);
        }
        table
    }
}

/// The job by the program, and the share of it that is not the model's.
fn our_job(arguments: &Arguments) -> Result<(Job, f64)> {
    let job = Job::run(&arguments.model, arguments.new, arguments.repeats)?;
    let (engine, _) = Engine::load(&arguments.model)?;
    let share = engine.distribution_share(arguments.new)?;
    Ok((job, share))
}

fn job_table(job: &Job, share: f64, floor: &Floor, weights: &Weights) -> Table {
    let title = format!("the job: {PROMPTS} prompts × {RUNS} runs, all different");
    let mut table = Table::new(&title, &["what", "measured", "ratio"]);
    table.row(["whole program, median", &seconds(job.times.median), ""]);
    table.row(["… fastest", &seconds(job.times.fastest), ""]);
    for (what, floor) in [("memory", floor.memory), ("arithmetic", floor.arithmetic)] {
        let ratio = times(job.times.median / floor);
        table.row([&format!("÷ the floor of {what}"), &seconds(floor), &ratio]);
    }
    if let Some(peak) = job.peak_bytes {
        let ratio = format!("{} the weights", times(peak as f64 / weights.bytes as f64));
        table.row(["peak memory", &bytes(peak), &ratio]);
    }
    let percent = format!("{:.1} %", share * 100.0);
    table.row(["distributions and draws, of the exploration", &percent, ""]);
    table
}

fn against_transformers(
    arguments: &Arguments,
    python: &Path,
    dtype: &str,
    threads: usize,
    forward: &Forward,
) -> Result<()> {
    let peer = peers::Transformers {
        python,
        model: &arguments.model,
        dtype,
        threads,
        new: arguments.new,
    };
    let title = format!("transformers, {dtype}, {threads} threads");
    let mut table = Table::new(&title, &["what", "transformers", "logprobs", "ratio"]);
    let mut compare = |what: &str, theirs: f64, ours: f64, format: fn(f64) -> String| {
        table.row([what, &format(theirs), &format(ours), &times(theirs / ours)]);
    };
    let theirs = peer.forward(&PREFILLS, &ROWS[..3])?;
    compare("load", theirs.load, forward.load, seconds);
    for (index, rows) in ROWS[..3].iter().enumerate() {
        compare(
            &format!("step, rows {rows}"),
            theirs.steps[index],
            forward.steps[index].median,
            milliseconds,
        );
    }
    for (index, tokens) in PREFILLS.iter().enumerate() {
        compare(
            &format!("prefill of {tokens}"),
            theirs.prefills[index],
            forward.prefills[index].median,
            milliseconds,
        );
    }
    let mut notes = Vec::new();
    let ours = || Job::run(&arguments.model, arguments.new, 1).map(|job| job.times.median);
    let mut before = ours()?;
    for (what, per_call) in [
        ("the job, five samples a call", 5),
        ("the job, one sample a call", 1),
    ] {
        let theirs = peer.job(per_call)?;
        // in turn, so that both meet the same machine: ours is the mean of a run before theirs and one after
        let after = ours()?;
        compare(what, theirs.full_s, (before + after) / 2.0, seconds);
        before = after;
        notes.push(format!(
            "{what}: {} of it timed, the rest scaled from that",
            seconds(theirs.timed_s)
        ));
    }
    notes.iter().for_each(|note| table.note(note));
    table.print();
    Ok(())
}

fn smollm_table(file: &Path, new: usize) -> Result<Table> {
    let (engine, load) = Engine::load(file)?;
    let mut table = Table::new("SmolLM2-135M", &["what", "measured"]);
    table.row(["load", &seconds(load)]);
    let step = engine.step(RUNS)?.median;
    table.row([
        &format!("step of {RUNS} rows"),
        &format!(
            "{}, {:.0} tokens a second",
            milliseconds(step),
            RUNS as f64 / step
        ),
    ]);
    let job = Job::run_one_prompt(file, new)?;
    table.row([
        &format!("{RUNS} runs of {new} tokens, whole program"),
        &seconds(job.times.median),
    ]);
    let shared = engine.shared_rows()?;
    let ratio = times(shared.tokens as f64 / shared.rows as f64);
    table.row([
        "greedy, 0.3 and 0.7 on a known fact: tokens ÷ rows computed",
        &format!("{} ÷ {} = {ratio}", shared.tokens, shared.rows),
    ]);
    Ok(table)
}
