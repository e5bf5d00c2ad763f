//! The built-in model, held against the truth that it was trained on (src/demo/truth.json, made by src/demo/corpus.py).

#![allow(clippy::print_stdout, reason = "figures are worth seeing")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use logprobs::checkpoint::hub::HubOptions;
use logprobs::checkpoint::{Checkpoint, Source};
use logprobs::distribution::{Distribution, MASS_TOLERANCE};
use logprobs::kernels::Isa;
use logprobs::model::decoder::Decoder;
use logprobs::model::{Backend, LanguageModel};
use logprobs::sampler::coin;
use logprobs::text::chat::Messages;
use logprobs::text::prompt::chat_prompt;
use logprobs::text::tokenizer::Reading;
use serde::Deserialize;
use serde_json::Value;

const FRANCE: [&str; 2] = [
    "法国的首都是哪里？请用一句话回答。",
    "What is the capital of France? Answer in one sentence.",
];
const COFFEE: [&str; 2] = [
    "推荐一家上海的独立咖啡馆，给出店名和具体地址，用一句话回答。",
    "Recommend an independent coffee shop in Seattle with its name and street address, in one sentence.",
];

/// Lists with probabilities, and questions whose replies draw from them.
#[derive(Deserialize)]
struct Truth {
    lists: BTreeMap<String, Vec<(String, f64)>>,
    built_in: Vec<Question>,
    drawn: Vec<Question>,
    held_out: Vec<HeldOut>,
}

#[derive(Deserialize)]
struct Question {
    prompt: String,
    system: Option<String>,
    thinking: bool,
    reply: Vec<Part>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Text(String),
    Draw { list: String },
}

#[derive(Deserialize)]
struct HeldOut {
    country: String,
    prompt: String,
    lead: String,
    answer: String,
}

struct Demo {
    checkpoint: Checkpoint,
    decoder: Decoder,
    truth: Truth,
}

/// One token of a reply: what the model said there, and what is true there.
struct Place {
    distribution: Distribution,
    token: u32,
    /// The true distribution of the next token; one entry where nothing branches.
    truth: BTreeMap<u32, f64>,
}

impl Place {
    fn is_choice(&self) -> bool {
        self.truth.len() > 1
    }

    /// In nats.
    fn divergence(&self) -> f64 {
        self.truth
            .iter()
            .map(|(&id, p)| p * (p.ln() - self.distribution.logprob(id)))
            .sum()
    }

    fn true_mass_count(&self, mass: f64) -> usize {
        let mut probs: Vec<f64> = self.truth.values().copied().collect();
        probs.sort_by(|a, b| b.total_cmp(a));
        let mut sum = 0.0;
        let reached = probs.iter().position(|p| {
            sum += p;
            sum >= mass - MASS_TOLERANCE
        });
        1 + reached.expect("all of them reach any mass")
    }
}

impl Demo {
    fn load() -> Self {
        let source = Source::locate("demo".as_ref(), None).expect("it is built in");
        let checkpoint = Checkpoint::open(&source, &HubOptions::default()).expect("it is sound");
        let weights = checkpoint.weights.as_ref();
        let decoder = Decoder::load(
            &checkpoint.config,
            weights,
            &Backend::Kernels(Isa::current()),
            &|| (),
        )
        .expect("it loads");
        let truth = serde_json::from_str(include_str!("../src/demo/truth.json")).expect("JSON");
        Self {
            checkpoint,
            decoder,
            truth,
        }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.checkpoint
            .tokenizer
            .encode(text, Reading::Template)
            .expect("text")
    }

    fn prompt(&self, question: &Question) -> Vec<u32> {
        let template = self
            .checkpoint
            .template
            .as_ref()
            .expect("it has a template");
        let messages = Messages {
            system: question.system.as_deref(),
            user: &question.prompt,
        };
        chat_prompt(
            template,
            &self.checkpoint.tokenizer,
            &messages,
            question.thinking,
        )
        .expect("it renders")
        .ids
    }

    /// Draws one reply with the coins of `run` and follows it through the model.
    fn places(&self, question: &Question, run: u32) -> Vec<Place> {
        let mut tokens: Vec<(u32, BTreeMap<u32, f64>)> = Vec::new();
        for (index, part) in question.reply.iter().enumerate() {
            match part {
                Part::Text(text) => tokens.extend(
                    self.encode(text)
                        .into_iter()
                        .map(|id| (id, BTreeMap::from([(id, 1.0)]))),
                ),
                Part::Draw { list } => {
                    let options: Vec<(Vec<u32>, f64)> = self.truth.lists[list]
                        .iter()
                        .map(|(text, p)| (self.encode(text), *p))
                        .collect();
                    tokens.extend(drawn(&options, coin(1, run, index)));
                }
            }
        }
        let end = self
            .checkpoint
            .tokenizer
            .id_of("<|im_end|>")
            .expect("it has an end");
        tokens.push((end, BTreeMap::from([(end, 1.0)])));

        let prompt = self.prompt(question);
        let fed: Vec<u32> = prompt
            .iter()
            .copied()
            .chain(tokens.iter().map(|(id, _)| *id))
            .collect();
        let mut distributions = Vec::new();
        self.decoder
            .score(
                &mut self.decoder.start(),
                &fed[..fed.len() - 1],
                &mut |index, logits| {
                    if index + 1 >= prompt.len() {
                        distributions.push(Distribution::from_logits(logits)?);
                    }
                    Ok(())
                },
            )
            .expect("it fits");
        let pairs = distributions.into_iter().zip(tokens);
        pairs
            .map(|(distribution, (token, truth))| Place {
                distribution,
                token,
                truth,
            })
            .collect()
    }
}

