//! `audit`: the greedy run of some prompts again, in every way that this machine can compute it.

mod engine;
mod subject;

use std::ops::ControlFlow;
use std::process::ExitCode;

use anyhow::Result;
use indicatif::ProgressBar;

use self::engine::Engine;
use self::subject::Subject;
use crate::analysis::audit::{Count, promises};
use crate::audit::{Plan, lead, reference};
use crate::checkpoint::Checkpoint;
use crate::cli::AuditRequest;
use crate::input::{Input, to_input};
use crate::interrupt::Interrupt;
use crate::loading::{load, model_info, open};
use crate::model::decoder::Decoder;
use crate::prompts::{BUILT_IN, Prompt};
use crate::record::audit::{Audit, AuditSettings, Skipped};
use crate::record::{PROGRAM, SCHEMA};
use crate::screen::Stderr;
use crate::transcript::Transcript;
use crate::{device, progress, report};

/// Computes and prints.
///
/// # Errors
/// When the model or a prompt cannot be used.
pub(crate) fn run(request: &AuditRequest) -> Result<ExitCode> {
    device::set_threads(request.model.threads);
    let engines = Engine::all(request.model.device)?;
    let messages = Stderr::USUAL;
    let checkpoint = open(&request.model, &messages)?;
    messages.chat_notes(&request.chat, checkpoint.template.as_ref());
    let prompts: Vec<&str> = match request.prompts.as_slice() {
        [] => BUILT_IN.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let read = |&prompt: &&str| {
        let prompt = Prompt::from(prompt);
        to_input(&prompt, &request.chat, request.max_new_tokens, &checkpoint)
    };
    let inputs: Vec<Input> = prompts.iter().map(read).collect::<Result<_>>()?;
    let settings = to_settings(request, &checkpoint, &inputs);
    let interrupt = Interrupt::listen()?;
    let mut auditor = Auditor {
        checkpoint: &checkpoint,
        plan: Plan {
            max_new_tokens: request.max_new_tokens,
            stop_ids: &settings.stop_ids,
        },
        candidates: settings.candidates,
        interrupt: &interrupt,
        subjects: Vec::new(),
        skipped: Vec::new(),
    };
    for engine in &engines {
        if auditor.compute(engine, &inputs, &messages)?.is_break() {
            return Ok(interrupt
                .exit_code()
                .map_or(ExitCode::FAILURE, ExitCode::from));
        }
    }
    let Auditor {
        subjects, skipped, ..
    } = auditor;
    let transcript = Transcript {
        vocabulary: &checkpoint.tokenizer,
        threshold: 0.0,
    };
    let prompts = prompts.into_iter().zip(inputs).zip(subjects);
    let prompts =
        prompts.map(|((prompt, input), subject)| subject.into_record(prompt, input, &transcript));
    let audit = Audit {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        model: model_info(&checkpoint, &engines[0].compute),
        prompts: prompts.collect::<Result<_>>()?,
        settings,
        skipped,
    };
    super::print(&audit, request.print, |audit, width, out| {
        report::audit::table(audit, width, out)
    })?;
    Ok(verdict(&audit, &messages))
}

/// Says what the program promised and did not hold.
fn verdict(audit: &Audit, messages: &Stderr) -> ExitCode {
    let Count { runs, of_them } = promises(audit);
    match runs - of_them {
        0 => ExitCode::SUCCESS,
        broken => {
            messages.warn(&format!(
                "{broken} of {runs} runs that promise the reference's bits have others (please report this with the output of --json)"
            ));
            ExitCode::from(3)
        }
    }
}

/// An audit on its way.
struct Auditor<'a> {
    checkpoint: &'a Checkpoint,
    plan: Plan<'a>,
    candidates: usize,
    interrupt: &'a Interrupt,
    /// One entry a prompt, once there are references.
    subjects: Vec<Subject>,
    skipped: Vec<Skipped>,
}

