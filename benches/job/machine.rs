//! What this machine can do at best: how fast it reads memory, how many f32 operations a second it does.
//!
//! Memory is read in a plain loop and in every mixture of a few streams with software prefetch; the best of these is the
//! bandwidth that everything else is measured against. The buffer is larger than any cache, in huge pages where the system
//! gives them. The operations are fused multiply-adds on registers, and bf16 products on matrix tiles where the processor has them.

#![allow(
    unsafe_code,
    reason = "prefetch, and functions for instructions that were detected"
)]

use std::fmt::{self, Display};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use memmap2::MmapMut;

/// Bytes that are read: many times the largest cache of a processor that people have at home.
const BUFFER_BYTES: usize = 1 << 30;
/// Bytes that one turn of the reading loop takes from a stream: four cache lines.
const LINES: usize = 256;
/// Numbers of streams that are tried.
const STREAMS: [usize; 4] = [1, 2, 4, 8];
/// Distances in bytes that are tried; 0 is none.
const PREFETCH: [usize; 4] = [0, 1024, 2048, 4096];
/// Times that everything is measured; the best counts, since what else runs here can only take away.
const REPEATS: usize = 5;
/// Turns of the loop of multiply-adds, each with [`CHAINS`] of them.
const TURNS: usize = 16_000_000;
/// Multiply-adds that do not wait for each other: enough to hide the latency of two units.
const CHAINS: usize = 12;

/// What the machine can do.
pub(crate) struct Machine {
    /// The processor, and how the best reading was done.
    pub(crate) name: String,
    /// With one thread.
    pub(crate) one: Limits,
    /// With all of them.
    pub(crate) all: Limits,
    threads: usize,
}

/// What some threads can do together.
pub(crate) struct Limits {
    /// Reading in a plain loop.
    pub(crate) plain: Bandwidth,
    /// Reading in the best way found.
    pub(crate) best: Bandwidth,
    /// f32 operations a second; a multiply-add is two.
    pub(crate) fma: f64,
    /// bf16 operations a second on matrix tiles, where the processor has them.
    pub(crate) tiles: Option<f64>,
    way: Way,
}

/// Bytes a second.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bandwidth(f64);

/// A way of reading memory.
#[derive(Debug, Clone, Copy)]
struct Way {
    streams: usize,
    prefetch: usize,
}

impl Bandwidth {
    /// Returns the time of reading so many bytes.
    pub(crate) fn seconds(self, bytes: u64) -> f64 {
        bytes as f64 / self.0
    }
}

impl Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} GB/s", self.0 * 1e-9)
    }
}

impl Machine {
    /// Measures one thread and `threads`.
    pub(crate) fn measure(threads: usize) -> Self {
        let buffer = buffer(threads);
        let (one, all) = (Limits::of(&buffer, 1), Limits::of(&buffer, threads));
        let Way { streams, prefetch } = all.way;
        Self {
            name: format!(
                "{}; fastest reading: {streams} streams, prefetch {prefetch} bytes ahead",
                processor()
            ),
            one,
            all,
            threads,
        }
    }

    /// Returns whether something else seems to have had a part of the processor.
    pub(crate) fn is_disturbed(&self) -> bool {
        self.all.fma < 0.8 * self.threads as f64 * self.one.fma
    }

    /// Returns the bandwidth that everything is measured against.
    pub(crate) fn best(&self) -> Bandwidth {
        self.all.best
    }

    /// Returns the heading of the column for all threads.
    pub(crate) fn all_threads(&self) -> String {
        format!("{} threads", self.threads)
    }
}