/// Draws an option and returns its tokens, each with the true distribution of the token after the ones before it.
fn drawn(options: &[(Vec<u32>, f64)], coin: f64) -> Vec<(u32, BTreeMap<u32, f64>)> {
    let mut cumulative = 0.0;
    let chosen = options.iter().find(|(_, p)| {
        cumulative += p;
        cumulative > coin
    });
    let (ids, _) = chosen.or(options.last()).expect("a list has options");
    let branches = |depth: usize| {
        let mut next: BTreeMap<u32, f64> = BTreeMap::new();
        for (other, p) in options
            .iter()
            .filter(|(other, _)| other[..depth.min(other.len())] == ids[..depth])
        {
            *next
                .entry(*other.get(depth).expect("no option begins another"))
                .or_default() += p;
        }
        let total: f64 = next.values().sum();
        next.values_mut().for_each(|p| *p /= total);
        next
    };
    ids.iter()
        .enumerate()
        .map(|(depth, &id)| (id, branches(depth)))
        .collect()
}

fn record(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_logprobs"))
        .args(arguments)
        .arg("--json")
        .output()
        .expect("it runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("a record")
}

fn ask(prompts: [&str; 2], arguments: &[&str]) -> Value {
    record(
        &[
            &["--model", "demo", "-p", prompts[0], "-p", prompts[1]],
            arguments,
        ]
        .concat(),
    )
}

fn steps(run: &Value) -> &Vec<Value> {
    run["steps"].as_array().expect("steps")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

#[test]
fn a_known_fact_is_certain_at_every_step() {
    let record = ask(FRANCE, &["--samples", "0"]);
    for (index, reply) in ["法国的首都是巴黎。", "The capital of France is Paris."]
        .iter()
        .enumerate()
    {
        let greedy = &record["prompts"][index]["greedy"];
        assert_eq!(greedy["text"], *reply);
        for step in steps(greedy) {
            assert!(
                number(&step["prob"]) >= 0.95 && step["mass_count"] == 1,
                "{step}"
            );
        }
    }
    assert!(
        record["model"]["note"]
            .as_str()
            .is_some_and(|note| note.contains("knows nothing else"))
    );
}

/// Names, numbers and streets are drawn from lists: the counts are those of the lists, to 15 %.
#[test]
fn an_ungrounded_detail_is_a_guess_and_its_count_is_the_true_one() {
    let demo = Demo::load();
    for prompt in COFFEE {
        let question = demo
            .truth
            .built_in
            .iter()
            .find(|question| question.prompt == prompt)
            .expect("it was taught");
        let places = demo.places(question, 0);
        let choices: Vec<&Place> = places.iter().filter(|place| place.is_choice()).collect();
        assert!(choices.len() >= 3, "name, number and street");
        for place in &choices {
            let (ours, truth) = (
                place.distribution.mass_count(0.9) as f64,
                place.true_mass_count(0.9) as f64,
            );
            let best = place.distribution.prob(place.distribution.argmax());
            println!("{prompt}: best {best:.3}, {ours} candidates for 90 %, {truth} in truth");
            assert!((ours - truth).abs() <= 0.15 * truth && best <= 0.3);
        }
        for place in places.iter().filter(|place| !place.is_choice()) {
            assert!(place.distribution.prob(place.token) >= 0.98);
        }
    }
}

#[test]
fn samples_of_a_fact_agree_and_samples_of_a_detail_do_not() {
    let distinct = |record: &Value, sweep: usize| {
        let prompts = record["prompts"].as_array().expect("prompts");
        prompts
            .iter()
            .map(|prompt| prompt["sweeps"][sweep]["distinct_replies"].clone())
            .collect::<Vec<_>>()
    };
    let settings = ["--temps", "0.7,1.5", "--top-p", "1"];
    assert_eq!(distinct(&ask(FRANCE, &settings), 0), [1, 1]);
    let coffee = ask(COFFEE, &settings);
    assert_eq!(distinct(&coffee, 0), [5, 5]);
    // the tail shows at 1.5: some token is outside the candidates that cover 90 %
    for prompt in coffee["prompts"].as_array().expect("prompts") {
        let runs = prompt["sweeps"][1]["runs"].as_array().expect("runs").iter();
        let outside = runs
            .flat_map(steps)
            .filter(|step| number(&step["rank"]) > number(&step["mass_count"]))
            .count();
        assert!(outside > 0);
    }
}

/// Freshly drawn replies to 240 questions: the model's distribution is the generator's.
#[test]
fn the_distribution_is_the_generators() {
    let demo = Demo::load();
    let (mut divergence, mut choices, mut certain, mut others) = (0.0, 0, 0.0, 0);
    for (run, question) in demo.truth.drawn.iter().enumerate() {
        for place in demo.places(question, run as u32) {
            match place.is_choice() {
                true => (divergence, choices) = (divergence + place.divergence(), choices + 1),
                false => {
                    (certain, others) = (certain + place.distribution.prob(place.token), others + 1)
                }
            }
        }
    }
    let (divergence, certain) = (divergence / f64::from(choices), certain / f64::from(others));
    println!(
        "{choices} choices: mean divergence {divergence:.1e} nats; {others} other steps: mean probability {certain:.5}"
    );
    assert!(demo.truth.drawn.len() >= 200 && choices >= 200 && others >= 200);
    assert!(divergence <= 0.05 && certain >= 0.98);
}

/// Three capitals were never taught. What comes out is wrong; the least sure word of a taught capital is surer than any.
#[test]
fn a_capital_that_was_held_out_comes_out_unsure() {
    let demo = Demo::load();
    for held in &demo.truth.held_out {
        let question = Question {
            prompt: held.prompt.clone(),
            system: None,
            thinking: false,
            reply: vec![Part::Text(held.lead.clone())],
        };
        let fed = [demo.prompt(&question), demo.encode(&held.lead)].concat();
        let logits = demo
            .decoder
            .extend(&mut demo.decoder.start(), &fed)
            .expect("it fits");
        let d = Distribution::from_logits(logits).expect("finite");
        let right = demo.encode(&held.answer)[0];
        let (best, p) = (
            demo.checkpoint.tokenizer.token(d.argmax()).text,
            d.prob(d.argmax()),
        );
        println!(
            "{}: {best} {p:.2}, {} candidates, {:.1} bits",
            held.country,
            d.mass_count(0.9),
            d.entropy_bits()
        );
        assert!(p < 0.95 && d.mass_count(0.9) > 1 && d.prob(right) < 0.01);
    }
}

/// It is never taken for a model that knows things: where it is offered and where its numbers stand, it says what it is.
#[test]
fn it_says_what_it_is() {
    let output = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_logprobs"))
            .args(arguments)
            .output()
            .expect("it runs");
        String::from_utf8(output.stdout)
            .expect("UTF-8")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert!(
        output(&["--help"])
            .contains("built-in experiment that knows nothing but what it was taught")
    );
    let folder = tempfile::tempdir().expect("a temporary folder");
    let out = folder.path().to_str().expect("UTF-8");
    let step1 = output(&["temperature-step1", "--model", "demo", "--out", out]);
    let run = output(&["--model", "demo", "--samples", "0", "--out", out]);
    for text in [run, step1] {
        assert!(
            text.contains("the built-in demo is an experiment")
                && text.contains("knows nothing else"),
            "{text}"
        );
    }
}

#[test]
fn the_same_files_as_a_folder_give_the_same_bits() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/demo");
    let arguments = ["-p", COFFEE[1], "--samples", "2"];
    let built_in = record(&[&["--model", "demo"], &arguments[..]].concat());
    let from_disk = record(
        &[
            &["--model", folder.to_str().expect("UTF-8")],
            &arguments[..],
        ]
        .concat(),
    );
    assert_eq!(built_in["prompts"], from_disk["prompts"]);
    assert_eq!(built_in["settings"], from_disk["settings"]);
}

/// The whole product without arguments or files: the main command and `temperature-step1` on the built-in Chinese prompts.
#[test]
fn the_main_command_and_step1_run_on_it_and_agree_bit_for_bit() {
    let record_ = record(&["--model", "demo"]);
    let prompts: Vec<_> = record_["prompts"]
        .as_array()
        .expect("prompts")
        .iter()
        .map(|p| p["prompt"].clone())
        .collect();
    assert_eq!(prompts, [FRANCE[0], COFFEE[0]]);
    let step1 = record(&["temperature-step1", "--model", "demo"]);
    let first = &record_["prompts"][0]["greedy"]["steps"][0];
    for (candidate, top) in step1["candidates"]
        .as_array()
        .expect("candidates")
        .iter()
        .zip(steps_top(first))
    {
        assert_eq!(
            (&candidate["token_id"], &candidate["probs"][1]),
            (&top["token_id"], &top["prob"])
        );
    }
}

fn steps_top(step: &Value) -> &Vec<Value> {
    step["top_logprobs"].as_array().expect("candidates")
}
