"""Child processes: output kept, waited for on a condition, ended by their own pid."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

# Tells a backend that it is the load test that asks, not the product.
HARNESS = {"x-loadtest-harness": "1"}


def end_with_what_was_started() -> None:
    """Have a SIGTERM end this process as an exception does: by default it would leave all behind
    that was started here."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


class Process:
    """One child process. Its output goes to `log`; leaving the context ends it."""

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("wb") as sink:
            self._child = subprocess.Popen(
                command, stdout=sink, stderr=subprocess.STDOUT, env=environment
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")

    def wait_ready(self, ready: Callable[[], bool], within_s: float = 15.0) -> None:
        """Block until `ready`; raise with the output if it ends first or takes too long."""
        deadline = time.monotonic() + within_s
        while not ready():
            if self._child.poll() is not None:
                raise RuntimeError(f"ended with {self._child.returncode}:\n{self.output()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not ready within {within_s} s:\n{self.output()}")
            time.sleep(0.02)

    def poll(self) -> int | None:
        """Its exit status if it has ended."""
        return self._child.poll()

    def wait(self, within_s: float = 15.0) -> int:
        """Its exit status, once it has ended by itself."""
        return self._child.wait(within_s)

    def stop(self, within_s: float = 5.0) -> None:
        """Ask it to end, then make it."""
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(within_s)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def answers_200(url: str) -> bool:
    """Whether a GET of `url` answers 200 at once; any failure is a no."""
    request = urllib.request.Request(url, headers=HARNESS)  # noqa: S310  # loopback only
    try:
        with urllib.request.urlopen(request, timeout=1.0) as reply:  # noqa: S310  # loopback only
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def free_port() -> int:
    """A TCP port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
