"""The endpoints of one pool in order of how pressed they are, and what they carry together.

PURE. A decision must not cost more because a pool has a thousand endpoints. So nothing is walked
for it: what has changed since the last decision is brought up to date, and the least pressed is on
top of a heap. That is exact while samples are fresh or held. While a load fades with its age it
changes by itself: small pools are walked then, for large ones it is brought up to date every
`REFRESH_S`.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.fullness import counted
from ext_authz.admission.memory import cache_tokens, is_card_full, room_tokens
from ext_authz.settings import Pool
from ext_authz.snapshot import EndpointSample

# More are not looked at for one decision as long as there is one that can take it.
FEW = 8
# Pools of up to so many endpoints are walked whenever a load fades, or another one is looked for.
SMALL = 16
REFRESH_S = 0.05
# Differences of times are rounded otherwise than their sums; what is this near is looked at.
ROUNDING_S = 1e-6
# Endpoints whose memory is full come after those that are merely busy, and those without
# telemetry after all others.
NO_MEMORY, NO_TELEMETRY = 1e3, 1e6
# One that has just refused a request comes after those that have not.
PUT_OFF = 1e2
# In place of the sample that was looked at last.
_UNSEEN = "none yet"


class _Entry:
    """What an endpoint counted for when it was last looked at. `load` None: not believed;
    `is_told`: its telemetry is. `counted` is what it adds to the load of the pool. `occupied` are
    the requests on its device, `room` is the largest request it has memory for, in tokens;
    `guarded` and `shown` are its `cache_tokens`. `key` orders it."""

    __slots__ = (
        "counted",
        "guarded",
        "is_put_off",
        "is_told",
        "key",
        "load",
        "occupied",
        "own",
        "room",
        "sample",
        "shown",
        "slots",
        "untold",
    )

    def __init__(self) -> None:
        self.load: float | None = None
        self.counted = 0.0
        self.sample: EndpointSample | str | None = _UNSEEN
        self.own = 0
        self.slots = 0
        self.untold = 0.0
        self.occupied = 0.0
        self.room = self.guarded = inf
        self.shown = 0.0
        self.key = 0.0
        self.is_put_off = self.is_told = False


class Roster:
    """`believed` endpoints, with `slots`, `load` and `untold` in all: those that are `told` of, and
    those whose telemetry is too old but that serve; `own` and `most` are the
    requests and the slots of all endpoints, believed or not. `largest` is the request that the
    largest of the believed ones can hold, in tokens, infinite while one of them does not tell;
    `largest_away` that of all. Both may be too large for a while after an endpoint has shrunk."""

    __slots__ = (
        "_entries",
        "_guards_card",
        "_heap",
        "_refreshed_s",
        "_spec",
        "_steady_until_s",
        "_touched",
        "believed",
        "endpoints",
        "largest",
        "largest_away",
        "load",
        "most",
        "own",
        "slots",
        "told",
        "untold",
    )

    def __init__(self, spec: Pool, endpoints: tuple[EndpointState, ...]) -> None:
        self.endpoints = endpoints
        self._spec = spec
        self._guards_card = spec.device_guard_ratio < 1.0
        self._entries = [_Entry() for _ in endpoints]
        # What is not the key of its entry any more is out of date.
        self._heap: list[tuple[float, int]] = []
        self._touched: dict[EndpointState, bool] = {}
        self._refreshed_s = -inf
        # Until then nothing changes by itself.
        self._steady_until_s = -inf
        self._reset()
        for index, endpoint in enumerate(endpoints):
            endpoint.place, endpoint.touched = index, self._touched

    def _reset(self) -> None:
        self.believed = self.told = self.slots = self.own = self.most = 0
        self.load = self.untold = self.largest = self.largest_away = 0.0

    def top(self) -> EndpointState | None:
        """The least pressed; of equals, the first in the file. `catch_up` comes first."""
        heap, entries = self._heap, self._entries
        while heap:
            key, place = heap[0]
            if entries[place].key == key:
                return self.endpoints[place]
            heappop(heap)
        return None

    def least(self, many: int, below: float = inf) -> list[EndpointState]:
        """Up to `many` endpoints with a pressure `below` that, in the order of `top`."""
        if len(self.endpoints) <= SMALL:
            order = sorted([(entry.key, place) for place, entry in enumerate(self._entries)])
            return [self.endpoints[place] for key, place in order[:many] if key < below]
        heap = self._heap
        found: list[EndpointState] = []
        taken: list[tuple[float, int]] = []
        while len(found) < many and (endpoint := self.top()) is not None and heap[0][0] < below:
            item = heappop(heap)
            # One that is again what it was has been put there twice.
            if not taken or item != taken[-1]:
                found.append(endpoint)
                taken.append(item)
        for item in taken:
            heappush(heap, item)
        return found

    def occupying(self, endpoint: EndpointState, tokens: int, now: float) -> float | None:
        """The requests on the device of `endpoint`; None if it has no telemetry that is believed,
        or no memory for so many tokens. `catch_up` comes first."""
        entry = self._entries[endpoint.place]
        if entry.load is None or tokens > entry.room:
            return None
        # What is believed of a card grows with its age.
        if self._guards_card and endpoint.load >= 0.5 and is_card_full(endpoint, self._spec, now):
            return None
        return entry.occupied

    def is_believed(self, endpoint: EndpointState) -> bool:
        """Whether it is among those that count. `catch_up` comes first."""
        return self._entries[endpoint.place].load is not None

    def put_off(self, endpoint: EndpointState) -> None:
        """It has refused a request: others come first until something of it changes. So an
        endpoint that is too slow for what is promised here is not asked in vain each time, though
        it carries the least."""
        entry = self._entries[endpoint.place]
        if not entry.is_put_off:
            entry.is_put_off = True
            entry.key += PUT_OFF
            heappush(self._heap, (entry.key, endpoint.place))

    def is_put_off(self, endpoint: EndpointState) -> bool:
        """Whether it has refused, and nothing has changed since."""
        return self._entries[endpoint.place].is_put_off

    def catch_up(self, now: float) -> None:
        """Bring all numbers up to `now`."""
        if now > self._steady_until_s and (
            len(self.endpoints) <= SMALL or not 0.0 <= now - self._refreshed_s < REFRESH_S
        ):
            self._refresh(now)
        elif self._touched:
            touched = self._touched
            is_steady = now <= self._steady_until_s
            for endpoint, is_news in touched.items():
                entry = self._entries[endpoint.place]
                if is_news or not is_steady or entry.load is None:
                    self._update(entry, endpoint, now)
                    continue
                # What most often happens: only requests have come and gone.
                load, own = endpoint.load, endpoint.own
                self.load -= entry.counted
                entry.counted = counted(load, endpoint)
                self.load += entry.counted
                self.own += own - entry.own
                entry.load = entry.occupied = load
                entry.own = own
                self._place(entry, endpoint, now)
            touched.clear()
            if not self.believed:
                self.load = self.untold = 0.0
            if len(self._heap) > 4 * len(self.endpoints) + 64:
                self._tidy()

    def _refresh(self, now: float) -> None:
        """Look at all of them. Sums are made anew, so that rounding errors do not add up."""
        self._refreshed_s = now
        self._steady_until_s = inf
        self._touched.clear()
        self._reset()
        for entry in self._entries:
            entry.load, entry.sample = None, _UNSEEN
            entry.own, entry.slots, entry.untold = 0, 0, 0.0
        for entry, endpoint in zip(self._entries, self.endpoints, strict=True):
            self._update(entry, endpoint, now)
        self._tidy()

    def _tidy(self) -> None:
        self._heap = [(entry.key, place) for place, entry in enumerate(self._entries)]
        heapify(self._heap)

    def _update(self, entry: _Entry, endpoint: EndpointState, now: float) -> None:
        """Look at all of an endpoint."""
        spec = self._spec
        load, was_believed = endpoint.believed(spec.staleness, now), entry.load is not None
        self._believe(entry, -1)
        entry.is_told = load is not None
        if load is None and endpoint.serves(spec.staleness, now):
            load = endpoint.load
            until_s = endpoint.served_s + spec.staleness.lifetime_s - ROUNDING_S
            self._steady_until_s = min(self._steady_until_s, until_s)
        self.own += endpoint.own - entry.own
        self.most += endpoint.slots - entry.slots
        entry.load, entry.own = load, endpoint.own
        entry.counted = 0.0 if load is None else counted(load, endpoint)
        entry.slots, entry.untold = endpoint.slots, endpoint.untold
        self._believe(entry, 1)
        entry.guarded, entry.shown = cache_tokens(endpoint, spec, now)
        if load is None:
            entry.key, entry.is_put_off = NO_TELEMETRY + endpoint.own / endpoint.limit, False
            heappush(self._heap, (entry.key, endpoint.place))
        else:
            if endpoint.peers:
                load += endpoint.peers_load(spec.staleness, now)
            entry.occupied = load
            self._place(entry, endpoint, now)
        is_news = endpoint.sample is not entry.sample or was_believed != (load is not None)
        if is_news or endpoint.peers:
            entry.sample = endpoint.sample
            self._told(endpoint, load is not None, now)

    def _place(self, entry: _Entry, endpoint: EndpointState, now: float) -> None:
        """Find what one that is believed can take, and its place in the order: by the requests on
        its device for each slot."""
        key = entry.occupied / endpoint.limit
        if endpoint.load < 0.5:
            # Alone on the endpoint, a request that fits is served however large.
            entry.room = endpoint.holds_tokens
        else:
            # Written out for what most often is so: nothing of ours is over untold.
            own_tokens, shown = endpoint.own_tokens, entry.shown
            room = entry.guarded - (own_tokens if own_tokens > shown else shown)
            if endpoint.untold:
                room = room_tokens(endpoint, entry.guarded, shown)
            entry.room = room
            if room < 0.0 or (self._guards_card and is_card_full(endpoint, self._spec, now)):
                key += NO_MEMORY
        entry.key = key
        entry.is_put_off = False
        heappush(self._heap, (key, endpoint.place))

    def _believe(self, entry: _Entry, sign: int) -> None:
        """Count an endpoint among those that are believed, if it is (1), or no more (-1)."""
        if entry.load is not None:
            self.load += sign * entry.counted
            self.slots += sign * entry.slots
            self.untold += sign * entry.untold
            self.believed += sign
            self.told += sign * entry.is_told

    def _told(self, endpoint: EndpointState, is_believed: bool, now: float) -> None:
        """It, or one on its device, may have told something new."""
        largest, staleness = endpoint.holds_tokens, self._spec.staleness
        self.largest_away = max(self.largest_away, largest)
        if not is_believed:
            return
        self.largest = max(self.largest, largest)
        # Until when nothing of it changes unless it is told.
        steady_s = staleness.fresh_s + staleness.hold_s - ROUNDING_S
        until_s = self._steady_until_s
        for each in (endpoint, *endpoint.peers):
            if each.sample is not None and now <= each.sample.at_s + staleness.lifetime_s:
                until_s = min(until_s, each.sample.at_s + steady_s)
        gauge_s = endpoint.kv_at_s + staleness.lifetime_s
        if now <= gauge_s:
            until_s = min(until_s, gauge_s - ROUNDING_S)
        self._steady_until_s = until_s
