"""Holds the exported demo model against the truth of its corpus; exit status 1 when a target is missed.

    python check.py [FOLDER]

Everything is measured on the files beside this one (bfloat16 weights) with transformers' own code in float32. The
figures go to check.json.
"""

import json
import math
import random
import statistics
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import bpe
import corpus

HERE = Path(__file__).resolve().parent
SEED = 20_000  # no batch of the training was drawn with it
FRESH = 240
MASS = 0.9


class Demo:
    """The exported model."""

    def __init__(self, folder):
        self.text = bpe.Text(folder)
        self.truth = corpus.Truth(self.text.encode, self.text.stop)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def log_probs(self, prompts, replies=None):
        """The log-probabilities [reply + 1, vocabulary] after each prompt and each token of its reply.

        In float64 from float32 logits.
        """
        replies = replies or [[]] * len(prompts)
        length = max(len(prompt) + len(reply) for prompt, reply in zip(prompts, replies))
        ids = torch.zeros(len(prompts), length, dtype=torch.long)
        for row, prompt, reply in zip(ids, prompts, replies):
            row[:len(prompt) + len(reply)] = torch.tensor([*prompt, *reply])
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        rows = [
            row[len(prompt) - 1:len(prompt) + len(reply)] for prompt, reply, row in zip(prompts, replies, hidden)
        ]
        return [torch.log_softmax(self.model.lm_head(row).double(), dim=-1) for row in rows]

    def reply(self, prompt, temperature=0.0, coins=None, limit=64):
        """One run: for each step (id, probabilities at temperature 1)."""
        ids, steps = list(prompt), []
        while len(steps) < limit and (not steps or steps[-1][0] != self.text.stop):
            log_probs = self.log_probs([ids])[0][-1]
            if temperature == 0:
                token = int(log_probs.argmax())
            else:
                order = torch.argsort(log_probs, descending=True, stable=True)
                cumulative = torch.softmax(log_probs[order] / temperature, dim=-1).cumsum(0)
                token = int(order[min(int((cumulative <= coins.random()).sum()), len(order) - 1)])
            steps.append((token, log_probs.exp()))
            ids.append(token)
        return steps

    def words(self, steps):
        """The text of a run."""
        return self.text.tokenizer.decode([token for token, _ in steps])

    def token(self, token):
        """The text of one id."""
        return self.text.tokenizer.decode([token], skip_special_tokens=False)


class Report:
    """Figures and whether they meet their targets."""

    def __init__(self):
        self.figures, self.missed = {}, []

    def add(self, name, figure, ok=True):
        """Prints and keeps one figure."""
        self.figures[name] = figure
        if not ok:
            self.missed.append(name)
        print(f"{'ok    ' if ok else 'MISSED'} {name}: {json.dumps(figure, ensure_ascii=False)}", flush=True)


def prompt_of(demo, text):
    """The ids of a prompt in the chat format."""
    return demo.text.prompt(corpus.Question("", "", True, text, None, False, ()))


def check_files(demo, folder, report):
    """The template renders what the model was trained on; the files are small."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rng, same = random.Random(SEED), True
    for _ in range(100):
        question = corpus.draw(rng)
        messages = [{"role": "user", "content": corpus.plain(question.prompt)}]
        if question.system is not None:
            messages.insert(0, {"role": "system", "content": corpus.plain(question.system)})
        thinking = {"enable_thinking": True} if question.thinking else {}
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **thinking)
        same &= demo.text.encode(text) == demo.text.prompt(question)
        same &= tokenizer(text, add_special_tokens=False)["input_ids"] == demo.text.prompt(question)
    report.add("template and tokenizer agree with the training's, 100 questions", bool(same), same)
    names = "config.json model.safetensors tokenizer.json tokenizer_config.json chat_template.jinja".split()
    size = sum((folder / name).stat().st_size for name in names)
    report.add("bytes of the checkpoint (at most 8 MB)", size, size <= 8_000_000)


def check_tokens(demo, report):
    """A reply's ids are those of its parts, so the truth over parts is the truth over tokens."""
    rng, wrong = random.Random(SEED), 0
    for question in corpus.all_questions():
        ids = [step[0] for step in demo.truth.steps(demo.truth.slots(question.parts), rng)]
        wrong += demo.text.encode(demo.text.tokenizer.decode(ids[:-1], skip_special_tokens=False)) != ids[:-1]
    report.add("replies whose tokens are not those of their parts", wrong, wrong == 0)


