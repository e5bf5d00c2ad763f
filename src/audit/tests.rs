//! Laws of auditing, on a scripted model with a fault of choice.

use super::*;
use crate::explore::{Plan as RunPlan, explore};
use anyhow::ensure;
use proptest::prelude::*;

const VOCAB: usize = 5;
const END: u32 = 4;

/// What a scripted model's logits depend on besides the tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// The number of rows that are stepped together.
    Batch,
    /// The pieces that tokens came in.
    Pieces,
    /// The number of threads.
    Threads,
    /// Whether tokens are scored in one pass.
    Scored,
}

/// A model of five tokens. Logits are whole numbers that depend on all tokens seen, in order; a fault adds `size` to those of
/// even ids.
#[derive(Debug, Clone, Copy)]
struct Scripted {
    fault: Fault,
    size: f32,
}

const SOUND: Scripted = Scripted {
    fault: Fault::None,
    size: 0.0,
};

/// Tokens seen, and whether they came in pieces.
#[derive(Debug, Clone, Default)]
struct Row(Vec<u32>, usize);

impl Scripted {
    fn logits(&self, tokens: &[u32], is_disturbed: bool) -> Logits {
        let hash = tokens
            .iter()
            .fold(7u32, |hash, &id| hash.wrapping_mul(31).wrapping_add(id + 1));
        // the end comes late
        let mut logits: Logits = (0..VOCAB as u32)
            .map(|id| (hash >> (5 * id) & 15) as f32)
            .collect();
        logits[END as usize] -= if tokens.len() < 12 { 20.0 } else { 0.0 };
        if is_disturbed {
            logits
                .iter_mut()
                .step_by(2)
                .for_each(|logit| *logit += self.size);
        }
        logits
    }
}

impl LanguageModel for Scripted {
    type Shown = Logits;
    type Row = Row;

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn max_positions(&self) -> usize {
        64
    }

    fn start(&self) -> Row {
        Row::default()
    }

    fn extend(&self, row: &mut Row, tokens: &[u32]) -> Result<Logits> {
        ensure!(!tokens.is_empty(), "no token");
        row.0.extend(tokens);
        row.1 += 1;
        let is_disturbed = match self.fault {
            Fault::Pieces => row.1 > 1,
            Fault::Threads => rayon::current_num_threads() == 3,
            _ => false,
        };
        Ok(self.logits(&row.0, is_disturbed))
    }

    fn step(&self, rows: &mut [Row], tokens: &[u32]) -> Result<Vec<Logits>> {
        let is_disturbed = self.fault == Fault::Batch && rows.len() > 1;
        let rows = rows.iter_mut().zip(tokens);
        rows.map(|(row, &token)| {
            row.0.push(token);
            Ok(self.logits(&row.0, is_disturbed))
        })
        .collect()
    }

    fn score(
        &self,
        row: &mut Row,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, Logits) -> Result<()>,
    ) -> Result<()> {
        ensure!(!tokens.is_empty(), "no token");
        tokens.iter().enumerate().try_for_each(|(index, &token)| {
            row.0.push(token);
            each(index, self.logits(&row.0, self.fault == Fault::Scored))
        })
    }
}

const WAYS: [Way; 6] = [
    Way::Alone,
    Way::Threads(3),
    Way::Batch(4),
    Way::Pieces(&[1]),
    Way::Pieces(&[2, 1]),
    Way::Scored,
];

const PROMPT: [u32; 3] = [1, 2, 3];

const PLAN: Plan = Plan {
    max_new_tokens: 20,
    stop_ids: &[END],
};

fn reference_of(model: &Scripted) -> Reference {
    let mut on = |_| ControlFlow::Continue(());
    reference(model, &PROMPT, &PLAN, &mut on)
        .expect("it runs")
        .expect("not broken off")
}

fn led(model: &Scripted, way: Way, reference: &Reference) -> Led {
    let mut on = |_| ControlFlow::Continue(());
    lead(model, way, &PROMPT, &reference.reply.tokens, &PLAN, &mut on)
        .expect("it runs")
        .expect("not broken off")
}

