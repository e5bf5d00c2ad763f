//! An audit for a terminal: a row a run, the replies that are not the reference's, and what it comes to.

use std::io::{self, Write};

use anstyle::Style;

use crate::analysis::audit::{Count, promises, replies};
use crate::record::FinishReason;
use crate::record::audit::{
    Audit, AuditDifference, AuditFlip, AuditedPrompt, AuditedReply, EngineInfo, FlippedToken,
    Variant,
};
use crate::report::columns::{self, Line, Side};
use crate::report::table::{BOLD, DIM, LOW, TOKEN_WIDTH, cut, left, model, plural, title};
use crate::report::wrap::Lines;
use crate::text::display::{cell, escape_line, escape_text};

/// Columns that the text of a reply is moved to the right.
const INDENT: usize = 4;

/// Writes an audit. `width` is that of the terminal.
///
/// # Errors
/// When `out` fails.
pub fn table(audit: &Audit, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    model(&audit.program, &audit.model, out)?;
    let best = format!("Δ best {}", audit.settings.candidates);
    let over_best = format!(
        "the same over the {} best candidates",
        audit.settings.candidates
    );
    for (name, meaning) in [
        (
            "Δ logprob",
            "largest change of a log-probability of the reply's tokens, each after the same tokens",
        ),
        (&best, &over_best),
        (
            "Δ logit",
            "largest change of a logit, over the whole vocabulary",
        ),
        (
            ">10 %",
            "steps at which the probability of the reply's token changes by more than a tenth of itself",
        ),
        (
            "close",
            "steps whose margin (best logit minus second) is at most twice Δ logit: no others can flip",
        ),
        ("flips", "steps at which another token is the best"),
        ("reply", "of a run that is left to itself"),
    ] {
        writeln!(out, "{DIM}  {}  {meaning}{DIM:#}", left(name, 9))?;
    }
    for prompt in &audit.prompts {
        writeln!(out, "\n{BOLD}Prompt: {}{BOLD:#}", title(&prompt.prompt))?;
        let steps = plural(prompt.steps.len(), "token");
        writeln!(out, "\n{DIM}  reference: f32, {steps}{DIM:#}")?;
        text(&prompt.reference, width, out)?;
        let usual = prompt.variants.first().map(|first| &*first.engine.products);
        let names = Names {
            usual: usual.unwrap_or_default(),
        };
        runs(prompt, names, &best, out)?;
        other_replies(prompt, names, width, out)?;
    }
    skipped(audit, out)?;
    summary(audit, width, out)
}

/// Returns what computes runs, in words: `f32, avx2 kernels`.
pub fn engine(engine: &EngineInfo) -> String {
    Names { usual: "" }.engine(engine)
}

/// What engines are called beside the one that computes on the usual kernels.
#[derive(Clone, Copy)]
struct Names<'a> {
    usual: &'a str,
}

impl Names<'_> {
    fn engine(self, engine: &EngineInfo) -> String {
        let how = if engine.emulated { " emulated" } else { "" };
        format!("{}{how}, {}", engine.dtype, self.products(engine))
    }

    fn products(self, engine: &EngineInfo) -> String {
        let products = match engine.products.as_str() {
            "tensors" => "tensor operations".to_owned(),
            usual if usual == self.usual => "kernels".to_owned(),
            kernels => format!("{kernels} kernels"),
        };
        match engine.device.as_str() {
            "cpu" => products,
            device => format!("{products} on {device}"),
        }
    }
}

/// One row a run, a paragraph for each engine.
fn runs(prompt: &AuditedPrompt, names: Names, best: &str, out: &mut impl Write) -> io::Result<()> {
    let titles = [
        "run",
        "Δ logprob",
        best,
        "Δ logit",
        ">10 %",
        "close",
        "flips",
        "reply",
    ];
    let mut lines = vec![Line::title(titles.map(str::to_owned).to_vec())];
    let mut was_other = false;
    for of_engine in prompt.variants.chunk_by(|a, b| a.engine == b.engine) {
        // the kernels' other instructions are one paragraph
        let is_other = of_engine[0].engine.is_kernels() && lines.len() > 1;
        if lines.len() > 1 && !(is_other && was_other) {
            lines.push(Line::plain(Vec::new()));
        }
        was_other = is_other;
        lines.push(Line::title(vec![names.engine(&of_engine[0].engine)]));
        for variant in of_engine {
            let mut line = row(&variant.way, &variant.difference, reply(variant));
            if variant.promised && !variant.difference.same_bits {
                line.style = LOW;
            }
            lines.push(line);
        }
    }
    let again = prompt.variants.iter();
    let again: Vec<Line> = again
        .filter_map(|variant| bf16_row(variant, names))
        .collect();
    if !again.is_empty() {
        lines.push(Line::plain(Vec::new()));
        lines.push(Line::title(vec!["bf16, against its first run".to_owned()]));
        lines.extend(again);
    }
    writeln!(out)?;
    let mut sides = [Side::Right; 8];
    (sides[0], sides[7]) = (Side::Left, Side::Left);
    columns::write(&sides, &lines, out)
}

