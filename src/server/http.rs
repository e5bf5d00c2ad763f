//! Requests to one server: JSON out, JSON in, with the manners of a guest.
//!
//! Only the address that was given is asked: redirects are not followed. An answer is waited for, and read, no longer and no
//! further than it may be. What is tried again is a server that is not ready (503) or a connection that broke, nothing else; a
//! server that stays away is not asked again. The key is sent and never shown.

use std::io::{self, ErrorKind, Read};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::TlsConfig;

use super::address::{Address, KEY_VARIABLE};
use super::route::{self, AUTHORITIES};

/// How long to wait before each new attempt; a server that restarts behind a proxy is back within seconds.
const PAUSES_MS: [u64; 5] = [200, 400, 800, 1600, 3200];

/// A connection is there within this time, or the server is not.
const CONNECT: Duration = Duration::from_secs(10);

/// What an error message and similar small answers may take.
pub(super) const SMALL: u64 = 4 << 20;

/// One server, asked one thing after the other.
pub(super) struct Client {
    agent: Agent,
    address: Address,
    /// Where the proxy is, if there is one.
    proxy: Option<String>,
    /// The value of the `Authorization` header.
    authorization: Option<String>,
    timeout: Duration,
    /// Whether it has ever answered: before that, a connection that fails is a wrong address.
    has_answered: AtomicBool,
    /// Why it is not asked any more.
    lost: OnceLock<String>,
    num_requests: AtomicU64,
    num_bytes: AtomicU64,
}

/// What a server answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    body: Vec<u8>,
    location: Option<String>,
}

