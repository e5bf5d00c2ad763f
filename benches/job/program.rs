//! The job as a user starts it: the built program, from its start to its end, with the most memory it took.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::table::{Times, say};

/// How often the program's memory is looked at.
const LOOK: Duration = Duration::from_millis(10);

/// What the job took.
pub(crate) struct Job {
    /// How long.
    pub(crate) times: Times,
    /// The most memory that it had in use, where the system tells.
    pub(crate) peak_bytes: Option<u64>,
}

impl Job {
    /// Does the job `repeats` times: the two built-in prompts, the default settings, `new` tokens each.
    pub(crate) fn run(model: &Path, new: usize, repeats: u16) -> Result<Self> {
        let runs: Vec<_> = (0..repeats)
            .map(|_| once(model, new, &[]))
            .collect::<Result<_>>()?;
        let times: Vec<f64> = runs.iter().map(|run| run.0).collect();
        Ok(Self {
            times: Times::of(times),
            peak_bytes: runs.iter().filter_map(|run| run.1).max(),
        })
    }

    /// Does it once for a single English prompt.
    pub(crate) fn run_one_prompt(model: &Path, new: usize) -> Result<Self> {
        let (seconds, peak_bytes) = once(model, new, &["--prompt", super::engine::FRANCE])?;
        Ok(Self {
            times: Times::of(vec![seconds]),
            peak_bytes,
        })
    }
}

fn once(model: &Path, new: usize, arguments: &[&str]) -> Result<(f64, Option<u64>)> {
    say("doing the job");
    let start = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_logprobs"))
        .args(["--json", "--device", "cpu", "--ignore-eos"])
        .arg("--max-new-tokens")
        .arg(new.to_string())
        .arg("--model")
        .arg(model)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("cannot start the program")?;
    let mut peak = None;
    loop {
        peak = peak.max(peak_bytes(&child));
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "the program ended with {status}");
            return Ok((start.elapsed().as_secs_f64(), peak));
        }
        std::thread::sleep(LOOK);
    }
}

/// The most memory that a process has had in use so far. Linux counts it; the last look is a moment before the end.
fn peak_bytes(child: &Child) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
