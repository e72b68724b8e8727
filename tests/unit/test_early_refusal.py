"""Limits that need no look at the body are looked at before it."""

from __future__ import annotations

from random import Random

from ext_authz.admission.controller import Controller
from ext_authz.admission.view import NOBODY
from ext_authz.model import Reason, Verdict
from ext_authz.settings import TenantLimits
from tests.support.controlling import Asks
from tests.support.world import pool, settings, tenant

LIMITS = TenantLimits(requests_per_second=1.0, request_burst=2.0, max_concurrent=3)


def controller_of(**changes: object) -> tuple[Controller, Asks]:
    config = settings((pool("p"),), (tenant("t", limits=LIMITS), tenant("free")), **changes)
    return Controller(config, Random(1), 0.0), Asks(config)


def test_a_tenant_over_its_rate_is_refused_unread() -> None:
    """The same refusal, with the same hints, as after pricing; and it consumes nothing."""
    controller, asks = controller_of()
    who = controller.settings.tenants["t"]
    assert controller.refuse_early(who, NOBODY, 0.0) is None
    for _ in range(2):
        assert controller.arrive(asks("t"), 0.0).endpoint is not None
    early = controller.refuse_early(who, NOBODY, 0.0)
    assert early is not None
    late = controller.arrive(asks("t"), 0.0)
    assert (early.verdict, early.reason) == (Verdict.REJECT, Reason.REQUEST_RATE)
    assert (late.reason, late.limit) == (early.reason, early.limit)
    assert early.retry is not None
    assert early.retry.after_s >= 1.0
    assert controller.refuse_early(who, NOBODY, 1.0) is None
    assert controller.refuse_early(controller.settings.tenants["free"], NOBODY, 0.0) is None


def test_shadow_mode_reads_everything() -> None:
    """What would have been refused early still runs, so it must be priced."""
    controller, asks = controller_of(enforce=False)
    who = controller.settings.tenants["t"]
    for _ in range(5):
        controller.arrive(asks("t"), 0.0)
    assert controller.refuse_early(who, NOBODY, 0.0) is None
