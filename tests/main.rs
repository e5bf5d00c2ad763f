//! One binary for all integration tests, so that candle links once.

mod checkpoint;
mod crafted;
mod exact;
mod hub;
mod parity;
mod smollm;
