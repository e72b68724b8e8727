"""What a run of one variant gave, as it is kept in a file of its own.

`None` is a figure that has no meaning there (no innocent tenant, no best static limit known yet).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RUNS = Path("build/loadtest/runs")
# Figures that have come to mean something else, and since which version of the measures: those of
# runs that were measured before are left out.
SINCE = {"premature": 2, "amplification": 2}
MEASURES = max(SINCE.values())


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one run, over the requests that arrived in the measured window.

    `goodput_rps` counts 2xx within their promise, demoted ones included. `efficiency` is that over
    all that were let in. Latencies are of what was let in; a client that left counts with its
    patience. `share_error` as in `ext_authz.simulation.fairness`, on the servers' work of the
    backlogged tenants. `innocent_ok` is the part of the innocent tenant's requests that were served
    within their promise. `refused` are answers 429 and 503, those of Envoy for a dead server among
    them. `premature` is the part of refusals that were premature by the servers' own log.
    `amplification` is tries for each first one of those who come back; `recovery_s` how long after
    the end of a storm 95 % of all that newly arrives from then on is served in time.
    """

    goodput_rps: float
    offered_rps: float
    efficiency: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    ttft_p99_s: float | None = None
    share_error: float | None = None
    innocent_ok: float | None = None
    premature: float | None = None
    amplification: float | None = None
    recovery_s: float | None = None
    admitted: int = 0
    demoted: int = 0
    refused: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Cpu:
    """The machine during a run. `busy` is the part of all cores that worked, `others` the part
    worked by processes that are none of ours, `waited` the part of the time in which processes of
    ours wanted a core and had none (None where the kernel does not tell). `late_p99_s` is how late
    the load generator sent what was due. A `starved` run says little of its variant."""

    busy: float
    others: float
    waited: float | None
    late_p99_s: float
    starved: bool


@dataclass(frozen=True, slots=True)
class Series:
    """For plots. Lists by second of arrival from the beginning, warm-up included. `latencies_s`
    are 101 quantiles of what was let in. `work_s` is device seconds by tenant in the window,
    `refusals` counts by reason (`edge` where none was told). `hints` are pairs of what a refused
    client was told to wait and how long it really was until the servers had room, `None` if never
    within the run; at most 500."""

    offered_rps: list[int] = field(default_factory=list)
    good_rps: list[int] = field(default_factory=list)
    good_by_tenant: dict[str, list[int]] = field(default_factory=dict)
    latencies_s: list[float] = field(default_factory=list)
    work_s: dict[str, float] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    hints: list[tuple[float, float | None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Probe:
    """What an independent reader saw of a part of the streams: how many it read to their end, and
    by how much, in the median and at most, their first tokens came later than told."""

    streams: int
    median_off_s: float
    worst_off_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """One run. `limit` is the number that the variant had, if it has one (a static limit); `notes`
    are lines about what was odd; `probe` is there where streams were read live; `world` is the
    digest of what was played, `commit` what it was played with, `measures` the version of what
    its figures mean."""

    scenario: str
    variant: str
    round: int
    seed: int
    at_unix_s: float
    cpu: Cpu
    measured: Measured
    series: Series
    limit: float | None = None
    notes: tuple[str, ...] = ()
    world: str = ""
    probe: Probe | None = None
    commit: str = ""
    measures: int = 1

    def as_json(self) -> dict[str, Any]:
        """As it is written."""
        return asdict(self)


def path_of(scenario: str, variant: str, round_: int, runs: Path = RUNS) -> Path:
    """Where a run is kept."""
    return runs / scenario / variant / f"{round_}.json"


def write(run: Run, runs: Path = RUNS) -> Path:
    """Keep a run; never half of it."""
    path = path_of(run.scenario, run.variant, run.round, runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(run.as_json()) + "\n")
    partial.replace(path)
    return path


def read(path: Path) -> Run:
    """A run that was kept. Raises ValueError if it is of another shape than today's."""
    try:
        return _run(json.loads(path.read_text()))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a run of this version ({error}); remove it") from None


def read_all(runs: Path = RUNS) -> list[Run]:
    """All runs that are kept, by scenario, variant and round."""
    return [read(path) for path in sorted(runs.glob("*/*/*.json"))]


def _run(kept: Mapping[str, Any]) -> Run:
    series = Series(**kept["series"])
    return Run(
        **{
            **kept,
            "cpu": Cpu(**kept["cpu"]),
            "measured": Measured(**kept["measured"]),
            "series": Series(
                **{**kept["series"], "hints": [(told, real) for told, real in series.hints]}
            ),
            "notes": tuple(kept["notes"]),
            "probe": Probe(**kept["probe"]) if kept.get("probe") else None,
        }
    )
