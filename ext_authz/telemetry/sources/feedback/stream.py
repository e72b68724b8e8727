"""Agents' heartbeats over gRPC: a server with one bidirectional method.

Frames in both directions are `google.protobuf.BytesValue` around JSON. A message of our own would
have needed generated code on both sides, and a second definition of what is JSON on every other
channel; bare JSON frames would have needed a codec of their own in most languages. This way any
gRPC tool makes a stub from three lines of .proto (docs/feedback.md).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import BytesValue
from grpc import aio

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Report
from ext_authz.telemetry.sources.feedback.fields import MAX_BYTES
from ext_authz.telemetry.sources.feedback.heartbeat import VERSION, decode
from ext_authz.telemetry.sources.feedback.intake import Intake, Refusal, refusal
from ext_authz.telemetry.sources.feedback.tokens import read_tokens, shows, token_digest

log = logging.getLogger(__name__)

KIND = "stream"
SERVICE = "ext_authz.feedback.v1.Feedback"
METHOD = f"/{SERVICE}/Stream"
WELCOME = "gate"
"""The key of the initial metadata of a stream whose agent is let in. Its value says nothing."""

MAX_FRAME_BYTES = MAX_BYTES + 16
MAX_GARBAGE = 10
"""Unusable heartbeats in a row after which a stream is ended, so that its agent says why."""

ACKNOWLEDGE_S = 1.0
"""Least time between two acknowledgements of one stream."""

BURST = 1000.0
RATE_FACTOR = 4.0
"""Heartbeats are read for free up to `BURST` at once (a backlog after a stall) and up to this
many times as often as asked for; an agent beyond that is shown out."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How agents are heard.

    `listen` is host:port. `interval_s` is what agents are asked for; more when all together would
    send over `max_heartbeats_per_s`. A stream that says nothing for `idle_s` is ended.
    `token_file` holds one token a line, any of which an agent may show; None asks for none.
    """

    listen: str
    interval_s: float = 0.05
    max_agents: int = 256
    max_heartbeats_per_s: float = 1000.0
    idle_s: float = 10.0
    token_file: Path | None = None


class FeedbackServer:
    """A `StreamSource`: everything that agents say of `endpoints` over gRPC.

    An agent that dies takes nothing along: what it said last only ages.
    """

    def __init__(self, settings: StreamSettings, endpoints: Iterable[str], clock: Clock) -> None:
        self._settings = settings
        self._endpoints = frozenset(endpoints)
        self._clock = clock
        self._server: aio.Server | None = None
        self._numbers = itertools.count(1)
        self._tokens: tuple[bytes, ...] | None = None
        self.port = 0
        """The port it listens on; 0 while it does not."""

    @property
    def name(self) -> str:
        """See `StreamSource.name`."""
        return f"{KIND}/{self._settings.listen}"

    async def run(self, emit: Callable[[Report], None]) -> None:
        """See `StreamSource.run`. TelemetryError: no address to listen on, or no usable token
        file."""
        if self._settings.token_file is not None:
            self._tokens = await asyncio.to_thread(_digests, self._settings.token_file)
        intake = Intake(KIND, self._endpoints, self._settings.max_agents)

        async def serve(frames: AsyncIterator[bytes], context: Any) -> None:
            await self._serve(frames, context, intake, emit)

        server = aio.server(options=_options())
        handler = grpc.stream_stream_rpc_method_handler(serve)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Stream": handler}),)
        )
        try:
            port = server.add_insecure_port(self._settings.listen)
        except RuntimeError as error:
            raise TelemetryError(f"cannot listen on {self._settings.listen}") from error
        self._server = server
        try:
            await server.start()
            self.port = port
            # Not wait_for_termination: cancelling it would keep the server from being stopped.
            await asyncio.get_running_loop().create_future()
        finally:
            self.port = 0
            await self.close()

    async def close(self) -> None:
        """See `StreamSource.close`."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(0)

    async def _serve(
        self,
        frames: AsyncIterator[bytes],
        context: Any,
        intake: Intake,
        emit: Callable[[Report], None],
    ) -> None:
        if self._tokens is not None and not shows(context.invocation_metadata(), self._tokens):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is needed")
        peer = f"{next(self._numbers)}"
        try:
            intake.meet(peer, self._clock.now())
        except TelemetryError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        session = _Session(peer, intake, emit, self._clock, self._settings)
        acknowledging = asyncio.ensure_future(session.acknowledge(context))
        try:
            await context.send_initial_metadata(((WELCOME, "1"),))
            code, why = await session.read(frames)
        finally:
            acknowledging.cancel()
            session.end()
            intake.forget(peer)
        if why:
            log.warning("agent %s: stream ended: %s", context.peer(), why)
            await context.abort(code, why)


