"""Scraping servers whose metrics are not beside their API."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web

from ext_authz.errors import TelemetryError
from ext_authz.settings import Endpoint
from ext_authz.telemetry.pages.mappings import ENGINES
from ext_authz.telemetry.sources.scrape import ScrapeSource
from tests.support.scrape_rig import SETTINGS, serve

KSERVE = ENGINES["kserve"]


def source(*ports: int) -> ScrapeSource:
    endpoint = Endpoint("127.0.0.1:1", "http://127.0.0.1:1", 8, "gpu0")
    return ScrapeSource(endpoint, replace(KSERVE, ports=ports), SETTINGS)


async def test_pages_of_two_ports_make_one_sample() -> None:
    """What the autoscaler's port and the users' port tell is one sample of the endpoint, with
    rates once both were read twice; a page that fails fails both."""
    finished = 10
    broken = False

    async def autoscaler(_: web.Request) -> web.StreamResponse:
        return web.Response(text="queue_average_concurrent_requests 2\n")

    async def user(_: web.Request) -> web.StreamResponse:
        if broken:
            return web.Response(status=503)
        label = '{configuration_name="m",response_code="200"}'
        return web.Response(
            text=f"revision_app_request_count{label} {finished}\n"
            f"revision_app_request_latencies_sum{label} {finished * 500}\n"
            f"revision_app_request_latencies_count{label} {finished}\n"
            f"revision_request_latencies_sum{label} 1\nrevision_request_latencies_count{label} 1\n"
        )

    (one, first), (two, second) = await asyncio.gather(serve(autoscaler), serve(user))
    made = source(first, second)
    (sample,) = (await made.poll(1.0)).endpoints
    assert (sample.endpoint, sample.running, sample.requests_per_s) == ("127.0.0.1:1", 2, None)
    finished = 30
    report = await made.poll(3.0)
    (sample,) = report.endpoints
    assert (sample.running, sample.requests_per_s, sample.mean_execution_s) == (2, 10, 0.5)
    assert report.missing == frozenset()
    broken = True
    with pytest.raises(TelemetryError, match="503"):
        await made.poll(4.0)
    broken = False
    finished = 60
    (sample,) = (await made.poll(5.0)).endpoints
    assert sample.requests_per_s == 15
    await made.close()
    await one.cleanup()
    await two.cleanup()
