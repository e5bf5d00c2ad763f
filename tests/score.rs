//! `score`: the trace of a given text agrees with the runs that the main command makes, and keeps its manners.

use std::path::Path;
use std::process::Stdio;

use crate::program::{Program, Ran, fixture};
use crate::schema::{Run, Score};
use crate::smollm;

fn ran(program: &Program, model: &Path, arguments: &[&str]) -> Ran {
    let mut command = program.command(&["score", "--json", "--model"]);
    Ran::of(command.arg(model).args(arguments))
}

fn score(model: &Path, arguments: &[&str]) -> Score {
    let ran = ran(&Program::new(), model, arguments).success();
    serde_json::from_str(&ran.stdout).expect("the schema")
}

/// The ids, and all numbers to the bit.
fn assert_same_numbers(score: &Score, run: &Run, what: &str) {
    assert_eq!(score.steps.len(), run.steps.len(), "{what}");
    for (scored, made) in score.steps.iter().zip(&run.steps) {
        assert_eq!(scored.token_id, made.token_id, "{what}");
        assert_eq!(
            (scored.logprob, scored.logit, scored.prob, scored.rank),
            (
                Some(made.logprob),
                Some(made.logit),
                Some(made.prob),
                Some(made.rank)
            ),
            "{what}"
        );
        assert_eq!(
            (scored.margin, scored.entropy_bits, scored.mass_count),
            (made.margin, Some(made.entropy_bits), Some(made.mass_count)),
            "{what}"
        );
        assert_eq!(scored.top_logprobs, made.top_logprobs, "{what}");
        assert_eq!((&scored.token, &scored.bytes), (&made.token, &made.bytes));
    }
}

/// Every run of a record, scored by its ids, has its recorded numbers.
fn assert_record_scores_to_itself(model: &Path, more: &[&str]) {
    let program = Program::new();
    let arguments = ["-q", "--out", "r.json", "--model"];
    let mut command = program.command(&arguments);
    Ran::of(command.arg(model).args(more)).success();
    let record = program.read("r.json");
    let check = |prompt: usize, sweep: Option<usize>, run: &Run| {
        let (prompt, index) = (prompt.to_string(), run.run.to_string());
        let mut arguments = vec!["--record", "r.json", "--of-prompt", &prompt];
        let number = sweep.map(|sweep| (sweep + 1).to_string());
        if let Some(sweep) = &number {
            arguments.extend(["--sweep", sweep, "--run", &index]);
        }
        let what = arguments.join(" ");
        let ran = ran(&program, model, &arguments).success();
        let score: Score = serde_json::from_str(&ran.stdout).expect("the schema");
        assert_same_numbers(&score, run, &what);
        assert_eq!((&score.text, &score.marked), (&run.text, &run.marked));
        assert_eq!(score.end, run.finish_reason == "stop");
        let recorded = score.recorded.expect("it says which run it was");
        assert_eq!(
            (recorded.prompt.to_string(), recorded.run),
            (prompt, run.run)
        );
        assert_eq!(recorded.largest_difference, Some(0.0), "{what}");
        let sum: f64 = run.steps.iter().map(|step| f64::from(step.logprob)).sum();
        let total = score.totals.sum_logprob.expect("every token has a number");
        assert!((total - sum).abs() <= 1e-9, "{total} {sum}");
    };
    for index in 0..record.prompts.len() {
        let done = record.done(index);
        check(index + 1, None, &done.greedy);
        for (sweep, of) in done.sweeps.iter().enumerate() {
            of.runs
                .iter()
                .for_each(|run| check(index + 1, Some(sweep), run));
        }
    }
}

#[test]
fn a_recorded_run_scores_to_its_recorded_numbers() {
    let short = [
        "-p",
        "Where is Paris?",
        "-p",
        "你好",
        "--max-new-tokens",
        "7",
        "--samples",
        "2",
        "--temps",
        "0.7,1.5",
        "--candidates",
        "3",
        "--mass",
        "0.5",
    ];
    for name in ["qwen35", "smollm", "qwen2", "qwen3", "llama"] {
        assert_record_scores_to_itself(&fixture(name), &short);
    }
}

