//! Attention and the gated delta net in candle's tensor operations: what a GPU runs, and what the kernels are compared with.
//!
//! Only what lies between the projections is here; projections, norms and the order of layers are the decoder's own.

pub mod attention;
pub mod gated_delta;

pub(super) use attention::KvTensors;
pub(super) use gated_delta::DeltaTensors;
