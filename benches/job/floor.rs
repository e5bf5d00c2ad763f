//! The least that the job can take here: what its weights and states weigh, against what the machine can do.

use std::path::Path;

use anyhow::{Context, Result};

use super::machine::Machine;
use super::{PROMPTS, RUNS};

/// What a model's files say of the work that it takes.
pub(crate) struct Weights {
    /// Bytes of the files of weights.
    pub(crate) bytes: u64,
    /// Bytes of one row's recurrent states.
    state_bytes: u64,
}

impl Weights {
    /// Reads the sizes of a folder's weight files and the numbers of its `config.json`.
    pub(crate) fn of(model: &Path) -> Result<Self> {
        let mut bytes = 0;
        for entry in std::fs::read_dir(model).with_context(|| model.display().to_string())? {
            let entry = entry?;
            if entry.path().extension().is_some_and(|e| e == "safetensors") {
                bytes += entry.metadata()?.len();
            }
        }
        let path = model.join("config.json");
        let text = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let config: serde_json::Value = serde_json::from_slice(&text)?;
        let config = config.get("text_config").unwrap_or(&config);
        let number = |key: &str| config[key].as_u64().unwrap_or(0);
        let layers = config["layer_types"].as_array().map_or(0, |layers| {
            layers.iter().filter(|&l| l == "linear_attention").count()
        });
        let state = number("linear_num_value_heads")
            * number("linear_key_head_dim")
            * number("linear_value_head_dim");
        Ok(Self {
            bytes,
            state_bytes: layers as u64 * state * 4,
        })
    }

    /// Returns the least times that the job can take when all its runs share every step.
    pub(crate) fn floor(&self, machine: &Machine, new: usize) -> Floor {
        let rows = PROMPTS * RUNS;
        let state_bytes = rows as u64 * 2 * self.state_bytes;
        let parameters = self.bytes as f64 / 2.0;
        Floor {
            memory: new as f64 * machine.best().seconds(self.bytes + state_bytes),
            arithmetic: (new * rows) as f64 * 2.0 * parameters / machine.all.products(),
        }
    }
}

/// The least times of the job, in seconds; none can be below the greater of the two.
pub(crate) struct Floor {
    /// The weights are read once a step, every row's recurrent states are read and written once.
    pub(crate) memory: f64,
    /// Every token takes a multiply-add for each of its weights, of two bytes each, in f32 or its like on tiles.
    pub(crate) arithmetic: f64,
}
