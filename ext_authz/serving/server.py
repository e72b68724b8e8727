"""The gRPC host: grpc.aio, one port for Check, access logs and taps, health, reflection, drain."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ext_authz.serving.access_log import AccessLogSink
from ext_authz.serving.cohort import Checks, Cohorts
from ext_authz.serving.collecting import Collecting
from ext_authz.serving.services import ACCESS_LOG, AUTHORIZATION, TAP
from ext_authz.serving.streams import Streams
from ext_authz.serving.tap import TapService
from ext_authz.serving.wire import Wire
from ext_authz.settings import ServerSettings

_GRPC_LOG = "grpc._cython.cygrpc"

# A thread of grpc.aio brings the calls in, and must get the interpreter from the loop's thread to
# do so: by default it waits up to 5 ms for it while the loop reads a metrics page.
SWITCH_S = 0.0005


def is_worth_logging(record: logging.LogRecord) -> bool:
    """False for what grpc writes, with a stack trace, when a caller left just before our answer:
    under overload that is every other call, and nobody can do anything about it."""
    fault = record.exc_info[1] if record.exc_info else None
    return type(fault).__name__ != "ExecuteBatchError"


def options(settings: ServerSettings) -> list[tuple[str, int]]:
    """Channel arguments of the server."""
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.so_reuseport", 1),
        # Envoy's keepalive may ping often and while idle; the default answers with GOAWAY.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 0),
        # Long-lived connections would pin an Envoy to an old replica for ever.
        ("grpc.max_connection_age_ms", 15 * 60 * 1000),
        ("grpc.max_connection_age_grace_ms", 10 * 1000),
    ]


class GrpcHost:
    """Serves Checks, one access-log sink and one tap until drained."""

    def __init__(
        self,
        settings: ServerSettings,
        wire: Wire,
        checks: Checks,
        sink: AccessLogSink,
        taps: TapService,
    ) -> None:
        self._settings = settings
        cohorts = Cohorts(checks)
        self._sink = sink
        self._taps = taps
        self._streams = Streams()
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs lack it
        self._collecting = Collecting()
        self._switch_s = sys.getswitchinterval()
        self._server = aio.server(options=options(settings))
        # No (de)serialisers: bytes in and out, the codec does the rest.
        check_handler = grpc.unary_unary_rpc_method_handler(cohorts.check)
        logs_handler = grpc.stream_unary_rpc_method_handler(self._on_access_logs)
        tap_handler = grpc.stream_stream_rpc_method_handler(self._on_answer)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(TAP, {"Process": tap_handler}),
                grpc.method_handlers_generic_handler(AUTHORIZATION, {"Check": check_handler}),
                grpc.method_handlers_generic_handler(
                    ACCESS_LOG, {"StreamAccessLogs": logs_handler}
                ),
            )
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*wire.services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server, pool=wire.pool)

    async def start(self) -> int:
        """Bind and serve; the port, which the system chose if the configuration said 0.

        Raises OSError if the address cannot be had.
        """
        logging.getLogger(_GRPC_LOG).addFilter(is_worth_logging)
        try:
            port = self._server.add_insecure_port(self._settings.grpc_listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._settings.grpc_listen}") from error
        await self._server.start()
        self._collecting.start()
        sys.setswitchinterval(SWITCH_S)
        await self.set_serving(True)
        return port

    async def set_serving(self, serving: bool) -> None:
        """What health checks are told."""
        status = health_pb2.HealthCheckResponse
        value = status.SERVING if serving else status.NOT_SERVING
        for service in ("", AUTHORIZATION):
            await self._health.set(service, value)

    async def drain(self) -> None:
        """Finish what is running and let go: health first, then GOAWAY, then the streams.

        Streams never end by themselves, and from the GOAWAY on our successor decides: an outcome
        that still came here would leave its booking there open until the lease ends.
        """
        await self.set_serving(False)
        stopping = asyncio.ensure_future(self._server.stop(self._settings.drain_s))
        await asyncio.sleep(0)  # lets it begin, so that no stream is opened here again
        self._streams.drain()
        await stopping
        self._collecting.stop()
        sys.setswitchinterval(self._switch_s)

    async def _on_access_logs(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        del context
        return await self._streams.until_drained(self._sink.consume(messages)) or b""

    async def _on_answer(self, messages: AsyncIterator[bytes], context: Any) -> None:
        # Nothing is ever said: Envoy does not wait for it, and to return is to be told no more.
        del context
        await self._streams.until_drained(self._taps.follow(messages))
