"""Calls that are held: told later, in time, and forgotten when they leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from grpc import aio

from ext_authz.admission.ledger import Reservation
from ext_authz.admission.measures import Count
from ext_authz.clock import SystemClock
from ext_authz.model import Outcome, Verdict
from ext_authz.overload import HoldRules
from ext_authz.serving.check import CheckService
from ext_authz.serving.cohort import Cohorts
from ext_authz.serving.server import GrpcHost
from ext_authz.serving.services import AUTHORIZATION
from ext_authz.snapshot import EndpointSample
from tests.support.access_log_entries import USUAL
from tests.support.service import WIRE, Service, chat
from tests.support.settings import make_settings


class Caller:
    """A call's context."""

    def time_remaining(self) -> float | None:
        return 0.5


def holding(slots: int = 4, limit_s: float = 0.2) -> Service:
    """A service that holds, all of whose slots are taken, each for 50 ms on average."""
    service = Service(slots)
    before = service.gate.settings
    admission = replace(before.admission, hold=HoldRules(limit_s))
    service.gate.reconfigure(replace(before, admission=admission), service.clock.now())
    now = service.clock.now()
    for _, endpoint in service.gate.controller.endpoint_states():
        endpoint.execution.measured(0.05, now)
    return service


async def full(service: Service, slots: int = 4) -> None:
    for number in range(slots):
        answer = await service.check(chat(request_id=f"full-{number}"))
        assert answer.HasField("ok_response")


async def held(service: Service, remaining_s: float = 0.5) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(service.check(chat(request_id="held"), remaining_s))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


async def test_a_held_call_is_let_in_when_a_slot_comes_free() -> None:
    """It is told as soon as a request ends, and the journal has how long it waited and why."""
    service = holding()
    await full(service)
    task = await held(service)
    assert not task.done()
    assert service.in_flight == 4
    service.clock.at_s += 0.03
    gone = next(iter(service.gate.controller.ledger)).id
    service.gate.controller.settle(Outcome(gone, 200, 0.05, None), service.clock.now())
    service.gate.observe(EndpointSample("p-0:80", service.clock.now(), running=3, waiting=0))
    answer = await asyncio.wait_for(task, 1.0)
    assert answer.HasField("ok_response")
    decision = service.gate.journal.recent(1)[0].decision
    assert decision.verdict is Verdict.ADMIT
    assert decision.held is not None
    assert round(decision.held.seconds, 6) == 0.03
    assert service.in_flight == 4


@pytest.mark.parametrize(("duration_s", "kept"), [(0.99, 1), (1.01, 0)])
async def test_what_it_waited_is_none_of_the_servers_time(duration_s: float, kept: int) -> None:
    """The log counts from the first byte in: that is what the promise is held against, and what
    was waited here is taken from what is learned of the server."""
    service = holding()
    await full(service)
    task = await held(service)
    service.clock.at_s += 0.125
    gone = next(iter(service.gate.controller.ledger)).id
    service.gate.controller.settle(Outcome(gone, 200, 0.05, None), service.clock.now())
    service.gate.observe(EndpointSample("p-0:80", service.clock.now(), running=3, waiting=0))
    assert (await asyncio.wait_for(task, 1.0)).HasField("ok_response")
    decision = service.gate.journal.recent(1)[0].decision
    booked_s = service.clock.now()
    learned: list[tuple[Reservation, Outcome]] = []
    service.gate.on_lesson = lambda charged, outcome, _: learned.append((charged, outcome))
    counts = service.gate.controller.pools.by_name["p"].measures.counts
    before = counts[Count.KEPT], counts[Count.BROKEN]
    entry = replace(USUAL, decision_id=decision.reservation_id or "", duration_s=duration_s)
    service.clock.at_s += 2.0
    entry = replace(entry, upstream="p-0:80", sent_after_s=0.125)
    service.gate.ended(entry, service.clock.now())
    service.gate.learn(10, service.clock.now())
    ((charged, outcome),) = learned
    assert charged.ask is not None
    assert charged.ask.held_s == 0.125
    assert outcome.duration_s == pytest.approx(duration_s - 0.125)
    assert outcome.ended_s == pytest.approx(booked_s + duration_s - 0.125)
    now_kept, now_broken = counts[Count.KEPT], counts[Count.BROKEN]
    assert (now_kept - before[0], now_broken - before[1]) == (kept, 1 - kept)


async def test_a_held_call_that_leaves_holds_nothing() -> None:
    """Its ticket is gone, and the slot that comes free is another's."""
    service = holding()
    await full(service)
    task = await held(service)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert len(service.gate.controller.holding) == 0
    assert service.in_flight == 4


async def test_whoever_leaves_a_cohort_while_he_waits_is_forgotten() -> None:
    """The host cancels the call; the task that waits for its decision ends with it."""
    service = holding()
    await full(service)
    cohorts = Cohorts(service.checks)
    call = asyncio.ensure_future(cohorts.check(chat(request_id="held"), Caller()))
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(service.gate.controller.holding) == 1
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(service.gate.controller.holding) == 0


async def test_who_has_no_time_is_not_held() -> None:
    """With less than the time for an answer left, it is refused at once."""
    service = holding()
    await full(service)
    answer = await asyncio.wait_for(service.check(chat(), 0.05), 1.0)
    assert answer.denied_response.status.code == 429


async def test_a_drain_decides_what_waits() -> None:
    """At once, and holds nothing more."""
    service = holding()
    await full(service)
    task = await held(service)
    service.gate.close(service.clock.now())
    answer = await asyncio.wait_for(task, 1.0)
    assert answer.denied_response.status.code == 429


async def test_over_real_grpc_a_call_that_leaves_is_forgotten_and_a_late_one_is_told_in_time() -> (
    None
):
    """One cancels while it is held; another's deadline leaves 30 ms to wait: both end in time."""
    service = holding()
    await full(service)
    wired = CheckService(service.gate, service.codec, SystemClock())
    offset_s = service.clock.now() - SystemClock().now()
    wired._clock = wired._waiters._clock = Shifted(offset_s)
    server = make_settings(grpc_listen="127.0.0.1:0").server
    host = GrpcHost(server, WIRE, wired, service.sink, service.taps)
    port = await host.start()
    async with aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary(f"/{AUTHORIZATION}/Check")
        leaves = check(chat(request_id="leaves"), timeout=1.0)
        await until(lambda: len(service.gate.controller.holding) == 1)
        leaves.cancel()
        await until(lambda: len(service.gate.controller.holding) == 0)
        answer = await check(chat(request_id="short"), timeout=0.25)
        told = WIRE.check_response.FromString(answer)
        assert told.denied_response.status.code == 429
        assert service.in_flight == 4
    await host.drain()


class Shifted:
    """The real clock, as far from its own time as the standing one was."""

    def __init__(self, offset_s: float) -> None:
        self._offset_s = offset_s

    def now(self) -> float:
        return SystemClock().now() + self._offset_s

    def wall(self) -> float:
        return SystemClock().wall()


async def until(done: Callable[[], bool]) -> None:
    for _ in range(5000):
        if done():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")
