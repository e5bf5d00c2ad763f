//! The one decoder of all families: embedding, layers of (norm, mixer, norm, SwiGLU), norm, head.
//!
//! A family is a [`DecoderConfig`]; the forward pass is written once, for any number of rows with any number of new tokens
//! each. [`Decoder::hidden`] gives hidden states, [`Decoder::logits`] applies the head: two steps, since only some
//! positions need the second.

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Module, Tensor};

use super::attention::Attention;
use super::config::{DecoderConfig, LayerKind};
use super::gated_delta::GatedDeltaNet;
use super::layers::{Loader, Matrix, Mlp, RmsNorm};
use super::rope::Rope;
use super::rounding::{Bf16Weights, Rounding};
use super::row::Row;
use super::{Backend, LanguageModel, Logits, TensorSource};

/// Tokens of a row that go through the layers at once: bounds the scores of attention (tokens × length) in a long prompt.
const PREFILL_PIECE: usize = 256;

/// Positions that the head sees at once when every position is asked for: bounds the logits in memory.
const HEAD_PIECE: usize = 32;

/// A decoder with its weights.
#[derive(Debug, Clone)]
pub struct Decoder {
    embed_tokens: Matrix,
    layers: Vec<DecoderLayer>,
    norm: RmsNorm,
    lm_head: Matrix,
    rope: Rope,
    config: DecoderConfig,
    device: Device,
    rounding: Rounding,
}

#[derive(Debug, Clone)]
struct DecoderLayer {
    input_layernorm: RmsNorm,
    mixer: Mixer,
    post_attention_layernorm: RmsNorm,
    mlp: Mlp,
}

#[derive(Debug, Clone)]
enum Mixer {
    SelfAttn(Attention),
    LinearAttn(GatedDeltaNet),
}

impl Decoder {
    /// Loads every weight that `config` asks for; `progress` is called after each layer.
    ///
    /// # Errors
    /// Names the tensor that is missing or has another shape than the config says.
    pub fn load(
        config: &DecoderConfig,
        source: &dyn TensorSource,
        backend: &Backend,
        progress: &dyn Fn(),
    ) -> Result<Self> {
        let rounding = backend.rounding();
        let rounded = Bf16Weights(source);
        let source = match rounding {
            Rounding::None => source,
            Rounding::Bf16 => &rounded,
        };
        let loader = Loader {
            source,
            backend,
            zero_centred_norm: config.zero_centred_norm,
            rms_norm_eps: config.rms_norm_eps,
        };
        let embedding = [config.vocab_size, config.hidden_size];
        let embed_tokens = loader.matrix("embed_tokens.weight", embedding)?;
        let is_tied = match config.tie_word_embeddings {
            Some(tied) => tied,
            None => !source.contains("lm_head.weight"),
        };
        let lm_head = match is_tied {
            true => embed_tokens.clone(),
            false => loader.matrix("lm_head.weight", embedding)?,
        };
        let mut layers = Vec::with_capacity(config.layer_types.len());
        for (index, &kind) in config.layer_types.iter().enumerate() {
            layers.push(DecoderLayer::load(&loader, index, kind, config)?);
            progress();
        }
        Ok(Self {
            embed_tokens,
            layers,
            norm: loader.norm("norm", config.hidden_size)?,
            lm_head,
            rope: Rope::new(&config.rope)?,
            config: config.clone(),
            device: backend.device().clone(),
            rounding,
        })
    }

