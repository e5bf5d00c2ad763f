//! `render` and `schema`: a record in other shapes, and what its shape is.

use std::path::Path;

use boon::{Compiler, Schemas};
use serde_json::Value;

use crate::program::{Program, Ran, fixture};
use crate::schema::Record;

/// A record with several runs, filters and a prompt that failed.
fn write_record(program: &Program) -> Record {
    let long = "word ".repeat(1000);
    let model = fixture("smollm").display().to_string();
    let line = [
        "--model",
        &model,
        "-p",
        "=1+1 `x` | <b>\u{1b}[31m\nsecond",
        "-p",
        &long,
        "--max-new-tokens",
        "3",
        "--samples",
        "2",
        "--setting",
        "temperature=1.5,top_k=2",
        "--setting",
        "temperature=0.7",
        "--out",
        "r.json",
        "-q",
    ];
    program
        .run(&line)
        .refused(1, &["prompt 2 could not be run"]);
    program.read("r.json")
}

fn render(program: &Program, format: &str) -> String {
    program
        .run(&["render", "r.json", "--format", format])
        .success()
        .stdout
}

#[test]
fn the_table_is_what_the_command_printed() {
    let program = Program::new();
    let model = fixture("smollm").display().to_string();
    for more in [&[][..], &["--one-line"], &["--tree"]] {
        let line = [
            "--model",
            &model,
            "-p",
            "a",
            "-p",
            "红",
            "--max-new-tokens",
            "3",
            "--temps",
            "1.5",
            "--out",
            "r.json",
        ];
        let printed = program.run(&[&line[..], more].concat()).success().stdout;
        let rendered = program
            .run(&[&["render", "r.json"][..], more].concat())
            .success();
        assert_eq!((rendered.stdout, rendered.stderr), (printed, String::new()));
        std::fs::remove_file(program.path("r.json")).expect("it was written");
    }
    let line = [
        "temperature-step1",
        "--model",
        &model,
        "-p",
        "a",
        "--out",
        "s.json",
    ];
    let printed = program.run(&line).success().stdout;
    assert_eq!(program.run(&["render", "s.json"]).success().stdout, printed);
}

#[test]
fn json_is_the_record_to_the_byte_also_from_lines_and_a_pipe() {
    let program = Program::new();
    write_record(&program);
    let text = std::fs::read_to_string(program.path("r.json")).expect("text");
    assert!(render(&program, "json") == text);
    let model = fixture("smollm").display().to_string();
    let line = [
        "--model",
        &model,
        "-p",
        "a",
        "-p",
        "b",
        "--max-new-tokens",
        "2",
        "--samples",
        "1",
    ];
    let whole = program
        .run(&[&line[..], &["--json"]].concat())
        .success()
        .stdout;
    let lines = program
        .run(&[&line[..], &["--jsonl"]].concat())
        .success()
        .stdout;
    let path = program.write("lines", lines);
    let file = std::fs::File::open(path).expect("it was written");
    let piped = Ran::of(program.command(&["render", "-", "-f", "json"]).stdin(file)).success();
    assert!(piped.stdout == whole);
}

/// Reads CSV as a spreadsheet does: one list of cells a row.
fn rows(text: &str) -> Vec<Vec<String>> {
    let text = text.strip_prefix('\u{feff}').expect("a byte-order mark");
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(text.as_bytes());
    let rows = reader.records().map(|row| {
        row.expect("as many cells as titles")
            .iter()
            .map(str::to_owned)
            .collect()
    });
    rows.collect()
}

