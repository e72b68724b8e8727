"""Microseconds of one refused Check in the gate, read or unread: bytes in to bytes out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

from ext_authz.config.compile import load
from ext_authz.metrics import Metrics
from ext_authz.model import Reason
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate
from ext_authz.serving.wire import compile_messages
from ext_authz.snapshot import EndpointSample
from tests.benchmarks.names import DATA
from tests.benchmarks.stages import mean_us

# A client that comes back every millisecond, and for how long until it is known for that.
EVERY_S, WARM = 0.001, 3000
FULL, MEAN_S = 1e6, 10.0
# Refusals between two samples of all endpoints.
HEAR_EVERY = 100


def refusal_costs(config: Path) -> dict[str, dict[str, float]]:
    """`refused_us` of a key that is read, and of one that hammers (one in so many of its requests
    is read all the same)."""
    codec = Codec(compile_messages())
    data = (DATA / "check_chat_1k3.bin").read_bytes()
    out = {}
    for name, step_s in (("read", 0.0), ("unread", EVERY_S)):
        times = _times(step_s)
        gate = _full_gate(config)

        def refused(gate: Gate = gate, times: Iterator[tuple[float, int]] = times) -> Reason:
            now, number = next(times)
            if number % HEAR_EVERY == 0:
                _hear(gate, now)
            call = codec.decode_check(data)
            decision, api = gate.decide(call, now)
            codec.encode(decision, call, api)
            assert decision.endpoint is None
            return decision.reason

        reasons = [refused() for _ in range(WARM)]
        assert (reasons.count(Reason.HAMMERING) > WARM / 4) == (name == "unread")
        out[name] = round(mean_us(refused), 1)
    return {"refused_us": out}


def _times(step_s: float) -> Iterator[tuple[float, int]]:
    return ((1.0 + step_s * number, number) for number in count())


def _full_gate(config: Path) -> Gate:
    ids = (f"0123456789ab-{number:x}" for number in count())
    gate = Gate(load(config).settings, ids, Random(1), Metrics(), 0.0)
    _hear(gate, 1.0)
    return gate


def _hear(gate: Gate, now: float) -> None:
    """All endpoints are full of others' work."""
    for _, endpoint in gate.controller.endpoint_states():
        gate.observe(EndpointSample(endpoint.spec.address, now, FULL, 0.0, 0.1, 1e6, MEAN_S))