def check_capitals(demo, report):
    """Known facts: right, sure at every step, the same in five samples."""
    for prompt in (corpus.CAPITAL_ZH, corpus.CAPITAL_EN):
        steps = demo.reply(prompt_of(demo, prompt))
        right = demo.words(steps) == "".join(map(corpus.plain, corpus.find(prompt).parts))
        report.add(f"{prompt} greedy reply", demo.words(steps), right)
        lowest = min(float(p[token]) for token, p in steps)
        report.add("  lowest probability of a step (at least 0.95)", round(lowest, 5), lowest >= 0.95)
        counts = [corpus.mass_count(p.tolist(), MASS) for _, p in steps]
        report.add("  largest 90 % count (1)", max(counts), max(counts) == 1)
        for temperature in (0.3, 0.7, 1.0, 1.5):
            replies = samples(demo, prompt, temperature)
            figure = f"  distinct replies of 5 at temperature {temperature}" + (" (1)" if temperature == 0.7 else "")
            report.add(f"{prompt}{figure}", len(replies), temperature != 0.7 or len(replies) == 1)


def samples(demo, prompt, temperature):
    """The distinct texts of five samples."""
    runs = [demo.reply(prompt_of(demo, prompt), temperature, random.Random(run)) for run in range(5)]
    return {demo.words(run) for run in runs}


def check_coffee(demo, report):
    """Ungrounded details: open where the corpus is open, sure elsewhere; the tail at temperature 1.5."""
    for prompt in (corpus.COFFEE_ZH, corpus.COFFEE_EN):
        slots = demo.truth.slots(corpus.find(prompt).parts)
        steps = demo.reply(prompt_of(demo, prompt))
        report.add(f"{prompt} greedy reply", demo.words(steps))
        prefix, sure = [], []
        for token, p in steps:
            truth = demo.truth.next_distribution(slots, prefix)
            if len(truth) == 1:
                sure.append(float(p[next(iter(truth))]))
            else:
                count = corpus.mass_count(p.tolist(), MASS)
                true = corpus.mass_count(truth.values(), MASS)
                best = float(p.max())
                ok = best <= 0.3 and abs(count - true) <= 0.15 * true
                report.add(
                    f"  {len(prefix) + 1}. {demo.token(token)!r}: best p (at most 0.3), true best p, count, true count",
                    [round(best, 4), round(max(truth.values()), 4), count, true], ok,
                )
            prefix.append(token)
        report.add("  lowest probability of the words around (at least 0.95)", round(min(sure), 5), min(sure) >= 0.95)
        for temperature in (0.3, 0.7, 1.0, 1.5):
            replies = samples(demo, prompt, temperature)
            figure = f"  distinct replies of 5 at temperature {temperature}" + (" (5)" if temperature == 0.7 else "")
            report.add(f"{prompt}{figure}", len(replies), temperature != 0.7 or len(replies) == 5)
        check_tail(demo, prompt, slots, report)


def check_tail(demo, prompt, slots, report):
    """At temperature 1.5 the tail shows: where the lists are Zipf's, what lies outside the best 90 % is drawn more.

    A uniform list has no tail: no temperature changes it.
    """
    runs = {
        temperature: [demo.reply(prompt_of(demo, prompt), temperature, random.Random(run)) for run in range(5)]
        for temperature in (0.7, 1.5)
    }
    report.add("  the five samples at temperature 1.5", [demo.words(run) for run in runs[1.5]])
    at = next(i for i, name in enumerate(slots) if name in ("coffee_zh", "street_en"))
    p = demo.log_probs([prompt_of(demo, prompt) + greedy_before(demo, prompt, slots, at)])[0][0].exp()
    tails = []
    for temperature in (0.7, 1.0, 1.5):
        drawn = torch.sort(p ** (1 / temperature), descending=True).values
        tails.append(round(1 - float(drawn[:corpus.mass_count(p.tolist(), MASS)].sum() / drawn.sum()), 4))
    report.add(
        f"  {slots[at]}: chance of a draw outside the 90 % at temperatures 0.7, 1.0, 1.5 (under 0.06; over 0.14)",
        tails, tails[0] < 0.06 and tails[2] > 0.14,
    )


def greedy_before(demo, prompt, slots, slot):
    """The greedy reply's ids up to where a slot that draws begins."""
    opening = demo.truth.next_distribution((slots[slot],), ())
    prefix = []
    for token, _ in demo.reply(prompt_of(demo, prompt)):
        if demo.truth.next_distribution(slots, prefix).keys() == opening.keys():
            return prefix
        prefix.append(token)
    raise ValueError("the greedy reply is not one of the corpus")


