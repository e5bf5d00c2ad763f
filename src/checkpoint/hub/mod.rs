//! A model on the Hugging Face hub, brought into the cache that the Python tools use: the only module that knows the
//! network.
//!
//! What is in the cache and complete is used at once, without asking whether the branch has moved. Otherwise the hub is
//! asked once what it has, and the files that this program reads (never `.bin`, `.gguf`, images) are fetched at the
//! commit it named, so that a moving branch cannot mix. A snapshot in the cache is taken at its word; contents are
//! checked when they arrive.

mod blob;
mod cache;
mod environment;
mod progress;
mod refusal;
mod slot;
mod transfer;

pub use environment::{HubEnvironment, Token};

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail, ensure};

use super::folder::what_is_missing;
use super::source::{check_id, check_revision};
use super::weights::{self, WeightNames};
use cache::{Cached, RepoCache, SMALL_FILES};
use transfer::{Hub, Listing};

/// How to fetch.
#[derive(Debug, Clone, Copy, Default)]
pub struct HubOptions {
    /// Forbids the network, as HF_HUB_OFFLINE does.
    pub offline: bool,
    /// Shows transfers on stderr.
    pub progress: bool,
}

/// A model's files in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// The folder, in the hub's layout.
    pub folder: PathBuf,
    /// The commit.
    pub revision: Option<String>,
}

/// How much of a model is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything that the program reads.
    Whole,
    /// Configuration, tokenizer and template, without the weights; what the hub does not have of them is no error.
    SmallFiles,
}

/// Returns where a model's files are in the cache, fetching what is missing of `part`.
///
/// # Errors
/// Says what the hub refused or the network did, what is missing and where it was looked for, or which folder cannot be
/// written, and what to do.
pub fn fetch(
    id: &str,
    revision: Option<&str>,
    part: Part,
    options: &HubOptions,
) -> Result<Snapshot> {
    fetch_in(&HubEnvironment::from_env(), id, revision, part, options)
}

/// As [`fetch`], in an environment that is given.
///
/// # Errors
/// As [`fetch`].
pub fn fetch_in(
    environment: &HubEnvironment,
    id: &str,
    revision: Option<&str>,
    part: Part,
    options: &HubOptions,
) -> Result<Snapshot> {
    check_id(id)?;
    revision.map(check_revision).transpose()?;
    let revision = revision.unwrap_or("main");
    let cache = RepoCache::new(environment.cache_folder()?, id);
    let cached = cache.cached(revision);
    let usable = cached
        .as_ref()
        .filter(|cached| cached.problems(part).is_empty());
    let is_offline = options.offline || environment.is_offline;
    if let Some(usable) = usable.filter(|usable| usable.is_certain || is_offline) {
        return Ok(Snapshot::from(usable));
    }
    if is_offline {
        bail!(absent_offline(id, revision, part, &cache, cached.as_ref()));
    }
    let is_shown = options.progress && !environment.hides_progress;
    let fetched = Hub::new(environment, id, &cache, is_shown)
        .and_then(|hub| download(&hub, &cache, revision, part));
    match (fetched, usable, &cached) {
        (Ok(snapshot), _, _) => Ok(snapshot),
        (Err(_), Some(usable), _) => Ok(Snapshot::from(usable)),
        (Err(error), None, Some(cached)) => Err(anyhow!(
            "{error:#} (the copy in {} is incomplete: {})",
            cached.folder.display(),
            cached.problems(part).join("; ")
        )),
        (Err(error), None, None) => Err(error),
    }
}

impl Cached {
    fn problems(&self, part: Part) -> &[String] {
        match part {
            Part::Whole => &self.problems,
            Part::SmallFiles => &self.small_problems,
        }
    }
}

impl From<&Cached> for Snapshot {
    fn from(cached: &Cached) -> Self {
        Self {
            folder: cached.folder.clone(),
            revision: Some(cached.commit.clone()),
        }
    }
}

fn absent_offline(
    id: &str,
    revision: &str,
    part: Part,
    cache: &RepoCache,
    cached: Option<&Cached>,
) -> String {
    let what = match cached {
        Some(cached) => format!(
            "is incomplete in the cache ({}: {})",
            cached.folder.display(),
            cached.problems(part).join("; ")
        ),
        None => format!(
            "is not in the cache (looked in {} for revision `{revision}`)",
            cache.folder.display()
        ),
    };
    format!(
        "`{id}` {what}, and the network is forbidden (--offline or HF_HUB_OFFLINE); \
         fetch it once without, or give --model a local folder"
    )
}

fn download(hub: &Hub, cache: &RepoCache, revision: &str, part: Part) -> Result<Snapshot> {
    std::fs::create_dir_all(&cache.folder).map_err(|error| hub.cache_fault(error))?;
    let listing = hub.listing(revision)?;
    let Listing { commit, names } = &listing;
    if let Some(missing) = what_is_missing(names).filter(|_| part == Part::Whole) {
        bail!("{hub}: {missing}");
    }
    let (present, absent): (Vec<&str>, Vec<&str>) = SMALL_FILES
        .into_iter()
        .partition(|&file| names.contains(file));
    for file in present {
        hub.fetch(commit, file)?;
    }
    if part == Part::Whole {
        for file in weight_files(hub, &listing)? {
            hub.fetch(commit, &file)?;
        }
    }
    let noted = absent
        .into_iter()
        .try_for_each(|file| cache.note_absence(commit, file))
        .and_then(|()| cache.write_reference(revision, commit));
    noted.map_err(|error| hub.cache_fault(error))?;
    Ok(Snapshot {
        folder: cache.snapshot(commit),
        revision: Some(commit.clone()),
    })
}

/// Returns the weight files to fetch; an index is fetched to know them.
fn weight_files(hub: &Hub, listing: &Listing) -> Result<Vec<String>> {
    let files = match weights::choose(&listing.names) {
        Some(WeightNames::Index(index)) => {
            let index = hub.fetch(&listing.commit, &index)?;
            weights::shards(&weights::read_index(&index)?)
        }
        Some(WeightNames::Files(files)) => files,
        None => Vec::new(),
    };
    let is_absent = |file: &&String| !listing.names.contains(*file);
    let absent: Vec<&str> = files.iter().filter(is_absent).map(String::as_str).collect();
    ensure!(
        absent.is_empty(),
        "{hub}: its index names files that are not there: {}",
        absent.join(", ")
    );
    Ok(files)
}
