"""What decides in a simulation: the controller that is shipped, or a limit that never changes.

PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from random import Random
from typing import Protocol

from ext_authz.admission.controller import Controller
from ext_authz.admission.intake import Intake
from ext_authz.admission.ledger import Reservation
from ext_authz.admission.policies import demotion
from ext_authz.admission.view import NOBODY, Ask, Caller
from ext_authz.estimation.cost import CostBook
from ext_authz.estimation.latency.features import Work
from ext_authz.model import (
    Api,
    Decision,
    HttpCall,
    InferenceRequest,
    Operation,
    Outcome,
    Reason,
    Usage,
    Verdict,
)
from ext_authz.overload import Demotion
from ext_authz.settings import AdmissionSettings
from ext_authz.simulation.servers import Life, Server
from ext_authz.simulation.ways import Teach
from ext_authz.snapshot import EndpointSample

# A server's load that is not ours, beyond which its counters tell of others' requests.
FOREIGN_RATIO = 0.1


class Gate(Protocol):
    """Decides, and hears of what happens. `now` is what its own clock says."""

    def arrive(self, life: Life, now: float) -> Decision:
        """A request has come."""

    def ended(self, life: Life, outcome: Outcome, now: float) -> None:
        """An access-log entry has come."""

    def observe(self, page: EndpointSample) -> None:
        """A metrics page has come."""

    def tick(self, now: float) -> None:
        """Time has passed."""

    def cancel(self, id_: str, now: float) -> None:
        """The client of a request that is held has left."""

    def deadline(self) -> float:
        """When `dispatched` must be asked at the latest."""

    def dispatched(self, now: float) -> list[tuple[str, Decision]]:
        """Held requests that have been decided since."""

    def reconfigure(self, settings: AdmissionSettings, now: float) -> None:
        """Another configuration."""


class Asking:
    """From what a client sends to what is decided about, as the shipped intake does it."""

    def __init__(self, settings: AdmissionSettings) -> None:
        self.settings = settings
        self.costs = CostBook(settings.cost)
        self._intake = Intake(settings, self.costs)
        self._calls: dict[tuple[str, str], HttpCall] = {}
        # The first pool of each client's last request that was read.
        self.pools: dict[str, str] = {}

    def reconfigure(self, settings: AdmissionSettings) -> None:
        """What was learned stays."""
        self.settings = settings
        self.costs.rules = settings.cost
        self._intake = Intake(settings, self.costs)
        self._calls.clear()

    def caller(self, life: Life) -> Caller:
        """Who sends `life`: each client has a key of its own."""
        client = life.client
        again = client.tells and life.arrived_s > life.wished_s
        return Caller(client.who, client.name.encode(), again)

    def ask(self, life: Life, caller: Caller = NOBODY) -> Ask | Decision:
        """What `life` asks for, or the refusal that needs no look at load."""
        client = life.client
        request = InferenceRequest(
            Api.OPENAI, Operation.CHAT, client.path, client.model, life.size_bytes,
            output_cap_tokens=client.cap_tokens,
        )  # fmt: skip
        kind = (client.path, client.type)
        call = self._calls.get(kind)
        if call is None:
            headers = {self.settings.type_header: client.type} if client.type else {}
            call = self._calls[kind] = HttpCall("POST", client.path, headers, b"", 0, False)
        ask = self._intake.ask(life.id, self.settings.tenants[client.who], call, request, caller)
        if isinstance(ask, Ask):
            life.pool = self.pools[client.name] = ask.pools[0].name
            if ask.slo_s is not None:
                life.slo_s = ask.slo_s
        return ask


class ControllerGate:
    """The controller that is shipped, told of everything as the service tells it."""

    def __init__(self, settings: AdmissionSettings, rng: Random, teach: Teach = Teach.BOOK) -> None:
        self.asking = Asking(settings)
        self.controller = Controller(settings, rng, 0.0)
        self._teach = teach
        self._held: dict[str, Ask] = {}

    def arrive(self, life: Life, now: float) -> Decision:
        """See `Gate`."""
        tenant = self.asking.settings.tenants[life.client.who]
        caller = self.asking.caller(life)
        early = self.controller.refuse_early(tenant, caller, now)
        if early is not None:
            life.pool = self.asking.pools.get(life.client.name, "")
            return early
        ask = self.asking.ask(life, caller)
        if isinstance(ask, Decision):
            return ask
        decision = self.controller.arrive(ask, now)
        if decision.verdict is Verdict.HOLD:
            self._held[life.id] = ask
        else:
            self._sent(ask, decision)
        return decision

    def ended(self, life: Life, outcome: Outcome, now: float) -> None:
        """See `Gate`."""
        if outcome.ended_s is not None and outcome.ended_s > now:
            outcome = replace(outcome, ended_s=now)
        charged = self.controller.settle(outcome, now)
        if charged is None or charged.ask is None:
            return
        ask, costs = charged.ask, self.asking.costs
        address = charged.endpoint.spec.address
        costs.answered(address, ask.request, ask.estimate, ask.priced_as, outcome)
        if charged.stay is not None:
            work = self._learned(life, charged, outcome, charged.stay.work, now)
            self.controller.learn(charged, outcome, work)

    def observe(self, page: EndpointSample) -> None:
        """See `Gate`."""
        self.controller.observe(page)
        endpoint = self.controller.pools.endpoints.get(page.endpoint)
        if endpoint is not None:
            own_only = endpoint.foreign <= FOREIGN_RATIO * max(1.0, endpoint.load)
            self.asking.costs.observed(page, own_only)

    def tick(self, now: float) -> None:
        """See `Gate`."""
        self.controller.tick(now)

    def cancel(self, id_: str, now: float) -> None:
        """See `Gate`."""
        self._held.pop(id_, None)
        self.controller.cancel(id_, now)

    def deadline(self) -> float:
        """See `Gate`."""
        return self.controller.next_deadline()

    def dispatched(self, now: float) -> list[tuple[str, Decision]]:
        """See `Gate`."""
        decided = self.controller.dispatched(now)
        for id_, decision in decided:
            if (held := self._held.pop(id_, None)) is not None:
                self._sent(held, decision)
        return decided

    def reconfigure(self, settings: AdmissionSettings, now: float) -> None:
        """See `Gate`."""
        self.asking.reconfigure(settings)
        self.controller.reconfigure(settings, now)

    def _sent(self, ask: Ask, decision: Decision) -> None:
        if decision.endpoint is not None:
            self.asking.costs.sent(decision.endpoint, ask.request, ask.estimate, ask.priced_as)

    def _learned(
        self, life: Life, charged: Reservation, outcome: Outcome, expected: Work, now: float
    ) -> Work:
        """What the request turned out to be, as far as the gate can know."""
        ask = charged.ask
        if self._teach is Teach.EXPECTED or ask is None:
            return expected
        if self._teach is Teach.EXACT:
            outcome = replace(outcome, usage=Usage(life.prompt_tokens, life.output_tokens))
        costs = self.asking.costs
        tokens = costs.ended(ask.request, charged.tenant, ask.priced_as, outcome, now)
        return expected if tokens is None else Work(expected.prompt_tokens, tokens)


class StaticGate:
    """Keeps each server at so many requests, which it counts without any lag: what a limit could
    reach at best. `limits` is by pool."""

    def __init__(
        self, settings: AdmissionSettings, servers: Mapping[str, Server], limits: Mapping[str, int]
    ) -> None:
        self.asking = Asking(settings)
        self._servers = servers
        self._limits = limits

    def arrive(self, life: Life, now: float) -> Decision:  # noqa: ARG002
        """See `Gate`. The least full server, in the first pool of the chain that has room."""
        ask = self.asking.ask(life)
        if isinstance(ask, Decision):
            return ask
        for number, pool in enumerate(ask.pools):
            servers = [self._servers[endpoint.address] for endpoint in pool.endpoints]
            server = min((one for one in servers if one.up), key=_running, default=None)
            if server is not None and server.running < self._limits[pool.name]:
                verdict = Verdict.DEMOTE if number else Verdict.ADMIT
                return Decision(
                    verdict, Reason.HEADROOM, verdict, pool=pool.name, endpoint=server.address,
                    reservation_id=life.id,
                )  # fmt: skip
            if demotion(ask) is Demotion.FORBIDDEN:
                break
        return Decision(Verdict.REJECT, Reason.AT_CAPACITY, Verdict.REJECT)

    def ended(self, life: Life, outcome: Outcome, now: float) -> None:
        """It learns nothing."""

    def observe(self, page: EndpointSample) -> None:
        """It looks at no page."""

    def tick(self, now: float) -> None:
        """It knows no time."""

    def cancel(self, id_: str, now: float) -> None:
        """It holds nothing."""

    def deadline(self) -> float:
        """It holds nothing."""
        return inf

    def dispatched(self, now: float) -> list[tuple[str, Decision]]:  # noqa: ARG002
        """It holds nothing."""
        return []

    def reconfigure(self, settings: AdmissionSettings, now: float) -> None:  # noqa: ARG002
        """Its limits stay."""
        self.asking.reconfigure(settings)


def _running(server: Server) -> int:
    return server.running
