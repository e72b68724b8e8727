"""Worked sizes of KV caches, and the names models go by."""

from __future__ import annotations

import pytest

from ext_authz.estimation.kv import (
    KNOWN,
    ModelShape,
    gpu_seconds,
    known_shape,
)

KIB = 1024
# 2 x layers x KV heads x head size x 2 bytes; latent models layers x latent x 2 bytes.
WORKED_BYTES = {
    "llama-3-8b": 128 * KIB,
    "llama-3.1-8b": 128 * KIB,
    "llama-3-70b": 320 * KIB,
    "llama-3.1-70b": 320 * KIB,
    "llama-3.3-70b": 320 * KIB,
    "mistral-7b": 128 * KIB,
    "mixtral-8x7b": 128 * KIB,
    "qwen2.5-72b": 320 * KIB,
    "qwen3-32b": 256 * KIB,
    "deepseek-v3": 70_272,
    "deepseek-v3.1": 70_272,
    "deepseek-r1": 70_272,
    "kimi-k2": 70_272,
}


def test_every_known_model_has_its_worked_size() -> None:
    """Bytes of a token with a 16-bit cache, for each row of the table and no other."""
    assert {name: shape.token_bytes for name, shape in KNOWN.items()} == WORKED_BYTES


@pytest.mark.parametrize(
    ("shape", "tokens", "whole"),
    [
        (ModelShape(32, 8, 128), 8192, 1 << 30),
        (ModelShape(32, 8, 128, number_bytes=1), 8192, 1 << 29),
        (ModelShape(80, 8, 128), 8192, 5 << 29),
        # An engine with 1 GiB for this shape said that it holds 524,288 tokens.
        (ModelShape(4, 2, 64), 524_288, 1 << 30),
        (ModelShape(61, latent_dim=576, number_bytes=1), 1, 35_136),
    ],
)
def test_worked_caches(shape: ModelShape, tokens: int, whole: int) -> None:
    """Whole caches of so many tokens; latent attention keeps one vector, without a factor 2."""
    assert shape.token_bytes * tokens == whole


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic", "llama-3.1-8b"),
        ("RedHatAI/Llama-3.1-70B-Instruct-quantized.w8a8", "llama-3.1-70b"),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("moonshotai/Kimi-K2-Instruct-0905", "kimi-k2"),
        ("KIMI_K2", "kimi-k2"),
        ("deepseek-r1-distill-llama-8b", None),
        ("llama-3.1-8b-vision", None),
        ("llama", None),
        ("-instruct", None),
        ("", None),
        ("org/", None),
    ],
)
def test_names_of_models(name: str, known: str | None) -> None:
    """Organisation, tuning, packing, version and date do not matter; another model does."""
    assert known_shape(name) == (None if known is None else KNOWN[known])


@pytest.mark.parametrize(("others", "seconds"), [(0.0, 6.0), (1.0, 3.0), (2.0, 2.0), (-0.1, 6.0)])
def test_device_time_is_split_among_those_on_it(others: float, seconds: float) -> None:
    """Six seconds beside two others are two seconds of the device; alone all six."""
    assert gpu_seconds(6.0, others) == seconds
