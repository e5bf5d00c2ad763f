//! The manners of the command line: what goes where, exit codes, files, signals, hostile text, colours and widths.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

use crate::program::{Program, Ran, fixture};
use crate::schema::{Entry, Record, Run};

/// Short runs of a tiny checkpoint.
const SHORT: [&str; 6] = [
    "--max-new-tokens",
    "4",
    "--samples",
    "2",
    "--temps",
    "0.7,1.5",
];

/// The arguments of a main command on a tiny checkpoint.
fn arguments(more: &[&str]) -> Vec<String> {
    let model = fixture("smollm").to_string_lossy().into_owned();
    let fixed = ["--model".to_owned(), model].into_iter();
    fixed
        .chain(SHORT.iter().chain(more).map(|&text| text.to_owned()))
        .collect()
}

#[test]
fn the_main_command_prints_a_table_and_samples_and_writes_one_record() {
    let program = Program::new();
    let ran = program.run(&arguments(&["-p", "hello"])).success();
    for part in [
        "step  token",
        "n90",
        "runners-up",
        "greedy",
        "temperature 0.7",
        "temperature 1.5",
        "top_p 0.9",
    ] {
        assert!(ran.stdout.contains(part), "no {part:?} in: {}", ran.stdout);
    }
    let files = program.files("results");
    assert_eq!(files.len(), 1, "{files:?}");
    let time = files[0]
        .strip_prefix("logprobs_smollm_cpu_")
        .and_then(|rest| rest.strip_suffix(".json"))
        .expect("the documented name");
    let is_time = time.bytes().enumerate().all(|(place, byte)| match place {
        8 => byte == b'_',
        _ => byte.is_ascii_digit(),
    });
    assert!(time.len() == 13 && is_time, "{time}");
    assert_eq!(ran.stderr, format!("written to results/{}\n", files[0]));
    let record = program.only_record("results");
    assert_eq!(
        (record.schema, record.program.as_str()),
        (1, "logprobs 0.1.0")
    );
    assert_eq!(record.done(0).sweeps.len(), 3);
}

/// Without a prompt the two built-in ones run, to the letter.
#[test]
fn without_a_prompt_the_built_in_pair_runs() {
    let program = Program::new();
    let record = program.record(
        &fixture("smollm"),
        &["--samples", "0", "--max-new-tokens", "1"],
    );
    let prompts = [0, 1].map(|index| record.done(index).prompt.clone());
    assert_eq!(
        prompts,
        [
            "法国的首都是哪里？请用一句话回答。",
            "推荐一家上海的独立咖啡馆，给出店名和具体地址，用一句话回答。"
        ]
    );
}

#[test]
fn json_puts_the_record_alone_on_stdout_and_writes_no_file() {
    let program = Program::new();
    for to_stdout in [&["--json"][..], &["--out", "-"]] {
        let ran = program
            .run(&arguments(&[&["-p", "hello"], to_stdout].concat()))
            .success();
        assert_eq!(ran.record().prompts.len(), 1);
        assert_eq!(ran.stderr, "");
        assert_eq!(program.files("."), [""; 0]);
    }
}

#[test]
fn quiet_prints_nothing_and_writes_the_file() {
    let program = Program::new();
    let ran = program
        .run(&arguments(&["-p", "hello", "--quiet"]))
        .success();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
    assert_eq!(program.only_record("results").prompts.len(), 1);
}

#[test]
fn the_same_command_gives_the_same_bytes_on_screen_and_in_the_file() {
    let program = Program::new();
    let both = ["a.json", "b.json"].map(|name| {
        let ran = program
            .run(&arguments(&["-p", "hello", "-p", "你好", "--out", name]))
            .success();
        (ran.stdout, std::fs::read(program.path(name)).expect(name))
    });
    assert!(both[0] == both[1]);
}

