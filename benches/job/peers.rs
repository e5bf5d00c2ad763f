//! transformers at the same work: the scripts of `benches/python`, each a process of its own that prints one JSON object.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::table::say;

/// A Python with torch and transformers, and what it is to run.
pub(crate) struct Transformers<'a> {
    pub(crate) python: &'a Path,
    pub(crate) model: &'a Path,
    pub(crate) dtype: &'a str,
    pub(crate) threads: usize,
    pub(crate) new: usize,
}

/// Times of its forward pass, in seconds.
pub(crate) struct PeerForward {
    pub(crate) load: f64,
    pub(crate) prefills: Vec<f64>,
    pub(crate) steps: Vec<f64>,
}

/// Times of the job, in seconds.
#[derive(Debug, Deserialize)]
pub(crate) struct PeerJob {
    /// What really ran.
    pub(crate) timed_s: f64,
    /// The whole job, scaled from that.
    pub(crate) full_s: f64,
}

#[derive(Deserialize)]
struct ForwardOutput {
    load_s: f64,
    prefill: BTreeMap<usize, f64>,
    step: BTreeMap<usize, f64>,
}

impl Transformers<'_> {
    /// Times the forward pass.
    pub(crate) fn forward(&self, prefills: &[usize], rows: &[usize]) -> Result<PeerForward> {
        let output: ForwardOutput = self.run(
            "forward.py",
            &["--prefill", &listed(prefills), "--rows", &listed(rows)],
        )?;
        let all = |times: &BTreeMap<usize, f64>, keys: &[usize]| {
            let time = |key| times.get(key).copied();
            let times: Option<Vec<f64>> = keys.iter().map(time).collect();
            times.context("forward.py left out what it was asked for")
        };
        Ok(PeerForward {
            load: output.load_s,
            prefills: all(&output.prefill, prefills)?,
            steps: all(&output.step, rows)?,
        })
    }

    /// Times a part of the job, `per_call` samples in one call of `generate`.
    pub(crate) fn job(&self, per_call: usize) -> Result<PeerJob> {
        let (per_call, new) = (per_call.to_string(), self.new.to_string());
        self.run("job.py", &["--per-call", &per_call, "--new", &new])
    }

    fn run<T: DeserializeOwned>(&self, script: &str, arguments: &[&str]) -> Result<T> {
        let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "benches", "python", script]
            .iter()
            .collect();
        say(&format!("{script} {}", arguments.join(" ")));
        let output = Command::new(self.python)
            .arg(&path)
            .arg(self.model)
            .args(["--dtype", self.dtype])
            .args(["--threads", &self.threads.to_string()])
            .args(arguments)
            .env("HF_HUB_OFFLINE", "1")
            .stdin(Stdio::null())
            .output()
            .with_context(|| self.python.display().to_string())?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{script}: {errors}");
        serde_json::from_slice(&output.stdout).with_context(|| format!("{script}: its output"))
    }
}

fn listed(numbers: &[usize]) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    numbers.join(",")
}
