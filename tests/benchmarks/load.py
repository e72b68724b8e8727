"""Load as Envoy puts it on a gate: Checks on one connection, and how they ended on another."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from random import Random
from uuid import uuid4

from tests.benchmarks.http2 import Http2Client
from tests.benchmarks.names import CHECK_PATH, DATA, KEYS
from tests.benchmarks.outcomes import Outcomes

WARM_UP_S = 0.4
_REQUEST_ID = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def checks() -> Iterator[bytes]:
    """The captured Check, from one tenant after the other, each with a request id of its own."""
    captured = (DATA / "check_chat_1k3.bin").read_bytes()
    found = _REQUEST_ID.search(captured)
    assert found is not None
    before, after = captured[: found.start()], captured[found.end() :]
    parts = [before.replace(KEYS[0].encode(), key.encode()) for key in KEYS]
    assert len(set(parts)) == len(KEYS)
    base = uuid4().hex[:20].encode()
    for number, part in enumerate(cycle(parts)):
        yield b"".join(
            (
                part,
                base[:8],
                b"-",
                base[8:12],
                b"-",
                base[12:16],
                b"-",
                base[16:],
                b"-%012x" % number,
                after,
            )
        )


@dataclass(slots=True)
class Run:
    """What one run saw. `latencies_s` is from when a call was due to its answer, and `due_s` when
    that was, of each call of an open loop (monotonic seconds)."""

    seconds: float
    calls: int = 0
    latencies_s: list[float] = field(default_factory=list)
    due_s: list[float] = field(default_factory=list)
    client_cpu_s: float = 0.0
    elapsed_s: float = 0.0

    @property
    def rps(self) -> float:
        return self.calls / self.seconds

    def quantile_s(self, part: float) -> float:
        return quantile(self.latencies_s, part)


def quantile(values: list[float], part: float) -> float:
    """The value that `part` of them do not exceed."""
    return sorted(values)[int(part * len(values))]


def closed_loop(port: int, outcomes: Outcomes | None, concurrency: int, seconds: float) -> Run:
    """As many calls as the server answers with `concurrency` of them open at any time."""
    client = Http2Client(port, CHECK_PATH)
    messages = checks()
    run = Run(seconds)
    begin = time.monotonic() + WARM_UP_S
    end = begin + seconds
    cpu_s = time.process_time()
    for _ in range(concurrency):
        client.call(next(messages))
    now = time.monotonic()
    while now < end:
        done = client.poll(0.01)
        now = time.monotonic()
        for _, answer in done:
            if outcomes is not None:
                outcomes.answered(answer, now)
            client.call(next(messages))
        if now > begin:
            run.calls += len(done)
        if outcomes is not None:
            outcomes.flush(now)
    run.elapsed_s = seconds + WARM_UP_S
    run.client_cpu_s = (time.process_time() - cpu_s) * seconds / (seconds + WARM_UP_S)
    _drain(client, outcomes, concurrency)
    return run


def open_loop(port: int, outcomes: Outcomes | None, rps: float, seconds: float, seed: int) -> Run:
    """Calls at random times, `rps` of them a second on average, answered or not."""
    client = Http2Client(port, CHECK_PATH)
    messages = checks()
    rng = Random(seed)
    run = Run(seconds)
    due: dict[int, float] = {}
    now = start = time.monotonic()
    next_s = start
    while now < start + WARM_UP_S + seconds:
        while next_s <= now:
            due[client.call(next(messages))] = next_s
            next_s += rng.expovariate(rps)
        done = client.poll(next_s - time.monotonic())
        now = time.monotonic()
        for stream, answer in done:
            due_s = due.pop(stream)
            if due_s > start + WARM_UP_S:
                run.latencies_s.append(now - due_s)
                run.due_s.append(due_s)
            if outcomes is not None:
                outcomes.answered(answer, now)
        if outcomes is not None:
            outcomes.flush(now)
    run.calls = len(run.latencies_s)
    run.elapsed_s = seconds + WARM_UP_S
    _drain(client, outcomes, len(due))
    return run


def _drain(client: Http2Client, outcomes: Outcomes | None, open_calls: int) -> None:
    """Take in the answers that are still to come: what they admitted has to end too."""
    give_up_s = time.monotonic() + 5.0
    while open_calls > 0 and time.monotonic() < give_up_s:
        for _, answer in client.poll(0.1):
            open_calls -= 1
            if outcomes is not None:
                outcomes.answered(answer, time.monotonic())
    client.close()
