use super::*;
use crate::distribution::Distribution;
use proptest::prelude::*;

fn from_probs(vocab_size: usize, probs: &[f64]) -> Result<Shown> {
    let best = (0u32..).zip(probs).map(|(id, prob)| (id, prob.ln()));
    Shown::from_best(vocab_size, best.collect())
}

fn shown(vocab_size: usize, probs: &[f64]) -> Shown {
    from_probs(vocab_size, probs).expect("the best of a distribution")
}

fn temperature(value: f64) -> Setting {
    Setting::OFF.with_temperature(value).expect("a temperature")
}

/// Six candidates, of which 0.5 and 0.3 are shown: the others have 0.2.
#[test]
fn what_is_not_shown_has_the_rest_of_the_mass() {
    let two = shown(6, &[0.5, 0.3]);
    assert_eq!((two.mass_count(0.8), two.mass_count(0.9)), (Some(2), None));
    // the last one shown may have unseen equals with a lower id
    assert_eq!(
        (two.rank(0), two.rank(1), two.rank(2)),
        (Some(1), None, None)
    );
    assert_eq!(
        (two.argmax(), two.logprob(1), two.logprob(5)),
        (Some(0), Some(0.3f64.ln()), None)
    );
    assert!((two.margin().expect("two") - (0.5f32 / 0.3).ln()).abs() < 1e-6);
    let bounds = two.bounds(0.9).expect("four are unseen");
    assert_eq!((bounds.shown, bounds.mass_count_at_least), (2, Some(3)));
    assert!((bounds.shown_mass - 0.8).abs() < 1e-6);
    // the rest's 0.2, give or take what sums are off by, in four equal parts, or each of its parts as probable as 0.3
    let shown_bits = 0.5 + 0.3 * (1.0f32 / 0.3).log2();
    assert!(
        (bounds.entropy_bits_at_most - shown_bits - 0.201 * (4.0f32 / 0.201).log2()).abs() < 1e-5
    );
    assert!(
        (bounds.entropy_bits_at_least - shown_bits - 0.199 * (1.0f32 / 0.3).log2()).abs() < 1e-5
    );
    assert_eq!(
        two.bounds(0.8)
            .expect("four are unseen")
            .mass_count_at_least,
        None
    );
}

#[test]
fn a_coin_within_the_shown_mass_is_decided_at_temperature_one() {
    let two = shown(6, &[0.5, 0.3]);
    let all = two.filtered(&Setting::OFF);
    assert_eq!(
        (all.draw(0.49), all.draw(0.51), all.draw(0.81)),
        (Some(0), None, None)
    );
    let three = shown(6, &[0.5, 0.3, 0.1]);
    let all = three.filtered(&Setting::OFF);
    assert_eq!(
        (all.draw(0.51), all.draw(0.79), all.draw(0.81)),
        (Some(1), Some(1), None)
    );
    let sampling = all.sampling(1);
    assert_eq!((sampling.kept, sampling.kept_mass), (Some(6), Some(1.0)));
    assert!((sampling.prob.expect("exact") - 0.3).abs() < 1e-6);
}

/// At temperature 2 the weights are roots: 0.7071 and 0.5477 are shown, and the rest's mass R weighs between R/√0.3 and 4√(R/4);
/// it is 0.2, give or take what a server's sums are off by.
#[test]
fn at_other_temperatures_the_rest_is_bounded() {
    let two = shown(6, &[0.5, 0.3]);
    let warm = two.filtered(&temperature(2.0));
    let best = 0.5f64.sqrt();
    let rest = Span {
        low: (best + 0.3f64.sqrt() + 0.199 / 0.3f64.sqrt()) / best,
        high: (best + 0.3f64.sqrt() + 4.0 * (0.201f64 / 4.0).sqrt()) / best,
    };
    assert!(
        (warm.total.low - rest.low).abs() < 1e-12 && (warm.total.high - rest.high).abs() < 1e-12
    );
    assert_eq!((warm.draw(0.3), warm.draw(0.45)), (Some(0), None));
    assert_eq!(
        (warm.sampling(0).prob, warm.sampling(0).kept),
        (None, Some(6))
    );
    let cold = two.filtered(&temperature(0.5));
    assert_eq!(cold.draw(0.6), Some(0));
}

