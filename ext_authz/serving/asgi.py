"""The fast host: gRPC as an ASGI application behind a server that speaks HTTP/2 natively.

Checks, access logs, taps and health, with the bytes that `serving.server` gives. What listens is
handed in as a `Door`. No reflection, and health is told only when asked for: `Watch` is answered
as the protocol wants it of servers that lack it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from grpc_health.v1 import health_pb2

from ext_authz.serving.access_log import AccessLogSink
from ext_authz.serving.cohort import Check, Cohorts
from ext_authz.serving.departures import Departures, Receive
from ext_authz.serving.grpc_frames import (
    CONTENT_TYPE,
    PREFIX_BYTES,
    CallError,
    Code,
    Frames,
    framed,
    timeout_s,
    trailers,
)
from ext_authz.serving.services import ACCESS_LOG, AUTHORIZATION, HEALTH, TAP
from ext_authz.serving.streams import Streams
from ext_authz.serving.tap import TapService
from ext_authz.settings import ServerSettings

log = logging.getLogger(__name__)

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = dict[bytes, bytes]
# The bytes of the answer, None for a call that ends without one.
Method = Callable[[Headers, Receive], Awaitable[bytes | None]]

_HEAD = [(b"content-type", CONTENT_TYPE)]
_START = {"type": "http.response.start", "status": 200, "headers": _HEAD, "trailers": True}
_END = {"type": "http.response.trailers", "headers": trailers(Code.OK), "more_trailers": False}


class Door(Protocol):
    """What has the listener before an ASGI application."""

    async def open(self) -> int:
        """Let callers in; the port. Raises OSError if the address cannot be had."""

    async def close(self) -> None:
        """Let no new connection in, and tell callers to go elsewhere after their next answer."""


class CallerLeftError(Exception):
    """Nobody waits for the answer any more."""


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
    """Serves one `check`, one access-log sink and one tap until drained. An ASGI application for
    HTTP scopes."""

    def __init__(
        self,
        door: Door,
        settings: ServerSettings,
        check: Check,
        sink: AccessLogSink,
        taps: TapService,
    ) -> None:
        self._door = door
        self._settings = settings
        self._cohorts = Cohorts(check)
        self._sink = sink
        self._taps = taps
        self._streams = Streams()
        self._departures = Departures()
        self._serving = False
        self._open = 0
        self._none_open = asyncio.Event()
        self._methods: dict[str, Method] = {
            f"/{AUTHORIZATION}/Check": self._on_check,
            f"/{ACCESS_LOG}/StreamAccessLogs": self._on_access_logs,
            f"/{TAP}/Process": self._on_answer,
            f"/{HEALTH}/Check": self._on_health,
        }

    async def start(self) -> int:
        """Have the door opened and serve; the port.

        Raises OSError if the address cannot be had.
        """
        self._departures.start()
        self._serving = True
        return await self._door.open()

    async def drain(self) -> None:
        """Finish what is running and let go: health first, then the door, then the streams, for
        the reasons that `GrpcHost.drain` has. At most `drain_s`."""
        self._serving = False
        await self._door.close()
        self._streams.drain()
        if self._open:
            self._none_open.clear()
            try:
                await asyncio.wait_for(self._none_open.wait(), self._settings.drain_s)
            except TimeoutError:
                log.warning("%d calls did not end within the drain", self._open)
        self._departures.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call."""
        headers: Headers = dict(scope["headers"])
        if not headers.get(b"content-type", b"").startswith(CONTENT_TYPE):
            await _send_headers(send, 415, [])
            return
        self._open += 1
        try:
            answer = await self._answer(scope["path"], headers, receive)
        except CallerLeftError:
            return
        except CallError as error:
            await _end(send, error.code, error.message)
        else:
            if answer is None:
                await _end(send, Code.OK)
            else:
                await send(_START)
                await send({"type": "http.response.body", "body": framed(answer)})
                await send(_END)
        finally:
            self._open -= 1
            if not self._open:
                self._none_open.set()

    async def _answer(self, path: str, headers: Headers, receive: Receive) -> bytes | None:
        method = self._methods.get(path)
        if method is None:
            raise CallError(Code.UNIMPLEMENTED, "no such method")
        try:
            return await method(headers, receive)
        except (CallError, CallerLeftError):
            raise
        except Exception as fault:
            # The type only: a message could quote the request.
            log.error("a call failed: %s", type(fault).__name__)
            raise CallError(Code.UNKNOWN, "a fault of the server") from fault

    async def _on_check(self, headers: Headers, receive: Receive) -> bytes:
        message = await self._one(receive)
        until = Until(headers, asyncio.get_running_loop())
        answer = self._cohorts.ask(message, until)
        if answer.done():
            return answer.result()
        self._departures.watch(answer, receive)
        try:
            return await answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise CallerLeftError from None
        finally:
            self._departures.forget(answer)

    async def _on_access_logs(self, _: Headers, receive: Receive) -> bytes | None:
        messages = self._messages(receive)
        return await self._streams.until_drained(self._sink.consume(messages)) or b""

    async def _on_answer(self, _: Headers, receive: Receive) -> None:
        await self._streams.until_drained(self._taps.follow(self._messages(receive)))

    async def _on_health(self, _: Headers, receive: Receive) -> bytes:
        asked = health_pb2.HealthCheckRequest.FromString(await self._one(receive))
        if asked.service not in ("", AUTHORIZATION):
            raise CallError(Code.NOT_FOUND, "no such service")
        states = health_pb2.HealthCheckResponse
        state = states.SERVING if self._serving else states.NOT_SERVING
        answer: bytes = states(status=state).SerializeToString()
        return answer

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
            event = await receive()
            more = event["type"] == "http.request" and event.get("more_body", False)
            frames.feed(event.get("body", b""))
            while (message := frames.take()) is not None:
                yield message


async def _end(send: Send, code: Code, message: str = "") -> None:
    """End a call without an answer: its only headers have the status."""
    await _send_headers(send, 200, [*_HEAD, *trailers(code, message)])


async def _send_headers(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
