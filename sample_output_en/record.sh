#!/usr/bin/env bash
# Makes every recorded file anew, all settings at their defaults: in this folder the two English prompts on
# SmolLM2-135M-Instruct and on the built-in demo, in sample_output the two Chinese ones on the demo. page.png is a picture of
# the page: LOGPROBS_UPDATE_PICTURE=1 cargo test --locked picture. Give the program's path to skip the build: record.sh target/release/logprobs
set -euo pipefail
cd "$(dirname "$0")/.."

fact='What is the capital of France? Answer in one sentence.'
detail='Recommend an independent coffee shop in Seattle with its name and street address, in one sentence.'
out=sample_output_en
name=smollm2-135m-instruct

logprobs=${1:-${CARGO_TARGET_DIR:-target}/release/logprobs}
if [ $# -eq 0 ]; then cargo build --release --locked; fi
model=$(tests/fixtures/get-smollm2.sh)

# neither a record nor a page is overwritten; a wide terminal keeps all runners-up in the text
rm -f "$out/$name.json" "$out/$name.html" "$out/demo.json" sample_output/demo.json
export COLUMNS=9999 NO_COLOR=1
"$logprobs" --model "$model" --prompt "$fact" --prompt "$detail" --device cpu --out "$out/$name.json" > "$out/$name.txt"
"$logprobs" temperature-step1 --model "$model" --prompt "$fact" --device cpu --out "$out" > /dev/null
"$logprobs" report "$out/$name.json" "$out/temperature_step1_cpu.json" --out "$out/$name.html"

"$logprobs" --model demo --prompt "$fact" --prompt "$detail" --device cpu --out "$out/demo.json" > "$out/demo.txt"
"$logprobs" --model demo --device cpu --out sample_output/demo.json > sample_output/demo.txt
"$logprobs" temperature-step1 --model demo --device cpu > /dev/null
