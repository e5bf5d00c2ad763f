//! Chat templates: messages to the text that a model was trained on.
//!
//! A template is the model's own; what it says about system messages, thinking or dates is passed on, nothing is added.
//! Rendering follows transformers to the byte (`jinja.rs`).

use std::collections::BTreeMap;
use std::error::Error as _;

use anyhow::{Context, Result, anyhow};
use jiff::Timestamp;
use minijinja::{Environment, ErrorKind, Value, context};
use sha2::{Digest, Sha256};

use crate::text::jinja::{self, Dates, Raised};

/// Name of the template inside the engine.
const NAME: &str = "chat template";
/// The variable by which a template is told to open a thinking block or not.
const THINKING_SWITCH: &str = "enable_thinking";

/// What a conversation starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Messages<'a> {
    /// An empty text is an empty system message; none leaves it to the template, which may have a default.
    pub system: Option<&'a str>,
    /// The user's message.
    pub user: &'a str,
}

/// A rendered template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// What the model is to see.
    pub text: String,
    /// What the template was told of the date, where it asked.
    pub date: Option<String>,
}

/// Pieces of a date between commas, at most.
const MOST_PARTS: usize = 3;

/// A model's chat template, compiled.
pub struct ChatTemplate {
    environment: Environment<'static>,
    now: Timestamp,
    source: String,
    text: String,
    special_tokens: BTreeMap<&'static str, String>,
    has_thinking_switch: bool,
}

/// One message.
struct Turn<'a> {
    role: &'a str,
    content: &'a str,
}

