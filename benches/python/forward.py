#!/usr/bin/env python3
"""Times transformers' forward pass alone: prefill of one row, then a step of several rows. Prints one JSON object.

usage: forward.py MODEL [--dtype bfloat16] [--threads 2] [--prefill 24,512,2048] [--rows 1,5,25] [--steps 8]
"""
import argparse, json, resource, statistics, time

import torch
from transformers import AutoModelForCausalLM


def numbers(text):
    return [int(part) for part in text.split(",") if part]


parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--prefill", type=numbers, default=[24, 512, 2048])
parser.add_argument("--rows", type=numbers, default=[1, 5, 25])
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--repeats", type=int, default=3)
args = parser.parse_args()

torch.set_num_threads(args.threads)
torch.manual_seed(1)
start = time.perf_counter()
model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
result = {"dtype": args.dtype, "threads": args.threads, "load_s": time.perf_counter() - start, "prefill": {}, "step": {}}


def timed(call):
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


with torch.inference_mode():
    for tokens in args.prefill:
        ids = torch.randint(0, model.config.vocab_size, (1, tokens))
        prefill = lambda: model(ids, use_cache=True, logits_to_keep=1)
        if tokens < 1000:
            prefill()  # the first call of a shape also sets up what later ones reuse
        result["prefill"][tokens] = statistics.median(timed(prefill)[0] for _ in range(args.repeats))
    for rows in args.rows:
        ids = torch.randint(0, model.config.vocab_size, (rows, 24))
        output = model(ids, use_cache=True, logits_to_keep=1)
        memory = output.past_key_values
        times = []
        for _ in range(args.steps + 1):
            token = output.logits[:, -1].argmax(-1, keepdim=True)
            seconds, output = timed(lambda: model(token, past_key_values=memory, use_cache=True))
            times.append(seconds)
        result["step"][rows] = statistics.median(times[1:])
result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(result))
