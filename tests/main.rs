//! One binary for all integration tests, so that candle links once.

mod checkpoint;
mod crafted;
mod hub;
mod parity;
mod qwen35_2b;
mod smollm;
