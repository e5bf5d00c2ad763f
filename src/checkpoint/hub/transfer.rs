//! Files from the hub into the cache, through hf-hub, with what it leaves open: blobs that are already here are used,
//! broken transfers go on where they stopped, and nothing counts before its size and hash are right.
//!
//! What cannot be changed from here (hf-hub 0.5, `api::sync`): its first look at a large file shows the token to the
//! storage that the hub redirects to, and a connection that stands still is waited for without end.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::api::{Progress, RepoInfo};
use hf_hub::{Cache, Repo, RepoType};

use super::blob::{self, Expected, Patience};
use super::cache::{RepoCache, is_commit};
use super::environment::{HubEnvironment, Token};
use super::progress::Bar;
use super::refusal::{Asked, is_of_the_disk, status};
use super::slot::Slot;

/// How long another process that fetches the same file may stand still.
const PATIENCE: Duration = Duration::from_secs(120);

/// A hub that answers for one model.
pub(super) struct Hub<'a> {
    api: Api,
    environment: &'a HubEnvironment,
    id: &'a str,
    cache: &'a RepoCache,
    is_shown: bool,
}

/// What the hub has under one revision.
pub(super) struct Listing {
    /// The commit.
    pub(super) commit: String,
    /// Names of all files.
    pub(super) names: BTreeSet<String>,
}

/// How one attempt at a transfer ended.
enum Received {
    /// With a blob, right or wrong.
    Blob,
    /// Early; what came is kept.
    Part(String),
    /// Another process of hf-hub holds this lock.
    Locked(PathBuf),
    /// What had come before was of no use and is thrown away.
    Nothing,
}

impl<'a> Hub<'a> {
    /// Prepares to ask; `is_shown` says whether transfers are.
    ///
    /// # Errors
    /// When the endpoint is no address or the token cannot be sent.
    pub(super) fn new(
        environment: &'a HubEnvironment,
        id: &'a str,
        cache: &'a RepoCache,
        is_shown: bool,
    ) -> Result<Self> {
        environment.check_for_network()?;
        let root = environment.cache_folder()?.to_owned();
        let api = ApiBuilder::from_cache(Cache::new(root))
            .with_endpoint(environment.endpoint.clone())
            .with_token(environment.token.as_ref().map(Token::secret))
            .with_user_agent("logprobs", env!("CARGO_PKG_VERSION"))
            .build()
            .context("cannot set up the connection to the hub")?;
        Ok(Self {
            api,
            environment,
            id,
            cache,
            is_shown,
        })
    }

    /// Asks what the hub has under a revision.
    ///
    /// # Errors
    /// When it cannot be reached, refuses, or answers otherwise than a hub.
    pub(super) fn listing(&self, revision: &str) -> Result<Listing> {
        let asked = self.asked(revision, None);
        let request = self.repo(revision).info_request().config();
        let answer = request
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_recv_response(Some(Duration::from_secs(30)))
            .build()
            .call();
        let mut answer = answer.map_err(|error| anyhow!(asked.unanswered(&error)))?;
        if !answer.status().is_success() {
            let code = answer.headers().get("x-error-code");
            let code = code.and_then(|code| code.to_str().ok());
            bail!(asked.refused(answer.status().as_u16(), code));
        }
        let info: RepoInfo = answer
            .body_mut()
            .read_json()
            .map_err(|error| anyhow!(asked.misunderstood(&error)))?;
        ensure!(is_commit(&info.sha), asked.misunderstood(&"no commit"));
        let names = info.siblings.into_iter().map(|file| file.rfilename);
        Ok(Listing {
            commit: info.sha,
            names: names.collect(),
        })
    }

