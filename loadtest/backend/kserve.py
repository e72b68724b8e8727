"""The KServe v2 routes of a fixed-shape model."""

from __future__ import annotations

from dataclasses import asdict

from aiohttp import web

from loadtest.backend.asks import infer_ask
from loadtest.backend.service import Service


class KserveRoutes:
    """Handlers over one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """What to add to an application."""
        return [
            web.post("/v2/models/{model}/infer", self._infer),
            web.post("/v2/models/{model}/versions/{version}/infer", self._infer),
            web.get("/v2/models/{model}/ready", self._ready),
        ]

    async def _infer(self, request: web.Request) -> web.Response:
        body = await request.read()
        ask = infer_ask(body, request.headers.get("inference-header-content-length"))
        model = self._service.check_model(request.match_info["model"])
        async with self._service.admitted(request, ask) as ticket:
            await ticket.wake.wait()
            rows = ask.works[0].rows
            answer: dict[str, object] = {
                "model_name": model,
                "model_version": request.match_info.get("version", "1"),
                "outputs": [
                    {"name": "score", "datatype": "FP32", "shape": [rows, 1], "data": [0.5] * rows}
                ],
                "parameters": asdict(self._service.timing(ticket)),
            }
            if ask.id is not None:
                answer["id"] = ask.id
            return web.json_response(answer)

    async def _ready(self, request: web.Request) -> web.Response:
        self._service.check_model(request.match_info["model"])
        return web.Response()