fn compared(reference: &Reference, led: &Led) -> Difference {
    difference(&reference.logits, &led.logits, &reference.reply.tokens, 3).expect("distributions")
}

#[test]
fn the_reference_is_the_greedy_run() -> Result<()> {
    let plan = RunPlan {
        max_new_tokens: PLAN.max_new_tokens,
        settings: Vec::new(),
        runs: Vec::new(),
        seed: 0,
        stop_ids: PLAN.stop_ids.to_vec(),
        candidates: 1,
        mass: 0.9,
    };
    let mut on = |_| ControlFlow::Continue(());
    let greedy = explore(&SOUND, &PROMPT, &plan, &mut on)?
        .expect("not broken off")
        .greedy;
    let ids: Vec<u32> = greedy
        .steps
        .iter()
        .map(|step| step.token.token_id)
        .collect();
    let reference = reference_of(&SOUND);
    assert!(ids.len() > 5);
    assert_eq!(reference.reply.tokens, ids);
    assert_eq!(reference.reply.finish_reason, greedy.finish_reason);
    for (logits, step) in reference.logits.iter().zip(&greedy.steps) {
        assert_eq!(Some(logits[step.token.token_id as usize]), step.token.logit);
    }
    Ok(())
}

#[test]
fn a_model_that_depends_on_tokens_alone_has_the_same_bits_in_every_way() {
    let reference = reference_of(&SOUND);
    for way in WAYS {
        let led = led(&SOUND, way, &reference);
        assert_eq!(led.free, None, "{way}");
        let difference = compared(&reference, &led);
        assert!(difference.is_same_bits, "{way}");
        assert_eq!(
            (difference.logit, difference.num_close, difference.num_flips),
            (0.0, 0, 0)
        );
    }
}

#[test]
fn what_a_model_depends_on_is_found_in_the_ways_that_change_it_and_no_others() {
    for (fault, guilty) in [
        (Fault::Batch, vec![Way::Batch(4)]),
        (Fault::Pieces, vec![Way::Pieces(&[1]), Way::Pieces(&[2, 1])]),
        (Fault::Threads, vec![Way::Threads(3)]),
        (Fault::Scored, vec![Way::Scored]),
    ] {
        let model = Scripted { fault, size: 0.25 };
        let reference = reference_of(&model);
        for way in WAYS {
            let difference = compared(&reference, &led(&model, way, &reference));
            let is_guilty = guilty.contains(&way);
            assert_eq!(difference.is_same_bits, !is_guilty, "{fault:?}, {way}");
            assert_eq!(
                difference.logit,
                if is_guilty { 0.25 } else { 0.0 },
                "{fault:?}, {way}"
            );
        }
    }
}

#[test]
fn a_run_that_flips_goes_on_by_itself_from_there() {
    let model = Scripted {
        fault: Fault::Batch,
        size: 9.0,
    };
    let reference = reference_of(&model);
    let led = led(&model, Way::Batch(2), &reference);
    let difference = compared(&reference, &led);
    let flip = difference
        .first_flip
        .expect("nine is more than some margins");
    assert!(flip.step > 1, "the prompt is fed alone");
    assert!(flip.took.found > flip.expected.found && flip.took.expected < flip.expected.expected);
    let free = led.free.expect("it parts");
    let before = flip.step - 1;
    assert_eq!(free.tokens[..before], reference.reply.tokens[..before]);
    assert_eq!(free.tokens[before], flip.took.token_id);
    // from there on it is what the disturbed model says of its own tokens
    for (index, &token) in free.tokens.iter().enumerate().skip(before) {
        let seen = [&PROMPT[..], &free.tokens[..index]].concat();
        let best = argmax(&model.logits(&seen, true)).expect("finite");
        assert_eq!(token, best);
    }
    assert_eq!(led.logits.len(), reference.logits.len());
}

