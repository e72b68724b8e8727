"""Agents' heartbeats over NATS.

Live ones come by core NATS, which keeps nothing and delays nothing. The last one of each agent is
also in a JetStream key-value bucket (in memory, one value a key, short-lived), so that a gate that
starts knows at once what was known before. Where the server has no JetStream it knows a heartbeat
later. Who may publish is for the permissions of the NATS server to say.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Report
from ext_authz.telemetry.sources.feedback.fields import MAX_BYTES
from ext_authz.telemetry.sources.feedback.heartbeat import decode
from ext_authz.telemetry.sources.feedback.intake import Intake, Refusal, refusal
from ext_authz.telemetry.sources.feedback.tokens import read_tokens

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.js.kv import KeyValue

log = logging.getLogger(__name__)

KIND = "nats"

PACE_S = 0.005
"""Heartbeats are looked at this long after they arrive; only the newest of each subject is."""

BUCKET_VALUES = 1024
CLOSE_S = 2.0
PING_S = 5.0
"""A server that leaves two of these unanswered is gone."""


@dataclass(frozen=True, slots=True)
class NatsSettings:
    """Where heartbeats are published.

    `servers` are nats:// or tls:// URLs. `subject` and `bucket` are what agents publish under
    (each adds its own name) and keep last values in, for `ttl_s`. `connect_timeout_s` bounds every
    exchange with the server that somebody waits for. `token_file` holds the server's token in its
    first line.
    """

    servers: tuple[str, ...]
    subject: str = "gpu.feedback"
    bucket: str = "gpu_feedback"
    ttl_s: float = 5.0
    connect_timeout_s: float = 2.0
    max_agents: int = 256
    token_file: Path | None = None


class NatsSource:
    """A `StreamSource`: everything that agents publish of `endpoints` on NATS."""

    def __init__(self, settings: NatsSettings, endpoints: Iterable[str], clock: Clock) -> None:
        self._settings = settings
        self._endpoints = frozenset(endpoints)
        self._clock = clock
        self._client: Client | None = None

    @property
    def name(self) -> str:
        """See `StreamSource.name`."""
        return f"{KIND}/{self._settings.subject}"

    async def run(self, emit: Callable[[Report], None]) -> None:
        """See `StreamSource.run`. TelemetryError: no server, or the connection was lost."""
        lost = asyncio.Event()

        async def on_lost() -> None:
            lost.set()

        client = self._client = await connect(self._settings, on_lost)
        # Several subjects may tell of one endpoint: none overwrites what another said.
        intake = Intake(self.name, self._endpoints, self._settings.max_agents)
        inbox = _Inbox(intake, emit, self._clock, self._settings.max_agents)
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                await client.subscribe(
                    f"{self._settings.subject}.>",
                    cb=inbox.put,
                    pending_msgs_limit=16 * self._settings.max_agents,
                    pending_bytes_limit=64 * MAX_BYTES,
                )
            await self._emit_last_values(client, intake, emit)
            while not lost.is_set():
                intake.forget_silent(self._clock.now())
                await _wait(lost, 1.0)
            raise TelemetryError("connection to NATS was lost")
        except TimeoutError as error:
            raise TelemetryError("NATS did not answer in time") from error
        finally:
            inbox.close()
            await self.close()

    async def close(self) -> None:
        """See `StreamSource.close`."""
        client, self._client = self._client, None
        if client is not None:
            await disconnect(client)

    async def _emit_last_values(
        self, client: Client, intake: Intake, emit: Callable[[Report], None]
    ) -> None:
        """Tell what the bucket holds, dated by the server's own clock: neither ours nor an
        agent's has a part in how long a value has lain there."""
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                kept = await _kept(client, self._settings)
                server_s = await _server_time(client, self._settings.bucket)
        except Exception as error:
            if client.is_closed:
                raise TelemetryError("connection to NATS was lost") from error
            log.warning("NATS: no last values: %s", type(error).__name__)
            return
        now = self._clock.now()
        for stored_s, data in sorted(kept):
            try:
                heartbeat = decode(data)
                waited_s = max(0.0, server_s - stored_s)
                report = intake.accept(heartbeat.header.run, heartbeat, now, waited_s)
            except TelemetryError:
                emit(refusal(Refusal.GARBAGE))
                continue
            if report.endpoints or report.devices:
                emit(report)