#[test]
fn a_recorded_run_of_a_real_model_scores_to_its_recorded_numbers() {
    let Some(model) = smollm::model() else { return };
    let prompt = "What is the capital of France? Answer in one sentence.";
    let short = [
        "-p",
        prompt,
        "--samples",
        "2",
        "--temps",
        "1",
        "--max-new-tokens",
        "24",
    ];
    assert_record_scores_to_itself(model, &short);
}

/// A greedy reply given as a completion, with its end, is the greedy run again.
#[test]
fn a_greedy_reply_given_back_is_the_greedy_run() {
    let Some(model) = smollm::model() else { return };
    let prompt = "What is the capital of France? Answer in one sentence.";
    let record = Program::new().record(model, &["-p", prompt, "--samples", "0"]);
    let greedy = &record.done(0).greedy;
    let completed = ["-p", prompt, "--completion", &greedy.text];
    let with_end = score(model, &[&completed[..], &["--end"]].concat());
    assert_same_numbers(&with_end, greedy, "with the end");
    assert!(with_end.end);
    let open = score(model, &completed);
    assert!(!open.end);
    assert_eq!(open.steps, with_end.steps[..with_end.steps.len() - 1]);
    assert_eq!(open.marked, greedy.marked);
    assert_eq!(open.totals.bytes, greedy.text.len());
}

#[test]
fn the_first_token_of_a_whole_text_is_null_and_the_others_are_those_of_the_prompt_before_them() {
    let text = "Where is Paris?";
    let whole = score(&fixture("qwen35"), &["--raw", "--text", text]);
    let first = &whole.steps[0];
    assert_eq!(
        (first.logit, first.logprob, first.prob, first.rank),
        (None, None, None, None)
    );
    assert!(first.top_logprobs.is_empty() && first.entropy_bits.is_none());
    assert!(whole.steps.len() > 2 && whole.prompt.is_none());
    assert!(whole.steps[1..].iter().all(|step| step.rank.is_some()));
    assert_eq!(whole.totals.tokens, whole.steps.len() - 1);
    // the greedy token after a text is the best candidate of the step that follows the text
    let record = Program::new().record(
        &fixture("qwen35"),
        &[
            "--raw",
            "-p",
            "Where is",
            "--samples",
            "0",
            "--max-new-tokens",
            "1",
        ],
    );
    let next = score(
        &fixture("qwen35"),
        &["--raw", "-p", "Where is", "--completion", " Paris"],
    );
    assert_eq!(
        next.steps[0].top_logprobs,
        record.done(0).greedy.steps[0].top_logprobs
    );
}

#[test]
fn a_file_is_a_whole_text_or_the_completion_and_a_dash_is_standard_input() {
    let program = Program::new();
    program.write("text", "Where is Paris?\n");
    let model = fixture("qwen35");
    let of = |arguments: &[&str]| -> Score {
        let ran = ran(&program, &model, arguments).success();
        serde_json::from_str(&ran.stdout).expect("the schema")
    };
    let given = of(&["--text", "Where is Paris?"]);
    assert_eq!(of(&["--raw", "--file", "text"]), given);
    let completed = of(&["-p", "hi", "--completion", "Where is Paris?"]);
    assert_eq!(of(&["-p", "hi", "--file", "text"]), completed);
    let model = model.to_string_lossy().into_owned();
    let arguments = ["score", "--json", "--model", &model, "--file", "-"];
    let mut command = program.command(&arguments);
    let input = std::fs::File::open(program.path("text")).expect("just written");
    let ran = Ran::of(command.stdin(Stdio::from(input))).success();
    let piped: Score = serde_json::from_str(&ran.stdout).expect("the schema");
    assert_eq!(piped, given);
}

