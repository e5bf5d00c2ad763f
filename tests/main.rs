//! One binary for all integration tests, so that candle links once.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod amx;
mod audit;
mod batch;
mod benches;
#[cfg(all(unix, feature = "demo"))]
mod browser;
mod check;
mod checkpoint;
mod command;
mod compare;
mod context;
mod crafted;
#[cfg(feature = "demo")]
mod demo;
mod device;
mod grid;
mod hub;
mod parity;
mod parting;
mod program;
mod qwen35_2b;
#[cfg(unix)]
mod readme;
mod render;
#[cfg(all(unix, feature = "demo"))]
mod report;
mod reports;
mod resume;
mod rounding;
mod same_bits;
mod samples;
mod schema;
mod score;
mod server;
mod smollm;
mod softmax;
mod tokens;
