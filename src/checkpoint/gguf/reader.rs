//! The header of a GGUF file: what the model says about itself, and where each tensor lies.
//!
//! Nothing in the file is believed: counts, lengths, shapes and offsets are checked against its size before they are used,
//! so a damaged or hostile file ends in one sentence. Versions 2 and 3, little endian; source: ggml `docs/gguf.md`.

use std::collections::BTreeMap;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};

use super::cursor::Cursor;
use super::types;
use super::values::{List, Value};

/// What a file says before its weights.
#[derive(Debug)]
pub(super) struct Header {
    values: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
}

/// What a file says about one tensor.
#[derive(Debug, Clone)]
pub(super) struct TensorInfo {
    /// Shape, outermost dimension first.
    pub(super) shape: Vec<usize>,
    /// Code of the storage type.
    pub(super) code: u32,
    /// Bytes of the file; empty where the storage type cannot be read, so that its size is not known.
    pub(super) at: Range<usize>,
}

impl TensorInfo {
    /// Returns the number of elements; the reader has made sure that it can be counted.
    pub(super) fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Offsets are multiples of this where the file names no other number.
const DEFAULT_ALIGNMENT: usize = 32;

/// Far above any real file's; bounded so that rounding up to it cannot overflow.
const MAX_ALIGNMENT: usize = 1 << 20;

/// ggml has no tensors with more dimensions.
const MAX_DIMENSIONS: u32 = 4;

impl Header {
    /// Reads the header of a whole file and checks that every tensor lies inside it.
    ///
    /// # Errors
    /// Says what does not fit, what was expected and what to do.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = Cursor::new(bytes);
        check_magic(bytes)?;
        cursor.take(4)?;
        check_version(cursor.u32().context("version")?)?;
        // The shortest tensor entry: a name's length, no dimensions, a type, an offset. The shortest value: a key's length, a type, a byte.
        let num_tensors = cursor.count("tensors", 24).context("header")?;
        let num_values = cursor.count("values", 13).context("header")?;
        let mut values = BTreeMap::new();
        for index in 0..num_values {
            let key = name(&mut cursor).with_context(|| format!("key {index}"))?;
            let value = Value::read(&mut cursor).with_context(|| format!("key `{key}`"))?;
            ensure!(!values.contains_key(&key), "key `{key}` is there twice");
            values.insert(key, value);
        }
        let mut header = Self {
            values,
            tensors: BTreeMap::new(),
        };
        for index in 0..num_tensors {
            let name = name(&mut cursor).with_context(|| format!("tensor {index}"))?;
            let info = tensor_info(&mut cursor).with_context(|| format!("tensor `{name}`"))?;
            let twice = header.tensors.contains_key(&name);
            ensure!(!twice, "tensor `{name}` is there twice");
            header.tensors.insert(name, info);
        }
        header.place_tensors(cursor.position(), bytes.len())?;
        Ok(header)
    }

