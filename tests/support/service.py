"""The inside of a server without its listeners: codec, gate and services on a standing clock."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from itertools import count
from random import Random
from typing import Any

from ext_authz.metrics import Metrics
from ext_authz.serving.access_log import AccessLogSink
from ext_authz.serving.check import CheckService
from ext_authz.serving.codec import Codec
from ext_authz.serving.gate import Gate
from ext_authz.serving.tap import TapService
from ext_authz.serving.wire import compile_messages
from ext_authz.snapshot import EndpointSample
from tests.support.settings import make_settings
from tests.support.stack import CHAT
from tests.support.world import pool, settings, tenant

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from envoy_data_plane.envoy.config.core import v3 as core
    from envoy_data_plane.envoy.service.auth import v3 as auth

WIRE = compile_messages()
KEY = "sk-good"


class StandingClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.at_s = 100.0

    def now(self) -> float:
        return self.at_s

    def wall(self) -> float:
        return 1.0e9 + self.at_s


class Service:
    """One pool of one server with `slots`, one tenant whose key is `KEY`."""

    def __init__(self, slots: int = 4) -> None:
        self.clock = StandingClock()
        admission = settings((pool("p", slots=slots),), (tenant("acme"),))
        whole = replace(
            make_settings(), admission=admission, keys={sha256(KEY.encode()).digest(): "acme"}
        )
        ids = (f"r-{number}" for number in count(1))
        self.metrics = Metrics()
        self.gate = Gate(whole, ids, Random(1), self.metrics, self.clock.now())
        self.gate.observe(EndpointSample("p-0:80", self.clock.now(), running=0, waiting=0))
        self.codec = codec = Codec(WIRE)
        self.checks = CheckService(self.gate, codec, self.clock)
        self.sink = AccessLogSink(self.gate, codec, self.clock)
        self.taps = TapService(self.gate, codec, self.clock)

    @property
    def in_flight(self) -> int:
        return len(self.gate.controller.ledger)

    async def check(self, request: bytes, remaining_s: float | None = 0.5) -> Any:
        """The answer to a Check, decoded."""
        return WIRE.check_response.FromString(await self.checks.check(request, remaining_s))


def chat(key: str = KEY, request_id: str = "q-1", **headers: str) -> bytes:
    """A Check for a small chat."""
    body = json.dumps(CHAT).encode()
    return http_check(
        {"authorization": f"Bearer {key}", "x-request-id": request_id, **headers}, body
    )


def http_check(headers: Mapping[str, str | bytes], body: bytes) -> bytes:
    """A Check around any headers and body."""
    raw = [
        core.HeaderValue(key=k, raw_value=v if isinstance(v, bytes) else v.encode())
        for k, v in headers.items()
    ]
    http = auth.AttributeContextHttpRequest(
        method="POST",
        path="/v1/chat/completions",
        header_map=core.HeaderMap(headers=raw),
        raw_body=body,
        size=len(body),
    )
    request = auth.AttributeContextRequest(http=http)
    return bytes(auth.CheckRequest(attributes=auth.AttributeContext(request=request)))
