"""The HTTP shell of a backend: routes common to all profiles, and errors as JSON."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aiohttp import web

from loadtest.backend.asks import BadAskError, parse_object
from loadtest.backend.control import parse_command
from loadtest.backend.kserve import KserveRoutes
from loadtest.backend.openai import OpenAiRoutes
from loadtest.backend.page import CONTENT_TYPE
from loadtest.backend.profiles import LlmProfile
from loadtest.backend.record import KEPT
from loadtest.backend.service import Service

# By this the load test's own requests are told from all others.
HARNESS_HEADER = "x-loadtest-harness"
MAX_BODY_BYTES = 8 * 1024 * 1024

_log = logging.getLogger("loadtest.backend")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(service: Service) -> web.Application:
    """An application that serves `service` and stops its timer on clean-up."""

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        if HARNESS_HEADER not in request.headers:
            service.record.note(request.path)
        return await handler(request)

    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[noted, _json_errors])
    common = _CommonRoutes(service)
    app.add_routes(common.routes())
    if isinstance(service.profile, LlmProfile):
        app.add_routes(OpenAiRoutes(service).routes())
    else:
        app.add_routes(KserveRoutes(service).routes())

    async def stop(_app: web.Application) -> None:
        service.driver.close()

    app.on_cleanup.append(stop)
    return app


def _error(
    request: web.Request, message: str, status: int, param: str | None = None
) -> web.Response:
    """An error in the shape of the API that was called: a string in KServe, an object in OpenAI."""
    if request.path.startswith("/v2/"):
        return web.json_response({"error": message}, status=status)
    kind = {404: "NotFoundError", 503: "Service Unavailable"}.get(status, "BadRequestError")
    body = {"message": message, "type": kind, "param": param, "code": status}
    return web.json_response({"error": body}, status=status)


@web.middleware
async def _json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadAskError as error:
        return _error(request, error.message, error.status, error.param)
    except web.HTTPException as error:
        return _error(request, error.reason, error.status)
    except Exception:
        _log.exception("a handler failed")
        return _error(request, "internal error", 500)


class _CommonRoutes:
    """Health, metrics, control and the record."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._healthy),
            web.get("/v2/health/live", self._healthy),
            web.get("/v2/health/ready", self._healthy),
            web.get("/metrics", self._metrics),
            web.post("/control", self._control),
            web.get("/log", self._record),
        ]

    async def _healthy(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _request: web.Request) -> web.Response:
        page = self._service.page()
        if page is None:
            raise web.HTTPNotFound
        return web.Response(body=page.encode(), headers={"content-type": CONTENT_TYPE})

    async def _control(self, request: web.Request) -> web.Response:
        service = self._service
        command = parse_command(parse_object(await request.read()), service.faults)
        if command.thermal_factor is not None:
            try:
                service.driver.throttle(command.thermal_factor, command.after_s)
            except ValueError as error:
                raise BadAskError(str(error), "thermal_factor") from None
        service.set_faults(command.faults)
        return web.json_response(
            {
                "thermal_factor": service.driver.gauges().throttle,
                "error_ratio": service.faults.error_ratio,
                "metrics": service.faults.metrics.value,
            }
        )

    async def _record(self, request: web.Request) -> web.Response:
        asked = request.query.get("limit", "100")
        if not (asked.isascii() and asked.isdigit() and len(asked) < 8):
            raise BadAskError("limit must be a number", "limit")
        driver = self._service.driver
        gauges = driver.gauges()
        return web.json_response(
            {
                "profile": self._service.profile.name,
                "in_flight": driver.in_flight,
                "peak_in_flight": driver.peak_in_flight,
                "running": gauges.running,
                "waiting": gauges.waiting,
                **self._service.record.summary(min(int(asked), KEPT)),
            }
        )
