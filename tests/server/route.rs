//! Proxies and certificates: what goes through a proxy, what it is shown, and who is believed.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex};

use super::stand_in::{Kind, StandIn};
use super::{GREEDY, SHORT};
use crate::program::{Program, Ran, fixture};

/// A proxy that connects as it is told, or answers with a status alone. It runs until the tests end.
struct Proxy {
    address: String,
    /// What it was sent before the connection was there.
    heads: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    fn new(status: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let shared = heads.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let shared = shared.clone();
                std::thread::spawn(move || pass(connection, status, &shared));
            }
        });
        Self { address, heads }
    }

    fn take_heads(&self) -> Vec<String> {
        std::mem::take(&mut self.heads.lock().expect("no test panics inside"))
    }
}

fn pass(mut client: TcpStream, status: u16, heads: &Mutex<Vec<String>>) -> std::io::Result<()> {
    // the client sends nothing more before it is answered
    let mut reader = BufReader::new(client.try_clone()?);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    heads.lock().expect("no test panics inside").push(head);
    write!(
        client,
        "HTTP/1.1 {status} Status\r\nContent-Length: 0\r\n\r\n"
    )?;
    if status != 200 {
        return Ok(());
    }
    let mut server = TcpStream::connect(target)?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    let up = std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    std::io::copy(&mut server, &mut client)?;
    client.shutdown(std::net::Shutdown::Both)?;
    up.join().expect("it copies").map(|_| ())
}

/// A greedy run on a server, with a key and with these variables.
fn ask(program: &Program, url: &str, variables: &[(&str, &str)]) -> Ran {
    let line = [&["--json", "--server", url], &SHORT[..], &GREEDY].concat();
    let mut command: Command = program.command(&line);
    command.env("LOGPROBS_API_KEY", "s3cret");
    Ran::of(command.envs(variables.iter().copied()))
}

#[test]
fn a_proxy_connects_to_the_server_and_is_shown_its_own_password_alone() {
    let program = Program::new();
    let authority = fixture("tls").join("authority.pem");
    let authority = authority.to_str().expect("UTF-8");
    for (server, name) in [
        (StandIn::new(Kind::Vllm), "http_proxy"),
        (StandIn::new(Kind::LlamaCpp), "ALL_PROXY"),
        (StandIn::secure(Kind::Vllm), "HTTPS_PROXY"),
    ] {
        let proxy = Proxy::new(200);
        let place = format!("http://me:pa%20ss@{}", proxy.address);
        let variables = [(name, place.as_str()), ("SSL_CERT_FILE", authority)];
        let ran = ask(&program, &server.url(), &variables).success();
        let heads = proxy.take_heads();
        assert_eq!(heads.len(), server.take_requests().len());
        let (_, target) = server
            .url()
            .split_once("://")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .expect("an address");
        for head in heads {
            assert!(
                head.starts_with(&format!("CONNECT {target} HTTP/1.1\r\n")),
                "{head}"
            );
            // me:pa ss
            assert!(
                head.contains("Proxy-Authorization: Basic bWU6cGEgc3M=\r\n"),
                "{head}"
            );
            assert!(!head.contains("s3cret"), "{head}");
        }
        for text in [&ran.stdout, &ran.stderr] {
            assert!(
                !text.contains("pa%20ss") && !text.contains(&proxy.address),
                "{text}"
            );
        }
        let exempt = [&variables[..], &[("NO_PROXY", "example.org, 127.0.0.0/8")]].concat();
        ask(&program, &server.url(), &exempt).success();
        assert_eq!(proxy.take_heads().len(), 0);
    }
}

#[test]
fn a_proxy_that_does_not_connect_is_named_without_its_password() {
    let program = Program::new();
    let server = StandIn::new(Kind::Vllm);
    for (status, expected) in [
        (
            407,
            "wants another name and password: status 407 (give them in its variable",
        ),
        (403, "status 403 (it must allow CONNECT to this port"),
        (502, "status 502 (is the server running?)"),
    ] {
        let proxy = Proxy::new(status);
        let place = format!("http://me:pass@{}", proxy.address);
        let ran = ask(&program, &server.url(), &[("http_proxy", &place)]);
        let named = format!("the proxy http://{}", proxy.address);
        let said = ran.refused(1, &[&named, expected]);
        assert!(
            !said.contains("pass@") && !said.contains("s3cret"),
            "{said}"
        );
    }
    // no service has this port
    let ran = ask(
        &program,
        &server.url(),
        &[("http_proxy", "http://me:pass@127.0.0.1:1")],
    );
    let said = ran.refused(
        1,
        &[
            "(through the proxy http://127.0.0.1:1)",
            "(is the proxy running?)",
        ],
    );
    assert!(!said.contains("pass@"), "{said}");
    let ran = ask(
        &program,
        &server.url(),
        &[("all_proxy", "socks5://me:pass@127.0.0.1:1")],
    );
    let said = ran.refused(
        1,
        &["all_proxy names no proxy that can be used (expected http://HOST:PORT"],
    );
    assert!(!said.contains("pass@"), "{said}");
    assert_eq!(server.take_requests().len(), 0);
}

#[test]
fn a_server_is_believed_by_its_certificate_alone() {
    let program = Program::new();
    let server = StandIn::secure(Kind::Vllm);
    let ran = ask(&program, &server.url(), &[]);
    ran.refused(
        1,
        &[&format!(
            "the certificate of {} is signed by an authority that is not known (expected a public one, or those of the PEM file \
             that SSL_CERT_FILE names)",
            server.url()
        )],
    );
    assert_eq!(server.take_requests().len(), 0);
    let folder = fixture("tls");
    let file = |name: &str| folder.join(name).to_str().expect("UTF-8").to_owned();
    let trusted = [("SSL_CERT_FILE", &*file("authority.pem"))];
    ask(&program, &server.url(), &trusted).success();
    // the certificate is for 127.0.0.1
    let elsewhere = server.url().replace("127.0.0.1", "localhost");
    ask(&program, &elsewhere, &trusted).refused(1, &["is not valid: "]);
    for (name, expected) in [
        ("server.key", "holds no certificate (expected PEM"),
        ("nothing.pem", "cannot be read"),
    ] {
        let ran = ask(&program, &server.url(), &[("SSL_CERT_FILE", &*file(name))]);
        ran.refused(1, &["SSL_CERT_FILE: ", expected]);
    }
    // a server without TLS
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let answer = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("the program");
        write!(client, "HTTP/1.1 400 Bad Request\r\n\r\n")
    });
    let ran = ask(&program, &format!("https://{address}"), &trusted);
    ran.refused(
        1,
        &[
            "does not speak TLS as expected",
            "(is it http:// in place of https://?)",
        ],
    );
    answer.join().expect("it answers").expect("it was sent");
}
