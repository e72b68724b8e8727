"""Bytes that a fuzzer guided by coverage finds, held to what must be true of any request.

Run by hand, for `-max_total_time` seconds; what breaks is left as a file `crash-*` to be given as
an argument again:

    python -m venv .cache/fuzz
    .cache/fuzz/bin/pip install atheris -e .
    .cache/fuzz/bin/python -m tests.fuzz.seeds .cache/corpus
    .cache/fuzz/bin/python -m tests.fuzz.fuzz_parsing .cache/corpus -max_total_time=600 \\
        -max_len=4096 -len_control=0 -timeout=5
"""

from __future__ import annotations

import gzip
import sys
import zlib

import atheris

with atheris.instrument_imports(include=["ext_authz.estimation"]):
    from ext_authz.estimation.cost import MAX_TOKENS
    from ext_authz.estimation.parsing import MAX_SEQUENCES, parse
from ext_authz.model import HttpCall, InferenceRequest, Unread, WorkEstimate
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v2/models/m/infer",
    "/v2/models/m/generate",
    "/generate",
    "/v1/rerank",
    "/v1/audio/transcriptions",
    "/v1/images/generations",
    "/v1/images/edits",
    "/tokenize",
    "/inference.GRPCInferenceService/ModelInfer",
    "/inference.GRPCInferenceService/ModelStreamInfer",
    "/elsewhere",
)
HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"content-type": "application/grpc", "grpc-encoding": "gzip"},
    {"content-type": "application/grpc", "grpc-encoding": "deflate"},
    {"content-type": "multipart/form-data; boundary=b"},
    {"content-encoding": "gzip"},
    {"content-encoding": "deflate"},
    {"content-encoding": "br"},
    {"inference-header-content-length": "40"},
)
RULES = CostRules()


def check(request: InferenceRequest, call: HttpCall) -> WorkEstimate:
    """Raise AssertionError if a measured request breaks a bound."""
    assert request.unread is not Unread.FAULT
    assert request.opaque is (request.unread is not None)
    assert min(request.text_bytes, request.token_ids, request.images) >= 0
    assert 1 <= request.prompts <= MAX_SEQUENCES
    assert 1 <= request.sequences <= MAX_SEQUENCES
    cost = estimate(request, RULES)
    assert 1 <= cost.prompt_tokens <= MAX_TOKENS
    assert 0 <= cost.output_tokens <= MAX_TOKENS
    if request.opaque:
        assert cost.tokens >= RULES.opaque_tokens
        if "content-encoding" not in call.headers:
            assert request.text_bytes >= len(call.body)
    return cost


def one_input(data: bytes) -> None:
    """One run: the last bytes choose path, headers, packing and cut, the others are the body."""
    feed = atheris.FuzzedDataProvider(data)
    path = PATHS[feed.ConsumeIntInRange(0, len(PATHS) - 1)]
    headers = HEADERS[feed.ConsumeIntInRange(0, len(HEADERS) - 1)]
    packing = feed.ConsumeIntInRange(0, 5)
    # From the end, like the others: a boolean would take the first byte of the body.
    cut = feed.ConsumeIntInRange(0, 3) == 0
    beyond = feed.ConsumeIntInRange(0, 1 << 21) if cut else 0
    body = feed.ConsumeBytes(feed.remaining_bytes())
    if packing == 1:
        body = gzip.compress(body)
    elif packing == 2:
        body = zlib.compress(body)
    elif packing == 3:
        body = b"\0" + len(body).to_bytes(4, "big") + body
    elif packing == 4:
        packed = gzip.compress(body)
        body = b"\1" + len(packed).to_bytes(4, "big") + packed
    call = HttpCall("POST", path, headers, body, len(body) + beyond, beyond > 0)
    cost = check(parse(call), call)
    hidden = HttpCall("POST", "/x/.." + path, headers, body, len(body) + beyond, beyond > 0)
    other = check(parse(hidden), hidden)
    assert other.prompt_tokens >= cost.prompt_tokens
    assert other.output_tokens >= cost.output_tokens


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
