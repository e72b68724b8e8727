"""What Envoy sends to a response tap, made of the dataclasses that are not used to read it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.service.ext_proc import v3 as ext_proc
    from envoy_data_plane.google.protobuf import Struct, Value

STREAM = {":status": "200", "content-type": "text/event-stream; charset=utf-8"}
WHOLE = {":status": "200", "content-type": "application/json"}


def head(headers: Mapping[str, str], decision_id: str | None = "r-1", last: bool = False) -> bytes:
    """The headers of an answer."""
    raw = [core.HeaderValue(key=k, raw_value=v.encode()) for k, v in headers.items()]
    about = {}
    if decision_id is not None:
        fields = {"decision_id": Value(string_value=decision_id)}
        about["envoy.filters.http.ext_authz"] = Struct(fields=fields)
    return bytes(
        ext_proc.ProcessingRequest(
            response_headers=ext_proc.HttpHeaders(
                headers=core.HeaderMap(headers=raw), end_of_stream=last
            ),
            metadata_context=core.Metadata(filter_metadata=about),
            observability_mode=True,
        )
    )


def body(data: bytes, last: bool = False) -> bytes:
    """A part of the body."""
    part = ext_proc.HttpBody(body=data, end_of_stream=last)
    return bytes(ext_proc.ProcessingRequest(response_body=part, observability_mode=True))


def bodies(parts: Iterable[bytes]) -> list[bytes]:
    """A body in parts, and its end as Envoy tells of a chunked one: without bytes."""
    return [*map(body, parts), body(b"", last=True)]
