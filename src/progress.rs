//! Progress bars on stderr: on a terminal only, never among the data.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Returns a bar of `len` steps; it shows itself on a terminal, and not at all when `quiet`.
pub fn bar(message: &str, len: u64, quiet: bool) -> ProgressBar {
    let target = match quiet {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let style = ProgressStyle::with_template("{msg} {wide_bar:.dim} {pos}/{len} {elapsed}")
        .expect("the template is a constant")
        .progress_chars("━╸─");
    let bar = ProgressBar::with_draw_target(Some(len), target)
        .with_style(style)
        .with_message(message.to_owned());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
