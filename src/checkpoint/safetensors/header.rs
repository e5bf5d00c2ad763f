//! The header of a safetensors file, checked whole before anything is read through it.
//!
//! Format: 8 bytes, the header's length as a little-endian u64; the header, a JSON object from tensor name to
//! `{dtype, shape, data_offsets}`; the data, which the tensors cover without gap or overlap. Own code instead of the
//! `safetensors` crate, which keeps the last of two tensors of one name and tells neither sizes nor names.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, Visitor};

/// Headers above this are refused, as by the reference implementation: a real one has about 100 bytes a tensor.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// One tensor of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TensorInfo {
    /// Its full name.
    pub(super) name: String,
    /// Its type as the format writes it: `BF16`.
    pub(super) dtype: String,
    /// Its shape.
    pub(super) shape: Vec<usize>,
    /// Where its bytes are in the file.
    pub(super) bytes: Range<usize>,
}

/// Reads the header of a file of these bytes; the tensors come in the order of their data.
///
/// # Errors
/// Says in one sentence what does not fit, with expected and real sizes where they tell a broken download.
pub(super) fn read(file: &[u8]) -> Result<Vec<TensorInfo>> {
    let size = file.len() as u64;
    let Some((length, rest)) = file.split_first_chunk::<8>() else {
        bail!("{size} bytes, expected at least 8: {INCOMPLETE}");
    };
    let length = u64::from_le_bytes(*length);
    ensure!(
        length <= MAX_HEADER_BYTES,
        "not a safetensors file: its first 8 bytes announce a header of {length} bytes (expected at most {MAX_HEADER_BYTES})"
    );
    let Some((header, data)) = rest.split_at_checked(length as usize) else {
        bail!(
            "{size} bytes, expected at least {}: {INCOMPLETE}",
            length + 8
        );
    };
    let Header(mut tensors) =
        serde_json::from_slice(header).context("its header cannot be read")?;
    tensors.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut end = 0;
    for (name, entry) in &tensors {
        entry
            .check(end)
            .with_context(|| format!("tensor `{name}`"))?;
        end = entry.data_offsets[1];
    }
    if end != data.len() as u64 {
        let expected = end.saturating_add(length + 8);
        let advice = if expected > size {
            INCOMPLETE
        } else {
            "fetch the file again"
        };
        bail!("{size} bytes, expected {expected}: {advice}");
    }
    let start = 8 + length as usize;
    Ok(tensors
        .into_iter()
        .map(|(name, entry)| TensorInfo {
            name,
            dtype: entry.dtype,
            shape: entry.shape,
            // In range: offsets do not fall and the last is the length of the data.
            bytes: start + entry.data_offsets[0] as usize..start + entry.data_offsets[1] as usize,
        })
        .collect())
}

const INCOMPLETE: &str = "the file is incomplete, fetch it again";

/// Returns the bytes of one element; `None` for a type that the format does not have or packs below a byte.
pub(super) fn element_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ"
        | "F8_E5M2FNUZ" => 1,
        "U16" | "I16" | "F16" | "BF16" => 2,
        "U32" | "I32" | "F32" => 4,
        "U64" | "I64" | "F64" | "C64" => 8,
        _ => return None,
    })
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [u64; 2],
}

impl Entry {
    /// Checks one tensor whose data should begin at `previous_end`.
    fn check(&self, previous_end: u64) -> Result<()> {
        let [begin, end] = self.data_offsets;
        ensure!(begin <= end, "data_offsets [{begin}, {end}] are reversed");
        if begin != previous_end {
            let what = if begin < previous_end {
                "overlaps another tensor"
            } else {
                "leaves a gap"
            };
            bail!("its data begins at {begin} and {what} (expected {previous_end})");
        }
        let Some(element_bytes) = element_bytes(&self.dtype) else {
            return Ok(());
        };
        let expected = self
            .shape
            .iter()
            .try_fold(element_bytes, |size, &dim| size.checked_mul(dim as u64))
            .with_context(|| format!("shape {:?} is larger than any memory", self.shape))?;
        ensure!(
            end - begin == expected,
            "{} bytes of data do not fit {} {:?} (expected {expected})",
            end - begin,
            self.dtype,
            self.shape
        );
        Ok(())
    }
}

