//! The program as a user starts it, in a folder of its own and without the caller's environment.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

use crate::schema::{self, Record};

/// Environment variables that change what the program prints or where it looks.
const VARIABLES: [&str; 27] = [
    "NO_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "COLUMNS",
    "TERM",
    "CI",
    "HF_HOME",
    "HF_HUB_CACHE",
    "HUGGINGFACE_HUB_CACHE",
    "HF_ENDPOINT",
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HUGGING_FACE_HUB_TOKEN",
    "XDG_CACHE_HOME",
    "RAYON_NUM_THREADS",
    "LOGPROBS_ISA",
    "SOURCE_DATE_EPOCH",
    "LOGPROBS_API_KEY",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "NO_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
];

/// A folder to start the program in.
pub(crate) struct Program {
    folder: TempDir,
}

/// What became of one start.
#[derive(Debug)]
pub(crate) struct Ran {
    /// Exit code; `None` when a signal ended it.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Program {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { folder }
    }

    /// Returns a path in the program's folder.
    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file into the program's folder.
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect(name);
        path
    }

    /// Copies a tiny checkpoint into the program's folder.
    pub(crate) fn copy(&self, fixture: &str, name: &str) -> PathBuf {
        let to = self.path(name);
        std::fs::create_dir_all(&to).expect(name);
        for entry in std::fs::read_dir(self::fixture(fixture)).expect(fixture) {
            let entry = entry.expect(fixture);
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect(fixture);
        }
        to
    }

    /// Returns a command that waits for its last arguments.
    pub(crate) fn command<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_logprobs"));
        for variable in VARIABLES {
            command.env_remove(variable);
        }
        command
            .env("HF_HUB_OFFLINE", "1")
            .env("HF_HOME", self.path("hf"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .args(arguments);
        command
    }

    pub(crate) fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Ran {
        Ran::of(&mut self.command(arguments))
    }

    /// Runs the main command with `--json` on a checkpoint and returns its record.
    pub(crate) fn record(&self, model: &Path, arguments: &[&str]) -> Record {
        self.json(model, arguments).success().record()
    }

    /// Runs the main command with `--json` on a checkpoint.
    pub(crate) fn json(&self, model: &Path, arguments: &[&str]) -> Ran {
        Ran::of(
            self.command(&["--json", "--model"])
                .arg(model)
                .args(arguments),
        )
    }

    /// Runs `temperature-step1` with `--json` on a checkpoint and returns its record.
    pub(crate) fn step1(&self, model: &Path, arguments: &[&str]) -> schema::TemperatureStep1 {
        let mut command = self.command(&["temperature-step1", "--json", "--model"]);
        let ran = Ran::of(command.arg(model).args(arguments)).success();
        serde_json::from_str(&ran.stdout).expect("the schema")
    }

    /// Runs a command and returns the most memory that it had, in kilobytes (Linux).
    pub(crate) fn peak_kilobytes(&self, command: &Command) -> u64 {
        let script = "\"$@\" & while kill -0 $! 2>/dev/null; do grep VmHWM /proc/$!/status 2>/dev/null; sleep 0.02; done | tail -1; wait $!";
        let mut shell = Command::new("bash");
        shell
            .args(["-c", script, "bash"])
            .arg(command.get_program())
            .args(command.get_args())
            .current_dir(self.path("."));
        let output = Ran::of(&mut shell).success();
        let peak = output.stdout.split_whitespace().nth(1);
        peak.and_then(|n| n.parse().ok()).expect("a peak")
    }

    /// Returns the names of the files in a folder of the program's folder, hidden ones included, in order.
    pub(crate) fn files(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.path(folder)) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .map(|entry| {
                entry
                    .expect(folder)
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }

    /// Reads a record that the program wrote.
    pub(crate) fn read(&self, name: &str) -> Record {
        let text = std::fs::read_to_string(self.path(name)).expect(name);
        serde_json::from_str(&text).expect("the schema")
    }

    /// Reads the only file of a folder.
    pub(crate) fn only_record(&self, folder: &str) -> Record {
        let files = self.files(folder);
        assert_eq!(files.len(), 1, "{files:?}");
        self.read(&format!("{folder}/{}", files[0]))
    }
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        command.output().expect("the program starts").into()
    }

    pub(crate) fn wait(child: Child) -> Self {
        child.wait_with_output().expect("the program ends").into()
    }

    /// Asserts that it went well.
    pub(crate) fn success(self) -> Self {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self
    }

    /// Asserts that it ended with `code` and that standard error has all of `parts`; returns standard error.
    pub(crate) fn refused(self, code: i32, parts: &[&str]) -> String {
        assert_eq!(self.code, Some(code), "{}", self.stderr);
        for part in parts {
            assert!(
                self.stderr.contains(part),
                "no {part:?} in: {}",
                self.stderr
            );
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self.stderr
    }

    /// Reads standard output as a record.
    pub(crate) fn record(&self) -> Record {
        serde_json::from_str(&self.stdout).expect("the schema")
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }
}

/// Returns the path of a fixture.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// Sends a signal to a program as soon as it handles that signal (Linux).
pub(crate) fn send_when_handled(child: &mut Child, signal: &str, number: u32) {
    let id = child.id().to_string();
    let is_handled = || {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        caught.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
    };
    while !is_handled() {
        let ended = child.try_wait().expect("it is there");
        assert!(ended.is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let sent = Command::new("kill").args([signal, &id]).status();
    assert!(sent.expect("kill runs").success());
}
