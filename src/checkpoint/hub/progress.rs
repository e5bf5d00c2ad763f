//! How a transfer is shown: one bar on stderr, which goes when it is done, or nothing.

use hf_hub::api::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// A bar for one file; clones are the same bar.
#[derive(Clone)]
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(is_shown: bool) -> Self {
        Self(match is_shown {
            true => ProgressBar::no_length(),
            false => ProgressBar::hidden(),
        })
    }
}

impl Progress for Bar {
    fn init(&mut self, size: usize, message: &str) {
        let template = "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style);
        }
        // A bar that was finished does not draw again without it.
        self.0.reset();
        self.0.set_message(message.to_owned());
        self.0.set_length(size as u64);
    }

    fn update(&mut self, size: usize) {
        self.0.inc(size as u64);
    }

    fn finish(&mut self) {
        self.0.finish_and_clear();
    }
}
