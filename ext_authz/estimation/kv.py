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
    """`latent` is the size of the one vector of multi-head latent attention, 0 for other models;
    `number_bytes` 2 for 16-bit caches, 1 for 8-bit ones."""

    layers: int
    kv_heads: int
    head_size: int
    number_bytes: int = 2
    latent: int = 0

    @property
    def token_bytes(self) -> int:
        """Bytes that one token keeps in the cache, all devices together."""
        if self.latent:
            return self.layers * self.latent * self.number_bytes
        return 2 * self.layers * self.kv_heads * self.head_size * self.number_bytes


# By normalised name. Latent: compressed vector plus the part that carries positions.
KNOWN: Mapping[str, ModelShape] = MappingProxyType(
    {
        "llama-3-8b": ModelShape(32, 8, 128),
        "llama-3.1-8b": ModelShape(32, 8, 128),
        "llama-3-70b": ModelShape(80, 8, 128),
        "llama-3.1-70b": ModelShape(80, 8, 128),
        "llama-3.3-70b": ModelShape(80, 8, 128),
        "mistral-7b": ModelShape(32, 8, 128),
        "mixtral-8x7b": ModelShape(32, 8, 128),
        "qwen2.5-72b": ModelShape(80, 8, 128),
        "qwen3-32b": ModelShape(64, 8, 128),
        "deepseek-v3": ModelShape(61, 0, 0, latent=512 + 64),
        "deepseek-r1": ModelShape(61, 0, 0, latent=512 + 64),
        "kimi-k2": ModelShape(61, 0, 0, latent=512 + 64),
    }
)

# What names carry beside the model: how it was tuned or packed, and by whom.
_SUFFIX = re.compile(r"-(instruct|chat|it|base|hf|fp8|fp16|bf16|awq|gptq|int4|int8|v\d[\d.]*)$")


def known_shape(model: str) -> ModelShape | None:
    """The shape of a model by its name, whoever serves it under whatever organisation and
    packing; None if it is not in the table."""
    name = model.rsplit("/", 1)[-1].lower().replace("_", "-").replace("meta-llama", "llama")
    while True:
        if name in KNOWN:
            return KNOWN[name]
        shorter = _SUFFIX.sub("", name)
        if shorter == name:
            return None
        name = shorter


def memory_risk_ratio(kv_tokens: float, capacity_tokens: float | None) -> float | None:
    """The part of a pool's cache that a request may fill; unknown if the pool's is."""
    return kv_tokens / capacity_tokens if capacity_tokens else None


def gpu_seconds(duration_s: float, sharing: float) -> float:
    """Device time of a request that ran for `duration_s` beside `sharing` others on average: time
    on a device is split evenly between those that are on it."""
    return duration_s / (1.0 + max(0.0, sharing))
