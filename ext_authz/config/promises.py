"""Latency promises: how they are written."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from ext_authz.config.pipelines import Part
from ext_authz.config.scalars import as_path, number

PathPattern = Annotated[str, BeforeValidator(as_path)]
SloMs = Annotated[float, number(0, 3_600_000, above=True)]


class Targets(Part):
    """A latency promise, any of the three."""

    e2e_ms: SloMs | None = None
    ttft_ms: SloMs | None = None
    tpot_ms: SloMs | None = None


class PathTargets(Targets):
    """The same for a path; `slo_ms` is another word for `e2e_ms`."""

    slo_ms: SloMs | None = None


class SloSection(Part):
    """The promises, by path."""

    default_ms: SloMs | None = None
    default: Targets = Targets()
    requests: Annotated[dict[PathPattern, PathTargets], Field(max_length=10_000)] = Field(
        default_factory=dict
    )