#[test]
fn csv_has_a_row_a_step_and_no_formula() {
    let program = Program::new();
    let record = write_record(&program);
    let rows = rows(&render(&program, "csv"));
    let done = record.done(0);
    let runs =
        std::iter::once(&done.greedy).chain(done.sweeps.iter().flat_map(|sweep| &sweep.runs));
    let steps: Vec<_> = runs.flat_map(|run| &run.steps).collect();
    assert_eq!(rows.len(), 1 + steps.len() + 1);
    let column = |title: &str| rows[0].iter().position(|cell| cell == title).expect(title);
    for (row, step) in rows[1..].iter().zip(&steps) {
        assert_eq!(row[column("prompt_number")], "1");
        assert_eq!(row[column("token_id")], step.token_id.to_string());
        assert_eq!(row[column("prob")].parse(), Ok(step.prob));
        assert_eq!(row[column("logprob")].parse(), Ok(step.logprob));
        assert_eq!(row[column("mass_count")], step.mass_count.to_string());
        assert_eq!(
            row[column("candidate_5_prob")].parse(),
            Ok(step.top_logprobs[4].prob)
        );
        assert_eq!(row[column("kept")].is_empty(), step.sampling.is_none());
    }
    // quoted, escaped, and behind an apostrophe
    assert!(
        rows[1][column("prompt")].starts_with("'=1+1 `x` | <b>\\u{1B}[31m\\n"),
        "{:?}",
        rows[1]
    );
    let failed = rows.last().expect("rows");
    assert_eq!(failed[column("prompt_number")], "2");
    assert!(
        failed[column("error")].contains("the model takes"),
        "{failed:?}"
    );
    for cell in rows.iter().flatten() {
        let is_number = cell.parse::<f64>().is_ok();
        assert!(
            is_number || !cell.starts_with(['=', '+', '-', '@']),
            "{cell}"
        );
        assert!(!cell.contains(|c: char| c.is_control()), "{cell}");
    }
    assert_eq!(rows[0].len(), 26 + 2 * 5);
}

