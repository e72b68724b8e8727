"""Pipelines: requests that visit several pools and are decided once, at their entry."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from ext_authz.config.locate import Loc
from ext_authz.config.scalars import as_name, as_path, as_text, number, whole
from ext_authz.settings import Pipeline, Stage

if TYPE_CHECKING:
    from ext_authz.config.report import Report
    from ext_authz.config.schema import AdmissionControl

MOST_STAGES = 8

Name = Annotated[str, BeforeValidator(as_name)]


class Part(BaseModel):
    """A mapping with known keys only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class StageBody(Part):
    """One visit: the pool, and the work there beside the request's own."""

    pool: Name
    prompt_ratio: Annotated[float, number(0, 100)] = 1.0
    output_tokens: Annotated[int, whole(0, 10_000_000)] | None = None


class PipelineBody(Part):
    """What belongs to the pipeline, and the pools it visits in order."""

    name: Name
    models: Annotated[list[Annotated[str, BeforeValidator(as_text)]], Field(max_length=1000)] = (
        Field(default_factory=list)
    )
    paths: Annotated[list[Annotated[str, BeforeValidator(as_path)]], Field(max_length=1000)] = (
        Field(default_factory=list)
    )
    stages: Annotated[list[StageBody], Field(min_length=1, max_length=MOST_STAGES)]


def pipeline_settings(body: PipelineBody) -> Pipeline:
    """The pipeline that `body` means: where a stage says nothing, only the last puts out what the
    request does, the others put out nothing."""
    last = len(body.stages) - 1
    return Pipeline(
        name=body.name,
        models=frozenset(body.models),
        paths=tuple(dict.fromkeys(body.paths)),
        stages=tuple(
            Stage(
                stage.pool,
                stage.prompt_ratio,
                0 if stage.output_tokens is None and place < last else stage.output_tokens,
            )
            for place, stage in enumerate(body.stages)
        ),
    )


def check_pipelines(config: AdmissionControl, report: Report) -> None:
    """Note what is wrong with names, with what belongs to which, and with the pools visited."""
    names = {pool.name: ("pool", report.line(("pools", i))) for i, pool in enumerate(config.pools)}
    taken: dict[tuple[str | None, str | None], int] = {}
    for index, pipeline in enumerate(config.pipelines):
        loc: Loc = ("pipelines", index)
        if pipeline.name in names:
            kind, line = names[pipeline.name]
            report.problem(
                (*loc, "name"), f"the {kind} on line {line} has this name too", "rename one of them"
            )
        names.setdefault(pipeline.name, ("pipeline", report.line((*loc, "name"))))
        _check_kinds(pipeline, taken, loc, report)
        if report.whole("pools"):
            _check_stages(config, pipeline, loc, report)


def _check_kinds(
    pipeline: PipelineBody,
    taken: dict[tuple[str | None, str | None], int],
    loc: Loc,
    report: Report,
) -> None:
    """`taken`: pairs of model and path, None for all, by the line of the pipeline that has them."""
    if not (pipeline.models or pipeline.paths):
        if report.whole("pipelines"):
            report.problem(loc, "says of no request that it belongs here", "add models or paths")
        return
    models: list[str | None] = [*pipeline.models] or [None]
    paths: list[str | None] = [*pipeline.paths] or [None]
    pairs = list(product(models, paths))
    known = [pair for pair in pairs if pair in taken]
    if known:
        what = " on ".join(part for part in known[0] if part is not None)
        report.problem(
            loc,
            f"{what} belongs to the pipeline on line {taken[known[0]]} already",
            "take it out of one of them",
        )
    for pair in pairs:
        taken.setdefault(pair, report.line(loc))


def _check_stages(
    config: AdmissionControl, pipeline: PipelineBody, loc: Loc, report: Report
) -> None:
    pools = {pool.name: pool for pool in config.pools}
    for place, stage in enumerate(pipeline.stages):
        if stage.pool not in pools:
            where: Loc = (*loc, "stages", place, "pool")
            report.problem(where, f"no pool is named {stage.pool}", "name one of the pools")
    entry = pools.get(pipeline.stages[0].pool)
    if entry is None or not entry.models:
        return
    missing = sorted(set(pipeline.models) - set(entry.models))
    if missing:
        report.problem(
            (*loc, "models"),
            f"{entry.name}, the pool of the first stage, does not serve {', '.join(missing[:5])}",
            f"add it to the models of {entry.name}: requests are sent there as they are",
        )
