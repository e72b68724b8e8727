"""What holds for every body, header and path."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ext_authz.estimation.calls import is_preflight
from ext_authz.estimation.cost import MAX_TOKENS
from ext_authz.estimation.parsing import MAX_MODEL_CHARS, MAX_SEQUENCES, parse
from ext_authz.model import HttpCall, Operation, Unread, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

RULES = CostRules()
# A busy machine must not fail an example for being slow.
patient = settings(deadline=None)
PLAIN_PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/openai/deployments/m1/chat/completions",
    "/v2/models/m1/infer",
    "/v2/models/m1/generate",
    "/generate",
    "/pooling",
    "/v1/rerank",
    "/v1/score",
    "/v1/images/generations",
    "/v1/complete",
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.just("9" * 10),
    st.sampled_from(["image", "input_audio", "document", "base64", "application/pdf"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "text",
                    "content",
                    "role",
                    "image_url",
                    "source",
                    "url",
                    "data",
                    "file",
                    "k",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)
images = st.builds(
    lambda data: {"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}},
    st.text("AB", max_size=300),
)
messages = st.lists(
    st.one_of(
        values,
        st.builds(lambda parts: {"role": "user", "content": parts}, st.lists(images, max_size=3)),
        st.builds(lambda text: {"role": "user", "content": text}, st.text(max_size=200)),
    ),
    max_size=4,
)
prompts = st.one_of(
    values,
    st.lists(st.integers(0, 9), max_size=60),
    st.lists(st.lists(st.integers(0, 9), max_size=9), max_size=9),
    st.lists(st.text(max_size=5), max_size=9),
)
counts = st.one_of(scalars, st.integers(-2, 20_000))
tensors = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "max_tokens"]),
        "shape": st.lists(st.integers(0, 4), max_size=2),
        "datatype": st.sampled_from(["FP32", "INT64", "BYTES", "UINT8", "odd"]),
    },
    optional={
        "data": st.one_of(
            st.lists(st.integers(0, 9), max_size=8), st.lists(st.text(max_size=9), max_size=4)
        ),
        "parameters": st.dictionaries(
            st.sampled_from(
                ["binary_data_size", "shared_memory_region", "shared_memory_byte_size"]
            ),
            st.integers(0, 64),
        ),
    },
)
documents = st.fixed_dictionaries(
    {},
    optional={
        "model": st.one_of(scalars, st.text(max_size=400)),
        "messages": messages,
        "input": st.one_of(prompts, messages),
        "prompt": prompts,
        "suffix": values,
        "tools": values,
        "inputs": st.one_of(st.lists(tensors, max_size=3), prompts),
        "text": prompts,
        "text_input": values,
        "input_ids": prompts,
        "image_data": values,
        "query": prompts,
        "documents": prompts,
        "text_2": prompts,
        "sampling_params": st.one_of(
            scalars,
            st.dictionaries(st.sampled_from(["max_new_tokens", "n"]), counts),
            st.lists(st.dictionaries(st.sampled_from(["max_new_tokens", "n"]), counts), max_size=3),
        ),
        "n": counts,
        "best_of": counts,
        "max_tokens": counts,
        "max_completion_tokens": counts,
        "max_output_tokens": counts,
        "unused": values,
    },
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A document in one of the ways a client may write it, perhaps with raw bytes after it."""
    body = json.dumps(draw(documents), ensure_ascii=draw(st.booleans()))
    encoded = body.encode("utf-8", "surrogatepass")
    return encoded + draw(st.one_of(st.just(b""), st.binary(max_size=20)))


headers = st.dictionaries(
    st.sampled_from(
        [
            "content-type",
            "content-length",
            "content-encoding",
            "inference-header-content-length",
            "origin",
            "upgrade",
        ]
    ),
    st.one_of(
        st.text(max_size=12),
        st.integers(-5, 10**20).map(str),
        st.sampled_from(["application/grpc", "gzip", "deflate", "identity", "application/json"]),
    ),
)


@st.composite
def variants(draw: st.DrawFn, path: str) -> str:
    """`path` spelled otherwise, in a way that some server may take for the same."""
    segments = path.strip("/").split("/")
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(segments) - 1))
        change = draw(st.sampled_from(["", ".", "x/..", "..;", "upper", "escape", "%2F"]))
        if change == "upper":
            segments[at] = segments[at].upper()
        elif change == "escape":
            segments[at] = "".join(f"%{ord(c):02x}" for c in segments[at])
        elif change == "%2F":
            segments[at] += "%2F"
        else:
            segments.insert(at, change)
    ending = draw(st.sampled_from(["", "/", "?a=b", "//", "/.", ";v=1", "%3F", "%00", "#f"]))
    return "/" + "/".join(segments) + ending