    /// Brings one file of a commit into the cache and returns its path there.
    ///
    /// # Errors
    /// When the hub refuses, the connection breaks without having brought anything, the content is wrong twice, another
    /// process stands in the way, or the cache folder cannot be written.
    pub(super) fn fetch(&self, commit: &str, file: &str) -> Result<PathBuf> {
        let asked = self.asked(commit, Some(file));
        let repo = self.repo(commit);
        let expected = self.expected(&repo, &asked, file)?;
        let slot = Slot {
            blob: self.cache.blob(&expected.etag),
            pointer: self.cache.snapshot(commit).join(file),
            expected,
        };
        let Expected { etag, size } = &slot.expected;
        let mut bar = Bar::new(self.is_shown);
        let bytes_on_the_way = || self.cache.bytes_on_the_way(etag);
        let held = blob::lock(&self.cache.lock(etag), PATIENCE, || {
            bar.init(*size as usize, "waiting for another process");
            bar.update(bytes_on_the_way() as usize);
            bytes_on_the_way()
        });
        let _held = held.map_err(|error| match error.is::<std::io::Error>() {
            true => self.cache_fault(error),
            false => error,
        })?;
        let mut patience = Patience::new(PATIENCE);
        let (mut num_blobs, mut reached) = (0, None);
        while !slot
            .is_filled(&mut bar)
            .map_err(|error| self.cache_fault(error))?
        {
            ensure!(
                num_blobs < 2,
                "`{}`: {file} arrived damaged twice (expected {size} bytes, etag {etag}); something on the way alters it",
                self.id
            );
            match self.receive(&repo, &asked, &slot, &bar)? {
                Received::Blob => num_blobs += 1,
                Received::Part(cause) => {
                    let now = Some(slot.part_bytes());
                    ensure!(
                        now > reached,
                        asked.broken_off(slot.part_bytes(), *size, &cause)
                    );
                    reached = now;
                }
                Received::Locked(lock) => ensure!(
                    patience.lasts(bytes_on_the_way()),
                    "another process holds {}; end it and try again",
                    lock.display()
                ),
                Received::Nothing => {}
            }
        }
        Ok(slot.pointer)
    }

    /// Attempts one transfer of a file into its slot.
    fn receive(&self, repo: &ApiRepo, asked: &Asked, slot: &Slot, bar: &Bar) -> Result<Received> {
        let file = asked.file.unwrap_or_default();
        let error = match repo.download_with_progress(file, bar.clone()) {
            Ok(_) if slot.was_cut()? => {
                return Ok(Received::Part("the connection ended".to_owned()));
            }
            Ok(_) => return Ok(Received::Blob),
            Err(error) => error,
        };
        let is_odd = matches!(error, ApiError::InvalidResume) || status(&error) == Some(416);
        if is_odd && slot.part_bytes() > 0 {
            slot.start_over()?;
            return Ok(Received::Nothing);
        }
        match error {
            ApiError::LockAcquisition(lock) => Ok(Received::Locked(lock)),
            // hf-hub has the blob, but could not link it.
            ApiError::IoError(_) if slot.blob.exists() => Ok(Received::Blob),
            error if is_cut(&error) => Ok(Received::Part(error.to_string())),
            error => Err(self.fault(error, asked)),
        }
    }

    /// Asks what a file's content must be.
    fn expected(&self, repo: &ApiRepo, asked: &Asked, file: &str) -> Result<Expected> {
        let metadata = self
            .api
            .metadata(&repo.url(file))
            .map_err(|error| self.fault(error, asked))?;
        let etag = metadata.etag();
        let is_name = |name: &str| {
            let mut bytes = name.bytes();
            !name.is_empty()
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        };
        // The etag becomes a file's name and the commit a folder's; `W/` marks a weak etag.
        ensure!(
            is_name(etag.strip_prefix("W/").unwrap_or(etag)) && is_commit(metadata.commit_hash()),
            asked.misunderstood(&"its etag or commit is no name")
        );
        Ok(Expected {
            etag: etag.to_owned(),
            size: metadata.size() as u64,
        })
    }

    fn repo(&self, revision: &str) -> ApiRepo {
        let (id, revision) = (self.id.to_owned(), revision.to_owned());
        self.api
            .repo(Repo::with_revision(id, RepoType::Model, revision))
    }

    fn asked<'b>(&'b self, revision: &'b str, file: Option<&'b str>) -> Asked<'b> {
        Asked {
            endpoint: &self.environment.endpoint,
            id: self.id,
            revision,
            file,
            has_token: self.environment.token.is_some(),
        }
    }

    fn fault(&self, error: ApiError, asked: &Asked) -> Error {
        match (status(&error), error) {
            (Some(status), _) => anyhow!(asked.refused(status, None)),
            (None, ApiError::IoError(error)) => self.cache_fault(error),
            (None, error @ ApiError::RequestError(_)) => anyhow!(asked.unanswered(&error)),
            (None, error) => anyhow!(asked.misunderstood(&error)),
        }
    }

    /// Adds the way out to an error of the cache folder.
    pub(super) fn cache_fault(&self, error: impl Into<Error>) -> Error {
        let folder = self.cache.folder.display();
        error.into().context(format!(
            "cannot use the cache folder {folder} (HF_HOME names another place)"
        ))
    }
}

impl Display for Hub<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` at {}", self.id, self.environment.endpoint)
    }
}

/// Returns whether an error is a connection's that may be taken up again.
fn is_cut(error: &ApiError) -> bool {
    match error {
        ApiError::IoError(error) => !is_of_the_disk(error.kind()),
        ApiError::RequestError(_) => status(error).is_none(),
        _ => false,
    }
}
