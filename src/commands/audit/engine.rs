//! What an audit computes runs with: all kernels of the processor, tensor operations, bf16 that is emulated, and a GPU.

use anyhow::Result;
use candle_core::{DType, Device};

use crate::audit::Way::{self, Alone, Batch, Pieces, Scored, Threads};
use crate::checkpoint::Checkpoint;
use crate::cli::{DeviceChoice, DtypeChoice};
use crate::device::Compute;
use crate::kernels::Isa;
use crate::model::Backend;
use crate::record::audit::EngineInfo;

/// Rows stepped together with the run's own, as in the studies that compare a batch of 8 with one of 1.
const BATCH: Way = Batch(8);
/// Lengths without a pattern that a kernel's tiles could share.
const UNEVEN: Way = Pieces(&[3, 1, 7, 2, 5]);

/// What computes some runs.
pub(super) struct Engine {
    pub(super) compute: Compute,
    /// The ways in which it makes them.
    pub(super) ways: &'static [Way],
    /// Whether its runs promise the reference's bits.
    pub(super) is_promised: bool,
}

impl Engine {
    /// Returns all that this machine has, the one that computes the references first.
    ///
    /// # Errors
    /// When a device that was asked for is not there.
    pub(super) fn all(device: DeviceChoice) -> Result<Vec<Self>> {
        let first = Compute::choose(DeviceChoice::Cpu, DtypeChoice::F32)?;
        let best = first.backend.isa();
        let mut all = vec![Self {
            compute: first,
            ways: &[
                Threads(1),
                Threads(2),
                Threads(4),
                BATCH,
                Pieces(&[1]),
                UNEVEN,
                Scored,
            ],
            is_promised: true,
        }];
        let other = Isa::available().into_iter();
        let other = other.filter(|isa| Some(isa.name()) != best.map(Isa::name));
        all.extend(other.map(|isa| Self {
            compute: Compute::on_cpu(Backend::Kernels(isa)),
            ways: &[Alone],
            is_promised: best.is_some_and(|best| isa.has_bits_of(best)),
        }));
        let others = [
            Backend::Tensors {
                device: Device::Cpu,
                dtype: DType::F32,
            },
            Backend::EmulatedBf16 { products: best },
            Backend::EmulatedBf16 { products: None },
        ];
        let mut computes: Vec<Compute> = others.map(Compute::on_cpu).into();
        let is_gpu = |compute: &Compute| compute.device_name != "cpu";
        for dtype in [DtypeChoice::F32, DtypeChoice::Auto] {
            let chosen = Compute::choose(device, dtype)?;
            computes.extend(Some(chosen).filter(is_gpu));
        }
        all.extend(computes.into_iter().map(|compute| Self {
            compute,
            ways: &[Alone, BATCH, UNEVEN, Scored],
            is_promised: false,
        }));
        Ok(all)
    }

    /// Returns what a record says of it.
    pub(super) fn info(&self) -> EngineInfo {
        let backend = &self.compute.backend;
        EngineInfo {
            products: backend.products().map_or("tensors", Isa::name).to_owned(),
            device: self.compute.device_name.to_owned(),
            dtype: self.compute.dtype_name().to_owned(),
            emulated: matches!(backend, Backend::EmulatedBf16 { .. }),
        }
    }

    /// Returns what its weights take in the CPU's memory, at most: tensor operations there hold all of them in f32.
    pub(super) fn weight_bytes(&self, checkpoint: &Checkpoint) -> u64 {
        let is_half = matches!(checkpoint.weights_dtype.as_str(), "bf16" | "f16");
        match self.compute.backend.products() {
            None if is_half => 2 * checkpoint.memory_bytes,
            _ => checkpoint.memory_bytes,
        }
    }
}