fn bf16_row(variant: &Variant, names: Names) -> Option<Line> {
    let difference = variant.from_first_bf16.as_ref()?;
    let name = format!("{}, {}", names.products(&variant.engine), variant.way);
    Some(row(&name, difference, ""))
}

fn row(name: &str, difference: &AuditDifference, reply: &str) -> Line {
    let logit = match difference.same_bits {
        true => "0".to_owned(),
        // also where all that differs are the signs of zeros
        false => size(difference.largest_logit.max(f32::MIN_POSITIVE)),
    };
    Line {
        style: match difference.flipped_steps {
            0 => Style::new(),
            _ => BOLD,
        },
        cells: vec![
            format!("  {name}"),
            size(difference.largest_logprob),
            size(difference.largest_candidate_logprob),
            logit,
            difference.steps_beyond_tenth.to_string(),
            difference.close_steps.to_string(),
            difference.flipped_steps.to_string(),
            reply.to_owned(),
        ],
    }
}

fn reply(variant: &Variant) -> &'static str {
    match (variant.generates, &variant.reply) {
        (false, _) => "-",
        (true, None) => "same",
        (true, Some(_)) => "another",
    }
}

/// A difference with as many decimals as it needs; nothing but 0 is shown as 0.
fn size(difference: f32) -> String {
    match difference {
        0.0 => "0".to_owned(),
        d if d >= 1e-3 => format!("{d:.4}"),
        d if d >= 1e-7 => format!("{d:.7}"),
        _ => "<0.0000001".to_owned(),
    }
}

/// Each reply that is not the reference's once, with the runs that made it and where they parted.
fn other_replies(
    prompt: &AuditedPrompt,
    names: Names,
    width: Option<usize>,
    out: &mut impl Write,
) -> io::Result<()> {
    let mut seen: Vec<&AuditedReply> = Vec::new();
    for variant in &prompt.variants {
        let Some(other) = &variant.reply else {
            continue;
        };
        if seen.contains(&other) {
            continue;
        }
        seen.push(other);
        writeln!(out)?;
        let makers = prompt.variants.iter();
        let makers: Vec<&Variant> = makers
            .filter(|maker| maker.reply.as_ref() == Some(other))
            .collect();
        for of_engine in makers.chunk_by(|a, b| a.engine == b.engine) {
            let ways: Vec<&str> = of_engine.iter().map(|maker| maker.way.as_str()).collect();
            let name = names.engine(&of_engine[0].engine);
            writeln!(out, "{DIM}  {name}: {}{DIM:#}", ways.join(", "))?;
        }
        if let Some(flip) = &variant.difference.first_flip {
            writeln!(out, "{DIM}  {}{DIM:#}", parting(flip))?;
        }
        text(other, width, out)?;
    }
    Ok(())
}

/// Where the first of the runs that made a reply left the reference.
fn parting(flip: &AuditFlip) -> String {
    let (took, expected) = (&flip.took, &flip.expected);
    let name = |token: &FlippedToken| cut(&cell(&token.token, &token.bytes), TOKEN_WIDTH);
    let tie = match took.prob == expected.prob {
        true => " (a tie: the lower id is taken)",
        false => "",
    };
    format!(
        "step {}: {} {:.4} over {} {:.4} became {} {:.4} over {} {:.4}{tie}",
        flip.step,
        name(expected),
        expected.expected_prob,
        name(took),
        took.expected_prob,
        name(took),
        took.prob,
        name(expected),
        expected.prob
    )
}

fn text(reply: &AuditedReply, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let ending = match reply.finish_reason {
        FinishReason::Stop => "",
        FinishReason::Length => " (cut off)",
        FinishReason::Context => " (cut off at the model's longest sequence)",
    };
    paragraph(&format!("{}{ending}", escape_text(&reply.text)), width, out)
}

