#!/usr/bin/env bash
# Builds the program with --features cuda, on a machine that needs neither a GPU nor a CUDA toolkit: NVIDIA's compiler comes
# as Python wheels into a folder under target. Takes half an hour and more on two cores, of which `check` is a third.
#
#   benches/cuda/build.sh          # checks the types of program and tests, then builds both in release mode
#   benches/cuda/build.sh check    # checks the types only
#
# CUDA_COMPUTE_CAP: the compute capability to build for, without its dot [default: 80; that of an H100 or H200 is 90].
# A CUDA toolkit of one's own is taken where CUDA_ROOT names it.
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-target}
if [ -z "${CUDA_ROOT:-}" ]; then
  tools=$PWD/target/cuda-tools
  [ -x "$tools/bin/pip" ] || python3 -m venv "$tools"
  # newer compilers than 13.0 are refused by the cudarc that candle uses
  "$tools/bin/pip" install --quiet 'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*' \
    'nvidia-cuda-crt==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cublas==13.0.*' 'nvidia-curand==10.4.*'
  CUDA_ROOT=$(echo "$tools"/lib/python3*/site-packages/nvidia/cu13)
fi
export CUDA_ROOT CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-80}
export PATH=$CUDA_ROOT/bin:$PATH
nvcc --version | sed -n 4p

# What the linker wants lies in the wheels under other names, and the driver's library only where a driver is: one whose functions do
# nothing stands in for it, and is not what the program finds when it runs.
if [ -n "${tools:-}" ]; then
  links=$tools/links
  mkdir -p "$links"
  for library in cublas cublasLt cudart curand nvrtc; do
    ln -sf "$(echo "$CUDA_ROOT"/lib/lib$library.so.[0-9]*)" "$links/lib$library.so"
  done
  cudarc=$(cargo metadata --locked --features cuda --filter-platform "$(rustc --print host-tuple)" --format-version 1 | python3 -c 'import json, sys
print(*(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "cudarc"))')
  grep -rhoE 'fn cu[A-Z][A-Za-z0-9_]*' "${cudarc%/*}/src/driver/sys" | sort -u | sed 's/fn \(.*\)/void \1(void) {}/' > "$links/cuda.c"
  cc -w -shared -Wl,-soname,libcuda.so.1 -o "$links/libcuda.so" "$links/cuda.c"
  export LIBRARY_PATH=$links
fi

cargo check --locked --features cuda --all-targets
[ "${1:-}" = check ] && exit
cargo build --locked --release --features cuda
cargo test --locked --release --features cuda --no-run
echo "built for compute capability $CUDA_COMPUTE_CAP: $target/release/logprobs"
