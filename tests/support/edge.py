"""The whole edge on loopback: a scripted gate, stand-in model servers, the real Envoy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from ext_authz.settings import EdgeSettings
from tests.support.envoy import Envoy, start_envoy
from tests.support.settings import make_edge, make_pool, make_settings
from tests.support.stub_gate import StubGate
from tests.support.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Edge:
    """A running edge. Pool `alpha` has the upstreams a1 and a2, pool `beta` has b1."""

    gate: StubGate
    upstreams: dict[str, Upstream]
    envoy: Envoy
    client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        """A path that goes through every filter."""
        return f"{self.envoy.url}/v1/chat/completions"


@asynccontextmanager
async def running_edge(
    tmp_path: Path, edge: EdgeSettings | None = None, slots: int = 16, host: str = "127.0.0.1"
) -> AsyncIterator[Edge]:
    """Start everything; endpoints run `slots` requests each and are named by `host`."""
    async with AsyncExitStack() as stack:
        gate = await stack.enter_async_context(StubGate())
        names = ("a1", "a2", "b1")
        up = {name: await stack.enter_async_context(Upstream(name)) for name in names}
        at = {name: named(upstream, host) for name, upstream in up.items()}
        pools = [
            make_pool("alpha", at["a1"], at["a2"], slots=slots),
            make_pool("beta", at["b1"], slots=slots),
        ]
        settings = make_settings(pools, edge=edge or make_edge(), grpc_listen=gate.address)
        envoy = start_envoy(settings, tmp_path)
        stack.callback(envoy.process.stop)
        client = await stack.enter_async_context(aiohttp.ClientSession())
        yield Edge(gate, up, envoy, client)


def named(upstream: Upstream, host: str) -> str:
    """The upstream's host:port, with `host` for its loopback address."""
    return upstream.address.replace("127.0.0.1", host)