/// All entries but `__metadata__`, each name once.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let mut names = HashSet::new();
        let mut tensors = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                return Err(A::Error::custom(format_args!("`{name}` comes twice")));
            }
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let entry = map.next_value();
            tensors.push((
                name.clone(),
                entry
                    .map_err(|error| A::Error::custom(format_args!("tensor `{name}`: {error}")))?,
            ));
        }
        Ok(Header(tensors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data_bytes: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data_bytes, 0);
        file
    }

    fn refusal(file: &[u8]) -> String {
        format!("{:#}", read(file).expect_err("must be refused"))
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},
        "a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}"#;

    #[test]
    fn tensors_come_in_the_order_of_their_data() {
        let start = 8 + TWO.len();
        let tensors = read(&file(TWO, 12)).expect("a file");
        let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(tensors[0].shape, [1, 2]);
        assert_eq!(tensors[1].bytes, start + 8..start + 12);
        assert!(read(&file("{}", 0)).expect("no tensors").is_empty());
        assert!(
            read(&file("{}    ", 0))
                .expect("a padded header")
                .is_empty()
        );
    }

    #[test]
    fn a_broken_download_is_told_by_its_sizes() {
        let whole = file(TWO, 12);
        let n = whole.len();
        assert_eq!(
            refusal(&[]),
            "0 bytes, expected at least 8: the file is incomplete, fetch it again"
        );
        assert!(refusal(&whole[..7]).starts_with("7 bytes, expected at least 8"));
        let message = refusal(&whole[..100]);
        assert!(
            message.starts_with(&format!("100 bytes, expected at least {}", n - 12)),
            "{message}"
        );
        let message = refusal(&whole[..n - 6]);
        assert!(message.starts_with(&format!(
            "{} bytes, expected {n}: the file is incomplete",
            n - 6
        )));
        let mut longer = whole;
        longer.push(0);
        assert_eq!(
            refusal(&longer),
            format!("{} bytes, expected {n}: fetch the file again", n + 1)
        );
    }

    #[test]
    fn a_hostile_header_is_refused_without_allocating_for_it() {
        for length in [u64::MAX, 1 << 63, (1 << 63) - 1, MAX_HEADER_BYTES + 1] {
            let mut bytes = length.to_le_bytes().to_vec();
            bytes.extend(b"{}");
            assert!(refusal(&bytes).contains(&format!("a header of {length} bytes")));
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let tensor = format!(r#"{{"a":{deep}}}"#);
        assert!(refusal(&file(&tensor, 0)).contains("its header cannot be read"));
        let metadata = format!(r#"{{"__metadata__":{deep}}}"#);
        read(&file(&metadata, 0)).expect("metadata is passed over without recursion");
        for not_an_object in ["", "[]", "3", "{\"a\":", "\u{0}"] {
            assert!(refusal(&file(not_an_object, 0)).contains("its header cannot be read"));
        }
        assert!(read(&file("{\"a\u{fffd}", 0)).is_err());
    }

    #[test]
    fn entries_that_contradict_themselves_are_refused_by_name() {
        let one = |dtype: &str, shape: &str, offsets: &str| {
            let header = format!(
                r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#
            );
            refusal(&file(&header, 8))
        };
        let expect = |message: String, part: &str| {
            assert!(
                message.contains("`t`") && message.contains(part),
                "{message}"
            );
        };
        expect(
            one("F32", "[4294967296,4294967296]", "[0,8]"),
            "larger than any memory",
        );
        expect(
            one("F32", "[9223372036854775807]", "[0,8]"),
            "larger than any memory",
        );
        expect(one("F32", "[2]", "[8,0]"), "reversed");
        expect(
            one("F32", "[1]", "[0,8]"),
            "8 bytes of data do not fit F32 [1] (expected 4)",
        );
        expect(one("F32", "[2]", "[4,12]"), "leaves a gap (expected 0)");
        expect(one("F32", "[2]", "[0]"), "invalid length 1");
        expect(one("F32", "[2]", "[0,8,8]"), "trailing characters");
        expect(one("F32", "[-2]", "[0,8]"), "invalid value: integer `-2`");
        expect(one("F32", "[2]", "[-8,0]"), "invalid value: integer `-8`");
        expect(
            one("F32", "[2]", "[0,18446744073709551616]"),
            "invalid type",
        );
        let huge = r#"{"t":{"dtype":"F4","shape":[2],"data_offsets":[0,18446744073709551615]}}"#;
        assert!(refusal(&file(huge, 8)).contains("expected 18446744073709551615"));
    }

    #[test]
    fn overlaps_and_repeated_names_are_refused() {
        let overlap = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
            "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#;
        assert!(refusal(&file(overlap, 12)).contains("`b`: its data begins at 4 and overlaps"));
        let twice = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},
            "a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
        assert!(refusal(&file(twice, 8)).contains("`a` comes twice"));
    }

    #[test]
    fn any_cut_and_any_changed_byte_gives_an_error_or_a_table_inside_the_file() {
        let whole = file(TWO, 12);
        for cut in 0..whole.len() {
            assert!(read(&whole[..cut]).is_err(), "cut at {cut}");
        }
        for place in 0..whole.len() - 12 {
            for byte in [0, b'"', b'9', b'{', 0xff] {
                let mut changed = whole.clone();
                changed[place] = byte;
                for tensor in read(&changed).unwrap_or_default() {
                    assert!(tensor.bytes.end <= changed.len());
                }
            }
        }
    }
}
