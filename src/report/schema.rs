//! The JSON Schema (draft 2020-12) of what is written, generated from the types and their documentation.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// Returns the schema of a record type. Fields that may be added within a schema's number are allowed for: what is not known
/// is no error.
pub fn of<R: JsonSchema>() -> Value {
    let mut schema = SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator()
        .into_root_schema_for::<R>();
    RecursiveTransform(without_links).transform(&mut schema);
    schema.to_value()
}

/// Documentation names items as links; outside of it the names remain.
fn without_links(schema: &mut Schema) {
    if let Some(Value::String(text)) = schema.get_mut("description") {
        let mut plain = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some((before, link)) = rest.split_once("[`") {
            let Some((name, after)) = link.split_once("`]") else {
                break;
            };
            plain.push_str(&format!("{before}`{name}`"));
            rest = match after
                .strip_prefix('(')
                .and_then(|target| target.split_once(')'))
            {
                Some((_, after)) => after,
                None => after,
            };
        }
        plain.push_str(rest);
        *text = plain;
    }
}