impl ChatTemplate {
    /// Compiles a template. `source` says where it came from (`chat_template.jinja`); `special_tokens` are the texts
    /// under the names that templates know (`bos_token`, `eos_token`, …), without those that the model does not have.
    ///
    /// The date, for templates that ask, is that of `SOURCE_DATE_EPOCH` (seconds since 1970) or else now, in UTC.
    ///
    /// # Errors
    /// When the template does not parse, or `SOURCE_DATE_EPOCH` is no number of seconds.
    pub fn new(
        source: String,
        text: &str,
        special_tokens: Vec<(&'static str, String)>,
    ) -> Result<Self> {
        Self::at(now()?, source, text, special_tokens)
    }

    fn at(
        now: Timestamp,
        source: String,
        text: &str,
        special_tokens: Vec<(&'static str, String)>,
    ) -> Result<Self> {
        let mut environment = jinja::environment(now)?;
        environment
            .add_template_owned(NAME, jinja::prepare(text))
            .map_err(|error| explain(&source, &error))?;
        let reads_switch = environment
            .get_template(NAME)?
            .undeclared_variables(false)
            .contains(THINKING_SWITCH);
        let text = text.to_owned();
        let mut template = Self {
            environment,
            now,
            source,
            text,
            special_tokens: special_tokens.into_iter().collect(),
            has_thinking_switch: reads_switch,
        };
        template.has_thinking_switch |= template.obeys_switch();
        Ok(template)
    }

    /// Tells the template the date of an earlier rendering ([`Rendered::date`]) from now on, wherever it asks for one of that
    /// format.
    pub fn repeat_date(&mut self, date: &str) {
        // one rendering's dates are joined by what a date may have inside
        let parts: Vec<&str> = date.split(", ").collect();
        let lengths = (1..=parts.len().min(MOST_PARTS)).rev();
        let dates = lengths.flat_map(|length| parts.windows(length).map(|part| part.join(", ")));
        jinja::tell_time(&mut self.environment, self.now, dates.collect());
    }

    /// Returns where the template came from and the sha256 of its text, all 64 digits:
    /// `chat_template.jinja sha256:273d8e0e…`.
    pub fn source(&self) -> String {
        let digest: String = Sha256::digest(&self.text)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{} sha256:{digest}", self.source)
    }

    /// Returns the template as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns whether thinking can be switched: whether the template reads `enable_thinking`.
    pub fn has_thinking_switch(&self) -> bool {
        self.has_thinking_switch
    }

    /// Renders a conversation up to where the assistant's reply begins. `thinking` is passed on as a boolean always.
    ///
    /// # Errors
    /// When the template refuses the conversation (its own words are quoted) or fails.
    pub fn render(&self, messages: &Messages<'_>, thinking: bool) -> Result<Rendered> {
        let system = messages.system.map(|content| Turn {
            role: "system",
            content,
        });
        let user = Turn {
            role: "user",
            content: messages.user,
        };
        self.render_turns(
            &system.into_iter().chain([user]).collect::<Vec<_>>(),
            thinking,
        )
    }

    fn render_turns(&self, turns: &[Turn<'_>], thinking: bool) -> Result<Rendered> {
        let messages: Vec<Value> = turns
            .iter()
            .map(|turn| context! { role => turn.role, content => turn.content })
            .collect();
        // transformers passes tools and documents in any case, as None.
        let variables = context! {
            messages,
            tools => (),
            documents => (),
            add_generation_prompt => true,
            enable_thinking => thinking,
            ..Value::from(self.special_tokens.clone())
        };
        let rendered = self
            .environment
            .get_template(NAME)
            .and_then(|template| template.render_captured(variables))
            .map_err(|error| explain(&self.source, &error))?;
        let dates = rendered
            .state()
            .get_extension::<Dates>()
            .map(|dates| dates.0.join(", "));
        Ok(Rendered {
            text: rendered.into_output(),
            date: dates,
        })
    }

    /// Whether the switch changes anything. Finds what a look at the variables does not:
    /// `{% set enable_thinking = enable_thinking | default(true) %}`.
    fn obeys_switch(&self) -> bool {
        [None, Some("s")].into_iter().any(|system| {
            let render = |thinking| self.render(&Messages { system, user: "u" }, thinking).ok();
            render(true) != render(false)
        })
    }
}

/// Returns the moment that templates are told.
fn now() -> Result<Timestamp> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => moment(&seconds),
        Err(std::env::VarError::NotPresent) => Ok(Timestamp::now()),
        Err(error) => Err(error).context("SOURCE_DATE_EPOCH"),
    }
}

fn moment(seconds: &str) -> Result<Timestamp> {
    let number = seconds.trim().parse().map_err(anyhow::Error::from);
    let moment = number.and_then(|number| Ok(Timestamp::from_second(number)?));
    moment.with_context(|| {
        format!("SOURCE_DATE_EPOCH: `{seconds}` is not a number of seconds since 1970")
    })
}

/// Returns an engine's error as one sentence that says where in the template it happened.
fn explain(source: &str, error: &minijinja::Error) -> anyhow::Error {
    let line = error
        .line()
        .map(|line| format!(", line {line}"))
        .unwrap_or_default();
    let place = format!("chat template ({source}{line})");
    if let Some(raised) = error
        .source()
        .and_then(|source| source.downcast_ref::<Raised>())
    {
        return anyhow!("{place} refuses this conversation: {raised}");
    }
    let what = match error.kind() {
        ErrorKind::SyntaxError => "does not parse",
        _ => "failed",
    };
    let detail = error
        .detail()
        .map(|detail| format!(": {detail}"))
        .unwrap_or_default();
    anyhow!("{place} {what}: {}{detail}", error.kind())
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;
    use crate::text::tokenizer::Reading;
    use crate::text::tokenizer::tests::{REAL, fixture};

    const QWEN35: [&str; 2] = [
        "chat_template.qwen3.5-0.8B-2B.jinja",
        "chat_template.qwen3.5-4B-9B-35B.jinja",
    ];

    fn compile(text: &str) -> Result<ChatTemplate> {
        let special_tokens = [("bos_token", "<s>"), ("eos_token", "</s>")];
        let special_tokens = special_tokens.map(|(name, token)| (name, token.to_owned()));
        let now = moment("1709210096")?; // 29 February 2024
        ChatTemplate::at(now, "t.jinja".to_owned(), text, special_tokens.into())
    }

    fn open(path: &str) -> ChatTemplate {
        compile(&String::from_utf8(fixture(path)).expect("UTF-8")).expect("compiles")
    }

    fn render(template: &str, system: Option<&str>, user: &str, thinking: bool) -> String {
        let rendered = compile(template)
            .and_then(|template| template.render(&Messages { system, user }, thinking));
        rendered.map_or_else(|error| format!("{error:#}"), |rendered| rendered.text)
    }

    fn expected(path: &str) -> Json {
        serde_json::from_slice(&fixture(path)).expect("fixture is JSON")
    }

    fn turns(messages: &Json) -> Vec<Turn<'_>> {
        let messages = messages.as_array().expect("messages");
        messages
            .iter()
            .map(|message| Turn {
                role: message["role"].as_str().expect("role"),
                content: message["content"].as_str().expect("content"),
            })
            .collect()
    }