fn paragraph(text: &str, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let mut lines = Lines::new(width.map(|width| width.saturating_sub(INDENT)));
    lines.text(text);
    for line in lines.finish() {
        match line.as_str() {
            "" => writeln!(out)?,
            _ => writeln!(out, "{:INDENT$}{line}", "")?,
        }
    }
    Ok(())
}

fn skipped(audit: &Audit, out: &mut impl Write) -> io::Result<()> {
    for skipped in &audit.skipped {
        let name = engine(&skipped.engine);
        writeln!(
            out,
            "\nnot computed: {name}: {}",
            escape_line(&skipped.reason)
        )?;
    }
    Ok(())
}

/// Whether some instructions of the kernels promise no more than a sum in another order.
fn have_tiles(audit: &Audit) -> bool {
    let mut variants = audit.prompts.iter().flat_map(|prompt| &prompt.variants);
    variants.any(|variant| variant.engine.is_kernels() && !variant.promised)
}

/// What the numbers come to; nothing about other prompts, models or machines.
fn summary(audit: &Audit, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let Count { runs, of_them } = promises(audit);
    let promised = match runs - of_them {
        0 if have_tiles(audit) => "f32 on the kernels: every logit has the bits of the reference, whatever the threads, the rows beside it and the pieces, and where the instructions sum as the reference's: matrix tiles have an order of their own.".to_owned(),
        0 => "f32 on the kernels: every logit of every run has the bits of the reference, whatever the threads, the rows beside it, the pieces and the instructions.".to_owned(),
        broken => format!(
            "f32 on the kernels: {broken} of {runs} runs do not have the bits of the reference, which all should."
        ),
    };
    writeln!(out)?;
    sentence(&promised, width, out)?;
    for (index, prompt) in audit.prompts.iter().enumerate() {
        let greedy = match audit.prompts.len() {
            1 => "Greedy".to_owned(),
            _ => format!("Prompt {}, greedy", index + 1),
        };
        let is_reference =
            |variant: &Variant| variant.engine.dtype == "f32" || variant.reply.is_none();
        let all_same = prompt.variants.iter().all(is_reference);
        let f32 = counted(replies(prompt, "f32"), "one reply");
        let bf16 = counted(
            replies(prompt, "bf16"),
            if all_same { "the same" } else { "another" },
        );
        sentence(
            &format!("{greedy} in f32: {f32}; in bf16: {bf16}."),
            width,
            out,
        )?;
    }
    let mut variants = audit.prompts.iter().flat_map(|prompt| &prompt.variants);
    if variants.any(|variant| variant.engine.emulated) {
        let emulated = "bf16 emulated: computed in f32 and rounded wherever transformers leaves a bf16 tensor; sums inside a product stay f32.";
        sentence(emulated, width, out)?;
    }
    Ok(())
}

/// How many different replies there are; `one` where that is one.
fn counted(replies: Count, one: &str) -> String {
    match replies {
        Count { runs: 0, .. } => "no run".to_owned(),
        Count { of_them: 1, .. } => one.to_owned(),
        Count { runs, of_them } => format!("{of_them} different replies from {runs} runs"),
    }
}

