"""The admin HTTP server: metrics, health, and a look inside. Bind it to loopback or a pod
network: it shows tenants' names and traffic, never keys or prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import CollectorRegistry

from ext_authz.clock import Clock
from ext_authz.journal import Journal, explain
from ext_authz.metrics import Metrics

MOST_DECISIONS = 1000


@dataclass(frozen=True, slots=True)
class Inside:
    """What the admin pages may look at. `readiness` names what is not ready, empty when all is;
    `lost` the pools without telemetry, which are no reason to be sent no requests: what then
    happens is configured. `status` and `telemetry` are JSON-ready values."""

    metrics: Metrics
    journal: Journal
    clock: Clock
    telemetry: Callable[[], Mapping[str, Any]]
    readiness: Callable[[], tuple[str, ...]]
    lost: Callable[[], tuple[str, ...]]
    status: Callable[[], Mapping[str, Any]]


class AdminServer:
    """Serves `Inside` over HTTP."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(inside.metrics)
        self._runner: web.AppRunner | None = None

    async def start(self, listen: str) -> int:
        """Bind `listen` (host:port) and serve; the port, chosen by the system if it was 0."""
        app = web.Application(client_max_size=64 * 1024)
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/debug/status", self._status),
                web.get("/debug/telemetry", self._telemetry),
                web.get("/debug/decisions", self._decisions),
                web.get("/debug/explain/{name}", self._explain),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        host, _, port = listen.rpartition(":")
        site = web.TCPSite(self._runner, host.strip("[]"), int(port), reuse_port=True)
        await site.start()
        address: tuple[Any, ...] = self._runner.addresses[0]
        return int(address[1])

    async def stop(self) -> None:
        """Close the listener and all connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, _: web.Request) -> web.Response:
        body = generate_latest(self._registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        missing = self._inside.readiness()
        if missing:
            return web.Response(status=503, text="".join(f"{line}\n" for line in missing))
        lost = self._inside.lost()
        detail = f"; telemetry lost: {', '.join(lost)}" if lost else ""
        return web.Response(text=f"ready{detail}\n")

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self._inside.status()))

    async def _telemetry(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self._inside.telemetry()))

    async def _decisions(self, request: web.Request) -> web.Response:
        asked = request.query.get("count", "100")
        known = asked.isascii() and asked.isdigit() and len(asked) <= len(str(MOST_DECISIONS))
        if not (known and 0 < int(asked) <= MOST_DECISIONS):
            raise web.HTTPBadRequest(text=f"count: a number from 1 to {MOST_DECISIONS}\n")
        entries = self._inside.journal.recent(int(asked))
        return web.json_response(
            [
                {"at_s": e.at_s, "request_id": e.request_id, "decision": asdict(e.decision)}
                for e in entries
            ]
        )

    async def _explain(self, request: web.Request) -> web.Response:
        entry = self._inside.journal.find(request.match_info["name"])
        if entry is None:
            text = "no such decision: give the x-request-id of one of the latest 4096 requests\n"
            raise web.HTTPNotFound(text=text)
        return web.Response(text=explain(entry) + "\n")
