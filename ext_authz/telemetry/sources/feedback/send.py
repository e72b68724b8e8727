"""The agent's end of the channels that heartbeats go by."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import grpc
from grpc import aio

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Report
from ext_authz.telemetry.sources.feedback import nats
from ext_authz.telemetry.sources.feedback.fields import json_object
from ext_authz.telemetry.sources.feedback.heartbeat import Header, encode
from ext_authz.telemetry.sources.feedback.stream import METHOD, WELCOME, content_of, frame_of
from ext_authz.telemetry.sources.feedback.tokens import read_tokens

log = logging.getLogger(__name__)

SEND_S = 5.0
"""A gate that takes no heartbeat for this long is as good as gone."""

WELCOME_S = 1.0
"""How long a gate has to let an agent in before it is written to all the same."""

SILENCE_S = 1.0
"""With nothing new to tell a heartbeat is still sent this often: the ages in it say the rest."""

KEEP_S = 1.0
"""How often the last value is kept for gates that start."""

MOST_INTERVAL_S = 60.0


class Beats:
    """Gives heartbeats to send: always of the newest measurement, encoded when they are sent.

    `put` replaces what was measured before, sent or not, so that a slow channel delays nothing.
    `pace_s` is how often to measure: the agent's own interval, or the longer one a gate asks for.
    """

    def __init__(self, clock: Clock, agent: str, run: str, interval_s: float) -> None:
        self._clock = clock
        self._header = Header(agent, run, 0)
        self._interval_s = interval_s
        self._report = Report()
        self._new = asyncio.Event()
        self._first = asyncio.Event()
        self.pace_s = interval_s
        self.sent = 0
        """Heartbeats given out."""

    @property
    def agent(self) -> str:
        """The agent's name."""
        return self._header.agent

    def put(self, report: Report) -> None:
        """The newest measurement."""
        self._report = report
        self._new.set()
        self._first.set()

    def ask_for(self, interval_s: float) -> None:
        """A gate would have a heartbeat every `interval_s`."""
        self.pace_s = max(self._interval_s, min(interval_s, MOST_INTERVAL_S))

    async def wait_for_first(self) -> None:
        """Until something was measured at all."""
        await self._first.wait()

    async def next(self) -> bytes:
        """The next heartbeat, once there is something new or it is time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(SILENCE_S, 2 * self.pace_s)):
                await self._new.wait()
        self._new.clear()
        return self.beat()

    def beat(self) -> bytes:
        """A heartbeat now. Raises TelemetryError if there is too much to tell."""
        now = self._clock.now()
        self._header = replace(self._header, seq=self._header.seq + 1, sent_ms=now * 1000)
        self.sent += 1
        return encode(self._header, self._report, now)


class Sender(Protocol):
    """One way to a gate."""

    async def session(self, beats: Beats) -> None:
        """Connect and send until cancelled. Raises TelemetryError when that fails or ends."""


@dataclass(frozen=True, slots=True)
class GrpcSender:
    """Streams to the gate at `target` (host:port). The token is read at each connection, so that
    it can be changed in its file."""

    target: str
    token_file: Path | None = None

    async def session(self, beats: Beats) -> None:
        """See `Sender.session`."""
        metadata: tuple[tuple[str, str], ...] = ()
        if self.token_file is not None:
            token = (await asyncio.to_thread(read_tokens, self.token_file))[0]
            metadata = (("authorization", f"Bearer {token.decode()}"),)
        # Any: the stubs know neither calls without serialisers nor those without an iterator.
        channel: Any = aio.insecure_channel(self.target, options=_OPTIONS)
        async with channel:
            call = channel.stream_stream(METHOD)(metadata=metadata)
            tasks = {
                asyncio.ensure_future(_write(call, beats)),
                asyncio.ensure_future(_read(call, beats)),
            }
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                ended = call.done()
                call.cancel()
            why = await _status(call) if ended else _first(outcomes)
        raise TelemetryError(f"stream to the gate ended: {why}")


@dataclass(frozen=True, slots=True)
class NatsSender:
    """Publishes on NATS, and keeps the last value in the bucket where there is one."""

    settings: nats.NatsSettings

    async def session(self, beats: Beats) -> None:
        """See `Sender.session`."""
        lost = asyncio.Event()

        async def on_lost() -> None:
            lost.set()

        client = await nats.connect(self.settings, on_lost)
        keeping = asyncio.ensure_future(_keep(client, self.settings, beats))
        subject = f"{self.settings.subject}.{nats.subject_token(beats.agent)}"
        try:
            while not lost.is_set():
                try:
                    await client.publish(subject, await beats.next())
                except TelemetryError:
                    raise
                except Exception as error:
                    raise TelemetryError(f"cannot publish: {type(error).__name__}") from error
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await nats.disconnect(client)
        raise TelemetryError("connection to NATS was lost")


def sender_for(url: str, token_file: Path | None) -> Sender:
    """The sender for grpc://HOST:PORT, nats://HOST[:PORT] or tls://HOST[:PORT]. Raises ValueError
    if `url` is none of them."""
    parts = urlsplit(url)
    if "@" in parts.netloc:  # it would show in process lists
        raise ValueError("has a password in it: write the token into a file")
    if parts.scheme == "grpc" and parts.hostname and parts.port:
        return GrpcSender(parts.netloc, token_file)
    if parts.scheme in {"nats", "tls"} and parts.hostname:
        return NatsSender(nats.NatsSettings((url,), token_file=token_file))
    raise ValueError("neither grpc://HOST:PORT nor nats://HOST:PORT nor tls://HOST:PORT")


async def _write(call: Any, beats: Beats) -> None:
    await _let_in(call)
    while True:
        frame = frame_of(await beats.next())
        async with asyncio.timeout(SEND_S):
            await call.write(frame)


async def _let_in(call: Any) -> None:
    """Until the gate says that it hears us, or has had time to say that it does not, which the
    reader hears: of a write that meets a refusal grpc.aio makes "INTERNAL" in place of what the
    gate said (grpc/grpc#36066). A gate that says nothing, or a hop that keeps it to itself, is
    written to all the same."""
    with suppress(TimeoutError):
        async with asyncio.timeout(WELCOME_S):
            told = await call.initial_metadata()
            if all(key != WELCOME for key, _ in told or ()):
                await asyncio.get_running_loop().create_future()


async def _read(call: Any, beats: Beats) -> None:
    while True:
        frame = await call.read()
        if frame is _EOF:
            return
        answer = json_object(content_of(frame))
        interval_ms = answer.get("interval_ms")
        if isinstance(interval_ms, int | float) and interval_ms > 0:
            beats.ask_for(interval_ms / 1000)
        if answer.get("refused"):
            log.warning("the gate did not use all we said: %.200s", answer["refused"])


async def _status(call: Any) -> str:
    code, details = await call.code(), await call.details()
    name = code.name if isinstance(code, grpc.StatusCode) else "?"
    return f"{name}: {details:.200}" if details else name


def _first(outcomes: list[BaseException | None]) -> str:
    faults = (o for o in outcomes if o is not None and not isinstance(o, asyncio.CancelledError))
    return next((type(fault).__name__ for fault in faults), "no answer")


async def _keep(client: Any, settings: nats.NatsSettings, beats: Beats) -> None:
    """Put a heartbeat into the bucket now and then, for gates that start."""
    await beats.wait_for_first()
    bucket, warned = None, False
    while True:
        try:
            async with asyncio.timeout(settings.connect_timeout_s):
                bucket = bucket or await nats.open_bucket(client, settings)
                await bucket.put(nats.subject_token(beats.agent), beats.beat())
        except Exception as error:
            # A server without JetStream: gates that start know a heartbeat later.
            if not warned:
                log.warning("NATS: last value not kept: %s", type(error).__name__)
            bucket, warned = None, True
        await asyncio.sleep(KEEP_S)


_EOF = aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
_OPTIONS = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", 64 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
]