impl Limits {
    fn of(buffer: &[u8], threads: usize) -> Self {
        let ways = STREAMS
            .into_iter()
            .flat_map(|streams| PREFETCH.map(|prefetch| Way { streams, prefetch }));
        let ways: Vec<Way> = ways.collect();
        let mut rates = vec![0.0f64; ways.len()];
        // round after round, so that a disturbance does not meet one way alone
        for _ in 0..REPEATS {
            for (rate, &way) in rates.iter_mut().zip(&ways) {
                *rate = rate.max(bandwidth(buffer, threads, way));
            }
        }
        let best = (0..ways.len())
            .max_by(|&a, &b| rates[a].total_cmp(&rates[b]))
            .expect("there are ways to try");
        Self {
            // the first way is one stream without prefetch
            plain: Bandwidth(rates[0]),
            best: Bandwidth(rates[best]),
            fma: (0..REPEATS).map(|_| fma(threads)).fold(0.0, f64::max),
            tiles: tiles(threads),
            way: ways[best],
        }
    }

    /// Returns the operations a second of products with bf16 weights whose results are f32: on tiles three bf16 products each.
    pub(crate) fn products(&self) -> f64 {
        self.tiles
            .map_or(self.fma, |tiles| self.fma.max(tiles / 3.0))
    }
}

/// The instructions that the measurements use.
#[derive(Debug, Clone, Copy)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

impl Instructions {
    fn detected() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
        }
        Self::Portable
    }
}

/// Returns the name of the instructions that multiply and add.
pub(crate) fn instructions() -> &'static str {
    match Instructions::detected() {
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => "AVX-512",
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => "AVX2",
        Instructions::Portable => "as compiled",
    }
}

/// Seconds until the last of `threads` has done its `work`, which is told the thread's number; all begin together.
fn timed(threads: usize, work: impl Fn(usize) + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let one = |index| {
        barrier.wait();
        let start = Instant::now();
        work(index);
        start.elapsed().as_secs_f64()
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|index| scope.spawn(move || one(index)))
            .collect();
        let times = handles
            .into_iter()
            .map(|handle| handle.join().expect("nothing in a measurement can panic"));
        times.fold(0.0, f64::max)
    })
}

/// Memory that has been written, so that every page of it is there.
fn buffer(threads: usize) -> MmapMut {
    let mut map = MmapMut::map_anon(BUFFER_BYTES).expect("a gigabyte of memory");
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    std::thread::scope(|scope| {
        for part in map.chunks_mut(BUFFER_BYTES / threads) {
            scope.spawn(|| part.fill(1));
        }
    });
    map
}

