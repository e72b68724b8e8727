"""A gate whose answers a test scripts, and which keeps the checks and log entries it received."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Self

import grpc

from tests.support.ports import free_port

with warnings.catch_warnings():
    # Its validators are written in a way that newer pydantics deprecate.
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core.v3 import HeaderValue, HeaderValueOption
    from envoy_data_plane.envoy.config.core.v3 import (
        HeaderValueOptionHeaderAppendAction as AppendAction,
    )
    from envoy_data_plane.envoy.data.accesslog.v3 import AccessLogType, HttpAccessLogEntry
    from envoy_data_plane.envoy.service.accesslog.v3 import StreamAccessLogsMessage
    from envoy_data_plane.envoy.service.auth.v3 import (
        CheckRequest,
        CheckResponse,
        DeniedHttpResponse,
        OkHttpResponse,
    )
    from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode
    from envoy_data_plane.google.protobuf import Struct, Value
    from envoy_data_plane.google.rpc import Status

__all__ = ["AccessLogType", "HttpAccessLogEntry", "SeenCheck", "StubGate", "allow", "deny", "fail"]

_NAMESPACE = "envoy.filters.http.ext_authz"


@dataclass(frozen=True, slots=True)
class SeenCheck:
    """One check as it arrived. Headers have lower-case names; repeated ones are joined by ","."""

    method: str
    path: str
    headers: Mapping[str, str]
    raw_body: bytes
    size: int


Answer = Callable[[SeenCheck], CheckResponse | Awaitable[CheckResponse]]


def allow(
    headers: Mapping[str, str] | None = None,
    remove: tuple[str, ...] = (),
    decision_id: str | None = None,
) -> CheckResponse:
    """Let the request pass with these headers set and removed."""
    metadata = None
    if decision_id is not None:
        metadata = Struct(fields={"decision_id": Value(string_value=decision_id)})
    ok = OkHttpResponse(headers=_options(headers or {}), headers_to_remove=list(remove))
    return CheckResponse(status=Status(code=0), ok_response=ok, dynamic_metadata=metadata)


def deny(status: int, headers: Mapping[str, str], body: str) -> CheckResponse:
    """Refuse the request with exactly this answer."""
    return CheckResponse(status=Status(code=7), denied_response=_http(status, headers, body))


def fail(status: int, headers: Mapping[str, str], body: str) -> CheckResponse:
    """Say that the gate itself is at fault, so that Envoy's failure mode decides."""
    return CheckResponse(status=Status(code=13), error_response=_http(status, headers, body))


def _http(status: int, headers: Mapping[str, str], body: str) -> DeniedHttpResponse:
    code = HttpStatus(code=StatusCode(status))
    return DeniedHttpResponse(status=code, headers=_options(headers), body=body)


def _options(headers: Mapping[str, str]) -> list[HeaderValueOption]:
    return [
        HeaderValueOption(
            header=HeaderValue(key=key, value=value),
            append_action=AppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        for key, value in headers.items()
    ]


class StubGate:
    """Serves Authorization and AccessLogService on `address`; `answer` is what it says. The next
    Checks end with the codes in `turned_away` instead."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.answer: Answer = lambda _: allow()
        self.checks: list[SeenCheck] = []
        self.turned_away: list[grpc.StatusCode] = []
        self.entries: list[HttpAccessLogEntry] = []
        self.log_bytes = b""

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self._authorization(), self._access_log()))
        self._server.add_insecure_port(self.address)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(grace=None)

    def decided(self, decision_id: str) -> list[HttpAccessLogEntry]:
        """The log entries that carry this decision id, in order of arrival."""
        return [entry for entry in self.entries if _decision_id(entry) == decision_id]

    def _authorization(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        check = grpc.unary_unary_rpc_method_handler(self._check)
        return grpc.method_handlers_generic_handler(
            "envoy.service.auth.v3.Authorization", {"Check": check}
        )

    def _access_log(self) -> grpc.GenericRpcHandler[bytes, bytes]:
        stream = grpc.stream_unary_rpc_method_handler(self._stream_access_logs)
        return grpc.method_handlers_generic_handler(
            "envoy.service.accesslog.v3.AccessLogService", {"StreamAccessLogs": stream}
        )

    async def _check(
        self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        if self.turned_away:
            await context.abort(self.turned_away.pop())
        seen = _read(CheckRequest.parse(request))
        self.checks.append(seen)
        answer = self.answer(seen)
        return bytes(answer if isinstance(answer, CheckResponse) else await answer)

    async def _stream_access_logs(self, requests: AsyncIterator[bytes], _: object) -> bytes:
        async for request in requests:
            self.log_bytes += request
            with warnings.catch_warnings():
                # Periodic entries carry a field that the schema calls deprecated.
                warnings.simplefilter("ignore", DeprecationWarning)
                message = StreamAccessLogsMessage.parse(request)
            if message.http_logs is not None:
                self.entries.extend(message.http_logs.log_entry)
        return b""


def _read(request: CheckRequest) -> SeenCheck:
    attributes = request.attributes
    assert attributes is not None
    assert attributes.request is not None
    http = attributes.request.http
    assert http is not None
    headers: dict[str, str] = {}
    for header in http.header_map.headers if http.header_map else ():
        value = header.raw_value.decode("latin-1")
        headers[header.key] = f"{headers[header.key]},{value}" if header.key in headers else value
    return SeenCheck(http.method, http.path, headers, http.raw_body, http.size)


def _decision_id(entry: HttpAccessLogEntry) -> str | None:
    common = entry.common_properties
    if common is None or common.metadata is None:
        return None
    metadata = common.metadata.filter_metadata.get(_NAMESPACE)
    value = metadata.fields.get("decision_id") if metadata is not None else None
    return value.string_value if value is not None else None
