"""Prometheus: the real server over pages that a test writes, and a stand-in that fails at will."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Self

import yaml
from aiohttp import web

from ext_authz.clock import SystemClock
from ext_authz.telemetry.sources.prometheus.settings import PrometheusSettings, PrometheusTarget
from ext_authz.telemetry.sources.prometheus.source import PrometheusSource
from tests.support.debian import unpacked
from tests.support.processes import Process, answers_200
from tests.support.scrape_rig import SETTINGS, ScrapeRig, page

SCRAPE_INTERVAL_S = 0.2
_INTERVALS = ("scrape_interval", "scrape_timeout", "evaluation_interval")


class Pages:
    """A server of metrics pages by name, in a thread; one without text answers 500."""

    def __init__(self) -> None:
        self.texts: dict[str, str | None] = {}
        shown = self.texts

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = shown.get(self.path.removeprefix("/"))
                self.send_response(500 if text is None else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                self.wfile.write((text or "").encode())

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def instance(page_name: str) -> str:
    """What Prometheus calls the server of a page."""
    return f"{page_name}:8000"


def server(
    folder: Path, shown: Pages, jobs: Mapping[str, str], port: int, rules: Path | None = None
) -> Process:
    """A real Prometheus on `port` that scrapes pages of `shown`, by job name; ready to answer.

    It scrapes nothing in its first five seconds.
    """
    binary = unpacked("prometheus") / "usr/bin/prometheus"
    interval = f"{SCRAPE_INTERVAL_S * 1000:.0f}ms"
    config = folder / "prometheus.yml"
    scrapes = []
    for job, name in jobs.items():
        static = [{"targets": [shown.address], "labels": {"instance": instance(name)}}]
        scrapes.append({"job_name": job, "metrics_path": f"/{name}", "static_configs": static})
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
        self.asked: list[dict[str, str]] = []
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


def answers(rig: PrometheusRig, by_query: Mapping[str, bytes], status: int = 200) -> list[str]:
    """Answer each query by the longest key it begins with; the queries asked."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        query = rig.asked[-1]["query"]
        asked.append(query)
        found = [key for key in by_query if query.startswith(key)]
        if not found:
            return web.Response(body=vector(1.7e9))
        body = by_query[max(found, key=len)]
        return web.Response(body=body, status=400 if b'"error"' in body else status)

    rig.handler = handle
    return asked


@asynccontextmanager
async def prometheus_rig(tls: ssl.SSLContext | None = None) -> AsyncIterator[PrometheusRig]:
    """A PrometheusSource and the stand-in it asks, both ended afterwards."""
    rig: PrometheusRig | None = None

    async def handle(request: web.Request) -> web.StreamResponse:
        assert rig is not None
        form = await request.post()
        rig.asked.append({name: str(value) for name, value in form.items()})
        return await rig.serve(request)

    app = web.Application()
    app.router.add_post("/api/v1/query", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    rig = PrometheusRig(runner.addresses[0][1])
    yield rig
    rig.released.set()
    await rig.source.close()
    await runner.cleanup()
