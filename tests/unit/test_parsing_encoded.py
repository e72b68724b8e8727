"""Compressed bodies: what is inflated, how far, and what the rest is taken for."""

from __future__ import annotations

import gzip
import json
import os
import time
import zlib
from collections.abc import Callable

import pytest

from ext_authz.estimation.parsing import parse
from ext_authz.estimation.shapes import encoded
from ext_authz.estimation.shapes.document import MAX_PARSE_BYTES, Body
from ext_authz.model import HttpCall, InferenceRequest, Operation, Unread
from ext_authz.settings import CostRules
from tests.support.pricing import estimate

CHAT = "/v1/chat/completions"
RULES = CostRules()


def raw_deflate(data: bytes) -> bytes:
    machine = zlib.compressobj(wbits=-15)
    return machine.compress(data) + machine.flush()


def said(text: str, cap: int = 9) -> bytes:
    document = {"model": "m1", "max_tokens": cap, "messages": [{"role": "user", "content": text}]}
    return json.dumps(document).encode()


def at(body: bytes, coding: str, size: int | None = None, path: str = CHAT) -> InferenceRequest:
    whole = len(body) if size is None else size
    headers = {"content-encoding": coding}
    return parse(HttpCall("POST", path, headers, body, whole, partial=whole > len(body)))


@pytest.mark.parametrize(
    ("coding", "pack"),
    [
        ("gzip", gzip.compress),
        ("GZip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("identity, gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
    ],
)
def test_a_packed_body_costs_what_it_would_unpacked(
    coding: str, pack: Callable[[bytes], bytes]
) -> None:
    """Model, cap and text are those of the document inside, to the byte."""
    body = said("hello there, " * 300)
    plain = parse(HttpCall("POST", CHAT, {}, body, len(body), partial=False))
    assert not plain.partial
    assert at(pack(body), coding) == plain


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br", "nonsense"])
def test_what_is_not_inflated_is_priced_from_its_size(coding: str) -> None:
    """Other codings, and several at once, count eight times their bytes."""
    body = os.urandom(3000)
    request = at(body, coding)
    assert (request.unread, request.text_bytes) == (Unread.ENCODED, 8 * len(body))


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_what_only_claims_to_be_packed_is_read(coding: str) -> None:
    """A document under a false name costs more than under none, and its cap counts."""
    request = at(said("x", 9000), coding)
    assert (request.unread, request.output_cap_tokens) == (Unread.ENCODED, 9000)
    assert not parse(
        HttpCall("POST", CHAT, {"content-encoding": " identity"}, b"{}", 2, False)
    ).opaque


def test_a_cut_packed_body_is_read_as_far_as_it_goes() -> None:
    """What arrived is read, and the rest is taken to be packed as tightly."""
    text = " ".join(str(number * 7919 % 10007) for number in range(10_000))
    body = said(text)
    packed = gzip.compress(body)
    request = at(packed[: len(packed) // 3], "gzip", len(packed))
    assert (request.model, request.output_cap_tokens) == ("m1", 9)
    assert (request.partial, request.opaque) == (True, False)
    assert request.text_bytes == pytest.approx(len(body), rel=0.25)


def test_a_long_packed_body_is_counted_to_its_end() -> None:
    """Of what is too long to be read the size is still known, up to the bound."""
    body = said("All work and no play makes Jack a dull boy. " * 5_000)
    request = at(gzip.compress(body), "gzip")
    assert request.partial
    assert MAX_PARSE_BYTES < request.text_bytes < len(body) <= request.text_bytes + 200


def test_junk_in_front_hides_nothing() -> None:
    """Text that packs well is counted behind bytes that do not pack at all, as far as it is seen,
    and priced by its size where it is not."""
    junk = json.dumps({"metadata": os.urandom(20_000).hex()}).encode()[:-1]
    body = junk + b',"messages":[{"content":"' + b"a" * 400_000 + b'"}]}'
    assert at(gzip.compress(body), "gzip").text_bytes > 400_000
    packed = gzip.compress(body)
    unseen = at(packed[:19_000], "gzip", len(packed))
    assert unseen.text_bytes >= encoded.LEAST_EXPANSION * (len(packed) - 19_000)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, raw_deflate])
def test_a_bomb_is_inflated_to_a_bound_and_costs_what_it_holds(
    pack: Callable[[bytes], bytes],
) -> None:
    """Sixty megabytes in as many kilobytes: no more than the bound comes out, all is charged."""
    bomb = pack(said("a" * 60_000_000))
    coding = "gzip" if pack is gzip.compress else "deflate"
    start = time.process_time()
    request = at(bomb, coding)
    assert time.process_time() - start < 0.5
    assert request.text_bytes > 0.9 * 60_000_000
    assert estimate(request, RULES).prompt_tokens > 10_000_000


def test_no_more_is_inflated_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large the bomb, what comes out of it in all is bounded."""
    made: list[int] = []
    real = zlib.decompressobj

    class Counting:
        def __init__(self, wrapping: int) -> None:
            self._machine = real(wrapping)

        def __getattr__(self, name: str) -> object:
            return getattr(self._machine, name)

        def decompress(self, data: bytes, most: int) -> bytes:
            out = self._machine.decompress(data, most)
            made.append(len(out))
            return out

    monkeypatch.setattr(encoded.zlib, "decompressobj", Counting)
    bomb = gzip.compress(b"a" * 30_000_000)
    whole = encoded.inflate(Body(bomb, len(bomb), False, False), ["gzip"])
    assert whole is not None
    assert len(whole.window) == MAX_PARSE_BYTES
    assert sum(made) <= encoded.MAX_INFLATED_BYTES + MAX_PARSE_BYTES


@pytest.mark.parametrize("harm", ["cut", "flipped", "followed"])
def test_a_damaged_body_is_no_cheaper(harm: str) -> None:
    """Cut short without saying so, broken in the middle, or with another body behind it."""
    body = said("".join(chr(97 + number * 31 % 26) for number in range(30_000)))
    packed = gzip.compress(body)
    harmed = {
        "cut": packed[:-9],
        "flipped": packed[:-6] + b"\xff\xff" + packed[-4:],
        "followed": packed + gzip.compress(b"a" * 100_000),
    }[harm]
    request = at(harmed, "gzip")
    assert request.text_bytes >= len(body) - 100
    assert request.partial or request.opaque


def test_a_packed_body_on_an_unknown_path_is_inflated_too() -> None:
    """No path makes a cap or a length inside disappear."""
    body = said("hello " * 5000, 7000)
    request = at(gzip.compress(body), "gzip", path="/elsewhere")
    assert (request.operation, request.output_cap_tokens) == (Operation.OPAQUE, 7000)
    assert request.text_bytes >= len(body)
