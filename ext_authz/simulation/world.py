"""A gate, its clients and its servers in virtual time, with all that travels between them.

PURE. One heap of events and one seed. Clients, servers, the ways of news and the gate draw chance
apart, so that a change to one leaves the others as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from math import inf, nextafter
from random import Random

from ext_authz.model import Decision, Outcome, Reason, Verdict
from ext_authz.settings import AdmissionSettings
from ext_authz.simulation.clients import ANSWER_BYTES, PROMPT_BYTES, STEADY, UNTOLD_S, Client
from ext_authz.simulation.gates import Gate
from ext_authz.simulation.records import Records
from ext_authz.simulation.schedule import Action, Schedule
from ext_authz.simulation.servers import Backend, Life, Server
from ext_authz.simulation.ways import OFTEN, SOON, STALL, LogWay, Scrapes
from ext_authz.snapshot import EndpointSample

# As often as the process looks at the clock by itself.
TICK_S = 0.25
# What the proxy says for a gate that does not answer.
UNANSWERED = Decision(Verdict.REJECT, Reason.OVERLOADED, Verdict.REJECT)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Who asks, and how news of it travels."""

    clients: tuple[Client, ...]
    log: LogWay = SOON
    scrapes: Scrapes = OFTEN


class Simulation(Schedule):
    """Play it with `run`; change it in between, or with `at`.

    `log_cut`: no entries come; what ends meanwhile is never told. No pages come
    from those in `silent`, by address. `rates`
    are requests a second by client; `reshape` may change each page on its way. `skew_s` is by how
    much the gate's clock is ahead of true time; until `stalled_s` it does nothing at all: who asks
    is turned away by the proxy, and news waits.
    """

    def __init__(
        self, traffic: Traffic, servers: Mapping[str, Server], gate: Gate, seed: int
    ) -> None:
        super().__init__()
        self.traffic = traffic
        self.servers = servers
        self.gate = gate
        self.records = Records()
        self.rates = {client.name: client.rate_rps for client in traffic.clients}
        self.log_cut = False
        self.silent: frozenset[str] = frozenset()
        self.skew_s = 0.0
        self.stalled_s = -inf
        self.reshape: Callable[[EndpointSample], EndpointSample] = lambda sample: sample
        self.look: Callable[[Server], None] = lambda _: None
        self._held: dict[str, Life] = {}
        self._armed_s = inf
        self._ids = count()
        self._way = Random(seed + 2)  # noqa: S311  simulated chance
        for number, client in enumerate(traffic.clients):
            self._offer(client, Random(100 * seed + number))  # noqa: S311  simulated chance
        for server in servers.values():
            self._scrape(server)
        self._tick()

    # -- changes --------------------------------------------------------------------------

    def slow(self, factor: float, shown: bool = False, only: str | None = None) -> None:
        """Servers (or one) take `factor` times as long from now on; `shown`: samples tell of it."""
        for server in self.servers.values():
            if only in (None, server.address):
                self._advance(server)
                server.backend.slow(self.now, factor)
                server.shown_factor = factor if shown else 1.0

    def show(self, factor: float) -> None:
        """Samples tell of a thermal factor from now on."""
        for server in self.servers.values():
            server.shown_factor = factor

    def replace(self, address: str, backend: Backend, up: bool = True) -> None:
        """Another process at an address, or none that is `up`; what runs there is lost."""
        server = self.servers[address]
        self._advance(server)
        server.up = up
        for life in server.replace(backend):
            self._over(life, 503, reset=True)

    def reconfigure(self, settings: AdmissionSettings) -> None:
        """Another configuration, with the same endpoints."""
        self.gate.reconfigure(settings, self.now + self.skew_s)
        self._dispatch()

    # -- clients --------------------------------------------------------------------------

    def _offer(self, client: Client, chance: Random) -> None:
        rhythm = client.rhythm

        def arrive() -> None:
            tokens = client.prompt(chance)
            size_bytes = int(tokens * chance.uniform(*PROMPT_BYTES))
            # Thinned from the highest rate there is: exact for any rhythm.
            if rhythm == STEADY or chance.random() * rhythm.most_times < rhythm.factor(self.now):
                self._try(client, tokens, size_bytes, self.now)
            rate_rps = self.rates[client.name] * rhythm.most_times
            self.at(self.now + chance.expovariate(rate_rps), arrive)

        first_s = chance.expovariate(client.rate_rps * rhythm.most_times)
        self.at(first_s, arrive)

    def _try(self, client: Client, tokens: int, size_bytes: int, wished_s: float) -> None:
        now = self.now
        life = Life(f"r{next(self._ids)}", client, tokens, size_bytes, wished_s, now)
        self.records.came(life, now)
        decision = UNANSWERED if now < self.stalled_s else self.gate.arrive(life, now + self.skew_s)
        if decision.verdict is Verdict.HOLD:
            self.records.held += 1
            self._held[life.id] = life
            self._arm()
        else:
            self._decided(life, decision)
        if client.patience_s < inf and not life.over:
            self.at(now + client.patience_s, lambda: self._leave(life))

    def _decided(self, life: Life, decision: Decision) -> None:
        if decision.endpoint is None or decision.verdict is Verdict.REJECT:
            self._refused(life, decision)
            return
        evidence = decision.evidence
        life.predicted_s = evidence.predicted_s if evidence else None
        life.began_s, life.opened_s = self.now, self.now + self.skew_s
        server = life.server = self.servers[decision.endpoint]
        self.records.lives.append(life)
        self._advance(server)
        if not server.take(life, self.now):
            self._over(life, 503)
            return
        self.records.inside(server.pool, life.client.who, 1, self.now)
        self._wake(server)

    def _refused(self, life: Life, decision: Decision) -> None:
        life.over = True
        client, now = life.client, self.now
        self.records.turned_away(life, decision.reason, now)
        after_s = decision.retry.after_s if decision.retry else UNTOLD_S
        again_s = client.next_try_s(now, after_s)
        if again_s is not None and again_s <= life.wished_s + client.gives_up_s:
            self.at(
                again_s,
                lambda: self._try(client, life.prompt_tokens, life.size_bytes, life.wished_s),
            )

    def _leave(self, life: Life) -> None:
        if life.over:
            return
        if self._held.pop(life.id, None) is not None:
            life.over = True
            self.gate.cancel(life.id, self.now + self.skew_s)
            self._dispatch()
            return
        server = life.server
        if server is not None:
            self._advance(server)
            if server.drop(life, self.now):
                self._over(life, left=True)

    # -- held requests --------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Take up what the gate has decided of what it held."""
        if not self._held:
            return
        for id_, decision in self.gate.dispatched(self.now + self.skew_s):
            life = self._held.pop(id_, None)
            if life is not None:
                self._decided(life, decision)
        self._arm()

    def _arm(self) -> None:
        """Ask again at the gate's next deadline."""
        deadline_s = self.gate.deadline()
        at_s = max(self.now, deadline_s - self.skew_s)
        # Rounded down it would be a hair too early for ever, and time would stand still.
        while at_s + self.skew_s < deadline_s < inf:
            at_s = nextafter(at_s, inf)
        if at_s < self._armed_s:
            self._armed_s = at_s

            def due() -> None:
                if self._armed_s == at_s:
                    self._armed_s = inf
                    self._dispatch()

            self.at(at_s, due)

    # -- servers --------------------------------------------------------------------------

    def _advance(self, server: Server) -> None:
        for life in server.ended(self.now):
            self._over(life)

    def _wake(self, server: Server) -> None:
        """Be there when the server's next event is. One look at a time is under way."""
        at_s = server.backend.next_event()
        if at_s < server.wake_s:
            server.wake_s = at_s

            def step() -> None:
                if server.wake_s == at_s:
                    server.wake_s = inf
                    self._advance(server)
                    self._wake(server)

            self.at(at_s, step)

    # -- news -----------------------------------------------------------------------------

    def _over(self, life: Life, status: int = 200, left: bool = False, reset: bool = False) -> None:
        """A request has ended just now: its entry sets out."""
        life.over = True
        life.ended_s, life.e2e_s = self.now, self.now - life.arrived_s
        if life.ticket >= 0 and life.server is not None:
            self.records.inside(life.server.pool, life.client.who, -1, self.now)
        self.records.over(life, self.now)
        log, chance = self.traffic.log, self._way
        lag_s = log.lag_s + chance.random() * log.flush_s
        lost, doubled, stalled = (chance.random() for _ in range(3))
        answer_bytes = int(life.output_tokens * chance.uniform(*ANSWER_BYTES))
        times = STALL if life.ok and stalled < log.stalled_ratio else 1.0
        duration_s = life.e2e_s * times
        ended_s = life.arrived_s + duration_s
        if self.log_cut or lost < log.lost_ratio:
            return
        address = life.server.address if life.server else None
        # An end is dated from what was booked: the log's durations are believed, its clock is not.
        dated_s = life.opened_s + duration_s - (life.began_s - life.arrived_s)
        told = Outcome(
            life.id, status, duration_s, address, left, reset,
            ended_s=dated_s, response_bytes=answer_bytes,
        )  # fmt: skip
        self.at(ended_s + lag_s, lambda: self._told(life, told))
        if doubled < log.doubled_ratio:
            self.at(ended_s + 2.0 * lag_s, lambda: self._told(life, told))

    def _told(self, life: Life, outcome: Outcome) -> None:
        if self._waits(lambda: self._told(life, outcome)):
            return
        if not self.log_cut:
            self.gate.ended(life, outcome, self.now + self.skew_s)
            self._dispatch()

    def _waits(self, action: Action) -> bool:
        """Whether the gate is stalled; then it is for later."""
        if self.now < self.stalled_s:
            self.at(self.stalled_s, action)
            return True
        return False

    def _tick(self) -> None:
        if self._waits(self._tick):
            return
        self.gate.tick(self.now + self.skew_s)
        self._dispatch()
        self.at(self.now + TICK_S, self._tick)

    def _scrape(self, server: Server) -> None:
        scrapes = self.traffic.scrapes
        self._advance(server)
        self.look(server)
        lost = self._way.random() < scrapes.lost_ratio
        self.at(self.now + scrapes.every_s, lambda: self._scrape(server))
        if lost or server.address in self.silent or not server.up:
            return
        page = server.backend.page(server.address, self.now + self.skew_s)
        page = replace(page, thermal_factor=server.shown_factor)
        if not scrapes.first_tokens:
            page = replace(page, mean_ttft_s=None)
        self.at(self.now + scrapes.lag_s, lambda: self._observe(page))

    def _observe(self, page: EndpointSample) -> None:
        if self._waits(lambda: self._observe(page)):
            return
        self.gate.observe(self.reshape(page))
        self._dispatch()
