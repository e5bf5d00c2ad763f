//! A server on this machine that speaks as vLLM's or llama.cpp's does, with a tiny checkpoint behind it, and faults on demand.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use logprobs::checkpoint::hub::HubOptions;
use logprobs::checkpoint::{Checkpoint, Source};
use logprobs::distribution::Distribution;
use logprobs::kernels::Isa;
use logprobs::model::decoder::Decoder;
use logprobs::model::{Backend, LanguageModel};
use logprobs::setting::Setting;
use logprobs::text::chat::Messages;
use logprobs::text::tokenizer::Reading;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Map, Value, json};

/// Which server it plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Vllm,
    LlamaCpp,
}

/// What is wrong with it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Fault {
    /// It shows so many candidates at most.
    Cap(usize),
    /// Started with `--logprobs-mode processed_logprobs`.
    Processed,
    /// Started with `--logprobs-mode raw_logits`.
    Logits,
    /// It does not know `return_tokens_as_token_ids`.
    TextKeys,
    /// It does not know `return_token_ids`.
    NoIds,
    /// It sees other ids than were sent.
    OtherPrompt,
    /// Two candidates have one id.
    SameId,
    /// Fewer candidates come than were asked for.
    Fewer,
    /// The best candidate is missing.
    NoBest,
    /// The answer ends in the middle.
    Truncated,
    /// The connection ends in the middle, once.
    Cut,
    /// The answer does not come within a second.
    Slow,
    /// So many megabytes of spaces come before the answer where a prefix has more tokens than `past`.
    Huge { megabytes: usize, past: usize },
    /// Another address is named.
    Redirect(String),
    /// This status, always.
    Status(u16),
    /// Status 503, so often.
    Unready(usize),
    /// A key is wanted.
    Key(&'static str),
    /// It serves two models.
    Several,
    /// It computes as at this temperature: a model that has changed.
    Warmer(f64),
    /// No token ends a reply.
    NoEnd,
    /// Every text of every answer ends in this.
    Hostile(&'static str),
}

/// A request as it came.
#[derive(Debug, Clone)]
pub(super) struct Request {
    pub(super) path: String,
    pub(super) authorization: Option<String>,
    pub(super) body: Value,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    faults: Vec<Fault>,
    /// Requests for distributions until the server is gone.
    left: Option<usize>,
}

struct Model {
    kind: Kind,
    checkpoint: Checkpoint,
    decoder: Decoder,
}

/// A running server; dropping it closes the port.
pub(super) struct StandIn {
    scheme: &'static str,
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    is_closed: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The checkpoint behind every stand-in.
pub(super) fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3")
}

impl StandIn {
    pub(super) fn new(kind: Kind) -> Self {
        Self::start(kind, None)
    }

    /// Speaks TLS, with the certificate of the fixtures.
    pub(super) fn secure(kind: Kind) -> Self {
        let folder = crate::program::fixture("tls");
        let certificates = CertificateDer::pem_file_iter(folder.join("server.pem"));
        let certificates = certificates
            .expect("certificates")
            .map(|one| one.expect("one"));
        let key = PrivateKeyDer::from_pem_file(folder.join("server.key")).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("versions").with_no_client_auth();
        let config = config.with_single_cert(certificates.collect(), key);
        Self::start(kind, Some(Arc::new(config.expect("they belong together"))))
    }

    fn start(kind: Kind, tls: Option<Arc<ServerConfig>>) -> Self {
        let source = Source::locate(folder().as_os_str(), None).expect("the fixture is there");
        let checkpoint = Checkpoint::open(&source, &HubOptions::default()).expect("it opens");
        let backend = Backend::Kernels(Isa::current());
        let weights = checkpoint.weights.as_ref();
        let decoder = Decoder::load(&checkpoint.config, weights, &backend, &|| ());
        let model = Arc::new(Model {
            kind,
            decoder: decoder.expect("it loads"),
            checkpoint,
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let state = Arc::new(Mutex::new(State::default()));
        let is_closed = Arc::new(AtomicBool::new(false));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (shared, closed) = (state.clone(), is_closed.clone());
        let thread = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, model, tls) = (shared.clone(), model.clone(), tls.clone());
                // a client that goes away is no fault of the server's
                std::thread::spawn(move || {
                    let stream = connection?;
                    let Some(tls) = tls else {
                        return serve(stream, &shared, &model);
                    };
                    let connection = ServerConnection::new(tls).map_err(std::io::Error::other)?;
                    serve(StreamOwned::new(connection, stream), &shared, &model)
                });
            }
        });
        Self {
            scheme,
            address,
            state,
            is_closed,
            thread: Some(thread),
        }
    }

    pub(super) fn with(kind: Kind, fault: Fault) -> Self {
        let server = Self::new(kind);
        server.take(fault);
        server
    }

    /// Has a fault from now on.
    pub(super) fn take(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    pub(super) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Goes away after so many distributions.
    pub(super) fn leave_after(&self, distributions: usize) {
        self.state().left = Some(distributions);
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
        // wakes the listener
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the listener ends");
        }
    }
}

