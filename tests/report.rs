//! Records as a page: opened in a real browser, used by mouse and by keyboard, with hostile text in every place.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::browser::Browser;
use crate::program::{Program, Ran, fixture};

/// Text that does something wherever it is not text.
const MARKUP: &str = "</script></style><script>pwned=1;alert(1)</script><img src=//x.invalid/y onerror=pwned=1>\" onfocus=\"pwned=1\" autofocus='' {{ 7*7 }} &lt;b&gt; javascript:pwned=1 <!--";
/// As long, and harmless.
const HARMLESS: &str = "harmless";

/// Strings of a record that are no text.
const WORDS: [&str; 7] = [
    "stop", "length", "context", "same", "later", "earlier", "never",
];

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn sample_record(name: &str) -> Value {
    let text = std::fs::read(sample(name)).expect(name);
    serde_json::from_slice(&text).expect("a record")
}

/// Writes a record and returns the path of its page.
fn page_of(program: &Program, name: &str, record: &Value) -> PathBuf {
    program.write(&format!("{name}.json"), record.to_string());
    program.run(&["report", &format!("{name}.json")]).success();
    program.path(format!("{name}.html"))
}

/// Replaces every text of a record, and the bytes of every token.
fn replace_texts(value: &mut Value, text: &str) {
    match value {
        Value::String(string) if !WORDS.contains(&string.as_str()) => *string = text.to_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| replace_texts(item, text)),
        Value::Object(fields) => {
            for (key, field) in fields {
                match key.as_str() {
                    "bytes" => *field = text.as_bytes().into(),
                    _ => replace_texts(field, text),
                }
            }
        }
        _ => {}
    }
}

/// A record of both kinds of entry, all of whose texts are `text`.
fn record_of(text: &str) -> Value {
    let mut record = sample_record("sample_output_en/demo.json");
    let failed = serde_json::json!({"id": "x", "prompt": "x", "error": "x"});
    record["prompts"]
        .as_array_mut()
        .expect("a list")
        .push(failed);
    record["prompts"][0]["id"] = "x".into();
    record["prompts"][0]["system"] = "x".into();
    record["settings"]["system"] = "x".into();
    record["model"]["revision"] = "x".into();
    replace_texts(&mut record, text);
    record
}

#[test]
fn a_token_shows_its_candidates_by_mouse_and_by_keyboard() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let program = Program::new();
    let arguments = ["--model", "demo", "--html", "page.html"];
    let ran = program.run(&arguments).success();
    assert!(
        ran.stderr.ends_with("written to page.html\n"),
        "{}",
        ran.stderr
    );
    let record = program.only_record("results");
    let page = program.path("page.html");
    for scripts in [true, false] {
        if !scripts {
            browser.disable_scripts();
        }
        browser.resize(1000, 900);
        browser.open(&page);
        let open = "document.querySelector(':popover-open')?.id ?? null";
        browser.eventually(open, Value::Null);
        browser.click("button.t[popovertarget=s1p2t4]");
        browser.eventually(open, "s1p2t4");
        let card = browser.eval("document.querySelector(':popover-open').innerText");
        let card = card.as_str().expect("a text");
        let step = &record.done(1).greedy.steps[3];
        for candidate in &step.top_logprobs {
            assert!(card.contains(&candidate.token), "{card}");
            assert!(card.contains(&format!("{:.3}", candidate.prob)), "{card}");
        }
        let numbers = [
            format!("{} of 2,972", step.rank),
            step.mass_count.to_string(),
            format!("{:.2} bits", step.entropy_bits),
        ];
        for number in numbers {
            assert!(card.contains(&number), "no {number} in {card}");
        }
        // it lies below its token, within the window
        let place = browser.eval(
            "(() => { const card = document.querySelector(':popover-open').getBoundingClientRect(),
            token = document.querySelector('[popovertarget=s1p2t4]').getBoundingClientRect();
            return card.top >= token.bottom && card.top - token.bottom < 20 && card.right <= innerWidth; })()",
        );
        assert_eq!(place, true);
        browser.press("Escape");
        browser.eventually(open, Value::Null);

        // by keyboard alone, from the top
        browser.open(&page);
        let focused = "document.activeElement.matches('button.t')";
        let presses = (1..40).find(|_| {
            browser.press("Tab");
            browser.eval(focused) == true
        });
        assert!(presses.is_some(), "no token within 40 presses");
        let outline = browser.eval("getComputedStyle(document.activeElement).outlineStyle");
        assert_eq!(outline, "solid");
        browser.press("Enter");
        browser.eventually(open, "s1p1t1");
        browser.press("Escape");
        browser.eventually(open, Value::Null);
        browser.assert_quiet();
    }
}

