//! A model named on the command line, made ready: its files are opened and checked, then its weights are loaded.

use anyhow::{Context, Result};

use crate::checkpoint::hub::HubOptions;
use crate::checkpoint::{Checkpoint, Source};
use crate::cli::LocalRequest;
use crate::device::{self, Compute};
use crate::kernels::Isa;
use crate::model::decoder::Decoder;
use crate::progress;
use crate::record::ModelInfo;
use crate::screen::Stderr;

/// Sets the number of threads and chooses what computes.
///
/// # Errors
/// As [`Compute::choose`].
pub(crate) fn prepare(request: &LocalRequest) -> Result<Compute> {
    device::set_threads(request.threads);
    Compute::choose(request.device, request.dtype)
}

/// Opens a model's files.
///
/// # Errors
/// When they cannot be found, read or used.
pub(crate) fn open(request: &LocalRequest, messages: &Stderr) -> Result<Checkpoint> {
    let source = Source::locate(request.source.model(), request.source.revision.as_deref())?;
    let options = HubOptions {
        offline: request.source.offline,
        progress: !messages.quiet,
    };
    let checkpoint =
        Checkpoint::open(&source, &options).map_err(|error| source.with_way_out(error))?;
    checkpoint.notes.iter().for_each(|note| messages.warn(note));
    Ok(checkpoint)
}

/// Loads a model's weights.
///
/// # Errors
/// When memory is short or a tensor is not what its config says.
pub(crate) fn load(
    checkpoint: &Checkpoint,
    compute: &Compute,
    messages: &Stderr,
) -> Result<Decoder> {
    compute.check_memory(checkpoint.memory_bytes)?;
    messages.explain(&compute.describe());
    let bar = progress::bar(
        "loading",
        checkpoint.config.layer_types.len() as u64,
        messages.quiet,
    );
    let weights = checkpoint.weights.as_ref();
    let decoder = Decoder::load(&checkpoint.config, weights, &compute.backend, &|| {
        bar.inc(1)
    });
    bar.finish_and_clear();
    decoder.with_context(|| checkpoint.id.clone())
}

/// Returns what a record says of a model.
pub(crate) fn model_info(checkpoint: &Checkpoint, compute: &Compute) -> ModelInfo {
    ModelInfo {
        id: checkpoint.id.clone(),
        revision: checkpoint.revision.clone(),
        architecture: checkpoint.config.model_type.clone(),
        vocab_size: checkpoint.config.vocab_size,
        weights_dtype: checkpoint.weights_dtype.clone(),
        compute_dtype: compute.dtype_name().to_owned(),
        device: compute.device_name.to_owned(),
        tiles: compute.backend.products().is_some_and(Isa::has_tiles),
        note: checkpoint.note.map(str::to_owned),
        server: None,
    }
}
