//! What goes wrong at the hub, on the way or on the disk, and what the user is told.

use super::*;

#[test]
fn the_token_is_sent_and_never_shown() {
    let mut world = World::with_model();
    world.environment.token = Token::new(&format!("{SECRET}\n"));
    world.fetch();
    let requests = world.hub.take_requests();
    let bearer = format!("Bearer {SECRET}");
    let to_hub = requests
        .iter()
        .filter(|request| !request.path.starts_with("/cdn/"));
    assert!(to_hub.clone().count() > 4);
    assert!(
        to_hub
            .clone()
            .all(|request| request.authorization.as_deref() == Some(&bearer))
    );
    world.hub.add_fault(Fault::Status("/revision/v2", 401));
    assert!(
        world
            .refusal(Some("v2"), &ONLINE)
            .contains("does not accept the token (401)")
    );
    assert!(!format!("{:?}", world.environment).contains(SECRET));
}

#[test]
fn each_refusal_of_the_hub_is_told_apart() {
    let expected = [
        (401, "wants a login (401)"),
        (403, "accept the model's terms at http://127.0.0.1"),
        (404, "(404)"),
        (429, "too many requests"),
        (500, "a fault of its own (500)"),
    ];
    for (status, part) in expected {
        for path in [
            "/api/models/org/tiny/revision/main",
            "model.safetensors",
            "config.json",
        ] {
            let world = World::with_model();
            world.hub.add_fault(Fault::Status(path, status));
            let message = world.refusal(None, &ONLINE);
            assert!(message.contains(part), "{path}: {message}");
        }
    }
    let message = World::new().refusal(None, &ONLINE);
    assert!(
        message.contains("no model `org/tiny` at http://127.0.0.1"),
        "{message}"
    );
}

#[test]
fn models_in_other_formats_are_refused_with_the_way_out() {
    let world = World::new();
    world.hub.push(
        ID,
        "main",
        FIRST,
        &[("README.md", b""), ("m-Q8_0.gguf", b"")],
    );
    let message = world.refusal(None, &ONLINE);
    assert!(
        message.contains("download `m-Q8_0.gguf` and give its path to --model"),
        "{message}"
    );
    let files: [(&str, &[u8]); 3] = [
        ("config.json", b"{}"),
        ("tokenizer.json", b"{}"),
        ("pytorch_model.bin", b""),
    ];
    world.hub.push(ID, "main", FIRST, &files);
    assert!(
        world
            .refusal(None, &ONLINE)
            .contains("convert it to safetensors")
    );
}

#[test]
fn a_hub_out_of_reach_is_named_with_the_way_out() {
    let mut world = World::with_model();
    world.environment.endpoint = {
        let gone = StandIn::new();
        gone.endpoint()
    };
    let message = world.refusal(None, &ONLINE);
    let start = format!(
        "`org/tiny`: no answer from {}: ",
        world.environment.endpoint
    );
    assert!(
        message.starts_with(&start) && message.contains("--model a local folder"),
        "{message}"
    );
    world.environment.endpoint = "mirror".to_owned();
    assert!(
        world
            .refusal(None, &ONLINE)
            .contains("HF_ENDPOINT is `mirror`")
    );
}

#[test]
fn a_login_page_is_not_taken_for_a_hub() {
    for path in ["/revision/main", "/config.json"] {
        let world = World::with_model();
        world.hub.add_fault(Fault::Page(path));
        let message = world.refusal(None, &ONLINE);
        assert!(
            message.contains("answers otherwise than a hub does"),
            "{message}"
        );
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_named_with_the_variable() {
    let mut world = World::with_model();
    let file = world.folder.path().join("file");
    write(&file, b"");
    world.environment.cache = Some(file.join("hub"));
    let message = world.refusal(None, &ONLINE);
    assert!(
        message.contains("cannot use the cache folder /") && message.contains("HF_HOME"),
        "{message}"
    );
    world.environment.cache = None;
    assert!(world.refusal(None, &ONLINE).contains("set HF_HOME"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_from_a_broken_connection() {
    let world = World::with_model();
    std::fs::create_dir_all(world.repo().join("blobs")).expect("a folder");
    std::os::unix::fs::symlink("/dev/full", world.part()).expect("a link");
    let message = world.refusal(None, &ONLINE);
    assert!(
        message.contains("cannot use the cache folder") && message.contains("No space left"),
        "{message}"
    );
}