/// Bytes a second that the threads read, each its part.
fn bandwidth(buffer: &[u8], threads: usize, way: Way) -> f64 {
    // a whole number of turns for every stream of every thread
    let turn = LINES * way.streams;
    let part = BUFFER_BYTES / threads / turn * turn;
    let instructions = Instructions::detected();
    let time = timed(threads, |index| {
        let part = &buffer[index * part..][..part];
        black_box(match instructions {
            // SAFETY: the instructions were detected.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { read_avx512(part, way) },
            // SAFETY: the instructions were detected.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { read_avx2(part, way) },
            Instructions::Portable => read(part, way),
        });
    });
    (threads * part) as f64 / time
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn read_avx512(bytes: &[u8], way: Way) -> u64 {
    read(bytes, way)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn read_avx2(bytes: &[u8], way: Way) -> u64 {
    read(bytes, way)
}

/// Reads every byte of a part and returns something that depends on all of them.
#[inline(always)]
fn read(bytes: &[u8], way: Way) -> u64 {
    const NUMBERS: usize = LINES / 8;
    let stream = bytes.len() / way.streams;
    let mut sums = [0u64; NUMBERS];
    for start in (0..stream).step_by(LINES) {
        for index in 0..way.streams {
            let lines = &bytes[index * stream + start..][..LINES];
            if way.prefetch > 0 {
                for line in (0..LINES).step_by(64) {
                    prefetch(lines.as_ptr().wrapping_add(way.prefetch + line));
                }
            }
            let (numbers, _) = lines.as_chunks::<8>();
            for (sum, number) in sums.iter_mut().zip(numbers) {
                *sum ^= u64::from_ne_bytes(*number);
            }
        }
    }
    sums.iter().fold(0, |all, sum| all ^ sum)
}

#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, and it may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// f32 operations a second that the threads do together.
fn fma(threads: usize) -> f64 {
    let instructions = Instructions::detected();
    let lanes = match instructions {
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => 16,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => 8,
        Instructions::Portable => 4,
    };
    let time = timed(threads, |_| match instructions {
        // SAFETY: the instructions were detected.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { fma_avx512() },
        // SAFETY: the instructions were detected.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { fma_avx2() },
        Instructions::Portable => fma_portable(),
    });
    (2 * threads * TURNS * CHAINS * lanes) as f64 / time
}

/// bf16 operations a second that the threads do together on matrix tiles.
#[cfg(target_arch = "x86_64")]
fn tiles(threads: usize) -> Option<f64> {
    use std::arch::asm;
    /// Products of a turn that do not wait for each other.
    const SUMS: usize = 4;
    /// Of a product: 16 rows, 16 columns, 32 long.
    const MULTIPLY_ADDS: usize = 16 * 16 * 32;
    const TURNS: usize = 1_000_000;
    logprobs::kernels::simd::Amx::detect()?;
    let mut config = [0u8; 64];
    config[0] = 1;
    for tile in 0..8 {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
    }
    let once = || {
        let time = timed(threads, |_| {
            // SAFETY: the processor has tiles and the process may use them; the configuration is 64 bytes, tiles of zeros are
            // multiplied, and nothing is left behind.
            unsafe {
                asm!(
                    "ldtilecfg [{config}]",
                    "2:",
                    "tdpbf16ps tmm0, tmm4, tmm5",
                    "tdpbf16ps tmm1, tmm4, tmm5",
                    "tdpbf16ps tmm2, tmm4, tmm5",
                    "tdpbf16ps tmm3, tmm4, tmm5",
                    "dec {turns}",
                    "jnz 2b",
                    "tilerelease",
                    config = in(reg) config.as_ptr(),
                    turns = inout(reg) TURNS => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, readonly),
                );
            }
        });
        (2 * threads * TURNS * SUMS * MULTIPLY_ADDS) as f64 / time
    };
    Some((0..REPEATS).map(|_| once()).fold(0.0, f64::max))
}

#[cfg(not(target_arch = "x86_64"))]
fn tiles(_: usize) -> Option<f64> {
    None
}

/// A number for every chain, so that none can be left out as equal to another; all stay near it.
fn starts() -> [f32; CHAINS] {
    std::array::from_fn(|index| 1.0 + black_box(index) as f32)
}

const FACTOR: f32 = 1.000_000_1;
const ADDEND: f32 = -1e-7;

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn fma_avx512() {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_set1_ps};
    let mut chains = starts().map(|start| _mm512_set1_ps(start));
    let (factor, addend) = (_mm512_set1_ps(FACTOR), _mm512_set1_ps(ADDEND));
    for _ in 0..TURNS {
        for chain in &mut chains {
            *chain = _mm512_fmadd_ps(*chain, factor, addend);
        }
    }
    black_box(chains);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma_avx2() {
    use std::arch::x86_64::{_mm256_fmadd_ps, _mm256_set1_ps};
    let mut chains = starts().map(|start| _mm256_set1_ps(start));
    let (factor, addend) = (_mm256_set1_ps(FACTOR), _mm256_set1_ps(ADDEND));
    for _ in 0..TURNS {
        for chain in &mut chains {
            *chain = _mm256_fmadd_ps(*chain, factor, addend);
        }
    }
    black_box(chains);
}

fn fma_portable() {
    let mut chains = starts().map(|start| [start; 4]);
    for _ in 0..TURNS {
        for lane in chains.as_flattened_mut() {
            *lane = lane.mul_add(FACTOR, ADDEND);
        }
    }
    black_box(chains);
}

/// The processor's name, where the system tells.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}