#[test]
fn named_candidates_are_found_wherever_they_are_and_sequences_say_so() {
    let model = fixture("qwen35");
    let prompt = ["--raw", "-p", "Where is"];
    let named = |more: &[&str]| score(&model, &[&prompt[..], more].concat());
    let all = named(&["--completion", " Paris", "--candidates", "100000"]);
    let vocabulary = &all.steps[0].top_logprobs;
    // a letter is one token whatever stands before it
    let is_letter = |text: &str| text.len() == 1 && text.as_bytes()[0].is_ascii_alphabetic();
    let last = vocabulary.iter().rev().find(|c| is_letter(&c.token));
    let last = last.expect("the alphabet is in every vocabulary");
    let rank = 1 + vocabulary
        .iter()
        .position(|c| c.token_id == last.token_id)
        .expect("listed");
    let word = "a few words";
    let found = named(&["--candidate", &last.token, "--candidate", word]);
    assert!(found.steps.is_empty());
    let [one, sequence] = &found.named[..] else {
        panic!("two were named");
    };
    assert_eq!((one.is_sequence, one.rank), (false, Some(rank)));
    assert_eq!(one.logprob, Some(last.logprob));
    assert!(rank > 5, "beyond what is listed by default");
    assert_eq!((sequence.is_sequence, sequence.rank), (true, None));
    assert!(sequence.tokens.len() > 1 && sequence.steps.is_empty());
    // a sequence is what it would be as the text
    let as_text = named(&["--completion", word]);
    let sum = as_text.totals.sum_logprob.expect("numbers");
    let logprob = sequence.logprob.expect("a number");
    assert!((f64::from(logprob) - sum).abs() < 1e-4, "{logprob} {sum}");
    let ranks: Vec<_> = as_text.steps.iter().map(|step| step.rank).collect();
    assert_eq!(
        ranks,
        sequence
            .tokens
            .iter()
            .map(|t| Some(t.rank))
            .collect::<Vec<_>>()
    );
    // beside a text, at each of its steps
    let beside = named(&["--completion", " Paris?", "--candidate", &last.token]);
    let steps = &beside.named[0].steps;
    assert_eq!(steps.len(), beside.steps.len());
    assert_eq!(steps[0].map(|odds| odds.rank), Some(rank));
}

/// Text in a chat is text, whatever it contains; a candidate may be a control token.
#[test]
fn control_tokens_are_parsed_under_raw_and_in_candidates() {
    let model = fixture("qwen35");
    let chat = score(&model, &["-p", "hi", "--completion", "<|im_end|>"]);
    assert!(chat.steps.len() > 1 && chat.steps.iter().all(|step| !step.special));
    let raw = ["--raw", "-p", "hi", "--completion", "<|im_end|>"];
    let parsed = score(&model, &raw);
    assert_eq!(parsed.steps.len(), 1);
    assert!(parsed.steps[0].special && parsed.totals.bits_per_byte.is_none());
    let plain = score(&model, &[&raw[..], &["--plain-text"]].concat());
    assert_eq!(plain.steps.len(), chat.steps.len());
    let named = score(&model, &["-p", "hi", "--candidate", "<|im_end|>"]);
    assert!(named.named[0].tokens[0].special && !named.named[0].is_sequence);
}

