//! The ways in which GGUF files store numbers, by the codes of ggml's `enum ggml_type`, and which of them can be read.

use candle_core::quantized::GgmlDType;

/// One storage type of ggml.
struct StorageType {
    code: u32,
    name: &'static str,
    /// How candle reads it; `None` where it cannot.
    dtype: Option<GgmlDType>,
}

/// Returns how candle reads the type of a code; `None` where it cannot.
pub(super) fn dtype(code: u32) -> Option<GgmlDType> {
    TYPES.iter().find(|kind| kind.code == code)?.dtype
}

/// Returns ggml's name of the type of a code.
pub(super) fn name(code: u32) -> String {
    let known = TYPES.iter().find(|kind| kind.code == code);
    known.map_or(format!("type {code}"), |kind| kind.name.to_owned())
}

/// Returns the names of the types that can be read, for messages.
pub(super) fn supported() -> String {
    let names = TYPES.iter().filter(|kind| kind.dtype.is_some());
    names.map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

const fn read(code: u32, name: &'static str, dtype: GgmlDType) -> StorageType {
    let dtype = Some(dtype);
    StorageType { code, name, dtype }
}

const fn known(code: u32, name: &'static str) -> StorageType {
    let dtype = None;
    StorageType { code, name, dtype }
}

const TYPES: &[StorageType] = &[
    read(0, "F32", GgmlDType::F32),
    read(1, "F16", GgmlDType::F16),
    read(30, "BF16", GgmlDType::BF16),
    read(2, "Q4_0", GgmlDType::Q4_0),
    read(3, "Q4_1", GgmlDType::Q4_1),
    read(6, "Q5_0", GgmlDType::Q5_0),
    read(7, "Q5_1", GgmlDType::Q5_1),
    read(8, "Q8_0", GgmlDType::Q8_0),
    read(10, "Q2_K", GgmlDType::Q2K),
    read(11, "Q3_K", GgmlDType::Q3K),
    read(12, "Q4_K", GgmlDType::Q4K),
    read(13, "Q5_K", GgmlDType::Q5K),
    read(14, "Q6_K", GgmlDType::Q6K),
    known(9, "Q8_1"),
    known(15, "Q8_K"),
    known(16, "IQ2_XXS"),
    known(17, "IQ2_XS"),
    known(18, "IQ3_XXS"),
    known(19, "IQ1_S"),
    known(20, "IQ4_NL"),
    known(21, "IQ3_S"),
    known(22, "IQ2_S"),
    known(23, "IQ4_XS"),
    known(24, "I8"),
    known(25, "I16"),
    known(26, "I32"),
    known(27, "I64"),
    known(28, "F64"),
    known(29, "IQ1_M"),
    known(34, "TQ1_0"),
    known(35, "TQ2_0"),
    known(39, "MXFP4"),
    known(40, "NVFP4"),
    known(41, "Q1_0"),
    known(4, "Q4_2"),
    known(5, "Q4_3"),
];
