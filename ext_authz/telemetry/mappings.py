"""What each engine calls its signals: data, read by `reading`.

PURE. A new engine is one more `EngineMapping` in `ENGINES`. Engines rename their metrics between
releases, so that every signal is a list of alternatives, the preferred one first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class Signal(StrEnum):
    """What we want to know of an endpoint. `EXECUTION` is seconds in the engine, its queue left
    out; the token signals are counters since the engine's start."""

    RUNNING = "running"
    WAITING = "waiting"
    KV_USAGE = "kv_usage_ratio"
    KV_CAPACITY = "kv_capacity_tokens"
    EXECUTION = "execution_s"
    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"


class Combine(StrEnum):
    """How the series of one signal (engines, ranks, models) become one number."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to find a signal: the series of metric `name` that carry the labels `where` (a
    value of "" also matches a label that is absent). With `factors` the number is the product of
    these labels' values instead of the sample's. `scale` turns it into our unit.
    """

    name: str
    where: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    factors: tuple[str, ...] = ()
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Rule:
    """A signal: alternatives in order of preference, and how series combine. Values below 0, or
    above `upper` by more than rounding, are not believed."""

    ways: tuple[Way, ...]
    combine: Combine = Combine.SUM
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds spent and requests finished, both since the engine's start: counter `total` less
    counter `less`, times `scale`, over counter `count`."""

    total: str
    count: str
    less: str | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineMapping:
    """Everything engine-specific about reading one kind of server. `path` is where its page is."""

    engine: str
    model_label: str
    rules: Mapping[Signal, Rule]
    timings: tuple[Timing, ...]
    path: str = "/metrics"

    @property
    def names(self) -> frozenset[str]:
        """Every metric name that any alternative needs."""
        ways = {way.name for rule in self.rules.values() for way in rule.ways}
        times = {name for t in self.timings for name in (t.total, t.count, t.less) if name}
        return frozenset(ways | times)


VLLM = EngineMapping(
    engine="vllm",
    model_label="model_name",
    rules=MappingProxyType(
        {
            Signal.RUNNING: Rule((Way("vllm:num_requests_running"),)),
            Signal.WAITING: Rule((Way("vllm:num_requests_waiting"),)),
            # A fraction in spite of its name. The second name is that of releases up to 0.8.
            Signal.KV_USAGE: Rule(
                (Way("vllm:kv_cache_usage_perc"), Way("vllm:gpu_cache_usage_perc")),
                Combine.MAX,
                upper=1.0,
            ),
            # Blocks x size is wrong for hybrid models and for data parallelism, hence second.
            Signal.KV_CAPACITY: Rule(
                (
                    Way("vllm:cache_config_info", factors=("kv_cache_size_tokens",)),
                    Way("vllm:cache_config_info", factors=("num_gpu_blocks", "block_size")),
                )
            ),
            Signal.PROMPT_TOKENS: Rule((Way("vllm:prompt_tokens_total"),)),
            Signal.GENERATION_TOKENS: Rule((Way("vllm:generation_tokens_total"),)),
        }
    ),
    timings=(
        Timing(
            "vllm:request_inference_time_seconds_sum", "vllm:request_inference_time_seconds_count"
        ),
        Timing(
            "vllm:e2e_request_latency_seconds_sum",
            "vllm:e2e_request_latency_seconds_count",
            less="vllm:request_queue_time_seconds_sum",
        ),
    ),
)

ENGINES: Mapping[str, EngineMapping] = MappingProxyType({VLLM.engine: VLLM})
"""The engines that can be read, by the name a pool's configuration gives."""
