"""How requests wait at the gate, and where those go that cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator

from ext_authz.config.pipelines import Part
from ext_authz.config.scalars import as_name, choice, duration, number, whole
from ext_authz.overload import Degrade, HoldRules, Relief

if TYPE_CHECKING:
    from ext_authz.config.report import Report
    from ext_authz.config.schema import AdmissionControl, PoolBody

Where = Annotated[str, choice("reject", "demote", "overflow")]


class HoldBody(Part):
    """`limit` 0 holds nothing."""

    limit: Annotated[float, duration(0, 60)] = 0.2
    when_full: Where = "demote"
    when_late: Where = "demote"
    overflow_pool: Annotated[str, BeforeValidator(as_name)] | None = None
    max_waiting: Annotated[int, whole(1, 100_000)] = 1000
    demote_above: Annotated[float, number(0, 1)] = 0.8


class DegradeBody(Part):
    """What a pool's servers are asked for instead of what the request asks for."""

    max_tokens: Annotated[int, whole(1, 10_000_000)]
    above: Annotated[float, number(0, 1)] = 1.0


def degrade_rule(body: DegradeBody | None) -> Degrade | None:
    """What it means."""
    return None if body is None else Degrade(body.max_tokens, body.above)


def hold_rules(body: HoldBody) -> HoldRules:
    """What it means."""
    return HoldRules(
        limit_s=body.limit,
        when_full=Relief(body.when_full),
        when_late=Relief(body.when_late),
        most_tickets=body.max_waiting,
        preferred_above_ratio=body.demote_above,
    )


def overflow_to(config: AdmissionControl, pool: PoolBody) -> str | None:
    """The overflow pool, if it may take in what `pool` cannot: it must serve all its models."""
    name = config.hold.overflow_pool
    target = next((other for other in config.pools if other.name == name), None)
    if target is None or target is pool:
        return None
    serves = not target.models or (bool(pool.models) and set(pool.models) <= set(target.models))
    return target.name if serves else None


def check_hold(config: AdmissionControl, report: Report) -> None:
    """Note an overflow that leads nowhere."""
    hold = config.hold
    if not report.whole("hold", "pools"):
        return
    wanted = "overflow" in {hold.when_full, hold.when_late}
    names = {pool.name for pool in config.pools}
    if hold.overflow_pool is None:
        if wanted:
            report.problem(
                ("hold", "overflow_pool"), "is missing, though something overflows", "name a pool"
            )
    elif hold.overflow_pool not in names:
        report.problem(
            ("hold", "overflow_pool"),
            f"no pool is named {hold.overflow_pool}",
            "name one of the pools",
        )
    elif not wanted:
        report.warn(
            ("hold", "overflow_pool"),
            "is of no use: nothing overflows",
            "write `when_full: overflow`, or delete it",
        )
    elif not any(overflow_to(config, pool) for pool in config.pools):
        report.problem(
            ("hold", "overflow_pool"),
            f"{hold.overflow_pool} serves all models of no other pool",
            "add their models to it, or name another pool",
        )