class _Inbox:
    """The newest heartbeat of each subject, until it is looked at."""

    def __init__(
        self, intake: Intake, emit: Callable[[Report], None], clock: Clock, most: int
    ) -> None:
        self._intake = intake
        self._emit = emit
        self._clock = clock
        self._most = most
        self._newest: dict[str, tuple[bytes, float]] = {}
        self._later: asyncio.TimerHandle | None = None

    async def put(self, message: Msg) -> None:
        subject = message.subject
        if subject in self._newest:
            self._emit(refusal(Refusal.CONFLATED))
        elif len(self._newest) >= self._most:
            self._emit(refusal(Refusal.TOO_MANY_AGENTS))
            return
        self._newest[subject] = (message.data, self._clock.now())
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(PACE_S, self._look)

    def close(self) -> None:
        if self._later is not None:
            self._later.cancel()

    def _look(self) -> None:
        newest, self._newest, self._later = self._newest, {}, None
        for data, arrived_s in newest.values():
            try:
                heartbeat = decode(data)
            except TelemetryError:
                self._emit(refusal(Refusal.GARBAGE))
                continue
            try:
                report = self._intake.accept(heartbeat.header.run, heartbeat, arrived_s)
            except TelemetryError:
                report = refusal(Refusal.TOO_MANY_AGENTS)
            self._emit(report)


async def connect(settings: NatsSettings, on_lost: Callable[[], Awaitable[None]]) -> Client:
    """A connected client that does not connect again by itself: who uses it does, with a pause
    that grows. Raises TelemetryError within `connect_timeout_s`, or so."""
    try:
        # Hundreds of milliseconds the first time, in which the loop would answer nobody.
        await asyncio.to_thread(importlib.import_module, "nats.aio.client")
        from nats.aio.client import Client
    except ImportError as error:
        raise TelemetryError("NATS needs the extra: pip install 'ext-authz[nats]'") from error

    async def on_error(error: Exception) -> None:
        log.debug("NATS: %s", type(error).__name__)

    token = None
    if settings.token_file is not None:
        token = (await asyncio.to_thread(read_tokens, settings.token_file))[0].decode()
    client = Client()
    try:
        # A first connection to a dead server may otherwise be tried for ever.
        async with asyncio.timeout(settings.connect_timeout_s):
            await client.connect(
                list(settings.servers),
                allow_reconnect=False,
                max_reconnect_attempts=1,
                connect_timeout=max(1, round(settings.connect_timeout_s)),
                error_cb=on_error,
                closed_cb=on_lost,
                name="ext-authz",
                ping_interval=round(PING_S),
                max_outstanding_pings=2,
                token=token,
            )
    except Exception as error:
        await disconnect(client)
        # Without the text, which may quote a URL and the password in it.
        raise TelemetryError(f"cannot connect to NATS: {type(error).__name__}") from error
    except asyncio.CancelledError:
        await disconnect(client)
        raise
    return client


async def disconnect(client: Client) -> None:
    """Close, whatever state the connection is in, within `CLOSE_S`."""
    try:
        async with asyncio.timeout(CLOSE_S):
            await client.close()
    except Exception as error:
        log.debug("NATS: not closed: %s", type(error).__name__)


async def open_bucket(client: Client, settings: NatsSettings) -> KeyValue:
    """The bucket of last values, made if there is none. Raises errors of the client."""
    from nats.js.api import KeyValueConfig, StorageType
    from nats.js.errors import BadRequestError

    stream = client.jetstream(timeout=settings.connect_timeout_s)
    wanted = KeyValueConfig(
        bucket=settings.bucket,
        history=1,
        ttl=settings.ttl_s,
        storage=StorageType.MEMORY,
        max_value_size=MAX_BYTES,
        max_bytes=BUCKET_VALUES * MAX_BYTES,
    )
    try:
        return await stream.create_key_value(config=wanted)
    except BadRequestError:  # it is there, with another configuration: whoever made it decides
        return await stream.key_value(settings.bucket)


def subject_token(agent: str) -> str:
    """An agent's name as one token of a subject and as a key. Two names share none."""
    digest = hashlib.sha256(agent.encode("utf-8", "replace")).hexdigest()[:12]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', agent)[:48]}-{digest}"


async def _kept(client: Client, settings: NatsSettings) -> list[tuple[float, bytes]]:
    """What the bucket holds: when it was stored, by the server's clock, and the value."""
    bucket = await open_bucket(client, settings)
    # Any: the client leaves the watcher's methods untyped.
    watcher: Any = await bucket.watchall()
    kept: list[tuple[float, bytes]] = []
    try:
        while len(kept) < settings.max_agents:
            entry = await watcher.updates(timeout=settings.connect_timeout_s)
            if entry is None:  # the end of what was there
                break
            if entry.operation is None and entry.value and isinstance(entry.created, datetime):
                kept.append((entry.created.timestamp(), entry.value))
    finally:
        await watcher.stop()
    return kept


async def _server_time(client: Client, bucket: str) -> float:
    """Unix seconds by the clock that dates what is stored. Raises TelemetryError where a server
    is too old (before 2.10) to tell: what cannot be dated is not used."""
    answer = await client.request(f"$JS.API.STREAM.INFO.KV_{bucket}", b"", timeout=CLOSE_S)
    text = json.loads(answer.data).get("ts")
    if not isinstance(text, str):
        raise TelemetryError("the NATS server does not tell its time")
    # Nanoseconds are more than datetime takes.
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text)).timestamp()


async def _wait(event: asyncio.Event, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            await event.wait()
    except TimeoutError:
        pass
