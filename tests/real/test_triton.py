"""The scraping source and the collector before a real Triton with dynamic batching.

Its model does nothing but wait, so that what the page says can be checked by arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

import aiohttp
import pytest

from ext_authz.snapshot import Freshness
from ext_authz.telemetry.pages.mappings import ENGINES
from tests.real.servers import TritonServer
from tests.real.watching import drive, impossible, source, until, watched

pytestmark = pytest.mark.timeout(900)  # the first one may have to install the server

TRITON = ENGINES["triton"]
KERNEL_S, MOST_IN_BATCH, CLIENTS = 0.05, 4, 16
BODY = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [3]}]}
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with TritonServer(tmp_path_factory.mktemp("triton"), KERNEL_S, MOST_IN_BATCH) as server:
        yield server


class Asks:
    """Sends a number to the model and checks that it comes back doubled."""

    def __init__(self, server: TritonServer) -> None:
        self._url = f"{server.url}/v2/models/{server.model}/infer"

    async def __call__(self, session: aiohttp.ClientSession) -> int:
        async with session.post(self._url, json=BODY) as response:
            answer = await response.json()
            if response.status == 200:
                assert answer["outputs"][0]["data"] == [6.0]
            return response.status


async def test_an_idle_server_waits_for_nothing_and_tells_no_mean(server: TritonServer) -> None:
    """Zero requests wait and finish; what no request tells of is unknown, not zero."""
    scraped = source(server, TRITON)
    try:
        reports = [await scraped.poll(now) for now in (1.0, 2.0)]
    finally:
        await scraped.close()
    for report in reports:
        (sample,) = report.endpoints
        assert (sample.waiting, sample.load) == (0.0, 0.0)
        unknown = (sample.running, sample.mean_execution_s, sample.mean_wait_s, sample.mean_batch)
        assert unknown == (None,) * 4
        assert not report.missing
        assert not report.dropped
    assert reports[0].endpoints[0].requests_per_s is None
    assert reports[1].endpoints[0].requests_per_s == 0.0


async def test_under_load_the_page_agrees_with_the_clients(
    server: TritonServer, record_property: Record
) -> None:
    """Requests wait, a batch takes the kernel's time and holds several, and both together are
    what the clients waited. All requests are counted once, and afterwards none is left."""
    async with watched(server, TRITON) as seen:
        done = await drive(Asks(server), CLIENTS, for_s=4.0)
        await until(lambda: seen.latest.waiting == 0.0)
        after = (await seen.more(3))[-1]
        assert set(done.statuses) == {200}
        assert done.lost == 0
        assert 0 < max(seen.values("waiting")) <= CLIENTS
        execution_s = seen.mean("mean_execution_s")
        assert KERNEL_S <= execution_s < 2 * KERNEL_S
        assert 1.5 < median(seen.values("mean_batch")) <= MOST_IN_BATCH
        whole_s = seen.mean("mean_wait_s") + execution_s
        assert whole_s == pytest.approx(done.mean_s, rel=0.25)
        assert median(seen.values("running")) == pytest.approx(MOST_IN_BATCH, rel=0.6)
        assert seen.total("requests_per_s") == pytest.approx(done.statuses[200])
        loaded = max(seen.samples, key=lambda sample: sample.waiting or 0.0)
        assert loaded.by_model[server.model].waiting == loaded.waiting
        assert (after.waiting, after.requests_per_s, after.mean_execution_s) == (0.0, 0.0, None)
        assert not seen.failures
        record_property("clients", f"{done.statuses[200]} in {done.mean_s:.3f} s each")
        shown = ("waiting", "running", "mean_execution_s", "mean_wait_s", "mean_batch")
        for name, value in seen.figures(*shown, "requests_per_s").items():
            record_property(name, value)


async def test_a_killed_server_grows_stale_and_comes_back_without_negative_rates(
    server: TritonServer, record_property: Record
) -> None:
    """Killed under load nothing new is said of it; started again its counters begin at zero,
    and the first sample after that has no rates and no means."""
    ask = Asks(server)
    async with watched(server, TRITON) as seen:
        await drive(ask, CLIENTS, for_s=1.0)
        await until(lambda: seen.latest.waiting == 0.0)
        server.kill()
        count = len(seen.samples)
        await until(lambda: seen.freshness() is Freshness.STALE)
        assert len(seen.samples) == count
        assert seen.failures
        server.start()
        await until(lambda: seen.freshness() is Freshness.FRESH)
        first = seen.samples[count]
        assert first.waiting == 0.0
        assert (first.requests_per_s, first.mean_execution_s, first.running) == (None,) * 3
        done = await drive(ask, CLIENTS, for_s=1.0)
        await until(lambda: seen.latest.waiting == 0.0)
        await seen.more(2)
        assert not [bad for sample in seen.samples if (bad := impossible(sample))]
        again = seen.samples[count:]
        told = [sample.requests_per_s for sample in again[1:]]
        assert None not in told
        executions = [s.mean_execution_s for s in again if s.mean_execution_s is not None]
        assert KERNEL_S <= median(executions) < 2 * KERNEL_S
        assert set(done.statuses) == {200}
        record_property("failed polls", len(seen.failures))
        record_property("last", seen.failures[-1])
