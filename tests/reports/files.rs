//! Group 8: resources, files, processes. Signals, pipes, full disks and runs that start together are in `command`.

use std::ffi::OsStr;

use crate::program::{Program, Ran, fixture};

const ONE: [&str; 6] = ["-p", "hi", "--samples", "0", "--max-new-tokens", "1"];

/// B98: memory rose with every generated token. Hundreds of runs share what they have in common.
#[cfg(target_os = "linux")]
#[test]
fn many_runs_take_little_more_memory_than_few() {
    let program = Program::new();
    let peak = |samples: &str| {
        let mut command = program.command(&[
            "-p",
            "hi",
            "--max-new-tokens",
            "60",
            "--quiet",
            "--candidates",
            "1",
            "--threads",
            "1",
            "--model",
        ]);
        command.arg(fixture("qwen35")).args(["--samples", samples]);
        program.peak_kilobytes(&command)
    };
    let (few, many) = (peak("10"), peak("100"));
    // 5,000 steps more, each with its numbers in the record
    assert!(many < few + 100_000, "{few} kB and {many} kB");
}

/// B102, B103: names of models that are too long, or no file names at all.
#[cfg(unix)]
#[test]
fn any_name_of_a_model_gives_a_file_inside_the_folder() {
    let program = Program::new();
    let long = "m".repeat(240);
    for name in [
        &long,
        "a:b*c?",
        "CON",
        "-x",
        "new\nline",
        "模型.v1",
        ".hidden",
    ] {
        let model = program.copy("smollm", name);
        Ran::of(
            program
                .command(&ONE)
                .arg("--quiet")
                .arg("--model")
                .arg(model),
        )
        .success();
    }
    let model = program.copy("smollm", "d");
    Ran::of(
        program
            .command(&ONE)
            .arg("--quiet")
            .arg("--model")
            .arg(model.join("..").join("d").join(".")),
    )
    .success();
    let files = program.files("results");
    assert_eq!(files.len(), 8, "{files:?}");
    for file in &files {
        assert!(
            file.starts_with("logprobs_") && file.ends_with(".json") && file.len() < 160,
            "{file}"
        );
        assert!(!file.contains([':', '*', '?', '\n', '/', '\\']), "{file}");
    }
}

/// B106: an argument that is not UTF-8 was a panic.
#[cfg(unix)]
#[test]
fn arguments_and_files_that_are_not_utf8_are_refused_with_the_place_or_work() {
    use std::os::unix::ffi::OsStrExt;
    let program = Program::new();
    let smollm = fixture("smollm");
    let refused = |arguments: &[&OsStr], code, parts: &[&str]| {
        Ran::of(program.command(&["--model"]).arg(&smollm).args(arguments)).refused(code, parts);
    };
    let bytes = OsStr::from_bytes;
    refused(
        &[bytes(b"--prompt"), bytes(b"ab\xff")],
        2,
        &["not valid UTF-8 at byte 2"],
    );
    refused(
        &[bytes(b"--system"), bytes(b"\xff")],
        2,
        &["not valid UTF-8 at byte 0"],
    );
    program.write("p.txt", b"fine\nb\xffd\n");
    refused(
        &[bytes(b"--prompts-file"), bytes(b"p.txt")],
        1,
        &["p.txt: line 2 is not valid UTF-8"],
    );
    program
        .run(&[
            bytes(b"--model"),
            bytes(b"/tmp/m\xff"),
            bytes(b"-p"),
            bytes(b"x"),
        ])
        .refused(1, &["no such directory"]);
    let out = OsStr::from_bytes(b"r\xff.json");
    Ran::of(
        program
            .command(&ONE)
            .arg("--model")
            .arg(&smollm)
            .arg("--out")
            .arg(out),
    )
    .success();
    assert!(
        program.path(out).is_file(),
        "the name is kept byte for byte: {:?}",
        program.files(".")
    );
}

/// B107: file names in local time.
#[test]
fn the_time_in_a_files_name_is_utc() {
    let program = Program::new();
    let minute = || jiff::Timestamp::now().strftime("%Y%m%d_%H%M").to_string();
    let before = minute();
    for zone in ["Asia/Kolkata", "America/St_Johns", "UTC"] {
        let mut command = program.command(&ONE);
        Ran::of(
            command
                .env("TZ", zone)
                .arg("--model")
                .arg(fixture("smollm")),
        )
        .success();
    }
    let after = minute();
    for name in program.files("results") {
        assert!(name.contains(&before) || name.contains(&after), "{name}");
    }
}