#[test]
fn every_text_has_contrast_and_nothing_is_wider_than_a_phone() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let program = Program::new();
    let arguments = [
        "sample_output_en/smollm2-135m-instruct.json",
        "sample_output_en/temperature_step1_cpu.json",
        "sample_output/demo.json",
    ];
    let arguments = arguments.map(|name| sample(name).to_string_lossy().into_owned());
    let [a, b, c] = &arguments;
    program
        .run(&["report", a, b, c, "--out", "page.html"])
        .success();
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for width in [1000, 360] {
            browser.resize(width, 740);
            browser.open(&program.path("page.html"));
            browser.eval(
                "document.querySelectorAll('details').forEach(details => details.open = true)",
            );
            browser.click("button.t");
            browser.leave();
            let faint = browser.eval(include_str!("browser/contrast.js"));
            assert_eq!(faint, serde_json::json!([]), "{scheme}");
            let widest = browser.eval("document.documentElement.scrollWidth");
            assert_eq!(widest, width);
        }
    }
    let ids = "[...document.querySelectorAll('[id]')].map(element => element.id)";
    assert_eq!(
        browser.eval(&format!("new Set({ids}).size - {ids}.length")),
        0
    );
    let broken = browser.eval(
        "[...document.querySelectorAll('[popovertarget], [href], [aria-labelledby]')].filter(element =>
        !document.getElementById(element.getAttribute('popovertarget') ?? element.getAttribute('aria-labelledby') ?? element.getAttribute('href').slice(1))).length",
    );
    assert_eq!(broken, 0, "references that lead nowhere");
    // a level of headings is never left out
    let levels = browser.eval("[...document.querySelectorAll('h1, h2, h3, h4, h5')].map(heading => Number(heading.tagName[1]))");
    let levels: Vec<i64> = serde_json::from_value(levels).expect("numbers");
    assert!(
        levels.windows(2).all(|pair| pair[1] <= pair[0] + 1),
        "{levels:?}"
    );
    browser.assert_quiet();
}

#[test]
fn markup_in_a_record_is_text_wherever_it_stands() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let program = Program::new();
    let step1 = |text| {
        let mut record = sample_record("sample_output_en/temperature_step1_cpu.json");
        replace_texts(&mut record, text);
        record
    };
    for (name, hostile, harmless) in [
        ("run", record_of(MARKUP), record_of(HARMLESS)),
        ("step1", step1(MARKUP), step1(HARMLESS)),
    ] {
        let elements = "[...document.querySelectorAll('*')].map(element => element.tagName + ' ' + element.getAttributeNames())";
        browser.open(&page_of(&program, &format!("{name}-harmless"), &harmless));
        let expected = browser.eval(elements);
        browser.open(&page_of(&program, name, &hostile));
        assert_eq!(
            browser.eval(elements),
            expected,
            "other elements or attributes"
        );
        assert_eq!(browser.eval("typeof pwned"), "undefined");
        let text = browser.eval("document.body.textContent");
        assert!(text.as_str().is_some_and(|text| text.contains(MARKUP)));
        browser.assert_quiet();
    }
}

#[test]
fn the_policy_stops_what_is_not_in_the_page() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let program = Program::new();
    let page = page_of(&program, "page", &record_of(HARMLESS));
    let text = std::fs::read_to_string(&page).expect("the page");
    let planted = "<script>pwned=1</script><img src='data:image/gif;base64,AA=='><p style='color:red' onclick='pwned=1'></p></main>";
    std::fs::write(&page, text.replace("</main>", planted)).expect("the page");
    browser.open(&page);
    assert_eq!(browser.eval("typeof pwned"), "undefined");
    browser.click("p[onclick]");
    assert_eq!(browser.eval("typeof pwned"), "undefined");
    assert_eq!(
        browser.eval("document.querySelector('p[onclick]').style.color"),
        ""
    );
}

