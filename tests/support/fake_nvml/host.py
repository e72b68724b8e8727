"""Reads one JSON line after the other and answers each with one: NvmlSource by remote control."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from dataclasses import fields
from typing import Any

from ext_authz.clock import SystemClock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import DeviceSample, Report
from ext_authz.telemetry.collector import Collector
from ext_authz.telemetry.sources.nvml.source import NvmlSettings, NvmlSource
from tests.support.scrape_rig import until


class Listener(logging.Handler):
    """Keeps what is warned of."""

    def __init__(self, heard: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.heard = heard

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


class Remote:
    """The one source and what can be asked of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.source = NvmlSource(NvmlSettings())
        self.faults: list[str] = []
        loop.set_exception_handler(lambda _, context: self.faults.append(str(context)))

    async def loop_faults(self) -> list[str]:
        """Exceptions that ended up in the loop, where nobody asked for them."""
        return self.faults

    async def new(self, **settings: Any) -> dict[str, object]:
        await self.source.close()
        self.source = NvmlSource(NvmlSettings(**settings))
        return {}

    async def poll(self, now: float) -> dict[str, object]:
        """A report, or the error; `ticks`: how often the loop came round meanwhile."""
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        try:
            answer = told(await self.source.poll(now))
        except TelemetryError as error:
            answer = {"error": str(error)}
        ticking.cancel()
        return {**answer, "ticks": ticks}

    async def pids(self, pids: list[int]) -> dict[str, object]:
        """Which device each pid is on, and what every process holds."""
        held = {name: dict(found) for name, found in self.source.processes.items()}
        return {"devices": [self.source.device_of(pid) for pid in pids], "held": held}

    async def pid_while_polling(self, pid: int, now: float) -> list[str | None]:
        """Where `pid` is said to be while a poll is under way, and after it."""
        polling = asyncio.create_task(self.source.poll(now))
        await asyncio.sleep(0)
        during = self.source.device_of(pid)
        assert not polling.done()
        await polling
        return [during, self.source.device_of(pid)]

    async def close(self) -> dict[str, object]:
        started = SystemClock().now()
        await self.source.close()
        await self.source.close()
        return {"seconds": SystemClock().now() - started}

    async def collect(self, polls: int, settings: dict[str, Any]) -> dict[str, object]:
        """Collect until `polls` polls were made in all; what was logged and is known then."""
        records: list[str] = []
        logging.getLogger("ext_authz").addHandler(Listener(records))
        source = NvmlSource(NvmlSettings(**settings))
        collector = Collector([source], {}, SystemClock(), lambda *_: None, lambda *_: None)
        collector.start()
        await until(lambda: collector.successes.total() + collector.failures.total() >= polls)
        failures = collector.failures.total()
        known = sorted(collector.snapshot.devices)
        await collector.stop()
        return {"warnings": records, "failures": failures, "devices": known}


def told(report: Report) -> dict[str, object]:
    return {
        "devices": [plain(device) for device in report.devices],
        "endpoints": len(report.endpoints),
        "missing": sorted(report.missing),
        "dropped": dict(report.dropped),
    }


def plain(device: DeviceSample) -> dict[str, object]:
    names = [field.name for field in fields(device) if field.name != "origins"]
    return {name: getattr(device, name) for name in names}


def forked(remote: Remote, now: float) -> dict[str, object]:
    """What a forked child is told when it polls the source it inherited."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        answer = asyncio.run(remote.poll(now))
        os.write(writes, json.dumps(answer).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    return answer


def main() -> None:
    """Serve until the input ends. Each question gets a loop of its own only where it has to."""
    loop = asyncio.new_event_loop()
    remote = Remote(loop)
    for line in sys.stdin:
        question = json.loads(line)
        do = question.pop("do")
        if do == "fork":
            answer = forked(remote, **question)
        else:
            answer = loop.run_until_complete(getattr(remote, do)(**question))
        print(json.dumps(answer), flush=True)
    loop.close()


if __name__ == "__main__":
    main()