#[test]
fn markdown_keeps_foreign_text_in_code() {
    let program = Program::new();
    write_record(&program);
    let text = render(&program, "markdown");
    assert!(!text.contains('\u{1b}'));
    let mut fence: Option<&str> = None;
    let mut tables = 0;
    for line in text.lines() {
        let ticks = &line[..line.len() - line.trim_start_matches('`').len()];
        match fence {
            Some(open) if line == open => fence = None,
            Some(_) => {}
            None if ticks.len() > 2 => fence = Some(ticks),
            None => {
                // outside of blocks, what is not between backticks is ours
                let ours: String = line.split('`').step_by(2).collect();
                assert!(!ours.contains("<b>") && !ours.contains("=1+1"), "{line}");
                if line.starts_with('|') {
                    tables += 1;
                    let columns = line.replace("\\|", "").matches('|').count();
                    assert!([6, 9].contains(&columns), "{line}");
                }
            }
        }
    }
    assert_eq!(fence, None);
    // two titles and rules, three steps, two settings
    assert_eq!(tables, 2 + 2 + 3 + 2);
    for part in [
        "## Prompt 1",
        "## Prompt 2",
        "**could not be run:**",
        "Greedy reply:",
        "temperature 1.5, top_k 2",
    ] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn the_openai_shape_has_every_run_as_a_choice_and_real_bytes() {
    let program = Program::new();
    let record = write_record(&program);
    let text = render(&program, "openai");
    assert_eq!(text.lines().count(), 1);
    let completion: Value = serde_json::from_str(&text).expect("JSON");
    let done = record.done(0);
    let choices = completion["choices"].as_array().expect("choices");
    assert_eq!(
        (choices.len(), completion["object"].as_str()),
        (5, Some("chat.completion"))
    );
    let runs =
        std::iter::once(&done.greedy).chain(done.sweeps.iter().flat_map(|sweep| &sweep.runs));
    let mut num_excluded = 0;
    for (choice, run) in choices.iter().zip(runs) {
        assert_eq!(
            choice["message"]["content"].as_str(),
            Some(run.text.as_str())
        );
        let content = choice["logprobs"]["content"].as_array().expect("content");
        assert_eq!(content.len(), run.steps.len());
        for (entry, step) in content.iter().zip(&run.steps) {
            assert_eq!(
                entry["logprob"].as_f64().map(|logprob| logprob as f32),
                Some(step.logprob)
            );
            let bytes = serde_json::json!((!step.special).then_some(&step.bytes));
            assert_eq!(entry["bytes"], bytes);
            let kept = step.sampling.as_ref().map_or(5, |sampling| sampling.kept);
            for (index, candidate) in step.top_logprobs.iter().enumerate() {
                let is_excluded = entry["top_logprobs"][index]["logprob"] == -9999.0;
                assert_eq!(is_excluded, index >= kept);
                assert!(candidate.logprob > -9999.0);
                num_excluded += usize::from(is_excluded);
            }
        }
    }
    // top_k 2 leaves three of five candidates out, at every step of two runs
    assert_eq!(num_excluded, 2 * 3 * 3);
    let line = [
        "temperature-step1",
        "--model",
        &fixture("smollm").display().to_string(),
        "-p",
        "a",
        "--out",
        "s.json",
        "-q",
    ];
    program.run(&line).success();
    program
        .run(&["render", "s.json", "-f", "openai"])
        .refused(1, &["s.json: a record of temperature-step1 has no reply"]);
}

#[test]
fn what_is_no_record_is_refused() {
    let program = Program::new();
    program.write("a.json", "{\"schema\": 2, \"prompts\": []}");
    program.run(&["render", "a.json"]).refused(
        1,
        &["a.json: has schema 2, a newer one than this program reads"],
    );
    program.write("b.json", "hello");
    program
        .run(&["render", "b.json", "-f", "csv"])
        .refused(1, &["b.json: is no JSON"]);
    program
        .run(&["render", "c.json"])
        .refused(1, &["c.json: cannot be read"]);
    program.run(&["render"]).refused(2, &["RECORD"]);
}

/// Compiles what `logprobs schema` prints and returns what it says of a value.
fn validate(schema: &Value, value: &Value) -> Result<(), String> {
    let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
    compiler
        .add_resource("record.json", schema.clone())
        .map_err(|error| error.to_string())?;
    let index = compiler
        .compile("record.json", &mut schemas)
        .map_err(|error| error.to_string())?;
    schemas
        .validate(value, index)
        .map_err(|error| error.to_string())
}

fn schema(program: &Program, subject: &str) -> Value {
    let printed = program.run(&["schema", subject]).success().stdout;
    serde_json::from_str(&printed).expect("JSON")
}

#[test]
fn every_record_in_the_repository_has_the_schema() {
    let program = Program::new();
    let (record, step1) = (
        schema(&program, "record"),
        schema(&program, "temperature-step1"),
    );
    assert_eq!(
        schema(&program, "record")["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut validated = 0;
    for folder in ["results", "sample_output", "sample_output_en"] {
        for entry in std::fs::read_dir(root.join(folder)).expect(folder) {
            let path = entry.expect(folder).path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("text");
            let value: Value = serde_json::from_str(&text).expect("JSON");
            let (this, other) = match value.get("prompts") {
                Some(_) => (&record, &step1),
                None => (&step1, &record),
            };
            validate(this, &value).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(validate(other, &value).is_err(), "{}", path.display());
            validated += 1;
        }
    }
    assert!(validated >= 5, "{validated}");
}

#[test]
fn the_schema_sees_what_is_missing_or_of_another_type() {
    let program = Program::new();
    write_record(&program);
    let schema = schema(&program, "record");
    let text = std::fs::read_to_string(program.path("r.json")).expect("text");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    validate(&schema, &value).expect("a record");
    let step = "/prompts/0/greedy/steps/0";
    type Spoil = fn(&mut Value);
    let spoilt: [(&str, Spoil); 5] = [
        (step, |step| {
            drop(step.as_object_mut().expect("a step").remove("rank"))
        }),
        (step, |step| step["prob"] = 1.5.into()),
        (step, |step| step["bytes"] = "x".into()),
        ("/prompts/1", |failed| {
            drop(failed.as_object_mut().expect("an entry").remove("error"))
        }),
        ("/settings", |settings| settings["seed"] = Value::Null),
    ];
    for (place, spoil) in spoilt {
        let mut value = value.clone();
        spoil(value.pointer_mut(place).expect(place));
        assert!(validate(&schema, &value).is_err(), "{place}");
    }
    let model = fixture("smollm").display().to_string();
    let score = program
        .run(&[
            "score", "--model", &model, "--raw", "--text", "a b", "--json",
        ])
        .success()
        .stdout;
    let score: Value = serde_json::from_str(&score).expect("JSON");
    validate(&self::schema(&program, "score"), &score).expect("a score");
    for (subject, line) in [
        ("compare", &["compare", "r.json", "r.json", "--json"][..]),
        (
            "audit",
            &[
                "audit",
                "--model",
                &model,
                "-p",
                "a",
                "--max-new-tokens",
                "2",
                "--json",
            ],
        ),
    ] {
        let printed = program.run(line).success().stdout;
        let value: Value = serde_json::from_str(&printed).expect("JSON");
        validate(&self::schema(&program, subject), &value).expect(subject);
        validate(&schema, &value).expect_err("it is no record of the main command");
    }
}
