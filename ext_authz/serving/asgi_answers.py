"""The answer to a gRPC call, sent as an ASGI application sends one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ext_authz.serving.grpc_frames import CONTENT_TYPE, Code, framed, trailers

Event = dict[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

_HEAD = [(b"content-type", CONTENT_TYPE)]
START = {"type": "http.response.start", "status": 200, "headers": _HEAD, "trailers": True}
_END = {"type": "http.response.trailers", "headers": trailers(Code.OK), "more_trailers": False}


class CallerLeftError(Exception):
    """Nobody waits for the answer any more."""


async def respond(send: Send, message: bytes) -> None:
    """End a call with `message`. Raises CallerLeftError."""
    await _send(send, START, {"type": "http.response.body", "body": framed(message)}, _END)


async def finish(send: Send) -> None:
    """End a call whose messages are sent. Raises CallerLeftError."""
    await _send(send, {"type": "http.response.body", "body": b""}, _END)


async def end(send: Send, code: Code, message: str = "") -> None:
    """End a call without an answer: its only headers have the status."""
    await send_headers(send, 200, [*_HEAD, *trailers(code, message)])


async def send_headers(send: Send, status: int, headers: list[tuple[bytes, bytes]]) -> None:
    """Answer with nothing but headers. Nobody may be there to have them."""
    start = {"type": "http.response.start", "status": status, "headers": headers}
    await _send(send, start, {"type": "http.response.body", "body": b""})


async def _send(send: Send, *events: Event) -> None:
    try:
        for event in events:
            await send(event)
    except Exception as gone:  # each server has an exception of its own for it
        raise CallerLeftError from gone
