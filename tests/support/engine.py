"""A stand-in model server that a test drives by hand, with the metric page the gate scrapes."""

from __future__ import annotations

from aiohttp import web

from tests.support.upstream import Upstream

PAGE = """\
vllm:num_requests_running{{engine="0",model_name="demo"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="demo"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0",model_name="demo"}} 0.1
vllm:cache_config_info{{engine="0",block_size="16",num_gpu_blocks="1000"}} 1.0
"""


class Engine(Upstream):
    """An `Upstream` that also answers /metrics.

    `page` None shows the truth: what is inside and `foreign` more that came from elsewhere.
    """

    def __init__(self, name: str = "engine") -> None:
        super().__init__(name)
        self.foreign = 0
        self.page: str | None = None
        self.metrics_status = 200
        self.scrapes = 0
        self.ids: list[str] = []

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/metrics":
            self.scrapes += 1
            page = self.page
            if page is None:
                page = PAGE.format(running=self.active + self.foreign, waiting=0)
            return web.Response(text=page, status=self.metrics_status)
        self.ids.append(request.headers.get("x-request-id", ""))
        return await super()._answer(request)
