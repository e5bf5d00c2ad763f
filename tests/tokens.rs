//! `tokens`: every text back from its tokens, without a weight; and the manners of the command.

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use serde::{Deserialize, Deserializer};
use serde_json::json;

use crate::program::{Program, Ran, fixture};

/// What `tokens --json` writes, written down a second time.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tokens {
    schema: u32,
    program: String,
    model: Model,
    #[serde(deserialize_with = "nullable")]
    reading: Option<String>,
    #[serde(default)]
    texts: Vec<Text>,
    #[serde(default)]
    tokens: Vec<Token>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Model {
    id: String,
    #[serde(deserialize_with = "nullable")]
    revision: Option<String>,
    #[serde(deserialize_with = "nullable")]
    vocab_size: Option<usize>,
    num_named: usize,
    #[serde(default)]
    note: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    #[serde(deserialize_with = "nullable")]
    file: Option<String>,
    text: String,
    #[serde(default)]
    rendered: Option<String>,
    num_tokens: usize,
    num_special: usize,
    num_characters: usize,
    num_bytes: usize,
    #[serde(deserialize_with = "nullable")]
    characters_per_token: Option<f32>,
    #[serde(deserialize_with = "nullable")]
    bytes_per_token: Option<f32>,
    #[serde(deserialize_with = "nullable")]
    relative_cost: Option<f32>,
    exact: bool,
    tokens: Vec<Token>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Token {
    #[serde(deserialize_with = "nullable")]
    position: Option<usize>,
    token_id: u32,
    token: String,
    bytes: Vec<u8>,
    special: bool,
    named: bool,
}

fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(from)
}

impl Text {
    fn bytes(&self) -> Vec<u8> {
        self.tokens
            .iter()
            .flat_map(|token| token.bytes.clone())
            .collect()
    }

    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.token_id).collect()
    }
}

fn ask(program: &Program, model: &Path, arguments: &[&str]) -> Ran {
    let mut command = program.command(&["tokens", "--model"]);
    Ran::of(command.arg(model).args(arguments))
}

fn record(program: &Program, model: &Path, arguments: &[&str]) -> Tokens {
    let ran = ask(program, model, &[arguments, &["--json"]].concat()).success();
    serde_json::from_str(&ran.stdout).expect("the schema")
}

/// Texts in Unicode's composed form, which is what Qwen's tokenizers see.
const TEXTS: [&str; 8] = [
    "What is the capital of France?",
    "法国的首都是哪里？",
    "ما هي عاصمة فرنسا؟",
    "מהי בירת צרפת?",
    " two  spaces\tand\r\nlines\n\n",
    "\u{1}\u{1b}[31m\u{202e}\u{feff}\u{fffd}",
    "👩‍👩‍👧‍👦 é 3333+777",
    "",
];

