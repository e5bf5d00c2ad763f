//! What computes: the CPU, or a GPU that the program was built for; its precision, its threads and its memory.

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device};

use crate::cli::{DeviceChoice, DtypeChoice};
use crate::explore::MAX_ROWS;
use crate::kernels::Isa;
use crate::kernels::simd::ISA_VARIABLE;
use crate::model::Backend;

/// Memory that a run needs beside the weights: activations, rows, the record.
const BESIDE_WEIGHTS: u64 = 256 << 20;

/// What computes a forward pass, and in what.
#[derive(Debug, Clone)]
pub struct Compute {
    /// What multiplies and adds.
    pub backend: Backend,
    /// `cpu`, `cuda` or `metal`.
    pub device_name: &'static str,
}

impl Compute {
    /// Chooses device and type.
    ///
    /// # Errors
    /// When the device is not compiled in or not there, or does not compute in the type.
    pub fn choose(device: DeviceChoice, dtype: DtypeChoice) -> Result<Self> {
        let (device, device_name) = match device {
            DeviceChoice::Cpu => (Device::Cpu, "cpu"),
            DeviceChoice::Cuda => (cuda()?, "cuda"),
            DeviceChoice::Metal => (metal()?, "metal"),
            DeviceChoice::Auto => match (cuda(), metal()) {
                (Ok(device), _) => (device, "cuda"),
                (_, Ok(device)) => (device, "metal"),
                _ => (Device::Cpu, "cpu"),
            },
        };
        let dtype = match (dtype, device_name) {
            (DtypeChoice::Auto | DtypeChoice::F32, "cpu") => DType::F32,
            (DtypeChoice::Bf16, "cpu") => {
                bail!("--dtype bf16 is for GPUs: the CPU computes in f32 (expected auto or f32)")
            }
            (DtypeChoice::F16, "cpu") => {
                bail!("--dtype f16 is for GPUs: the CPU computes in f32 (expected auto or f32)")
            }
            (DtypeChoice::Auto | DtypeChoice::Bf16, _) => DType::BF16,
            (DtypeChoice::F32, _) => DType::F32,
            (DtypeChoice::F16, _) => DType::F16,
        };
        let backend = match device_name {
            "cpu" => Backend::Kernels(isa()?),
            _ => Backend::Tensors { device, dtype },
        };
        Ok(Self {
            backend,
            device_name,
        })
    }

    /// Returns what this backend computes on the CPU.
    pub fn on_cpu(backend: Backend) -> Self {
        Self {
            backend,
            device_name: "cpu",
        }
    }

    /// Returns the type's name in the record.
    pub fn dtype_name(&self) -> &'static str {
        match self.backend {
            Backend::EmulatedBf16 { .. } => DType::BF16.as_str(),
            _ => self.backend.dtype().as_str(),
        }
    }

    /// Returns what computes, in words: `cpu: avx512 kernels, 2 threads`.
    pub fn describe(&self) -> String {
        let (device, dtype) = (self.device_name, self.dtype_name());
        match self.backend {
            Backend::Kernels(isa) => {
                let threads = rayon::current_num_threads();
                let s = if threads == 1 { "" } else { "s" };
                format!("{device}: {} kernels, {threads} thread{s}", isa.name())
            }
            _ => format!("{device}: candle, {dtype}"),
        }
    }

    /// Checks that weights which take so many bytes on the CPU fit into memory, before any is read.
    ///
    /// # Errors
    /// Says how much is needed and how much there is.
    pub fn check_memory(&self, weight_bytes: u64) -> Result<()> {
        if !self.backend.device().is_cpu() {
            return Ok(());
        }
        let needed = weight_bytes + BESIDE_WEIGHTS;
        match available_memory() {
            Some(available) if available < needed => bail!(
                "the model needs about {} of memory, {} is available (free some, or choose a smaller model)",
                in_gib(needed),
                in_gib(available)
            ),
            _ => Ok(()),
        }
    }
}

/// Returns how many rows of so many bytes are computed together: once or twice as many as the tallest product takes, as long
/// as they take no more than half of what the weights take, and no more than half of the free memory holds. The other half
/// is for those that wait, which are rarely more.
pub fn rows_that_fit(row_bytes: u64, weight_bytes: u64) -> usize {
    const TALLEST: u64 = MAX_ROWS as u64 / 2;
    let of = |bytes: u64| bytes / 2 / row_bytes.max(1);
    let wanted = match of(weight_bytes) {
        few if few < 2 * TALLEST => TALLEST,
        _ => 2 * TALLEST,
    };
    let possible = available_memory().map_or(u64::MAX, of);
    wanted.min(possible).max(1) as usize
}

/// Sets the number of CPU threads of the whole process: `threads`, else what RAYON_NUM_THREADS says, else one a physical
/// core; they share one heap. Must be called before any thread is started.
///
/// It is that variable which is set, because candle asks for it at every matrix product and otherwise counts the cores each
/// time: a fifth of a small model's run.
#[allow(unsafe_code, reason = "the environment can only be changed so")]
pub fn set_threads(threads: Option<u16>) {
    const VARIABLE: &str = "RAYON_NUM_THREADS";
    tune_heap();
    if threads.is_none() && std::env::var_os(VARIABLE).is_some() {
        return;
    }
    let threads = threads.map_or_else(num_cores, usize::from);
    // SAFETY: by contract no other thread runs yet that could read the environment at the same time.
    unsafe { std::env::set_var(VARIABLE, threads.to_string()) };
}

