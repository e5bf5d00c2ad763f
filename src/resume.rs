//! An interrupted batch taken up again: which entries of its record stand for which prompts of this one.
//!
//! The result is to be what an uninterrupted run would have written: program, model and settings must be the same. A prompt
//! that failed is run again.

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::prompts::Prompt;
use crate::record::{PromptEntry, PromptRecord, Record, Sweep};
use crate::setting::Setting;

/// Returns the entry of every prompt that `earlier` holds, in the order of `prompts`. `now` is this run's record, still
/// without prompts; `settings` are those of its sweeps.
///
/// # Errors
/// Names the first thing in which the two runs differ.
pub(crate) fn kept(
    earlier: Record,
    now: &Record,
    settings: &[Setting],
    prompts: &[Prompt],
) -> Result<Vec<Option<PromptEntry>>> {
    same("program", &earlier.program, &now.program)?;
    same("model", &earlier.model, &now.model)?;
    same("settings", &earlier.settings, &now.settings)?;
    let mut kept: Vec<Option<PromptEntry>> = prompts.iter().map(|_| None).collect();
    for (number, entry) in (1..).zip(earlier.prompts) {
        let stands_for = |prompt: &Prompt| match &entry {
            PromptEntry::Done(done) => {
                (&done.id, &done.prompt, &done.system)
                    == (&prompt.id, &prompt.prompt, &prompt.system)
            }
            PromptEntry::Failed(failed) => {
                (&failed.id, &failed.prompt, &failed.system)
                    == (&prompt.id, &prompt.prompt, &prompt.system)
            }
        };
        let mut free = prompts
            .iter()
            .zip(&mut kept)
            .filter(|(_, kept)| kept.is_none());
        let (_, place) = free
            .find(|(prompt, _)| stands_for(prompt))
            .with_context(|| {
                format!(
                    "its prompt {number} is none of these, or is there more often (expected a record of the same prompts)"
                )
            })?;
        match entry {
            PromptEntry::Done(done) => {
                check_sweeps(&done, settings).with_context(|| format!("its prompt {number}"))?;
                *place = Some(PromptEntry::Done(done));
            }
            PromptEntry::Failed(_) => {}
        }
    }
    Ok(kept)
}

fn check_sweeps(done: &PromptRecord, settings: &[Setting]) -> Result<()> {
    let is_of = |(sweep, setting): (&Sweep, &Setting)| {
        (sweep.temperature, sweep.top_k, sweep.top_p, sweep.min_p)
            == (
                setting.temperature(),
                setting.top_k(),
                setting.top_p(),
                setting.min_p(),
            )
    };
    let is_same =
        done.sweeps.len() == settings.len() && done.sweeps.iter().zip(settings).all(is_of);
    let recorded: Vec<&str> = done
        .sweeps
        .iter()
        .map(|sweep| sweep.label.as_str())
        .collect();
    let wanted: Vec<String> = settings.iter().map(ToString::to_string).collect();
    ensure!(
        is_same,
        "has the groups `{}`, here they are `{}` (give the same flags as then)",
        recorded.join("; "),
        wanted.join("; ")
    );
    Ok(())
}

/// Compares a part of two records and names the field that differs.
fn same<T: Serialize>(name: &str, then: &T, now: &T) -> Result<()> {
    let value = |part: &T| serde_json::to_value(part).expect("a record's parts are JSON");
    let (then, now) = (value(then), value(now));
    if then == now {
        return Ok(());
    }
    let none = serde_json::Map::new();
    let fields = |value: &Value| value.as_object().unwrap_or(&none).clone();
    let (of_then, of_now) = (fields(&then), fields(&now));
    let field = of_then
        .keys()
        .chain(of_now.keys())
        .find(|key| of_then.get(*key) != of_now.get(*key));
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), Value::to_string);
    match field {
        Some(key) => bail!(
            "{name}.{key} is {} in it, here {} (give the same flags as then, or start anew without --resume)",
            shown(of_then.get(key)),
            shown(of_now.get(key))
        ),
        None => bail!("{name} is {then} in it, here {now} (start anew without --resume)"),
    }
}
