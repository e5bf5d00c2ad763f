//! A hub on this machine: two kinds of requests, as huggingface.co answers them, and faults on demand.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use sha2::{Digest, Sha256};

/// What goes wrong with requests whose path ends like this.
#[derive(Clone)]
pub(super) enum Fault {
    /// The answer is this status, each time.
    Status(&'static str, u16),
    /// The connection ends after so many bytes of a whole transfer, once for each entry.
    Cut(&'static str, usize),
    /// One byte of a whole transfer is another one, once for each entry.
    Wrong(&'static str),
    /// The answer is a web page, each time.
    Page(&'static str),
    /// A whole transfer begins only when the file has been asked about so often.
    Hold(&'static str, usize),
}

/// A request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    /// Path without the query.
    pub path: String,
    /// The `Range` header.
    pub range: Option<String>,
    /// The `Authorization` header.
    pub authorization: Option<String>,
}

/// One model: the files of each commit, and the branches.
#[derive(Default)]
pub(super) struct Model {
    /// Files by commit and name.
    pub commits: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// Commits by branch.
    pub branches: BTreeMap<String, String>,
}

#[derive(Default)]
struct State {
    models: BTreeMap<String, Model>,
    requests: Vec<Request>,
    faults: Vec<Fault>,
}

impl State {
    /// Returns whether a fault holds this request back for now.
    fn must_wait(&self, request: &Request) -> bool {
        let is_whole = request.range.as_deref() == Some("bytes=0-");
        self.faults.iter().any(|fault| {
            let &Fault::Hold(name, times) = fault else {
                return false;
            };
            let asks =
                |past: &&Request| past.path.contains("/resolve/") && past.path.ends_with(name);
            is_whole
                && request.path.ends_with(name)
                && !request.path.contains("/resolve/")
                && self.requests.iter().filter(asks).count() < times
        })
    }
}

/// A running server; dropping it closes the port.
pub(super) struct StandIn {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    is_closed: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl StandIn {
    pub(super) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State::default()));
        let is_closed = Arc::new(AtomicBool::new(false));
        let (shared, closed) = (state.clone(), is_closed.clone());
        let thread = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                let shared = shared.clone();
                // A client that goes away is no fault of the server's.
                std::thread::spawn(move || connection.and_then(|stream| serve(stream, &shared)));
            }
        });
        Self {
            address,
            state,
            is_closed,
            thread: Some(thread),
        }
    }

    pub(super) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Adds files as a commit of a model, and lets a branch point to it.
    pub(super) fn push(&self, id: &str, branch: &str, commit: &str, files: &[(&str, &[u8])]) {
        let mut state = self.state();
        let model = state.models.entry(id.to_owned()).or_default();
        let owned = |&(name, content): &(&str, &[u8])| (name.to_owned(), content.to_owned());
        model
            .commits
            .insert(commit.to_owned(), files.iter().map(owned).collect());
        model.branches.insert(branch.to_owned(), commit.to_owned());
    }

    pub(super) fn add_fault(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    pub(super) fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Returns the requests since the last call.
    pub(super) fn take_requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.state().requests)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics inside")
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::SeqCst);
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the listener ends");
        }
    }
}

/// Returns the SHA-256 in hex.
pub(super) fn sha256(content: &[u8]) -> String {
    Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// Large files are what the hub keeps outside git, under their SHA-256.
fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors")
}