#[test]
fn filters_are_exact_as_far_as_what_is_shown_decides_them() {
    let four = shown(100, &[0.4, 0.3, 0.15, 0.1]);
    let kept = |setting: Setting| four.filtered(&setting).kept.known();
    assert_eq!(kept(Setting::OFF.with_top_k(3)), Some(3));
    assert_eq!(kept(Setting::OFF.with_top_k(50)), Some(50));
    let top_p = |p| Setting::OFF.with_top_p(p).expect("a mass");
    assert_eq!(
        (kept(top_p(0.7)), kept(top_p(0.95)), kept(top_p(0.96))),
        (Some(2), Some(4), None)
    );
    let min_p = |p| Setting::OFF.with_min_p(p).expect("a share");
    // 0.1 is a quarter of the best; unseen ones may be as probable
    assert_eq!(
        (kept(min_p(0.3)), kept(min_p(0.26)), kept(min_p(0.25))),
        (Some(3), Some(3), None)
    );
    let nucleus = four.filtered(&top_p(0.7));
    let sampling = nucleus.sampling(1);
    assert!((sampling.prob.expect("exact") - 0.3 / 0.7).abs() < 1e-6);
    assert!((sampling.kept_mass.expect("exact") - 0.7).abs() < 1e-6);
}

#[test]
fn temperature_zero_is_the_best_candidate_and_needs_no_more_than_it() {
    let two = shown(1000, &[0.5, 0.1]);
    let greedy = two.filtered(&temperature(0.0));
    assert_eq!((greedy.draw(0.0), greedy.draw(0.999)), (Some(0), Some(0)));
    let sampling = greedy.sampling(0);
    assert_eq!(
        (sampling.prob, sampling.kept, sampling.kept_mass),
        (Some(1.0), Some(1), Some(0.5))
    );
}

#[test]
fn candidates_that_tie_with_the_last_one_shown_have_no_place() {
    let tied = shown(10, &[0.2, 0.1, 0.1]);
    assert_eq!(
        (tied.rank(0), tied.rank(1), tied.rank(2)),
        (Some(1), None, None)
    );
    assert_eq!(tied.mass_count(0.3), Some(2));
    let flat = shown(10, &[0.1, 0.1]);
    assert_eq!(flat.argmax(), None);
    assert_eq!(flat.filtered(&temperature(0.0)).draw(0.5), None);
    // all of them have their places
    assert_eq!(shown(2, &[0.5, 0.5]).rank(1), Some(2));
}

#[test]
fn a_whole_distribution_is_renormalised_and_leaves_nothing_open() {
    let whole = shown(3, &[0.5002, 0.3001, 0.2]);
    assert!((whole.logprob(0).expect("shown").exp() - 0.5002 / 1.0003).abs() < 1e-12);
    assert_eq!((whole.bounds(0.9), whole.mass_count(1.0)), (None, Some(3)));
    assert!(whole.entropy_bits().is_some());
    // nothing is less probable than what has no probability at all
    let sure = Shown::from_best(9, vec![(4, 0.0), (2, f64::NEG_INFINITY)]).expect("a certainty");
    assert_eq!(
        (sure.bounds(0.9), sure.entropy_bits(), sure.margin()),
        (None, Some(0.0), None)
    );
    assert_eq!((sure.argmax(), sure.rank(2)), (Some(4), None));
    assert_eq!(sure.filtered(&Setting::OFF).draw(0.999), Some(4));
}

