"""The gate's side of the worker: starts it, tells it what to run, takes in what it says.

A worker that ends, hangs or cannot be started is started again after a growing pause. Until it
is back what it told gets old, as if its sources had fallen silent.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Set

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Report
from ext_authz.telemetry.runner import MAX_BACKOFF_S, STREAM_PAUSE_S, Sleep
from ext_authz.telemetry.worker import child
from ext_authz.telemetry.worker.wire import Batch, Said, Wanted, encoded, receive

log = logging.getLogger(__name__)

STARTS_WITHIN_S = 3.0
"""What a worker takes to begin, on a machine that has other things to do as well."""
SILENT_S = 5.0
"""A worker that lives says something every second. One that did not for twice this is killed: two
looks in a row, as a gate that was itself stopped finds all its timers due at once."""
END_S = 2.0
"""For a worker to end by itself."""
SLICE = 4
"""Reports taken in before others have their turn: each takes some 60 microseconds."""


class Worker:
    """Runs sources in a process of its own. `on_report` gets a source's name, the newest it said
    and how many reports that stands for; `on_failure` likewise what went wrong. `ended` counts
    the processes that ended unasked."""

    def __init__(
        self,
        on_report: Callable[[str, Report, int], object],
        on_failure: Callable[[str, TelemetryError, int], None],
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._on_report = on_report
        self._on_failure = on_failure
        self._sleep = sleep
        self._wanted = Wanted()
        self._names: Set[str] = frozenset()
        self._changed = asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._heard_lately = False
        self._ended_in_a_row = 0
        self.ended = 0

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        return None if self._process is None else self._process.pid

    def want(self, wanted: Wanted, names: Set[str]) -> None:
        """Have the sources that `wanted` describes run, called `names`, and no others. The
        process is started when there is one to run."""
        self._wanted, self._names = wanted, names
        self._changed.set()

    def start(self) -> None:
        """Begin, in the running loop."""
        self._task = asyncio.create_task(self._keep_running(), name="telemetry worker")

    async def stop(self) -> None:
        """End the process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep_running(self) -> None:
        while not self._names:
            self._changed.clear()
            await self._changed.wait()
        while True:
            try:
                ended = await self._run_once()
            except Exception as error:
                log.exception("fault in the telemetry worker's side here")
                ended = type(error).__name__
            self.ended += 1
            self._ended_in_a_row += 1
            pause_s = min(STREAM_PAUSE_S * 2.0 ** min(self._ended_in_a_row, 10), MAX_BACKOFF_S)
            log.error(
                "the telemetry worker ended (%s): what is known of %d sources gets old; "
                "it is started again in %.1f s",
                ended,
                len(self._names),
                pause_s,
            )
            await self._sleep(pause_s)

    async def _run_once(self) -> str:
        """Run one process until it ends; how it did."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._process = process = _start(theirs)
            theirs.close()
            try:
                await self._talk(ours, process)
            finally:
                await asyncio.to_thread(_end, process)
                self._process = None
        return f"exit status {process.returncode}"

    async def _talk(self, ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
        reader, writer = await asyncio.open_connection(sock=ours)
        self._changed.set()
        tasks = (
            asyncio.create_task(self._tell(writer)),
            asyncio.create_task(self._kill_if_silent(process)),
        )
        try:
            while True:
                batch = await receive(reader)
                if self._ended_in_a_row and batch:
                    log.warning("the telemetry worker is back")
                    self._ended_in_a_row = 0
                self._heard_lately = True
                await self._take(batch)
        except (EOFError, ConnectionError):
            return
        finally:
            for task in tasks:
                task.cancel()
            writer.transport.abort()
            await asyncio.gather(*tasks, writer.wait_closed(), return_exceptions=True)

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        """Tell it what is wanted, whenever that changes: the newest, if it is slow to listen."""
        writer.transport.set_write_buffer_limits(0)
        while True:
            await self._changed.wait()
            self._changed.clear()
            writer.write(encoded(self._wanted))
            await writer.drain()

    async def _kill_if_silent(self, process: subprocess.Popen[bytes]) -> None:
        silent = 0
        while silent < 2:
            self._heard_lately = False
            await self._sleep(SILENT_S)
            silent = 0 if self._heard_lately else silent + 1
        log.error("the telemetry worker hangs and is killed")
        process.kill()

    async def _take(self, batch: Batch) -> None:
        for number, said in enumerate(batch, 1):
            # One that is wanted no longer may still have said something.
            if said.name in self._names:
                self._pass_on(said)
            if number % SLICE == 0:
                await asyncio.sleep(0)

    def _pass_on(self, said: Said) -> None:
        if said.failing:
            self._pass_report(said)
        if said.failures:
            self._on_failure(said.name, TelemetryError(said.error), said.failures)
        if not said.failing:
            self._pass_report(said)

    def _pass_report(self, said: Said) -> None:
        if said.report is not None:
            self._on_report(said.name, said.report, said.reports)


def _start(connection: socket.socket) -> subprocess.Popen[bytes]:
    """Start a worker at the other end. It is not forked but begins anew, as threads of gRPC run
    here; and it is started by the thread of the loop, since it dies with its parent thread."""
    number = connection.fileno()
    level = logging.getLogger().getEffectiveLevel()
    return subprocess.Popen(  # noqa: S603  our own module
        [sys.executable, "-m", child.__name__, str(number), str(level)],
        stdin=subprocess.DEVNULL,
        pass_fds=(number,),
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process whose socket was closed; one that does not see it is killed."""
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