/// B44: letters of Arabic join only within one run of text.
#[test]
fn a_reply_from_right_to_left_is_one_run_of_text_in_its_direction() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let program = Program::new();
    let mut record = record_of("مرحبا");
    let reply = "مرحبا بالعالم: 12 (a)";
    record["prompts"][0]["greedy"]["text"] = reply.into();
    browser.open(&page_of(&program, "page", &record));
    let shown = browser.eval(
        "(() => { const reply = document.querySelector('.reply');
        return [reply.childNodes.length, reply.textContent, getComputedStyle(reply).direction, getComputedStyle(document.querySelector('.heat')).direction,
        getComputedStyle(document.querySelector('table')).direction]; })()",
    );
    assert_eq!(shown, serde_json::json!([1, reply, "rtl", "rtl", "ltr"]));
    browser.assert_quiet();
}

#[test]
fn fifty_prompts_are_closed_and_the_list_of_them_opens_each() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let program = Program::new();
    let mut record = sample_record("sample_output_en/smollm2-135m-instruct.json");
    let prompts = record["prompts"].as_array_mut().expect("a list");
    let one = prompts[1].clone();
    prompts.resize(50, one);
    browser.resize(1000, 900);
    browser.open(&page_of(&program, "page", &record));
    let open = "[...document.querySelectorAll('details.prompt')].map((prompt, index) => prompt.open ? index : -1).filter(index => index >= 0)";
    assert_eq!(browser.eval(open), serde_json::json!([0]));
    browser.click(".contents a[href='#s1p40']");
    browser.eventually(open, serde_json::json!([0, 39]));
    let top = browser.eval("document.getElementById('s1p40').getBoundingClientRect().top");
    assert!(
        (0.0..300.0).contains(&top.as_f64().expect("a number")),
        "{top}"
    );
    browser.assert_quiet();
}

#[test]
fn the_default_job_is_a_page_below_a_megabyte_and_a_half() {
    let program = Program::new();
    // no reply ends before 64 tokens: as large as it gets
    let arguments = [
        "--model",
        "demo",
        "--ignore-eos",
        "--quiet",
        "--html",
        "page.html",
    ];
    program.run(&arguments).success();
    let size = std::fs::metadata(program.path("page.html"))
        .expect("the page")
        .len();
    assert!(size < 1_500_000, "{size}");
}

#[test]
fn a_page_stands_beside_its_record_and_overwrites_nothing() {
    let program = Program::new();
    let model = fixture("smollm").to_string_lossy().into_owned();
    let run = [
        "--model",
        &model,
        "-p",
        "hi",
        "--samples",
        "1",
        "--max-new-tokens",
        "2",
        "--quiet",
    ];
    let with = |more: &[&str]| program.run(&[&run[..], more].concat());
    with(&["--out", "r.json"]).success();
    for name in ["r.html", "r_2.html"] {
        let ran = program.run(&["report", "r.json"]).success();
        assert_eq!(
            (ran.stdout.as_str(), ran.stderr.as_str()),
            ("", &*format!("written to {name}\n"))
        );
    }
    program
        .run(&["report", "r.json", "--out", "r.html"])
        .refused(1, &["r.html: exists already"]);
    with(&["--html", "r.html"]).refused(1, &["r.html: exists already"]);
    assert!(
        program.files("results").is_empty(),
        "refused before any work"
    );
    let page = std::fs::read_to_string(program.path("r.html")).expect("a page");
    let printed = program.run(&["report", "r.json", "--out", "-"]).success();
    assert_eq!(printed.stdout, page);
    let text = std::fs::read(program.path("r.json")).expect("the record");
    let piped = program
        .command(&["report", "-", "--out", "-"])
        .stdin(std::fs::File::open(program.path("r.json")).expect("the record"))
        .output();
    assert_eq!(Ran::from(piped.expect("it runs")).success().stdout, page);
    with(&["--json", "--html", "j.html"]).success();
    let json = program.run(&["report", "r.json", "--out", "-"]).success();
    assert_eq!(
        std::fs::read_to_string(program.path("j.html")).expect("a page"),
        json.stdout
    );
    program.write("other.json", &text[..text.len() / 2]);
    program
        .run(&["report", "other.json"])
        .refused(1, &["other.json"]);
    assert!(!program.path("other.html").exists());
}