    /// Feeds `tokens` to several rows, `lengths[i]` of them to `rows[i]`, and returns the hidden states after the final
    /// norm, `[tokens, hidden]`. `observe` sees the embeddings (0) and the states after each layer (1, 2, …) on the way.
    ///
    /// # Errors
    /// When a token is outside the vocabulary, a row has no room, or the computation fails; rows are then undefined.
    pub fn hidden(
        &self,
        rows: &mut [Row],
        lengths: &[usize],
        tokens: &[u32],
        observe: &mut dyn FnMut(usize, &Tensor),
    ) -> Result<Tensor> {
        self.check(rows, lengths, tokens)?;
        let positions: Vec<usize> = rows
            .iter()
            .zip(lengths)
            .flat_map(|(row, &length)| row.len..row.len + length)
            .collect();
        let angles = self.rope.angles(&positions);
        let mut xs = self.embed_tokens.rows(tokens, &self.device)?;
        observe(0, &xs);
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = layer.input_layernorm.forward(&xs)?;
            let states = rows.iter_mut().map(|row| &mut row.layers[index]);
            let mixed = match &layer.mixer {
                Mixer::SelfAttn(attention) => {
                    attention.forward(&normed, lengths, &angles, states)?
                }
                Mixer::LinearAttn(delta_net) => delta_net.forward(&normed, lengths, states)?,
            };
            xs = self.rounding.round((xs + mixed)?)?;
            let normed = layer.post_attention_layernorm.forward(&xs)?;
            xs = self.rounding.round((&xs + layer.mlp.forward(&normed)?)?)?;
            observe(index + 1, &xs);
        }
        for (row, length) in rows.iter_mut().zip(lengths) {
            row.len += length;
        }
        Ok(self.norm.forward(&xs)?)
    }

    /// Applies the head to hidden states `[positions, hidden]`; the logits are f32.
    ///
    /// # Errors
    /// When the computation fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Vec<Logits>> {
        let mut logits = self.lm_head.logits(hidden)?;
        for logits in &mut logits {
            self.rounding.round_all(logits);
        }
        Ok(logits)
    }

    /// Feeds `tokens` to one row in pieces and hands `each` the offset and the hidden states of every piece.
    fn pieces(
        &self,
        row: &mut Row,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, &Tensor) -> Result<()>,
    ) -> Result<()> {
        ensure!(
            !tokens.is_empty(),
            "there is no token to feed (expected at least one)"
        );
        let room = self.max_positions().saturating_sub(row.len);
        ensure!(
            tokens.len() <= room,
            "{} tokens do not fit (the model takes {} and has seen {})",
            tokens.len(),
            self.max_positions(),
            row.len
        );
        for (index, piece) in tokens.chunks(PREFILL_PIECE).enumerate() {
            let rows = std::slice::from_mut(row);
            let hidden = in_pool(|| self.hidden(rows, &[piece.len()], piece, &mut |_, _| ()))?;
            each(index * PREFILL_PIECE, &hidden)?;
        }
        Ok(())
    }

    fn check(&self, rows: &[Row], lengths: &[usize], tokens: &[u32]) -> Result<()> {
        ensure!(
            rows.len() == lengths.len() && lengths.iter().sum::<usize>() == tokens.len(),
            "{} tokens were given for {} rows with {} lengths",
            tokens.len(),
            rows.len(),
            lengths.len()
        );
        if let Some(id) = tokens
            .iter()
            .find(|&&id| id as usize >= self.config.vocab_size)
        {
            anyhow::bail!(
                "token id {id} is outside the vocabulary (expected 0 to {})",
                self.config.vocab_size - 1
            );
        }
        for (row, length) in rows.iter().zip(lengths) {
            ensure!(
                row.len + length <= self.max_positions(),
                "a row of {} tokens has no room for {length} more (the model takes {})",
                row.len,
                self.max_positions()
            );
        }
        Ok(())
    }
}

impl DecoderLayer {
    fn load(
        loader: &Loader,
        index: usize,
        kind: LayerKind,
        config: &DecoderConfig,
    ) -> Result<Self> {
        let name = format!("layers.{index}");
        let (hidden, intermediate) = (config.hidden_size, config.intermediate_size);
        let mixer = match (kind, &config.gated_delta) {
            (LayerKind::FullAttention, _) => Mixer::SelfAttn(Attention::load(
                loader,
                &format!("{name}.self_attn"),
                config,
            )?),
            (LayerKind::LinearAttention, sizes) => {
                let sizes = sizes.as_ref().context("the linear_* sizes are missing")?;
                let name = format!("{name}.linear_attn");
                Mixer::LinearAttn(GatedDeltaNet::load(loader, &name, config, sizes)?)
            }
        };
        Ok(Self {
            input_layernorm: loader.norm(&format!("{name}.input_layernorm"), hidden)?,
            mixer,
            post_attention_layernorm: loader
                .norm(&format!("{name}.post_attention_layernorm"), hidden)?,
            mlp: Mlp::load(
                loader,
                &format!("{name}.mlp"),
                [hidden, intermediate],
                config.mlp_bias,
            )?,
        })
    }
}

/// Does something on a thread of the pool: handing each piece of it over from outside would cost as much as many of them.
fn in_pool<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

impl LanguageModel for Decoder {
    type Row = Row;
    type Shown = Logits;

    fn vocab_size(&self) -> usize {
        self.config.vocab_size
    }

    fn max_positions(&self) -> usize {
        self.config.max_positions()
    }

    fn row_bytes(&self, positions: usize) -> u64 {
        let config = &self.config;
        let kv = positions.saturating_mul(2 * config.num_key_value_heads * config.head_dim);
        let state = config.gated_delta.as_ref().map_or(0, |sizes| {
            let heads = sizes.linear_num_value_heads * sizes.linear_key_head_dim;
            heads * sizes.linear_value_head_dim
                + (sizes.linear_conv_kernel_dim - 1) * sizes.conv_dim()
        });
        let numbers = config.layer_types.iter().map(|kind| match kind {
            LayerKind::FullAttention => kv,
            LayerKind::LinearAttention => state,
        });
        (numbers.sum::<usize>() * size_of::<f32>()) as u64
    }

