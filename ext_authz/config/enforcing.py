"""Where refusals count: how it is written, and what it means."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from ext_authz.config.scalars import choice
from ext_authz.overload import POOL_RULES, Enforcement, Enforcing, Rule

if TYPE_CHECKING:
    from ext_authz.config.report import Report
    from ext_authz.config.schema import AdmissionControl

EnforcementWord = Annotated[str, choice(*Enforcement)]
RuleWords = Annotated[
    dict[Annotated[str, choice(*Rule)], EnforcementWord], Field(max_length=len(Rule))
]


def enforcing_of(config: AdmissionControl) -> Enforcing:
    """What is said of the whole, of pools, tenants and rules."""
    return Enforcing(
        everywhere=Enforcement(config.enforcement),
        tenants=_said({tenant.name: tenant.enforcement for tenant in config.tenants}),
        pools=_said({pool.name: pool.enforcement for pool in config.pools}),
        rules=MappingProxyType(
            {Rule(rule): Enforcement(word) for rule, word in config.policies.items()}
        ),
    )


def _said(words: Mapping[str, str | None]) -> Mapping[str, Enforcement]:
    return MappingProxyType(
        {name: Enforcement(word) for name, word in words.items() if word is not None}
    )


def check_enforcing(config: AdmissionControl, report: Report) -> None:
    """Note what leaves a pool without any bound."""
    enforcing = enforcing_of(config)
    if not report.whole("policies", "pools", "enforcement"):
        return
    for index, pool in enumerate(config.pools):
        words = {enforcing.of(rule, None, pool.name) for rule in POOL_RULES}
        if words == {Enforcement.OFF}:
            report.warn(
                ("pools", index),
                f"no rule of {pool.name} is asked: nothing bounds what is let in",
                "write shadow, which bounds as little and tells what it would have done",
            )
