"""The cycle collector of the fast host; `test_server_options` has that of the other."""

from __future__ import annotations

import gc
from dataclasses import replace

from ext_authz.serving.asgi import AsgiHost
from ext_authz.serving.collecting import COLLECT_AFTER, OLDER_AFTER
from tests.support.service import Service
from tests.support.settings import make_settings


class Checks:
    """A door, and Checks that never come."""

    async def open(self) -> int:
        return 7

    async def close(self) -> None:
        pass

    def unsent(self, answer: bytes) -> None:
        raise AssertionError(answer)

    async def check(self, request: bytes, remaining_s: float | None) -> bytes:
        raise AssertionError((request, remaining_s))


async def test_the_collector_is_left_as_it_was() -> None:
    """While a host serves cycles are collected less often; then the process is as before."""
    before, service, checks = gc.get_threshold(), Service(), Checks()
    settings = replace(make_settings().server, drain_s=0.1)
    host = AsgiHost(checks, settings, checks, service.sink, service.taps)
    await host.start()
    assert gc.get_threshold() == (COLLECT_AFTER, OLDER_AFTER, before[2])
    await host.drain()
    assert gc.get_threshold() == before
