//! Ctrl-C and SIGTERM as a question that long work asks between its steps.
//!
//! The first signal asks for an orderly end: what is complete is written. A second one ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether the user wants the program to end.
#[derive(Debug, Clone, Default)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Listens to the signals from now on.
    ///
    /// # Errors
    /// When the system does not let it.
    pub fn listen() -> Result<Self> {
        let interrupt = Self::default();
        let is_second = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let registered = signal_hook::flag::register_conditional_shutdown(
                signal,
                exit_code(signal),
                is_second.clone(),
            )
            .and_then(|_| signal_hook::flag::register(signal, is_second.clone()))
            .and_then(|_| {
                signal_hook::flag::register_usize(signal, interrupt.signal.clone(), signal as usize)
            });
            registered.context("signals cannot be handled")?;
        }
        Ok(interrupt)
    }

    /// Returns the exit code of the signal that came: 130 for ctrl-C, 143 for SIGTERM.
    pub fn exit_code(&self) -> Option<u8> {
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(exit_code(signal as i32) as u8),
        }
    }
}

/// By the shells' convention.
fn exit_code(signal: i32) -> i32 {
    128 + signal
}
