#!/usr/bin/env python3
"""Does the benchmark's job with transformers' generate(), and prints one JSON object.

The job: for every prompt a greedy reply with the probabilities of each step (softmax, top 5, how many candidates hold 90 %),
then samples at temperatures 0.3, 0.7, 1.0, 1.5 and at 1.0 with top_p 0.9, each token with its raw probability.

  --per-call 1   one generate() a sample: the obvious script
  --per-call 5   num_return_sequences=5: the careful one

--settings and --calls cut it down: one prompt, its greedy part once, and `--calls` calls for each of the last settings (at
least 2). `full_s` scales what was timed to 2 prompts x (1 greedy + 5 settings x 5 samples); `timed_s` is what really ran.

usage: job.py MODEL [--per-call 5] [--dtype bfloat16] [--threads 2] [--new 60] [--settings 5] [--calls 1]
"""
import argparse, json, resource, time

import torch
from transformers import AutoModelForCausalLM

PROMPTS, SAMPLES = 2, 5
SETTINGS = [(0.3, 1.0), (0.7, 1.0), (1.0, 1.0), (1.5, 1.0), (1.0, 0.9)]

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--per-call", type=int, default=5)
parser.add_argument("--dtype", default="bfloat16")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--new", type=int, default=60)
parser.add_argument("--settings", type=int, default=5, choices=range(2, 6))
parser.add_argument("--calls", type=int, default=1)
parser.add_argument("--prompt-tokens", type=int, default=24)
args = parser.parse_args()

torch.set_num_threads(args.threads)
torch.manual_seed(1)
start = time.perf_counter()
model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).eval()
load_s = time.perf_counter() - start
ids = torch.randint(0, model.config.vocab_size, (1, args.prompt_tokens))
always = dict(
    attention_mask=torch.ones_like(ids), max_new_tokens=args.new, min_new_tokens=args.new,
    return_dict_in_generate=True, output_logits=True, pad_token_id=0,
)


def greedy():
    output = model.generate(ids, do_sample=False, **always)
    steps = []
    for logits in output.logits:
        probs = torch.softmax(logits[0].float(), -1)
        top = probs.topk(5)
        falling, _ = probs.sort(descending=True)
        count = int((falling.cumsum(0) < 0.9).sum()) + 1
        steps.append((top.indices.tolist(), top.values.tolist(), count))
    return steps


def sample(temperature, top_p):
    output = model.generate(
        ids, do_sample=True, temperature=temperature, top_p=top_p, top_k=0, num_return_sequences=args.per_call, **always
    )
    steps = []
    for index, logits in enumerate(output.logits):
        probs = torch.softmax(logits.float(), -1)
        tokens = output.sequences[:, ids.shape[1] + index]
        steps.append(probs.gather(1, tokens[:, None])[:, 0].tolist())
    return steps


def timed(call):
    start = time.perf_counter()
    steps = call()
    assert len(steps) == args.new, f"a reply of {len(steps)} tokens (expected {args.new}: does the model end replies?)"
    return time.perf_counter() - start


with torch.inference_mode():
    greedy_s = timed(greedy)
    # the last setting filters, the others cost the same: one of them stands for those that are left out
    chosen = SETTINGS[len(SETTINGS) - args.settings :]
    calls = [sum(timed(lambda: sample(*setting)) for _ in range(args.calls)) for setting in chosen]
plain, nucleus = calls[:-1], calls[-1]
setting_s = (sum(plain) / len(plain) * (len(SETTINGS) - 1) + nucleus) / args.calls
print(json.dumps({
    "per_call": args.per_call, "dtype": args.dtype, "threads": args.threads, "load_s": load_s,
    "greedy_s": greedy_s, "calls_s": calls, "timed_s": greedy_s + sum(calls),
    "full_s": PROMPTS * (greedy_s + SAMPLES / args.per_call * setting_s),
    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