impl Client {
    /// Prepares to ask; the key is that of the environment.
    ///
    /// # Errors
    /// When the key cannot be sent, or the proxy or the certificate authorities of the environment cannot be used.
    pub(super) fn new(address: Address, timeout: Duration) -> Result<Self> {
        let uri = Uri::try_from(address.as_str()).context("an address")?;
        let proxy = route::proxy(&uri, |name| std::env::var(name).ok())?;
        let place = proxy.as_ref().map(route::place);
        let is_secret = |place: &str| place.starts_with("https:");
        let authorities = std::env::var_os(AUTHORITIES).filter(|path| !path.is_empty());
        let mut tls = TlsConfig::builder();
        if let Some(path) = authorities
            && (is_secret(address.as_str()) || place.as_deref().is_some_and(is_secret))
        {
            tls = tls.root_certs(route::authorities(Path::new(&path))?);
        }
        let agent = Agent::config_builder()
            .proxy(proxy)
            .tls_config(tls.build())
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(CONNECT.min(timeout)))
            .timeout_global(Some(timeout))
            .user_agent(concat!("logprobs/", env!("CARGO_PKG_VERSION")))
            .build();
        let key = std::env::var(KEY_VARIABLE).ok();
        let key = key.map(|key| key.trim().to_owned());
        let authorization = match key.filter(|key| !key.is_empty()) {
            None => None,
            Some(key) => {
                ensure!(
                    key.bytes().all(|byte| byte.is_ascii_graphic()),
                    "{KEY_VARIABLE} holds characters that no key has (expected letters, digits and signs)"
                );
                Some(format!("Bearer {key}"))
            }
        };
        Ok(Self {
            agent: agent.into(),
            address,
            proxy: place,
            authorization,
            timeout,
            has_answered: AtomicBool::new(false),
            lost: OnceLock::new(),
            num_requests: AtomicU64::new(0),
            num_bytes: AtomicU64::new(0),
        })
    }

    /// Returns how many requests were made, and how many bytes their answers had.
    pub(super) fn totals(&self) -> (u64, u64) {
        (
            self.num_requests.load(Ordering::Relaxed),
            self.num_bytes.load(Ordering::Relaxed),
        )
    }

    /// Asks for a page.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(super) fn get(&self, path: &str) -> Result<Answer> {
        self.ask(path, None, SMALL)
    }

    /// Sends a request and returns the answer, which may have `most` bytes.
    ///
    /// # Errors
    /// When the server does not answer.
    pub(super) fn post(&self, path: &str, body: &impl Serialize, most: u64) -> Result<Answer> {
        let body = serde_json::to_vec(body).context("a request")?;
        self.ask(path, Some(&body), most)
    }

    fn ask(&self, path: &str, body: Option<&[u8]>, most: u64) -> Result<Answer> {
        if let Some(reason) = self.lost.get() {
            bail!("{reason}");
        }
        let mut pauses = PAUSES_MS.into_iter();
        loop {
            let failure = match self.try_once(path, body, most) {
                Ok(answer) if answer.status != 503 => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    return Ok(answer);
                }
                Ok(answer) => anyhow!("{} is not ready: {}", self.address, answer.message()),
                Err(Failure::Broken(error)) if self.has_answered.load(Ordering::Relaxed) => error,
                Err(Failure::Broken(error) | Failure::Final(error)) => {
                    return Err(self.give_up(error));
                }
                Err(Failure::TooLong(error)) => {
                    self.has_answered.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            };
            match pauses.next() {
                Some(pause) => std::thread::sleep(Duration::from_millis(pause)),
                None => return Err(self.give_up(failure)),
            }
        }
    }

    /// Remembers that the server is lost.
    fn give_up(&self, error: Error) -> Error {
        let _ = self.lost.set(format!("{error:#}"));
        error
    }

    fn try_once(&self, path: &str, body: Option<&[u8]>, most: u64) -> Result<Answer, Failure> {
        self.num_requests.fetch_add(1, Ordering::Relaxed);
        let url = format!("{}{path}", self.address);
        let authorization = self.authorization.as_deref();
        let answer = match body {
            None => {
                let mut request = self.agent.get(&url);
                if let Some(authorization) = authorization {
                    request = request.header("Authorization", authorization);
                }
                request.call()
            }
            Some(body) => {
                let mut request = self.agent.post(&url);
                if let Some(authorization) = authorization {
                    request = request.header("Authorization", authorization);
                }
                request
                    .header("Content-Type", "application/json")
                    .send(body)
            }
        };
        let mut answer = answer.map_err(|error| self.explain(error, most))?;
        let status = answer.status().as_u16();
        let location = answer.headers().get("location");
        let location = location.and_then(|location| Some(location.to_str().ok()?.to_owned()));
        let mut bytes = Vec::new();
        // one byte more tells a long answer from one that just fits
        let reader = answer.body_mut().with_config().limit(most + 1).reader();
        let read = { reader }.take(most + 1).read_to_end(&mut bytes);
        self.num_bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        read.map_err(|error| self.explain(ureq::Error::from(error), most))?;
        if bytes.len() as u64 > most {
            return Err(self.too_long(most));
        }
        Ok(Answer {
            status,
            body: bytes,
            location,
        })
    }

    /// `reason` ends in the status where there was an answer: `proxy server responded 407/407`.
    fn refused_by_proxy(&self, reason: &str) -> Failure {
        let proxy = self.proxy.as_deref().unwrap_or_default();
        let address = &self.address;
        let (_, status) = reason.rsplit_once('/').unwrap_or_default();
        match status {
            "" => Failure::Broken(anyhow!("the proxy {proxy} does not answer: {reason}")),
            "407" => Failure::Final(anyhow!(
                "the proxy {proxy} wants another name and password: status 407 (give them in its variable: http://NAME:PASSWORD@HOST:PORT)"
            )),
            // the server behind it is not there now
            "502" | "503" | "504" => Failure::Broken(anyhow!(
                "the proxy {proxy} does not reach {address}: status {status} (is the server running?)"
            )),
            _ => Failure::Final(anyhow!(
                "the proxy {proxy} refuses a connection to {address}: status {status} (it must allow CONNECT to this port, or \
                 NO_PROXY name the host)"
            )),
        }
    }

    fn too_long(&self, most: u64) -> Failure {
        Failure::TooLong(anyhow!(
            "{} answers with more than {most} bytes (expected less for what was asked)",
            self.address
        ))
    }

    fn explain(&self, error: ureq::Error, most: u64) -> Failure {
        let proxy = self.proxy.as_deref();
        let address = match proxy {
            None => self.address.to_string(),
            Some(proxy) => format!("{} (through the proxy {proxy})", self.address),
        };
        let seconds = self.timeout.as_secs_f64();
        match error {
            ureq::Error::BodyExceedsLimit(_) => self.too_long(most),
            ureq::Error::ConnectProxyFailed(reason) => self.refused_by_proxy(&reason),
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                Failure::Final(anyhow!(
                    "{address} cannot be reached (is the server running, and the address right?)"
                ))
            }
            ureq::Error::Timeout(_) => Failure::Final(anyhow!(
                "{address} has not answered within {seconds} s (raise --server-timeout, or lower --server-top or --batch)"
            )),
            ureq::Error::Io(error) if is_broken(&error) => {
                // a server that refuses a proxy has the proxy refuse, in its own words
                let who = match (proxy, error.kind()) {
                    (Some(_), ErrorKind::ConnectionRefused) => "proxy",
                    _ => "server",
                };
                Failure::Broken(anyhow!(
                    "the connection to {address} breaks: {error} (is the {who} running?)"
                ))
            }
            ureq::Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
                Failure::Final(unproven(&address, &error))
            }
            ureq::Error::ConnectionFailed | ureq::Error::BodyStalled => Failure::Broken(anyhow!(
                "{address} cannot be reached (is the server running?)"
            )),
            ureq::Error::HostNotFound | ureq::Error::Io(_) => Failure::Final(anyhow!(
                "{address} cannot be reached: {error} (is the name right?)"
            )),
            error => Failure::Final(anyhow!("{address} cannot be asked: {error}")),
        }
    }
}

