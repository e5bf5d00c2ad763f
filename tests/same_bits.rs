//! On the CPU a distribution depends on the context alone, to the last bit: not on the batch, the number of threads, the pieces
//! of a prompt, the processor's instructions, or whether a token was generated or scored.

use logprobs::kernels::Isa;
use logprobs::kernels::simd::Portable;
use logprobs::model::decoder::Decoder;
use logprobs::model::{Backend, LanguageModel, Logits};

use crate::parity::{cases, in_pieces, load, load_on};
use crate::program::{Program, fixture};
use crate::smollm;

/// Does something on so many threads.
fn on_threads<R: Send>(threads: usize, work: impl FnOnce() -> R + Send) -> R {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("a pool").install(work)
}

/// The logits after `tokens` behind a common beginning, as one row of a batch whose other rows see other tokens.
fn in_batch(model: &Decoder, tokens: &[u32], rows: usize) -> Vec<Logits> {
    let (begun, rest) = tokens.split_at(tokens.len() / 2);
    let mut trunk = model.start();
    model.extend(&mut trunk, begun).expect("it fits");
    let mut rows = vec![trunk; rows];
    let place = rows.len() / 2;
    let fed = |(step, &token): (usize, &u32)| {
        let mut next: Vec<u32> = (0..rows.len())
            .map(|row| tokens[(row * 7 + step) % tokens.len()])
            .collect();
        next[place] = token;
        model
            .step(&mut rows, &next)
            .expect("it fits")
            .swap_remove(place)
    };
    rest.iter().enumerate().map(fed).collect()
}

pub(crate) fn assert_same(model: &Decoder, name: &str, tokens: &[u32]) {
    let whole = on_threads(1, || in_pieces(model, tokens, &[1000]));
    for lengths in [&[1][..], &[3, 2, 17, 1, 1, 40], &[16]] {
        let pieces = on_threads(2, || in_pieces(model, tokens, lengths));
        assert!(pieces == whole, "{name}: pieces of {lengths:?}");
    }
    let last = model.extend(&mut model.start(), tokens).expect("it fits");
    assert!(whole.last() == Some(&last), "{name}: prefilled and scored");
    for (rows, threads) in [(1, 4), (2, 2), (7, 1), (26, 2), (64, 4)] {
        let stepped = on_threads(threads, || in_batch(model, tokens, rows));
        assert!(
            stepped == whole[tokens.len() / 2..],
            "{name}: {rows} rows on {threads} threads"
        );
    }
}

/// The instructions of this processor whose kernels all sum in one order.
fn with_bits_of(isa: Isa) -> impl Iterator<Item = Isa> {
    let all = Isa::available().into_iter();
    all.filter(move |other| other.has_bits_of(isa))
}

#[test]
fn batches_threads_and_pieces_change_no_bit_in_any_family() {
    for (name, path, trace) in cases() {
        assert_same(&load(&path), &name, &trace.prompt_token_ids[..70]);
    }
}

#[test]
fn batches_threads_and_pieces_change_no_bit_of_a_real_model() {
    let Some(path) = smollm::model() else { return };
    let tokens: Vec<u32> = (0..24).map(|index| 700 + 37 * index).collect();
    assert_same(&load(path), "SmolLM2", &tokens);
}

#[test]
fn every_set_of_vectors_gives_the_same_bits() {
    for (name, path, trace) in cases() {
        let tokens = &trace.prompt_token_ids[..40];
        let portable = Isa::Portable(Portable);
        let plain = load_on(&path, &Backend::Kernels(portable)).expect("it loads");
        let expected = in_pieces(&plain, tokens, &[40]);
        for isa in with_bits_of(portable) {
            let model = load_on(&path, &Backend::Kernels(isa)).expect("it loads");
            let logits = in_pieces(&model, tokens, &[40]);
            assert!(logits == expected, "{name}: {}", isa.name());
        }
    }
}

/// The whole record, byte for byte.
#[test]
fn the_record_is_the_same_file_whatever_computes_it() {
    let program = Program::new();
    let model = fixture("qwen35").display().to_string();
    let prompts = [
        "-p",
        "Where is Paris?",
        "-p",
        "Name a colour.",
        "-p",
        "北京",
    ];
    let record = |more: &[&str], isa: &str| {
        let mut arguments = vec![
            "--model",
            model.as_str(),
            "--json",
            "--max-new-tokens",
            "10",
        ];
        arguments.extend(prompts);
        arguments.extend(more);
        let output = program
            .command(&arguments)
            .env("LOGPROBS_ISA", isa)
            .output();
        let output = output.expect("the program starts");
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    let best = Isa::current().name();
    let expected = record(&["--threads", "1", "--batch", "1"], best);
    assert!(expected.len() > 10_000);
    for (threads, batch) in [("1", "64"), ("2", "7"), ("4", "26")] {
        let other = record(&["--threads", threads, "--batch", batch], best);
        assert!(other == expected, "{threads} threads, batches of {batch}");
    }
    for isa in with_bits_of(Isa::current()) {
        assert!(record(&[], isa.name()) == expected, "{}", isa.name());
    }
}

#[test]
fn instructions_that_the_processor_has_not_are_refused_by_name() {
    let program = Program::new();
    let output = program
        .command(&[
            "--model",
            &fixture("qwen35").display().to_string(),
            "-p",
            "x",
        ])
        .env("LOGPROBS_ISA", "mmx")
        .output()
        .expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        message.contains("LOGPROBS_ISA is `mmx`") && message.contains("or portable"),
        "{message}"
    );
}