/// The record names no clock, no place on this machine and no thread count.
#[test]
fn a_record_says_nothing_of_the_machine() {
    let program = Program::new();
    let ran = program
        .run(&arguments(&["-p", "hello", "--json", "--threads", "1"]))
        .success();
    assert!(
        !ran.stdout.contains('/') && !ran.stdout.contains("thread"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_record_that_is_read_and_written_again_is_the_same_file() {
    let program = Program::new();
    let ran = program.run(&arguments(&["-p", "hello", "-p", "", "--json", "--raw"]));
    assert_eq!(
        ran.code,
        Some(1),
        "an empty raw prompt is an entry with an error"
    );
    let record: logprobs::record::Record = serde_json::from_str(&ran.stdout).expect("a record");
    let mut written = Vec::new();
    logprobs::report::json::write(&record, &mut written).expect("a vector takes everything");
    assert_eq!(String::from_utf8(written).expect("UTF-8"), ran.stdout);
}

#[test]
fn only_sampled_steps_say_what_the_sampler_saw() {
    let program = Program::new();
    let record = program.record(
        &fixture("smollm"),
        &[
            "-p",
            "hello",
            "--setting",
            "top_k=3",
            "--setting",
            "temperature=2",
            "--max-new-tokens",
            "4",
        ],
    );
    let done = record.done(0);
    assert!(done.greedy.steps.iter().all(|step| step.sampling.is_none()));
    for (sweep, kept) in done.sweeps.iter().zip([3, 320]) {
        for step in sweep.runs.iter().flat_map(|run| &run.steps) {
            let sampling = step.sampling.expect("a sampled step");
            assert_eq!(sampling.kept, kept);
            assert!(sampling.prob > 0.0 && sampling.prob <= 1.0);
            assert!(step.rank <= kept && sampling.kept_mass >= step.prob);
        }
    }
    assert_eq!(
        done.sweeps[1].runs[0].steps[0]
            .sampling
            .map(|s| s.kept_mass),
        Some(1.0)
    );
}

/// To the last bit where the model's sums are (`reports::determinism`); in candle's matrix products a row's rounding depends
/// on how many rows there are.
#[test]
fn a_run_alone_is_that_run_of_the_batch() {
    let program = Program::new();
    for name in ["qwen35", "llama"] {
        let more = ["-p", "Where is Paris?", "--max-new-tokens", "12"];
        let all = program.record(&fixture(name), &more);
        for index in [0u32, 3] {
            let alone = program.record(
                &fixture(name),
                &[&more[..], &["--run", &index.to_string()]].concat(),
            );
            assert_eq!(alone.settings.run, Some(index));
            let sweeps = all.done(0).sweeps.iter().zip(&alone.done(0).sweeps);
            for (all, alone) in sweeps {
                assert_eq!(alone.runs.len(), 1);
                same_runs(&alone.runs[0], &all.runs[index as usize]);
            }
        }
    }
}

#[test]
fn a_file_of_prompts_and_standard_input_are_read_alike() {
    let program = Program::new();
    let lines = "\u{feff}first\r\n\n second \n第三";
    program.write("prompts.txt", lines);
    let from_file = program
        .run(&arguments(&["--prompts-file", "prompts.txt", "--json"]))
        .success();
    let mut child = program
        .command(&arguments(&["--prompts-file", "-", "--json"]))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin
        .write_all(lines.as_bytes())
        .expect("the program reads");
    drop(stdin);
    assert_eq!(Ran::wait(child).success().stdout, from_file.stdout);
    let record = from_file.record();
    let prompts: Vec<_> = (0..3)
        .map(|index| record.done(index).prompt.as_str())
        .collect();
    assert_eq!(prompts, ["first", " second ", "第三"]);
}

#[test]
fn a_prompt_that_cannot_be_run_is_an_entry_with_its_error_and_the_others_run() {
    let program = Program::new();
    let long = format!(
        "{{\"prompt\": \"{}\", \"id\": \"long\"}}",
        "word ".repeat(1000)
    );
    let lines = [
        r#"{"prompt": "a", "id": "first", "system": "Be brief."}"#,
        r#"{"prompt": "\ud835"}"#,
        "nonsense",
        &long,
        r#"{"prompt": "b"}"#,
    ];
    program.write("prompts.jsonl", lines.join("\n"));
    let ran = program.run(&arguments(&["--prompts-file", "prompts.jsonl"]));
    ran.refused(
        1,
        &[
            "prompt 2 could not be run: line 2, column ",
            "prompt 3 could not be run: line 3, column ",
            "prompt 4 could not be run: the prompt has 4014 tokens",
            "the model takes 512",
            "3 of 5 prompts could not be run",
        ],
    );
    let record = program.only_record("results");
    let first = record.done(0);
    assert_eq!(
        (first.id.as_deref(), first.system.as_deref()),
        (Some("first"), Some("Be brief."))
    );
    assert!(first.rendered.contains("system\nBe brief."));
    assert!(
        matches!(&record.prompts[3], Entry::Failed(failed) if failed.id.as_deref() == Some("long"))
    );
    assert_eq!(record.done(4).prompt, "b");
    assert!(record.error(1).contains("line 2"));
}

#[test]
fn wrong_usage_is_2_and_a_failure_is_1() {
    let program = Program::new();
    program.run(&["--nonsense"]).refused(2, &["--nonsense"]);
    program
        .run(&["--temps", "-1"])
        .refused(2, &["temperature -1 is out of range"]);
    program
        .run(&["--model", "./no/such", "-p", "x"])
        .refused(1, &["no such directory"]);
    program.run(&["--help"]).success();
    assert!(
        program
            .run(&["--version"])
            .success()
            .stdout
            .starts_with("logprobs 0.1")
    );
}

#[test]
fn the_default_model_offline_and_not_cached_is_one_sentence_and_no_wait() {
    let stderr = Program::new().run(&["-p", "x"]).refused(
        1,
        &[
            "error: `Qwen/Qwen3.5-2B` is not in the cache (looked in ",
            "models--Qwen--Qwen3.5-2B",
            "--offline",
        ],
    );
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(
        !cfg!(feature = "demo") || stderr.contains("--model demo"),
        "{stderr}"
    );
}

#[test]
fn a_type_that_the_cpu_does_not_compute_in_is_refused_before_loading() {
    for dtype in ["bf16", "f16"] {
        let ran = Program::new().run(&arguments(&[
            "-p", "x", "--device", "cpu", "--dtype", dtype,
        ]));
        ran.refused(
            1,
            &[
                &format!("--dtype {dtype} is for GPUs"),
                "expected auto or f32",
            ],
        );
    }
}

/// A batch that goes on for a while, and its standard output.
#[cfg(unix)]
fn start_batch(program: &Program) -> (Child, BufReader<std::process::ChildStdout>) {
    program.write("prompts.txt", "Name a colour.\n".repeat(5000));
    let mut child = program
        .command(&arguments(&[
            "--prompts-file",
            "prompts.txt",
            "--out",
            "r.json",
        ]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let stdout = child.stdout.take().expect("a pipe");
    (child, BufReader::new(stdout))
}

#[cfg(unix)]
#[test]
fn an_interrupted_batch_writes_what_is_complete() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        let program = Program::new();
        let (child, mut stdout) = start_batch(&program);
        let mut line = String::new();
        while !line.starts_with("Prompt 3") {
            line.clear();
            assert!(
                stdout.read_line(&mut line).expect("text") > 0,
                "it ended by itself"
            );
        }
        let pid = child.id().to_string();
        let sent = std::process::Command::new("kill")
            .args([signal, &pid])
            .status();
        assert!(sent.expect("kill runs").success());
        let mut rest = line;
        stdout.read_to_string(&mut rest).expect("text");
        let stderr = Ran::wait(child).refused(
            code,
            &["interrupted: ", " of 5000 prompts are complete", "r.json"],
        );
        let record = program.read("r.json");
        let complete = record.prompts.len();
        assert!((3..5000).contains(&complete), "{complete}");
        assert!(
            stderr.contains(&format!("interrupted: {complete} of")),
            "{stderr}"
        );
        assert!(
            rest.contains(&format!("Prompt {complete}: "))
                && !rest.contains(&format!("Prompt {}: ", complete + 1))
        );
        assert_eq!(program.files("."), ["prompts.txt", "r.json"]);
    }
}

#[test]
fn a_closed_pipe_is_success_and_the_file_is_complete() {
    let program = Program::new();
    program.write("prompts.txt", "Name a colour.\n".repeat(40));
    let mut child = program
        .command(&arguments(&["--prompts-file", "prompts.txt"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe"))
        .read_line(&mut line)
        .expect("text");
    Ran::wait(child).success();
    assert_eq!(program.only_record("results").prompts.len(), 40);
}

/// As with `2>&1 | head -1`: messages into a closed pipe do no harm.
#[test]
fn a_closed_stderr_is_success_too() {
    let program = Program::new();
    let mut child = program
        .command(&arguments(&["-p", "hello", "--raw", "--threads", "1"]))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stderr.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert_eq!(program.files("results").len(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_stdout_is_an_error_and_the_file_is_written_all_the_same() {
    let full = || {
        File::options()
            .write(true)
            .open("/dev/full")
            .expect("/dev/full")
    };
    let program = Program::new();
    let ran = Ran::of(program.command(&arguments(&["-p", "hello"])).stdout(full()));
    ran.refused(
        1,
        &[
            "written to results/",
            "error: standard output: No space left",
        ],
    );
    assert_eq!(program.only_record("results").prompts.len(), 1);
    let ran = Ran::of(
        program
            .command(&arguments(&["-p", "hello", "--json"]))
            .stdout(full()),
    );
    ran.refused(1, &["error: standard output: No space left"]);
}

#[test]
fn out_is_a_file_a_folder_or_standard_output_and_nothing_is_overwritten() {
    let program = Program::new();
    let run = |out: &str| program.run(&arguments(&["-p", "hello", "--quiet", "--out", out]));
    run("r.json").success();
    let written = std::fs::read(program.path("r.json")).expect("r.json");
    run("r.json").refused(1, &["r.json: exists already and is not overwritten"]);
    assert_eq!(
        std::fs::read(program.path("r.json")).expect("r.json"),
        written
    );
    run("missing/parent/r.json").success();
    assert_eq!(program.files("missing/parent"), ["r.json"]);
    run("new/folder/").success();
    run("new/folder").success();
    assert_eq!(program.files("new/folder").len(), 2);
    run("r.json/x").refused(
        1,
        &["r.json: is a file (expected a folder for the results)"],
    );
    std::fs::create_dir(program.path("folder.json")).expect("a folder");
    run("folder.json").success();
    assert_eq!(
        program.files("folder.json").len(),
        1,
        "a folder stays one, whatever its name"
    );
}

#[test]
fn runs_that_start_together_all_keep_their_file() {
    let program = Program::new();
    let children: Vec<Child> = (0..4)
        .map(|seed| {
            let seed = seed.to_string();
            program
                .command(&arguments(&["-p", "hello", "--quiet", "--seed", &seed]))
                .stderr(Stdio::piped())
                .spawn()
                .expect("the program starts")
        })
        .collect();
    for child in children {
        Ran::wait(child).success();
    }
    let mut seeds: Vec<u64> = program
        .files("results")
        .iter()
        .map(|name| program.read(&format!("results/{name}")).settings.seed)
        .collect();
    seeds.sort_unstable();
    assert_eq!(seeds, [0, 1, 2, 3]);
}

/// Characters that move a cursor, change a terminal or turn a line around.
pub(crate) fn is_hostile(c: char) -> bool {
    (c.is_control() && c != '\n')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
}

#[cfg(unix)]
#[test]
fn hostile_text_never_reaches_the_terminal_as_it_is() {
    let program = Program::new();
    let hostile = "\u{1b}]0;x\u{7}\u{1b}[31m\u{9b}2J\u{202e}evil\u{2066}\r\n\u{7f}";
    let model = program.copy("smollm", &format!("model{hostile}"));
    let model = model.to_str().expect("UTF-8");
    let quoted = serde_json::to_string(hostile).expect("JSON");
    program.write(
        "p.jsonl",
        format!(
            "{{\"prompt\": {quoted}, \"id\": {quoted}, \"system\": {quoted}}}\n{{{quoted}: 1}}\n"
        ),
    );
    let file = format!("{hostile}.json");
    for line in [
        vec![
            "--model",
            model,
            "-p",
            hostile,
            "--prompts-file",
            "p.jsonl",
            "--system",
            hostile,
            "--max-new-tokens",
            "20",
        ],
        vec![
            "--model",
            model,
            "-p",
            hostile,
            "--json",
            "--max-new-tokens",
            "20",
        ],
        vec![
            "--model", model, "-p", "x", "--out", &file, "--color", "never",
        ],
        vec!["temperature-step1", "--model", model, "-p", hostile],
        vec!["--model", hostile, "-p", "x"],
        vec!["--prompts-file", hostile],
        vec!["--temps", hostile],
        vec!["--setting", hostile],
        vec![hostile],
    ] {
        let ran = program.run(&line);
        for text in [&ran.stdout, &ran.stderr] {
            let found: Vec<char> = text.chars().filter(|&c| is_hostile(c)).collect();
            assert!(found.is_empty(), "{line:?} printed {found:?}: {text}");
        }
    }
    assert_eq!(program.files("results").len(), 1);
}

#[test]
fn colour_follows_the_environment_and_the_flag() {
    let program = Program::new();
    let is_coloured = |variables: &[(&str, &str)], color: &str| {
        let mut command = program.command(&arguments(&["-p", "hello", "--color", color]));
        Ran::of(command.envs(variables.iter().copied()))
            .success()
            .stdout
            .contains('\u{1b}')
    };
    assert!(!is_coloured(&[], "auto"), "a pipe gets none");
    assert!(is_coloured(&[("CLICOLOR_FORCE", "1")], "auto"));
    assert!(!is_coloured(
        &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")],
        "auto"
    ));
    assert!(is_coloured(&[], "always"));
    assert!(is_coloured(
        &[("NO_COLOR", "1"), ("TERM", "dumb")],
        "always"
    ));
    assert!(!is_coloured(&[("CLICOLOR_FORCE", "1")], "never"));
}

#[test]
fn a_narrow_terminal_gets_fewer_runners_up_and_no_broken_row() {
    use unicode_width::UnicodeWidthStr;
    let program = Program::new();
    for columns in [30, 50, 80] {
        let mut command = program.command(&arguments(&["-p", "hello", "--candidates", "30"]));
        let ran = Ran::of(command.env("COLUMNS", columns.to_string())).success();
        let table = ran.stdout.split("runners-up").nth(1).expect("a table");
        let rows: Vec<_> = table
            .lines()
            .skip(1)
            .take_while(|row| !row.is_empty())
            .collect();
        assert_eq!(rows.len(), 4);
        assert!(
            rows.iter().all(|row| row.width() <= columns),
            "{columns}: {table}"
        );
    }
}

#[test]
fn step1_at_temperature_one_is_step_one_of_the_main_command_bit_for_bit() {
    let program = Program::new();
    for name in ["qwen35", "smollm", "qwen2"] {
        let model = fixture(name);
        let main = program.record(
            &model,
            &["-p", "hello", "--samples", "0", "--candidates", "9"],
        );
        let step1 = program.step1(
            &model,
            &["-p", "hello", "--candidates", "9", "--temps", "2,1"],
        );
        let step = &main.done(0).greedy.steps[0];
        assert_eq!(step1.prompt_token_ids, main.done(0).prompt_token_ids);
        assert_eq!(step1.candidates.len(), 9);
        for (tempered, candidate) in step1.candidates.iter().zip(&step.top_logprobs) {
            assert_eq!(tempered.token_id, candidate.token_id);
            assert_eq!(tempered.probs[1].to_bits(), candidate.prob.to_bits());
        }
        assert_eq!(step1.candidates[0].logit.to_bits(), step.logit.to_bits());
        for (index, rest) in step1.rest.iter().enumerate() {
            let listed: f32 = step1
                .candidates
                .iter()
                .map(|candidate| candidate.probs[index])
                .sum();
            assert!((listed + rest - 1.0).abs() < 1e-6);
        }
    }
}

#[test]
fn the_file_of_step1_is_written_anew_in_its_place() {
    let program = Program::new();
    let model = fixture("smollm");
    let run = |temps: &str| {
        let mut command = program.command(&["temperature-step1", "--temps", temps, "--model"]);
        Ran::of(command.arg(&model)).success()
    };
    let first = run("0.5,1");
    assert_eq!(
        first.stderr,
        "written to sample_output/temperature_step1_cpu.json\n"
    );
    assert!(
        first.stdout.contains("法国的首都是哪里"),
        "the first built-in prompt"
    );
    let name = "sample_output/temperature_step1_cpu.json";
    let before = std::fs::read(program.path(name)).expect(name);
    run("1,3");
    let after = std::fs::read(program.path(name)).expect(name);
    assert!(before != after);
    run("0.5,1");
    assert!(std::fs::read(program.path(name)).expect(name) == before);
    assert_eq!(
        program.files("sample_output"),
        ["temperature_step1_cpu.json"]
    );
}

#[test]
fn every_shell_gets_a_completion_script() {
    let program = Program::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = program.run(&["completions", shell]).success();
        assert!(
            ran.stdout.contains("temperature-step1") && ran.stdout.contains("max-new-tokens"),
            "{shell}"
        );
    }
    program.run(&["completions", "tcsh"]).refused(2, &["tcsh"]);
}

#[test]
fn the_number_of_threads_does_not_decide_a_reply() {
    let program = Program::new();
    let [one, two] = ["1", "2"].map(|threads| {
        program.record(
            &fixture("qwen35"),
            &[
                "-p",
                "hello",
                "--max-new-tokens",
                "16",
                "--threads",
                threads,
            ],
        )
    });
    same(&one, &two);
}

/// Asserts that two records have the same runs, with the same numbers to the last bit.
pub(crate) fn same(a: &Record, b: &Record) {
    assert_eq!(a.runs().count(), b.runs().count());
    for (a, b) in a.runs().zip(b.runs()) {
        same_runs(a, b);
    }
}

fn same_runs(a: &Run, b: &Run) {
    assert_eq!((a.run, a.ids(), &a.text), (b.run, b.ids(), &b.text));
    for (a, b) in a.steps.iter().zip(&b.steps) {
        let bits = |step: &crate::schema::Step| [step.logit.to_bits(), step.logprob.to_bits()];
        assert_eq!(bits(a), bits(b));
    }
}

/// The program itself fits into the limit, and no model does.
#[cfg(target_os = "linux")]
#[test]
fn too_little_memory_is_said_before_the_weights_are_read() {
    let program = Program::new();
    let mut command = std::process::Command::new("bash");
    command
        .args(["-c", "ulimit -v 200000; exec \"$@\"", "bash"])
        .arg(env!("CARGO_BIN_EXE_logprobs"))
        .args(arguments(&["-p", "hello", "--threads", "1"]))
        .current_dir(program.path("."));
    Ran::of(&mut command).refused(
        1,
        &[
            "error: the model needs about 0.3 GiB of memory, ",
            " is available",
        ],
    );
    assert_eq!(program.files("."), [""; 0]);
}
