"""A wall clock that jumps: only monotonic time counts, through the whole Check service."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from itertools import count
from random import Random
from typing import Any

from ext_authz.metrics import Metrics
from ext_authz.serving.check import CheckService
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate
from ext_authz.serving.wire import compile_messages
from ext_authz.settings import FallbackAction, TenantLimits
from tests.support.settings import make_pool, make_settings
from tests.support.world import tenant

WIRE = compile_messages()
DAY_S = 86_400.0


class SteppingClock:
    """Monotonic time as told; wall time that jumps two days back, then an hour forward, at every
    reading."""

    def __init__(self) -> None:
        self.monotonic_s = 1000.0
        self._wall_s = 1.7e9
        self._readings = count()

    def now(self) -> float:
        return self.monotonic_s

    def wall(self) -> float:
        self._wall_s += -2 * DAY_S if next(self._readings) % 2 == 0 else 3600.0
        return self._wall_s


def check_bytes() -> bytes:
    """A small chat request of the tenant."""
    message: Any = WIRE.check_request()
    http = message.attributes.request.http
    http.method, http.path = "POST", "/v1/chat/completions"
    http.headers["authorization"] = "Bearer known"
    http.raw_body = json.dumps({"model": "m", "max_tokens": 1, "messages": []}).encode()
    return bytes(message.SerializeToString())


async def test_wall_clock_steps_change_nothing() -> None:
    """Bucket 10/s with a burst of 10, drained to 4, one request every 0.1 s while the wall clock
    jumps by days: each finds its one token back, and the level never moves otherwise."""
    limits = TenantLimits(requests_per_second=10.0, request_burst=10.0)
    made = make_settings((make_pool("p", "e:80", slots=1000),), (tenant("a", limits=limits),))
    admission = replace(made.admission, fallback=FallbackAction.ADMIT_ALL)
    keys = {sha256(b"known").digest(): "a"}
    ids = (f"d{number}" for number in count())
    clock = SteppingClock()
    gate = Gate(
        replace(made, admission=admission, keys=keys), ids, Random(1), Metrics(), clock.now()
    )
    checks = CheckService(gate, Codec(WIRE), clock)
    bucket = gate.controller._decider.limits._accounts["a"].requests
    assert bucket is not None

    async def admitted() -> bool:
        answer: Any = WIRE.check_response.FromString(await checks.check(check_bytes(), None))
        return bool(answer.status.code == 0)

    assert all([await admitted() for _ in range(6)])
    assert bucket.level(clock.now()) == 4.0
    for _ in range(100):
        clock.monotonic_s += 0.1
        assert abs(bucket.level(clock.now()) - 5.0) < 1e-6
        assert await admitted()
    # Twelve at one instant: what is left is admitted, then the hint is what the rate explains.
    results = [await admitted() for _ in range(12)]
    assert results == [True] * 4 + [False] * 8
    refused = gate.journal.recent(8)
    assert all(e.decision.retry is not None for e in refused)
    spread = [e.decision.retry.after_s for e in refused if e.decision.retry is not None]
    assert min(spread) >= 0.1 - 1e-6
    assert max(spread) <= 0.1 + 8 * 0.1 + 1e-6
    clock.monotonic_s -= 5.0
    assert bucket.level(clock.now()) < 0.01
    assert not await admitted()
