"""What runs within Envoy: an ASGI application whose life is that of the server.

Everything runs in the one event loop that pyvoy makes, Checks and all that goes on beside them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from random import Random
from typing import Any

from ext_authz.app import App
from ext_authz.config.compile import load
from ext_authz.errors import ConfigError, ExtAuthzError
from ext_authz.process import log_to_stderr
from ext_authz.pyvoy.given import VARIABLE, Given
from ext_authz.serving.asgi import AsgiHost, Scope
from ext_authz.serving.asgi_answers import Receive, Send
from ext_authz.serving.wire import Wire
from ext_authz.settings import ServerSettings

log = logging.getLogger(__name__)

HOST = "ext_authz.host"
# For what it has been given to reach the socket; Envoy does not wait for that when it ends.
LAST_ANSWERS_S = 0.1
READY_EVERY_S, READY_S = 0.01, 30.0
ORDER_S = 5.0


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """The application, found by pyvoy under this name. A scope without a host is that of its life,
    which puts one there."""
    serve = scope["state"].get(HOST, _live)
    await serve(scope, receive, send)


class EnvoyDoor:
    """Envoy's listener. It takes connections once `opened` was called, which says that we are
    ready."""

    def __init__(self, send: Send, given: Given) -> None:
        self._send = send
        self._given = given

    async def open(self) -> int:
        """See `Door`."""
        await self._send({"type": "lifespan.startup.complete"})
        async with asyncio.timeout(READY_S):
            while True:
                if await self._order("GET", "ready"):
                    return self._given.port
                await asyncio.sleep(READY_EVERY_S)

    async def close(self) -> None:
        """See `Door`."""
        # The first has a connection closed after its next answer, the second takes no new ones.
        for order in ("healthcheck/fail", "drain_listeners"):
            if not await self._order("POST", order):
                log.error("Envoy did not take the order %s", order)

    async def _order(self, method: str, order: str) -> bool:
        """Whether Envoy says that it was done."""
        try:
            async with asyncio.timeout(ORDER_S):
                reader, writer = await asyncio.open_unix_connection(self._given.admin)
                head = f"{method} /{order} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n"
                writer.write(head.encode())
                line = await reader.readline()
                writer.close()
        except (OSError, TimeoutError):
            return False
        return line.split(b" ")[1:2] == [b"200"]


async def _live(scope: Scope, receive: Receive, send: Send) -> None:
    """Start, serve and end."""
    await receive()
    given = _settle_in()
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        # A pipe at its end can be read for ever.
        loop.remove_reader(given.ends)
        ended.set()

    loop.add_reader(given.ends, end)
    asked = None
    try:
        server = _make(given, scope, EnvoyDoor(send, given))
        running = asyncio.create_task(server.run(ended))
        asked = asyncio.ensure_future(receive())
        await asyncio.wait((running, asked), return_when=asyncio.FIRST_COMPLETED)
        ended.set()
        await running
    except ConfigError as error:
        _leave(1, str(error))
    except (ExtAuthzError, OSError) as error:
        _leave(3, f"ext-authz: {error}")
    except Exception:
        log.exception("fault of the server")
        _leave(3, "ext-authz: the server cannot go on")
    if asked is not None and not asked.done():
        await asyncio.sleep(LAST_ANSWERS_S)
        os.kill(os.getpid(), signal.SIGTERM)
        await asked
    await send({"type": "lifespan.shutdown.complete"})


def _make(given: Given, scope: Scope, door: EnvoyDoor) -> App:
    path = Path(given.config)

    def host(settings: ServerSettings, _: Wire, *parts: Any) -> AsgiHost:
        made = AsgiHost(door, settings, *parts)
        scope["state"][HOST] = made
        return made

    return App(path, load(path), Random(), host)  # noqa: S311  jitter, not secrets


def _settle_in() -> Given:
    """Have this interpreter, and what it starts, be as one that a command line has started."""
    given = Given.load(os.environ.pop(VARIABLE))
    for name in ("PYTHONHOME", "LD_PRELOAD"):
        os.environ.pop(name, None)
    if given.python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = given.python_path
    sys.executable = given.python
    log_to_stderr(given.log_level.upper())
    log.debug("in process %d, as %s would run", os.getpid(), given.python)
    return given


def _leave(code: int, why: str) -> None:
    """End the process, Envoy and all."""
    print(why, file=sys.stderr, flush=True)
    os._exit(code)
