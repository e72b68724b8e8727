"""Bytes from and to Envoy: Check requests in, answers out, logs and taps in. No policy here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from ext_authz.errors import CodecError
from ext_authz.model import Api, Decision, HttpCall, LimitState, Reason, Verdict
from ext_authz.serving.answers import (
    ANSWERS,
    error_body,
    fixed_headers,
    too_large,
    varying_headers,
)
from ext_authz.serving.entries import AccessLogEntry, read_entry
from ext_authz.serving.log_frames import compile_frames, entry_class
from ext_authz.serving.metadata import MetadataWriter
from ext_authz.serving.retry_headers import Header, clean, standing_headers
from ext_authz.serving.tap_read import AnswerPart, read_part
from ext_authz.serving.wire import Wire

_PSEUDO_HEADERS = (":authority", ":method", ":path", ":scheme", ":protocol")
_PARTIAL_HEADER = "x-envoy-auth-partial-body"
_OUR_PREFIX = "x-gpu-"
_POOL, _ENDPOINT, _ADMISSION, _REASON, _MAX_TOKENS = (
    "x-gpu-pool",
    "x-gpu-endpoint",
    "x-gpu-admission",
    "x-gpu-reason",
    "x-gpu-max-tokens",
)
_OUR_HEADERS = (_POOL, _ENDPOINT, _ADMISSION, _REASON, _MAX_TOKENS)
_OVERWRITE = 2  # HeaderValueOption.HeaderAppendAction OVERWRITE_IF_EXISTS_OR_ADD
_LONGEST_LENGTH_DIGITS = 18
_MOST_CACHED = 1024

_AllowKey = tuple[Verdict, str | None, str | None, Reason, int | None]


class Codec:
    """Decodes and encodes the messages of the services.

    `retry_cap_s` is only a backstop, in seconds: a `RetryHint` was capped where it was made.
    """

    def __init__(self, wire: Wire, retry_cap_s: float = 3600.0) -> None:
        if not 1 <= retry_cap_s < math.inf:
            raise ValueError("retry_cap_s must be finite and at least 1")
        self._check_request = wire.check_request
        # Any: the classes exist only at run time, no stub describes their fields.
        self._check_response: Any = wire.check_response
        self._frames: Any = compile_frames(wire.access_logs)
        self._entry: Any = entry_class(wire.access_logs)
        self._processing_request: Any = wire.processing_request
        self._retry_cap_s = retry_cap_s
        self._allowed: dict[_AllowKey, bytes] = {}
        self._refused: dict[tuple[Reason, Api], bytes] = {}
        self._metadata = MetadataWriter()
        self._log_reply = wire.access_logs_reply().SerializeToString()

    def decode_check(self, data: bytes) -> HttpCall:
        """The HTTP request inside a serialised CheckRequest.

        Pseudo headers are left out. `partial` is set when Envoy says so, or when what arrived is
        less than a valid content-length or than the size that Envoy counted; a content-length
        that is not a number is ignored. Raises CodecError if `data` cannot be decoded or
        describes no HTTP request.
        """
        http = self._http(data)
        headers = _headers(http)
        body = http.raw_body or http.body.encode()
        size = http.size
        length = _content_length(headers.get("content-length"))
        partial = max(length, size) > len(body) or "true" in headers.get(_PARTIAL_HEADER, "")
        # Envoy's size counts what came so far, which says nothing of what is to come.
        whole = -1 if partial and length < 0 else max(length, size, len(body))
        return HttpCall(http.method, http.path, headers, body, whole, partial)

    def encode(self, decision: Decision, call: HttpCall | None, api: Api) -> bytes:
        """The serialised CheckResponse for `decision`.

        `call` is None when the Check could not be decoded. `api` gives the shape of a refusal.
        """
        if decision.verdict is Verdict.REJECT:
            return self._refusal(decision, api)
        # Protobuf joins messages whose bytes are joined.
        answer = self._permission(decision, call)
        if decision.limits:
            answer += self._standing(decision.limits, api)
        return answer + self._metadata.write(decision)

    def decision_of(self, answer: bytes) -> str:
        """The id of the decision that an answer of ours tells Envoy, empty if it tells of none."""
        fields = self._check_response.FromString(answer).dynamic_metadata.fields
        return str(fields["decision_id"].string_value) if "decision_id" in fields else ""

    def split_access_log(self, data: bytes) -> Sequence[bytes]:
        """The HTTP entries of one StreamAccessLogsMessage, for `decode_entry`.

        Raises CodecError if `data` cannot be taken apart.
        """
        try:
            entries: Sequence[bytes] = self._frames.FromString(data).http_logs.log_entry
        except DecodeError as error:
            raise CodecError("undecodable access log") from error
        return entries

    def decode_entry(self, data: bytes) -> AccessLogEntry | None:
        """One entry; None if no booking can be behind it. Raises CodecError if it cannot be
        decoded."""
        try:
            entry = self._entry.FromString(data)
        except DecodeError as error:
            raise CodecError("undecodable access-log entry") from error
        return read_entry(entry)

    def empty_access_log_response(self) -> bytes:
        """The serialised StreamAccessLogsResponse, which says nothing."""
        return self._log_reply

    def decode_part(self, data: bytes) -> AnswerPart | None:
        """The part of an answer inside a serialised ProcessingRequest; None if there is none.
        Raises CodecError if `data` cannot be decoded."""
        try:
            return read_part(self._processing_request.FromString(data))
        except DecodeError as error:
            raise CodecError("undecodable part of an answer") from error

    def _http(self, data: bytes) -> Any:
        try:
            message: Any = self._check_request.FromString(data)
        except DecodeError as error:
            raise CodecError("undecodable Check") from error
        request = message.attributes.request
        if not request.HasField("http"):
            raise CodecError("a Check without attributes.request.http")
        return request.http

    def _permission(self, decision: Decision, call: HttpCall | None) -> bytes:
        """Status and ok_response; the usual ones are remembered, as they hardly vary."""
        forged = _forged(call.headers) if call else ()
        if forged:
            return self._build_permission(decision, forged)
        key = (
            decision.verdict,
            decision.pool,
            decision.endpoint,
            decision.reason,
            decision.max_tokens,
        )
        known = self._allowed.get(key)
        if known is None:
            if len(self._allowed) >= _MOST_CACHED:
                self._allowed.clear()
            known = self._allowed[key] = self._build_permission(decision, ())
        return known

    def _build_permission(self, decision: Decision, forged: Iterable[str]) -> bytes:
        response = self._check_response()
        response.status.SetInParent()
        ours = _routing_headers(decision)
        ok = response.ok_response
        _add_headers(ok.headers, ours.items())
        # What is not set must not come from the client either.
        ok.headers_to_remove.extend(name for name in _OUR_HEADERS if name not in ours)
        ok.headers_to_remove.extend(forged)
        # The caller is told too: it got the slower pool, and why; it may get less than it wants.
        told = (_ADMISSION, _REASON, _MAX_TOKENS) if _REASON in ours else (_MAX_TOKENS,)
        _add_headers(ok.response_headers_to_add, ((n, ours[n]) for n in told if n in ours))
        return bytes(response.SerializeToString())

    def _standing(self, limits: Sequence[LimitState], api: Api) -> bytes:
        """What is left of limits, told to who is admitted."""
        response = self._check_response()
        _add_headers(response.ok_response.response_headers_to_add, standing_headers(limits, api))
        return bytes(response.SerializeToString())

    def _refusal(self, decision: Decision, api: Api) -> bytes:
        if (message := too_large(decision)) is not None:
            return self._build_refusal(decision.reason, api, message)
        key = (decision.reason, api)
        fixed = self._refused.get(key)
        if fixed is None:
            fixed = self._refused[key] = self._build_refusal(decision.reason, api)
        varying = varying_headers(decision, api, self._retry_cap_s)
        if not varying:
            return fixed
        response = self._check_response.FromString(fixed)
        fault = ANSWERS[decision.reason].fault
        denied = response.error_response if fault else response.denied_response
        _add_headers(denied.headers, varying)
        return bytes(response.SerializeToString())

    def _build_refusal(self, reason: Reason, api: Api, message: str | None = None) -> bytes:
        answer = ANSWERS[reason]
        response = self._check_response()
        response.status.code = answer.check_code
        response.status.message = reason.value
        denied = response.error_response if answer.fault else response.denied_response
        denied.status.code = answer.http_status
        _add_headers(denied.headers, fixed_headers(reason, api, message))
        denied.body = error_body(reason, api, message)
        return bytes(response.SerializeToString())


def _routing_headers(decision: Decision) -> dict[str, str]:
    """What tells Envoy where to send the request: nothing if no pool was chosen."""
    if decision.pool is None:
        return {}
    headers = {_POOL: clean(decision.pool)}
    if decision.endpoint is not None:
        headers[_ENDPOINT] = clean(decision.endpoint)
    headers[_ADMISSION] = decision.verdict.value
    if decision.verdict is Verdict.DEMOTE:
        headers[_REASON] = decision.reason.value
    if decision.max_tokens is not None:
        headers[_MAX_TOKENS] = str(decision.max_tokens)
    return headers


def _add_headers(target: Any, headers: Iterable[Header]) -> None:
    for name, value in headers:
        option = target.add(append_action=_OVERWRITE)
        option.header.key = name
        option.header.value = value


def _forged(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Names in our namespace that the client sent, beside those we set or remove anyway."""
    if _OUR_PREFIX not in "\n".join(headers):
        return ()
    return tuple(
        name for name in headers if name.startswith(_OUR_PREFIX) and name not in _OUR_HEADERS
    )


