//! What a model's JSON files say of its tokens: which end a reply, which are special, and the chat template.
//!
//! The files disagree in practice, so each question asks all of them. Sampling parameters that
//! `generation_config.json` suggests are not read: this program shows the model's own distribution.

use std::collections::BTreeSet;

use anyhow::{Result, bail};
use serde_json::Value;

use super::folder::Folder;

impl Folder {
    /// Returns the ids that end a reply, ascending: the union of `eos_token_id` in `config.json` (and its
    /// `text_config`) and `generation_config.json`, one id or a list in each, and of `tokenizer_config.json`'s
    /// `eos_token` through `id_of`. Empty where no file names one.
    pub fn stop_ids(&self, id_of: &dyn Fn(&str) -> Option<u32>) -> Vec<u32> {
        let configs = [
            Some(&self.config),
            self.config.get("text_config"),
            self.generation_config.as_ref(),
        ];
        let mut ids: BTreeSet<u32> = configs
            .into_iter()
            .flatten()
            .flat_map(|config| match &config["eos_token_id"] {
                Value::Array(list) => list.iter().filter_map(as_id).collect(),
                one => Vec::from_iter(as_id(one)),
            })
            .collect();
        ids.extend(self.special_token("eos_token").as_deref().and_then(id_of));
        ids.into_iter().collect()
    }

    /// Returns the special tokens that a chat template may name, as `bos_token` and its text.
    pub fn special_tokens(&self) -> Vec<(&'static str, String)> {
        ["bos_token", "eos_token", "pad_token", "unk_token"]
            .into_iter()
            .filter_map(|name| Some((name, self.special_token(name)?)))
            .collect()
    }

    /// Returns the file that the chat template comes from, and its text; `None` where the model has none.
    ///
    /// As in transformers 5: `chat_template.jinja`, else `chat_template` in `tokenizer_config.json` (of several named
    /// ones `default`, or the only one), else that of `chat_template.json`, the older place of models that see images.
    ///
    /// # Errors
    /// When there are several named templates and none is the default, or one is not a text.
    pub fn chat_template(&self) -> Result<Option<(String, String)>> {
        if let Some(text) = &self.chat_template_file {
            return Ok(Some(("chat_template.jinja".to_owned(), text.clone())));
        }
        for (file, content) in [
            ("tokenizer_config.json", &self.tokenizer_config),
            ("chat_template.json", &self.chat_template_json),
        ] {
            let template = content.as_ref().and_then(|json| json.get("chat_template"));
            if let Some(template) = template.filter(|template| !template.is_null()) {
                return Ok(Some((file.to_owned(), only_template(file, template)?)));
            }
        }
        Ok(None)
    }

    fn special_token(&self, name: &str) -> Option<String> {
        let token = self.tokenizer_config.as_ref()?.get(name)?;
        let text = token.as_str().or_else(|| token["content"].as_str())?;
        Some(text.to_owned())
    }
}

fn as_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// Picks from `chat_template`: a text, or a list of `{name, template}`.
fn only_template(file: &str, chat_template: &Value) -> Result<String> {
    if let Some(text) = chat_template.as_str() {
        return Ok(text.to_owned());
    }
    let named: Option<Vec<(&str, &str)>> = chat_template.as_array().and_then(|list| {
        list.iter()
            .map(|entry| Some((entry["name"].as_str()?, entry["template"].as_str()?)))
            .collect()
    });
    let Some(named) = named else {
        bail!("{file}: chat_template is neither a text nor a list of named templates");
    };
    match (
        named.iter().find(|(name, _)| *name == "default"),
        &named[..],
    ) {
        (Some((_, text)), _) | (None, [(_, text)]) => Ok((*text).to_owned()),
        _ => {
            let names: Vec<&str> = named.iter().map(|(name, _)| *name).collect();
            bail!(
                "{file}: none of its chat templates is the default (expected one named `default`, found: {})",
                names.join(", ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn folder(config: Value, generation: Value, tokenizer: Value) -> Folder {
        let some = |value: Value| (!value.is_null()).then_some(value);
        Folder {
            path: "m".into(),
            config,
            generation_config: some(generation),
            tokenizer_config: some(tokenizer),
            tokenizer_json: Vec::new(),
            chat_template_file: None,
            chat_template_json: None,
            weight_files: Vec::new(),
            weight_map: None,
        }
    }

    #[test]
    fn stop_ids_are_the_union_of_all_files() {
        let id_of = |token: &str| (token == "<|im_end|>").then_some(7);
        let files = folder(
            json!({"eos_token_id": 9, "text_config": {"eos_token_id": [5, 3]}}),
            json!({"eos_token_id": [3, 4]}),
            json!({"eos_token": {"content": "<|im_end|>"}}),
        );
        assert_eq!(files.stop_ids(&id_of), [3, 4, 5, 7, 9]);
        let files = folder(
            json!({}),
            json!({"eos_token_id": 2}),
            json!({"eos_token": "<|im_end|>"}),
        );
        assert_eq!(files.stop_ids(&id_of), [2, 7]);
        let files = folder(
            json!({"eos_token_id": null}),
            Value::Null,
            json!({"eos_token": "</s>"}),
        );
        assert_eq!(files.stop_ids(&id_of), [0_u32; 0]);
        let files = folder(
            json!({"eos_token_id": [-1, 1.5, "x", 4294967296_u64]}),
            json!([]),
            Value::Null,
        );
        assert_eq!(files.stop_ids(&id_of), [0_u32; 0]);
    }

    #[test]
    fn special_tokens_are_texts_objects_or_absent() {
        let tokenizer = json!({"bos_token": null, "eos_token": {"content": "</s>", "lstrip": false}, "unk_token": "?"});
        let files = folder(json!({}), Value::Null, tokenizer);
        let expected = [
            ("eos_token", "</s>".to_owned()),
            ("unk_token", "?".to_owned()),
        ];
        assert_eq!(files.special_tokens(), expected);
    }

    #[test]
    fn the_template_file_wins_then_the_tokenizer_then_the_processor() {
        let template = |files: &Folder| files.chat_template().expect("a template or none");
        let found = |file: &str, text: &str| Some((file.to_owned(), text.to_owned()));
        let mut files = folder(json!({}), Value::Null, json!({"chat_template": null}));
        assert_eq!(template(&files), None);
        files.chat_template_json = Some(json!({"chat_template": "c"}));
        assert_eq!(template(&files), found("chat_template.json", "c"));
        files.tokenizer_config = Some(json!({"chat_template": "b"}));
        assert_eq!(template(&files), found("tokenizer_config.json", "b"));
        files.chat_template_file = Some("a".to_owned());
        assert_eq!(template(&files), found("chat_template.jinja", "a"));
    }

    #[test]
    fn of_named_templates_the_default_or_the_only_one_is_taken() {
        let template = |list: Value| {
            let files = folder(json!({}), Value::Null, json!({"chat_template": list}));
            files
                .chat_template()
                .map(|found| found.map(|(_, text)| text))
        };
        let tool = json!({"name": "tool_use", "template": "t"});
        let default = json!({"name": "default", "template": "d"});
        let rag = json!({"name": "rag", "template": "r"});
        let taken = |list| template(list).expect("a template").expect("some");
        assert_eq!(taken(json!([tool, default])), "d");
        assert_eq!(taken(json!([tool])), "t");
        let error = template(json!([tool, rag]))
            .expect_err("no default")
            .to_string();
        assert!(error.contains("found: tool_use, rag"), "{error}");
        for odd in [json!(3), json!([{"name": "x"}]), json!({})] {
            assert!(template(odd).is_err());
        }
    }
}