fn sentence(text: &str, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let mut lines = Lines::new(width);
    lines.text(text);
    let mut lines = lines.finish().into_iter();
    lines.try_for_each(|line| writeln!(out, "{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::audit::tests::{audit, reply, same, variant};
    use crate::record::Candidate;
    use crate::record::audit::{AuditedStep, Skipped};

    fn flipped(token: &str, expected_prob: f32, prob: f32) -> FlippedToken {
        FlippedToken {
            token_id: 1,
            token: token.to_owned(),
            bytes: token.as_bytes().to_vec(),
            special: false,
            expected_prob,
            prob,
        }
    }

    fn differing(logit: f32) -> AuditDifference {
        AuditDifference {
            same_bits: false,
            largest_logit: logit,
            largest_logprob: logit / 2.0,
            largest_candidate_logprob: logit,
            close_steps: 1,
            ..same()
        }
    }

    /// Two runs in bf16 that flip alike, and one in f32 that is a little off.
    fn example() -> Audit {
        let flip = AuditFlip {
            step: 1,
            expected: flipped(" Paris", 0.51, 0.48),
            took: flipped("\u{1b}[31m", 0.49, 0.52),
        };
        let parted = |way: &str| Variant {
            difference: AuditDifference {
                flipped_steps: 1,
                first_flip: Some(flip.clone()),
                ..differing(0.125)
            },
            reply: Some(reply(&[2, 4], "Ly\u{1b}on")),
            ..variant("bf16", way)
        };
        let mut tensors = variant("f32", "alone");
        tensors.promised = false;
        tensors.engine.products = "tensors".to_owned();
        tensors.difference = differing(2e-6);
        let mut scored = variant("f32", "reply in one pass");
        scored.generates = false;
        let again = Variant {
            from_first_bf16: Some(same()),
            ..parted("in a batch of 8")
        };
        let mut audit = audit(vec![scored, tensors, parted("alone"), again]);
        audit.prompts[0].steps.push(AuditedStep {
            token: Candidate {
                token_id: 1,
                token: " Paris".to_owned(),
                bytes: b" Paris".to_vec(),
                special: false,
                logprob: -0.67,
                prob: 0.51,
            },
            margin: Some(0.04),
        });
        audit
    }

    fn shown(audit: &Audit, width: Option<usize>) -> String {
        let mut out = Vec::new();
        table(audit, width, &mut out).expect("a vector takes everything");
        anstream::adapter::strip_str(&String::from_utf8(out).expect("UTF-8")).to_string()
    }

    #[test]
    fn every_run_has_a_row_and_every_other_reply_is_shown_once() {
        let shown = shown(&example(), None);
        let table = shown.split_once("Prompt").expect("a prompt").1;
        insta::assert_snapshot!(table, @r"
        : Hi

          reference: f32, 1 token
            a

          run                          Δ logprob   Δ best 5    Δ logit  >10 %  close  flips  reply
          f32, kernels
            reply in one pass                  0          0          0      0      0      0  -

          f32, tensor operations
            alone                      0.0000010  0.0000020  0.0000020      0      1      0  same

          bf16 emulated, kernels
            alone                         0.0625     0.1250     0.1250      0      1      1  another
            in a batch of 8               0.0625     0.1250     0.1250      0      1      1  another

          bf16, against its first run
            kernels, in a batch of 8           0          0          0      0      0      0

          bf16 emulated, kernels: alone, in a batch of 8
          step 1: ␠Paris 0.5100 over \u{1B}[31m 0.4900 became \u{1B}[31m 0.5200 over ␠Paris 0.4800
            Ly\u{1B}on

        f32 on the kernels: every logit of every run has the bits of the reference, whatever the threads, the rows beside it, the pieces and the instructions.
        Greedy in f32: one reply; in bf16: another.
        bf16 emulated: computed in f32 and rounded wherever transformers leaves a bf16 tensor; sums inside a product stay f32.
        ");
    }

    #[test]
    fn a_broken_promise_is_said_in_red() {
        let mut audit = example();
        audit.prompts[0].variants[0].difference = differing(0.5);
        let mut out = Vec::new();
        table(&audit, None, &mut out).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("UTF-8");
        assert!(
            text.contains(&format!("{LOW}    reply in one pass")),
            "{text}"
        );
        assert!(text.contains("1 of 1 runs do not have the bits"), "{text}");
    }

    #[test]
    fn what_was_not_computed_is_said_with_its_reason() {
        let mut audit = example();
        let engine = audit.prompts[0].variants[1].engine.clone();
        let reason = "the model needs about 8.0 GiB of memory".to_owned();
        audit.skipped.push(Skipped { engine, reason });
        let expected = "not computed: f32, tensor operations: the model needs about 8.0 GiB";
        assert!(shown(&audit, None).contains(expected));
    }

    #[test]
    fn a_difference_is_never_shown_as_none() {
        for (difference, expected) in [
            (0.0, "0"),
            (1e-9, "<0.0000001"),
            (1.9e-6, "0.0000019"),
            (0.0012, "0.0012"),
            (12.5, "12.5000"),
        ] {
            assert_eq!(size(difference), expected);
        }
        let zeros = AuditDifference {
            same_bits: false,
            ..same()
        };
        assert_eq!(row("alone", &zeros, "").cells[3], "<0.0000001");
    }

    #[test]
    fn text_fits_the_terminal() {
        let mut audit = example();
        audit.prompts[0].variants[2].reply = Some(reply(&[3], &"word ".repeat(30)));
        let shown = shown(&audit, Some(60));
        let wrapped: Vec<&str> = shown.lines().filter(|line| line.contains("word")).collect();
        assert!(wrapped.len() > 2 && wrapped.iter().all(|line| line.len() <= 60));
    }
}
