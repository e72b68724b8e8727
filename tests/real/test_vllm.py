"""The scraping source, the collector and load reports before a real vLLM on the CPU."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import cycle

import aiohttp
import pytest

from ext_authz.snapshot import EndpointSample, Freshness
from ext_authz.telemetry.pages.mappings import ENGINES
from ext_authz.telemetry.sources.orca.report import parse_header
from ext_authz.telemetry.sources.orca.wire import OrcaWire
from tests.real.servers import VllmServer
from tests.real.tiny_model import KV_BYTES_PER_TOKEN, MOST_TOKENS
from tests.real.watching import drive, impossible, source, until, watched

pytestmark = pytest.mark.timeout(1500)  # the first one may have to install the server

VLLM = ENGINES["vllm"]
SLOTS, MOST_INSIDE, CLIENTS = 8, 24, 16
# Answers of one length would end together, and leave the cache empty at that moment.
OUTPUT_TOKENS = (24, 40, 56, 72, 88)
OPTIONS = {
    "max-model-len": MOST_TOKENS,
    "max-num-seqs": SLOTS,
    "max-num-batched-tokens": MOST_TOKENS,
    "max-num-queued-reqs": MOST_INSIDE,
}
PROMPT = "tell me a story of a card that had too much to do. " * 4
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    with VllmServer(tmp_path_factory.mktemp("vllm"), OPTIONS) as server:
        # The first batches take longer than all others.
        asyncio.run(drive(Asks(server), CLIENTS, for_s=2.0))
        yield server


class Asks:
    """Asks for completions of `OUTPUT_TOKENS` in turn, and counts the tokens it is told of."""

    def __init__(self, server: VllmServer) -> None:
        self.url = f"{server.url}/v1/completions"
        self.body = {
            "model": server.model,
            "prompt": PROMPT,
            "ignore_eos": True,
        }
        self._lengths = cycle(OUTPUT_TOKENS)
        self.prompt_tokens = 0
        self.generation_tokens = 0

    async def __call__(self, session: aiohttp.ClientSession) -> int:
        body = self.body | {"max_tokens": next(self._lengths)}
        async with session.post(self.url, json=body) as response:
            answer = await response.json()
            if response.status == 200:
                self.prompt_tokens += answer["usage"]["prompt_tokens"]
                self.generation_tokens += answer["usage"]["completion_tokens"]
            return response.status


async def load_header(ask: Asks, wanted: str, *, stream: bool = False) -> str | None:
    """The load report that comes with the answer to one request."""
    headers = {"endpoint-load-metrics-format": wanted}
    body = ask.body | {"max_tokens": OUTPUT_TOKENS[0], "stream": stream}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(ask.url, json=body) as response,
    ):
        assert response.status == 200
        await response.read()
        return response.headers.get("endpoint-load-metrics")


def understood(header: str | None) -> EndpointSample:
    """The sample that a header tells."""
    assert header is not None
    (sample,) = parse_header(header, OrcaWire()).report("a:1", 1.0).endpoints
    return sample


async def test_an_idle_server_tells_an_empty_cache_of_the_size_it_was_given(
    server: VllmServer,
) -> None:
    """Nothing runs or waits, every signal is found, and the capacity is the memory over what a
    token of this model needs."""
    scraped = source(server, VLLM)
    try:
        reports = [await scraped.poll(now) for now in (1.0, 2.0)]
    finally:
        await scraped.close()
    for report in reports:
        (sample,) = report.endpoints
        assert (sample.running, sample.waiting, sample.kv_usage_ratio) == (0.0, 0.0, 0.0)
        assert sample.kv_capacity_tokens == server.kv_cache_bytes / KV_BYTES_PER_TOKEN
        assert (sample.mean_execution_s, sample.mean_wait_s, sample.mean_batch) == (None,) * 3
        assert not report.missing
        assert not report.dropped
    (sample,) = reports[1].endpoints
    assert (sample.requests_per_s, sample.rejections_per_s) == (0.0, 0.0)
    assert (sample.prompt_tokens_per_s, sample.generation_tokens_per_s) == (0.0, 0.0)


async def test_under_load_the_page_agrees_with_the_clients(
    server: VllmServer, record_property: Record
) -> None:
    """All slots run, the rest waits, the cache fills, and time waiting and running together are
    what the clients waited. Requests and tokens are each counted once; afterwards all is free."""
    ask = Asks(server)
    async with watched(server, VLLM) as seen:
        done = await drive(ask, CLIENTS, for_s=6.0)
        await until(lambda: seen.latest.load == 0.0)
        after = (await seen.more(3))[-1]
        assert set(done.statuses) == {200}
        assert max(seen.values("running")) == SLOTS
        assert 0 < max(seen.values("waiting")) <= CLIENTS
        assert max(sample.load or 0.0 for sample in seen.samples) <= CLIENTS
        assert 0 < max(seen.values("kv_usage_ratio")) < 0.1
        whole_s = seen.mean("mean_execution_s") + seen.mean("mean_wait_s")
        assert whole_s == pytest.approx(done.mean_s, rel=0.25)
        assert seen.total("requests_per_s") == pytest.approx(done.statuses[200])
        assert seen.total("prompt_tokens_per_s") == pytest.approx(ask.prompt_tokens)
        assert seen.total("generation_tokens_per_s") == pytest.approx(ask.generation_tokens)
        loaded = max(seen.samples, key=lambda sample: sample.load or 0.0)
        assert loaded.by_model[server.model].running == loaded.running
        assert (after.kv_usage_ratio, after.requests_per_s) == (0.0, 0.0)
        assert after.mean_execution_s is None
        assert not seen.failures
        record_property("clients", f"{done.statuses[200]} in {done.mean_s:.3f} s each")
        shown = ("running", "waiting", "kv_usage_ratio", "mean_execution_s", "mean_wait_s")
        for name, value in seen.figures(*shown, "generation_tokens_per_s").items():
            record_property(name, value)


async def test_a_full_server_refuses_and_the_page_counts_it(
    server: VllmServer, record_property: Record
) -> None:
    """With more clients than it lets inside it answers 503, and every one is a rejection."""
    async with watched(server, VLLM) as seen:
        done = await drive(Asks(server), 2 * MOST_INSIDE, for_s=3.0)
        await until(lambda: seen.latest.load == 0.0)
        await seen.more(3)
        assert set(done.statuses) == {200, 503}
        assert seen.total("rejections_per_s") == pytest.approx(done.statuses[503])
        assert seen.total("requests_per_s") == pytest.approx(done.statuses[200])
        assert max(sample.load or 0.0 for sample in seen.samples) <= MOST_INSIDE
        record_property("refused", done.statuses[503])
        record_property("answered", done.statuses[200])


@pytest.mark.parametrize("wanted", ["TEXT", "JSON"])
async def test_its_load_report_tells_what_waits_and_how_full_the_cache_is(
    server: VllmServer, wanted: str, record_property: Record
) -> None:
    """Zero and zero when idle; under load what waits, within what the clients can have sent."""
    ask = Asks(server)
    idle = understood(await load_header(ask, wanted))
    assert (idle.waiting, idle.source) == (0.0, "orca")
    async with asyncio.TaskGroup() as group:
        busy = group.create_task(drive(Asks(server), CLIENTS, for_s=4.0))
        headers = [await load_header(ask, wanted) for _ in range(4)]
        await busy
    loaded = [understood(header) for header in headers]
    waiting = [sample.waiting for sample in loaded if sample.waiting is not None]
    usage = [sample.kv_usage_ratio for sample in loaded if sample.kv_usage_ratio is not None]
    assert len(waiting) == len(usage) == len(loaded)
    assert 0 < max(waiting) <= CLIENTS
    assert 0 < max(usage) < 0.1
    assert all(sample.running is None for sample in loaded)
    record_property("header", headers[-1])


async def test_a_stream_brings_no_load_report(server: VllmServer) -> None:
    """Its headers leave before there is anything to tell."""
    assert await load_header(Asks(server), "TEXT", stream=True) is None


async def test_a_killed_server_grows_stale_and_comes_back_without_negative_rates(
    server: VllmServer, record_property: Record
) -> None:
    """Killed with requests inside nothing new is said of it; started again its counters begin
    at zero, and the first sample after that has no rates and no means."""
    async with watched(server, VLLM) as seen:
        before = await drive(Asks(server), SLOTS, for_s=1.0)
        assert before.statuses[200]
        await seen.more(2)
        async with asyncio.TaskGroup() as group:
            cut = group.create_task(drive(Asks(server), CLIENTS, for_s=2.0))
            await until(lambda: bool(seen.latest.waiting))
            server.kill()
            count = len(seen.samples)
            await until(lambda: seen.freshness() is Freshness.STALE)
        assert cut.result().lost
        assert len(seen.samples) == count
        assert seen.failures
        server.start()
        await until(lambda: seen.freshness() is Freshness.FRESH)
        first = seen.samples[count]
        assert (first.running, first.waiting, first.kv_usage_ratio) == (0.0, 0.0, 0.0)
        assert (first.requests_per_s, first.mean_execution_s) == (None, None)
        done = await drive(Asks(server), SLOTS, for_s=1.0)
        await until(lambda: seen.latest.load == 0.0)
        await seen.more(2)
        again = seen.samples[count:]
        assert not [bad for sample in seen.samples if (bad := impossible(sample))]
        told = [sample.requests_per_s for sample in again[1:]]
        assert None not in told
        assert set(done.statuses) == {200}
        record_property("failed polls", len(seen.failures))
        record_property("last", seen.failures[-1])
