"""A real vLLM on the CPU: a tiny model of random weights, eight sequences at once."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from loadtest.compare.real_server import Real
from loadtest.compare.scenario import Kind, Scenario, Server, Shape, Tenant, steady
from tests.real.servers import VllmServer

SLOTS, MOST_TOKENS, OUTPUT_TOKENS = 8, 1024, 32
OPTIONS = {
    "max-model-len": MOST_TOKENS,
    "max-num-seqs": SLOTS,
    "max-num-batched-tokens": MOST_TOKENS,
}
# Completions: a model of random weights has no chat template.
SHAPE = Shape(Kind.COMPLETION, prompt_tokens=60.0, sigma=0.3, cap_tokens=OUTPUT_TOKENS)
SCENARIO = Scenario(
    "vllm", "a real vLLM on the CPU, eight sequences at once behind 4 s, at 1.5 times its best",
    servers=(Server(),), capacity_rps=1.0, slo_s=4.0, patience_s=12.0, measured_s=30,
    tenants=(Tenant("solo", steady(1.5), shape=SHAPE),),
)  # fmt: skip


def start(folder: Path, stack: ExitStack) -> Real:
    """Start it; `stack` ends it."""
    server = stack.enter_context(VllmServer(folder, OPTIONS))
    endpoint = {"url": server.url, "max_concurrency": SLOTS}
    prompt = "tell me a story of a card that had too much to do. " * 5
    return Real(
        scenario=SCENARIO,
        server=server,
        pool={"engine": "vllm", "models": [server.model], "endpoints": [endpoint]},
        variables={"MODEL": server.model},
        path="/v1/completions",
        body={"model": server.model, "prompt": prompt, "max_tokens": OUTPUT_TOKENS},
        at_once=SLOTS,
    )
