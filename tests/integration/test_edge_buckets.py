"""The edge's own token buckets, measured on the real Envoy.

There is no gate behind it and the edge is closed, so a request that passes the buckets is answered
503 by Envoy itself, at full speed; one that a bucket refused is answered 429.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from ext_authz.settings import EdgeSettings
from tests.support.envoy import Envoy, start_envoy
from tests.support.ports import free_port
from tests.support.settings import make_edge, make_pool, make_settings

pytestmark = pytest.mark.slow

# So slow that nothing comes back during a test: what passes is the burst.
_NO_REFILL = 0.001


@contextmanager
def _envoy(edge: EdgeSettings, tmp_path: Path, without_total: bool = False) -> Iterator[Envoy]:
    pools = [make_pool("p", "127.0.0.1:1")]
    settings = make_settings(pools, edge=edge, grpc_listen=f"127.0.0.1:{free_port()}")
    widen = _widen_total if without_total else None
    envoy = start_envoy(settings, tmp_path, edit=widen)
    with envoy.process:
        yield envoy


def _widen_total(text: str) -> str:
    """The same config with a first bucket that never refuses anything."""
    endless = r"\1{max_tokens: 1000000, tokens_per_fill: 1000000, fill_interval: 1s}"
    changed, count = re.subn(r"(stat_prefix: edge_total\n +token_bucket: )\{.*\}", endless, text)
    assert count == 1
    return changed


def _passed(envoy: Envoy, requests: Sequence[str]) -> list[bool]:
    """Send requests, each a header line, one after the other; which ones passed."""
    host, port = envoy.url.removeprefix("http://").split(":")
    passed: list[bool] = []
    with socket.create_connection((host, int(port)), timeout=5.0) as connection:
        for line in requests:
            # HEAD: answers have no body to skip.
            connection.sendall(f"HEAD /v1/x HTTP/1.1\r\nhost: x\r\n{line}\r\n\r\n".encode())
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                piece = connection.recv(4096)
                assert piece, answer
                answer += piece
            assert answer[9:12] in {b"429", b"503"}, answer
            passed.append(answer[9:12] == b"503")
    return passed


async def test_what_an_edge_refusal_carries(tmp_path: Path) -> None:
    """429 with whole seconds to wait, the header that stops mesh retries, and a JSON body."""
    edge = make_edge(requests_per_second=0.25, burst=1)
    with _envoy(edge, tmp_path) as envoy:
        async with aiohttp.ClientSession(headers={"x-api-key": "k"}) as client:
            for expected in (503, 429):
                async with client.post(f"{envoy.url}/v1/x") as reply:
                    assert reply.status == expected
                    headers, text = reply.headers, await reply.text()
    assert 3 <= int(headers["retry-after"]) <= 4
    assert headers["x-envoy-ratelimited"] == "true"
    assert json.loads(text)["error"]["type"] == "rate_limit_error"
    assert not [name for name in headers if name.lower().startswith("x-ratelimit")]


@pytest.mark.parametrize(
    "spellings",
    [
        ["x-api-key: k"],
        ["authorization: Bearer k", "authorization: bearer k", "authorization: BEARER   k"],
        ["authorization: Bearer k", "x-api-key: k", "X-Api-Key:   k  "],
        # A second key, new each time, does not help.
        [f"authorization: Bearer k\r\nx-api-key: made-up-{place}" for place in range(40)],
        [f"x-api-key: k\r\nauthorization: Basic made-up-{place}" for place in range(40)],
    ],
)
def test_one_key_has_one_bucket(tmp_path: Path, spellings: list[str]) -> None:
    """However a key is written and whatever comes with it, it is charged to the same bucket."""
    edge = make_edge(requests_per_second=_NO_REFILL, burst=10, max_keys=2_000_000)
    with _envoy(edge, tmp_path, without_total=True) as envoy:
        requests = (spellings * 40)[:40]
        assert sum(_passed(envoy, requests)) == 10
        assert sum(_passed(envoy, ["x-api-key: another"] * 40)) == 10


def test_keyless_requests_share_one_bucket(tmp_path: Path) -> None:
    """No key, or an empty one, draws on the keyless bucket and leaves keys alone."""
    edge = make_edge(keyless_requests_per_second=5)
    keyless = ["x-other: 1", "x-api-key:", "authorization:"] * 20
    with _envoy(edge, tmp_path) as envoy:
        started = time.monotonic()
        count = sum(_passed(envoy, keyless))
        assert 5 <= count <= 5 + 5 * (time.monotonic() - started) + 1
        assert all(_passed(envoy, ["x-api-key: k"] * 20))


def test_the_rate_of_one_key(tmp_path: Path) -> None:
    """Twice the limit for three seconds passes the burst plus the limit, to within 5 %."""
    rate, burst = 200, 50
    with _envoy(make_edge(requests_per_second=rate, burst=burst), tmp_path) as envoy:
        started = time.monotonic()
        count = 0
        while (elapsed := time.monotonic() - started) < 3.0:
            count += sum(_passed(envoy, ["x-api-key: k"] * 20))
            time.sleep(0.05)
    assert count == pytest.approx(burst + rate * elapsed, rel=0.05)


@dataclass(frozen=True, slots=True)
class _Flood:
    """What two real keys got while 20,000 made-up ones were thrown at the edge."""

    patient: int
    eager: int
    limit: float


def _flood(envoy: Envoy, edge: EdgeSettings) -> _Flood:
    """The patient key spends a burst and waits to be forgotten; the eager one never stops."""
    patient = eager = sent = 0
    started = time.monotonic()
    while sent < 20_000:
        patient += sum(_passed(envoy, ["x-api-key: patient"] * (edge.burst + 10)))
        batch = [f"x-api-key: {sent + place}" for place in range(edge.max_keys * 5 // 4)]
        sent += len(batch)
        batch[::10] = ["x-api-key: eager"] * len(batch[::10])
        eager += sum(
            passed
            for line, passed in zip(batch, _passed(envoy, batch), strict=True)
            if line.endswith("eager")
        )
    elapsed = time.monotonic() - started
    return _Flood(patient, eager, edge.burst + edge.requests_per_second * elapsed)


def test_made_up_keys_do_not_refill_a_real_one(tmp_path: Path) -> None:
    """20,000 keys pushed through a memory of 1,000 lift no key above 1.1 times its limit.

    Without the bucket in front of the keys' own the same flood does, so the test can tell.
    """
    edge = make_edge(requests_per_second=20, burst=50, max_keys=1000)
    with _envoy(edge, tmp_path) as envoy:
        guarded = _flood(envoy, edge)
    with _envoy(edge, tmp_path, without_total=True) as envoy:
        bare = _flood(envoy, edge)
    print(guarded, bare)
    assert bare.patient > 1.5 * bare.limit
    assert guarded.patient <= 1.1 * guarded.limit
    assert guarded.eager <= 1.1 * guarded.limit
