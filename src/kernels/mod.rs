//! What the CPU computes: matrix products, attention, the gated delta rule, norms, and the passes over a vocabulary.
//!
//! Plain functions over slices; no tensors, no files, no model. Each is written once over [`simd`]'s sixteen lanes and has a
//! plain reference in its tests. One law holds for all: **what comes out for a row depends on that row alone**, to the last
//! bit: not on the rows beside it, the number of threads, the pieces it came in, or the processor. Sums therefore run in
//! one fixed order, work is split between outputs and never inside a sum.

pub mod attention;
pub mod gated_delta;
pub mod linear;
mod lines;
pub mod math;
pub mod norm;
pub mod parallel;
pub mod simd;
pub mod vocabulary;

pub use simd::Isa;
