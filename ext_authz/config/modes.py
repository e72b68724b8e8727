"""What decides requests, predictions or gauges: how it is written, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator

from ext_authz.config.pipelines import Part
from ext_authz.config.scalars import as_bool, choice, number
from ext_authz.overload import HybridRules, Mode, ReactiveRules

if TYPE_CHECKING:
    from ext_authz.config.report import Report
    from ext_authz.config.schema import AdmissionControl

ModeWord = Annotated[str, choice(*Mode)]


class ReactiveBody(Part):
    """What gauges may show."""

    most_waiting: Annotated[float, number(0, 1e6)] = 2.0
    mean_latency: Annotated[bool, BeforeValidator(as_bool)] = True


class HybridBody(Part):
    """When predictions are acted on, by their median relative error."""

    trust_error: Annotated[float, number(0, 10, above=True)] = 0.5
    doubt_error: Annotated[float, number(0, 10, above=True)] = 0.75


def reactive_rules(body: ReactiveBody) -> ReactiveRules:
    """The rules that `body` means."""
    return ReactiveRules(body.most_waiting, body.mean_latency)


def hybrid_rules(body: HybridBody) -> HybridRules:
    """The rules that `body` means."""
    return HybridRules(body.trust_error, body.doubt_error)


def check_modes(config: AdmissionControl, report: Report) -> None:
    """Note bounds that would switch to and fro, and rules that nothing uses."""
    hybrid, used = config.hybrid, {config.mode, *(p.mode for p in config.pools if p.mode)}
    if not report.whole("hybrid", "reactive", "pools", "mode"):
        return
    if hybrid.doubt_error < hybrid.trust_error:
        report.problem(
            ("hybrid", "doubt_error"),
            "is below trust_error: predictions would be trusted and doubted at once",
            f"write at least {hybrid.trust_error:g}",
        )
    if config.hybrid.model_fields_set and Mode.HYBRID not in used:
        report.warn(("hybrid",), "is of no use: no pool is hybrid", "write `mode: hybrid`")
    if config.reactive.model_fields_set and used == {Mode.PREDICTIVE}:
        report.warn(
            ("reactive",),
            "is of no use: every pool is predictive",
            "write `mode: reactive` or `mode: hybrid`",
        )
