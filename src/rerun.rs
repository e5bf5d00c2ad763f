//! A record as the job that made it: the same prompts, settings, seed and date, and the model where the record tells where it is.

use std::ffi::OsString;

use anyhow::{Context, Result, ensure};

use crate::checkpoint::source::check_id;
use crate::cli::{
    ChatRequest, DeviceChoice, DtypeChoice, ExploreRequest, LocalRequest, MAX_SAMPLES,
    ModelRequest, RerunRequest, SourceRequest,
};
use crate::prompts::{NO_OBJECT, Prompt};
use crate::record::{ModelInfo, PromptEntry, Record, Settings, Sweep};
use crate::setting::Setting;

/// Returns the model that a job on `record` takes; `None` where the record names a folder, a file or a server.
pub(crate) fn model(record: &Record, choices: &RerunRequest) -> Option<ModelRequest> {
    let is_elsewhere = record.model.server.is_some() && choices.server.server.is_none();
    let (model, revision) = match &choices.model {
        None if is_elsewhere => return None,
        None if choices.server.server.is_some() => (record.model.id.clone().into(), None),
        Some(model) => (model.clone(), choices.revision.clone()),
        None => {
            let (model, revision) = source(&record.model)?;
            (model, choices.revision.clone().or(revision))
        }
    };
    let device = match record.model.device.as_str() {
        "cpu" => DeviceChoice::Cpu,
        _ => DeviceChoice::Auto,
    };
    let dtype = match record.model.compute_dtype.as_str() {
        "f32" => DtypeChoice::F32,
        _ => DtypeChoice::Auto,
    };
    Some(ModelRequest {
        local: LocalRequest {
            source: SourceRequest {
                model: Some(model),
                revision,
                offline: choices.offline,
            },
            device: choices.device.unwrap_or(device),
            dtype: choices.dtype.unwrap_or(dtype),
            threads: choices.threads,
        },
        server: choices.server.clone(),
    })
}

/// Where a record's model is: built in, or on the hub, which alone has commits.
fn source(model: &ModelInfo) -> Option<(OsString, Option<String>)> {
    #[cfg(feature = "demo")]
    if model.id == crate::demo::NAME && model.note.as_deref() == Some(crate::demo::NOTE) {
        return Some((crate::demo::NAME.into(), None));
    }
    let is_on_hub = model.revision.is_some() && check_id(&model.id).is_ok();
    is_on_hub.then(|| (model.id.clone().into(), model.revision.clone()))
}

/// Returns the job that makes `record` again.
///
/// # Errors
/// When its settings are none that the main command takes.
pub(crate) fn request(
    record: &Record,
    model: ModelRequest,
    batch: Option<usize>,
) -> Result<ExploreRequest> {
    let Settings {
        max_new_tokens,
        samples,
        candidates,
        mass,
        threshold,
        ..
    } = record.settings;
    ensure!(
        max_new_tokens > 0 && candidates > 0 && i64::from(samples) <= MAX_SAMPLES,
        "settings: {max_new_tokens} new tokens, {candidates} candidates and {samples} samples cannot be run (expected at least 1, at \
         least 1, and at most {MAX_SAMPLES})"
    );
    ensure!(
        mass > 0.0 && mass <= 1.0 && (0.0..=1.0).contains(&threshold),
        "settings: mass {mass} or threshold {threshold} is out of range (expected above 0, up to 1; and 0 to 1)"
    );
    // every prompt of a record has the same groups
    let sweeps = record.prompts.iter().find_map(|entry| match entry {
        PromptEntry::Done(done) => Some(&done.sweeps),
        PromptEntry::Failed(_) => None,
    });
    let settings = sweeps.into_iter().flatten().map(setting);
    let settings: Result<Vec<Setting>> = settings.collect();
    Ok(ExploreRequest {
        model,
        chat: ChatRequest {
            system: record.settings.system.clone(),
            raw: record.settings.raw,
            plain_text: record.settings.plain_text,
            thinking: record.settings.thinking == Some(true),
        },
        max_new_tokens,
        samples,
        run: record.settings.run,
        seed: record.settings.seed,
        settings: settings.context("sweeps")?,
        candidates,
        mass,
        threshold,
        ignore_eos: record.settings.ignore_eos,
        template_date: record.settings.template_date.clone(),
        batch,
    })
}

fn setting(sweep: &Sweep) -> Result<Setting> {
    Setting::OFF
        .with_temperature(sweep.temperature)?
        .with_top_k(sweep.top_k)
        .with_top_p(sweep.top_p)?
        .with_min_p(sweep.min_p)
}