    /// Returns the tensors, by name.
    pub(super) fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    /// Returns the value of a key.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Returns a text.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(super) fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(other) => bail!("`{key}` is {} (expected a text)", other.described()),
        }
    }

    /// Returns a whole number that is not negative.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(super) fn number(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = match value {
            Value::Integer(number) => usize::try_from(*number).ok(),
            _ => None,
        };
        let refusal = || format!("`{key}` is {} (expected a whole number)", value.described());
        number.with_context(refusal).map(Some)
    }

    /// Returns a number.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(super) fn float(&self, key: &str) -> Result<Option<f64>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Float(number)) => Ok(Some(*number)),
            Some(Value::Integer(number)) => Ok(Some(*number as f64)),
            Some(other) => bail!("`{key}` is {} (expected a number)", other.described()),
        }
    }

    /// Returns a flag.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Flag(flag)) => Ok(Some(*flag)),
            Some(other) => bail!("`{key}` is {} (expected true or false)", other.described()),
        }
    }

    /// Returns a list.
    ///
    /// # Errors
    /// When the key holds something else.
    pub(super) fn list(&self, key: &str) -> Result<Option<&List>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(other) => bail!("`{key}` is {} (expected a list)", other.described()),
        }
    }

    /// Turns offsets into places in the file, and checks them: aligned, inside the file, one after the other.
    fn place_tensors(&mut self, header_size: usize, file_size: usize) -> Result<()> {
        let alignment = self
            .number("general.alignment")?
            .unwrap_or(DEFAULT_ALIGNMENT);
        ensure!(
            alignment.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&alignment),
            "`general.alignment` is {alignment} (expected a power of two from 8 to {MAX_ALIGNMENT})"
        );
        let start = header_size.next_multiple_of(alignment);
        let mut end = 0;
        for (name, info) in &mut self.tensors {
            ensure!(
                info.at.start.is_multiple_of(alignment),
                "tensor `{name}`: offset {} is not a multiple of the alignment, {alignment}: the file is damaged (download it again)",
                info.at.start
            );
            // Saturated, the end lies behind that of any file and is refused below.
            info.at = info.at.start.saturating_add(start)..info.at.end.saturating_add(start);
            end = end.max(info.at.end);
        }
        ensure!(
            end <= file_size,
            "cut short or damaged: the tensors end at byte {end}, but the file has {file_size} bytes (download it again)"
        );
        let mut placed: Vec<_> = self.tensors.iter().collect();
        placed.sort_by_key(|(_, info)| info.at.start);
        for ((name, info), (next_name, next)) in placed.iter().zip(placed.iter().skip(1)) {
            ensure!(
                info.at.end <= next.at.start,
                "tensors `{name}` and `{next_name}` overlap: the file is damaged (download it again)"
            );
        }
        Ok(())
    }
}

fn check_magic(bytes: &[u8]) -> Result<()> {
    if bytes.starts_with(b"GGUF") {
        return Ok(());
    }
    let size = bytes.len();
    let head = String::from_utf8_lossy(&bytes[..size.min(512)]).to_ascii_lowercase();
    if head.starts_with("version https://git-lfs") {
        let expected = head.lines().find_map(|line| line.strip_prefix("size "));
        let expected = expected.map_or(String::new(), |size| format!("expected {size} bytes, "));
        bail!(
            "a git-lfs pointer, not the model: {expected}got {size} (fetch the real file with `git lfs pull`)"
        );
    }
    if head.trim_start().starts_with("<!doctype") || head.trim_start().starts_with("<html") {
        bail!("a web page of {size} bytes, not the model (download the file itself)");
    }
    let magic = bytes[..size.min(4)].escape_ascii();
    bail!("not a GGUF file: it starts with `{magic}` (expected `GGUF`)")
}

fn check_version(version: u32) -> Result<()> {
    match version {
        2 | 3 => Ok(()),
        1 => bail!("GGUF version 1 is not supported (expected 2 or 3; convert the model again)"),
        // A big-endian file's version has its only byte at the other end.
        swapped if swapped & 0xffff == 0 && swapped != 0 => {
            bail!("big-endian GGUF is not supported (expected little endian)")
        }
        other => bail!("GGUF version {other} is not supported (expected 2 or 3)"),
    }
}

fn name(cursor: &mut Cursor) -> Result<String> {
    let text = std::str::from_utf8(cursor.text()?);
    Ok(text.context("its name is not UTF-8")?.to_owned())
}

/// Reads a tensor's entry; its place is still relative to the first tensor.
fn tensor_info(cursor: &mut Cursor) -> Result<TensorInfo> {
    let num_dimensions = cursor.u32()?;
    ensure!(
        num_dimensions <= MAX_DIMENSIONS,
        "{num_dimensions} dimensions (expected at most {MAX_DIMENSIONS})"
    );
    let mut shape = Vec::new();
    for _ in 0..num_dimensions {
        shape.insert(0, cursor.size()?);
    }
    let code = cursor.u32()?;
    let start = cursor.size()?;
    let size = num_bytes(&shape, code)?;
    let at = start..start.saturating_add(size);
    Ok(TensorInfo { shape, code, at })
}