/// Has all threads take memory from one heap, which keeps what they free. glibc gives each its own, and what one thread frees
/// the others do not take: the states of a prompt's rows then stood in memory twice in one run of four, by chance of which
/// thread made them. And it gives a step's logits and activations back to the system, which has to clear as many pages for the
/// next step: a twentieth of a job's time.
#[allow(unsafe_code, reason = "the allocator has no other interface")]
fn tune_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // only what is larger than any activations is mapped, and given back
        const MAPPED: libc::c_int = 32 << 20;
        let wishes = [
            (libc::M_ARENA_MAX, 1),
            (libc::M_MMAP_THRESHOLD, MAPPED),
            (libc::M_TRIM_THRESHOLD, libc::c_int::MAX),
        ];
        for (parameter, value) in wishes {
            // SAFETY: it sets a number of the allocator's. A wish: nothing depends on it.
            let _ = unsafe { libc::mallopt(parameter, value) };
        }
    }
}

/// Physical cores that this process may use; a core's second hardware thread slows matrix products down.
fn num_cores() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    let physical = sysinfo::System::physical_core_count().unwrap_or(usable);
    physical.clamp(1, usable)
}

/// The instructions of the kernels: what the environment names, else the best of this processor.
fn isa() -> Result<Isa> {
    let isa = Isa::current();
    match std::env::var(ISA_VARIABLE) {
        Ok(wanted) if wanted != isa.name() => {
            let names: Vec<&str> = Isa::available().iter().map(|isa| isa.name()).collect();
            bail!(
                "{ISA_VARIABLE} is `{wanted}`, which this processor does not have (expected {})",
                names.join(" or ")
            )
        }
        _ => Ok(isa),
    }
}

fn cuda() -> Result<Device> {
    ensure!(cfg!(feature = "cuda"), NOT_BUILT_FOR_CUDA);
    Device::new_cuda(0).context("no CUDA device can be used")
}

fn metal() -> Result<Device> {
    ensure!(cfg!(feature = "metal"), NOT_BUILT_FOR_METAL);
    Device::new_metal(0).context("no Metal device can be used")
}

const NOT_BUILT_FOR_CUDA: &str = "this program was built without CUDA (build it with `cargo build --release --features cuda`, or use --device cpu)";
const NOT_BUILT_FOR_METAL: &str = "this program was built without Metal (build it with `cargo build --release --features metal`, or use --device cpu)";

/// Bytes that this process may still take: of the machine, its container and its own limit, the least.
fn available_memory() -> Option<u64> {
    let mut system = sysinfo::System::new().ok()?;
    system.refresh_memory();
    let machine = Some(system.available_memory() + system.free_swap()).filter(|&bytes| bytes > 0);
    let container = system
        .cgroup_limits()
        .map(|limits| limits.free_memory + limits.free_swap);
    [machine, container, address_space()]
        .into_iter()
        .flatten()
        .min()
}

/// What `ulimit -v` leaves of the address space.
#[cfg(target_os = "linux")]
fn address_space() -> Option<u64> {
    let limit = limit_of("/proc/self/limits", "Max address space")?;
    let pages: u64 = std::fs::read_to_string("/proc/self/statm")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()?;
    Some(limit.saturating_sub(pages * 4096))
}

#[cfg(not(target_os = "linux"))]
fn address_space() -> Option<u64> {
    None
}

#[cfg(target_os = "linux")]
fn limit_of(path: &str, name: &str) -> Option<u64> {
    let limits = std::fs::read_to_string(path).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn in_gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_computes_in_f32_and_says_so() -> Result<()> {
        let compute = Compute::choose(DeviceChoice::Cpu, DtypeChoice::Auto)?;
        assert_eq!((compute.device_name, compute.dtype_name()), ("cpu", "f32"));
        let error = Compute::choose(DeviceChoice::Cpu, DtypeChoice::Bf16)
            .expect_err("not on the CPU")
            .to_string();
        assert!(error.contains("expected auto or f32"), "{error}");
        Ok(())
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_device_that_is_not_compiled_in_says_how_to_build_it() {
        let error = Compute::choose(DeviceChoice::Cuda, DtypeChoice::Auto)
            .expect_err("built without")
            .to_string();
        assert!(error.contains("--features cuda"), "{error}");
    }

    #[test]
    fn rows_take_half_of_what_the_weights_take_within_bounds() {
        const MIB: u64 = 1 << 20;
        assert_eq!(rows_that_fit(MIB, 80 * MIB), 26);
        assert_eq!(rows_that_fit(MIB, 10 * MIB), 26);
        assert_eq!(rows_that_fit(MIB, 1000 * MIB), 52);
        assert_eq!(rows_that_fit(0, MIB), 52);
        if available_memory().is_some() {
            assert_eq!(rows_that_fit(1 << 60, u64::MAX), 1);
        }
    }

    #[test]
    fn a_model_that_does_not_fit_is_refused_with_both_numbers() -> Result<()> {
        let compute = Compute::choose(DeviceChoice::Cpu, DtypeChoice::F32)?;
        compute.check_memory(0)?;
        if available_memory().is_some() {
            let error = compute
                .check_memory(1 << 60)
                .expect_err("an exbibyte")
                .to_string();
            assert!(
                error.contains("1073741824.2 GiB of memory") && error.contains("is available"),
                "{error}"
            );
        }
        Ok(())
    }
}
