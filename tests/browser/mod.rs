//! Chromium without a window, driven through the DevTools protocol over two pipes: JSON messages with a zero byte after each.
//!
//! Where there is no Chromium, tests say that they were skipped; with CI set, that is a failure.

#![allow(clippy::print_stderr, reason = "a skipped test is worth seeing")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long an answer may take on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pictures of a page until it must have done what it was asked to.
const MOST_PICTURES: usize = 100;

/// Starts Chromium with the protocol on file descriptors 3 and 4, which are this test's pipes; arguments are the profile's folder.
const START: &str = r#"
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" > /dev/null; then
    exec "$name" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars \
      --user-data-dir="$0" --remote-debugging-pipe about:blank 3<&0 4>&1 0< /dev/null 1> /dev/null 2>&1
  fi
done
exit 1
"#;

/// A page in a browser.
pub(crate) struct Browser {
    process: Child,
    orders: ChildStdin,
    messages: Receiver<Value>,
    session: Option<String>,
    last_id: u64,
    /// What happened since the page was opened.
    events: Vec<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Returns a browser with an empty page, or `None` (said on stderr) where there is none on this machine.
    pub(crate) fn start() -> Option<Self> {
        let profile = tempfile::tempdir().expect("a temporary folder");
        let mut process = Command::new("sh")
            .args(["-c", START])
            .arg(profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell starts");
        let orders = process.stdin.take().expect("a pipe");
        let answers = BufReader::new(process.stdout.take().expect("a pipe"));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in answers.split(0).map_while(Result::ok) {
                let message = serde_json::from_slice(&message).expect("the protocol is JSON");
                if sender.send(message).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self {
            process,
            orders,
            messages,
            session: None,
            last_id: 0,
            events: Vec::new(),
            _profile: profile,
        };
        let Some(target) = browser.try_call("Target.createTarget", json!({"url": "about:blank"}))
        else {
            assert!(std::env::var_os("CI").is_none(), "Chromium is needed");
            eprintln!("skipped: there is no Chromium on this machine");
            return None;
        };
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", target);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Network", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Opens a file and waits until it is complete.
    pub(crate) fn open(&mut self, path: &Path) {
        self.events.clear();
        let url = format!("file://{}", path.display());
        let answer = self.call("Page.navigate", json!({"url": url}));
        assert!(answer.get("errorText").is_none(), "{answer}");
        while !self
            .events
            .iter()
            .any(|e| e["method"] == "Page.loadEventFired")
        {
            let message = self.next().expect("the browser goes on");
            self.events.push(message);
        }
    }

    /// Returns what a JavaScript expression is worth in the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let expression = json!({"expression": expression, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", expression);
        assert!(answer.get("exceptionDetails").is_none(), "{answer}");
        answer["result"]["value"].clone()
    }

    /// Waits, a picture at a time, until a JavaScript expression is worth what is expected.
    pub(crate) fn eventually(&mut self, expression: &str, expected: impl Into<Value>) {
        let expected = expected.into();
        let mut found = self.eval(expression);
        for _ in 0..MOST_PICTURES {
            if found == expected {
                break;
            }
            self.screenshot();
            found = self.eval(expression);
        }
        assert_eq!(found, expected, "{expression}");
    }

    /// Clicks on the middle of the first element that `selector` finds.
    pub(crate) fn click(&mut self, selector: &str) {
        let find = format!(
            "(() => {{ const element = document.querySelector({}); element.scrollIntoView({{block: 'center'}});
            const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
            json!(selector)
        );
        // what comes into view is laid out with the next picture, and moves what is below it
        let mut place = Value::Null;
        let is_still = (0..MOST_PICTURES).any(|_| {
            self.screenshot();
            let before = std::mem::replace(&mut place, self.eval(&find));
            before == place
        });
        assert!(is_still, "{selector} does not come to rest");
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Takes the mouse into a corner, where it points at nothing.
    pub(crate) fn leave(&mut self) {
        let event = json!({"type": "mouseMoved", "x": 1, "y": 1});
        self.call("Input.dispatchMouseEvent", event);
    }

    /// Presses a key: `Tab`, `Enter` or `Escape`.
    pub(crate) fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            _ => panic!("{key}"),
        };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text});
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Makes the window so large, in CSS pixels.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Asks for `light` or `dark` colours.
    pub(crate) fn prefer(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Lets no page run scripts from now on.
    pub(crate) fn disable_scripts(&mut self) {
        self.call(
            "Emulation.setScriptExecutionDisabled",
            json!({"value": true}),
        );
    }

    /// Returns a picture of the window (PNG).
    pub(crate) fn screenshot(&mut self) -> Vec<u8> {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"}));
        let picture = picture["data"].as_str().expect("a picture");
        BASE64_STANDARD.decode(picture).expect("base64")
    }

    /// Asserts that the page made no request but for itself, ran into no error, broke no policy and said nothing.
    pub(crate) fn assert_quiet(&mut self) {
        // what is still under way comes before the answer
        self.eval("0");
        let is = |event: &&Value, method: &str| event["method"] == method;
        let requests = self.events.iter();
        let requests = requests.filter(|event| is(event, "Network.requestWillBeSent"));
        assert_eq!(requests.count(), 1, "{:#?}", self.events);
        for method in [
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
        ] {
            let said = self.events.iter().find(|event| is(event, method));
            assert_eq!(said, None);
        }
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        let answer = self.try_call(method, parameters);
        answer.unwrap_or_else(|| panic!("{method}: the browser is gone"))
    }

    /// Gives an order and returns its answer; `None` when the browser is gone.
    fn try_call(&mut self, method: &str, parameters: Value) -> Option<Value> {
        self.last_id += 1;
        let mut order = json!({"id": self.last_id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            order["sessionId"] = json!(session);
        }
        write!(self.orders, "{order}\0").ok()?;
        loop {
            let mut message = self.next()?;
            if message["id"] == self.last_id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return Some(message["result"].take());
            }
            self.events.push(message);
        }
    }

    fn next(&mut self) -> Option<Value> {
        use std::sync::mpsc::RecvTimeoutError;
        match self.messages.recv_timeout(PATIENCE) {
            Ok(message) => {
                let opens = message["method"] == "Page.javascriptDialogOpening";
                assert!(!opens, "a dialog: {message}");
                Some(message)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no answer from the browser"),
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // whoever is gone already need not be told
        let _ = write!(
            self.orders,
            "{}\0",
            json!({"id": 0, "method": "Browser.close"})
        );
        let is_closed = || {
            let gone = std::iter::repeat_with(|| self.messages.recv_timeout(PATIENCE));
            gone.take_while(Result::is_ok).count()
        };
        is_closed();
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
