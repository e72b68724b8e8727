"""What a gate makes of the heartbeats it gets: who may speak for what, and when it was sent.

PURE. Used alike by every channel heartbeats come through.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from types import MappingProxyType

from ext_authz.errors import TelemetryError
from ext_authz.snapshot import EndpointSample, Report
from ext_authz.telemetry.sources.feedback.heartbeat import Heartbeat

CLAIM_S = 2.0
"""An agent that was silent this long no longer keeps others from speaking for its endpoint."""

FORGET_S = 30.0
"""An agent that was silent this long is forgotten, where its channel does not tell of its end."""

USUAL_DELAY_WINDOW_S = 30.0
"""The usual delay of an agent is the least of this time and of as long before it, silence not
counted. Longer would take drifting clocks for delay; shorter would get used to a stalled link
sooner."""


class Refusal(StrEnum):
    """Why what an agent said was not used; keys of `Report.dropped`."""

    UNKNOWN_ENDPOINT = "unknown_endpoint"
    SUPERSEDED = "superseded"
    OUT_OF_ORDER = "out_of_order"
    NO_ENDPOINT = "no_endpoint"
    GARBAGE = "garbage"
    CONFLATED = "conflated"
    TOO_MANY_AGENTS = "too_many_agents"


@dataclass(slots=True)
class _Usual:
    """The least (receiver's clock - sender's clock) seen of late.

    Neither clock's origin matters. What a heartbeat exceeds the least by is time it spent
    waiting, in a socket or behind a stalled loop: without this a backlog read at once after a
    stall would be dated as fresh.
    """

    since_s: float = -inf
    least_s: float = inf
    before_s: float = inf
    sent_s: float = -inf

    def delay_s(self, sent_s: float, now: float) -> float:
        offset_s = now - sent_s
        if sent_s < self.sent_s:  # a clock that is not monotonic after all: nothing is known
            self.since_s, self.least_s, self.before_s = now, inf, inf
        self.sent_s = sent_s
        if now - self.since_s >= USUAL_DELAY_WINDOW_S:
            self.before_s = self.least_s
            self.since_s, self.least_s = now, inf
        self.least_s = min(self.least_s, offset_s)
        return offset_s - min(self.least_s, self.before_s)


@dataclass(slots=True)
class _Peer:
    """One agent's connection or run. A higher `order` is a later one."""

    order: int
    heard_s: float
    run: str | None = None
    seq: int = -1
    usual: _Usual = field(default_factory=_Usual)
    speaks: bool = False


@dataclass(frozen=True, slots=True)
class _Claim:
    peer: str
    order: int
    at_s: float


class Intake:
    """Turns heartbeats into reports of source kind `source`.

    Only `endpoints` are spoken for. One agent speaks for an endpoint: the latest to come, unless
    it has been silent for `CLAIM_S`. Devices are believed of agents that speak for an endpoint.
    At most `max_peers` agents are known.
    """

    def __init__(self, source: str, endpoints: frozenset[str], max_peers: int) -> None:
        self._source = source
        self._endpoints = endpoints
        self._max_peers = max_peers
        self._peers: dict[str, _Peer] = {}
        self._claims: dict[str, _Claim] = {}
        self._met = 0

    @property
    def peers(self) -> int:
        """Agents known."""
        return len(self._peers)

    def meet(self, peer: str, now: float) -> None:
        """`peer` is here, later than all before it. Raises TelemetryError if there are too
        many."""
        if peer in self._peers:
            return
        if len(self._peers) >= self._max_peers:
            raise TelemetryError(f"more than {self._max_peers} agents")
        self._met += 1
        self._peers[peer] = _Peer(self._met, now)

    def forget(self, peer: str) -> None:
        """`peer` is gone, and speaks for nothing any more."""
        self._peers.pop(peer, None)
        for endpoint in [e for e, claim in self._claims.items() if claim.peer == peer]:
            del self._claims[endpoint]

    def forget_silent(self, now: float) -> None:
        """Forget all that said nothing for `FORGET_S`."""
        for peer in [p for p, known in self._peers.items() if now - known.heard_s > FORGET_S]:
            self.forget(peer)

    def accept(
        self, peer: str, heartbeat: Heartbeat, now: float, waited_s: float | None = None
    ) -> Report:
        """What of `heartbeat`, which came from `peer` at `now` (monotonic seconds), is believed.

        `waited_s`: how long it is known to have been kept on its way; None: nothing is known, and
        its delay is found by comparing it with the least one of late. Raises TelemetryError if
        there are too many agents.
        """
        self.meet(peer, now)
        known, header = self._peers[peer], heartbeat.header
        known.heard_s = now
        if header.run != known.run:
            known.run, known.seq, known.usual = header.run, -1, _Usual()
        if header.seq <= known.seq:
            return refusal(Refusal.OUT_OF_ORDER)
        known.seq = header.seq
        if waited_s is None:
            waited_s = 0.0
            if header.sent_ms is not None:
                waited_s = known.usual.delay_s(header.sent_ms / 1000, now)
        sent_s = now - max(0.0, waited_s)
        report = heartbeat.dated(sent_s, self._source)
        dropped = Counter(report.dropped)
        claim = _Claim(peer, known.order, sent_s)
        spoken = tuple(e for e in report.endpoints if self._may_speak(claim, e, now, dropped))
        known.speaks = known.speaks or bool(spoken)
        devices = report.devices
        if devices and not known.speaks:
            dropped[Refusal.NO_ENDPOINT] += len(devices)
            devices = ()
        return replace(
            report, endpoints=spoken, devices=devices, dropped=MappingProxyType(dict(dropped))
        )

    def _may_speak(
        self, mine: _Claim, sample: EndpointSample, now: float, dropped: Counter[str]
    ) -> bool:
        if sample.endpoint not in self._endpoints:
            dropped[Refusal.UNKNOWN_ENDPOINT] += 1
            return False
        claim = self._claims.get(sample.endpoint)
        if claim is not None and claim.order > mine.order and now - claim.at_s <= CLAIM_S:
            dropped[Refusal.SUPERSEDED] += 1
            return False
        self._claims[sample.endpoint] = mine
        return True


def refusal(reason: Refusal, count: int = 1) -> Report:
    """A report that says only that something was not used."""
    return Report(dropped=MappingProxyType({str(reason): count}))
