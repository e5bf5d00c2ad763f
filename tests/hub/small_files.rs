//! Questions that need no weights: only the small files are fetched, and a cache of them is enough.

use super::*;

fn fetch(world: &World, part: Part, options: &HubOptions) -> anyhow::Result<Snapshot> {
    fetch_in(&world.environment, ID, None, part, options)
}

fn resolved(world: &World) -> Vec<String> {
    let requests = world.hub.take_requests();
    let mut files: Vec<String> = requests
        .iter()
        .filter_map(|request| request.path.strip_prefix("/org/tiny/resolve/"))
        .map(|path| path.rsplit('/').next().expect("a name").to_owned())
        .collect();
    files.sort();
    files.dedup();
    files
}

#[test]
fn the_small_files_come_alone_and_the_weights_when_they_are_needed() {
    let world = World::with_model();
    let small = fetch(&world, Part::SmallFiles, &ONLINE).expect("the small files");
    let expected = ["config.json", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(resolved(&world), expected);
    assert_eq!(small.revision.as_deref(), Some(FIRST));
    assert!(!small.folder.join("model.safetensors").exists());

    // a second time nobody is asked
    fetch(&world, Part::SmallFiles, &ONLINE).expect("from the cache");
    fetch(&world, Part::SmallFiles, &OFFLINE).expect("from the cache");
    assert_eq!(world.hub.take_requests().len(), 0);

    let missing = fetch(&world, Part::Whole, &OFFLINE).expect_err("no weights");
    assert!(
        format!("{missing:#}").contains("missing weights"),
        "{missing:#}"
    );
    let whole = fetch(&world, Part::Whole, &ONLINE).expect("the model");
    assert_eq!(
        (whole.folder.clone(), whole.revision.clone()),
        (small.folder, small.revision)
    );
    assert_eq!(read(&whole, "model.safetensors"), WEIGHTS);
}

#[test]
fn a_whole_model_in_the_cache_answers_for_its_small_files() {
    let world = World::with_model();
    world.fetch();
    world.hub.take_requests();
    fetch(&world, Part::SmallFiles, &ONLINE).expect("from the cache");
    assert_eq!(world.hub.take_requests().len(), 0);
}

#[test]
fn a_model_without_weights_on_the_hub_has_small_files_all_the_same() {
    let world = World::new();
    let files: [(&str, &[u8]); 2] = [("config.json", b"{}"), ("pytorch_model.bin", b"x")];
    world.hub.push(ID, "main", FIRST, &files);
    let small = fetch(&world, Part::SmallFiles, &ONLINE).expect("what there is");
    assert_eq!(read(&small, "config.json"), b"{}");
    assert!(!small.folder.join("pytorch_model.bin").exists());
    let offline = fetch(&world, Part::SmallFiles, &OFFLINE).expect_err("incomplete");
    assert!(
        format!("{offline:#}").contains("missing tokenizer.json"),
        "{offline:#}"
    );
}
