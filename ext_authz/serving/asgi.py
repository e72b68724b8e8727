"""The fast host: gRPC as an ASGI application behind a server that speaks HTTP/2 natively.

Checks, access logs, taps and health, with the bytes that `serving.server` gives, but no reflection.
What listens is handed in as a `Door`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from ext_authz.serving.access_log import AccessLogSink
from ext_authz.serving.asgi_answers import (
    CallerLeftError,
    Receive,
    Send,
    end,
    respond,
    send_headers,
)
from ext_authz.serving.asgi_health import Health
from ext_authz.serving.cohort import Checks, Cohorts
from ext_authz.serving.collecting import Collecting
from ext_authz.serving.departures import Departures
from ext_authz.serving.grpc_frames import (
    CONTENT_TYPE,
    PREFIX_BYTES,
    CallError,
    Code,
    Frames,
    timeout_s,
)
from ext_authz.serving.services import ACCESS_LOG, AUTHORIZATION, HEALTH, TAP
from ext_authz.serving.streams import Streams
from ext_authz.serving.tap import TapService
from ext_authz.settings import ServerSettings

log = logging.getLogger(__name__)

Scope = dict[str, Any]
Headers = dict[bytes, bytes]
Method = Callable[[Headers, Receive, Send], Awaitable[None]]


class Door(Protocol):
    """What has the listener before an ASGI application."""

    async def open(self) -> int:
        """Let callers in; the port. Raises OSError if the address cannot be had."""

    async def close(self) -> None:
        """Let no new connection in, and tell callers to go elsewhere after their next answer."""


class Until:
    """How long a caller will still wait."""

    __slots__ = ("_at_s", "_loop")

    def __init__(self, headers: Headers, loop: asyncio.AbstractEventLoop) -> None:
        value = headers.get(b"grpc-timeout")
        self._loop = loop
        self._at_s = None if value is None else loop.time() + timeout_s(value)

    def time_remaining(self) -> float | None:
        """Seconds, None if for ever."""
        return None if self._at_s is None else max(0.0, self._at_s - self._loop.time())


class AsgiHost:
    """Serves Checks, one access-log sink and one tap until drained. An ASGI application for HTTP
    scopes."""

    def __init__(
        self,
        door: Door,
        settings: ServerSettings,
        checks: Checks,
        sink: AccessLogSink,
        taps: TapService,
    ) -> None:
        self._door = door
        self._settings = settings
        self._checks = checks
        self._cohorts = Cohorts(checks)
        self._sink = sink
        self._taps = taps
        self._streams = Streams()
        self._departures = Departures()
        self._collecting = Collecting()
        self._health = Health(self._departures)
        self._open = 0
        self._none_open = asyncio.Event()
        self._methods: dict[str, Method] = {
            f"/{AUTHORIZATION}/Check": self._on_check,
            f"/{ACCESS_LOG}/StreamAccessLogs": self._on_access_logs,
            f"/{TAP}/Process": self._on_answer,
            f"/{HEALTH}/Check": self._on_health,
            f"/{HEALTH}/Watch": self._on_watch,
        }

    async def start(self) -> int:
        """Have the door opened and serve; the port.

        Raises OSError if the address cannot be had.
        """
        self._departures.start()
        port = await self._door.open()
        self._collecting.start()
        self._health.set(True)
        return port

    async def drain(self) -> None:
        """Finish what is running and let go: health first, then the door, then the streams, for
        the reasons that `GrpcHost.drain` has. At most `drain_s`."""
        self._health.close()
        await self._door.close()
        self._streams.drain()
        if self._open:
            self._none_open.clear()
            try:
                await asyncio.wait_for(self._none_open.wait(), self._settings.drain_s)
            except TimeoutError:
                log.warning("%d calls did not end within the drain", self._open)
        self._departures.stop()
        self._collecting.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        headers: Headers = dict(scope["headers"])
        if not headers.get(b"content-type", b"").startswith(CONTENT_TYPE):
            await send_headers(send, 415, [])
            return
        self._open += 1
        try:
            await self._call(scope["path"], headers, receive, send)
        except CallerLeftError:
            pass
        except CallError as error:
            await end(send, error.code, error.message)
        finally:
            self._open -= 1
            if not self._open:
                self._none_open.set()

    async def _call(self, path: str, headers: Headers, receive: Receive, send: Send) -> None:
        method = self._methods.get(path)
        if method is None:
            raise CallError(Code.UNIMPLEMENTED, "no such method")
        try:
            await method(headers, receive, send)
        except (CallError, CallerLeftError):
            raise
        except Exception as fault:
            # The type only: a message could quote the request.
            log.error("a call failed: %s", type(fault).__name__)
            raise CallError(Code.UNKNOWN, "a fault of the server") from fault

    async def _on_check(self, headers: Headers, receive: Receive, send: Send) -> None:
        message = await self._one(receive)
        until = Until(headers, asyncio.get_running_loop())
        deciding = self._cohorts.ask(message, until)
        self._departures.watch(deciding, receive)
        try:
            answer = await deciding
        except asyncio.CancelledError:
            self._cohorts.forsake(deciding)
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise CallerLeftError from None
        finally:
            self._departures.forget(deciding)
        try:
            await respond(send, answer)
        except CallerLeftError:
            self._checks.unsent(answer)

    async def _on_access_logs(self, _: Headers, receive: Receive, send: Send) -> None:
        messages = self._messages(receive)
        answer = await self._streams.until_drained(self._sink.consume(messages))
        await respond(send, answer or b"")

    async def _on_answer(self, _: Headers, receive: Receive, send: Send) -> None:
        await self._streams.until_drained(self._taps.follow(self._messages(receive)))
        await end(send, Code.OK)

    async def _on_health(self, _: Headers, receive: Receive, send: Send) -> None:
        await respond(send, self._health.check(await self._one(receive)))

    async def _on_watch(self, _: Headers, receive: Receive, send: Send) -> None:
        await self._health.watch(await self._one(receive), receive, send)

    async def _one(self, receive: Receive) -> bytes:
        """The one message of a unary call.

        Raises CallError if there is none or more than one, CallerLeftError.
        """
        event = await receive()
        body: bytes = event.get("body", b"")
        size = len(body) - PREFIX_BYTES
        if (
            not event.get("more_body", False)
            and 0 <= size <= self._settings.max_message_bytes
            and body[0] == 0
            and int.from_bytes(body[1:PREFIX_BYTES], "big") == size
        ):
            # Nearly always it comes in one piece.
            return body[PREFIX_BYTES:]
        frames = Frames(self._settings.max_message_bytes)
        message: bytes | None = None
        while True:
            if event["type"] != "http.request":
                raise CallerLeftError
            frames.feed(event.get("body", b""))
            message = frames.take() if message is None else message
            last = not event.get("more_body", False)
            if (message is not None and not frames.empty) or (message is None and last):
                raise CallError(Code.INTERNAL, "one whole message is expected")
            if message is not None and last:
                return message
            event = await receive()

    async def _messages(self, receive: Receive) -> AsyncIterator[bytes]:
        """The messages of a stream until it ends or its caller leaves; CallError for what must not
        be read on."""
        frames = Frames(self._settings.max_message_bytes)
        more = True
        while more:
            # What pyvoy is to tell must not be cancelled; a drain cancels who reads here.
            event = await asyncio.shield(receive())
            more = event["type"] == "http.request" and event.get("more_body", False)
            frames.feed(event.get("body", b""))
            while (message := frames.take()) is not None:
                yield message
