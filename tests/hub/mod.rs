//! Fetching from a hub, and the cache it fills, on a stand-in on this machine.

mod cached;
mod refusals;
mod small_files;
mod stand_in;
mod transfers;

use std::path::{Path, PathBuf};
use std::sync::Barrier;

use logprobs::checkpoint::folder::Folder;
use logprobs::checkpoint::hub::{HubEnvironment, HubOptions, Part, Snapshot, Token, fetch_in};
use stand_in::{Fault, StandIn, etag};
use tempfile::TempDir;

const ID: &str = "org/tiny";
const FIRST: &str = "1111111111111111111111111111111111111111";
const SECOND: &str = "2222222222222222222222222222222222222222";
const ONLINE: HubOptions = HubOptions {
    offline: false,
    progress: false,
};
const OFFLINE: HubOptions = HubOptions {
    offline: true,
    progress: false,
};
const WEIGHTS: &[u8] = b"the weights of a model, long enough to be cut in pieces";
const SECRET: &str = "hf_verySecret";

/// A hub, an empty cache and the way between them.
struct World {
    hub: StandIn,
    folder: TempDir,
    environment: HubEnvironment,
}

impl World {
    fn new() -> Self {
        let hub = StandIn::new();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let environment = HubEnvironment {
            cache: Some(folder.path().join("hub")),
            endpoint: hub.endpoint(),
            token: None,
            is_offline: false,
            hides_progress: true,
        };
        Self {
            hub,
            folder,
            environment,
        }
    }

    /// A world whose hub has one small model.
    fn with_model() -> Self {
        let world = Self::new();
        world.hub.push(ID, "main", FIRST, &model(WEIGHTS));
        world
    }

    fn fetch(&self) -> Snapshot {
        self.try_fetch(None, &ONLINE).expect("the model")
    }

    fn try_fetch(&self, revision: Option<&str>, options: &HubOptions) -> anyhow::Result<Snapshot> {
        fetch_in(&self.environment, ID, revision, Part::Whole, options)
    }

    fn refusal(&self, revision: Option<&str>, options: &HubOptions) -> String {
        let error = self
            .try_fetch(revision, options)
            .expect_err("must be refused");
        let message = format!("{error:#}");
        assert!(!message.contains(SECRET), "{message}");
        message
    }

    fn repo(&self) -> PathBuf {
        self.folder.path().join("hub/models--org--tiny")
    }

    fn blob(&self, name: &str, content: &[u8]) -> PathBuf {
        self.repo().join("blobs").join(etag(name, content))
    }

    fn part(&self) -> PathBuf {
        self.blob("model.safetensors", WEIGHTS)
            .with_extension("part")
    }

    /// Returns the ranges in which the content of a file was asked for, without the first look at one byte.
    fn transfers(&self, name: &str) -> Vec<String> {
        let requests = self.hub.take_requests().into_iter();
        requests
            .filter(|request| request.path.ends_with(name))
            .filter(|request| {
                request.path.starts_with("/cdn/") || request.path.starts_with("/api/resolve-cache/")
            })
            .filter_map(|request| request.range)
            .filter(|range| range != "bytes=0-0")
            .collect()
    }
}

fn model(weights: &[u8]) -> Vec<(&str, &[u8])> {
    vec![
        (".gitattributes", b"x"),
        ("README.md", b"x"),
        ("config.json", b"{}"),
        ("tokenizer.json", b"{\"t\": 1}"),
        ("tokenizer_config.json", b"{\"c\": 1}"),
        ("model.safetensors", weights),
        ("model-Q4.gguf", b"x"),
        ("pytorch_model.bin", b"x"),
        ("onnx/model.safetensors", b"x"),
        ("picture.png", b"x"),
    ]
}

fn read(snapshot: &Snapshot, name: &str) -> Vec<u8> {
    std::fs::read(snapshot.folder.join(name)).expect(name)
}

fn write(path: &Path, content: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, content).expect("a file");
}