/// Returns the size of a tensor's data; 0 where the storage type cannot be read.
fn num_bytes(shape: &[usize], code: u32) -> Result<usize> {
    let elements = shape
        .iter()
        .try_fold(1_usize, |n, size| n.checked_mul(*size));
    let elements = elements.with_context(|| format!("shape {shape:?} has too many elements"))?;
    let Some(dtype) = types::dtype(code) else {
        return Ok(0);
    };
    let inner = shape.last().copied().unwrap_or(1);
    ensure!(
        inner.is_multiple_of(dtype.block_size()),
        "rows of {inner} elements are not whole blocks of {} (expected a multiple of {})",
        types::name(code),
        dtype.block_size()
    );
    let size = (elements / dtype.block_size()).checked_mul(dtype.type_size());
    size.with_context(|| format!("shape {shape:?} has too many elements"))
}

#[cfg(test)]
mod tests {
    use super::super::sample::{Sample, head};
    use super::*;

    fn refusal(bytes: &[u8]) -> String {
        format!("{:#}", Header::parse(bytes).expect_err("not a good file"))
    }

    #[test]
    fn versions_2_and_3_say_the_same() {
        let sample = Sample::new()
            .text("general.name", "tiny")
            .number("n", 7)
            .float("eps", 1e-6)
            .flag("yes", true)
            .tensor("x", &[2, 3], &[0.0; 6]);
        let mut bytes = sample.bytes();
        for version in [2, 3] {
            bytes[4] = version;
            let header = Header::parse(&bytes).expect("a good file");
            assert_eq!(header.text("general.name").expect("a text"), Some("tiny"));
            assert_eq!(header.number("n").expect("a number"), Some(7));
            assert_eq!(header.float("eps").expect("a number"), Some(1e-6));
            assert_eq!(header.flag("yes").expect("a flag"), Some(true));
            assert_eq!(header.text("absent").expect("nothing"), None);
            let tensor = &header.tensors()["x"];
            assert_eq!(tensor.shape, [2, 3]);
            assert_eq!(tensor.at, bytes.len() - 24..bytes.len());
        }
    }

    #[test]
    fn a_value_of_another_kind_is_refused_with_its_value() {
        let sample = Sample::new()
            .text("n", "seven")
            .number("t", 7)
            .value("m", 5, &[255; 4]);
        let header = Header::parse(&sample.bytes()).expect("a good file");
        let number = header.number("n").expect_err("a text").to_string();
        assert_eq!(number, "`n` is `seven` (expected a whole number)");
        let negative = header.number("m").expect_err("negative").to_string();
        assert_eq!(negative, "`m` is -1 (expected a whole number)");
        let text = header.text("t").expect_err("a number").to_string();
        assert_eq!(text, "`t` is 7 (expected a text)");
    }

    #[test]
    fn what_is_not_gguf_is_named() {
        assert_eq!(
            refusal(b"PK\x03\x04 and more"),
            "not a GGUF file: it starts with `PK\\x03\\x04` (expected `GGUF`)"
        );
        let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 94000000\n";
        assert_eq!(
            refusal(pointer.as_bytes()),
            "a git-lfs pointer, not the model: expected 94000000 bytes, got 71 (fetch the real file with `git lfs pull`)"
        );
        assert_eq!(
            refusal(b"\n<!DOCTYPE html>\n<html>"),
            "a web page of 23 bytes, not the model (download the file itself)"
        );
    }

