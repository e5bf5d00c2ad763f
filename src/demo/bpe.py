"""The demo model's tokenizer: a small byte-level BPE, trained on the corpus, in the files of a Hugging Face checkpoint.

Normaliser, pre-tokeniser and decoder are Qwen3.5's. Only the merges are learned here, in two stages: first the bytes
of each character of the corpus that needs more than one, then characters to words. So no token begins or ends inside a
character of the corpus, and none spans a word border (`|` in the corpus).
"""

import json
import math
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

import regex
from tokenizers import Tokenizer

import corpus

VOCAB_SIZE = 3072  # at most; every word of the corpus is one token before that
DOCUMENTS = 20_000
# Qwen3.5's pattern.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END, START, STOP, THINK, UNTHINK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"
ADDED = [END, START, STOP, THINK, UNTHINK]
MAX_POSITIONS = 1024

CHAT_TEMPLATE = """\
{%- if not messages %}
    {{- raise_exception('No messages provided.') }}
{%- endif %}
{%- for message in messages %}
    {%- set content = message.content | trim %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- elif message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('Unexpected message role.') }}
    {%- elif message.role == 'assistant' %}
        {%- set content = (content.split('</think>') | last).lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is true %}
        {{- '<think>\\n' }}
    {%- else %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""


def byte_alphabet():
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {byte: chr(byte) for byte in plain}
    others = [byte for byte in range(256) if byte not in table]
    return table | {byte: chr(256 + i) for i, byte in enumerate(others)}


def words(rng):
    """The corpus's words with their counts."""
    counts = Counter()
    for _ in range(DOCUMENTS):
        question = corpus.draw(rng)
        texts = [question.prompt, question.system or "", corpus.draw_reply(question.parts, rng)]
        texts += ["system\n", "user\n", "assistant\n", "\n\n"]
        for text in texts:
            for piece in text.split("|"):
                counts.update(regex.findall(PATTERN, re.sub("</?think>", "", piece)))
    return counts


def character_merges(counts):
    """Merges of the bytes of each character, as pairs of byte strings."""
    characters = Counter()
    for word, count in counts.items():
        for character in word:
            if len(character.encode()) > 1:
                characters[character] += count
    merges = {}
    for character, _ in sorted(characters.items(), key=lambda entry: (-entry[1], entry[0])):
        data = character.encode()
        for end in range(1, len(data)):
            merges[data[:end], data[end:end + 1]] = None
    return list(merges)


def word_merges(counts, number):
    """The usual BPE on words of whole characters: the most frequent pair first, ties by bytes.

    A word counts with the square root of its count, so that rare names too become short.
    """
    pieces = {word: [character.encode() for character in word] for word in counts}
    weight = {word: math.isqrt(count) + 1 for word, count in counts.items()}
    pairs, places = Counter(), defaultdict(set)

    def enter(word, sign):
        for pair in zip(pieces[word], pieces[word][1:]):
            pairs[pair] += sign * weight[word]
            places[pair].add(word)

    for word in sorted(pieces):
        enter(word, 1)
    merges = []
    while len(merges) < number:
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if pairs[best] <= 0:
            break
        merges.append(best)
        for word in sorted(places.pop(best)):
            enter(word, -1)
            old, new = pieces[word], []
            for piece in old:
                if new and (new[-1], piece) == best:
                    new[-1] += piece
                else:
                    new.append(piece)
            pieces[word] = new
            enter(word, 1)
        del pairs[best]
    return merges


def train(seed):
    """The tokenizer as the content of a tokenizer.json."""
    counts = words(random.Random(seed))
    merges = character_merges(counts)
    merges += word_merges(counts, VOCAB_SIZE - len(ADDED) - 256 - len(merges))
    alphabet = byte_alphabet()

    def spell(data):
        return "".join(alphabet[byte] for byte in data)

    vocab = {spell(bytes([byte])): byte for byte in range(256)}
    for left, right in merges:
        vocab.setdefault(spell(left + right), len(vocab))
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(vocab) + i, **added_token(token)} for i, token in enumerate(ADDED)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": [f"{spell(left)} {spell(right)}" for left, right in merges],
        },
    }


def added_token(content):
    """An added token with its flags; only the think marks are not special, as in Qwen3.5."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"content": content, **flags, "special": content not in (THINK, UNTHINK)}


def write(folder, seed):
    """Trains and writes tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    content = train(seed)
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(token["id"]): {key: value for key, value in token.items() if key != "id"}
            for token in content["added_tokens"]
        },
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": STOP,
        "errors": "replace",
        "model_max_length": MAX_POSITIONS,
        "pad_token": END,
        "split_special_tokens": False,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


class Text:
    """What the trainer and the checks need of a tokenizer: ids of prompts and of replies."""

    def __init__(self, folder):
        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.stop = self.tokenizer.token_to_id(STOP)

    def encode(self, text):
        """The ids of a text; added tokens are parsed."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt(self, question):
        """The ids of a question in the chat format, up to where the reply begins (as the chat template renders it)."""
        turns = [("user", corpus.plain(question.prompt))]
        if question.system is not None:
            turns.insert(0, ("system", corpus.plain(question.system)))
        text = "".join(f"{START}{role}\n{content}{STOP}\n" for role, content in turns)
        opened = f"{THINK}\n" if question.thinking else f"{THINK}\n\n{UNTHINK}\n\n"
        return self.encode(f"{text}{START}assistant\n{opened}")
