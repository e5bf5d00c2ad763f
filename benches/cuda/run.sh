#!/usr/bin/env bash
# On a machine with a CUDA device: holds every model family against its references there, then times a job on a random
# checkpoint of Qwen3.5-0.8B's true size, in bf16 and in f32. Needs no download and no Python.
#
#   benches/cuda/run.sh             # the compiler is that of CUDA_ROOT, or the one that build.sh installed
set -euo pipefail
cd "$(dirname "$0")/../.."

nvidia-smi --query-gpu=name,compute_cap,driver_version --format=csv
target=${CARGO_TARGET_DIR:-target}
tools=$(echo "$PWD"/target/cuda-tools/lib/python3*/site-packages/nvidia/cu13)
[ -n "${CUDA_ROOT:-}" ] || [ ! -d "$tools" ] || export CUDA_ROOT=$tools
if [ -n "${CUDA_ROOT:-}" ]; then
  export PATH=$CUDA_ROOT/bin:$PATH
fi
CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)}
export CUDA_COMPUTE_CAP

cargo test --locked --release --features cuda --test main device:: -- --nocapture

model=$target/random-0.8b
[ -d "$model" ] || cargo bench --locked --bench make_model -- --size 0.8b --tokenizer tests/fixtures/qwen35-real --out "$model"
cargo build --locked --release --features cuda
for dtype in bf16 f32; do
  echo "two prompts, 26 runs of 60 tokens each, $dtype:"
  time "$target/release/logprobs" --model "$model" --device cuda --dtype "$dtype" --ignore-eos --max-new-tokens 60 --raw \
    -p 'What is the capital of France? Answer in one sentence.' -p 'Recommend an independent coffee shop in Seattle.' \
    --json > /dev/null
done
