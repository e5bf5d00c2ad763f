//! The language model as the rest of the program sees it: token ids in, logits out, memory outside.
//!
//! A model's weights never change; what it remembers of one sequence is a *row*, a value of its own
//! that can be extended, stepped together with others and forked by `clone`. The module knows nothing of
//! text, sampling or files: weights come through [`TensorSource`].

pub mod attention;
pub mod config;
pub mod decoder;
pub mod gated_delta;
pub mod layers;
pub mod rope;
pub mod rounding;
pub mod row;
pub mod tensors;

use anyhow::{Context, Result, bail};
use candle_core::{DType, Device, Tensor};

use crate::distribution::outlook::Outlook;
use crate::kernels::Isa;
use crate::kernels::linear::Format;
use rounding::Rounding;

/// Raw scores of the next token, one for every row of the output layer, in id order.
pub type Logits = Vec<f32>;

/// A next-token predictor whose memory of a sequence is a value outside the weights.
pub trait LanguageModel {
    /// What the model remembers of one sequence. `clone` forks it: extending one copy never changes the other.
    type Row: Clone;

    /// What the model shows of the next token: its logits, or less.
    type Shown: TryInto<Outlook, Error: Into<anyhow::Error>> + Send;

    /// Returns the number of rows of the output layer.
    fn vocab_size(&self) -> usize;

    /// Returns how many tokens a row may hold, prompt and reply together.
    fn max_positions(&self) -> usize;

    /// Returns a row that has seen nothing.
    fn start(&self) -> Self::Row;

    /// Returns the bytes that a row of so many tokens takes in memory; 0 where that is nothing to speak of.
    fn row_bytes(&self, _positions: usize) -> u64 {
        0
    }

    /// Feeds `tokens` (at least one) to one row and returns what is shown after the last of them.
    ///
    /// # Errors
    /// When the tokens are none, outside the vocabulary or more than the row has room for, or the computation fails.
    fn extend(&self, row: &mut Self::Row, tokens: &[u32]) -> Result<Self::Shown>;

    /// Feeds one token to each of many rows, of any lengths, as one batch; what is shown comes in the order of the rows.
    ///
    /// # Errors
    /// As [`extend`](Self::extend), or when `rows` and `tokens` differ in length.
    fn step(&self, rows: &mut [Self::Row], tokens: &[u32]) -> Result<Vec<Self::Shown>>;

    /// Feeds `tokens` to one row and hands `each` the index of every token with what is shown after it, in turn.
    ///
    /// # Errors
    /// As [`extend`](Self::extend), or what `each` returns.
    fn score(
        &self,
        row: &mut Self::Row,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, Self::Shown) -> Result<()>,
    ) -> Result<()>;

    /// Shows what comes after each of some rows again, with more candidates than `shown`, all of them at the end.
    ///
    /// # Errors
    /// When more cannot be shown: whoever shows everything is never asked.
    fn widen(&self, _rows: &[&Self::Row], shown: usize) -> Result<Vec<Self::Shown>> {
        bail!("the model shows {shown} candidates and no more")
    }
}

/// Has a model show more and more of what comes after a row, until `find` finds what it looks for; returns both.
///
/// # Errors
/// What `find` or [`LanguageModel::widen`] says: there may be no more to show.
pub fn widen_until<M: LanguageModel, T>(
    model: &M,
    row: &M::Row,
    mut outlook: Outlook,
    find: impl Fn(&Outlook) -> Result<Option<T>>,
) -> Result<(Outlook, T)> {
    loop {
        if let Some(found) = find(&outlook)? {
            return Ok((outlook, found));
        }
        let mut shown = model.widen(&[row], outlook.num_shown())?;
        let shown = shown.pop().context("one row was asked about")?;
        outlook = shown.try_into().map_err(Into::into)?;
    }
}

/// What computes a forward pass.
#[derive(Debug, Clone)]
pub enum Backend {
    /// This program's kernels, on the CPU: weights as they are stored, all else f32; the same bits for a row whatever
    /// is computed beside it.
    Kernels(Isa),
    /// candle's tensor operations, on any of its devices: the same decoder, and what the kernels are compared with.
    Tensors {
        /// Where tensors live.
        device: Device,
        /// What matrices are multiplied in.
        dtype: DType,
    },
    /// A bf16 run, emulated on the CPU by tensor operations on f32 numbers that are rounded as [`rounding`] says.
    EmulatedBf16 {
        /// The kernels that compute linear layers and head; `None` for tensor operations, which sum in another order.
        products: Option<Isa>,
    },
}

impl Backend {
    /// Returns the kernels that compute all there is between the linear layers; `None` where tensor operations do.
    pub fn isa(&self) -> Option<Isa> {
        match self {
            Self::Kernels(isa) => Some(*isa),
            Self::Tensors { .. } | Self::EmulatedBf16 { .. } => None,
        }
    }

    /// Returns the kernels that compute matrix products; `None` where tensor operations do.
    pub fn products(&self) -> Option<Isa> {
        match self {
            Self::Kernels(isa) => Some(*isa),
            Self::Tensors { .. } => None,
            Self::EmulatedBf16 { products } => *products,
        }
    }

    /// Returns where activations live.
    pub fn device(&self) -> &Device {
        match self {
            Self::Tensors { device, .. } => device,
            Self::Kernels(_) | Self::EmulatedBf16 { .. } => &Device::Cpu,
        }
    }

    /// Returns the type of activations.
    pub fn dtype(&self) -> DType {
        match self {
            Self::Tensors { dtype, .. } => *dtype,
            Self::Kernels(_) | Self::EmulatedBf16 { .. } => DType::F32,
        }
    }

    /// Returns what the results of operations are rounded to.
    pub fn rounding(&self) -> Rounding {
        match self {
            Self::EmulatedBf16 { .. } => Rounding::Bf16,
            Self::Kernels(_) | Self::Tensors { .. } => Rounding::None,
        }
    }
}

/// A tensor's numbers as they lie in a checkpoint.
#[derive(Debug, Clone)]
pub enum Stored<'a> {
    /// Little-endian numbers of one format, row by row.
    Bytes(Format, &'a [u8]),
    /// Numbers that had to be converted, row by row.
    Numbers(Vec<f32>),
}

/// Where a decoder takes its weights from: tensors under the names of a Hugging Face checkpoint without any prefix
/// (`embed_tokens.weight`, `layers.0.self_attn.q_proj.weight`, `norm.weight`, `lm_head.weight`), in its conventions.
pub trait TensorSource {
    /// Returns whether the checkpoint holds a tensor of this name.
    fn contains(&self, name: &str) -> bool;

    /// Returns the tensor as f32 on the CPU, exact where the stored type is narrower.
    ///
    /// # Errors
    /// When it is missing, has another shape than `shape`, or is stored in a type that cannot be read.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor>;

    /// Returns the tensor's numbers in the type that they are stored in, where that is bf16, f16 or f32.
    ///
    /// # Errors
    /// As [`tensor`](Self::tensor).
    fn stored(&self, name: &str, shape: &[usize]) -> Result<Stored<'_>> {
        let numbers = self.tensor(name, shape)?.flatten_all()?.to_vec1()?;
        Ok(Stored::Numbers(numbers))
    }

    /// Says that a tensor will hardly be read again: its memory may go.
    fn release(&self, _name: &str) {}
}
