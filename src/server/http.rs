//! Requests to one server: JSON out, JSON in, with the manners of a guest.
//!
//! Only the address that was given is asked: redirects are not followed. Proxies are those of the environment. An answer is
//! waited for, and read, no longer and no further than it may be. What is tried again is a server that is not ready (503) or a
//! connection that broke, nothing else; a server that stays away is not asked again. The key is sent and never shown.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::Agent;

/// The environment variable that holds the key.
pub const KEY_VARIABLE: &str = "LOGPROBS_API_KEY";

/// How long to wait before each new attempt; a server that restarts behind a proxy is back within seconds.
const PAUSES_MS: [u64; 5] = [200, 400, 800, 1600, 3200];

/// A connection is there within this time, or the server is not.
const CONNECT: Duration = Duration::from_secs(10);

/// What an error message and similar small answers may take.
pub(super) const SMALL: u64 = 4 << 20;

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
        ureq::http::Uri::try_from(text).context("is no address (expected http://HOST:PORT)")?;
        let text = text.trim_end_matches('/');
        Ok(Self(text.strip_suffix("/v1").unwrap_or(text).to_owned()))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One server, asked one thing after the other.
pub(super) struct Client {
    agent: Agent,
    address: Address,
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
    /// When the key cannot be sent.
    pub(super) fn new(address: Address, timeout: Duration) -> Result<Self> {
        let agent = Agent::config_builder()
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

    fn too_long(&self, most: u64) -> Failure {
        Failure::TooLong(anyhow!(
            "{} answers with more than {most} bytes (expected less for what was asked)",
            self.address
        ))
    }

    fn explain(&self, error: ureq::Error, most: u64) -> Failure {
        let address = &self.address;
        let seconds = self.timeout.as_secs_f64();
        match error {
            ureq::Error::BodyExceedsLimit(_) => self.too_long(most),
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                Failure::Final(anyhow!(
                    "{address} cannot be reached (is the server running, and the address right?)"
                ))
            }
            ureq::Error::Timeout(_) => Failure::Final(anyhow!(
                "{address} has not answered within {seconds} s (raise --server-timeout, or lower --server-top or --batch)"
            )),
            ureq::Error::Io(error) if is_broken(&error) => Failure::Broken(anyhow!(
                "the connection to {address} breaks: {error} (is the server running?)"
            )),
            ureq::Error::ConnectionFailed | ureq::Error::BodyStalled => Failure::Broken(anyhow!(
                "{address} cannot be reached (is the server running?)"
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
