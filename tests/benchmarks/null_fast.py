"""The yardstick for the fast host: the host itself, before a check that does nothing."""

from __future__ import annotations

import os
import sys
from typing import Any

from ext_authz.pyvoy.supervise import Place, envoy_command
from ext_authz.serving.asgi import AsgiHost
from tests.benchmarks.names import DATA
from tests.support.settings import make_settings

HOST = "null"


class Null:
    """A door that is opened by others, and a check."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    async def open(self) -> int:
        return 0

    async def close(self) -> None:
        pass

    async def check(self, request: bytes, remaining_s: float | None) -> bytes:
        del request, remaining_s
        return self._reply

    def unsent(self, answer: bytes) -> None:
        del answer


async def app(scope: Any, receive: Any, send: Any) -> None:
    """The application, found by pyvoy under this name."""
    host = scope["state"].get(HOST)
    if host is not None:
        await host(scope, receive, send)
        return
    null: Any = Null((DATA / "allow.bin").read_bytes())
    host = scope["state"][HOST] = AsgiHost(null, make_settings().server, null, null, null)
    await receive()
    await host.start()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    place = Place("127.0.0.1", int(sys.argv[1]), sys.argv[2])
    command, environment = envoy_command("tests.benchmarks.null_fast:app", place, 1 << 20)
    os.execve(command[0], command, environment)  # noqa: S606