    #[test]
    fn qwen35_prompts_are_the_reference_ones_to_the_byte_and_to_the_id() {
        let examples = expected("qwen35-real/chat_examples.json");
        let question = [Turn {
            role: "user",
            content: "What is the capital of France?",
        }];
        let multi = [
            Turn {
                role: "system",
                content: "Be brief.",
            },
            Turn {
                role: "user",
                content: "Hi",
            },
            Turn {
                role: "assistant",
                content: "Hello",
            },
            Turn {
                role: "user",
                content: "Bye",
            },
        ];
        for file in QWEN35 {
            let template = open(&format!("qwen35-real/{file}"));
            for (name, turns, thinking) in [
                ("default", &question[..], false),
                ("enable_thinking=False", &question, false),
                ("enable_thinking=True", &question, true),
                ("multi", &multi, false),
            ] {
                let text = template
                    .render_turns(turns, thinking)
                    .expect("renders")
                    .text;
                assert_eq!(
                    text,
                    examples[name]["text"].as_str().expect("text"),
                    "{file} {name}"
                );
                let ids = REAL.encode(&text, Reading::Template).expect("encodes");
                assert_eq!(
                    serde_json::json!(ids),
                    examples[name]["ids"],
                    "{file} {name}"
                );
            }
        }
    }

    #[test]
    fn published_templates_render_as_in_transformers() {
        for name in ["smollm2", "qwen2.5", "qwen3"] {
            let template = open(&format!("templates/{name}.jinja"));
            assert_eq!(template.has_thinking_switch(), name == "qwen3");
            let cases = expected(&format!("templates/{name}.expected.json"));
            for case in cases["cases"].as_array().expect("cases") {
                // Without a value for it, Qwen3's switch counts as on.
                let thinking = case["variables"]["enable_thinking"]
                    .as_bool()
                    .unwrap_or(true);
                let text = template
                    .render_turns(&turns(&case["messages"]), thinking)
                    .expect("renders")
                    .text;
                assert_eq!(
                    text,
                    case["text"].as_str().expect("text"),
                    "{name} {}",
                    case["name"]
                );
            }
        }
    }

    #[test]
    fn earlier_think_blocks_are_dropped_by_qwen35() {
        let template = open(&format!("qwen35-real/{}", QWEN35[0]));
        let turns = [
            Turn {
                role: "user",
                content: "2+2?",
            },
            Turn {
                role: "assistant",
                content: "<think>\neasy\n</think>\n\n4",
            },
            Turn {
                role: "user",
                content: "3+3?",
            },
        ];
        let text = template.render_turns(&turns, true).expect("renders").text;
        assert_eq!(
            text,
            "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>\n\
             <|im_start|>user\n3+3?<|im_end|>\n<|im_start|>assistant\n<think>\n"
        );
    }

