//! How far the log-probabilities of two runs may be from each other, from the precision that computed them.
//!
//! A 16-bit type rounds logits of 16 to 32, where those of a sure model are, to steps of 2^(4 - precision): 1/8 in bf16
//! (7 bits behind the point), 1/64 in f16 (10 bits). Two such steps are allowed. In f32 it is the order of the sums, not the last
//! rounding, that decides: kernels of different libraries agree to 1e-3 on whole models.

use crate::record::ModelInfo;
use crate::record::compare::Tolerance;

/// Allowed where both runs computed in f32.
const F32: f64 = 1e-3;
/// Allowed where one of them computed in f16.
const F16: f64 = 2.0 / 64.0;
/// Allowed where one of them computed in bf16, and where nobody knows.
pub(super) const BF16: f64 = 2.0 / 8.0;

/// Returns the tolerance for two runs: that of the coarser one.
pub(super) fn of(a: &ModelInfo, b: &ModelInfo) -> Tolerance {
    let (of_a, of_b) = (of_dtype(&a.compute_dtype), of_dtype(&b.compute_dtype));
    let value = of_a.max(of_b);
    let who = match () {
        () if a.compute_dtype == b.compute_dtype => "both compute",
        () if of_a >= of_b => "A computes",
        () => "B computes",
    };
    let dtype = match of_a >= of_b {
        true => &a.compute_dtype,
        false => &b.compute_dtype,
    };
    let mut reason = format!("{who} in {dtype}");
    if a.weights_dtype != b.weights_dtype {
        reason.push_str("; weights of another type may differ by more");
    }
    Tolerance { value, reason }
}

fn of_dtype(dtype: &str) -> f64 {
    match dtype {
        "f32" | "f64" => F32,
        "f16" => F16,
        _ => BF16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(weights_dtype: &str, compute_dtype: &str) -> ModelInfo {
        ModelInfo {
            id: "m".into(),
            revision: None,
            architecture: "llama".into(),
            vocab_size: 4,
            weights_dtype: weights_dtype.into(),
            compute_dtype: compute_dtype.into(),
            device: "cpu".into(),
            tiles: false,
            note: None,
            server: None,
        }
    }

    #[test]
    fn the_coarser_side_decides_and_is_named() {
        for (a, b, value, reason) in [
            ("f32", "f32", 0.001, "both compute in f32"),
            ("f32", "bf16", 0.25, "B computes in bf16"),
            ("f16", "f32", 0.03125, "A computes in f16"),
            ("bf16", "f16", 0.25, "A computes in bf16"),
            ("bf16", "bf16", 0.25, "both compute in bf16"),
            ("f32", "fp8", 0.25, "B computes in fp8"),
        ] {
            let tolerance = of(&model("bf16", a), &model("bf16", b));
            assert_eq!(
                (tolerance.value, tolerance.reason.as_str()),
                (value, reason)
            );
        }
        let tolerance = of(&model("bf16", "f32"), &model("q4_1", "f32"));
        assert_eq!(
            tolerance.reason,
            "both compute in f32; weights of another type may differ by more"
        );
    }
}