    #[test]
    fn other_versions_and_big_endian_are_refused_by_name() {
        for (version, start) in [
            (1, "GGUF version 1 is not supported"),
            (4, "GGUF version 4 is not supported"),
            (0, "GGUF version 0 is not supported"),
            (3_u32.swap_bytes(), "big-endian GGUF is not supported"),
        ] {
            let message = refusal(&head(version, 0, 0));
            assert!(message.starts_with(start), "{message}");
        }
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        let whole = Sample::tiny_llama().bytes();
        for size in 0..whole.len() {
            refusal(&whole[..size]);
        }
        assert_eq!(
            refusal(&whole[..7]),
            "version: 4 bytes at byte 4 do not fit the file of 7 bytes, which is cut short or damaged (download it again)"
        );
        let size = whole.len();
        assert_eq!(
            refusal(&whole[..size - 1]),
            format!(
                "cut short or damaged: the tensors end at byte {size}, but the file has {} bytes (download it again)",
                size - 1
            )
        );
    }

    #[test]
    fn bytes_after_the_tensors_do_not_matter() {
        let mut bytes = Sample::tiny_llama().bytes();
        bytes.push(0);
        assert!(Header::parse(&bytes).is_ok());
    }

    #[test]
    fn counts_beyond_the_file_are_refused_before_anything_is_reserved() {
        let most = u64::MAX / 2;
        assert_eq!(
            refusal(&head(3, 1 << 60, 0)),
            "header: 1152921504606846976 tensors announced, but only 8 bytes follow: the file is cut short or damaged (download it again)"
        );
        assert!(
            refusal(&head(3, 0, most)).starts_with("header: 9223372036854775807 values announced")
        );
        let mut bytes = head(3, 0, 1);
        bytes.extend(most.to_le_bytes());
        bytes.extend([0; 32]);
        assert_eq!(
            refusal(&bytes),
            "key 0: 9223372036854775807 bytes at byte 32 do not fit the file of 64 bytes, which is cut short or damaged (download it again)"
        );
        let message = refusal(&Sample::new().list("k", 8, usize::MAX, &[]).bytes());
        assert!(message.starts_with("key `k`: "), "{message}");
    }

    #[test]
    fn shapes_beyond_counting_are_refused() {
        let squared = Sample::new().entry("x", &[1 << 32, 1 << 32], 0, 0);
        let message = refusal(&squared.bytes());
        assert_eq!(
            message,
            "tensor `x`: shape [4294967296, 4294967296] has too many elements"
        );
        let bytes = Sample::new().entry("x", &[1 << 62], 0, 0).bytes();
        assert!(refusal(&bytes).contains("too many elements"));
        let deep = Sample::new().entry("x", &[1; 5], 0, 0);
        assert_eq!(
            refusal(&deep.bytes()),
            "tensor `x`: 5 dimensions (expected at most 4)"
        );
        let ragged = Sample::new().entry("x", &[2, 33], 8, 0);
        assert!(
            refusal(&ragged.bytes()).contains("rows of 33 elements are not whole blocks of Q8_0")
        );
    }

    #[test]
    fn places_outside_the_file_and_on_each_other_are_refused() {
        let far = Sample::new().entry("x", &[1], 0, u64::MAX / 32 * 32);
        assert!(refusal(&far.bytes()).starts_with("cut short or damaged: the tensors end at byte"));
        let crooked = Sample::new().entry("x", &[1], 0, 4);
        assert!(refusal(&crooked.bytes()).starts_with("tensor `x`: offset 4 is not a multiple"));
        let twice = Sample::new().zeros("x", &[16]).entry("y", &[8], 0, 32);
        let message = refusal(&twice.bytes());
        assert!(
            message.starts_with("tensors `x` and `y` overlap"),
            "{message}"
        );
    }

    #[test]
    fn nothing_is_there_twice() {
        let keys = Sample::new().number("n", 1).number("n", 2);
        assert_eq!(refusal(&keys.bytes()), "key `n` is there twice");
        let tensors = Sample::new().zeros("x", &[1]).zeros("x", &[1]);
        assert_eq!(refusal(&tensors.bytes()), "tensor `x` is there twice");
    }

    #[test]
    fn alignments_that_cannot_be_are_refused() {
        for alignment in [0, 3, 4, u32::MAX, 1 << 31] {
            let message = refusal(&Sample::new().number("general.alignment", alignment).bytes());
            assert!(message.starts_with("`general.alignment` is"), "{message}");
        }
    }
}
