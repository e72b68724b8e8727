"""Discovery of a service's endpoints, against a stand-in for the API server."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ext_authz.clock import SystemClock
from ext_authz.errors import TelemetryError
from ext_authz.telemetry.discovery.endpoint_slices import Slices
from ext_authz.telemetry.discovery.kubernetes import KubernetesDiscovery, KubernetesSettings
from tests.support.certificates import make_certificate
from tests.support.kubernetes_api import Api, api_server, endpoint, endpoint_slice
from tests.support.scrape_rig import until

Told = list[tuple[str, ...]]


def urls(*hosts: int, port: int = 8000) -> tuple[str, ...]:
    return tuple(f"http://10.0.0.{host}:{port}" for host in hosts)


def pod(host: int, **conditions: bool | None) -> dict[str, Any]:
    return endpoint(f"10.0.0.{host}", **conditions)


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with api_server() as made:
        made.put(endpoint_slice("a", pod(1, ready=True), pod(2)))
        yield made


def settings(api: Api) -> KubernetesSettings:
    return KubernetesSettings(
        "llm",
        "models",
        port="http",
        api_url=api.url,
        token_file=None,
        ca_file=None,
        watch_s=20,
        answer_s=0.3,
        pause_s=0.01,
        max_pause_s=0.05,
        keep_s=0.4,
    )


@asynccontextmanager
async def running(made: KubernetesSettings) -> AsyncIterator[tuple[Told, KubernetesDiscovery]]:
    told: Told = []
    discovery = KubernetesDiscovery(made, SystemClock())
    task = asyncio.create_task(discovery.run(told.append))
    try:
        yield told, discovery
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await discovery.close()


async def test_list_then_watch(api: Api) -> None:
    """What is there is told at once, then each change as it comes, over one watch."""
    async with running(settings(api)) as (told, discovery):
        await until(lambda: told == [urls(1, 2)])
        await until(lambda: api.watching == 1)
        api.put(endpoint_slice("b", pod(3)))
        await until(lambda: told[-1] == urls(1, 2, 3))
        api.put(endpoint_slice("a", pod(1, ready=False), pod(2, ready=True)))
        await until(lambda: told[-1] == urls(2, 3))
        # In two slices for a moment, which is no change.
        api.put(endpoint_slice("b", pod(2), pod(3)))
        api.delete("a")
        api.put(endpoint_slice("b", pod(2)))
        await until(lambda: told[-1] == urls(2))
        api.delete("b")
        await until(lambda: told[-1] == ())
        assert len(told) == 5
        assert len([query for query in api.queries if "watch" in query]) == 1
        assert discovery.failures == 0
    await until(lambda: api.watching == 0)


async def test_pages_of_a_long_list(api: Api) -> None:
    """A list comes in pages, and is told when it is whole."""
    for number in range(10, 15):
        api.put(endpoint_slice(f"s{number}", pod(number)))
    api.page = 2
    async with running(settings(api)) as (told, _):
        await until(lambda: bool(told))
        assert told == [tuple(sorted(urls(1, 2, *range(10, 15))))]
        assert [query.get("continue") for query in api.queries[:3]] == [None, "2", "4"]


async def test_a_watch_goes_on_where_the_last_ended(api: Api) -> None:
    """After the end of a watch the next one starts at the last version seen, bookmarks included,
    without another list."""
    async with running(settings(api)) as (told, discovery):
        await until(lambda: api.watching == 1)
        api.bookmark()
        bookmarked = str(api.version)
        api.end_watches()
        await until(lambda: api.queries[-1].get("resourceVersion") == bookmarked)
        assert api.queries[-1]["allowWatchBookmarks"] == "true"
        api.put(endpoint_slice("a", pod(9)))
        await until(lambda: told[-1] == urls(9))
        assert len([query for query in api.queries if "watch" not in query]) == 1
        assert discovery.failures == 0


@pytest.mark.parametrize("how", ["event", "status"])
async def test_an_expired_version_is_listed_anew(api: Api, how: str) -> None:
    """When the server forgot what changed since, a new list tells what was missed, and nobody
    loses an endpoint over it."""
    async with running(settings(api)) as (told, discovery):
        await until(lambda: api.watching == 1)
        if how == "event":
            api.oldest = api.version + 100
            api.slices["a"] = endpoint_slice("a", pod(7))
            api.end_watches()
            await until(lambda: told[-1] == urls(7))
            api.oldest = 0
        else:
            api.fault = "410"
            api.slices["a"] = endpoint_slice("a", pod(7))
            api.end_watches()
            await until(lambda: len(api.queries) >= 3)
            api.fault = ""
            await until(lambda: told[-1] == urls(7))
        assert told == [urls(1, 2), urls(7)]
        assert discovery.failures == 0


@pytest.mark.parametrize(
    "line",
    [
        b"{not json",
        b"[1]",
        b'{"type": "ADDED"}',
        b'{"type": "ADDED", "object": {"metadata": {}}}',
        b'{"type": "ADDED", "object": {"metadata": {"name": "z"}, "endpoints": [1], '
        b'"ports": [{"name": "http", "port": 1}]}}',
        b'{"type": "NEWS", "object": {"metadata": {"name": "z"}}}',
        b'{"type": "ERROR", "object": {"code": 500}}',
        b"x" * 4_100_000,
    ],
    ids=range(8),
)
async def test_a_broken_event_is_a_new_list(api: Api, line: bytes) -> None:
    """An event that is not understood may have been any change: only a list is sure."""
    async with running(settings(api)) as (told, discovery):
        await until(lambda: api.watching == 1)
        api.raw(line)
        api.slices["a"] = endpoint_slice("a", pod(5))
        await until(lambda: told[-1] == urls(5))
        assert discovery.failures >= 1
        assert told == [urls(1, 2), urls(5)]


@pytest.mark.parametrize("fault", ["500", "403", "302", "garbage", "hang"])
async def test_a_lost_server_keeps_the_last_known_for_a_bound(api: Api, fault: str) -> None:
    """Endpoints outlive the API server for as long as configured, then there are none, and they
    are back with it."""
    async with running(settings(api)) as (told, discovery):
        await until(lambda: api.watching == 1)
        api.fault = fault
        api.raw(b"broken")
        await until(lambda: discovery.failures >= 1)
        assert told == [urls(1, 2)]
        await until(lambda: told[-1] == ())
        api.fault = ""
        await until(lambda: told[-1] == urls(1, 2))
        assert told == [urls(1, 2), (), urls(1, 2)]


async def test_a_server_never_reached_tells_nothing(api: Api) -> None:
    """Not to know the endpoints is not to know that there are none."""
    gone = replace(settings(api), api_url="http://127.0.0.1:1", keep_s=0.0)
    async with running(gone) as (told, discovery):
        await until(lambda: discovery.failures >= 4)
        assert told == []


async def test_tokens_rotate(api: Api, tmp_path: Path) -> None:
    """The token is that of the moment; without a file for it there is a failure, no stack trace."""
    token = tmp_path / "token"
    async with running(replace(settings(api), token_file=str(token))) as (told, discovery):
        await until(lambda: discovery.failures >= 1)
        token.write_text("first\n")
        await until(lambda: api.watching == 1)
        token.write_text("second\n")
        api.end_watches()
        await until(lambda: api.tokens[-1] == "Bearer second")
        assert api.tokens[0] == "Bearer first"
        assert told == [urls(1, 2)]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_certificates_are_verified(tmp_path: Path) -> None:
    """An API server that the configured authority does not vouch for is sent no token."""
    ca = tmp_path / "ca.pem"
    token = tmp_path / "token"
    token.write_text("secret")
    async with api_server(make_certificate(tmp_path / "key.pem", ca)) as api:
        api.put(endpoint_slice("a", pod(1)))
        trusting = replace(settings(api), ca_file=str(ca), token_file=str(token))
        async with running(replace(trusting, ca_file=None)) as (told, discovery):
            await until(lambda: discovery.failures >= 2)
            assert (told, api.tokens) == ([], [])
        async with running(trusting) as (told, _):
            await until(lambda: told == [urls(1)])
            assert api.tokens[0] == "Bearer secret"


SLICE = endpoint_slice(
    "x",
    pod(1, ready=True, terminating=True),
    pod(2, ready=None),
    {"addresses": []},
    {"conditions": {}},
    {"addresses": ["10.0.0.3", "10.0.0.4"]},
    ports=[{"name": "grpc", "port": 9000}, {"name": "http", "port": 8000}, {"name": "odd"}],
)


@pytest.mark.parametrize(
    ("port", "expected"),
    [
        (None, urls(2, 3, port=9000)),
        ("http", urls(2, 3, port=8000)),
        ("other", ()),
        ("odd", ()),
        (8000, urls(2, 3, port=8000)),
        (7, ()),
    ],
)
def test_what_one_slice_says(port: str | int | None, expected: tuple[str, ...]) -> None:
    """Only ready endpoints, by their first address, with the port that is meant."""
    slices = Slices("http", port)
    slices.replace_all([SLICE])
    assert slices.urls == expected


def test_a_slice_without_ports_is_about_all() -> None:
    """A number is then the port; without one there is none to know."""
    bare = endpoint_slice("x", pod(1), ports=[])
    for port, expected in ((7, urls(1, port=7)), ("http", ()), (None, ())):
        slices = Slices("http", port)
        slices.apply("ADDED", bare)
        assert slices.urls == expected


@pytest.mark.parametrize(
    "item",
    [5, {}, {"metadata": {"name": ""}}, endpoint_slice("x", endpoint("no host/")), {"metadata": 3}],
)
def test_a_broken_list_changes_nothing(item: object) -> None:
    """A list is taken over whole or not at all."""
    slices = Slices("http", None)
    slices.replace_all([SLICE])
    with pytest.raises(TelemetryError):
        slices.replace_all([SLICE, item])
    assert slices.urls == urls(2, 3, port=9000)