class _Session:
    """One agent's stream."""

    def __init__(
        self,
        peer: str,
        intake: Intake,
        emit: Callable[[Report], None],
        clock: Clock,
        settings: StreamSettings,
    ) -> None:
        self._peer = peer
        self._intake = intake
        self._emit = emit
        self._clock = clock
        self._settings = settings
        self._taken_s = -1e9
        self._newest: tuple[bytes, float] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._garbage = 0
        self._fault = ""
        self._heard = asyncio.Event()
        self._seq = 0
        self._refused: dict[str, int] = {}

    @property
    def _interval_s(self) -> float:
        rate = self._settings.max_heartbeats_per_s
        return max(self._settings.interval_s, self._intake.peers / rate)

    async def read(self, frames: AsyncIterator[bytes]) -> tuple[grpc.StatusCode, str]:
        """Take heartbeats until the agent leaves; how to end the stream, and why if there is
        anything to say.

        Of heartbeats that come close together, as after a stall, only the newest is looked at.
        """
        budget, before_s = BURST, self._clock.now()
        while self._garbage < MAX_GARBAGE:
            try:
                async with asyncio.timeout(self._settings.idle_s):
                    frame = await anext(frames, None)
            except TimeoutError:
                return grpc.StatusCode.DEADLINE_EXCEEDED, "no heartbeat for too long"
            if frame is None:
                return grpc.StatusCode.OK, ""
            now = self._clock.now()
            interval_s = self._interval_s
            budget = min(BURST, budget + (now - before_s) * RATE_FACTOR / interval_s) - 1
            before_s = now
            if budget < 0:
                return grpc.StatusCode.RESOURCE_EXHAUSTED, "heartbeats come far too fast"
            self._offer(frame, now, interval_s / RATE_FACTOR)
        return grpc.StatusCode.INVALID_ARGUMENT, self._fault

    async def acknowledge(self, context: Any) -> None:
        """Answer now and then. Apart from reading, so that an agent that does not read its
        answers is still heard."""
        while True:
            await self._heard.wait()
            self._heard.clear()
            answer: dict[str, object] = {
                "v": VERSION,
                "ack": self._seq,
                "interval_ms": round(self._interval_s * 1000, 3),
            }
            if self._refused:
                answer["refused"], self._refused = self._refused, {}
            try:
                await context.write(frame_of(json.dumps(answer).encode()))
            except Exception as error:
                # The stream ended meanwhile; its reader is the one to say how.
                log.debug("agent %s: not acknowledged: %s", self._peer, type(error).__name__)
                return
            await asyncio.sleep(ACKNOWLEDGE_S)

    def end(self) -> None:
        """Look at nothing any more."""
        if self._later is not None:
            self._later.cancel()

    def _offer(self, frame: bytes, now: float, pace_s: float) -> None:
        if self._newest is not None:
            self._emit(refusal(Refusal.CONFLATED))
            self._newest = (frame, now)
        elif now - self._taken_s >= pace_s:
            self._take(frame, now)
        else:
            self._newest = (frame, now)
            self._later = asyncio.get_running_loop().call_later(pace_s, self._take_newest)

    def _take_newest(self) -> None:
        newest, self._newest = self._newest, None
        if newest is not None:
            self._take(*newest)

    def _take(self, frame: bytes, arrived_s: float) -> None:
        self._taken_s = arrived_s
        try:
            heartbeat = decode(content_of(frame))
            report = self._intake.accept(self._peer, heartbeat, arrived_s)
        except TelemetryError as error:
            self._garbage += 1
            self._fault = str(error)
            self._emit(refusal(Refusal.GARBAGE))
            return
        self._garbage = 0
        self._seq = heartbeat.header.seq
        for reason, count in report.dropped.items():
            self._refused[reason] = self._refused.get(reason, 0) + count
        self._heard.set()
        self._emit(report)


def frame_of(data: bytes) -> bytes:
    """`data` as a frame of the stream."""
    return BytesValue(value=data).SerializeToString()


def content_of(frame: bytes) -> bytes:
    """What a frame holds. Raises TelemetryError if it is none."""
    try:
        return BytesValue.FromString(frame).value
    except DecodeError as error:
        raise TelemetryError("a frame that is no google.protobuf.BytesValue") from error


def _digests(path: Path) -> tuple[bytes, ...]:
    return tuple(token_digest(token) for token in read_tokens(path))


def _options() -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", MAX_FRAME_BYTES),
        ("grpc.max_metadata_size", 16 * 1024),
        # A successor listens beside us while we drain, as on the other port.
        ("grpc.so_reuseport", 1),
        # Finds agents whose host is gone without a word.
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ]