/// Returns the blob's name in the cache.
pub(super) fn etag(name: &str, content: &[u8]) -> String {
    let hash = sha256(content);
    if is_large(name) {
        hash
    } else {
        hash[..40].to_owned()
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let request = read_request(&stream)?;
    state
        .lock()
        .expect("no test panics inside")
        .requests
        .push(request.clone());
    // Ten seconds at most: a client that never asks fails its test, not the server.
    for _ in 0..2000 {
        if !state
            .lock()
            .expect("no test panics inside")
            .must_wait(&request)
        {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let answer = {
        let mut state = state.lock().expect("no test panics inside");
        let host = stream.local_addr()?;
        answer(&mut state, &request, host)
    };
    stream.write_all(&answer)
}

fn read_request(stream: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(stream.take(1 << 16)).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    let target = first.split(' ').nth(1).unwrap_or_default();
    let mut request = Request {
        path: target.split('?').next().unwrap_or_default().to_owned(),
        range: None,
        authorization: None,
    };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.trim().to_owned()),
            "authorization" => request.authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    Ok(request)
}

fn answer(state: &mut State, request: &Request, host: SocketAddr) -> Vec<u8> {
    let path = request.path.as_str();
    for fault in &state.faults {
        match fault {
            Fault::Status(end, status) if path.ends_with(end) => return plain(*status, &[], b""),
            Fault::Page(end) if path.ends_with(end) => {
                return plain(200, &[], b"<!doctype html>sign in");
            }
            _ => {}
        }
    }
    if let Some(description) = description(state, path) {
        return description;
    }
    let Some((id, commit, name, place)) = file_of(state, path) else {
        let code = [("X-Error-Code", "RepoNotFound".to_owned())];
        return plain(404, &code, b"");
    };
    let content = &state.models[&id].commits[&commit][&name];
    let etag = format!("\"{}\"", etag(&name, content));
    let headers = [("X-Repo-Commit", commit.clone()), ("ETag", etag.clone())];
    match place {
        // Large files lie elsewhere; the first answer alone knows their hash.
        Place::Resolve if is_large(&name) => {
            let location = format!("http://{host}/cdn/{id}/{commit}/{name}");
            let linked = [
                ("X-Repo-Commit", commit),
                ("X-Linked-Etag", etag),
                ("Location", location),
            ];
            plain(302, &linked, b"")
        }
        Place::Resolve => {
            let location = format!("/api/resolve-cache/models/{id}/{commit}/{name}");
            plain(
                307,
                &[&headers[..], &[("Location", location)]].concat(),
                b"",
            )
        }
        Place::Content => {
            let content = content.clone();
            transfer(state, request, &headers, content)
        }
    }
}

fn description(state: &State, path: &str) -> Option<Vec<u8>> {
    let (id, revision) = path
        .strip_prefix("/api/models/")?
        .split_once("/revision/")?;
    let revision = revision.replace("%2F", "/");
    let model = state.models.get(id)?;
    let Some((commit, files)) = model
        .branches
        .get(&revision)
        .or(Some(&revision))
        .and_then(|commit| model.commits.get_key_value(commit))
    else {
        let code = [("X-Error-Code", "RevisionNotFound".to_owned())];
        return Some(plain(404, &code, b""));
    };
    let siblings: Vec<_> = files
        .keys()
        .map(|name| serde_json::json!({"rfilename": name}))
        .collect();
    let body = serde_json::json!({"id": id, "sha": commit, "siblings": siblings, "tags": []});
    Some(plain(200, &[], body.to_string().as_bytes()))
}

enum Place {
    Resolve,
    Content,
}

fn file_of(state: &State, path: &str) -> Option<(String, String, String, Place)> {
    for (id, model) in &state.models {
        for (commit, files) in &model.commits {
            for name in files.keys() {
                let at =
                    |start: &str, middle: &str| format!("{start}/{id}{middle}/{commit}/{name}");
                let place = if path == at("", "/resolve") {
                    Place::Resolve
                } else if path == at("/cdn", "") || path == at("/api/resolve-cache/models", "") {
                    Place::Content
                } else {
                    continue;
                };
                return Some((id.clone(), commit.clone(), name.clone(), place));
            }
        }
    }
    None
}

/// Answers a range of a file, `bytes=a-b` or `bytes=a-`.
fn transfer(
    state: &mut State,
    request: &Request,
    headers: &[(&str, String)],
    mut content: Vec<u8>,
) -> Vec<u8> {
    let size = content.len();
    let range = request
        .range
        .as_deref()
        .and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let (start, end) = match range {
        Some((start, end)) => (
            start.parse().expect("a number"),
            end.parse().map_or(size, |last: usize| last + 1),
        ),
        None => (0, size),
    };
    if start >= size {
        return plain(416, &[], b"");
    }
    let is_whole = end == size && size > 1;
    let mut cut = None;
    if is_whole {
        let hits = |fault: &Fault| match fault {
            Fault::Cut(name, _) | Fault::Wrong(name) => request.path.ends_with(name),
            _ => false,
        };
        if let Some(place) = state.faults.iter().position(hits) {
            match state.faults.remove(place) {
                Fault::Cut(_, bytes) => cut = Some(bytes),
                _ => content[size - 1] ^= 1,
            }
        }
    }
    let content_range = ("Content-Range", format!("bytes {start}-{}/{size}", end - 1));
    let mut answer = plain(
        206,
        &[headers, &[content_range]].concat(),
        &content[start..end],
    );
    if let Some(bytes) = cut {
        answer.truncate(answer.len() - (end - start) + bytes);
    }
    answer
}

fn plain(status: u16, headers: &[(&str, String)], body: &[u8]) -> Vec<u8> {
    let mut head = format!(
        "HTTP/1.1 {status} Status\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    [head.as_bytes(), body].concat()
}