#[test]
fn what_cannot_be_scored_is_said_in_a_sentence() {
    let program = Program::new();
    let model = fixture("smollm");
    program.write("r.json", "{}");
    let long = "a b ".repeat(3000);
    for (arguments, code, parts) in [
        (vec!["--text", ""], 1, &["the text has no tokens"][..]),
        (
            vec!["-p", "x", "--completion", ""],
            1,
            &["completion has no tokens"],
        ),
        (
            vec!["--text", &long],
            1,
            &["the text has", "the model takes"],
        ),
        (vec!["--record", "no.json"], 1, &["no.json: cannot be read"]),
        (vec!["--record", "r.json"], 1, &["r.json: is no record"]),
        (vec!["--file", "none"], 1, &["none: cannot be read"]),
        (vec!["-p", "x"], 2, &["nothing to score"]),
        (vec![], 2, &["nothing to score"]),
        (vec!["--record", "r.json", "--run", "0"], 2, &["--sweep"]),
    ] {
        ran(&program, &model, &arguments).refused(code, parts);
    }
    let mut command = program.command(&["-q", "--out", "run.json", "-p", "hi", "--model"]);
    Ran::of(
        command
            .arg(&model)
            .args(["--max-new-tokens", "2", "--samples", "1"]),
    )
    .success();
    for (arguments, part) in [
        (
            vec!["--of-prompt", "2"],
            "there is no prompt 2 (expected 1 to 1)",
        ),
        (
            vec!["--sweep", "9"],
            "there is no group 9 of samples (expected 1 to 5)",
        ),
        (
            vec!["--sweep", "1", "--run", "3"],
            "there is no run 3 of temperature 0.3 (expected 0)",
        ),
    ] {
        let arguments = [&["--record", "run.json"], &arguments[..]].concat();
        ran(&program, &model, &arguments).refused(1, &[part]);
    }
    // another model has other ids, or at least another name
    let stderr = ran(&program, &fixture("qwen2"), &["--record", "run.json"]).stderr;
    assert!(
        stderr.contains("the record was made with smollm, this is qwen2"),
        "{stderr}"
    );
}

#[test]
fn the_table_is_printed_and_the_record_is_a_new_file_that_reads_back_the_same() {
    let program = Program::new();
    let model = fixture("qwen35").to_string_lossy().into_owned();
    let hostile = "\u{1b}[31mred\u{202e} 你好";
    let arguments = [
        "score",
        "--model",
        &model,
        "-p",
        "hi",
        "--completion",
        hostile,
    ];
    let ran = program
        .run(&[&arguments[..], &["--candidate", "\u{1b}]0;x\u{7}"]].concat())
        .success();
    assert!(
        !ran.stdout.contains(['\u{1b}', '\u{202e}', '\u{7}']),
        "{}",
        ran.stdout
    );
    for part in [
        "step  token",
        "logprob",
        "\nafter the text\n",
        "bits per byte",
    ] {
        assert!(ran.stdout.contains(part), "no {part:?} in: {}", ran.stdout);
    }
    let files = program.files("results");
    assert!(files[0].starts_with("score_qwen35_cpu_"), "{files:?}");
    assert_eq!(ran.stderr, format!("written to results/{}\n", files[0]));
    let text =
        std::fs::read_to_string(program.path(format!("results/{}", files[0]))).expect("read");
    let record: logprobs::record::score::Score = serde_json::from_str(&text).expect("a score");
    let mut written = Vec::new();
    logprobs::report::json::write(&record, &mut written).expect("a vector takes everything");
    assert_eq!(String::from_utf8(written).expect("UTF-8"), text);
    let coloured =
        program.run(&[&arguments[..], &["--color", "always", "--out", "c.json"]].concat());
    assert!(coloured.success().stdout.contains("\u{1b}[1m"));
    let quiet = program
        .run(&[&arguments[..], &["-q", "--out", "q.json"]].concat())
        .success();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_is_success_here_too() {
    let program = Program::new();
    let model = fixture("qwen35").to_string_lossy().into_owned();
    for more in [&["--json"][..], &["--out", "a.json"]] {
        let arguments = [
            &["score", "--model", &model, "--text", "Where is Paris?"],
            more,
        ]
        .concat();
        let mut command = program.command(&arguments);
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("starts");
        drop(child.stdout.take());
        Ran::wait(child).success();
    }
}

/// All logits of a thousand more positions would be 200 MB; their keys and values are 46 kB a token.
#[cfg(target_os = "linux")]
#[test]
fn a_long_text_takes_no_memory_for_all_its_logits() {
    let Some(model) = smollm::model() else { return };
    let program = Program::new();
    let peak = |words: usize| {
        let text = program.write("text", " word".repeat(words));
        let out = format!("{words}.json");
        let mut command = program.command(&["score", "--quiet", "--out", &out, "--file"]);
        command.arg(text).arg("--model").arg(model);
        program.peak_kilobytes(&command)
    };
    let (short, long) = (peak(100), peak(1100));
    assert!(long < short + 120_000, "{short} kB and {long} kB");
}
