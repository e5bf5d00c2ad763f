//! The way to a server: the proxy of the environment, and the certificate authorities that are believed.
//!
//! Variables mean what they mean to curl and OpenSSL. Nothing of their values but a proxy's host and port is ever shown: they
//! hold passwords.

use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use ureq::http::Uri;
use ureq::tls::{PemItem, RootCerts, parse_pem};
use ureq::{Proxy, ProxyProtocol};

/// The environment variable that names a file of certificate authorities, which then are the only ones believed.
pub(super) const AUTHORITIES: &str = "SSL_CERT_FILE";

/// Returns the proxy for an address; an empty variable is none.
///
/// # Errors
/// When what is named is no proxy, or a SOCKS one: it is not passed over, since nobody who names one wants to do without it.
pub(super) fn proxy(
    address: &Uri,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Proxy>> {
    let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
    let names = match address.scheme_str() {
        Some("https") => ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
        _ => ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"],
    };
    let mut set = names
        .iter()
        .filter_map(|&name| Some((name, variable(name)?)));
    let Some((name, value)) = set.next() else {
        return Ok(None);
    };
    let exempt = variable("no_proxy").or_else(|| variable("NO_PROXY"));
    let exempt = exempt.unwrap_or_default();
    let host = address.host().unwrap_or_default();
    if exempt.split([',', ' ']).any(|entry| covers(entry, host)) {
        return Ok(None);
    }
    let proxy = Proxy::new(value.trim()).ok();
    let proxy = proxy
        .filter(|proxy| matches!(proxy.protocol(), ProxyProtocol::Http | ProxyProtocol::Https));
    let proxy = proxy.with_context(|| {
        format!("{name} names no proxy that can be used (expected http://HOST:PORT, or http://NAME:PASSWORD@HOST:PORT)")
    })?;
    Ok(Some(proxy))
}

/// Whether an entry of NO_PROXY is about a host: `*`, the host, a domain that it is in, its address, or a block of addresses.
fn covers(entry: &str, host: &str) -> bool {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let entry = entry.trim_matches(['[', ']']).to_ascii_lowercase();
    if let Ok(address) = host.parse::<IpAddr>() {
        return entry == "*" || entry.parse() == Ok(address) || is_in_block(&entry, address);
    }
    let domain = entry.trim_start_matches('*').trim_start_matches('.');
    match host.strip_suffix(domain) {
        Some(before) if !domain.is_empty() => before.is_empty() || before.ends_with('.'),
        _ => entry == "*",
    }
}

/// Whether an address begins as a block does: `10.0.0.0/8`.
fn is_in_block(block: &str, address: IpAddr) -> bool {
    let Some((start, bits)) = block.split_once('/') else {
        return false;
    };
    let (Ok(start), Ok(bits)) = (start.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    let (width, other) = match (start, address) {
        (IpAddr::V4(start), IpAddr::V4(address)) => {
            (32, u128::from(start.to_bits() ^ address.to_bits()))
        }
        (IpAddr::V6(start), IpAddr::V6(address)) => (128, start.to_bits() ^ address.to_bits()),
        _ => return false,
    };
    bits <= width && other.checked_shr(width - bits).unwrap_or(0) == 0
}

/// Returns where a proxy is, without name and password.
pub(super) fn place(proxy: &Proxy) -> String {
    let scheme = match proxy.protocol() {
        ProxyProtocol::Https => "https",
        _ => "http",
    };
    format!("{scheme}://{}:{}", proxy.host(), proxy.port())
}

/// Reads the certificate authorities of a PEM file.
///
/// # Errors
/// When it cannot be read, or holds none.
pub(super) fn authorities(path: &Path) -> Result<RootCerts> {
    let name = || format!("{AUTHORITIES}: {}", path.display());
    let pem = std::fs::read(path).with_context(|| format!("{} cannot be read", name()))?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        let item = item
            .ok()
            .with_context(|| format!("{} is broken (expected PEM)", name()))?;
        if let PemItem::Certificate(certificate) = item {
            found.push(certificate);
        }
    }
    ensure!(
        !found.is_empty(),
        "{} holds no certificate (expected PEM: -----BEGIN CERTIFICATE-----)",
        name()
    );
    Ok(RootCerts::from(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the place of the proxy that some variables name for an address.
    fn chosen(address: &str, variables: &[(&str, &str)]) -> Result<Option<String>> {
        let address = Uri::try_from(address).expect("an address");
        let variable = |name: &str| {
            let mut found = variables.iter().filter(|(set, _)| *set == name);
            found.next().map(|(_, value)| (*value).to_owned())
        };
        Ok(proxy(&address, variable)?.as_ref().map(place))
    }

    #[test]
    fn a_proxy_is_that_of_the_scheme_and_else_the_general_one() -> Result<()> {
        const ALL: [(&str, &str); 3] = [
            ("HTTP_PROXY", "http://a:1"),
            ("HTTPS_PROXY", "http://b:2"),
            ("ALL_PROXY", "c:3"),
        ];
        let place = |place: &str| Some(place.to_owned());
        assert_eq!(chosen("http://host:8000", &ALL)?, place("http://a:1"));
        assert_eq!(chosen("https://host", &ALL)?, place("http://b:2"));
        assert_eq!(chosen("https://host", &ALL[2..])?, place("http://c:3"));
        assert_eq!(chosen("https://host", &ALL[..1])?, None);
        assert_eq!(chosen("http://host", &ALL[1..2])?, None);
        let small = [("http_proxy", "https://d"), ALL[0]];
        assert_eq!(chosen("http://host", &small)?, place("https://d:443"));
        assert_eq!(
            chosen("http://host", &[("http_proxy", ""), ALL[0]])?,
            place("http://a:1")
        );
        Ok(())
    }

    #[test]
    fn what_is_no_usable_proxy_is_refused_without_its_password() {
        for value in [
            "socks5://me:secret@host:1080",
            "ftp://me:secret@host",
            "http://me:secret@",
            "http://me:%ff@host",
        ] {
            let refused = chosen("http://host", &[("ALL_PROXY", value)]);
            let error = refused.expect_err(value).to_string();
            assert!(
                error.starts_with("ALL_PROXY names no proxy") && !error.contains("secret"),
                "{error}"
            );
        }
    }

    #[test]
    fn no_proxy_names_hosts_domains_addresses_and_blocks() -> Result<()> {
        for (entry, host, is_exempt) in [
            ("*", "gpu.example.org", true),
            ("example.org", "gpu.example.org", true),
            (".example.org", "gpu.example.org", true),
            ("*.example.org", "GPU.Example.org", true),
            ("example.org", "example.org", true),
            ("example.org", "myexample.org", false),
            ("other.org, gpu", "gpu", true),
            ("gpu", "gpu2", false),
            (",", "gpu", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.30", false),
            ("2.3", "10.1.2.3", false),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("0.0.0.0/0", "10.1.2.3", true),
            ("10.0.0.0/33", "10.0.0.0", false),
            ("::1", "[::1]", true),
            ("fd00::/8", "[fd12::1]", true),
            ("::/0", "10.1.2.3", false),
        ] {
            let variables = [("http_proxy", "p:1"), ("NO_PROXY", entry)];
            let chosen = chosen(&format!("http://{host}:8000"), &variables)?;
            assert_eq!(chosen.is_none(), is_exempt, "{entry} {host}");
        }
        Ok(())
    }

    #[test]
    fn a_file_without_certificates_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("a.pem");
        let error = || format!("{:#}", authorities(&path).expect_err("none is there"));
        assert!(error().contains("a.pem cannot be read"));
        for (text, expected) in [
            ("", "holds no certificate"),
            ("-----BEGIN CERTIFICATE-----\nAA", "is broken"),
        ] {
            std::fs::write(&path, text).expect("it can be written");
            assert!(error().contains(expected), "{}", error());
        }
    }
}
