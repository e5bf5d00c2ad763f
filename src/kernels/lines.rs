//! Memory for tiled weights: cache lines, in huge pages where the system gives them.
#![allow(
    unsafe_code,
    reason = "bytes of an anonymous map are seen as cache lines"
)]

use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

use super::simd::Line;

/// From this size on, in bytes, memory is mapped: two huge pages.
const MAPPED: usize = 4 << 20;

/// A fixed number of cache lines.
#[derive(Debug)]
pub(super) enum Lines {
    /// From the allocator.
    Owned(Vec<Line>),
    /// From the system: a walk over weights reads them a quarter faster in pages of 2 MiB than in pages of 4 KiB.
    Mapped(MmapMut),
}

impl Lines {
    /// Returns lines of zeros.
    pub(super) fn zeros(count: usize) -> Self {
        let bytes = count * size_of::<Line>();
        if bytes >= MAPPED
            && let Ok(map) = MmapMut::map_anon(bytes)
        {
            // a wish: nothing depends on it
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            return Self::Mapped(map);
        }
        Self::Owned(vec![Line::ZERO; count])
    }
}

impl Deref for Lines {
    type Target = [Line];

    fn deref(&self) -> &[Line] {
        match self {
            Self::Owned(lines) => lines,
            Self::Mapped(map) => {
                // SAFETY: the map is aligned to pages, every bit pattern is a line, and the length is rounded down.
                unsafe {
                    std::slice::from_raw_parts(map.as_ptr().cast(), map.len() / size_of::<Line>())
                }
            }
        }
    }
}

impl DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [Line] {
        match self {
            Self::Owned(lines) => lines,
            Self::Mapped(map) => {
                let count = map.len() / size_of::<Line>();
                // SAFETY: as above, and the map is borrowed mutably.
                unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast(), count) }
            }
        }
    }
}
