"""What each flow of a pool is owed: the slot-seconds by which it got less than its share.

PURE. What a flow is owed, either way, is made good over the time that a request holds a slot, and
over no less than `LEAST_HORIZON_S`. It moves a share by one slot, or by `OWED_RATIO` of it if that
is more.
"""

from __future__ import annotations

from math import exp

from ext_authz.admission.flows import PRESSURE_S, Flow

LEAST_HORIZON_S = 1.0
OWED_RATIO = 0.25
# A slot is kept for who is refused so many times in the time that a request holds one: it is idle
# for an eighth of that at the most.
SOON = 8.0


class Debts:
    """Of one pool. Requests hold a slot for `held_s`, debts are made good over `horizon_s`;
    `busy_s` is the integral of the part of the pool that was in use, `kept` the slots that are
    kept for all flows together."""

    __slots__ = ("_at_s", "busy_s", "held_s", "horizon_s", "kept")

    def __init__(self) -> None:
        self.held_s = 0.0
        self.horizon_s = LEAST_HORIZON_S
        # Not the part at the moment: requests are let in when one has just ended, so that it is low
        # whenever a flow changes.
        self.busy_s = 0.0
        self._at_s = 0.0
        self.kept = 0.0

    def hold(self, held_s: float) -> None:
        """Requests hold their slots for so long."""
        self.held_s = held_s
        self.horizon_s = held_s if held_s > LEAST_HORIZON_S else LEAST_HORIZON_S

    def keep(self, flow: Flow, most: float, room: float) -> None:
        """Keep slots for what the flow is owed: or requests of others that wait at the gate would
        take each one that comes free before its next one is there. It may begin `most` more, and
        `room` is kept for them anyhow; of less than a half nobody has any use. Not for who comes so
        seldom that the slot would be idle for long."""
        if most >= 0.5 and flow.missed * self.held_s >= SOON * PRESSURE_S:
            flow.due = max(0.0, min(flow.owed_s / self.horizon_s, most - room))
            self.kept += flow.due

    def let_go(self, flow: Flow) -> None:
        """Keep nothing for it any more."""
        self.kept -= flow.due
        flow.due = 0.0

    def go_on(self, used: int, usable: float, now: float) -> None:
        """So many of the slots that can be used were held since the last time."""
        seconds = now - self._at_s
        if seconds > 0.0:
            self._at_s = now
            self.busy_s += seconds if used >= usable else seconds * used / usable

    def fade(self, flow: Flow, seconds: float) -> None:
        """For so many seconds it had all it wanted, or what it did not have was in nobody else's
        hands: nobody saves up what others did not keep from it."""
        flow.busy_s = self.busy_s
        if flow.owed_s:
            flow.owed_s *= exp(-seconds / self.horizon_s)

    def owe(self, flow: Flow, seconds: float, share: float) -> None:
        """What the flow is owed for the last so many seconds, in which its share was so large."""
        busy_s = self.busy_s - flow.busy_s
        flow.busy_s = self.busy_s
        # Of what is really in use: slots that nobody gets are owed to nobody.
        part = 1.0 if seconds < PRESSURE_S else PRESSURE_S / seconds
        own_s = min(flow.wanted * seconds, share * busy_s)
        most_s = self.horizon_s * max(1.0, OWED_RATIO * own_s / seconds)
        owed_s = flow.owed_s + part * (own_s - flow.used * seconds)
        flow.owed_s = min(max(owed_s, -most_s), most_s)
