"""Bodies of which only the beginning is seen, and pictures, which make bodies that long."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ext_authz.estimation.parsing import parse
from ext_authz.estimation.shapes.document import MAX_PARSE_BYTES
from ext_authz.model import HttpCall, InferenceRequest, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

CHAT = "/v1/chat/completions"
RULES = CostRules()


def call(body: bytes, path: str = CHAT, **headers: str) -> HttpCall:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpCall("POST", path, named, body, len(body), partial=False)


def measure(document: Any, path: str = CHAT) -> InferenceRequest:
    return parse(call(json.dumps(document).encode(), path))


def said(*content: Any, **more: Any) -> dict[str, Any]:
    return {"model": "m1", "messages": [{"role": "user", "content": c} for c in content], **more}


def test_a_cut_body_is_scaled_from_its_size() -> None:
    """O-11: model and cap before the cut are used, and the missing text is priced by its size."""
    head = b'{"model":"m1","max_tokens":200,"messages":[{"role":"user","content":"'
    body = head + b"a" * (4096 - len(head))
    for claims, size in ((True, 250_000), (False, 250_000), (True, -1)):
        headers = {"content-length": "250000"}
        request = parse(HttpCall("POST", CHAT, headers, body, size, partial=claims))
        assert request.partial
        assert not request.opaque
        assert not request.size_unknown
        assert request.model == "m1"
        assert request.output_cap_tokens == 200
        assert 249_000 <= request.text_bytes <= 250_000


def test_a_cut_body_of_unknown_size_costs_the_opaque_price_more() -> None:
    """O-11: with neither size nor model before the cut there is a price and no model."""
    body = b'{"messages":[{"role":"user","content":"' + b"a" * 400
    request = parse(HttpCall("POST", CHAT, {}, body, -1, partial=True))
    assert (request.model, request.partial, request.size_unknown) == (None, True, True)
    assert estimate(request, RULES) == WorkEstimate(101 + RULES.opaque_tokens, 256)


@pytest.mark.parametrize(
    ("body", "model", "cap"),
    [
        (b'{"model":"llama-70', None, None),
        (b'{"model":"llama-70b"', "llama-70b", None),
        (b'{"model":"llama-70b","x":"llama-70b', "llama-70b", None),
        (b'{"model":"m","max_tokens":80', "m", None),
        (b'{"model":"m","max_tokens":80,', "m", 80),
        (b'{"model":"m","max_tokens":80,"mess', "m", 80),
        (b'{"model":"m","max_tokens":80 ', "m", 80),
        (b'{"model":"m\\', None, None),
        (b"{", None, None),
    ],
)
def test_a_value_the_cut_may_have_shortened_is_not_used(
    body: bytes, model: str | None, cap: int | None
) -> None:
    """Half a model name or half a number is worse than none."""
    request = parse(HttpCall("POST", CHAT, {}, body, 9000, partial=True))
    assert (request.model, request.output_cap_tokens) == (model, cap)
    assert request.text_bytes >= 9000 - len(body)


def test_text_hidden_beyond_padding_is_paid_for() -> None:
    """Padding in an unused field before the cut does not make the rest free."""
    body = json.dumps({"metadata": "x" * 5000, "messages": []}).encode()[:4096]
    request = parse(HttpCall("POST", CHAT, {}, body, 250_000, partial=True))
    assert request.text_bytes == 250_000 - 4096


@pytest.mark.parametrize("path", [CHAT, "/v1/../v1/chat/completions"])
def test_space_in_front_hides_nothing(path: str) -> None:
    """However far behind its beginning a document starts, on any path."""
    request = parse(call(b" " * 5000 + b'{"model":"m","max_tokens":9000}', path))
    assert (request.model, request.output_cap_tokens) == ("m", 9000)


def test_no_more_than_the_bound_is_looked_at() -> None:
    """A body longer than the bound is treated as cut there."""
    request = parse(call(json.dumps(said("x" * 200_000, max_tokens=5)).encode()))
    assert request.partial
    assert not request.size_unknown
    assert request.output_cap_tokens is None
    assert 199_000 < request.text_bytes < 200_100
    within = parse(call(json.dumps(said("x" * (MAX_PARSE_BYTES - 200))).encode()))
    assert not within.partial


DATA_URL = "data:image/png;base64," + "A" * 1_500_000


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": DATA_URL}}),
        (CHAT, {"image_url": {"url": DATA_URL}, "type": "image_url"}),
        ("/v1/responses", {"type": "input_image", "image_url": DATA_URL}),
        ("/v1/messages", {"type": "image", "source": {"type": "base64", "data": DATA_URL}}),
        ("/v1/messages", {"source": {"type": "base64", "data": DATA_URL}, "type": "image"}),
        (CHAT, {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}),
        (CHAT, {"type": "image_url", "image_url": {"url": DATA_URL[:30_000]}}),
    ],
)
def test_a_picture_costs_a_fixed_price(path: str, part: dict[str, Any]) -> None:
    """O-12: picture data is never text, also when the body is cut inside it."""
    field = "input" if path.endswith("responses") else "messages"
    content = [{"type": "text", "text": "what is it?"}, part]
    request = measure({"model": "m", field: [{"role": "user", "content": content}]}, path)
    assert request.images == 1
    assert RULES.image_tokens < estimate(request, RULES).prompt_tokens < 5000


def test_text_that_looks_like_a_picture_is_text() -> None:
    """O-12: a prompt cannot be hidden in a text part written as a data URL."""
    request = measure(said([{"type": "text", "text": DATA_URL}]))
    assert request.images == 0
    assert request.text_bytes >= len(DATA_URL)


def test_text_beside_a_picture_is_text() -> None:
    """Fields of a picture part that hold no picture are counted."""
    part = {"type": "image_url", "image_url": {"url": "http://a/b", "x": "y" * 400}, "z": "w" * 500}
    assert measure(said([part])).text_bytes >= 900


def test_many_small_pictures_are_scaled_past_the_cut() -> None:
    """Where several pictures of like size were seen, the rest of the body holds more of them."""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10_000}}
    request = measure(said([part] * 40))
    assert 36 <= request.images <= 50
    assert request.text_bytes < 20_000