    fn start(&self) -> Row {
        let states = self.layers.iter().map(|layer| match &layer.mixer {
            Mixer::SelfAttn(attention) => attention.start(),
            Mixer::LinearAttn(delta_net) => delta_net.start(),
        });
        Row {
            len: 0,
            layers: states.collect(),
        }
    }

    fn extend(&self, row: &mut Row, tokens: &[u32]) -> Result<Logits> {
        let mut last = None;
        self.pieces(row, tokens, &mut |_, hidden| {
            last = Some(hidden.narrow(0, hidden.dim(0)? - 1, 1)?);
            Ok(())
        })?;
        let hidden = last.context("a prefill ends with a piece")?;
        self.logits(&hidden)?
            .pop()
            .context("one position has one row of logits")
    }

    fn step(&self, rows: &mut [Row], tokens: &[u32]) -> Result<Vec<Logits>> {
        let lengths = vec![1; rows.len()];
        in_pool(|| {
            let hidden = self.hidden(rows, &lengths, tokens, &mut |_, _| ())?;
            self.logits(&hidden)
        })
    }

    fn score(
        &self,
        row: &mut Row,
        tokens: &[u32],
        each: &mut dyn FnMut(usize, Logits) -> Result<()>,
    ) -> Result<()> {
        self.pieces(row, tokens, &mut |offset, hidden| {
            let positions = hidden.dim(0)?;
            for start in (0..positions).step_by(HEAD_PIECE) {
                let slice = hidden.narrow(0, start, HEAD_PIECE.min(positions - start))?;
                for (index, logits) in self.logits(&slice)?.into_iter().enumerate() {
                    each(offset + start + index, logits)?;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::DType;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// A source that has every tensor, all zeros that take no memory, and remembers what it was asked for.
    #[derive(Default)]
    struct Asked(RefCell<BTreeMap<String, Vec<usize>>>);

    impl TensorSource for Asked {
        fn contains(&self, _: &str) -> bool {
            false
        }

        fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
            self.0.borrow_mut().insert(name.to_owned(), shape.to_vec());
            Ok(Tensor::zeros(1, DType::F32, &Device::Cpu)?.broadcast_as(shape)?)
        }
    }

    /// The published list of tensors, text model only.
    fn published(size: &str) -> BTreeMap<String, Vec<usize>> {
        let folder =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen35-real");
        let list = std::fs::read_to_string(folder.join(format!("tensors.Qwen3.5-{size}.tsv")))
            .expect(size);
        list.lines()
            .filter_map(|line| {
                let mut fields = line.strip_prefix("model.language_model.")?.split('\t');
                let (name, shape) = (fields.next()?, fields.nth(1)?);
                let shape = shape
                    .split('x')
                    .map(|dim| dim.trim().parse().expect("a size"))
                    .collect();
                Some((name.to_owned(), shape))
            })
            .collect()
    }

    /// Every tensor of the published text model is asked for by name and shape, and nothing else is.
    #[test]
    fn the_published_tensors_of_qwen35_are_the_ones_that_are_loaded() -> Result<()> {
        for size in ["0.8B", "2B"] {
            let folder =
                std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen35-real");
            let config = std::fs::read(folder.join(format!("config.Qwen3.5-{size}.json")))?;
            let config = DecoderConfig::from_hf(&serde_json::from_slice(&config)?)?;
            let asked = Asked::default();
            let loader = Loader {
                source: &asked,
                backend: &Backend::Tensors {
                    device: Device::Cpu,
                    dtype: DType::F32,
                },
                zero_centred_norm: false,
                rms_norm_eps: 1e-6,
            };
            loader.tensor(
                "embed_tokens.weight",
                &[config.vocab_size, config.hidden_size],
            )?;
            loader.norm("norm", config.hidden_size)?;
            // the first period of layers, one at a time: all of them would take 7 GB
            for (index, &kind) in config.layer_types[..4].iter().enumerate() {
                DecoderLayer::load(&loader, index, kind, &config)?;
            }
            let mut expected = published(size);
            assert_eq!(expected.len(), 320);
            let first = [
                "embed_tokens.",
                "norm.",
                "layers.0.",
                "layers.1.",
                "layers.2.",
                "layers.3.",
            ];
            expected.retain(|name, _| first.iter().any(|first| name.starts_with(first)));
            assert_eq!(asked.0.into_inner(), expected, "{size}");
        }
        Ok(())
    }
}
