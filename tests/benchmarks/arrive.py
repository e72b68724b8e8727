"""Microseconds of one decision by how many tenants share and how many endpoints there are.

The controller alone, with what it has learned: nothing of the network, the codec or the parsing.
Every tenant counts among those that share, half of the slots are in use, and virtual time runs at
`RATE_RPS`, so that what is brought up to date now and then has its part in the figure.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import chain, count, cycle
from random import Random
from statistics import median
from typing import Any

from ext_authz.admission.controller import Controller
from ext_authz.model import Outcome
from tests.support import world

TENANTS = (10, 1_000, 100_000)
ENDPOINTS = (8, 128, 1_000)
# The others of each series, and the pair that the aim is set for.
TENANTS_ELSE, ENDPOINTS_ELSE = 1_000, 8
RATE_RPS = 10_000.0
SLOTS, RUNS_S = 64, 0.2
WARM, ROUNDS, BATCH = 8, 9, 256
# How often, in virtual time, all endpoints tell of their load.
SCRAPE_S = 0.5
# Nobody waits longer than this for the tenants to be seen, or for the rounds of one figure.
LONGEST_S = 20.0


def arrive_costs() -> dict[str, Any]:
    """`arrive_us` by "tenants x endpoints"."""
    pairs = dict.fromkeys(
        chain(
            ((tenants, ENDPOINTS_ELSE) for tenants in TENANTS),
            ((TENANTS_ELSE, endpoints) for endpoints in ENDPOINTS),
        )
    )
    return {"arrive_us": {f"{t} x {e}": round(arrive_us(t, e), 1) for t, e in pairs}}


def arrive_us(tenants: int, endpoints: int) -> float:
    """Processor time of one decision: the mean of a batch, the median over batches. What ends
    and what is learned meanwhile is left out."""
    rig = _Rig(tenants, endpoints)
    # Until every tenant has been seen, and forecasts are more than a mean.
    rig.batches_us(max(WARM, -(-tenants // BATCH)))
    return median(rig.batches_us(ROUNDS))


class _Rig:
    """One controller, its pool half full, asked by one tenant after the other."""

    def __init__(self, tenants: int, endpoints: int) -> None:
        names = [f"tenant-{number}" for number in range(tenants)]
        pool = world.pool("p", slots=SLOTS, endpoints=endpoints)
        self._config = world.settings((pool,), tuple(map(world.tenant, names)))
        self._controller = Controller(self._config, Random(1), 0.0)
        self._names = cycle(names)
        self._chance = Random(2)
        self._ids = count()
        self._now = self._scraped_s = 0.0
        self._most = SLOTS * endpoints // 2
        self._running: deque[str] = deque()
        self._scrape()

    def batches_us(self, most: int) -> list[float]:
        """Microseconds of a decision, by batch: of `most`, or as many as there is time for."""
        began_s, found = time.monotonic(), [self._batch_us()]
        while len(found) < most and time.monotonic() - began_s < LONGEST_S:
            found.append(self._batch_us())
        return found

    def _batch_us(self) -> float:
        asks = [
            world.ask_of(self._config, next(self._names), f"0123456789ab-{next(self._ids):x}")
            for _ in range(BATCH)
        ]
        times = [self._now + number / RATE_RPS for number in range(1, BATCH + 1)]
        arrive = self._controller.arrive
        began_s = time.thread_time()
        decisions = [arrive(ask, now) for ask, now in zip(asks, times, strict=True)]
        spent_s = time.thread_time() - began_s
        self._now = times[-1]
        self._running.extend(d.reservation_id for d in decisions if d.reservation_id is not None)
        while len(self._running) > self._most:
            self._end(self._running.popleft())
        if self._now - self._scraped_s >= SCRAPE_S:
            self._scrape()
        return spent_s / BATCH * 1e6

    def _end(self, reservation_id: str) -> None:
        seconds = RUNS_S * self._chance.uniform(0.8, 1.2)
        outcome = Outcome(reservation_id, 200, seconds, None)
        charged = self._controller.settle(outcome, self._now)
        if charged is not None and charged.stay is not None:
            self._controller.learn(charged, outcome, charged.stay.work)

    def _scrape(self) -> None:
        self._scraped_s = self._now
        for _, endpoint in self._controller.endpoint_states():
            told = world.sample(
                endpoint.spec.address, self._now, float(endpoint.own), kv=(0.1, 1e6)
            )
            self._controller.observe(told)
