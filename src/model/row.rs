//! What a decoder remembers of one sequence: a value outside the weights, forked by `clone`.
//!
//! Clones share what they have in common and never see each other's tokens: the kernels copy a part before they write to
//! one that is shared, tensors are never changed in place. (candle's own `KvCache` appends in place; clones of it
//! overwrite each other.)

use super::tensors::{DeltaTensors, KvTensors};
use crate::kernels::attention::KvCache;
use crate::kernels::gated_delta::DeltaState;

/// One sequence: how long it is, and the memory of every layer.
#[derive(Debug, Clone)]
pub struct Row {
    pub(super) len: usize,
    pub(super) layers: Vec<LayerState>,
}

impl Row {
    /// Returns how many tokens the row has seen: the position of the next one.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the row has seen nothing yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// What one layer remembers.
#[derive(Debug, Clone)]
pub(super) enum LayerState {
    /// Attention on the kernels.
    Kv(KvCache),
    /// A gated delta net on the kernels.
    Delta(DeltaState),
    /// Attention on tensors; nothing before the first token.
    KvTensors(Option<KvTensors>),
    /// A gated delta net on tensors.
    DeltaTensors(DeltaTensors),
}