    #[test]
    fn no_system_message_and_an_empty_one_are_different() {
        let template = open("templates/smollm2.jinja");
        let render = |system| {
            template
                .render(&Messages { system, user: "Hi" }, false)
                .expect("renders")
                .text
        };
        assert!(
            render(None)
                .starts_with("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
        );
        assert!(render(Some("")).starts_with("<|im_start|>system\n<|im_end|>\n"));
        assert!(
            render(Some("You are a bot."))
                .starts_with("<|im_start|>system\nYou are a bot.<|im_end|>\n")
        );
    }

    #[test]
    fn the_thinking_switch_is_a_boolean_in_every_rendering() {
        let template = "{{ enable_thinking is defined }} {{ enable_thinking is true }} {{ enable_thinking is false }}";
        assert_eq!(render(template, None, "", true), "True True False");
        assert_eq!(render(template, None, "", false), "True False True");
    }

    #[test]
    fn a_switch_is_found_wherever_it_is_read() {
        let has_switch = |template| compile(template).expect("compiles").has_thinking_switch();
        assert!(has_switch(
            "{% macro m() %}{% if enable_thinking %}x{% endif %}{% endmacro %}"
        ));
        assert!(has_switch(
            "{% for m in messages %}{% if m.tools and enable_thinking %}x{% endif %}{% endfor %}"
        ));
        assert!(has_switch(
            "{% set enable_thinking = enable_thinking | default(true) %}{{ enable_thinking }}"
        ));
        assert!(!has_switch(
            "{% set enable_thinking = true %}{{ enable_thinking }}"
        ));
        assert!(!has_switch(
            "{# enable_thinking #}{{ 'enable_thinking' }}{{ messages[0].enable_thinking }}"
        ));
    }

    #[test]
    fn special_tokens_and_what_transformers_always_passes_are_there() {
        let template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }} {{ tools is none }} \
                        {{ documents is defined }} {{ add_generation_prompt }} {{ messages | tojson }}";
        let expected = r#"<s>Hi</s> True True True [{"role": "user", "content": "Hi"}]"#;
        assert_eq!(render(template, None, "Hi", false), expected);
    }

    #[test]
    fn a_refusal_is_quoted_with_its_place() {
        let template = "{% for m in messages %}\n{% if m.role == 'system' %}\n{{ raise_exception('no system role') }}\n{% endif %}\n{% endfor %}";
        let refusal = "chat template (t.jinja, line 3) refuses this conversation: no system role";
        assert_eq!(render(template, Some("Be brief."), "Hi", false), refusal);
        let nested = "{% macro m() %}\n{{ raise_exception('no') }}\n{% endmacro %}\n{{ m() }}";
        assert_eq!(
            render(nested, None, "Hi", false),
            "chat template (t.jinja, line 2) refuses this conversation: no"
        );
    }

    #[test]
    fn a_broken_template_names_the_line() {
        for (template, message) in [
            (
                "a\n{% if x %}\nb",
                "chat template (t.jinja, line 3) does not parse: ",
            ),
            (
                "a\n{% frobnicate %}",
                "chat template (t.jinja, line 2) does not parse: ",
            ),
            ("{{ x", "chat template (t.jinja, line 1) does not parse: "),
            (
                "\n{{ messages[0].a.b }}",
                "chat template (t.jinja, line 2) failed: ",
            ),
            (
                "\n\n{{ 'a'.frobnicate() }}",
                "chat template (t.jinja, line 3) failed: unknown method: ",
            ),
            (
                "{{ 'a' | frobnicate }}",
                "chat template (t.jinja, line 1) failed: unknown filter: ",
            ),
            (
                "{% include 'x' %}",
                "chat template (t.jinja, line 1) failed: ",
            ),
        ] {
            let error = render(template, None, "Hi", false);
            assert!(error.starts_with(message), "{template:?}: {error}");
        }
    }

    #[test]
    fn the_date_is_recorded_when_it_is_asked_for() {
        let template = compile(
            "{{ strftime_now('%d %b %Y') }}{% if false %}{{ strftime_now('%H') }}{% endif %}",
        );
        let rendered = template
            .expect("compiles")
            .render(
                &Messages {
                    system: None,
                    user: "",
                },
                false,
            )
            .expect("renders");
        assert_eq!(
            rendered,
            Rendered {
                text: "29 Feb 2024".to_owned(),
                date: Some("29 Feb 2024".to_owned())
            }
        );
        let dateless = compile("x").expect("compiles").render(
            &Messages {
                system: None,
                user: "",
            },
            false,
        );
        assert_eq!(dateless.expect("renders").date, None);
    }

    #[test]
    fn the_date_of_an_earlier_rendering_is_told_again_where_it_has_the_format() {
        let source = "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%B %d, %Y') }} {{ strftime_now('%H:%M') }}";
        let messages = Messages {
            system: None,
            user: "",
        };
        let render = |date: &str| {
            let mut template = compile(source).expect("compiles");
            template.repeat_date(date);
            template.render(&messages, false).expect("renders")
        };
        let now = "29 Feb 2024 February 29, 2024 12:34";
        assert_eq!(
            render("26 Jul 2024").text,
            format!("26 Jul 2024{}", &now[11..])
        );
        assert_eq!(render("yesterday").text, now);
        assert_eq!(
            render("26 Jul 2024, July 26, 2024, 08:15").text,
            "26 Jul 2024 July 26, 2024 08:15",
            "what one rendering noted of all three"
        );
        assert_eq!(
            render("July 26, 2024").text,
            "29 Feb 2024 July 26, 2024 12:34"
        );
    }

    #[test]
    fn the_date_can_be_fixed_only_by_a_number() {
        assert_eq!(moment("0").expect("number"), Timestamp::UNIX_EPOCH);
        let refusal = format!("{:#}", moment("today").expect_err("no number"));
        assert!(
            refusal.starts_with("SOURCE_DATE_EPOCH: `today` is not a number of seconds since 1970"),
            "{refusal}"
        );
        assert!(moment("99999999999999999").is_err());
    }

    #[test]
    fn line_ends_of_the_template_file_do_not_matter() {
        let unix =
            String::from_utf8(fixture(&format!("qwen35-real/{}", QWEN35[0]))).expect("UTF-8");
        let windows = unix.replace('\n', "\r\n");
        let messages = Messages {
            system: Some("s"),
            user: "a\r\nb",
        };
        let render = |text: &str| {
            compile(text)
                .expect("compiles")
                .render(&messages, true)
                .expect("renders")
        };
        assert_eq!(render(&windows), render(&unix));
        assert!(
            render(&windows).text.contains("a\r\nb"),
            "the user's line ends stay"
        );
    }

    #[test]
    fn the_source_carries_the_hash_of_the_file() {
        let template = open(&format!("qwen35-real/{}", QWEN35[0]));
        assert!(template.source().starts_with("t.jinja sha256:273d8e0e"));
        assert_eq!(template.source().len(), "t.jinja sha256:".len() + 64);
    }
}