fn serve(
    mut stream: impl Read + Write,
    state: &Mutex<State>,
    model: &Model,
) -> std::io::Result<()> {
    let Some(request) = read_request(&mut stream)? else {
        return Ok(());
    };
    let is_about_tokens = request.path.ends_with("completions") || request.path == "/completion";
    let faults = {
        let mut state = state.lock().expect("no test panics inside");
        state.requests.push(request.clone());
        if let Some(left) = state.left.as_mut().filter(|_| is_about_tokens) {
            match left.checked_sub(1) {
                Some(fewer) => *left = fewer,
                None => return Ok(()),
            }
        }
        let faults = state.faults.clone();
        state.faults.retain_mut(|fault| match fault {
            Fault::Cut => !is_about_tokens,
            Fault::Unready(left) => {
                *left = left.saturating_sub(1);
                *left > 0
            }
            _ => true,
        });
        faults
    };
    let (mut status, mut headers) = (200, String::new());
    let mut body = Vec::new();
    for fault in &faults {
        match fault {
            Fault::Status(code) => status = *code,
            Fault::Unready(_) => status = 503,
            Fault::Redirect(place) => {
                status = 307;
                headers = format!("Location: {place}\r\n");
            }
            Fault::Key(key)
                if request.authorization.as_deref() != Some(&format!("Bearer {key}")) =>
            {
                status = 401;
            }
            Fault::Slow if is_about_tokens => std::thread::sleep(Duration::from_secs(2)),
            Fault::Huge { megabytes, past } if request.longest() > *past => {
                body.resize(megabytes << 20, b' ');
            }
            _ => {}
        }
    }
    let mut answer = json!({"error": {"message": "the stand-in refuses"}});
    if status == 200 {
        (status, answer) = model.answer(&request, &faults);
    }
    for fault in &faults {
        if let Fault::Hostile(text) = fault {
            make_hostile(&mut answer, text);
        }
    }
    let mut answer = answer.to_string();
    if faults.contains(&Fault::SameId) {
        answer = with_one_id_twice(&answer);
    }
    body.extend(answer.as_bytes());
    let has = |fault: Fault| faults.contains(&fault) && is_about_tokens;
    if has(Fault::Truncated) {
        body.truncate(body.len() / 2);
    }
    let head = format!(
        "HTTP/1.1 {status} Status\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n",
        body.len()
    );
    if has(Fault::Cut) {
        body.truncate(body.len() / 2);
    }
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

/// Has every text of an answer end in `hostile`, but for those that say why a reply ended; bytes of tokens, too.
fn make_hostile(answer: &mut Value, hostile: &str) {
    match answer {
        // also each of several texts that are asked for together
        Value::String(text) => {
            *text = text.replace("\n#|#\n", &format!("{hostile}\n#|#\n")) + hostile
        }
        Value::Array(list) => list
            .iter_mut()
            .for_each(|value| make_hostile(value, hostile)),
        Value::Object(map) => map
            .iter_mut()
            .for_each(|(key, value)| match (key.as_str(), value) {
                ("finish_reason" | "stop_type", _) => {}
                ("bytes", Value::Array(bytes)) => bytes.extend(hostile.bytes().map(Value::from)),
                (_, value) => make_hostile(value, hostile),
            }),
        _ => {}
    }
}

/// Gives the second candidate of an answer the id of the first: no JSON library would write that.
fn with_one_id_twice(answer: &str) -> String {
    let mut keys = answer.match_indices("\"token_id:");
    let (Some((first, _)), Some((second, _))) = (keys.next(), keys.next()) else {
        return answer.to_owned();
    };
    let key = |start: usize| {
        let end = answer[start + 1..].find('"').expect("a key ends");
        &answer[start..=start + 1 + end]
    };
    let (before, after) = answer.split_at(second);
    format!("{before}{}", after.replacen(key(second), key(first), 1))
}

impl Request {
    /// Tokens of the longest prefix that it asks about.
    fn longest(&self) -> usize {
        let prefixes = self.body["prompt"].as_array().into_iter().flatten();
        let lengths = prefixes.filter_map(|prefix| Some(prefix.as_array()?.len()));
        lengths.max().unwrap_or(0)
    }
}

fn read_request(stream: &mut impl Read) -> std::io::Result<Option<Request>> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let Some(path) = line.split(' ').nth(1).map(str::to_owned) else {
        return Ok(None);
    };
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "authorization" => authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Request {
        path,
        authorization,
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }))
}