/// The picture of a page in README.md; with LOGPROBS_UPDATE_PICTURE set it is taken anew.
#[test]
fn the_picture_in_the_readme_is_one_of_a_page_and_small() {
    let picture = sample("sample_output_en/page.png");
    if std::env::var_os("LOGPROBS_UPDATE_PICTURE").is_some() {
        let mut browser = Browser::start().expect("Chromium is needed");
        browser.prefer("light");
        browser.resize(960, 850);
        browser.open(&sample("sample_output_en/smollm2-135m-instruct.html"));
        browser.click("[popovertarget=s1p2t37]");
        browser.eval("document.querySelectorAll('.prompt')[1].scrollIntoView()");
        browser.leave();
        std::fs::write(&picture, browser.screenshot()).expect("the picture is ours");
    }
    let pixels = std::fs::read(picture).expect("a picture");
    assert!(pixels.starts_with(b"\x89PNG\r\n\x1a\n"));
    assert!(pixels.len() < 200_000, "{}", pixels.len());
}

/// The arguments of `temperature-step1` on a model whose first candidates are Chinese.
const STEP1: [&str; 4] = ["temperature-step1", "--model", "demo", "--quiet"];

#[test]
fn the_chart_of_the_first_step_is_a_drawing_that_a_browser_shows() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let program = Program::new();
    let with = |more: &[&str]| program.run(&[&STEP1[..], more].concat());
    with(&["--svg", "c.svg", "--out", "step1.json"]).success();
    with(&["--svg", "c.svg"]).refused(1, &["c.svg: exists already"]);
    assert!(
        program.files("sample_output").is_empty(),
        "refused before any work"
    );
    let record: Value =
        serde_json::from_slice(&std::fs::read(program.path("step1.json")).expect("the record"))
            .expect("JSON");
    browser.open(&program.path("c.svg"));
    let shown = browser.eval("[document.documentElement.tagName, document.querySelectorAll('rect').length, document.documentElement.textContent]");
    let bars = (record["candidates"].as_array().expect("a list").len() + 1) * 3 + 1;
    assert_eq!((&shown[0], &shown[1]), (&"svg".into(), &bars.into()));
    let text = shown[2].as_str().expect("a text");
    for part in [
        "T = 0.5",
        "T = 1.5",
        "rest",
        record["candidates"][0]["token"].as_str().expect("a token"),
    ] {
        assert!(text.contains(part), "no {part} in {text}");
    }
    // nothing sticks out
    let out = browser.eval("(() => { const page = document.documentElement.getBoundingClientRect();
        return [...document.querySelectorAll('text')].filter(text => { const box = text.getBoundingClientRect(); return box.left < 0 || box.right > page.right || box.bottom > page.bottom; }).length; })()");
    assert_eq!(out, 0);
    browser.assert_quiet();
}

#[cfg(feature = "png")]
#[test]
fn pixels_are_drawn_where_fonts_have_its_text_and_refused_where_not() {
    let program = Program::new();
    let ran = program.run(&[&STEP1[..], &["--png", "c.png"]].concat());
    if ran.code == Some(0) {
        let pixels = std::fs::read(program.path("c.png")).expect("the picture");
        assert!(pixels.starts_with(b"\x89PNG\r\n\x1a\n") && pixels.len() > 5000);
    } else {
        assert!(
            std::env::var_os("CI").is_none(),
            "a font for Chinese is needed"
        );
        ran.refused(1, &["no font", "--svg"]);
        assert!(!program.path("c.png").exists());
    }
    // a machine without any font
    let mut command = program.command(&[&STEP1[..], &["--png", "d.png"]].concat());
    let config = format!(
        "<fontconfig><dir>{}</dir></fontconfig>",
        program.path("none").display()
    );
    let config = program.write("fonts.conf", config);
    command.env("FONTCONFIG_FILE", config);
    Ran::of(&mut command).refused(1, &["no font was found", "--svg"]);
    assert!(!program.path("d.png").exists());
}
