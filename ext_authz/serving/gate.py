"""The gate: one configuration's identity, intake and controller, swapped together at a reload.

No policy lives here. Everything is synchronous on the one event loop, so a decision sees one
configuration and one set of telemetry from start to end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from http import HTTPStatus
from math import inf
from random import Random

from ext_authz.admission.controller import Controller
from ext_authz.admission.elsewhere import ran_elsewhere
from ext_authz.admission.enforcing import RULES
from ext_authz.admission.intake import Intake
from ext_authz.admission.ledger import Charge, Reservation
from ext_authz.admission.view import Ask
from ext_authz.estimation.calls import is_preflight
from ext_authz.estimation.cost import CostBook
from ext_authz.estimation.lag import ReportLag
from ext_authz.estimation.latency.features import Work
from ext_authz.estimation.parsing import api_of, parse
from ext_authz.estimation.sampling import Turns
from ext_authz.journal import Journal
from ext_authz.metrics import Metrics
from ext_authz.model import Api, Decision, HttpCall, Outcome, Reason, Verdict
from ext_authz.overload import Enforcement
from ext_authz.recording import Recorder
from ext_authz.serving.entries import AccessLogEntry
from ext_authz.serving.identity import Identity
from ext_authz.serving.mismatches import Mismatches
from ext_authz.serving.request_ids import RequestIds
from ext_authz.serving.settlement import Settlement
from ext_authz.serving.tap_memory import TapMemory
from ext_authz.settings import Settings
from ext_authz.snapshot import EndpointSample
from ext_authz.state.learned import gathering, recall

_PREFLIGHT = Decision(Verdict.ADMIT, Reason.PREFLIGHT, Verdict.ADMIT)
_DISABLED = Decision(Verdict.ADMIT, Reason.DISABLED, Verdict.ADMIT)
_GIVEN_UP = Decision(Verdict.REJECT, Reason.OVERLOADED, Verdict.REJECT)
_UNKNOWN_KEY = Decision(Verdict.REJECT, Reason.UNKNOWN_KEY, Verdict.REJECT)

# Outcomes of one pool that wait to be learned from. More are no better: they come from the same
# second, and the last of them would wait for as long.
MOST_LESSONS = 256


# More of an engine's load than this that is not ours, and its counters tell of others' requests.
FOREIGN_RATIO = 0.1


class Gate:
    """Decides calls and takes in what happened to them.

    `on_load_report` gets what an endpoint said of its load in a response: the endpoint's address,
    the unread report, and when it was said (monotonic seconds). `on_lesson` gets what was charged
    for a request, how it ended, and the time at which it is learned. `on_room` is called when
    something may have been decided of what is held.
    """

    def __init__(
        self, settings: Settings, ids: Iterator[str], rng: Random, metrics: Metrics, now: float
    ) -> None:
        self.settings = settings
        self.journal = Journal()
        self.metrics = metrics
        self.controller = Controller(settings.admission, rng, now)
        self.on_load_report: Callable[[str, str, float], None] = lambda *_: None
        self.on_room: Callable[[], None] = lambda: None
        # By their tickets, with the id that Envoy gave them.
        self._held: dict[str, tuple[Ask, str]] = {}
        self._ids = ids
        self._identity = Identity(settings.keys, settings.server.key_headers)
        self.costs = CostBook(settings.admission.cost)
        self._intake = Intake(settings.admission, self.costs)
        self._requests = RequestIds()
        self.recorder = Recorder(settings.journal, rng)
        self.settlement = Settlement(self.controller, self._requests, metrics)
        self.settlement.on_late = self._offer
        self.lessons: Turns[tuple[Reservation, Outcome]] = Turns(MOST_LESSONS, rng)
        self.on_lesson: Callable[[Reservation, Outcome, float], None] = self._teach
        self.taps = TapMemory(self._learn_from)
        metrics.read_with("journal_lines_lost", lambda: [((), float(self.recorder.lost))])
        metrics.read_with("lessons_skipped", lambda: [((), float(self.lessons.skipped))])
        self._addresses = _addresses(settings)
        self.mismatches = Mismatches(metrics)

    def reconfigure(self, settings: Settings, now: float) -> None:
        """Swap the configuration; nothing in flight is lost."""
        self.settings = settings
        self.recorder.settings = settings.journal
        self._identity = Identity(settings.keys, settings.server.key_headers)
        self._intake = Intake(settings.admission, self.costs)
        self._addresses = _addresses(settings)
        self.costs.keep(self._addresses)
        self.costs.rules = settings.admission.cost
        self.controller.reconfigure(settings.admission, now)
        self.mismatches.keep(settings.admission.pools)
        self.metrics.keep_tenants(settings.admission.tenants.keys())
        self.on_room()

    def decide(self, call: HttpCall, now: float, patience_s: float = inf) -> tuple[Decision, Api]:
        """The decision, and the API whose error shape the caller understands. Who waits no longer
        than `patience_s` is not held for longer; what is held is decided in `dispatched`."""
        admission = self.settings.admission
        if self.settings.edge.preflight_allow and is_preflight(call):
            return _PREFLIGHT, Api.OTHER
        if not admission.enabled:
            return _DISABLED, Api.OTHER
        who = self._identity.of(call.headers)
        if who.conflict:
            self.metrics.count("key_conflicts")
        if who.tenant is None:
            # Nobody's body is not worth reading.
            return self._enforced(_UNKNOWN_KEY), api_of(call)
        request_id = call.headers.get("x-request-id", "")
        if self._requests.is_given_up(request_id):
            return _GIVEN_UP, api_of(call)
        tenant = admission.tenants[who.tenant]
        refused = self.controller.refuse_early(tenant, who, now)
        if refused is not None:
            self.recorder.refused_unread(tenant, refused, call.path, now)
            return refused, api_of(call)
        request = parse(call)
        if request.partial:
            self.metrics.count("partial_bodies")
        ask = self._intake.ask(next(self._ids), tenant, call, request, who)
        if isinstance(ask, Decision):
            return self._enforced(ask), request.api
        return self._arrive(ask, request_id, patience_s, now), request.api

    def _arrive(self, ask: Ask, request_id: str, patience_s: float, now: float) -> Decision:
        decision = self.controller.arrive(ask, now, patience_s)
        if decision.verdict is Verdict.HOLD:
            self._held[ask.id] = (ask, request_id)
        else:
            self._decided(ask, request_id, decision, now)
        if self._held:
            self.on_room()
        return decision

    def _decided(self, ask: Ask, request_id: str, decision: Decision, now: float) -> None:
        self.recorder.decided(ask, decision, self._intake.slo_of(ask.request.path).e2e_s, now)
        if decision.reservation_id is not None:
            self._requests.book(request_id, decision.reservation_id)
            self._sent(ask, decision)

    def dispatched(self, now: float) -> list[tuple[str, Decision]]:
        """What was decided of held requests since, by their tickets."""
        decided = self.controller.dispatched(now)
        for ticket, decision in decided:
            held = self._held.pop(ticket, None)
            if held is not None:
                self._decided(*held, decision, now)
        return decided

    def left(self, ticket: str, now: float) -> None:
        """The caller of a held request has left, told or not."""
        self._held.pop(ticket, None)
        self.controller.cancel(ticket, now)
        self.on_room()

    def tick(self, now: float) -> None:
        """What time does by itself."""
        self.controller.tick(now)
        self.on_room()

    def close(self, now: float) -> None:
        """Hold nothing any more."""
        self.controller.close(now)
        self.on_room()

    @property
    def report_lag(self) -> ReportLag:
        """How late the access log tells of ends."""
        return self.settlement.lag

    def ended(self, entry: AccessLogEntry, now: float) -> None:
        """Take in one access-log entry; what it teaches waits for `learn`."""
        ended = self.settlement.take(entry, now)
        if self._held:
            self.on_room()
        if ended is None:
            return
        charged, outcome = ended
        self.recorder.ended(charged, outcome)
        self._offer(charged, outcome)
        address, served = charged.endpoint.spec.address, outcome
        if ran_elsewhere(charged, outcome):
            self.mismatches.differed(charged.pool, address, entry.upstream or "")
            # The engine that was charged has counted no tokens, as one that refuses.
            served = replace(outcome, status=HTTPStatus.BAD_GATEWAY)
        else:
            self.mismatches.agreed(charged.pool)
        if (ask := charged.ask) is not None and not ask.stages:
            self.costs.answered(address, ask.request, ask.estimate, ask.priced_as, served)
        # An endpoint known by a name is reached at an address that nobody configured.
        if entry.upstream in self._addresses:
            address = entry.upstream or address
        if entry.load_report:
            self.on_load_report(address, entry.load_report, now - entry.report_age_s)

    def _offer(self, charged: Reservation, outcome: Outcome) -> None:
        """There is something to be learned, if there is time."""
        # Those that a tap has shown say more, and are few.
        kind = (charged.pool, self.taps.knows(charged.id))
        if (left_out := self.lessons.offer(kind, (charged, outcome))) is not None:
            self.controller.pass_over(*left_out)

    def first_token(self, decision_id: str, at_s: float) -> None:
        """The first token of an answer passed at `at_s` (monotonic seconds)."""
        self.controller.first_token(decision_id, at_s)

    def learn(self, most: int, now: float) -> None:
        """Learn from up to `most` of the outcomes that wait."""
        for charged, outcome in self.lessons.take(most):
            self.taps.join(charged, outcome, now)

    def _learn_from(self, charged: Reservation, outcome: Outcome, now: float) -> None:
        self.on_lesson(charged, outcome, now)

    def _teach(self, charged: Reservation, outcome: Outcome, now: float) -> None:
        stay, ask = charged.stay, charged.ask
        if stay is None or ask is None:
            return
        if ask.stages and outcome.usage is not None:
            # The prompt that was counted is the last stage's, not the one that was sent.
            outcome = replace(outcome, usage=replace(outcome.usage, prompt_tokens=None))
        tokens = self.costs.ended(ask.request, ask.tenant.name, ask.priced_as, outcome, now)
        work = stay.work
        if tokens is not None:
            work = Work(work.prompt_tokens, tokens)
        self.controller.learn(charged, outcome, work)

    def learned(self) -> Generator[None, None, dict[str, object]]:
        """All that was learned, as plain values, piece by piece."""
        return gathering(self.controller.pools.by_name, self.costs)

    def recall(self, saved: object) -> tuple[str, ...]:
        """Take up what `learned` gave as far as it fits; what was left and why."""
        return recall(saved, self.controller.pools.by_name, self.costs)

    def _sent(self, ask: Ask, decision: Decision) -> None:
        if not ask.stages:
            where = decision.endpoint or ""
            self.costs.sent(where, ask.request, ask.estimate, ask.priced_as)
            return
        charged = self.controller.ledger.find(decision.reservation_id or "")
        if charged is not None:
            held: list[Reservation | Charge] = [charged, *charged.later]
            for one, stage in zip(held, ask.stages, strict=True):
                self.costs.passed(one.endpoint.spec.address, stage.estimate)

    def look_after_records(self, now: float) -> None:
        """Have written down what ended without a word, and what endpoints carry."""
        controller = self.controller
        self.recorder.look_after(controller.ledger, controller.pools.endpoints.values(), now)

    def observe(self, sample: EndpointSample) -> None:
        """Newer telemetry of one endpoint."""
        self.controller.observe(sample)
        if self._held:
            self.on_room()
        endpoint = self.controller.pools.endpoints.get(sample.endpoint)
        if endpoint is not None:
            own_only = endpoint.foreign <= FOREIGN_RATIO * max(1.0, endpoint.load)
            self.costs.observed(sample, own_only)

    def _enforced(self, refusal: Decision) -> Decision:
        """A refusal that needs no look at load, or what becomes of it where it does not count: it
        passes, and is nowhere booked."""
        word = self.settings.admission.enforcing.of(RULES.get(refusal.reason), refusal.tenant)
        if word is Enforcement.ENFORCE:
            return refusal
        passed = replace(refusal, verdict=Verdict.ADMIT, retry=None)
        if word is Enforcement.OFF:
            passed = replace(passed, reason=Reason.DISABLED, would_be=Verdict.ADMIT)
        return passed


def _addresses(settings: Settings) -> frozenset[str]:
    pools = settings.admission.pools.values()
    return frozenset(endpoint.address for pool in pools for endpoint in pool.endpoints)