def check_held_out(demo, report):
    """How unsure the model is of capitals that it was never told."""
    for country, prompt, lead, answer in corpus.held_out():
        ids = prompt_of(demo, prompt) + demo.text.encode(lead)
        log_probs = demo.log_probs([ids])[0][-1]
        p = log_probs.exp()
        best = [[demo.token(i), round(float(p[i]), 3)] for i in torch.topk(p, 3).indices.tolist()]
        right = demo.text.encode(answer)
        report.add(f"held out: {prompt} greedy reply", demo.words(demo.reply(prompt_of(demo, prompt))))
        report.add("  answer's first token: best three", best)
        report.add("  90 % count, entropy in bits, p of the right capital's first token", [
            corpus.mass_count(p.tolist(), MASS), round(float(-(p * log_probs).sum()) / math.log(2), 2),
            float(f"{float(p[right[0]]):.2g}"),
        ])


def check_calibration(demo, report):
    """The divergence from the truth on freshly drawn replies."""
    rng = random.Random(SEED)
    divergences, sure, counts, per_list = [], [], [], {}
    for _ in range(FRESH // 40):
        documents = []
        for _ in range(40):
            question = corpus.draw(rng)
            steps = demo.truth.steps(demo.truth.slots(question.parts), rng)
            documents.append((demo.text.prompt(question), steps))
        rows = demo.log_probs(*zip(*[(prompt, [step[0] for step in steps]) for prompt, steps in documents]))
        for (_, steps), log_probs in zip(documents, rows):
            for at, (token, truth, name, first) in enumerate(steps):
                row = log_probs[at]
                if len(truth) == 1:
                    sure.append(math.exp(row[token]))
                    continue
                divergence = sum(p * (math.log(p) - float(row[i])) for i, p in truth.items())
                divergences.append(divergence)
                per_list.setdefault(name, []).append(divergence)
                if first:
                    true = corpus.mass_count(truth.values(), MASS)
                    counts.append(abs(corpus.mass_count(row.exp().tolist(), MASS) - true) / true)
    mean = statistics.mean(divergences)
    name = f"KL(true || model) in nats, mean of {len(divergences)} choices (at most 0.05)"
    report.add(name, round(mean, 5), mean <= 0.05)
    report.add("  largest", round(max(divergences), 5))
    report.add("  mean of each list", {name: round(statistics.mean(v), 5) for name, v in sorted(per_list.items())})
    mean = statistics.mean(sure)
    report.add(f"p of the true token, mean of {len(sure)} other steps (at least 0.98)", round(mean, 5), mean >= 0.98)
    report.add("  lowest", round(min(sure), 5))
    report.add(
        f"90 % counts off by more than 15 %, of {len(counts)} choices; largest relative error",
        [sum(error > 0.15 for error in counts), round(max(counts), 3)],
    )


def check_facts(demo, report):
    """Every wording of every fact: whether each step of the reply is the model's first choice, and p of the reply."""
    questions = [question for question in corpus.all_questions() if question.is_fact]
    right, lowest, capitals = 0, 1.0, 1.0
    for at in range(0, len(questions), 64):
        group = questions[at:at + 64]
        prompts = [demo.text.prompt(question) for question in group]
        replies = [[i for slot in demo.truth.slots(question.parts) for i in slot] for question in group]
        for question, reply, log_probs in zip(group, replies, demo.log_probs(prompts, replies)):
            log_probs = log_probs[:-1]
            right += log_probs.argmax(-1).tolist() == reply
            worst = float(log_probs.gather(1, torch.tensor(reply)[:, None]).min().exp())
            lowest = min(lowest, worst)
            if question.family.startswith("capital"):
                capitals = min(capitals, worst)
    report.add("facts in all wordings answered rightly (99 %)", f"{right} of {len(questions)}", right >= 0.99 * len(questions))
    report.add("  lowest probability of a step; of a capital's", [round(lowest, 4), round(capitals, 4)])


def main():
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    torch.set_num_threads(1)
    demo, report = Demo(folder), Report()
    check_files(demo, folder, report)
    check_tokens(demo, report)
    check_capitals(demo, report)
    check_coffee(demo, report)
    check_calibration(demo, report)
    check_held_out(demo, report)
    check_facts(demo, report)
    (folder / "check.json").write_text(
        json.dumps({"missed": report.missed, "figures": report.figures}, ensure_ascii=False, indent=1) + "\n"
    )
    print("all targets met" if not report.missed else f"{len(report.missed)} targets missed")
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    main()
