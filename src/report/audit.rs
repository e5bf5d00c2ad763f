//! An audit for a terminal: a row a run, the replies that are not the reference's, and what it comes to.

use std::io::{self, Write};

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
        runs(prompt, &best, out)?;
        other_replies(prompt, width, out)?;
    }
    skipped(audit, out)?;
    summary(audit, width, out)
}

/// Returns what computes runs, in words: `f32, avx2 kernels`.
pub fn engine(engine: &EngineInfo) -> String {
    let products = match engine.products.as_str() {
        "tensors" => "tensor operations".to_owned(),
        kernels => format!("{kernels} kernels"),
    };
    let how = if engine.emulated { " emulated" } else { "" };
    let place = match engine.device.as_str() {
        "cpu" => String::new(),
        device => format!(" on {device}"),
    };
    format!("{}{how}, {products}{place}", engine.dtype)
}

/// One row a run, under the name of what computes it.
fn runs(prompt: &AuditedPrompt, best: &str, out: &mut impl Write) -> io::Result<()> {
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
    let mut last = None;
    for variant in &prompt.variants {
        if last.replace(&variant.engine) != Some(&variant.engine) {
            lines.push(Line::title(vec![engine(&variant.engine)]));
        }
        lines.push(row(variant, &variant.difference, reply(variant)));
    }
    let mut is_begun = false;
    for variant in &prompt.variants {
        let Some(difference) = &variant.from_first_bf16 else {
            continue;
        };
        if !is_begun {
            lines.push(Line::title(vec!["bf16 against its first run".to_owned()]));
            is_begun = true;
        }
        let mut line = row(variant, difference, "");
        line.cells[0] = format!("  {}, {}", engine(&variant.engine), variant.way);
        lines.push(line);
    }
    writeln!(out)?;
    let mut sides = [Side::Right; 8];
    (sides[0], sides[7]) = (Side::Left, Side::Left);
    columns::write(&sides, &lines, out)
}

fn row(variant: &Variant, difference: &AuditDifference, reply: &str) -> Line {
    let style = match (variant.promised, difference.same_bits) {
        (true, false) => LOW,
        _ if difference.flipped_steps > 0 => BOLD,
        _ => anstyle::Style::new(),
    };
    Line {
        style,
        cells: vec![
            format!("  {}", variant.way),
            size(difference.largest_logprob),
            size(difference.largest_candidate_logprob),
            match (difference.same_bits, difference.largest_logit) {
                // bits differ, numbers do not: zeros of two signs
                (false, 0.0) => "-0".to_owned(),
                (_, logit) => size(logit),
            },
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
        let makers = prompt.variants.iter();
        let makers = makers.filter(|maker| maker.reply.as_ref() == Some(other));
        let names: Vec<String> = makers
            .map(|maker| format!("{}, {}", engine(&maker.engine), maker.way))
            .collect();
        writeln!(out)?;
        for name in &names {
            writeln!(out, "{DIM}  {name}{DIM:#}")?;
        }
        if let Some(flip) = &variant.difference.first_flip {
            let first = if names.len() > 1 {
                " (of the first)"
            } else {
                ""
            };
            writeln!(out, "{DIM}  {}{first}{DIM:#}", parting(flip))?;
        }
        text(other, width, out)?;
    }
    Ok(())
}

fn parting(flip: &AuditFlip) -> String {
    let (took, expected) = (&flip.took, &flip.expected);
    let name = |token: &FlippedToken| cut(&cell(&token.token, &token.bytes), TOKEN_WIDTH);
    format!(
        "step {}: {} {:.4} over {} {:.4} became {} {:.4} over {} {:.4}",
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

/// What the numbers come to; nothing about other prompts, models or machines.
fn summary(audit: &Audit, width: Option<usize>, out: &mut impl Write) -> io::Result<()> {
    let Count { runs, of_them } = promises(audit);
    let mut said = vec![match runs - of_them {
        0 => format!(
            "{} in f32 on the kernels, with other threads, rows beside it, pieces and instructions: every logit has the reference's bits.",
            plural(runs, "run")
        ),
        broken => format!(
            "{broken} of {runs} runs on the kernels do not have the reference's bits, which they should."
        ),
    }];
    for (index, prompt) in audit.prompts.iter().enumerate() {
        let of = match audit.prompts.len() {
            1 => String::new(),
            _ => format!("prompt {}: ", index + 1),
        };
        let counts = ["f32", "bf16"].map(|dtype| {
            let Count { runs, of_them } = replies(prompt, dtype);
            let noun = if of_them == 1 { "reply" } else { "replies" };
            format!(
                "{of_them} {noun} from {} in {dtype}",
                plural(runs, "greedy run")
            )
        });
        said.push(format!("{of}{}.", counts.join(", ")));
    }
    if audit.prompts.iter().any(|prompt| {
        prompt
            .variants
            .iter()
            .any(|variant| variant.engine.emulated)
    }) {
        said.push(
            "bf16 emulated: f32, rounded where transformers leaves a bf16 tensor; sums inside a product stay f32.".to_owned(),
        );
    }
    writeln!(out)?;
    for sentence in said {
        let mut lines = Lines::new(width);
        lines.text(&sentence);
        for line in lines.finish() {
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}
