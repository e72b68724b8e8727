"""A real Triton (nvidia-pytriton) whose one model takes 50 ms for a batch of up to four, behind
150 ms: KServe v2, dynamic batching, its own metrics page."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from loadtest.compare.real_server import Real
from loadtest.compare.scenario import Kind, Scenario, Server, Shape, Tenant, steady
from tests.real.servers import TritonServer

KERNEL_S, MOST_IN_BATCH = 0.05, 4
SCENARIO = Scenario(
    "triton", "a real Triton, 50 ms a batch of four behind 150 ms, at 1.4 times its best",
    servers=(Server(profile="fraud"),), capacity_rps=1.0, slo_s=0.15, patience_s=2.0,
    tenants=(Tenant("solo", steady(1.4), shape=Shape(Kind.INFER)),),
)  # fmt: skip


def start(folder: Path, stack: ExitStack) -> Real:
    """Start it; `stack` ends it."""
    server = stack.enter_context(TritonServer(folder, KERNEL_S, MOST_IN_BATCH))
    endpoint = {"url": server.url, "metrics_url": server.metrics_url, "max_concurrency": 64}
    return Real(
        scenario=SCENARIO,
        server=server,
        pool={"engine": "triton", "models": [server.model], "endpoints": [endpoint]},
        variables={"MODEL": server.model, "INPUT": "x:FP32:1"},
        path=f"/v2/models/{server.model}/infer",
        body={"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [3]}]},
        at_once=2 * MOST_IN_BATCH,
    )
