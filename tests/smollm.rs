//! A real model, SmolLM2-135M-Instruct (Q4_1 GGUF), against transformers in float32.
//!
//! `tests/fixtures/get-smollm2.sh` fetches it once. Where it cannot (no network), the tests say that they were skipped; with
//! CI set, that is a failure.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "differences and skipped tests are worth seeing"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use logprobs::checkpoint::hub::HubOptions;
use logprobs::checkpoint::{Checkpoint, Source};
use logprobs::text::chat::Messages;
use logprobs::text::prompt::chat_prompt;
use logprobs::text::tokenizer::Reading;
use serde::Deserialize;

use crate::parity::{Trace, assert_steps, load};

/// Returns the model's file, or `None` (said on stderr) where there is neither file nor network.
pub(crate) fn model() -> Option<&'static Path> {
    static MODEL: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/get-smollm2.sh");
        let output = Command::new("bash")
            .arg(script)
            .output()
            .expect("bash runs");
        if output.status.success() {
            return Some(String::from_utf8_lossy(&output.stdout).trim().into());
        }
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            std::env::var_os("CI").is_none(),
            "SmolLM2 could not be fetched: {why}"
        );
        eprintln!("skipped: SmolLM2 could not be fetched: {why}");
        None
    });
    MODEL.as_deref()
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    mode: String,
    prompt: String,
    rendered: String,
    text: String,
    #[serde(flatten)]
    trace: Trace,
}

fn golden() -> Vec<Case> {
    let golden: Golden = serde_json::from_str(include_str!("fixtures/smollm2_golden.json"))
        .expect("the reference is JSON");
    golden.cases
}

#[test]
fn the_reference_traces_of_a_real_model_are_reproduced() {
    let Some(path) = model() else { return };
    let decoder = load(path);
    for case in golden() {
        let worst = assert_steps(&case.prompt, &decoder, &case.trace);
        println!(
            "SmolLM2, {}: largest log-probability difference {worst:.1e}",
            case.prompt
        );
    }
}

#[test]
fn its_template_and_tokenizer_give_the_reference_prompts_to_the_id() {
    let Some(path) = model() else { return };
    let source = Source::locate(path.as_os_str(), None).expect("a GGUF file");
    let checkpoint = Checkpoint::open(
        &source,
        &HubOptions {
            offline: true,
            progress: false,
        },
    )
    .expect("it opens");
    let template = checkpoint.template.as_ref().expect("it has a template");
    assert!(
        checkpoint.stop_ids.contains(&2),
        "{:?}",
        checkpoint.stop_ids
    );
    for case in golden() {
        let (text, ids) = match case.mode.as_str() {
            "raw" => (
                case.prompt.clone(),
                checkpoint
                    .tokenizer
                    .encode(&case.prompt, Reading::Raw)
                    .expect("text"),
            ),
            _ => {
                let messages = Messages {
                    system: None,
                    user: &case.prompt,
                };
                let prompt = chat_prompt(template, &checkpoint.tokenizer, &messages, false)
                    .expect("it renders");
                (prompt.text, prompt.ids)
            }
        };
        assert_eq!((text, ids), (case.rendered, case.trace.prompt_token_ids));
    }
    let reply = "The capital of France is Paris.";
    let ids = checkpoint
        .tokenizer
        .encode(reply, Reading::Template)
        .expect("text");
    assert_eq!(checkpoint.tokenizer.detokenize(&ids).text, golden()[0].text);
}
