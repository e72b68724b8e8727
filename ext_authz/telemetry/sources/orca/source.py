"""Hears ORCA load reports: from a server that streams them, and from response headers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ext_authz.clock import Clock
from ext_authz.errors import TelemetryError
from ext_authz.snapshot import Report
from ext_authz.telemetry.sources.orca.report import KIND, parse_header, parse_message
from ext_authz.telemetry.sources.orca.wire import STREAM_METHOD, OrcaWire

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True, slots=True)
class OrcaStreamSettings:
    """How one server is listened to.

    `interval_s` is asked for (0.01 to 60); a server may report less often. A stream that is
    silent for `silent_after_s` (more than the interval, up to 300) is given up. `tls_roots` are
    certificates in PEM, b"" the system's; None speaks without TLS.
    """

    interval_s: float = 0.25
    silent_after_s: float = 5.0
    max_message_bytes: int = 65_536
    tls_roots: bytes | None = None


@dataclass(frozen=True, slots=True)
class OrcaSettings:
    """Every endpoint's host is listened to on `port`."""

    port: int
    stream: OrcaStreamSettings = OrcaStreamSettings()


class OrcaStream:
    """The `StreamSource` of one server that offers `xds.service.orca.v3.OpenRcaService`.

    `target` is the host:port of that service, `endpoint` what it reports on.
    """

    def __init__(
        self, endpoint: str, target: str, settings: OrcaStreamSettings, clock: Clock
    ) -> None:
        self._endpoint = endpoint
        self._target = target
        self._settings = settings
        self._clock = clock
        self._wire = OrcaWire()

    @property
    def name(self) -> str:
        """See `StreamSource.name`."""
        return f"{KIND}/{self._endpoint}"

    async def run(self, emit: Callable[[Report], None]) -> None:
        """See `StreamSource.run`. A report that cannot be read ends the stream: the next would
        be no better."""
        import grpc.aio

        channel = self._channel()
        method = channel.unary_stream(STREAM_METHOD, bytes, bytes)
        call = method(self._wire.ask(self._settings.interval_s))
        messages = aiter(call)
        try:
            while True:
                async with asyncio.timeout(self._settings.silent_after_s):
                    message = await anext(messages)
                at_s = self._clock.now()
                emit(parse_message(message, self._wire).report(self._endpoint, at_s))
        except StopAsyncIteration as error:
            raise TelemetryError("the server ended the stream") from error
        except TimeoutError as error:
            raise TelemetryError(f"no report within {self._settings.silent_after_s:g} s") from error
        except grpc.aio.AioRpcError as error:
            # The details of an error are the other side's words.
            raise TelemetryError(f"stream failed: {error.code().name}") from error
        finally:
            call.cancel()
            await channel.close(grace=None)

    async def close(self) -> None:
        """See `StreamSource.close`: a stream keeps nothing when it does not run."""

    def _channel(self) -> grpc.aio.Channel:
        import grpc.aio

        # A stream that fails is run again with a new channel: it is the collector that waits.
        options = (
            ("grpc.max_receive_message_length", self._settings.max_message_bytes),
            ("grpc.enable_retries", 0),
            ("grpc.enable_http_proxy", 0),
            # Channels to one target share connections, and the back-off of a dead one.
            ("grpc.use_local_subchannel_pool", 1),
        )
        if self._settings.tls_roots is None:
            return grpc.aio.insecure_channel(self._target, options)
        credentials = grpc.ssl_channel_credentials(self._settings.tls_roots or None)
        return grpc.aio.secure_channel(self._target, credentials, options)


class OrcaHeaders:
    """The `StreamSource` of the load reports in response headers, handed in by `offer`.

    Only `endpoints` are listened to, each at most once in `min_interval_s`, so that a busy one
    costs no more than an idle one. `unreadable` counts headers that could not be read at all.
    """

    def __init__(self, endpoints: Collection[str], min_interval_s: float = 0.05) -> None:
        self._last_s: dict[str, float | None] = dict.fromkeys(endpoints)
        self._min_interval_s = min_interval_s
        self._wire = OrcaWire()
        self._emit: Callable[[Report], None] | None = None
        self.unreadable = 0

    @property
    def name(self) -> str:
        """See `StreamSource.name`."""
        return f"{KIND}/headers"

    async def run(self, emit: Callable[[Report], None]) -> None:
        """See `StreamSource.run`."""
        self._emit = emit
        try:
            await asyncio.Event().wait()
        finally:
            self._emit = None

    async def close(self) -> None:
        """See `StreamSource.close`."""

    def offer(self, endpoint: str, value: str, at_s: float) -> None:
        """Hear what the header of one response of `endpoint` says, sent at `at_s` (monotonic
        seconds). Never raises, whatever the header holds."""
        if self._emit is None or endpoint not in self._last_s:
            return
        last_s = self._last_s[endpoint]
        if last_s is not None and at_s - last_s < self._min_interval_s:
            return
        self._last_s[endpoint] = at_s
        try:
            report = parse_header(value, self._wire).report(endpoint, at_s)
        except TelemetryError:
            self.unreadable += 1
            report = Report(dropped=Counter({"unreadable_header": 1}))
        self._emit(report)
