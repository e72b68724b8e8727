"""An ASGI server's side of one gRPC call, by hand."""

from __future__ import annotations

import asyncio
from typing import Any

from ext_authz.serving.asgi import AsgiHost
from ext_authz.serving.grpc_frames import framed

GRPC = {b"content-type": b"application/grpc", b"te": b"trailers"}
LEFT = {"type": "http.disconnect"}


class CallerLeftError(Exception):
    """What pyvoy's `send` raises when nobody listens."""


class AsgiCall:
    """One call of `path`. As with pyvoy, whoever receives after the end of the body is told at
    once that nothing came, or that the caller has left."""

    def __init__(self, host: AsgiHost, path: str, **headers: str) -> None:
        more = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        self._scope = {"type": "http", "path": path, "headers": list((GRPC | more).items())}
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._ended = False
        self.gone = False
        self.received = 0
        self.sent: list[dict[str, Any]] = []
        self.task = asyncio.ensure_future(host(self._scope, self._receive, self._send))

    def body(self, piece: bytes, more: bool = False) -> AsgiCall:
        """Send a piece of the request's body."""
        self._events.put_nowait({"type": "http.request", "body": piece, "more_body": more})
        return self

    def message(self, message: bytes, more: bool = False) -> AsgiCall:
        """Send a whole message."""
        return self.body(framed(message), more)

    def leave(self) -> None:
        """Close the stream."""
        self.gone = True
        self._events.put_nowait(LEFT)

    async def status(self, within_s: float = 2.0) -> tuple[int, str]:
        """How the call ended: code and message."""
        await asyncio.wait_for(asyncio.shield(self.task), within_s)
        ends = [pair for event in self.sent for pair in event.get("headers", ())]
        told = {name.decode(): value.decode() for name, value in ends}
        return int(told["grpc-status"]), told.get("grpc-message", "")

    async def answer(self) -> bytes:
        """The message of the answer, whose status is OK."""
        assert await self.status() == (0, "")
        (message,) = self.messages
        return message

    @property
    def messages(self) -> list[bytes]:
        """The messages that were sent so far."""
        bodies = [e["body"] for e in self.sent if e.get("body")]
        assert all(body == framed(body[5:]) for body in bodies)
        return [bytes(body[5:]) for body in bodies]

    async def _receive(self) -> dict[str, Any]:
        self.received += 1
        if self._ended and self._events.empty():
            return LEFT if self.gone else {"type": "http.request", "body": b"", "more_body": False}
        event = await self._events.get()
        self._ended = not event.get("more_body", False)
        return event

    async def _send(self, event: dict[str, Any]) -> None:
        if self.gone:
            raise CallerLeftError
        self.sent.append(event)
