"""The gate's own time for one Check, bytes in to bytes out, without any network: a hundred tenants
in turn, what was let in ends and is learned from, and endpoints tell of their load meanwhile."""

from __future__ import annotations

import gc
import time
from collections import deque
from itertools import count
from pathlib import Path
from random import Random

from ext_authz.config.compile import load
from ext_authz.metrics import Metrics
from ext_authz.serving.check import CheckService
from ext_authz.serving.codec import Codec
from ext_authz.serving.collecting import Collecting
from ext_authz.serving.gate import Gate
from ext_authz.serving.wire import compile_messages
from ext_authz.snapshot import EndpointSample
from tests.benchmarks.load import checks, quantile
from tests.benchmarks.outcomes import End, EntryWriter, end_of

RATE_RPS, RUNS_S, SCRAPE_S = 3000.0, 0.1, 0.1
# Checks between two messages of the access log, and lessons after each.
FLUSH, LESSONS = 60, 10
WARM, CHECKS = 3000, 20_000

WHOLE = ("check_us", "check_p99_us", "entry_us")
"""What `whole_costs` gives."""


def whole_costs(config: Path) -> dict[str, float]:
    """Processor time in microseconds: of a Check the median and the p99, walks of the cycle
    collector included, and of an access-log entry the mean."""
    rig, collecting = _Rig(config), Collecting()
    for _ in range(WARM):
        rig.check_us()
    gc.collect()
    gc.freeze()
    collecting.start()
    try:
        rig.entries, rig.entries_s = 0, 0.0
        times = [rig.check_us() for _ in range(CHECKS)]
    finally:
        collecting.stop()
        gc.unfreeze()
    return {
        "check_us": round(quantile(times, 0.5), 1),
        "check_p99_us": round(quantile(times, 0.99), 1),
        "entry_us": round(rig.entries_s / rig.entries * 1e6, 1),
    }


class _Rig:
    """A gate and the time it is told."""

    def __init__(self, config: Path) -> None:
        self._asked = 0
        settings = load(config).settings
        ids = (f"0123456789ab-{number:x}" for number in count(4096))
        self._gate = Gate(settings, ids, Random(1), Metrics(), self.now())
        self._codec = Codec(compile_messages(), settings.admission.retry.cap_s)
        self._service = CheckService(self._gate, self._codec, self)
        self._checks, self._writer = checks(), EntryWriter()
        self._running: deque[tuple[float, End]] = deque()
        self._scraped_s = 0.0
        self.entries, self.entries_s = 0, 0.0

    def now(self) -> float:
        return 1000.0 + self._asked / RATE_RPS

    def wall(self) -> float:
        return 1.7e9 + self.now()

    def check_us(self) -> float:
        """One Check; then what has happened meanwhile."""
        self._asked += 1
        if self.now() >= self._scraped_s + SCRAPE_S:
            self._scrape()
        request = next(self._checks)
        began_s = time.thread_time()
        try:
            self._service.check(request, 1.0).send(None)
        except StopIteration as done:
            spent_s = time.thread_time() - began_s
            if (end := end_of(done.value)) is not None:
                self._running.append((self.now() + RUNS_S, end))
        else:
            raise RuntimeError("held")
        if self._asked % FLUSH == 0:
            self._end()
        return spent_s * 1e6

    def _end(self) -> None:
        over = []
        while self._running and self._running[0][0] <= self.now():
            over.append(self._running.popleft()[1])
        message = self._writer.message(over)
        began_s = time.thread_time()
        for entry in self._codec.split_access_log(message):
            decoded = self._codec.decode_entry(entry)
            if decoded is not None:
                self._gate.ended(decoded, self.now())
        self.entries_s += time.thread_time() - began_s
        self.entries += len(over)
        self._gate.learn(LESSONS, self.now())

    def _scrape(self) -> None:
        self._scraped_s = now = self.now()
        for _, endpoint in self._gate.controller.endpoint_states():
            told = EndpointSample(
                endpoint.spec.address, now, float(endpoint.own), 0.0, 0.1, 1e6, RUNS_S
            )
            self._gate.observe(told)
