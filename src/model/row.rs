//! What a decoder remembers of one sequence: a value outside the weights, forked by `clone`.
//!
//! Nothing in it is changed in place: every extension replaces a tensor by a new one, so clones share what they have in
//! common and never see each other's tokens. (candle's own `KvCache` appends in place; clones of it overwrite each other.)

use candle_core::Tensor;

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
    /// Keys (rotated) and values of all tokens, each `[kv heads, tokens, head_dim]`; `None` before the first.
    Attention(Option<(Tensor, Tensor)>),
    /// A gated delta net's two states.
    GatedDelta {
        /// Conv state: the last `kernel - 1` inputs of the convolution, `[kernel - 1, channels]`.
        conv: Tensor,
        /// Recurrent state, `[value heads, key head dim, value head dim]`, f32.
        recurrent: Tensor,
    },
}
