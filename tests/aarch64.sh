#!/usr/bin/env bash
# Usage: aarch64.sh
# Builds the program and its tests for aarch64 on another machine, runs them in an emulator (QEMU), and holds the records that they make
# against those of the program built for this machine, byte for byte. An emulator says nothing of speed.
# Needs Rust, a linker for aarch64 and the emulator. On Debian and Ubuntu:
#   rustup target add aarch64-unknown-linux-gnu
#   apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static
set -euo pipefail
cd "$(dirname "$0")/.."

architecture=aarch64-unknown-linux-gnu
sysroot=${LOGPROBS_SYSROOT:-/usr/aarch64-linux-gnu}

fail() { echo "aarch64.sh: $*" >&2; exit 1; }
[ "$(uname -m)" != aarch64 ] || fail "this machine is one: cargo test --locked does it all"
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || fail "no emulator: apt install qemu-user-static"
linker=$(command -v aarch64-linux-gnu-gcc) || fail "no linker: apt install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
[ -e "$sysroot/lib/ld-linux-aarch64.so.1" ] || fail "no libraries in $sysroot (LOGPROBS_SYSROOT names another folder)"
[ -d "$(rustc --print target-libdir --target $architecture)" ] || fail "no standard library: rustup target add $architecture"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$linker
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -L $sysroot"

cargo test --locked --target $architecture --lib
# left out: a real model, which takes too long here, and tests that start the program, which the emulator cannot do
cargo test --locked --target $architecture --test main -- same_bits:: parity:: \
  --skip server:: --skip real_model --skip whatever_computes --skip by_name

cargo build --locked
cargo build --locked --target $architecture
target=${CARGO_TARGET_DIR:-target}
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

# record INSTRUCTIONS COMMAND…: the record that a program makes of the model with these kernels
record() { LOGPROBS_ISA=$1 "${@:2}" --model "$model" --max-new-tokens 24 --quiet --json; }

for model in demo tests/fixtures/{llama,qwen2,qwen3,qwen35,gguf/smollm-q8_0.gguf}; do
  record portable "$target/debug/logprobs" > "$folder/here.json"
  for instructions in neon portable; do
    record $instructions "$qemu" -L "$sysroot" "$target/$architecture/debug/logprobs" > "$folder/there.json"
    cmp "$folder/here.json" "$folder/there.json" || fail "$model: the record differs with LOGPROBS_ISA=$instructions"
  done
  echo "$model: the same record, $(wc --bytes < "$folder/here.json") bytes"
done
