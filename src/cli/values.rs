//! Values of flags: text to numbers, settings and UTF-8 text, with a refusal that says what was expected.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, TypedValueParser};

use super::Length;
use crate::setting::Setting;

pub(super) fn number(text: &str) -> Result<f64, String> {
    // a minus sign is what a text from a page has, and what `softmax` makes of a hyphen
    let text = text.trim().replace('\u{2212}', "-");
    let value: f64 = text
        .parse()
        .map_err(|_| "expected a number such as 0.7".to_owned())?;
    let is_zero = text
        .chars()
        .take_while(|c| !matches!(c, 'e' | 'E'))
        .all(|c| !('1'..='9').contains(&c));
    match value {
        _ if value.is_nan() => Err("expected a number such as 0.7".to_owned()),
        0.0 if !is_zero => Err("too small to tell from 0 (write 0 for greedy)".to_owned()),
        _ => Ok(value),
    }
}

pub(super) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(format!("expected a whole number from 1 to {}", usize::MAX)),
    }
}

pub(super) fn at_least_zero(text: &str) -> Result<usize, String> {
    let value = text.parse();
    value.map_err(|_| "expected a whole number from 0 up; 0 is off".to_owned())
}

pub(super) fn token_id(text: &str) -> Result<u32, String> {
    let id = text.trim().parse();
    id.map_err(|_| {
        format!(
            "expected a token's id, a whole number from 0 to {}",
            u32::MAX
        )
    })
}

/// A number of tokens: `4096`, `4k` (4096), `1m` (1048576), or `max`.
pub(super) fn length(text: &str) -> Result<Length, String> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("max") {
        return Ok(Length::Longest);
    }
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix(['m', 'M']) {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    let tokens = digits.parse().ok().and_then(|n: u64| n.checked_mul(unit));
    match tokens.filter(|&tokens| tokens > 0) {
        Some(tokens) => Ok(Length::Tokens(tokens)),
        None => Err("expected a number of tokens such as 4096, 8k or max".to_owned()),
    }
}

/// Refuses what can be no mass or no threshold.
pub(super) fn check_shares(mass: f64, threshold: f64) -> Result<(), String> {
    if !(mass > 0.0 && mass <= 1.0) {
        return Err(format!(
            "--mass {mass} is out of range (expected above 0, up to 1)"
        ));
    }
    if !(0.0..=1.0).contains(&threshold) {
        return Err(format!(
            "--threshold {threshold} is out of range (expected 0 to 1)"
        ));
    }
    Ok(())
}

pub(super) fn setting(text: &str) -> Result<Setting, String> {
    let mut setting = Setting::OFF;
    let mut seen = Vec::new();
    for part in text.split(',') {
        let (key, value) = part
            .split_once('=')
            .map(|(key, value)| (key.trim(), value.trim()))
            .ok_or_else(|| {
                format!(
                    "`{part}` has no `=` (expected temperature=1.5,top_k=40,top_p=0.9,min_p=0.05)"
                )
            })?;
        if seen.contains(&key) {
            return Err(format!("{key} is given twice"));
        }
        seen.push(key);
        let float = || number(value).map_err(|error| format!("{key}: {error}"));
        let changed = match key {
            "temperature" => setting.with_temperature(float()?),
            "top_p" => setting.with_top_p(float()?),
            "min_p" => setting.with_min_p(float()?),
            "top_k" => {
                let top_k = at_least_zero(value).map_err(|error| format!("top_k: {error}"))?;
                Ok(setting.with_top_k(top_k))
            }
            _ => {
                return Err(format!(
                    "`{key}` is no part of a setting (expected temperature, top_k, top_p or min_p)"
                ));
            }
        };
        setting = changed.map_err(|error| error.to_string())?;
    }
    Ok(setting)
}

/// Text that must be UTF-8, with the place where it is not.
pub(super) fn utf8() -> impl TypedValueParser<Value = String> {
    OsStringValueParser::new().try_map(|text: OsString| {
        let bytes = text.as_encoded_bytes();
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(format!(
                "not valid UTF-8 at byte {} (expected UTF-8 text)",
                error.valid_up_to()
            )),
        }
    })
}