#[test]
fn differences_are_those_that_a_reader_computes() {
    let ln = |numbers: [f64; 3]| numbers.map(|x| x.ln() as f32).to_vec();
    let expected = [ln([6.0, 3.0, 1.0]), ln([1.0, 1.0, 8.0])];
    let found = [ln([4.0, 5.0, 1.0]), ln([1.0, 1.0, 8.0])];
    let difference = difference(&expected, &found, &[0, 2], 2).expect("distributions");
    let flip = difference.first_flip.expect("the first step flips");
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
    assert_eq!(
        (flip.step, flip.expected.token_id, flip.took.token_id),
        (1, 0, 1)
    );
    assert!(close(flip.expected.expected, 0.6) && close(flip.expected.found, 0.4));
    assert!(close(flip.took.expected, 0.3) && close(flip.took.found, 0.5));
    assert!(close(difference.logit, (5.0f64 / 3.0).ln()));
    assert!(close(difference.logprob, (6.0f64 / 4.0).ln()));
    assert!(close(difference.candidates_logprob, (5.0f64 / 3.0).ln()));
    // the margins are ln 2, within twice ln(5/3), and ln 8, which is not
    assert_eq!(
        (
            difference.num_close,
            difference.num_flips,
            difference.num_beyond_tenth
        ),
        (1, 1, 1)
    );
    assert!(!difference.is_same_bits);
}

#[test]
fn what_cannot_be_compared_is_refused() {
    assert!(difference(&[vec![0.0]], &[], &[0], 1).is_err());
    assert!(difference(&[vec![f32::NAN]], &[vec![0.0]], &[0], 1).is_err());
    let mut on = |_| ControlFlow::Continue(());
    assert!(lead(&SOUND, Way::Alone, &PROMPT, &[], &PLAN, &mut on).is_err());
    assert!(reference(&SOUND, &[], &PLAN, &mut on).is_err());
    assert!(reference(&SOUND, &[1; 64], &PLAN, &mut on).is_err());
}

#[test]
fn a_run_that_is_broken_off_has_no_result() -> Result<()> {
    let reply = reference_of(&SOUND).reply.tokens;
    let mut off = |done| match done {
        3 => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    assert_eq!(reference(&SOUND, &PROMPT, &PLAN, &mut off)?, None);
    assert_eq!(
        lead(&SOUND, Way::Batch(2), &PROMPT, &reply, &PLAN, &mut off)?,
        None
    );
    Ok(())
}

#[test]
fn neighbours_are_of_many_lengths() {
    let lengths = |prompt: &[u32], count| {
        let lengths = neighbours(prompt, count).map(|ids| ids.len());
        lengths.collect::<Vec<_>>()
    };
    assert_eq!(lengths(&[1, 2, 3, 4, 5, 6, 7], 3), [1, 4, 7]);
    assert_eq!(lengths(&[1], 2), [1, 1]);
    assert_eq!(lengths(&[1, 2], 1), [1]);
    assert_eq!(neighbours(&[1, 2, 3], 2).last(), Some(vec![3, 2, 1]));
}

proptest! {
    /// The law behind `num_close`: a step flips only where the margin is within twice the largest difference.
    #[test]
    fn no_step_flips_whose_margin_is_wider_than_twice_the_largest_difference(
        steps in prop::collection::vec(prop::collection::vec((-8f32..8.0, -1f32..1.0), 3), 1..6),
        scale in prop::sample::select(vec![0f32, 0.01, 0.5, 4.0]),
    ) {
        let of = |pick: fn(&(f32, f32), f32) -> f32| -> Vec<Logits> {
            steps.iter().map(|step| step.iter().map(|pair| pick(pair, scale)).collect()).collect()
        };
        let expected = of(|&(logit, _), _| logit);
        let found = of(|&(logit, noise), scale| logit + noise * scale);
        let reply: Vec<u32> = expected.iter().map(|logits| argmax(logits).expect("finite")).collect();
        let difference = difference(&expected, &found, &reply, 3).expect("finite");
        prop_assert!(difference.num_flips <= difference.num_close);
        prop_assert!(difference.logprob <= difference.candidates_logprob);
        // a distribution moves by at most twice what its logits do
        prop_assert!(difference.candidates_logprob <= 2.0 * difference.logit + 1e-9);
        prop_assert_eq!(difference.first_flip.is_some(), difference.num_flips > 0);
    }
}
