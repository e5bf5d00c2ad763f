//! What is asked of the hub, and that only whole and right files count.

use super::*;

#[test]
fn a_first_fetch_asks_only_for_what_is_needed_at_one_commit() {
    let world = World::with_model();
    let snapshot = world.fetch();
    assert_eq!(snapshot.revision.as_deref(), Some(FIRST));
    assert_eq!(snapshot.folder, world.repo().join("snapshots").join(FIRST));
    assert_eq!(read(&snapshot, "model.safetensors"), WEIGHTS);
    let requests = world.hub.take_requests();
    let asked: std::collections::BTreeSet<&str> = requests
        .iter()
        .filter_map(|request| request.path.strip_prefix("/org/tiny/resolve/"))
        .collect();
    let needed = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    assert_eq!(
        Vec::from_iter(asked),
        needed.map(|file| format!("{FIRST}/{file}"))
    );
    assert_eq!(
        std::fs::read_to_string(world.repo().join("refs/main")).expect("a ref"),
        FIRST
    );
    let refs = std::fs::read_dir(world.repo().join("refs")).expect("a folder");
    assert_eq!(refs.count(), 1, "hf-hub's ref of the commit is gone");
    assert!(world.blob("model.safetensors", WEIGHTS).is_file());
    Folder::open(&snapshot.folder).expect("a model's folder");
}

#[test]
fn what_two_revisions_share_is_fetched_once() {
    let world = World::with_model();
    world.fetch();
    let mut files = model(WEIGHTS);
    files[2].1 = b"{\"changed\": 1}";
    world.hub.push(ID, "v2", SECOND, &files);
    world.hub.take_requests();
    let snapshot = world
        .try_fetch(Some("v2"), &ONLINE)
        .expect("the new revision");
    assert_eq!(read(&snapshot, "config.json"), b"{\"changed\": 1}");
    assert_eq!(read(&snapshot, "model.safetensors"), WEIGHTS);
    assert_eq!(world.transfers("model.safetensors"), [""; 0]);
}

#[test]
fn a_cut_connection_is_taken_up_where_it_ended() {
    let world = World::with_model();
    for bytes in [10, 5] {
        world.hub.add_fault(Fault::Cut("/model.safetensors", bytes));
    }
    let snapshot = world.fetch();
    assert_eq!(read(&snapshot, "model.safetensors"), WEIGHTS);
    assert_eq!(
        world.transfers("model.safetensors"),
        ["bytes=0-", "bytes=10-", "bytes=15-"]
    );
}

#[test]
fn a_connection_that_brings_nothing_ends_the_fetch_and_keeps_what_came() {
    let world = World::with_model();
    for bytes in [10, 0, 0] {
        world.hub.add_fault(Fault::Cut("/model.safetensors", bytes));
    }
    let message = world.refusal(None, &ONLINE);
    assert!(
        message.contains("model.safetensors broke off at 10 of 55 bytes"),
        "{message}"
    );
    assert!(
        !world.repo().join("refs/main").exists(),
        "half a model has no name"
    );
    assert!(
        world
            .refusal(None, &OFFLINE)
            .contains("is not in the cache")
    );
    world.hub.clear_faults();
    world.hub.take_requests();
    world.fetch();
    assert_eq!(world.transfers("model.safetensors"), ["bytes=10-"]);
}

#[test]
fn what_an_ended_process_left_is_used_if_it_is_right() {
    let cases: [(&[u8], &[&str]); 4] = [
        (&WEIGHTS[..20], &["bytes=20-"]),
        (WEIGHTS, &[]),
        (b"wrong from the start", &["bytes=20-", "bytes=0-"]),
        (&[b'x'; 100], &["bytes=0-"]),
    ];
    for (left, transfers) in cases {
        let world = World::with_model();
        write(&world.part(), left);
        let snapshot = world.fetch();
        assert_eq!(read(&snapshot, "model.safetensors"), WEIGHTS);
        assert_eq!(world.transfers("model.safetensors"), transfers);
    }
}

#[test]
fn a_damaged_arrival_is_fetched_once_more_and_no_further() {
    let world = World::with_model();
    world.hub.add_fault(Fault::Wrong("/model.safetensors"));
    assert_eq!(read(&world.fetch(), "model.safetensors"), WEIGHTS);
    assert_eq!(
        world.transfers("model.safetensors"),
        ["bytes=0-", "bytes=0-"]
    );

    let world = World::with_model();
    for _ in 0..3 {
        world.hub.add_fault(Fault::Wrong("/model.safetensors"));
    }
    let message = world.refusal(None, &ONLINE);
    assert!(
        message.contains("model.safetensors arrived damaged twice (expected 55 bytes"),
        "{message}"
    );
    assert!(!world.blob("model.safetensors", WEIGHTS).exists());
}

#[test]
fn a_blob_with_a_flipped_byte_is_not_linked_into_another_revision() {
    let world = World::with_model();
    world.fetch();
    let mut flipped = WEIGHTS.to_vec();
    flipped[7] ^= 1;
    write(&world.blob("model.safetensors", WEIGHTS), &flipped);
    world.hub.push(ID, "v2", SECOND, &model(WEIGHTS));
    let snapshot = world
        .try_fetch(Some("v2"), &ONLINE)
        .expect("the new revision");
    assert_eq!(read(&snapshot, "model.safetensors"), WEIGHTS);
}

#[test]
fn two_fetches_at_once_share_one_transfer() {
    let world = World::with_model();
    // The first asks three times (we, then hf-hub twice) until the content comes; the fourth question is the second's.
    world.hub.add_fault(Fault::Hold("/model.safetensors", 4));
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                start.wait();
                assert_eq!(read(&world.fetch(), "model.safetensors"), WEIGHTS);
            });
        }
    });
    assert_eq!(world.transfers("model.safetensors"), ["bytes=0-"]);
}

#[test]
fn the_files_of_an_index_are_fetched_whatever_their_names() {
    let world = World::new();
    let index = br#"{"weight_map": {"a": "odd_a.safetensors", "b": "sub/b.safetensors"}}"#;
    let mut files = model(b"");
    files.retain(|(name, _)| *name != "model.safetensors");
    files.extend([
        ("model.safetensors.index.json", &index[..]),
        ("odd_a.safetensors", b"shard a"),
        ("stray.safetensors", b"stray"),
    ]);
    world.hub.push(ID, "main", FIRST, &files);
    let message = world.refusal(None, &ONLINE);
    assert!(
        message.contains("its index names files that are not there: sub/b.safetensors"),
        "{message}"
    );
    files.push(("sub/b.safetensors", b"shard b"));
    world.hub.push(ID, "main", FIRST, &files);
    let snapshot = world.fetch();
    let opened = Folder::open(&snapshot.folder).expect("a model's folder");
    assert_eq!(opened.weight_files.len(), 2);
    assert_eq!(read(&snapshot, "sub/b.safetensors"), b"shard b");
    assert_eq!(world.transfers("stray.safetensors"), [""; 0]);
    world.try_fetch(None, &OFFLINE).expect("complete");
}
