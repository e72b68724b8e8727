"""The cards of this host as NVIDIA's driver tells of them, for gates and agents beside GPUs.

NVML reads the local host only. Its calls take microseconds, and seconds or for ever when a card
falls off the bus, so that they run in one thread that nobody waits for without a bound.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, TypeVar

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Report
from ext_authz.telemetry.sources.nvml.cards import SOURCE, CardReader, Reading

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class NvmlSettings:
    """How this host's cards are read.

    `timeout_s` bounds one pass over all cards; `reinit_s` is the least time between two starts
    of the driver library. `host` names this host in samples as other sources name it. With
    `processes` each pass also asks which processes compute on which device.
    """

    interval_s: float = 1.0
    timeout_s: float = 2.0
    reinit_s: float = 30.0
    host: str | None = None
    processes: bool = False


class NvmlSource:
    """A `PollSource` of this host's cards and their MIG slices.

    Only one call is ever with the driver. While it hangs, polls fail at once and what was said
    before ages; nothing else waits for it, not even `close` or the end of the process. A process
    that was forked gets a thread and a connection to the driver of its own.

    Raises TelemetryError when the module pynvml is not installed.
    """

    def __init__(self, settings: NvmlSettings) -> None:
        if importlib.util.find_spec("pynvml") is None:
            raise TelemetryError(
                'NVML needs the package nvidia-ml-py: pip install "ext-authz[nvml]"'
            )
        self._settings = settings
        self._worker: _Worker | None = None
        self._closed = False
        self._processes: Mapping[str, Mapping[int, float | None]] = MappingProxyType({})

    @property
    def name(self) -> str:
        """See `PollSource.name`."""
        return SOURCE

    @property
    def interval_s(self) -> float:
        """See `PollSource.interval_s`."""
        return self._settings.interval_s

    @property
    def processes(self) -> Mapping[str, Mapping[int, float | None]]:
        """Bytes (None: not told) that each process holds, by device and host pid, as of the last
        poll; empty when that failed or `NvmlSettings.processes` is off."""
        return self._processes

    def device_of(self, pid: int) -> str | None:
        """The one device on which the process of host pid `pid` computes; None if the last poll
        saw it on none or on several."""
        devices = [device for device, pids in self._processes.items() if pid in pids]
        return devices[0] if len(devices) == 1 else None

    async def poll(self, now: float) -> Report:
        """See `PollSource.poll`."""
        try:
            reading = await self._read(now)
        except TelemetryError:
            self._processes = MappingProxyType({})
            raise
        self._processes = reading.processes
        return reading.report

    async def close(self) -> None:
        """See `PollSource.close`. Waits for the driver at most `timeout_s`, and not at all while
        it hangs."""
        self._closed = True
        self._processes = MappingProxyType({})
        worker, self._worker = self._worker, None
        if worker is None or worker.pid != os.getpid():
            return
        hangs = worker.busy_since is not None
        finished = worker.finish()
        if not hangs:
            await asyncio.wait([finished], timeout=self._settings.timeout_s)

    async def _read(self, now: float) -> Reading:
        if self._closed:
            raise TelemetryError("NVML: closed")
        worker = self._own_worker()
        if worker.busy_since is not None:
            waited_s = now - worker.busy_since
            raise TelemetryError(f"NVML: the driver has not answered for {waited_s:.1f} s")
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                return await worker.call(now, lambda: worker.reader().read(now))
        except TimeoutError as error:
            limit_s = self._settings.timeout_s
            raise TelemetryError(f"NVML: no answer within {limit_s:g} s") from error

    def _own_worker(self) -> _Worker:
        # Threads and what NVML knows do not survive a fork.
        if self._worker is None or self._worker.pid != os.getpid():
            self._worker = _Worker(self._settings)
        return self._worker


class _Worker:
    """One daemon thread, so that a driver that never answers cannot hold up the end of the
    process. `busy_since` is when the call began that the driver has not returned from."""

    def __init__(self, settings: NvmlSettings) -> None:
        self.pid = os.getpid()
        self.busy_since: float | None = None
        self._settings = settings
        self._reader: CardReader | None = None
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="nvml", daemon=True).start()

    def reader(self) -> CardReader:
        """In the thread: what reads the cards. The module is loaded here, which takes long."""
        if self._reader is None:
            self._reader = CardReader(
                importlib.import_module("pynvml"),
                self._settings.host,
                self._settings.processes,
                self._settings.reinit_s,
            )
        return self._reader

    def call(self, now: float, job: Callable[[], Answer]) -> asyncio.Future[Answer]:
        """What `job` gives or raises in the thread. Whoever gives up waiting leaves the thread
        busy until the job ends; what it then gives is dropped."""
        self.busy_since = now
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Answer] = loop.create_future()

        def run() -> None:
            try:
                settle = partial(_settle, future, future.set_result, job())
            except Exception as error:
                settle = partial(_settle, future, future.set_exception, error)
            self.busy_since = None
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                return  # The loop is closed: nobody waits.

        self._jobs.put(run)
        return future

    def finish(self) -> asyncio.Future[None]:
        """Let go of the driver and end the thread, once it is free."""
        future = self.call(self.busy_since or 0.0, self._stop)
        self._jobs.put(None)
        return future

    def _stop(self) -> None:
        if self._reader is not None:
            self._reader.stop()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


def _settle(future: asyncio.Future[Any], setter: Callable[[Any], None], value: object) -> None:
    if not future.done():
        setter(value)
