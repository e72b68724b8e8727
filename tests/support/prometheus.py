"""Prometheus: the real server over pages that a test writes, and a stand-in that fails at will."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from ext_authz.clock import SystemClock
from ext_authz.telemetry.prometheus import PrometheusSource
from ext_authz.telemetry.prometheus_settings import PrometheusSettings, PrometheusTarget
from tests.support.debian import unpacked
from tests.support.processes import Process, answers_200
from tests.support.scrape_rig import SETTINGS, ScrapeRig, page

SCRAPE_INTERVAL_S = 0.2
_INTERVALS = ("scrape_interval", "scrape_timeout", "evaluation_interval")


class Pages:
    """A server of metrics pages by path; one without text answers 500."""

    def __init__(self) -> None:
        self.texts: dict[str, str | None] = {}
        self.address = ""

    async def answer(self, request: web.Request) -> web.Response:
        text = self.texts.get(request.path)
        if text is None:
            return web.Response(status=500)
        return web.Response(text=text, headers={"Content-Type": "text/plain; version=0.0.4"})


@asynccontextmanager
async def pages() -> AsyncIterator[Pages]:
    made = Pages()
    app = web.Application()
    app.router.add_get("/{name}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.address = f"127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


def server(folder: Path, jobs: Mapping[str, str], port: int, rules: Path | None = None) -> Process:
    """A real Prometheus on `port` that scrapes the URLs `jobs`, by job name; ready to answer."""
    binary = unpacked("prometheus") / "usr/bin/prometheus"
    interval = f"{SCRAPE_INTERVAL_S * 1000:.0f}ms"
    config = folder / "prometheus.yml"
    scrapes = []
    for job, url in jobs.items():
        address, _, path = url.partition("/")
        static = [{"targets": [address]}]
        scrapes.append({"job_name": job, "metrics_path": f"/{path}", "static_configs": static})
    whole: dict[str, Any] = {
        "global": dict.fromkeys(_INTERVALS, interval),
        "scrape_configs": scrapes,
        "rule_files": [str(rules)] if rules else [],
    }
    config.write_text(yaml.safe_dump(whole))
    options = {
        "config.file": str(config),
        "storage.tsdb.path": str(folder / "data"),
        "web.listen-address": f"127.0.0.1:{port}",
        "log.level": "warn",
    }
    command = [str(binary), *(f"--{name}={value}" for name, value in options.items())]
    process = Process(command, folder / "prometheus.log")
    try:
        process.wait_ready(lambda: answers_200(f"http://127.0.0.1:{port}/-/ready"))
    except BaseException:
        process.stop()
        raise
    return process


def vector(at_s: float, *items: tuple[Mapping[str, str], object]) -> bytes:
    """An answer of the query API."""
    result = [{"metric": dict(labels), "value": [at_s, value]} for labels, value in items]
    data = {"resultType": "vector", "result": result}
    return json.dumps({"status": "success", "data": data}).encode()


class PrometheusRig(ScrapeRig):
    """A PrometheusSource before a stand-in of the query API that has scraped `page`.

    Each answer of the server has a date of its own, as if it had scraped a moment before.
    """

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.endpoint_address = "10.0.0.1:8000"
        self.settings = PrometheusSettings(
            url=f"http://{self.address}",
            targets=(PrometheusTarget(self.endpoint_address, "vllm"),),
            interval_s=SETTINGS.interval_s,
            timeout_s=SETTINGS.timeout_s,
            max_response_bytes=SETTINGS.max_page_bytes,
            devices=False,
        )
        self.at_s = 1.7e9
        self.configure()
        self.address = self.endpoint_address

    def configure(self, **changes: Any) -> None:
        """A new source, with `changes` of its settings."""
        self.settings = replace(self.settings, **changes)
        self.source = PrometheusSource(self.settings, SystemClock())

    def healthy(self, running: float) -> None:
        self.at_s += 10.0
        items: list[tuple[Mapping[str, str], object]] = []
        for line in page(running).decode().splitlines():
            name, _, rest = line.partition("{")
            labels, _, value = rest.partition("} ")
            named = dict(pair.split("=", 1) for pair in labels.replace('"', "").split(","))
            named["instance"] = self.endpoint_address
            items.append(({"__name__": name, **named}, value))
            items.append(({"ext_authz_dated": name, **named}, f"{self.at_s:.3f}"))
        self.answer(vector(self.at_s, *items))


@asynccontextmanager
async def prometheus_rig() -> AsyncIterator[PrometheusRig]:
    """A PrometheusSource and the stand-in it asks, both ended afterwards."""
    rig: PrometheusRig | None = None

    async def handle(request: web.Request) -> web.StreamResponse:
        assert rig is not None
        return await rig.serve(request)

    app = web.Application()
    app.router.add_get("/api/v1/query", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    rig = PrometheusRig(runner.addresses[0][1])
    yield rig
    rig.released.set()
    await rig.source.close()
    await runner.cleanup()
