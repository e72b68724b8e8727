"""The health service of the fast host: gRPC's own comes with a server of its own."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2

from ext_authz.serving.asgi_answers import START, CallerLeftError, Receive, Send, finish
from ext_authz.serving.departures import Departures
from ext_authz.serving.grpc_frames import CallError, Code, framed
from ext_authz.serving.services import AUTHORIZATION

_STATES = health_pb2.HealthCheckResponse


class Health:
    """Whether we serve, for those who ask and those who watch."""

    def __init__(self, departures: Departures) -> None:
        self._departures = departures
        self._serving = self._ended = False
        self._watching: set[asyncio.Future[None]] = set()

    def set(self, serving: bool) -> None:
        """What they are told from now on."""
        self._serving = serving
        for changed in self._watching:
            if not changed.done():
                changed.set_result(None)

    def close(self) -> None:
        """We end: that is the last that those who watch are told."""
        self._ended = True
        self.set(False)

    def check(self, request: bytes) -> bytes:
        """The answer to one who asks. Raises CallError for what is no service of ours."""
        if _service(request) not in ("", AUTHORIZATION):
            raise CallError(Code.NOT_FOUND, "no such service")
        return self._state()

    async def watch(self, request: bytes, receive: Receive, send: Send) -> None:
        """Tell one who watches until it leaves, which raises CallerLeftError, or until we end."""
        known = _service(request) in ("", AUTHORIZATION)
        told: bytes | None = None
        await send(START)
        while True:
            ended = self._ended
            changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._watching.add(changed)
            self._departures.watch(changed, receive)
            state = self._state() if known else _written(_STATES.SERVICE_UNKNOWN)
            try:
                if state != told:
                    body = {"type": "http.response.body", "body": framed(state), "more_body": True}
                    await send(body)
                    told = state
                if not ended:
                    await changed
            except Exception as gone:
                raise CallerLeftError from gone
            except asyncio.CancelledError:
                # Cancelled for it has left, or with the whole server.
                raise CallerLeftError from None
            finally:
                self._watching.discard(changed)
                self._departures.forget(changed)
            if ended:
                # A call that never ended would hold the drain up to its bound.
                await finish(send)
                return

    def _state(self) -> bytes:
        return _written(_STATES.SERVING if self._serving else _STATES.NOT_SERVING)


def _service(request: bytes) -> str:
    name: str = health_pb2.HealthCheckRequest.FromString(request).service
    return name


def _written(state: int) -> bytes:
    written: bytes = _STATES(status=state).SerializeToString()
    return written