#[test]
fn answers_that_are_no_best_candidates_are_refused() {
    for (vocab_size, best, expected) in [
        (9, vec![], "no candidate"),
        (9, vec![(1, -0.1), (1, -3.0)], "token id 1 was shown twice"),
        (
            9,
            vec![(9, -0.1)],
            "token id 9 was shown (expected ids below the vocabulary of 9)",
        ),
        (9, vec![(1, 17.3)], "is 17.3 (expected at most 0)"),
        (9, vec![(1, f64::NAN)], "is NaN"),
        (9, vec![(1, -0.1), (2, -0.2)], "sum to 1.7236"),
        (
            2,
            vec![(0, -1.0), (1, -1.0)],
            "the others can have 0.0000 at most",
        ),
        (
            3,
            vec![(0, -1.0), (1, -8.0)],
            "the others can have 0.0003 at most",
        ),
    ] {
        let error = Shown::from_best(vocab_size, best)
            .expect_err(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Logits with ties, extremes and impossible candidates; at least one is finite.
fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        4 => -8f32..8.0,
        2 => (-3i8..3).prop_map(f32::from),
        1 => Just(40.0),
        1 => Just(-80.0),
        1 => Just(f32::NEG_INFINITY),
    ];
    proptest::collection::vec(logit, 1..40).prop_filter("one is finite", |logits| {
        logits.iter().any(|l| l.is_finite())
    })
}

fn any_setting() -> impl Strategy<Value = Setting> {
    let temperature = prop_oneof![Just(0.0), Just(1.0), 0.0f64..3.0, Just(1e-3)];
    let share = prop_oneof![2 => Just(1.0), 1 => 0.0f64..=1.0];
    let least = prop_oneof![2 => Just(0.0), 1 => 0.0f64..=1.0];
    (temperature, 0usize..50, share, least).prop_map(|(t, k, p, m)| {
        let setting = Setting::OFF.with_temperature(t).expect("a temperature");
        let setting = setting.with_top_k(k).with_top_p(p).expect("a mass");
        setting.with_min_p(m).expect("a share")
    })
}

/// The best candidates of a whole distribution.
fn best_of(whole: &Distribution, count: usize) -> Shown {
    let best = whole.best(count).into_iter();
    let best = best.map(|id| (id, whole.logprob(id))).collect();
    Shown::from_best(whole.vocab_size(), best).expect("the best of a distribution")
}

proptest! {
    #[test]
    fn what_is_decided_is_what_the_whole_distribution_says(
        logits in any_logits(), count in 1usize..45, mass in 0.0f64..=1.0,
    ) {
        let whole = Distribution::from_logits(logits).expect("one is finite");
        let shown = best_of(&whole, count);
        for id in 0..whole.vocab_size() as u32 {
            if let Some(rank) = shown.rank(id) {
                prop_assert_eq!(rank, whole.rank(id));
            }
            if let Some(logprob) = shown.logprob(id) {
                let difference = logprob - whole.logprob(id);
                prop_assert!(logprob == whole.logprob(id) || difference.abs() < 1e-9);
            }
        }
        if let Some(count) = shown.mass_count(mass) {
            prop_assert_eq!(count, whole.mass_count(mass));
        }
        if let Some(argmax) = shown.argmax() {
            prop_assert_eq!(argmax, whole.argmax());
        }
        match (shown.entropy_bits(), shown.bounds(mass)) {
            (Some(bits), _) => prop_assert!((f64::from(bits) - whole.entropy_bits()).abs() < 1e-5),
            (None, None) => prop_assert!(false, "neither an entropy nor bounds"),
            (None, Some(bounds)) => {
                let bits = whole.entropy_bits() as f32;
                prop_assert!(bounds.entropy_bits_at_least <= bits + 1e-5);
                prop_assert!(bits <= bounds.entropy_bits_at_most + 1e-5);
                prop_assert!(bounds.mass_count_at_least.is_none_or(|least| least <= whole.mass_count(mass)));
            }
        }
    }

    #[test]
    fn what_is_drawn_is_what_the_whole_distribution_draws(
        logits in any_logits(), count in 1usize..45, setting in any_setting(), coin in 0.0f64..1.0,
    ) {
        let whole = Distribution::from_logits(logits).expect("one is finite");
        let shown = best_of(&whole, count);
        let (left, expected) = (shown.filtered(&setting), whole.filtered(&setting));
        prop_assert!(left.kept.low <= expected.kept() && expected.kept() <= left.kept.high);
        let token = left.draw(coin);
        if count >= whole.vocab_size() {
            prop_assert!(token.is_some(), "everything is shown");
        }
        if let Some(token) = token {
            prop_assert_eq!(token, expected.draw(coin));
            let sampling = left.sampling(token);
            if let Some(prob) = sampling.prob {
                prop_assert!((f64::from(prob) - expected.prob(token)).abs() < 1e-6);
            }
            if let Some(kept) = sampling.kept {
                prop_assert_eq!(kept, expected.kept());
            }
            if let Some(mass) = sampling.kept_mass {
                prop_assert!((f64::from(mass) - expected.kept_mass()).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn more_that_is_shown_decides_more(
        logits in any_logits(), count in 1usize..40, setting in any_setting(), coin in 0.0f64..1.0,
    ) {
        let whole = Distribution::from_logits(logits).expect("one is finite");
        let (few, more) = (best_of(&whole, count), best_of(&whole, count + 1));
        let (few, more) = (few.filtered(&setting), more.filtered(&setting));
        prop_assert!(few.draw(coin).is_none() || more.draw(coin) == few.draw(coin));
    }
}
