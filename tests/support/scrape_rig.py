"""A scraped endpoint that can be made to fail, and what every such rig has to offer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from aiohttp import web

from ext_authz.settings import Endpoint
from ext_authz.snapshot import EndpointSample, Report
from ext_authz.telemetry.pages.mappings import VLLM
from ext_authz.telemetry.source import PollSource
from ext_authz.telemetry.sources.scrape import ScrapeSettings, ScrapeSource

SETTINGS = ScrapeSettings(interval_s=0.05, timeout_s=0.8, max_page_bytes=200_000)
FAULTS = (
    "error",
    "slow",
    "dripping",
    "cut_off",
    "hang_up",
    "garbage",
    "empty",
    "too_large",
    "gone",
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def page(running: float) -> bytes:
    """A proper page of a server on which `running` requests of 10 s each have finished."""
    label = '{engine="0",model_name="m1"}'
    return (
        f"vllm:num_requests_running{label} {running}\n"
        f"vllm:num_requests_waiting{label} 2\n"
        f"vllm:kv_cache_usage_perc{label} 0.25\n"
        f"vllm:request_inference_time_seconds_sum{label} {running * 10}\n"
        f"vllm:request_inference_time_seconds_count{label} {running}\n"
    ).encode()


def one(report: Report) -> EndpointSample:
    """The only sample of a report."""
    (sample,) = report.endpoints
    return sample


class Rig(Protocol):
    """A source together with the real thing that it reads, which can be made to fail."""

    source: PollSource
    address: str

    def healthy(self, running: float) -> None:
        """From now on show `running` requests, 2 waiting, a cache filled to a quarter."""

    def fail(self, fault: str) -> None:
        """From now on fail in one of the ways `FAULTS` names."""


class ScrapeRig:
    """A ScrapeSource before an aiohttp server on loopback."""

    def __init__(self, port: int) -> None:
        self.released = asyncio.Event()
        self.handler: Handler = self.not_found
        self.requests: list[web.Request] = []
        self.address = f"127.0.0.1:{port}"
        self.source: PollSource = ScrapeSource(self.endpoint(), VLLM, SETTINGS)

    def endpoint(self, scheme: str = "http") -> Endpoint:
        return Endpoint(self.address, f"{scheme}://{self.address}", 8, "gpu0")

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        return await self.handler(request)

    def healthy(self, running: float) -> None:
        self.answer(page(running))

    def fail(self, fault: str) -> None:
        bodies = {"garbage": b"<html>\nnot here\n</html>\n", "empty": b""}
        if fault in bodies:
            self.answer(bodies[fault])
        elif fault == "too_large":
            self.answer(page(1) + b"x" * SETTINGS.max_page_bytes)
        else:
            self.handler = {
                "error": self.error,
                "slow": self.slow,
                "dripping": self.dripping,
                "cut_off": self.cut_off,
                "hang_up": self.hang_up,
                "gone": self.not_found,
            }[fault]

    def answer(self, body: bytes, **headers: str) -> None:
        async def handle(_: web.Request) -> web.StreamResponse:
            return web.Response(body=body, headers={"Content-Type": "text/plain", **headers})

        self.handler = handle

    async def not_found(self, _: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="vllm:num_requests_running 1\n")

    async def error(self, _: web.Request) -> web.StreamResponse:
        return web.Response(status=500, body=page(1))

    async def slow(self, _: web.Request) -> web.StreamResponse:
        await self.released.wait()
        return web.Response(body=page(1))

    async def dripping(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while not self.released.is_set():
            await response.write(b"vllm:num_requests_running 1\n")
            await asyncio.sleep(0.02)
        return response

    async def cut_off(self, request: web.Request) -> web.StreamResponse:
        body = page(1)
        response = web.StreamResponse()
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        assert request.transport is not None
        request.transport.close()
        return response

    async def hang_up(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()


async def serve(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    tls: ssl.SSLContext | None = None,
) -> tuple[web.AppRunner, int]:
    app = web.Application()
    app.router.add_get("/metrics", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    port: int = runner.addresses[0][1]
    return runner, port


@asynccontextmanager
async def scrape_rig() -> AsyncIterator[ScrapeRig]:
    """A ScrapeSource and the server it reads, both ended afterwards."""
    rig: ScrapeRig | None = None

    async def handle(request: web.Request) -> web.StreamResponse:
        assert rig is not None
        return await rig.serve(request)

    runner, port = await serve(handle)
    rig = ScrapeRig(port)
    yield rig
    rig.released.set()
    await rig.source.close()
    await runner.cleanup()


async def until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110  # the condition is whatever a test looks at
            await asyncio.sleep(0.005)
