//! A prompt under audit: its reference, what was compared with it, and the entry of the record that becomes of them.

use anyhow::Result;

use super::engine::Engine;
use crate::analysis;
use crate::audit::{Difference, Led, Reference, Reply, Sides, Way, difference};
use crate::distribution::outlook::Outlook;
use crate::explore::Scored;
use crate::input::Input;
use crate::model::Logits;
use crate::record::audit::{
    AuditDifference, AuditFlip, AuditedPrompt, AuditedReply, AuditedStep, EngineInfo, FlippedToken,
    Variant,
};
use crate::transcript::{Transcript, plain_text};

/// A prompt's reference and what was compared with it.
pub(super) struct Subject {
    pub(super) reference: Reference,
    /// The logits of the first run in bf16.
    pub(super) first_bf16: Option<Vec<Logits>>,
    pub(super) runs: Vec<Compared>,
}

/// A run that was led through the reference's tokens.
pub(super) struct Compared {
    engine: EngineInfo,
    way: Way,
    is_promised: bool,
    difference: Difference,
    from_first_bf16: Option<Difference>,
    free: Option<Reply>,
}

impl Subject {
    /// Compares a run with the reference, and one in bf16 with the first of its kind.
    ///
    /// # Errors
    /// When its logits are no distributions.
    pub(super) fn add(
        &mut self,
        engine: &Engine,
        way: Way,
        led: Led,
        candidates: usize,
    ) -> Result<()> {
        let info = engine.info();
        let reply = &self.reference.reply.tokens;
        let compared = |with: &[Logits]| difference(with, &led.logits, reply, candidates);
        let is_bf16 = info.dtype == "bf16";
        let with_reference = compared(&self.reference.logits)?;
        let from_first_bf16 = match &self.first_bf16 {
            Some(first) if is_bf16 => Some(compared(first)?),
            _ => None,
        };
        self.runs.push(Compared {
            engine: info,
            way,
            is_promised: engine.is_promised,
            difference: with_reference,
            from_first_bf16,
            free: led.free,
        });
        if is_bf16 {
            self.first_bf16.get_or_insert(led.logits);
        }
        Ok(())
    }

    /// Writes it down.
    ///
    /// # Errors
    /// When the reference's logits are no distributions.
    pub(super) fn into_record(
        self,
        prompt: &str,
        input: Input,
        transcript: &Transcript,
    ) -> Result<AuditedPrompt> {
        let Reference { reply, logits } = self.reference;
        let steps = reply.tokens.iter().zip(logits).map(|(&token_id, logits)| {
            let outlook = Outlook::try_from(logits)?;
            let scored = Scored::of(&outlook, token_id)
                .expect("all of a local model's candidates are shown");
            Ok(AuditedStep {
                token: transcript.candidate(&scored),
                margin: outlook.margin(),
            })
        });
        let variants = self.runs.into_iter().map(|run| Variant {
            engine: run.engine,
            way: run.way.to_string(),
            promised: run.is_promised,
            difference: to_difference(run.difference, transcript),
            from_first_bf16: run
                .from_first_bf16
                .map(|difference| to_difference(difference, transcript)),
            generates: run.way.can_generate(),
            reply: run.free.map(|free| to_reply(free, transcript)),
        });
        Ok(AuditedPrompt {
            prompt: prompt.to_owned(),
            rendered: input.text,
            prompt_token_ids: input.ids,
            steps: steps.collect::<Result<_>>()?,
            reference: to_reply(reply, transcript),
            variants: variants.collect(),
        })
    }
}

fn to_reply(reply: Reply, transcript: &Transcript) -> AuditedReply {
    let length = analysis::text_len(reply.finish_reason, reply.tokens.len());
    AuditedReply {
        text: transcript
            .vocabulary
            .detokenize(&reply.tokens[..length])
            .text,
        finish_reason: reply.finish_reason,
        token_ids: reply.tokens,
    }
}

fn to_difference(difference: Difference, transcript: &Transcript) -> AuditDifference {
    let token = |sides: Sides| {
        let token = transcript.vocabulary.token(sides.token_id);
        FlippedToken {
            token_id: sides.token_id,
            token: plain_text(&token),
            bytes: token.bytes,
            special: token.special,
            expected_prob: sides.expected as f32,
            prob: sides.found as f32,
        }
    };
    AuditDifference {
        same_bits: difference.is_same_bits,
        largest_logit: difference.logit as f32,
        largest_logprob: difference.logprob as f32,
        largest_candidate_logprob: difference.candidates_logprob as f32,
        steps_beyond_tenth: difference.num_beyond_tenth,
        close_steps: difference.num_close,
        flipped_steps: difference.num_flips,
        first_flip: difference.first_flip.map(|flip| AuditFlip {
            step: flip.step,
            expected: token(flip.expected),
            took: token(flip.took),
        }),
    }
}