impl Auditor<'_> {
    /// Makes all runs of one engine; breaks when the user wants the program to end.
    fn compute(
        &mut self,
        engine: &Engine,
        inputs: &[Input],
        messages: &Stderr,
    ) -> Result<ControlFlow<()>> {
        let is_first = self.subjects.is_empty();
        let needed = engine.weight_bytes(self.checkpoint);
        if let (false, Err(error)) = (is_first, engine.compute.check_memory(needed)) {
            self.skipped.push(Skipped {
                engine: engine.info(),
                reason: format!("{error:#}"),
            });
            return Ok(ControlFlow::Continue(()));
        }
        let decoder = load(self.checkpoint, &engine.compute, messages)?;
        if is_first {
            let most = self.plan.max_new_tokens.saturating_mul(inputs.len());
            let bar = progress::bar("reference", most as u64, false);
            let done = self.refer(&decoder, inputs, &bar);
            bar.finish_and_clear();
            if done?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let steps = self
            .subjects
            .iter()
            .map(|subject| subject.reference.reply.tokens.len());
        let steps = steps.sum::<usize>() * engine.ways.len();
        let name = report::audit::engine(&engine.info());
        let bar = progress::bar(&name, steps as u64, false);
        let done = self.repeat(engine, &decoder, inputs, &bar);
        bar.finish_and_clear();
        done
    }

    /// Makes the references.
    fn refer(
        &mut self,
        decoder: &Decoder,
        inputs: &[Input],
        bar: &ProgressBar,
    ) -> Result<ControlFlow<()>> {
        for (index, input) in inputs.iter().enumerate() {
            let before = index.saturating_mul(self.plan.max_new_tokens);
            let mut watch = watch(bar, before, self.interrupt);
            let Some(reference) = reference(decoder, &input.ids, &self.plan, &mut watch)? else {
                return Ok(ControlFlow::Break(()));
            };
            self.subjects.push(Subject {
                reference,
                first_bf16: None,
                runs: Vec::new(),
            });
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Leads the engine's runs through the references.
    fn repeat(
        &mut self,
        engine: &Engine,
        decoder: &Decoder,
        inputs: &[Input],
        bar: &ProgressBar,
    ) -> Result<ControlFlow<()>> {
        let mut before = 0;
        for (subject, input) in self.subjects.iter_mut().zip(inputs) {
            for &way in engine.ways {
                let reply = &subject.reference.reply.tokens;
                let mut watch = watch(bar, before, self.interrupt);
                before += reply.len();
                match lead(decoder, way, &input.ids, reply, &self.plan, &mut watch)? {
                    Some(led) => subject.add(engine, way, led, self.candidates)?,
                    None => return Ok(ControlFlow::Break(())),
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// Shows how many steps are done, `before` them already, and breaks when the user wants the program to end.
fn watch(
    bar: &ProgressBar,
    before: usize,
    interrupt: &Interrupt,
) -> impl FnMut(usize) -> ControlFlow<()> + Send {
    move |done| {
        bar.set_position((before + done) as u64);
        match interrupt.exit_code() {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }
}

fn to_settings(request: &AuditRequest, checkpoint: &Checkpoint, inputs: &[Input]) -> AuditSettings {
    let template = checkpoint.template.as_ref().filter(|_| !request.chat.raw);
    AuditSettings {
        max_new_tokens: request.max_new_tokens,
        candidates: request.candidates.min(checkpoint.config.vocab_size),
        thinking: template
            .filter(|template| template.has_thinking_switch())
            .map(|_| request.chat.thinking),
        raw: request.chat.raw,
        system: request.chat.system.clone(),
        template_source: template.map(|template| template.source().to_owned()),
        stop_ids: checkpoint.stop_ids.clone(),
        plain_text: request.chat.plain_text,
        template_date: inputs.iter().find_map(|input| input.date.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::audit::tests::{audit, variant};

    #[test]
    fn a_broken_promise_is_a_failed_check() {
        let kept = audit(vec![variant("f32", "1 thread"), variant("bf16", "alone")]);
        let code = |audit: &Audit| format!("{:?}", verdict(audit, &Stderr::USUAL));
        assert_eq!(code(&kept), format!("{:?}", ExitCode::SUCCESS));
        let mut broken = kept.clone();
        broken.prompts[0].variants[1].difference.same_bits = false;
        assert_eq!(
            code(&broken),
            format!("{:?}", ExitCode::SUCCESS),
            "bf16 promises nothing"
        );
        broken.prompts[0].variants[0].difference.same_bits = false;
        assert_eq!(code(&broken), format!("{:?}", ExitCode::from(3)));
    }
}