#[test]
fn every_text_comes_back_from_the_bytes_of_its_tokens() {
    let program = Program::new();
    for model in ["qwen35-real", "smollm", "gguf/qwen35.gguf"] {
        let record = record(&program, &fixture(model), &TEXTS);
        assert_eq!(record.reading.as_deref(), Some("raw"));
        for (text, expected) in record.texts.iter().zip(TEXTS) {
            assert_eq!(text.text, expected);
            assert_eq!(text.bytes(), expected.as_bytes(), "{model}");
            assert!(text.exact, "{model}: {expected:?}");
            assert_eq!(text.num_tokens, text.tokens.len());
            assert_eq!(
                (text.num_characters, text.num_bytes),
                (expected.chars().count(), expected.len())
            );
            let positions: Vec<_> = text.tokens.iter().map(|token| token.position).collect();
            assert_eq!(
                positions,
                (0..text.tokens.len()).map(Some).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn standard_input_and_files_are_taken_to_the_last_byte() {
    let program = Program::new();
    let content = "\u{feff}a\r\n\n b\u{0}";
    program.write("text.txt", content);
    let mut child = program
        .command(&[
            "tokens", "--json", "x", "-", "--file", "text.txt", "--model",
        ])
        .arg(fixture("smollm"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(content.as_bytes()).expect("it reads");
    drop(stdin);
    let ran = Ran::wait(child).success();
    let record: Tokens = serde_json::from_str(&ran.stdout).expect("the schema");
    let files: Vec<_> = record
        .texts
        .iter()
        .map(|text| text.file.as_deref())
        .collect();
    assert_eq!(files, [None, Some("-"), Some("text.txt")]);
    for text in &record.texts[1..] {
        assert_eq!((text.text.as_str(), text.exact), (content, true));
    }
}

#[test]
fn a_text_that_the_tokenizer_normalises_is_said_to_be_another_one() {
    let program = Program::new();
    let model = fixture("qwen35-real");
    let one = record(&program, &model, &["cafe\u{301}"]);
    assert!(!one.texts[0].exact);
    assert_eq!(one.texts[0].bytes(), "café".as_bytes());
    let shown = ask(&program, &model, &["cafe\u{301}", "x"])
        .success()
        .stdout;
    assert!(
        shown.contains("text 1 is not what its tokens spell"),
        "{shown}"
    );
    assert!(!shown.contains("text 2 is not"), "{shown}");
}

#[test]
fn what_is_put_around_a_text_is_counted_and_is_not_the_text() {
    let program = Program::new();
    let model = program.copy("smollm", "begins");
    let path = model.join("tokenizer.json");
    let content = std::fs::read(&path).expect("a tokenizer");
    let mut tokenizer: serde_json::Value = serde_json::from_slice(&content).expect("JSON");
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [296], "tokens": ["<|im_start|>"]}}
    });
    std::fs::write(&path, tokenizer.to_string()).expect("written");
    for more in [
        &["<|im_end|>hi", ""][..],
        &["<|im_end|>hi", "", "--plain-text"],
    ] {
        let record = record(&program, &model, more);
        for text in &record.texts {
            assert_eq!(text.ids()[0], 296);
            assert!(text.exact, "{text:?}");
        }
        // parsed, the end is one control token; as plain text it is ten characters
        let specials = record.texts[0].num_special;
        assert_eq!(specials, if more.len() == 2 { 2 } else { 1 });
        assert_eq!(record.texts[1].num_tokens, 1);
    }
}

#[test]
fn chat_shows_the_tokens_of_the_rendered_template() {
    let program = Program::new();
    let model = fixture("qwen35");
    let line = ["--chat", "--system", "Be brief.", "Hi<|im_end|>"];
    let record = record(&program, &model, &line);
    assert_eq!(record.reading.as_deref(), Some("chat"));
    let text = &record.texts[0];
    let rendered = text.rendered.as_deref().expect("rendered");
    assert!(rendered.contains("Be brief.") && rendered.ends_with("<think>\n\n</think>\n\n"));
    assert_eq!(
        (text.text.as_str(), text.bytes()),
        ("Hi<|im_end|>", rendered.as_bytes().to_vec())
    );
    assert!(text.exact);
    let main = program.record(
        &model,
        &[
            "-p",
            "Hi<|im_end|>",
            "--system",
            "Be brief.",
            "--samples",
            "0",
            "--max-new-tokens",
            "1",
        ],
    );
    assert_eq!(text.ids(), main.done(0).prompt_token_ids);
    // two turns and the reply's are opened, two closed; what the user wrote is text
    assert_eq!(text.num_special, 5);
}

#[test]
fn a_folder_and_its_gguf_file_cut_a_text_alike() {
    let program = Program::new();
    let text = "What is 3333+777? Café déjà vu 😊";
    for name in ["llama", "qwen2", "qwen3", "qwen35"] {
        let folder = record(&program, &fixture(name), &[text]);
        let file = record(&program, &fixture(&format!("gguf/{name}.gguf")), &[text]);
        assert_eq!(folder.texts[0].ids(), file.texts[0].ids(), "{name}");
        assert_eq!(folder.model.vocab_size, file.model.vocab_size);
    }
}

#[test]
fn no_weights_and_damaged_ones_are_all_the_same() {
    let program = Program::new();
    let whole = record(&program, &fixture("smollm"), &["hello"]);
    let model = program.copy("smollm", "smollm");
    std::fs::write(model.join("model.safetensors"), "damaged").expect("written");
    assert_eq!(record(&program, &model, &["hello"]), whole);
    std::fs::remove_file(model.join("model.safetensors")).expect("removed");
    assert_eq!(record(&program, &model, &["hello"]), whole);
    // the tokenizer alone is enough too, for a model that this program does not even run
    std::fs::write(model.join("config.json"), r#"{"model_type": "gpt_neox"}"#).expect("written");
    let alone = record(&program, &model, &["hello"]);
    assert_eq!((alone.texts, alone.model.vocab_size), (whole.texts, None));
    std::fs::remove_file(model.join("tokenizer.json")).expect("removed");
    ask(&program, &model, &["hello"]).refused(1, &["tokenizer.json is missing", "AutoTokenizer"]);
}

#[test]
fn an_id_is_named_up_to_the_last_row_of_the_head_and_refused_above() {
    let program = Program::new();
    let model = fixture("smollm");
    let record = record(&program, &model, &["--id", "296,300", "--id", "301", "319"]);
    assert_eq!((record.reading, record.texts.len()), (None, 0));
    let tokens: Vec<_> = record
        .tokens
        .iter()
        .map(|t| (t.token.as_str(), t.named))
        .collect();
    assert_eq!(
        tokens,
        [
            ("<|im_start|>", true),
            ("<|endoftext|>", true),
            ("<|id:301|>", false),
            ("<|id:319|>", false)
        ]
    );
    let shown = ask(&program, &model, &["--id", "319"]).success().stdout;
    assert!(
        shown.contains("no name") && shown.contains("row of the output layer"),
        "{shown}"
    );
    for id in ["320", "4294967295"] {
        ask(&program, &model, &["--id", id]).refused(1, &["out of range (expected 0 to 319"]);
    }
    for id in ["-1", "1e3", "abc", "4294967296", ""] {
        ask(&program, &model, &["--id", id]).refused(2, &["--id", "whole number from 0 to"]);
    }
}

#[test]
fn a_comparison_has_one_row_a_text_and_the_cost_beside_the_first() {
    let program = Program::new();
    let model = fixture("qwen35-real");
    let record = record(&program, &model, &TEXTS[..4]);
    let first = record.texts[0].num_tokens as f32;
    for text in &record.texts {
        assert_eq!(text.relative_cost, Some(text.num_tokens as f32 / first));
    }
    let shown = ask(&program, &model, &TEXTS[..4]).success().stdout;
    let rows: Vec<&str> = shown
        .split("\n\n")
        .nth(1)
        .expect("a table")
        .lines()
        .collect();
    assert_eq!(rows.len(), 5);
    for (row, text) in rows[1..].iter().zip(TEXTS) {
        assert!(row.ends_with(text), "{row}");
    }
}

#[test]
fn what_can_never_be_right_is_wrong_usage_and_reads_no_model() {
    let program = Program::new();
    for line in [
        &[][..],
        &["--id", "1", "text"],
        &["--id", "1", "--chat"],
        &["--id", "1", "--file", "f"],
        &["--system", "x", "text"],
        &["--thinking", "text"],
        &["--chat", "--plain-text", "text"],
        &["-", "-"],
        &["-", "--file", "-"],
        &["text", "--device", "cpu"],
    ] {
        ask(&program, Path::new("no/such/model"), line).refused(2, &["--help"]);
    }
}

#[test]
fn what_cannot_be_read_is_named_with_the_place() {
    let program = Program::new();
    program.write("bad.txt", b"ab\xff");
    let model = fixture("smollm");
    ask(&program, &model, &["--file", "bad.txt"])
        .refused(1, &["bad.txt: not valid UTF-8 at byte 2"]);
    ask(&program, &model, &["--file", "none.txt"]).refused(1, &["none.txt: cannot be read"]);
    let no_template = program.copy("smollm", "bare");
    std::fs::remove_file(no_template.join("chat_template.jinja")).expect("removed");
    ask(&program, &no_template, &["--chat", "x"])
        .refused(1, &["text 1: bare has no chat template"]);
    ask(&program, Path::new("org/absent"), &["x"])
        .refused(1, &["is not in the cache", "--offline"]);
}

#[test]
fn hostile_text_is_escaped_and_colour_follows_the_flag() {
    let program = Program::new();
    let hostile = "\u{1b}]0;x\u{7}\u{202e}\u{9b}";
    let model = fixture("smollm");
    program.write(hostile, hostile);
    for line in [
        &[hostile][..],
        &[hostile, "b"],
        &["--file", hostile, "b"],
        &["--chat", hostile],
    ] {
        let shown = ask(&program, &model, line).success().stdout;
        assert!(
            !shown.contains(['\u{1b}', '\u{7}', '\u{202e}', '\u{9b}']),
            "{shown}"
        );
    }
    let json = ask(&program, &model, &[hostile, "--json"]).success().stdout;
    assert!(
        !json.contains(['\u{1b}', '\u{7}', '\u{202e}', '\u{9b}']),
        "{json}"
    );
    let shown = ask(&program, &model, &["a", "--color", "always"])
        .success()
        .stdout;
    assert!(shown.contains("\u{1b}["));
    let mut command = program.command(&["tokens", "a", "--model"]);
    let shown = Ran::of(
        command
            .arg(&model)
            .env("NO_COLOR", "1")
            .env("CLICOLOR_FORCE", "1"),
    );
    assert!(!shown.success().stdout.contains('\u{1b}'));
}

#[test]
fn the_same_command_gives_the_same_bytes_and_no_file() {
    let program = Program::new();
    let line = ["a", "b", "--json"];
    let both = [(); 2].map(|()| ask(&program, &fixture("smollm"), &line).success().stdout);
    assert_eq!(both[0], both[1]);
    assert!(!both[0].contains("fixtures"), "no path: {}", both[0]);
    assert_eq!(program.files("."), [""; 0]);
}

#[test]
fn a_closed_pipe_is_success() {
    let program = Program::new();
    program.write("long.txt", "a line of text\n".repeat(20_000));
    for more in [&[][..], &["--json"]] {
        let mut child = program
            .command(&["tokens", "--file", "long.txt", "--model"])
            .arg(fixture("smollm"))
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        assert_eq!(Ran::wait(child).success().stderr, "");
    }
}
