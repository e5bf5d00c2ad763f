//! Matrix tiles of x86-64 (AMX): proof that they may be used. What is computed with them is `linear`'s.
#![allow(
    unsafe_code,
    reason = "the system is asked for the use of tiles by a call that the standard library has not"
)]

use super::Avx512;

/// AMX tiles that multiply bf16, beside AVX-512 for everything else.
#[derive(Debug, Clone, Copy)]
pub struct Amx {
    vectors: Avx512,
}

impl Amx {
    /// Returns the token where the processor has tiles for bf16, and the system lets this process use them.
    pub fn detect() -> Option<Self> {
        let vectors = Avx512::detect()?;
        (has_tiles() && is_permitted()).then_some(Self { vectors })
    }

    /// Returns the token without asking for tiles, for a processor whose tile instructions are emulated.
    ///
    /// # Safety
    /// Whatever uses the token runs tile instructions, which must be carried out.
    pub unsafe fn assume() -> Option<Self> {
        Avx512::detect().map(|vectors| Self { vectors })
    }

    /// Returns the vectors of the same processor.
    pub fn vectors(self) -> Avx512 {
        self.vectors
    }
}

/// Whether the processor has AMX-TILE and AMX-BF16: bits 24 and 22 of EDX in leaf 7.
fn has_tiles() -> bool {
    const FEATURES: u32 = 1 << 24 | 1 << 22;
    let has_leaf = std::arch::x86_64::__cpuid(0).eax >= 7;
    has_leaf && std::arch::x86_64::__cpuid_count(7, 0).edx & FEATURES == FEATURES
}

/// Asks for the use of tile data, which Linux gives to a whole process on demand.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call takes two numbers and touches no memory.
    unsafe {
        libc::syscall(
            libc::SYS_arch_prctl,
            ARCH_REQ_XCOMP_PERM,
            XFEATURE_XTILEDATA,
        ) == 0
    }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}
