//! Where a server is: an address without secrets.

use std::fmt;

use anyhow::{Context, Result, ensure};
use ureq::http::Uri;

/// The environment variable that holds the key.
pub const KEY_VARIABLE: &str = "LOGPROBS_API_KEY";

/// Where a server is: `http://host:8000`, without what it serves there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// Reads an address; a final `/v1`, which other clients want, is left out.
    ///
    /// # Errors
    /// When it is none, or holds what must not be in a command line: a name and a password, a query.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let rest = text
            .strip_prefix("http://")
            .or_else(|| text.strip_prefix("https://"))
            .context("is no address (expected http://HOST:PORT or https://HOST)")?;
        let host = rest.split('/').next().unwrap_or_default();
        ensure!(
            !host.contains('@'),
            "holds a name or a password (expected them in {KEY_VARIABLE} alone)"
        );
        ensure!(
            !host.is_empty() && !host.starts_with(':') && !text.contains(char::is_whitespace),
            "names no host (expected http://HOST:PORT)"
        );
        ensure!(
            !text.contains(['?', '#']),
            "has a query or a fragment (expected http://HOST:PORT)"
        );
        Uri::try_from(text).context("is no address (expected http://HOST:PORT)")?;
        let text = text.trim_end_matches('/');
        Ok(Self(text.strip_suffix("/v1").unwrap_or(text).to_owned()))
    }
}

impl Address {
    /// Returns it as it is written in a request.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_without_secrets() {
        for (text, expected) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("https://gpu.example.org/v1/", "https://gpu.example.org"),
            (" http://[::1]:80/ ", "http://[::1]:80"),
            (
                "https://example.org/models/a",
                "https://example.org/models/a",
            ),
        ] {
            assert_eq!(Address::parse(text).expect(text).to_string(), expected);
        }
        for (text, expected) in [
            ("localhost:8000", "is no address"),
            ("ftp://host", "is no address"),
            ("http://", "names no host"),
            ("http://:80", "names no host"),
            ("http://me:secret@host", "holds a name or a password"),
            ("http://host?key=secret", "has a query"),
            ("http://a b", "names no host"),
        ] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(
                error.contains(expected) && !error.contains("secret"),
                "{error}"
            );
        }
    }
}
