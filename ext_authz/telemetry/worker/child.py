"""The worker: `python -m ext_authz.telemetry.worker.child FD LEVEL`, started by the gate only.

It runs the sources that the gate asks for and sends it what they say, dated by the clock that
both share (on Linux `time.monotonic` counts from the same moment in every process). It keeps
nothing: what it knows dies with it. It ends when the gate does, however that ended.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys

from ext_authz.clock import SystemClock
from ext_authz.errors import TelemetryError
from ext_authz.process import log_to_stderr, loop_factory
from ext_authz.snapshot import Report
from ext_authz.telemetry.registry import Built, build_sources
from ext_authz.telemetry.runner import Runner
from ext_authz.telemetry.worker.outbox import Outbox
from ext_authz.telemetry.worker.wire import Wanted, encoded, receive

log = logging.getLogger(__name__)

BATCH_S = 0.005
"""What is said within this time travels together: for each message the gate wakes up once."""
BEAT_S = 1.0
"""The gate hears something at least this often."""
NICENESS = 5
"""Where both have to share a core, a Check goes before a page."""
CLOSE_S = 1.0
"""For sources to let go of their connections in the end."""
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


class Child:
    """Runs what it is asked to and tells what that says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._clock = SystemClock()
        self._outbox = Outbox()
        self._news = asyncio.Event()
        self._built: tuple[Built, ...] = ()
        self._runner = Runner((), self._clock, self._heard, self._failed)
        # Nothing is kept for a gate that is slow: the outbox holds the newest.
        writer.transport.set_write_buffer_limits(0)

    async def run(self) -> None:
        """Work until the gate is gone."""
        self._runner.start()
        telling = asyncio.create_task(self._tell())
        try:
            while True:
                await self._adopt(await receive(self._reader))
        except (EOFError, ConnectionError):
            pass
        telling.cancel()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._runner.stop()
        except TimeoutError:
            log.error("telemetry sources did not close within %g s", CLOSE_S)

    async def _adopt(self, wanted: Wanted) -> None:
        try:
            self._built = build_sources(wanted.sources, wanted.pools, self._clock, self._built)
            await self._runner.reconfigure(built.source for built in self._built)
        except Exception:  # what runs goes on, and later changes must still be taken over
            log.exception("telemetry could not be brought to the new configuration")

    def _heard(self, name: str, report: Report) -> bool:
        self._outbox.heard(name, report)
        self._news.set()
        return True

    def _failed(self, name: str, error: TelemetryError) -> None:
        self._outbox.failed(name, error)
        self._news.set()

    async def _tell(self) -> None:
        while True:
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._news.wait()
            except TimeoutError:
                pass
            else:
                await asyncio.sleep(BATCH_S)
            self._news.clear()
            self._writer.write(encoded(self._outbox.take()))
            await self._writer.drain()


async def _work(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    # What was built to start up lives as long as we do.
    gc.collect()
    gc.freeze()
    await Child(reader, writer).run()


def main() -> None:
    """Work for the gate that holds the other end of the socket `FD`."""
    # A terminal or a service manager signals all processes at once: the gate drains first, and
    # needs telemetry while it does.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _die_with_parent()
    connection = socket.socket(fileno=int(sys.argv[1]))
    log_to_stderr(int(sys.argv[2]))
    os.nice(NICENESS)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_work(connection))
        # Threads of sources may be stuck in a driver or a name server: nothing waits for them.
        logging.shutdown()
        os._exit(0)


def _die_with_parent() -> None:
    """Be killed when the gate dies, even where we hang and do not see its socket close. A gate
    that died before this is seen by its socket."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
