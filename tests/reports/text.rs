//! Group 3: detokenisation and display.

use logprobs::checkpoint::hub::HubOptions;
use logprobs::checkpoint::{Checkpoint, Source};
use logprobs::text::tokenizer::Reading;

use crate::program::{Program, fixture};

/// B32: alternatives were decoded as if they followed each other; multi-byte ones became empty.
#[test]
fn every_candidate_has_a_text_of_its_own() {
    let program = Program::new();
    let record = program.record(
        &fixture("qwen3"),
        &[
            "--raw",
            "-p",
            "She said: “Yes” and he said: ",
            "--max-new-tokens",
            "3",
            "--candidates",
            "320",
            "--samples",
            "0",
        ],
    );
    for step in record.steps() {
        let mut ids: Vec<u32> = step
            .top_logprobs
            .iter()
            .map(|candidate| candidate.token_id)
            .collect();
        ids.sort_unstable();
        assert_eq!(ids, (0..320).collect::<Vec<_>>());
        for candidate in &step.top_logprobs {
            assert!(!candidate.token.is_empty());
            assert_eq!(
                candidate.bytes.is_empty(),
                candidate.token_id > 300,
                "{}",
                candidate.token
            );
            assert!(!candidate.token.contains('\u{fffd}'), "{}", candidate.token);
        }
    }
}

/// B36: an incremental decoder failed on ordinary markup. There is none here: a long text's tokens, one by one, are its bytes.
#[test]
fn the_tokens_of_a_long_file_of_code_and_markup_are_its_bytes() {
    let source = Source::locate(fixture("qwen35").as_os_str(), None).expect("a folder");
    let options = HubOptions {
        offline: true,
        progress: false,
    };
    let tokenizer = Checkpoint::open(&source, &options)
        .expect("it opens")
        .tokenizer;
    for text in [
        include_str!("../fixtures/make.py"),
        include_str!("../fixtures/README.md"),
        include_str!("README.md"),
    ] {
        let ids = tokenizer.encode(text, Reading::Plain).expect("text");
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|&id| tokenizer.token(id).bytes)
            .collect();
        assert!(bytes == text.as_bytes());
        let reply = tokenizer.detokenize(&ids);
        assert!(reply.text == text && reply.incomplete_bytes.is_empty());
    }
}

/// B39: control tokens among the candidates had no text, and the end token could not be recognised.
#[test]
fn the_end_of_a_reply_is_a_step_with_a_name_and_a_flag() {
    let program = Program::new();
    // this model answers the first built-in prompt up to a stop id (fixtures/README.md)
    let record = program.record(&fixture("qwen3"), &["--samples", "0"]);
    let run = &record.done(0).greedy;
    assert_eq!(run.finish_reason, "stop");
    let last = run.steps.last().expect("a step");
    assert!(last.special && last.token.starts_with("<|") && last.bytes == last.token.as_bytes());
    assert!(record.settings.stop_ids.contains(&last.token_id));
    assert!(!run.text.contains(&last.token));
}
