"""Worked prices."""

from __future__ import annotations

import pytest

from ext_authz.estimation.cost import MAX_TOKENS
from ext_authz.model import Api, InferenceRequest, Operation, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

RULES = CostRules(
    bytes_per_token=4.0, image_tokens=1000, default_output_tokens=256, opaque_tokens=2048
)


def request(text_bytes: int, operation: Operation = Operation.CHAT, **more: int | bool) -> object:
    return InferenceRequest(Api.OPENAI, operation, "/", None, text_bytes, **more)


@pytest.mark.parametrize(
    ("measured", "prompt", "output"),
    [
        (request(0), 1, 256),
        (request(1), 1, 256),
        (request(4), 1, 256),
        (request(5), 2, 256),
        (request(4000, output_cap_tokens=50), 1000, 50),
        (request(4000, output_cap_tokens=0), 1000, 0),
        (request(8, token_ids=3, images=2), 2 + 3 + 2000, 256),
        (request(8, sequences=4, output_cap_tokens=100), 2, 400),
        (request(8, sequences=4), 2, 1024),
        (request(8, Operation.EMBEDDING, sequences=4), 2, 0),
        (request(8, Operation.INFER, output_cap_tokens=0), 2, 0),
        (request(8, partial=True), 2, 256),
        (request(8, partial=True, size_unknown=True), 2 + 2048, 256),
        (request(8, Operation.OPAQUE, opaque=True), 1792, 256),
        (request(80_000, Operation.OPAQUE, opaque=True), 20_000, 256),
        (request(8, Operation.OPAQUE, opaque=True, output_cap_tokens=5), 1792, 256),
        (request(8, Operation.OPAQUE, opaque=True, output_cap_tokens=9000), 2, 9000),
        (request(1 << 60), MAX_TOKENS, 256),
        (request(8, sequences=10**6, output_cap_tokens=10**7), 2, MAX_TOKENS),
        (request(0, images=1 << 60), MAX_TOKENS, 256),
    ],
)
def test_worked_prices(measured: InferenceRequest, prompt: int, output: int) -> None:
    """Each part of the formula on its own and together, at its bounds too."""
    assert estimate(measured, RULES) == WorkEstimate(prompt, output)


def test_a_tiny_price_per_byte_does_not_overflow() -> None:
    """Extreme but legal rules stay within the bound."""
    rules = CostRules(bytes_per_token=5e-324)
    measured = InferenceRequest(Api.OPENAI, Operation.CHAT, "/", None, 10**9)
    assert estimate(measured, rules).prompt_tokens == MAX_TOKENS