/// Why there is no answer.
enum Failure {
    /// The connection broke, which may pass.
    Broken(Error),
    /// Another attempt would fare no better.
    Final(Error),
    /// This one answer is too long; the next may be right.
    TooLong(Error),
}

/// Says why a server has not proved who it is.
fn unproven(address: &str, error: &io::Error) -> Error {
    let error = error.to_string();
    match error.strip_prefix("invalid peer certificate: ") {
        Some("UnknownIssuer") => anyhow!(
            "the certificate of {address} is signed by an authority that is not known (expected a public one, or those of the PEM \
             file that {AUTHORITIES} names)"
        ),
        Some(why) if why.contains("CaUsedAsEndEntity") => anyhow!(
            "the certificate of {address} is an authority's own (expected one that is made for a server: CA:FALSE)"
        ),
        Some(why) => anyhow!("the certificate of {address} is not valid: {why}"),
        None => anyhow!(
            "{address} does not speak TLS as expected: {error} (is it http:// in place of https://?)"
        ),
    }
}

fn is_broken(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::BrokenPipe
            | ErrorKind::UnexpectedEof
            | ErrorKind::NotConnected
    )
}

impl Answer {
    /// Reads the answer to `path` as what was asked for.
    ///
    /// # Errors
    /// When it is a refusal, or something else.
    pub(super) fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        if !(200..300).contains(&self.status) {
            return Err(self.refusal(path));
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| anyhow!("{path} answers with something else: {error}"))
    }

    /// Returns what a refusal says.
    pub(super) fn refusal(&self, path: &str) -> Error {
        let status = self.status;
        match (status, &self.location) {
            (300..=399, location) => {
                let place = location.as_deref().unwrap_or("another address");
                anyhow!(
                    "{path} redirects to {place}, which is not followed (give the server's own address)"
                )
            }
            (401 | 403, _) => anyhow!(
                "{path} is refused with status {status}: {} (is {KEY_VARIABLE} set to the server's key?)",
                self.message()
            ),
            _ => anyhow!("{path} is refused with status {status}: {}", self.message()),
        }
    }

    /// Returns the server's own words, at most a few lines of them.
    pub(super) fn message(&self) -> String {
        const MOST: usize = 400;
        let head = &self.body[..self.body.len().min(1 << 16)];
        let text = String::from_utf8_lossy(head);
        let json: Value = serde_json::from_slice(head).unwrap_or_default();
        let said = [
            &json["error"]["message"],
            &json["error"],
            &json["message"],
            &json["detail"],
        ];
        let said = said.into_iter().find_map(Value::as_str);
        let said = said.unwrap_or(text.trim()).chars();
        let mut said: String = said.take(MOST).collect();
        if said.is_empty() {
            said.push_str("nothing is said of why");
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_the_server_says() {
        let answer = |status, body: &str| Answer {
            status,
            body: body.into(),
            location: None,
        };
        for (body, expected) in [
            (r#"{"error":{"message":"too long","code":400}}"#, "too long"),
            (r#"{"error":"no"}"#, "no"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            ("<html>", "<html>"),
            ("", "nothing is said"),
        ] {
            let error = answer(400, body).refusal("/x").to_string();
            assert!(error.contains(expected), "{error}");
        }
        let unauthorized = answer(401, "{}").refusal("/x").to_string();
        assert!(unauthorized.contains(KEY_VARIABLE));
        assert!(answer(200, "{").read::<Value>("/x").is_err());
    }
}
