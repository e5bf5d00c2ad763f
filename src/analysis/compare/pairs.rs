//! Which prompt of one record is which of the other.
//!
//! By id where both have one; else by rendered text, system message and prompt, then without the rendered text, then by the
//! prompt alone. Prompts that are repeated are taken in their order.

use std::collections::HashMap;

use crate::record::{PromptEntry, Record};

/// The same prompt on both sides; at least one of them is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pair {
    /// Place in A, from 0.
    pub(super) a: Option<usize>,
    /// Place in B, from 0.
    pub(super) b: Option<usize>,
}

/// What prompts are known by, from the surest to the least sure.
type Key<'a> = [Option<&'a str>; 3];

/// Returns one pair a prompt: those of A in their order, then those that only B has.
pub(super) fn pairs(a: &Record, b: &Record) -> Vec<Pair> {
    let (of_a, of_b) = (traits(a), traits(b));
    let mut partner: Vec<Option<usize>> = vec![None; of_a.len()];
    let mut is_taken = vec![false; of_b.len()];
    for key in KEYS {
        let mut free: HashMap<Key, Vec<usize>> = HashMap::new();
        for (place, traits) in of_b.iter().enumerate() {
            if let Some(key) = key(traits).filter(|_| !is_taken[place]) {
                free.entry(key).or_default().push(place);
            }
        }
        for (mine, partner) in of_a.iter().zip(&mut partner) {
            let Some(places) = key(mine).and_then(|key| free.get_mut(&key)) else {
                continue;
            };
            let fits = |&place: &usize| may_be_same(mine, &of_b[place]);
            let found = places.iter().position(fits);
            if let (None, Some(found)) = (*partner, found) {
                let place = places.remove(found);
                is_taken[place] = true;
                *partner = Some(place);
            }
        }
    }
    let known = partner
        .iter()
        .enumerate()
        .map(|(a, &b)| Pair { a: Some(a), b });
    let others = is_taken.iter().enumerate();
    let others = others.filter_map(|(b, is_taken)| {
        (!is_taken).then_some(Pair {
            a: None,
            b: Some(b),
        })
    });
    known.chain(others).collect()
}

/// What a prompt can be known by.
struct Traits<'a> {
    id: Option<&'a str>,
    prompt: &'a str,
    /// Its own system message or that of its record.
    system: Option<&'a str>,
    /// `None` where it could not be run.
    rendered: Option<&'a str>,
}

fn traits(record: &Record) -> Vec<Traits<'_>> {
    let traits = record.prompts.iter().map(|entry| match entry {
        PromptEntry::Done(done) => Traits {
            id: done.id.as_deref(),
            prompt: &done.prompt,
            system: done.system.as_deref().or(record.settings.system.as_deref()),
            rendered: Some(&done.rendered),
        },
        PromptEntry::Failed(failed) => Traits {
            id: failed.id.as_deref(),
            prompt: &failed.prompt,
            system: failed
                .system
                .as_deref()
                .or(record.settings.system.as_deref()),
            rendered: None,
        },
    });
    traits.collect()
}

/// What a prompt is looked up by, one way after the other; `None` where it has no such thing.
const KEYS: [for<'a> fn(&Traits<'a>) -> Option<Key<'a>>; 4] = [
    |traits| traits.id.map(|id| [Some(id), None, None]),
    |traits| {
        let rendered = Some(traits.rendered?);
        Some([Some(traits.prompt), traits.system, rendered])
    },
    |traits| Some([Some(traits.prompt), traits.system, None]),
    |traits| Some([Some(traits.prompt), None, None]),
];

/// Whether the names of two prompts let them be the same.
fn may_be_same(a: &Traits, b: &Traits) -> bool {
    a.id.is_none() || b.id.is_none() || a.id == b.id
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare::tests::{done, failed, record};
    use crate::record::PromptRecord;
    use proptest::prelude::*;

    fn named(id: &str, prompt: &str) -> PromptEntry {
        PromptEntry::Done(PromptRecord {
            id: Some(id.into()),
            ..done(prompt, &[])
        })
    }

    fn plain(prompt: &str) -> PromptEntry {
        PromptEntry::Done(done(prompt, &[]))
    }

    fn paired(a: Vec<PromptEntry>, b: Vec<PromptEntry>) -> Vec<(Option<usize>, Option<usize>)> {
        let pairs = pairs(&record(a), &record(b));
        pairs.into_iter().map(|pair| (pair.a, pair.b)).collect()
    }

    #[test]
    fn an_id_goes_before_the_text_and_two_ids_are_two_prompts() {
        let a = vec![named("x", "one"), named("y", "two"), named("z", "three")];
        let b = vec![named("y", "other"), named("x", "one"), named("w", "three")];
        assert_eq!(
            paired(a, b),
            [
                (Some(0), Some(1)),
                (Some(1), Some(0)),
                (Some(2), None),
                (None, Some(2))
            ]
        );
        // a name that only one side has does not stand in the way
        assert_eq!(
            paired(vec![plain("one")], vec![named("x", "one")]),
            [(Some(0), Some(0))]
        );
    }

    #[test]
    fn repeated_prompts_are_taken_in_their_order() {
        let a = vec![plain("hi"), plain("ho"), plain("hi"), plain("hi")];
        let b = vec![plain("hi"), plain("hi"), plain("ho")];
        assert_eq!(
            paired(a, b),
            [
                (Some(0), Some(0)),
                (Some(1), Some(2)),
                (Some(2), Some(1)),
                (Some(3), None)
            ]
        );
    }

    #[test]
    fn the_same_rendered_text_is_preferred_and_a_prompt_alone_is_enough() {
        let with = |system: &str, rendered: &str| {
            PromptEntry::Done(PromptRecord {
                system: Some(system.into()),
                rendered: rendered.into(),
                ..done("hi", &[])
            })
        };
        let a = vec![with("s", "2"), with("s", "1"), with("t", "3")];
        let b = vec![with("s", "1"), with("s", "4"), with("u", "3")];
        assert_eq!(
            paired(a, b),
            [(Some(0), Some(1)), (Some(1), Some(0)), (Some(2), Some(2))]
        );
        assert_eq!(
            paired(vec![failed("hi")], vec![with("s", "1")]),
            [(Some(0), Some(0))]
        );
    }

    proptest! {
        #[test]
        fn every_prompt_is_in_one_pair_and_a_record_pairs_with_itself_in_order(
            kinds in prop::collection::vec((0..3u8, 0..3u8), 0..12), others in prop::collection::vec((0..3u8, 0..3u8), 0..12)
        ) {
            let entries = |kinds: &[(u8, u8)]| -> Vec<PromptEntry> {
                let of = |&(kind, text): &(u8, u8)| match kind {
                    0 => named(&text.to_string(), "p"),
                    1 => failed(&text.to_string()),
                    _ => plain(&text.to_string()),
                };
                kinds.iter().map(of).collect()
            };
            let pairs = paired(entries(&kinds), entries(&others));
            let mut of_a: Vec<usize> = pairs.iter().filter_map(|pair| pair.0).collect();
            let mut of_b: Vec<usize> = pairs.iter().filter_map(|pair| pair.1).collect();
            of_a.sort_unstable();
            of_b.sort_unstable();
            prop_assert_eq!(of_a, (0..kinds.len()).collect::<Vec<_>>());
            prop_assert_eq!(of_b, (0..others.len()).collect::<Vec<_>>());
            let itself = paired(entries(&kinds), entries(&kinds));
            prop_assert!(itself.iter().enumerate().all(|(place, pair)| *pair == (Some(place), Some(place))), "{:?}", itself);
        }
    }
}
