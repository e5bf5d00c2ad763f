//! What the cache answers without the hub, and when it must not.

use super::*;

#[test]
fn a_cached_model_needs_no_hub() {
    let World {
        hub,
        folder: _folder,
        environment,
    } = {
        let world = World::with_model();
        world.fetch();
        world.hub.take_requests();
        let again = world.fetch();
        assert_eq!(world.hub.take_requests(), [], "not even a question");
        assert_eq!(again.revision.as_deref(), Some(FIRST));
        world
    };
    drop(hub);
    for options in [ONLINE, OFFLINE] {
        for revision in [None, Some("main"), Some(FIRST)] {
            fetch_in(&environment, ID, revision, Part::Whole, &options).expect("from the cache");
        }
    }
}

#[test]
fn offline_and_not_cached_says_what_is_missing_and_where() {
    let mut world = World::with_model();
    let folder = world.repo().display().to_string();
    let message = world.refusal(None, &OFFLINE);
    for part in [
        "`org/tiny` is not in the cache",
        &folder,
        "`main`",
        "--offline",
        "--model a local folder",
    ] {
        assert!(message.contains(part), "{message}");
    }
    world.environment.is_offline = true;
    assert!(world.refusal(None, &ONLINE).contains("HF_HUB_OFFLINE"));
    assert_eq!(world.hub.take_requests(), []);
    world.environment.is_offline = false;
    let snapshot = world.fetch();
    std::fs::remove_file(snapshot.folder.join("tokenizer.json")).expect("it was there");
    let message = world.refusal(None, &OFFLINE);
    assert!(
        message.contains("is incomplete in the cache")
            && message.contains("missing tokenizer.json"),
        "{message}"
    );
}

#[test]
fn a_revision_is_a_branch_a_tag_or_a_commit() {
    let world = World::with_model();
    let newer: &[u8] = b"other weights";
    world.hub.push(ID, "refs/pr/1", SECOND, &model(newer));
    let branch = world
        .try_fetch(Some("refs/pr/1"), &ONLINE)
        .expect("a branch");
    assert_eq!(read(&branch, "model.safetensors"), newer);
    let commit = world.try_fetch(Some(FIRST), &ONLINE).expect("a commit");
    assert_eq!(read(&commit, "model.safetensors"), WEIGHTS);
    world
        .try_fetch(Some("refs/pr/1"), &OFFLINE)
        .expect("now in the cache");
    let message = world.refusal(Some("v9"), &ONLINE);
    assert!(
        message.contains("`org/tiny` has no revision `v9`"),
        "{message}"
    );
    assert!(world.try_fetch(Some("../../x"), &ONLINE).is_err());
}

#[test]
fn a_snapshot_that_another_tool_began_is_completed_and_used_anyway_without_a_hub() {
    let mut world = World::with_model();
    let snapshot = world.fetch();
    let name = "tokenizer_config.json";
    std::fs::remove_file(snapshot.folder.join(name)).expect("it was there");
    let endpoint = std::mem::replace(
        &mut world.environment.endpoint,
        "http://127.0.0.1:1".to_owned(),
    );
    world.fetch();
    assert!(!snapshot.folder.join(name).exists());
    world.environment.endpoint = endpoint;
    world.fetch();
    assert_eq!(read(&snapshot, name), b"{\"c\": 1}");
}

#[test]
fn an_absent_optional_file_is_asked_for_once() {
    let world = World::new();
    let mut files = model(WEIGHTS);
    files.retain(|(name, _)| *name != "tokenizer_config.json");
    world.hub.push(ID, "main", FIRST, &files);
    world.fetch();
    world.hub.take_requests();
    world.fetch();
    assert_eq!(world.hub.take_requests(), []);
}

#[cfg(unix)]
#[test]
fn a_broken_link_is_reported_offline_and_mended_online() {
    let world = World::with_model();
    let snapshot = world.fetch();
    std::fs::remove_file(world.blob("model.safetensors", WEIGHTS)).expect("it was there");
    let message = world.refusal(None, &OFFLINE);
    assert!(
        message.contains("model.safetensors links to /")
            && message.contains("which does not exist"),
        "{message}"
    );
    world.fetch();
    assert_eq!(read(&snapshot, "model.safetensors"), WEIGHTS);
}

#[test]
fn a_file_system_without_links_gets_the_files_themselves() {
    let world = World::with_model();
    let snapshot = world.fetch();
    // As after a copy that followed the links: files instead of links, no blobs.
    for name in ["config.json", "model.safetensors"] {
        let content = read(&snapshot, name);
        std::fs::remove_file(snapshot.folder.join(name)).expect("it was there");
        write(&snapshot.folder.join(name), &content);
    }
    std::fs::remove_dir_all(world.repo().join("blobs")).expect("it was there");
    std::fs::remove_file(snapshot.folder.join("tokenizer.json")).expect("a broken link");
    world.hub.take_requests();
    world.fetch();
    assert_eq!(world.transfers("model.safetensors"), [""; 0]);
    assert_eq!(read(&snapshot, "tokenizer.json"), b"{\"t\": 1}");
}
