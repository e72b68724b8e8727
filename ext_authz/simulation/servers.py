"""Model servers as a simulation sees them: any model of an engine behind a small protocol.

PURE. `now` is virtual seconds and never runs back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from ext_authz.simulation.clients import Client
from ext_authz.snapshot import EndpointSample


@dataclass(frozen=True, slots=True)
class Ended:
    """What a backend has run to its end."""

    id: int
    ended_s: float
    output_tokens: int


class Backend(Protocol):
    """A model server in virtual time."""

    def submit(self, now: float, prompt_tokens: int, cap_tokens: int | None) -> int | None:
        """Begin a request and return its id; None if it is not accepted."""

    def cancel(self, now: float, id_: int) -> None:
        """Its client has left; no end of it is told."""

    def advance(self, now: float) -> list[Ended]:
        """What has ended by `now` and was not told yet."""

    def next_event(self) -> float:
        """When `advance` is worth calling next; infinite while nothing runs."""

    def slow(self, now: float, factor: float) -> None:
        """Everything takes `factor` times as long as at first from now on."""

    def page(self, address: str, now: float) -> EndpointSample:
        """What its metrics page says; means and rates are over what came since the last one."""


@dataclass(slots=True)
class Life:
    """One try of one request, meant for `pool`.

    `wished_s` is when it was first tried, `arrived_s` when it came this time, `began_s` when it was
    sent on, `opened_s` that by the gate's clock; `predicted_s` is what the gate expected end to
    end, of `slo_s` promised; `ended_s` and `e2e_s` are known when it is over, as its client sees
    it. `inside` of its tenant were so many when it came. `ok`: served to its end.
    """

    id: str
    client: Client
    prompt_tokens: int
    size_bytes: int
    wished_s: float
    arrived_s: float
    pool: str = ""
    server: Server | None = None
    began_s: float = inf
    opened_s: float = inf
    predicted_s: float | None = None
    slo_s: float = inf
    output_tokens: int = 0
    ended_s: float = inf
    e2e_s: float = inf
    inside: int = 0
    ok: bool = False
    over: bool = False
    ticket: int = -1

    @property
    def kept(self) -> bool:
        """Whether it was served within its promise."""
        return self.ok and self.e2e_s <= self.slo_s


class Server:
    """One endpoint. `shown_factor` is the thermal factor that samples tell; `up` whether anybody
    answers there; `wake_s` when it is looked at next."""

    def __init__(self, address: str, pool: str, backend: Backend) -> None:
        self.address = address
        self.pool = pool
        self.shown_factor = 1.0
        self.up = True
        self.wake_s = inf
        self.live: dict[int, Life] = {}
        self.backend = backend

    @property
    def running(self) -> int:
        """Requests inside, as is true now."""
        return len(self.live)

    def take(self, life: Life, now: float) -> bool:
        """Begin a request; False if it is not accepted."""
        if not self.up:
            return False
        ticket = self.backend.submit(now, life.prompt_tokens, life.client.cap_tokens)
        if ticket is None:
            return False
        life.ticket = ticket
        self.live[ticket] = life
        return True

    def drop(self, life: Life, now: float) -> bool:
        """The client has left; False if the request was over already."""
        if self.live.get(life.ticket) is not life:
            return False
        del self.live[life.ticket]
        self.backend.cancel(now, life.ticket)
        return True

    def ended(self, now: float) -> list[Life]:
        """What has run to its end by `now`."""
        over: list[Life] = []
        for end in self.backend.advance(now):
            life = self.live.pop(end.id, None)
            if life is not None:
                life.output_tokens = end.output_tokens
                life.ended_s = end.ended_s
                life.ok = True
                over.append(life)
        return over

    def replace(self, backend: Backend) -> list[Life]:
        """Another process takes its place; the requests that were inside and are lost."""
        self.backend = backend
        lost = list(self.live.values())
        self.live.clear()
        return lost
