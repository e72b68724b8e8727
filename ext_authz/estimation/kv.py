"""What a token costs in the cache of keys and values, by the shape of the model.

PURE. A token keeps a key and a value in every layer: 2 x layers x KV heads x head size x bytes of
a number. With multi-head latent attention there is one latent vector instead of both, without the
factor 2. Sources: the configurations that the models are published with (layers, KV heads, head
size); the formula is that of the architecture. An engine's own count of cells, where it tells one,
is better than any product: models with sliding windows or state-space layers need less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# A request that may fill more than this part of a pool's cache is a risk to all others there.
RISK_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class ModelShape:
    """`head_dim` numbers make a key, and as many a value; `latent_dim` is the size of the one
    vector of multi-head latent attention, 0 for other models. `number_bytes` is 2 for 16-bit
    caches, which is what engines use unless told otherwise, even for weights of 8 bits."""

    layers: int
    kv_heads: int = 0
    head_dim: int = 0
    latent_dim: int = 0
    number_bytes: int = 2

    @property
    def token_bytes(self) -> int:
        """Bytes that one token keeps in the cache, all devices together."""
        if self.latent_dim:
            return self.layers * self.latent_dim * self.number_bytes
        return 2 * self.layers * self.kv_heads * self.head_dim * self.number_bytes


# By normalised name. Latent: compressed vector plus the part that carries positions.
_LLAMA_8B, _LLAMA_70B = ModelShape(32, 8, 128), ModelShape(80, 8, 128)
_DEEPSEEK = ModelShape(61, latent_dim=512 + 64)
KNOWN: Mapping[str, ModelShape] = MappingProxyType(
    {
        "llama-3-8b": _LLAMA_8B,
        "llama-3.1-8b": _LLAMA_8B,
        "llama-3-70b": _LLAMA_70B,
        "llama-3.1-70b": _LLAMA_70B,
        "llama-3.3-70b": _LLAMA_70B,
        "mistral-7b": ModelShape(32, 8, 128),
        "mixtral-8x7b": ModelShape(32, 8, 128),
        "qwen2.5-72b": ModelShape(80, 8, 128),
        "qwen3-32b": ModelShape(64, 8, 128),
        "deepseek-v3": _DEEPSEEK,
        "deepseek-v3.1": _DEEPSEEK,
        "deepseek-r1": _DEEPSEEK,
        "kimi-k2": _DEEPSEEK,
    }
)

# What names carry beside the model: how it was tuned or packed, a version or a date.
_SUFFIX = re.compile(
    r"-(instruct|chat|it|base|hf|fp8|fp16|bf16|awq|gptq|int4|int8|dynamic|quantized(\.w\d+a\d+)?"
    r"|w\d+a\d+|v\d[\d.]*|\d{4})$"
)


def known_shape(model: str) -> ModelShape | None:
    """The shape of a model by its name, whoever serves it under whatever organisation and
    packing; None if it is not in the table."""
    name = model.rsplit("/", 1)[-1].lower().replace("_", "-").removeprefix("meta-")
    while name not in KNOWN:
        shorter = _SUFFIX.sub("", name)
        if shorter == name:
            return None
        name = shorter
    return KNOWN[name]


def gpu_seconds(duration_s: float, sharing: float) -> float:
    """Device time of a request that ran for `duration_s` beside `sharing` others on average: time
    on a device is split evenly between those that are on it."""
    return duration_s / (1.0 + (sharing if sharing > 0.0 else 0.0))
