//! `temperature-step1`: the first step's best candidates at several temperatures.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::cli::{Out, Step1Request};
use crate::distribution::outlook::Outlook;
use crate::engine::{Engine, Local};
use crate::model::{LanguageModel, widen_until};
use crate::output;
use crate::prompts::{self, Prompt};
#[cfg(feature = "png")]
use crate::raster::Fonts;
use crate::record::{PROGRAM, SCHEMA, TemperatureStep1};
use crate::remote::Remote;
use crate::report::{chart, json, table};
use crate::screen::{Screen, Stderr, ignore_closed_pipe};
use crate::text::display;
use crate::transcript::Transcript;

/// Computes one step, prints it and writes it to its file.
///
/// # Errors
/// When the model or the prompt cannot be used, or the file cannot be written.
pub(crate) fn run(request: &Step1Request) -> Result<ExitCode> {
    if let Out::Folder(folder) = &request.output.out {
        output::check_folder(folder)?;
    }
    for file in request.svg.iter().chain(&request.png) {
        output::check_new(file)?;
    }
    #[cfg(feature = "png")]
    let fonts = match request.png {
        Some(_) => Some(Fonts::of_this_machine()?),
        None => None,
    };
    let prompt = Prompt::from(request.prompt.as_deref().unwrap_or(prompts::BUILT_IN[0]));
    let messages = Stderr::new(&request.output);
    let (model, chat) = (&request.model, &request.chat);
    let record = match &model.server.server {
        None => computed(
            &Local::open(&model.local, chat, &messages)?,
            prompt,
            request,
            &messages,
        )?,
        Some(address) => {
            let remote = Remote::connect(address, model, chat, request.candidates, &messages)?;
            computed(&remote, prompt, request, &messages)?
        }
    };
    let mut screen = Screen::new(&request.output);
    screen.show(|out, _| table::temperature_step1(&record, out));
    let say = |path: &Path| {
        let path = path.display().to_string();
        messages.say(&format!("written to {}", display::escape_line(&path)));
    };
    let path = match &request.output.out {
        Out::Stdout | Out::Lines => None,
        Out::File(path) | Out::Replace(path) => Some(path.clone()),
        Out::Folder(folder) => {
            Some(folder.join(format!("temperature_step1_{}.json", record.model.device)))
        }
    };
    match path {
        Some(path) => {
            output::replace(&path, |file| json::write(&record, file))?;
            say(&path);
        }
        None => ignore_closed_pipe(json::write(&record, io::stdout().lock()))
            .context("standard output")?,
    }
    if let Some(svg) = &request.svg {
        let written = output::write_new(svg, |mut file| chart::write(&record, &mut file))?;
        say(&written);
    }
    #[cfg(feature = "png")]
    if let (Some(png), Some(fonts)) = (&request.png, fonts) {
        let mut svg = Vec::new();
        chart::write(&record, &mut svg).expect("a vector takes everything");
        let pixels = fonts.draw(&String::from_utf8_lossy(&svg))?;
        say(&output::write_new(png, |file| file.write_all(&pixels))?);
    }
    screen.close()?;
    Ok(ExitCode::SUCCESS)
}

/// Computes the first step.
fn computed<E: Engine>(
    engine: &E,
    prompt: Prompt,
    request: &Step1Request,
    messages: &Stderr,
) -> Result<TemperatureStep1> {
    let input = engine.input(&prompt, &request.chat, 1)?;
    let model = engine.load(messages)?;
    let mut row = model.start();
    let shown = model.extend(&mut row, &input.ids)?;
    let outlook = shown.try_into().map_err(Into::into)?;
    // probabilities at other temperatures need every candidate
    let (outlook, distribution) = widen_until(&model, &row, outlook, Outlook::to_distribution)?;

    let best = distribution.best(request.candidates);
    let columns: Vec<Vec<f64>> = request
        .temperatures
        .iter()
        .map(|&t| distribution.probs_at(t))
        .collect();
    let vocabulary = engine.vocabulary();
    vocabulary.learn(&best.iter().copied().collect(), &[])?;
    engine.close(messages);
    let transcript = Transcript {
        vocabulary,
        threshold: 0.0,
    };
    let candidate = |&id: &u32| {
        let probs = columns
            .iter()
            .map(|probs| probs[id as usize] as f32)
            .collect();
        transcript.tempered(id, outlook.logit(id), probs)
    };
    let rest = |probs: &Vec<f64>| {
        let listed = |id: usize| best.iter().any(|&best| best as usize == id);
        let others = probs.iter().enumerate().filter(|&(id, _)| !listed(id));
        others.map(|(_, prob)| prob).sum::<f64>()
    };
    Ok(TemperatureStep1 {
        schema: SCHEMA,
        program: PROGRAM.to_owned(),
        model: engine.info(),
        prompt: prompt.prompt,
        rendered: input.text,
        prompt_token_ids: input.ids,
        temperatures: request.temperatures.clone(),
        candidates: best.iter().map(candidate).collect(),
        rest: columns.iter().map(|probs| rest(probs) as f32).collect(),
    })
}
