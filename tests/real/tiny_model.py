"""A very small Llama: its configuration and a tokenizer. Weights are made up by who loads it."""

from __future__ import annotations

import json
import string
from pathlib import Path

LAYERS, HIDDEN, HEADS, KV_HEADS = 4, 256, 4, 2
MOST_TOKENS = 2048
KV_BYTES_PER_TOKEN = 2 * LAYERS * KV_HEADS * (HIDDEN // HEADS) * 2
"""A key and a value of each layer and head, in two bytes each."""

_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
_TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"


def write(folder: Path) -> None:
    """Write the files of the model into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    merges = [(a, b) for a in string.ascii_lowercase for b in string.ascii_lowercase]
    tokens = [*_SPECIAL.values(), *_byte_characters(), *(a + b for a, b in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    files = {
        "config": _config(vocabulary),
        "tokenizer": _tokenizer(vocabulary, merges),
        "tokenizer_config": {
            **_SPECIAL,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": _TEMPLATE,
            "model_max_length": MOST_TOKENS,
        },
    }
    for name, tree in files.items():
        (folder / f"{name}.json").write_text(json.dumps(tree))


def _config(vocabulary: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(vocabulary),
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": MOST_TOKENS,
        "bos_token_id": vocabulary["<s>"],
        "eos_token_id": vocabulary["</s>"],
        "torch_dtype": "bfloat16",
    }


def _tokenizer(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> dict[str, object]:
    """One token for each byte and each two letters: enough to count with."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    special = {"special": True, "single_word": False, "lstrip": False, "rstrip": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "post_processor": None,
        "added_tokens": [
            {"id": vocabulary[token], "content": token, "normalized": False, **special}
            for token in _SPECIAL.values()
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [f"{a} {b}" for a, b in merges],
        },
    }


def _byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary: itself where it can be
    printed, else one from above Latin-1."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