/// Returns the prompts of a record as they were given. A line that was no prompt is none again.
pub(crate) fn prompts(record: &Record) -> Vec<Prompt> {
    let prompt = |entry: &PromptEntry| match entry {
        PromptEntry::Done(done) => Prompt {
            prompt: done.prompt.clone(),
            id: done.id.clone(),
            system: done.system.clone(),
            error: None,
        },
        PromptEntry::Failed(failed) => Prompt {
            prompt: failed.prompt.clone(),
            id: failed.id.clone(),
            system: failed.system.clone(),
            error: Some(failed.error.clone()).filter(|error| error.ends_with(NO_OBJECT)),
        },
    };
    record.prompts.iter().map(prompt).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::compare::tests::{done, failed, record, sweep};
    use crate::record::PromptRecord;

    fn named(id: &str, revision: Option<&str>, note: Option<&str>) -> Option<SourceRequest> {
        let mut record = record(Vec::new());
        record.model.id = id.into();
        record.model.revision = revision.map(str::to_owned);
        record.model.note = note.map(str::to_owned);
        model(&record, &RerunRequest::default()).map(|model| model.local.source)
    }

    #[test]
    fn only_a_model_on_the_hub_or_a_built_in_one_is_found_by_its_name() {
        let found = named("org/m", Some("abc"), None).expect("it has a commit");
        assert_eq!(
            (found.model, found.revision),
            (Some("org/m".into()), Some("abc".to_owned()))
        );
        assert_eq!(named("m", None, None), None);
        assert_eq!(named("m.gguf", None, None), None);
        assert_eq!(named("../../m", Some("abc"), None), None);
        assert_eq!(named("demo", None, None), None, "a folder of that name");
        #[cfg(feature = "demo")]
        {
            let found = named("demo", None, Some(crate::demo::NOTE)).expect("built in");
            assert_eq!((found.model, found.revision), (Some("demo".into()), None));
        }
    }

    #[test]
    fn what_was_chosen_goes_before_what_the_record_says() {
        let mut record = record(Vec::new());
        record.model.revision = Some("abc".into());
        let of = |choices: RerunRequest| model(&record, &choices).expect("a model").local;
        let choices = RerunRequest {
            model: Some("./m".into()),
            device: Some(DeviceChoice::Auto),
            ..RerunRequest::default()
        };
        let chosen = of(choices);
        assert_eq!(chosen.source.model, Some("./m".into()));
        assert_eq!(
            chosen.source.revision, None,
            "it belongs to the other model"
        );
        assert_eq!(
            (chosen.device, chosen.dtype),
            (DeviceChoice::Auto, DtypeChoice::F32)
        );
        let moved = of(RerunRequest {
            revision: Some("main".into()),
            ..RerunRequest::default()
        });
        assert_eq!(moved.source.revision.as_deref(), Some("main"));
        assert_eq!(moved.device, DeviceChoice::Cpu);
    }

    #[test]
    fn settings_that_no_run_has_are_refused() -> Result<()> {
        let prompt = PromptRecord {
            sweeps: vec![sweep(1.5, &[&[1]])],
            ..done("hi", &[])
        };
        let sound = record(vec![failed("x"), PromptEntry::Done(prompt)]);
        let model = model(
            &sound,
            &RerunRequest {
                model: Some("m".into()),
                ..RerunRequest::default()
            },
        );
        let model = model.expect("it was chosen");
        let made = request(&sound, model.clone(), Some(3))?;
        assert_eq!(made.settings, [Setting::OFF.with_temperature(1.5)?]);
        assert_eq!((made.batch, made.chat.raw), (Some(3), true));
        let broken: [fn(&mut Record); 5] = [
            |record| record.settings.max_new_tokens = 0,
            |record| record.settings.samples = u32::MAX,
            |record| record.settings.mass = 0.0,
            |record| record.settings.threshold = 2.0,
            |record| {
                if let PromptEntry::Done(done) = &mut record.prompts[1] {
                    done.sweeps[0].temperature = -1.0;
                }
            },
        ];
        for change in broken {
            let mut broken = sound.clone();
            change(&mut broken);
            let refusal = request(&broken, model.clone(), None).expect_err("refused");
            assert!(format!("{refusal:#}").contains("expected"), "{refusal:#}");
        }
        Ok(())
    }

    #[test]
    fn a_line_that_was_no_prompt_stays_none() {
        let mut record = record(vec![failed("too long"), failed("{}")]);
        if let PromptEntry::Failed(failed) = &mut record.prompts[1] {
            failed.error = format!("line 1, column 2: missing field `prompt` {NO_OBJECT}");
        }
        let prompts = prompts(&record);
        assert_eq!(prompts[0].error, None);
        assert!(prompts[1].error.is_some());
    }
}