@patient
@given(
    method=st.sampled_from(["POST", "GET", "OPTIONS", "", "\x00"]),
    path=st.one_of(st.text(max_size=60), st.sampled_from(PLAIN_PATHS)),
    sent=headers,
    body=st.one_of(st.binary(max_size=200), bodies()),
    size=st.integers(-(2**63), 2**63),
    partial=st.booleans(),
)
def test_anything_is_measured_within_bounds(
    method: str, path: str, sent: dict[str, str], body: bytes, size: int, partial: bool
) -> None:
    """No input raises, hits the guard, or leaves the bounds."""
    call = HttpCall(method, path, sent, body, size, partial)
    request = parse(call)
    assert request.unread is not Unread.FAULT
    assert request.opaque is (request.unread is not None)
    assert request.path.startswith("/")
    assert request.path.isprintable()
    assert min(request.text_bytes, request.token_ids, request.images) >= 0
    assert 1 <= request.prompts <= MAX_SEQUENCES
    assert 1 <= request.sequences <= MAX_SEQUENCES
    if request.model is not None:
        assert 1 <= len(request.model) <= MAX_MODEL_CHARS
        assert request.model.isprintable()
    price = estimate(request, RULES)
    assert 1 <= price.prompt_tokens <= MAX_TOKENS
    assert 0 <= price.output_tokens <= MAX_TOKENS
    if request.opaque:
        assert price.tokens >= RULES.opaque_tokens
        assert price.prompt_tokens >= len(body) // 4
    assert isinstance(is_preflight(call), bool)


def posted(body: bytes, path: str, cut: int | None = None) -> HttpCall:
    seen = body if cut is None else body[:cut]
    return HttpCall("POST", path, {}, seen, len(body), partial=len(seen) < len(body))


@settings(patient, max_examples=300)
@given(st.data(), bodies(), st.sampled_from(PLAIN_PATHS))
def test_no_spelling_of_a_path_is_cheaper(data: st.DataObject, body: bytes, path: str) -> None:
    """For any body, cut or whole, another spelling never lowers either part of the price."""
    cut = data.draw(st.one_of(st.none(), st.integers(1, len(body))))
    plain = estimate(parse(posted(body, path, cut)), RULES)
    other = estimate(parse(posted(body, data.draw(variants(path)), cut)), RULES)
    assert other.prompt_tokens >= plain.prompt_tokens
    assert other.output_tokens >= plain.output_tokens


texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=300), max_size=5)


@patient
@given(texts, st.one_of(st.none(), st.integers(1, 10_000)), st.integers(1, 8), st.booleans())
def test_a_chat_costs_what_a_slow_count_says(
    said: list[str], cap: int | None, n: int, ascii_only: bool
) -> None:
    """The price of a text conversation is that of its UTF-8 bytes, escaped or not."""
    document: dict[str, Any] = {
        "messages": [{"role": "user", "content": text} for text in said],
        "n": n,
        "max_tokens": cap,
    }
    body = json.dumps(document, ensure_ascii=ascii_only).encode()
    text_bytes = sum(len(b"user") + len(text.encode()) for text in said)
    price = estimate(parse(posted(body, "/v1/chat/completions")), RULES)
    output = n * (RULES.default_output_tokens if cap is None else cap)
    assert price == WorkEstimate(max(1, -(-text_bytes // 4)), output)


@patient
@given(texts, st.text("xy \u20ac", min_size=1, max_size=200), st.integers(1, 900))
def test_more_text_and_a_larger_cap_never_cost_less(said: list[str], more: str, cap: int) -> None:
    """The price grows with the text, the number of messages and the cap."""

    def price(contents: list[str], limit: int) -> WorkEstimate:
        document = {"messages": [{"content": c} for c in contents], "max_tokens": limit}
        body = json.dumps(document).encode()
        return estimate(parse(posted(body, "/v1/chat/completions")), RULES)

    base = price(said, cap)
    longer = price([*said, more], cap)
    assert longer.prompt_tokens >= base.prompt_tokens
    assert longer.output_tokens == base.output_tokens
    assert price(said, cap + 1).output_tokens == base.output_tokens + 1


@patient
@given(texts, st.data())
def test_cutting_a_text_body_never_makes_it_cheaper(said: list[str], data: st.DataObject) -> None:
    """Where the size is known, a cut loses at most the name or character it falls into."""
    body = json.dumps({"model": "m", "messages": [{"role": "u", "content": t} for t in said]})
    encoded = body.encode()
    cut = data.draw(st.integers(1, len(encoded)))
    whole = parse(posted(encoded, "/v1/chat/completions"))
    part = parse(posted(encoded, "/v1/chat/completions", cut))
    assert part.partial is (cut < len(encoded))
    assert not part.opaque
    # A surrogate pair, the longest thing dropped at a cut, stands for four bytes of text.
    assert part.text_bytes >= whole.text_bytes - 4
    assert part.model in {None, "m"}


@patient
@given(st.binary(max_size=300), st.sampled_from(PLAIN_PATHS), st.integers(0, 10**9))
def test_a_body_of_no_known_shape_costs_its_size(body: bytes, path: str, size: int) -> None:
    """Bytes that are no JSON cost what as much text would, on recognised paths too."""
    body = b"\x01" + body
    request = parse(HttpCall("POST", path, {}, body, size, partial=False))
    assert request.operation is Operation.OPAQUE
    assert request.text_bytes == max(size, len(body))
