"""A stand-in for a Kubernetes API server: EndpointSlices of one service, listed and watched."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

PATH = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
SELECTOR = "kubernetes.io/service-name=llm"


def endpoint(address: str, **conditions: bool | None) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions}


def endpoint_slice(name: str, *endpoints: dict[str, Any], ports: object = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "addressType": "IPv4",
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": 8000}] if ports is None else ports,
    }


class Api:
    """Holds slices by name, a version that grows, and the events since it began.

    `fault` makes the next lists or watches fail; `page` is how many slices a list page has;
    versions up to `oldest` have expired. `queries` remembers what was asked.
    """

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[int, bytes]] = []
        self.version = 10
        self.oldest = 0
        self.page = 100
        self.fault = ""
        self.queries: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.watching = 0
        self.ends = 0
        self.url = ""
        self._changed = asyncio.Event()

    def put(self, item: dict[str, Any]) -> None:
        name = item["metadata"]["name"]
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = item
        self._event(kind, item)

    def delete(self, name: str) -> None:
        self._event("DELETED", self.slices.pop(name))

    def bookmark(self) -> None:
        self._event("BOOKMARK", {"metadata": {}})

    def raw(self, line: bytes) -> None:
        """Send a line that need not be an event."""
        self.version += 1
        self.events.append((self.version, line))
        self._wake()

    def end_watches(self) -> None:
        """Let every watch come to its end, as after its time."""
        self.ends += 1
        self._wake()

    def _event(self, kind: str, item: dict[str, Any]) -> None:
        self.version += 1
        versioned = {
            **item,
            "metadata": {**item["metadata"], "resourceVersion": str(self.version)},
        }
        self.events.append((self.version, json.dumps({"type": kind, "object": versioned}).encode()))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        self.tokens.append(request.headers.get("Authorization", ""))
        if self.fault == "hang":
            await asyncio.Event().wait()
        if self.fault.isdigit():
            return web.Response(status=int(self.fault), text="{}")
        if request.query["labelSelector"] != SELECTOR:
            return web.Response(status=400)
        return await self._watch(request) if "watch" in request.query else self._list(request)

    def _list(self, request: web.Request) -> web.Response:
        if self.fault == "garbage":
            return web.Response(text="<html>")
        start = int(request.query.get("continue", 0))
        names = sorted(self.slices)
        end = start + self.page
        metadata = {"resourceVersion": str(self.version)}
        if end < len(names):
            metadata["continue"] = str(end)
        items = [self.slices[name] for name in names[start:end]]
        return web.json_response({"metadata": metadata, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        response = web.StreamResponse()
        await response.prepare(request)
        if since < self.oldest:
            gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
            await response.write(json.dumps(gone).encode() + b"\n")
            return response
        self.watching += 1
        ends = self.ends
        try:
            while True:
                changed = self._changed
                for version, line in [one for one in self.events if one[0] > since]:
                    since = version
                    # In two parts: a client must not take a part for an event.
                    await response.write(line[:7])
                    await response.write(line[7:] + b"\n")
                if self.ends != ends or _left(request):
                    return response
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), 0.05)
        finally:
            self.watching -= 1


def _left(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


@asynccontextmanager
async def api_server(tls: ssl.SSLContext | None = None) -> AsyncIterator[Api]:
    """An API server on loopback."""
    api = Api()
    app = web.Application()
    app.router.add_get(PATH, api.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    api.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        await runner.cleanup()
