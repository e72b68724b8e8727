"""Microseconds of each stage of one Check, in this process, without any network."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from ext_authz.admission.controller import Controller
from ext_authz.admission.intake import Intake
from ext_authz.admission.view import Ask
from ext_authz.config.compile import load
from ext_authz.estimation.cost import CostBook
from ext_authz.estimation.parsing import parse
from ext_authz.model import Outcome
from ext_authz.serving.codec import Codec
from ext_authz.serving.identity import Identity
from ext_authz.serving.wire import compile_messages
from ext_authz.snapshot import EndpointSample
from tests.benchmarks.names import DATA
from tests.benchmarks.outcomes import NOWHERE, EntryWriter

LOOPS, ROUNDS = 300, 9


def stage_us(config: Path) -> dict[str, float]:
    """Medians over rounds of the mean of a stage's calls."""
    settings = load(config).settings
    codec = Codec(compile_messages())
    identity = Identity(settings.keys, settings.server.key_headers)
    intake = Intake(settings.admission, CostBook(settings.admission.cost))
    controller = Controller(settings.admission, Random(1), 0.0)
    clock, ids = count(), count()
    for _, endpoint in controller.endpoint_states():
        address = endpoint.spec.address
        controller.observe(EndpointSample(address, 0.0, 8.0, 0.0, 0.1, 1e6, 0.1))
    out: dict[str, float] = {}
    for suffix, file in (("", "check_chat_1k3.bin"), ("_64k", "check_chat_64k.bin")):
        data = (DATA / file).read_bytes()
        call = codec.decode_check(data)
        request = parse(call)
        out[f"decode{suffix}"] = mean_us(lambda data=data: codec.decode_check(data))
        out[f"parse{suffix}"] = mean_us(lambda call=call: parse(call))
    call = codec.decode_check((DATA / "check_chat_1k3.bin").read_bytes())
    request = parse(call)
    name = identity.of(call.headers).tenant
    assert name is not None
    tenant = settings.admission.tenants[name]
    out["identify"] = mean_us(lambda: identity.of(call.headers))
    book = CostBook(settings.admission.cost)
    out["estimate"] = mean_us(lambda: book.estimate(request, "acme", "m"))
    out["intake"] = mean_us(lambda: intake.ask("id", tenant, call, request))

    def decided() -> None:
        # With its settlement, or the ledger would fill: the pair is what a request costs.
        now = next(clock) * 1e-6
        ask = intake.ask(f"0123456789ab-{next(ids):x}", tenant, call, request)
        assert isinstance(ask, Ask)
        decision = controller.arrive(ask, now)
        assert decision.reservation_id is not None
        controller.settle(Outcome(decision.reservation_id, 200, 0.1, None), now)

    out["decide_and_settle"] = mean_us(decided) - out["intake"]
    ask: Any = intake.ask("0123456789ab-1", tenant, call, request)
    decision = controller.arrive(ask, 0.0)
    out["encode"] = mean_us(lambda: codec.encode(decision, call, request.api))
    log = EntryWriter().message([((decision.reservation_id or "").encode(), NOWHERE)] * 32)
    out["access_log_entry"] = (
        mean_us(lambda: [codec.decode_entry(entry) for entry in codec.split_access_log(log)]) / 32
    )
    return {stage: round(us, 2) for stage, us in out.items()}


def mean_us(call: Callable[[], object]) -> float:
    """Processor time of a call: the mean of a round, the median over rounds. What else runs on the
    machine is left out, as far as it does not slow the processor down."""
    times = []
    for _ in range(ROUNDS):
        begin = time.thread_time()
        for _ in range(LOOPS):
            call()
        times.append((time.thread_time() - begin) / LOOPS * 1e6)
    return median(times)
