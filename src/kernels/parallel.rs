//! Work that is split over the threads of the one pool (rayon's), and results that several of them write side by side.
//!
//! What a piece of work computes never depends on how many pieces there are or which thread takes it.
#![allow(
    unsafe_code,
    reason = "threads write to parts of one slice that no slice operation can separate"
)]

use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

/// Calls `work` with every number below `count`, on all threads.
pub fn each(count: usize, work: impl Fn(usize) + Sync + Send) {
    match count {
        1 => work(0),
        _ => (0..count).into_par_iter().with_max_len(1).for_each(work),
    }
}

/// Cuts `0..count` into a few parts a thread, each at least `least` long, and calls `work` with every part.
pub fn ranges(count: usize, least: usize, work: impl Fn(Range<usize>) + Sync + Send) {
    // a few parts a thread: a thread that the machine takes away for a while leaves little to wait for
    let parts = (4 * rayon::current_num_threads())
        .min(count / least.max(1))
        .max(1);
    each(parts, |part| {
        work(count * part / parts..count * (part + 1) / parts);
    });
}

/// A slice whose parts are written by several threads at once.
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: the contract of `part` keeps threads from touching the same element.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Takes the slice for as long as threads write to it.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            slice: PhantomData,
        }
    }

    /// Returns the number of its elements.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns a part of it.
    ///
    /// # Safety
    /// While the part lives, no other part that shares an element with it may be asked for.
    #[allow(
        clippy::mut_from_ref,
        reason = "that is its purpose; the contract above makes it sound"
    )]
    pub unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds, and by contract no other reference to these elements lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
