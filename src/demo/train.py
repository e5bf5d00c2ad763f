"""Trains the demo model and writes its checkpoint beside this file.

    pip install -r requirements.txt
    python train.py            # 12 minutes on one thread; then `python check.py`

Every batch is drawn afresh from the corpus. The target at a step is the true distribution of the next token where the
reply branches, and the next token itself elsewhere, so a draw teaches all its alternatives at once. The seed fixes
corpus, order and initial weights; other machines round differently, so their weights differ but pass the same checks.
"""

import argparse
import functools
import json
import math
import random
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_5 import modeling_qwen3_5

import bpe
import corpus

HERE = Path(__file__).resolve().parent
SEED = 0
STEPS = 1200
BATCH = 64
GROUPS = 2  # documents of a batch go through the model in groups of like length
LEARNING_RATE = 4e-3
WARM_UP = 100
WEIGHT_DECAY = 0.05

CONFIG = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "dtype": "bfloat16",
    "full_attention_interval": 4,
    "head_dim": 32,
    "hidden_act": "silu",
    "hidden_size": 128,
    "initializer_range": 0.02,
    "intermediate_size": 256,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 4,
    "linear_value_head_dim": 32,
    "max_position_embeddings": bpe.MAX_POSITIONS,
    "model_type": "qwen3_5_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10000.0,
        "rope_type": "default",
    },
    "tie_word_embeddings": True,
    "transformers_version": "5.24.0",
    "use_cache": True,
}


class Batches:
    """Draws batches of the corpus as tensors."""

    def __init__(self, text, seed):
        self.text, self.rng = text, random.Random(seed)
        self.truth = corpus.Truth(text.encode, text.stop)
        self.rows, self.row_of = [], {}

    def _row(self, distribution):
        """Remembers a distribution; the same one (the same object) is kept once."""
        if id(distribution) not in self.row_of:
            self.row_of[id(distribution)] = len(self.rows)
            row = torch.zeros(self.text.tokenizer.get_vocab_size())
            row[list(distribution)] = torch.tensor(list(distribution.values()))
            self.rows.append(row)
        return self.row_of[id(distribution)]

    def draw(self):
        """Groups of like length that make a batch.

        Each is: ids [documents, length], the places of predictions in the flattened ids, the ids that follow, and the
        rows of truth there, -1 where only one token may follow.
        """
        documents = []
        for _ in range(BATCH):
            question = corpus.draw(self.rng)
            steps = self.truth.steps(self.truth.slots(question.parts), self.rng)
            documents.append((self.text.prompt(question), steps))
        documents.sort(key=lambda document: len(document[0]) + len(document[1]))
        size = BATCH // GROUPS
        return [self._tensors(documents[at:at + size]) for at in range(0, BATCH, size)]

    def _tensors(self, documents):
        length = max(len(prompt) + len(steps) for prompt, steps in documents) - 1
        length = -(-length // 4) * 4
        ids = torch.zeros(len(documents), length, dtype=torch.long)
        places, following, rows = [], [], []
        for i, (prompt, steps) in enumerate(documents):
            whole = prompt + [step[0] for step in steps]
            ids[i, :len(whole) - 1] = torch.tensor(whole[:-1])
            for j, (token, truth, _, _) in enumerate(steps):
                places.append(i * length + len(prompt) - 1 + j)
                following.append(token)
                rows.append(self._row(truth) if len(truth) > 1 else -1)
        return ids, torch.tensor(places), torch.tensor(following), torch.tensor(rows)


def forward(model, ids, places):
    """Log-probabilities at some places of the flattened ids."""
    # One chunk: the sequences are short. Padding on the right is never seen by what comes before it.
    modeling_qwen3_5.torch_chunk_gated_delta_rule = functools.partial(CHUNKED, chunk_size=ids.shape[1])
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    return F.log_softmax(model.lm_head(hidden.flatten(0, 1)[places]), dim=-1)


CHUNKED = modeling_qwen3_5.torch_chunk_gated_delta_rule


def depthwise(hidden_states, weight, bias=None, activation=None, **_):
    """The causal convolution as shifted products: on CPUs faster to train than a grouped convolution."""
    taps, length = weight.shape[-1], hidden_states.shape[-1]
    padded = F.pad(hidden_states, (taps - 1, 0))
    return F.silu(sum(padded[..., tap:tap + length] * weight[:, tap, None] for tap in range(taps)))


def losses(log_probs, following, rows, table):
    """The cross-entropy of each step, and the divergence from the truth where it branches."""
    loss = -log_probs.gather(1, following[:, None])[:, 0]
    chooses = rows >= 0
    truth = table[rows[chooses]]
    cross = -(truth * log_probs[chooses]).sum(-1)
    entropy = -torch.xlogy(truth, truth).sum(-1)
    return loss[~chooses], cross - entropy


def train(folder, steps):
    """Returns the model and the log, one dictionary for each line of it."""
    started = time.time()
    bpe.write(folder, SEED)
    text = bpe.Text(folder)
    torch.manual_seed(SEED)
    config = CONFIG | {
        "vocab_size": text.tokenizer.get_vocab_size(),
        "eos_token_id": text.stop,
        "pad_token_id": text.tokenizer.token_to_id(bpe.END),
    }
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**{k: v for k, v in config.items() if k != "dtype"}))
    model = model.float().train()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if p.ndim != 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}],
        lr=LEARNING_RATE, betas=(0.9, 0.98), fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(
        (step + 1) / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * min(1, step / steps))
    ))
    batches, log = Batches(text, SEED), []
    modeling_qwen3_5.causal_conv1d_fn = depthwise
    sums, table = torch.zeros(4, dtype=torch.float64), None
    for step in range(1, steps + 1):
        groups = batches.draw()
        if table is None or len(table) != len(batches.rows):
            table = torch.stack(batches.rows)
        number = sum(len(places) for _, places, _, _ in groups)
        optimizer.zero_grad(set_to_none=True)
        for ids, places, following, rows in groups:
            fixed, chosen = losses(forward(model, ids, places), following, rows, table)
            ((fixed.sum() + chosen.sum()) / number).backward()
            sums += torch.tensor([float(fixed.detach().sum()), len(fixed), float(chosen.detach().sum()), len(chosen)])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == steps:
            line = {
                "step": step,
                "seconds": round(time.time() - started, 1),
                "documents": step * BATCH,
                "fixed_nats": round(float(sums[0] / sums[1]), 5),
                "choice_kl_nats": round(float(sums[2] / sums[3]), 5),
            }
            print(json.dumps(line), flush=True)
            log.append(line)
            sums.zero_()
    return model, config, log


def export(model, config, folder):
    """Writes config.json and model.safetensors: bfloat16, but A_log and the gated norms float32, as on the hub."""
    wide = ("linear_attn.A_log", "linear_attn.norm.weight")
    tensors = {
        name: tensor.detach().to(torch.float32 if name.endswith(wide) else torch.bfloat16).contiguous()
        for name, tensor in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return sum(tensor.numel() for tensor in tensors.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    model, config, log = train(args.out, args.steps)
    parameters = export(model, config, args.out)
    corpus.export(args.out / "truth.json", random.Random(corpus.EXPORT_SEED), 240)
    settings = {"seed": SEED, "steps": args.steps, "batch": BATCH, "threads": args.threads, "parameters": parameters}
    lines = [json.dumps(line) for line in [settings, *log]]
    (args.out / "train.jsonl").write_text("\n".join(lines) + "\n")
    print(json.dumps(settings))


if __name__ == "__main__":
    main()