def _content_length(value: str | None) -> int:
    """The declared length in bytes, -1 if absent or not a number."""
    if value and value.isascii() and value.isdigit() and len(value) <= _LONGEST_LENGTH_DIGITS:
        return int(value)
    return -1


def _headers(http: Any) -> dict[str, str]:
    """Headers by lower-case name: the short way for what Envoy usually sends, else the long."""
    raw = http.header_map.headers
    try:
        if raw:
            headers = {header.key: header.raw_value.decode() or header.value for header in raw}
        else:
            headers = dict(http.headers)
    except UnicodeDecodeError:
        return _headers_the_long_way(http)
    if raw and len(headers) != len(raw):
        return _headers_the_long_way(http)
    for name in _PSEUDO_HEADERS:
        headers.pop(name, None)
    names = "\n".join(headers)
    if ":" in names or names != names.lower():
        return _headers_the_long_way(http)
    return headers


def _headers_the_long_way(http: Any) -> dict[str, str]:
    """Any capitals, bytes and repetitions: the meaning of `_headers`, spelt out."""
    if http.header_map.headers:
        pairs = [
            (header.key, header.raw_value.decode(errors="replace") or header.value)
            for header in http.header_map.headers
        ]
    else:
        pairs = sorted(http.headers.items())
    headers: dict[str, str] = {}
    for key, value in pairs:
        name = key.lower()
        if not name.startswith(":"):
            headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers
