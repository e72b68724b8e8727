"""Makes the lines of the journal's file: one for each request that was decided, when it is over.

What waits here is bounded: the requests that are open, and the lines that are not written yet.
Nothing waits for the disk.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import replace
from random import Random

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.ledger import Ledger, Reservation
from ext_authz.admission.view import Ask
from ext_authz.estimation.latency.features import Load
from ext_authz.model import Decision, Outcome, Verdict
from ext_authz.recorded import Beside, Request, carried_line, request_line
from ext_authz.settings import JournalSettings, Tenant

# Open requests that are remembered, and lines that may wait. Beyond, lines are lost and counted.
MOST_OPEN, MOST_LINES = 65_536, 16_384
# Open ones that are looked after at a time: some end without a word, by their lease.
LOOKED_AFTER = 256
# How often it is told what endpoints carry beside our own, and of at most how many.
CARRIED_EVERY_S, MOST_ENDPOINTS = 5.0, 256


class Recorder:
    """Does nothing while `settings` name no file. `lost` are the lines for which there was no
    room."""

    def __init__(self, settings: JournalSettings, rng: Random) -> None:
        self.settings = settings
        self.lost = 0
        self._rng = rng
        self._open: OrderedDict[str, Request] = OrderedDict()
        self._lines: deque[str] = deque()
        self._carried_s = 0.0

    def decided(self, ask: Ask, decision: Decision, promise_s: float | None, now: float) -> None:
        """A request was decided; `promise_s` is what its path is promised. Of one that is held this
        is told again when its waiting is over."""
        if decision.verdict is Verdict.HOLD or not self._is_wanted():
            return
        shortened = ask.slo_s is not None and (promise_s is None or ask.slo_s < promise_s)
        request = Request(
            at_s=now if decision.held is None else now - decision.held.seconds,
            tenant=ask.tenant.name,
            type=ask.type.name,
            path=ask.request.path,
            model=ask.request.model,
            cost=ask.estimate,
            slo_s=ask.slo_s,
            deadline_s=ask.slo_s if shortened else None,
            stream=ask.request.stream,
            verdict=decision.verdict,
            would_be=decision.would_be,
            reason=decision.reason,
            pool=decision.pool,
        )
        if decision.reservation_id is None:
            self._write(request)
        elif len(self._open) < MOST_OPEN:
            self._open[decision.reservation_id] = request
        else:
            self.lost += 1

    def refused_unread(self, tenant: Tenant, decision: Decision, path: str, now: float) -> None:
        """A request of `tenant` was refused before its body was read."""
        if not self._is_wanted():
            return
        self._write(
            Request(
                at_s=now,
                tenant=tenant.name,
                type=tenant.types[0],
                path=path.partition("?")[0],
                model=None,
                cost=None,
                slo_s=None,
                deadline_s=None,
                stream=False,
                verdict=decision.verdict,
                would_be=decision.would_be,
                reason=decision.reason,
                pool=None,
            )
        )

    def ended(self, charged: Reservation, outcome: Outcome) -> None:
        """A request that was let in is over."""
        request = self._open.pop(outcome.reservation_id, None)
        if request is None:
            return
        # What the client or the network cut short says nothing of how long it would have run.
        cut = outcome.client_left or outcome.timed_out or outcome.upstream_reset
        usage, stay = outcome.usage, charged.stay
        if charged.whole is not None:
            # Of a pipeline the stages are many, and of each there is no time.
            stay = None
        self._write(
            replace(
                request,
                seconds=None if cut or outcome.duration_s <= 0.0 else outcome.duration_s,
                status=outcome.status,
                made_tokens=None if usage is None else usage.output_tokens,
                met=_beside(stay.met) if stay is not None else None,
                lived=_beside(stay.lived) if stay is not None else None,
            )
        )

    def look_after(self, ledger: Ledger, endpoints: Iterable[EndpointState], now: float) -> None:
        """Write down what ended without a word, and now and then what endpoints carry."""
        for id_ in [id_ for id_, _ in zip(self._open, range(LOOKED_AFTER), strict=False)]:
            if ledger.find(id_) is not None:
                self._open.move_to_end(id_)
            else:
                self._write(self._open.pop(id_))
        if self.settings.file is None or now - self._carried_s < CARRIED_EVERY_S:
            return
        self._carried_s = now
        told = {
            endpoint.spec.address: (
                round(endpoint.foreign, 2),
                endpoint.sample.kv_capacity_tokens,
                round(endpoint.thermal_factor, 3),
            )
            for endpoint, _ in zip(endpoints, range(MOST_ENDPOINTS), strict=False)
            if endpoint.sample is not None
        }
        if told:
            self._append(carried_line(now, told))

    def take(self) -> list[str]:
        """All lines that wait."""
        lines = list(self._lines)
        self._lines.clear()
        return lines

    def _is_wanted(self) -> bool:
        if self.settings.file is None:
            return False
        ratio = self.settings.sample_ratio
        return ratio >= 1.0 or self._rng.random() < ratio

    def _write(self, request: Request) -> None:
        self._append(request_line(request))

    def _append(self, line: str) -> None:
        if len(self._lines) < MOST_LINES:
            self._lines.append(line)
        else:
            self.lost += 1


def _beside(load: Load) -> Beside:
    return round(load.in_flight, 2), round(load.context_tokens, 1)
