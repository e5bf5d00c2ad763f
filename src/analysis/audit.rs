//! What an audit comes to: promises that were kept, and how many replies there are.

use std::collections::BTreeSet;

use crate::record::audit::{Audit, AuditedPrompt, Variant};

/// Some runs of a prompt together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// How many there are.
    pub runs: usize,
    /// How many of them have the property that is asked for.
    pub of_them: usize,
}

/// Returns how many runs promise the reference's bits, and how many of them have these.
pub fn promises(audit: &Audit) -> Count {
    let variants = audit.prompts.iter().flat_map(|prompt| &prompt.variants);
    let promised: Vec<&Variant> = variants.filter(|variant| variant.promised).collect();
    let kept = promised
        .iter()
        .filter(|variant| variant.difference.same_bits);
    Count {
        runs: promised.len(),
        of_them: kept.count(),
    }
}

/// Returns how many runs in `dtype` were left to themselves, and how many different replies they made. The reference is one of
/// those in f32.
pub fn replies(prompt: &AuditedPrompt, dtype: &str) -> Count {
    let of_dtype = |variant: &&Variant| variant.engine.dtype == dtype && variant.generates;
    let variants: Vec<&Variant> = prompt.variants.iter().filter(of_dtype).collect();
    let reference = &prompt.reference.token_ids;
    let made = variants.iter().map(|variant| match &variant.reply {
        Some(reply) => &reply.token_ids,
        None => reference,
    });
    let is_there = dtype == "f32";
    let distinct: BTreeSet<&Vec<u32>> = made.chain(is_there.then_some(reference)).collect();
    Count {
        runs: variants.len() + usize::from(is_there),
        of_them: distinct.len(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::record::audit::{AuditDifference, AuditSettings, AuditedReply, EngineInfo};
    use crate::record::{FinishReason, ModelInfo, PROGRAM, SCHEMA};

    pub(crate) fn same() -> AuditDifference {
        AuditDifference {
            same_bits: true,
            largest_logit: 0.0,
            largest_logprob: 0.0,
            largest_candidate_logprob: 0.0,
            steps_beyond_tenth: 0,
            close_steps: 0,
            flipped_steps: 0,
            first_flip: None,
        }
    }

    pub(crate) fn reply(token_ids: &[u32], text: &str) -> AuditedReply {
        AuditedReply {
            text: text.to_owned(),
            finish_reason: FinishReason::Stop,
            token_ids: token_ids.to_vec(),
        }
    }

    /// A run that equals the reference.
    pub(crate) fn variant(dtype: &str, way: &str) -> Variant {
        Variant {
            engine: EngineInfo {
                products: "avx2".to_owned(),
                device: "cpu".to_owned(),
                dtype: dtype.to_owned(),
                emulated: dtype == "bf16",
            },
            way: way.to_owned(),
            promised: dtype == "f32",
            difference: same(),
            from_first_bf16: None,
            generates: true,
            reply: None,
        }
    }

    pub(crate) fn audit(variants: Vec<Variant>) -> Audit {
        Audit {
            schema: SCHEMA,
            program: PROGRAM.to_owned(),
            model: ModelInfo {
                id: "tiny".to_owned(),
                revision: None,
                architecture: "llama".to_owned(),
                vocab_size: 5,
                weights_dtype: "bf16".to_owned(),
                compute_dtype: "f32".to_owned(),
                device: "cpu".to_owned(),
                tiles: false,
                note: None,
                server: None,
            },
            settings: AuditSettings {
                max_new_tokens: 64,
                candidates: 5,
                thinking: None,
                raw: true,
                system: None,
                template_source: None,
                stop_ids: vec![4],
                plain_text: false,
                template_date: None,
            },
            prompts: vec![AuditedPrompt {
                prompt: "Hi".to_owned(),
                rendered: "Hi".to_owned(),
                prompt_token_ids: vec![1, 2],
                reference: reply(&[1, 4], "a"),
                steps: Vec::new(),
                variants,
            }],
            skipped: Vec::new(),
        }
    }

    #[test]
    fn a_promise_is_kept_by_equal_bits_alone() {
        let mut broken = variant("f32", "in a batch of 8");
        broken.difference.same_bits = false;
        let audit = audit(vec![
            variant("f32", "1 thread"),
            broken,
            variant("bf16", "alone"),
        ]);
        let expected = Count {
            runs: 2,
            of_them: 1,
        };
        assert_eq!(promises(&audit), expected);
    }

    #[test]
    fn a_run_that_does_not_part_made_the_reply_of_the_reference() {
        let mut scored = variant("bf16", "reply in one pass");
        scored.generates = false;
        let parted = |tokens: &[u32]| Variant {
            reply: Some(reply(tokens, "b")),
            ..variant("bf16", "alone")
        };
        let variants = vec![
            variant("f32", "1 thread"),
            scored,
            variant("bf16", "alone"),
            parted(&[2, 4]),
            parted(&[2, 4]),
        ];
        let prompt = &audit(variants).prompts[0];
        assert_eq!(
            replies(prompt, "f32"),
            Count {
                runs: 2,
                of_them: 1
            }
        );
        assert_eq!(
            replies(prompt, "bf16"),
            Count {
                runs: 3,
                of_them: 2
            }
        );
    }
}
