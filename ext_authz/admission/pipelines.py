"""Which pipeline a request belongs to, and what it asks of each stage.

PURE, and compiled once per configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from ext_authz.admission.view import Ask
from ext_authz.estimation.cost import MAX_TOKENS
from ext_authz.model import WorkEstimate
from ext_authz.settings import Pipeline, Pool, Stage


class Pipelines:
    """The pipelines of one configuration; the first that matches counts."""

    def __init__(self, pipelines: tuple[Pipeline, ...]) -> None:
        # Of each model that some pipeline names, those that may match, in order; of any other
        # model those that name none.
        self._of_any = tuple(p for p in pipelines if not p.models)
        self._of_model: dict[str, tuple[Pipeline, ...]] = {
            model: tuple(p for p in pipelines if not p.models or model in p.models)
            for model in {model for pipeline in pipelines for model in pipeline.models}
        }

    def of(self, model: str | None, path: str) -> Pipeline | None:
        """The pipeline of a request, if it belongs to one. A model that could not be read is none
        of those named."""
        for pipeline in self._of_model.get(model or "", self._of_any):
            if not pipeline.paths or any(_matches(pattern, path) for pattern in pipeline.paths):
                return pipeline
        return None


def with_stages(ask: Ask, pipeline: Pipeline, pools: Mapping[str, Pool]) -> Ask:
    """`ask` as one decision over all stages of `pipeline`. Never demoted, a stage has one pool."""
    last = len(pipeline.stages) - 1
    stages = tuple(
        replace(
            ask,
            estimate=stage_estimate(stage, ask.estimate),
            pools=(pools[stage.pool],),
            pipeline=pipeline.name,
            # Promises are about all stages; how fast tokens come is the last one's alone.
            slo_s=None,
            ttft_s=None,
            tpot_s=ask.tpot_s if place == last else None,
        )
        for place, stage in enumerate(pipeline.stages)
    )
    return replace(ask, pools=stages[0].pools, pipeline=pipeline.name, stages=stages)


def stage_estimate(stage: Stage, whole: WorkEstimate) -> WorkEstimate:
    """What `stage` is expected to cost for a request that costs `whole`; bytes of the cache are
    those of another model, so unknown."""
    prompt = min(max(1, ceil(stage.prompt_ratio * whole.prompt_tokens)), MAX_TOKENS)
    if stage.output_tokens is not None:
        return WorkEstimate(prompt, stage.output_tokens, stage.output_tokens)
    return WorkEstimate(prompt, whole.output_tokens, whole.most_output_tokens)


def _matches(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else path == pattern