impl Model {
    fn answer(&self, request: &Request, faults: &[Fault]) -> (u16, Value) {
        let body = &request.body;
        let tokenizer = &self.checkpoint.tokenizer;
        let missing = (404, json!({"detail": "Not Found"}));
        let ok = |value: Value| (200, value);
        match (self.kind, request.path.as_str()) {
            (Kind::Vllm, "/version") => ok(json!({"version": "0.32.0"})),
            (Kind::Vllm, "/v1/models") => {
                let mut models = vec![json!({"id": "tiny", "max_model_len": 96})];
                if faults.contains(&Fault::Several) {
                    models.push(json!({"id": "Qwen/Qwen3.5-2B", "max_model_len": 96}));
                }
                ok(json!({"data": models}))
            }
            (Kind::Vllm, "/v1/completions") => self.vllm(body, faults),
            (Kind::LlamaCpp, "/props") => ok(json!({
                "build_info": "b1-0c1e570", "default_generation_settings": {"n_ctx": 96}, "model_ftype": "F32"
            })),
            (Kind::LlamaCpp, "/v1/models") => {
                let vocab_size = self.decoder.vocab_size();
                ok(json!({"data": [{"id": "tiny.gguf", "meta": {"n_vocab": vocab_size}}]}))
            }
            (Kind::LlamaCpp, "/completion") => ok(self.llama_cpp(body, faults)),
            (Kind::LlamaCpp, "/apply-template") => ok(json!({"prompt": self.render(body)})),
            (kind, "/tokenize") => {
                let text = match (&body["messages"], &body["content"], &body["prompt"]) {
                    (Value::Array(_), _, _) => self.render(body),
                    (_, Value::String(text), _) | (_, _, Value::String(text)) => text.clone(),
                    _ => return missing,
                };
                let reading = match body["parse_special"] == false {
                    true => Reading::Continued,
                    false => Reading::Template,
                };
                let ids = tokenizer.encode(&text, reading).expect("a text");
                ok(match kind {
                    Kind::Vllm => {
                        let symbols: Vec<String> =
                            ids.iter().map(|&id| symbols(&self.bytes(id))).collect();
                        json!({"count": ids.len(), "tokens": ids, "token_strs": symbols})
                    }
                    Kind::LlamaCpp => {
                        let piece = |id: &u32| {
                            let bytes = self.bytes(*id);
                            let piece = match String::from_utf8(bytes.clone()) {
                                Ok(text) => json!(text),
                                Err(_) => json!(bytes),
                            };
                            json!({"id": id, "piece": piece})
                        };
                        json!({"tokens": ids.iter().map(piece).collect::<Vec<_>>()})
                    }
                })
            }
            (kind, "/detokenize") => {
                let ids: Vec<u32> = serde_json::from_value(body["tokens"].clone()).expect("ids");
                let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.bytes(id)).collect();
                let text = String::from_utf8_lossy(&bytes);
                ok(match kind {
                    Kind::Vllm => json!({"prompt": text}),
                    Kind::LlamaCpp => json!({"content": text}),
                })
            }
            _ => missing,
        }
    }

    fn bytes(&self, id: u32) -> Vec<u8> {
        self.checkpoint.tokenizer.token(id).bytes
    }

    fn is_special(&self, id: u32) -> bool {
        self.checkpoint.tokenizer.token(id).special
    }

    fn render(&self, body: &Value) -> String {
        let content = |role: &str| {
            let turns = body["messages"].as_array().expect("messages").iter();
            let mut found = turns.filter(|turn| turn["role"] == role);
            found.next().and_then(|turn| turn["content"].as_str())
        };
        let messages = Messages {
            system: content("system"),
            user: content("user").expect("a user's message"),
        };
        let template = self
            .checkpoint
            .template
            .as_ref()
            .expect("the fixture has one");
        let thinking = body["chat_template_kwargs"]["enable_thinking"] == true;
        template.render(&messages, thinking).expect("renders").text
    }

    /// Ids with their log-probabilities, best first.
    fn best(
        &self,
        ids: &[u32],
        count: usize,
        faults: &[Fault],
        temperature: f64,
    ) -> Vec<(u32, f64)> {
        let logits = self
            .decoder
            .extend(&mut self.decoder.start(), ids)
            .expect("ids");
        let whole = Distribution::from_logits(logits).expect("a distribution");
        let warm = Setting::OFF
            .with_temperature(temperature)
            .expect("a temperature");
        let changed = faults.iter().find_map(|fault| match fault {
            Fault::Warmer(temperature) => Setting::OFF.with_temperature(*temperature).ok(),
            _ => None,
        });
        let value = |id: u32| match (faults, changed) {
            (_, Some(changed)) => whole.filtered(&changed).prob(id).ln(),
            _ if faults.contains(&Fault::Logits) => f64::from(whole.logit(id)) + 9.0,
            _ if faults.contains(&Fault::Processed) && temperature > 0.0 => {
                whole.filtered(&warm).prob(id).ln()
            }
            _ => whole.logprob(id),
        };
        let best = whole.best(count).into_iter();
        // as servers send them: f32
        best.map(|id| (id, f64::from(value(id) as f32))).collect()
    }

    fn vllm(&self, body: &Value, faults: &[Fault]) -> (u16, Value) {
        let vocab_size = self.decoder.vocab_size();
        let asked = body["logprobs"].as_i64().expect("a number");
        let count = usize::try_from(asked).unwrap_or(vocab_size);
        let most = faults.iter().find_map(|fault| match fault {
            Fault::Cap(most) => Some(*most),
            _ => None,
        });
        let most = most.unwrap_or(vocab_size);
        if count > most {
            let message = format!(
                "Requested sample logprobs of {count}, which is greater than max allowed: {most}"
            );
            return (
                400,
                json!({"error": {"message": message, "type": "BadRequestError", "code": 400}}),
            );
        }
        let prompts: Vec<Vec<u32>> =
            serde_json::from_value(body["prompt"].clone()).expect("lists of ids");
        let temperature = body["temperature"].as_f64().expect("a number");
        let choices = prompts.iter().enumerate().map(|(index, ids)| {
            let mut best = self.best(ids, count, faults, temperature);
            let chosen = match &body["allowed_token_ids"] {
                Value::Array(allowed) => allowed[0].as_u64().expect("an id") as u32,
                _ => best[0].0,
            };
            if faults.contains(&Fault::Fewer) {
                best.pop();
            }
            if faults.contains(&Fault::NoBest) {
                best.remove(0);
                best.insert(0, (chosen, -30.0));
            }
            // a map of one key a candidate: equal keys must come twice, which serde_json's own map cannot
            let key = |id: u32| match faults.contains(&Fault::TextKeys) {
                true => String::from_utf8_lossy(&self.bytes(id)).into_owned(),
                false => format!("token_id:{id}"),
            };
            let mut top = Map::new();
            for (id, logprob) in &best {
                top.insert(key(*id), json!(logprob));
            }
            let mut choice = json!({
                "index": index, "text": "", "finish_reason": "length", "token_ids": [chosen], "prompt_token_ids": ids,
                "logprobs": {"top_logprobs": [top]},
            });
            if !self.is_special(chosen) {
                choice["text"] = json!(String::from_utf8_lossy(&self.bytes(chosen)));
            }
            if self.checkpoint.stop_ids.contains(&chosen) && !faults.contains(&Fault::NoEnd) {
                choice["finish_reason"] = json!("stop");
            }
            if faults.contains(&Fault::NoIds) {
                choice["token_ids"] = Value::Null;
                choice["prompt_token_ids"] = Value::Null;
            }
            if faults.contains(&Fault::OtherPrompt) {
                choice["prompt_token_ids"] = json!([1, 2, 3]);
            }
            choice
        });
        // the order of the choices is not that of the prompts
        let mut choices: Vec<Value> = choices.collect();
        choices.reverse();
        (
            200,
            json!({"choices": choices, "system_fingerprint": "vllm-0.32.0-1fb99196"}),
        )
    }

    fn llama_cpp(&self, body: &Value, faults: &[Fault]) -> Value {
        let prompts: Vec<Vec<u32>> =
            serde_json::from_value(body["prompt"].clone()).expect("lists of ids");
        let forced = body["logit_bias"][0][0].as_u64().expect("an id") as u32;
        let count = body["n_probs"].as_u64().expect("a number") as usize;
        let temperature = body["temperature"].as_f64().expect("a number");
        let answers = prompts.iter().enumerate().map(|(index, ids)| {
            let best = self.best(ids, count, faults, temperature).into_iter();
            let candidates = best.map(|(id, logprob)| {
                // as the server has it: no name and no bytes for a control token, no text for a part of a character
                let bytes = match self.is_special(id) {
                    true => Vec::new(),
                    false => self.bytes(id),
                };
                let text = String::from_utf8(bytes.clone()).unwrap_or_default();
                json!({"id": id, "token": text, "bytes": bytes, "logprob": logprob})
            });
            let candidates: Vec<Value> = candidates.collect();
            let bytes = self.bytes(forced);
            // a token that is no whole character has no entry at all
            let is_whole = !self.is_special(forced) && String::from_utf8(bytes.clone()).is_ok();
            let entry = json!({"id": forced, "token": "", "bytes": bytes, "logprob": -9.0, "top_logprobs": candidates});
            let entries: Vec<Value> = [entry].into_iter().filter(|_| is_whole && count > 0).collect();
            let stop_type = if self.checkpoint.stop_ids.contains(&forced) { "eos" } else { "limit" };
            let content = if is_whole { String::from_utf8_lossy(&bytes) } else { "".into() };
            json!({
                "index": index, "content": content, "tokens": [forced], "stop_type": stop_type,
                "completion_probabilities": entries,
            })
        });
        let mut answers: Vec<Value> = answers.collect();
        match answers.len() {
            1 => answers.remove(0),
            _ => json!(answers),
        }
    }
}

/// Bytes in GPT-2's alphabet.
fn symbols(bytes: &[u8]) -> String {
    let is_plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others: Vec<u8> = (0..=255).filter(|&byte| !is_plain(byte)).collect();
    let symbol = |&byte: &u8| match others.iter().position(|&other| other == byte) {
        Some(place) => char::from_u32(256 + place as u32).expect("a letter"),
        None => char::from(byte),
    };
    bytes.iter().map(symbol).collect()
}
