"""The words in which a mapping says how an engine is read.

PURE. Engines rename their metrics between releases, so that every signal is a list of
alternatives, the preferred one first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from urllib.parse import urlsplit

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Signal(StrEnum):
    """What we want to know of an endpoint.

    `SLOTS` is how many requests it runs at once. `EXECUTION` is seconds in the engine, its queue
    left out, `QUEUEING` seconds in that queue, `WHOLE` both together, `BATCH` requests in one
    batch: means over what finished. `FIRST_TOKEN` is seconds from the arrival to it, over those
    that came. The `COUNTERS` only grow while the engine lives.
    """

    RUNNING = "running"
    WAITING = "waiting"
    SLOTS = "slots"
    KV_USAGE = "kv_usage_ratio"
    KV_CAPACITY = "kv_capacity_tokens"
    EXECUTION = "execution_s"
    QUEUEING = "queueing_s"
    WHOLE = "whole_s"
    BATCH = "batch"
    FIRST_TOKEN = "first_token_s"
    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    REQUESTS = "requests"
    REJECTIONS = "rejections"


COUNTERS = frozenset(
    {Signal.PROMPT_TOKENS, Signal.GENERATION_TOKENS, Signal.REQUESTS, Signal.REJECTIONS}
)
# A mean that is not there is no fault of the engine's.
OPTIONAL_MEANS = frozenset({Signal.FIRST_TOKEN})


class Combine(StrEnum):
    """How the series of one signal (engines, ranks, models) become one number."""

    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to find a signal: the series of metric `name` that carry the labels `where` (a
    value of "" also matches a label that is absent). With `factors` the number is the product of
    these labels' values instead of the sample's. `scale` turns it into our unit. The series of
    `times` and `less` that has the same labels, the filtered ones left out, multiplies the
    number and is taken from it; where it is not known, neither is the number.
    """

    name: str
    where: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    factors: tuple[str, ...] = ()
    scale: float = 1.0
    times: Way | None = None
    less: Way | None = None

    def names(self) -> Iterator[str]:
        """The metrics that this way reads."""
        yield self.name
        for partner in (self.times, self.less):
            if partner is not None:
                yield from partner.names()


@dataclass(frozen=True, slots=True)
class Rule:
    """A signal: alternatives in order of preference, and how series combine. Values below 0, or
    above `upper` by more than rounding, are not believed. Series that differ in nothing but the
    labels `copies` tell the same thing several times: the largest is taken. An `optional` signal
    that is not there is no fault of the engine's.
    """

    ways: tuple[Way, ...]
    combine: Combine = Combine.SUM
    upper: float | None = None
    copies: frozenset[str] = frozenset()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Mean:
    """An amount and what it is divided among, both since the engine's start: counter `total`
    less counter `less`, times `scale`, over counter `count`."""

    total: str
    count: str
    less: str | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class EngineMapping:
    """Everything engine-specific about reading one kind of server.

    `means` gives ways to a mean over time, the preferred one first. `ports` are those of the
    pages, where they are not the endpoint's own, and `path` is the pages' path: all together are
    read as one page. With `running_by_little` requests running are the time spent in execution
    per second of time (Little's law), since the engine shows no such gauge. With `models_of`
    only models that this metric shows are looked at. While a series of `awake` is 0 the engine
    sleeps: that nothing runs in it says nothing of what it could take.
    """

    engine: str
    model_label: str
    rules: Mapping[Signal, Rule]
    means: Mapping[Signal, tuple[Mean, ...]] = field(default_factory=lambda: MappingProxyType({}))
    path: str = "/metrics"
    ports: tuple[int, ...] = ()
    running_by_little: bool = False
    models_of: str | None = None
    awake: Way | None = None

    @property
    def names(self) -> frozenset[str]:
        """Every metric name that any alternative needs."""
        ways = {name for rule in self.rules.values() for way in rule.ways for name in way.names()}
        means = [mean for ways in self.means.values() for mean in ways]
        of_means = {name for m in means for name in (m.total, m.count, m.less) if name}
        others = {self.models_of, self.awake.name if self.awake else None} - {None}
        return frozenset(name for name in ways | of_means | others if name)

    def pages(self, endpoint_url: str) -> tuple[str, ...]:
        """Where the pages of the server at `endpoint_url` are. ValueError if that is no URL."""
        if not self.ports:
            return (endpoint_url.rstrip("/") + self.path,)
        parts = urlsplit(endpoint_url)
        if not parts.hostname:
            raise ValueError("not the URL of an endpoint")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return tuple(f"{parts.scheme}://{host}:{port}{self.path}" for port in self.ports)


def same_name(
    name: str, combine: Combine = Combine.SUM, upper: float | None = None, optional: bool = False
) -> Rule:
    """The plainest rule: one metric, one name."""
    return Rule((Way(name),), combine, upper, optional=optional)


def histogram(name: str) -> Mean:
    """The mean of what histogram or summary `name` observed."""
    return Mean(f"{name}_sum", f"{name}_count")
