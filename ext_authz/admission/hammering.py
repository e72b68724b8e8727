"""Keys that come back too early too often, and what of theirs is refused unread.

PURE. It is an offence of a key to be refused before the time at which it was last told to come
back, more often than its tenant's share is served: so many come back too early, or besides. A burst
is none, because nobody can have come back yet. A key with a hundred offences within ten seconds
hammers, and what it sends beyond its tenant's share
is refused before its body is read, so that a refusal costs next to nothing.

The share itself is always served. What a body would say is guessed from the last of the key's
requests that was read and refused: another such is in excess while its flow holds its share, or as
long as nothing has come free in the pool. Where it may be demoted, nothing must have come free in
the pools further down either. One in `READ_EVERY` is read all the same, and may find what others
leave. When it is let in elsewhere, the guess was wrong (the key asks for another model too) and for
a second all are read, and sixteen times as long after each further wrong guess, up to ten minutes:
what such a key asks for cannot be guessed, and a model that has room would be refused for one that
has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from cachetools import LRUCache

from ext_authz.admission.endpoints import EndpointState
from ext_authz.admission.flows import Flow
from ext_authz.admission.shares import Shares
from ext_authz.admission.view import Caller, PoolState, View
from ext_authz.model import Reason, RetryHint

# So many early ones within so long.
HAMMERING, WITHIN_S = 100, 10.0
# A key that has been refused for no longer than this is in a burst.
BURST_S = 1.0
READ_EVERY = 16
# How long all are read after the first wrong guess, how many times as long after each further one,
# and how long at most: a key that floods must not stay dear for good.
READ_ALL_S, READ_ALL_GROWS, MOST_READ_ALL_S = 1.0, 16.0, 600.0
# How long a pool that has freed nothing counts as full: foreign load and predictions change without
# a word. It counts so for less long where a smaller request might have been let in.
FULL_S, FULL_FOR_ITS_SIZE_S = 0.1, 0.02
BY_SIZE = frozenset({Reason.SLO_UNREACHABLE, Reason.KV_MEMORY})
# Keys that are remembered: the least recently refused goes first.
MOST_KEYS = 8192

_Name = tuple[str, bytes]


class Record:
    """What is remembered of a key that was refused.

    `flow` of `pool` is what its last request that was read belonged to: it was refused at
    `endpoint` with `used` slots of the pool held (`pool_load` in all), `wait_s` ahead of it and
    `execution_s` to run, and by the pools `further` down its chain with so many held there. If none
    of them comes free, another such is refused until `full_until_s`. It could not wait at the gate
    either, where `waiting` of its flow did.
    """

    __slots__ = (
        "_before",
        "_began_s",
        "_count",
        "_free",
        "_refused_s",
        "_since_s",
        "endpoint",
        "execution_s",
        "flow",
        "full_until_s",
        "further",
        "pool",
        "pool_load",
        "read_all_s",
        "read_all_until_s",
        "told_s",
        "used",
        "wait_s",
        "waiting",
    )

    def __init__(self) -> None:
        self.told_s = 0.0
        self.flow: Flow | None = None
        self.endpoint: EndpointState | None = None
        self.pool = ""
        self.pool_load = 0.0
        self.used = 0
        self.further: tuple[tuple[Shares, int], ...] = ()
        self.full_until_s = 0.0
        self.wait_s = 0.0
        self.waiting = 0
        self.execution_s: float | None = None
        self.read_all_s = READ_ALL_S
        self.read_all_until_s = 0.0
        # Since when it has been refused without a pause in which all would have been told to come.
        self._began_s = 0.0
        # Early refusals that are no offence yet, and when they were last counted.
        self._free = 0.0
        self._refused_s = 0.0
        self._since_s = 0.0
        self._count = 0
        self._before = 0

    def refused(self, retry: RetryHint, pace_per_s: float, now: float) -> None:
        """One more was refused, and told when to come back; its tenant is served `pace_per_s`."""
        seconds = max(0.0, now - self._refused_s)
        self._refused_s = now
        self._free = min(self._free + seconds * pace_per_s, max(1.0, pace_per_s))
        if now >= self.told_s:
            self._began_s = now
        elif self._free >= 1.0:
            self._free -= 1.0
        elif now - self._began_s >= BURST_S:
            self._turn(now)
            self._count += 1
        self.told_s = max(self.told_s, now + retry.after_s)

    def hammers(self, now: float) -> bool:
        """Whether it had too many offences lately.

        Counted in windows, of which the last one weighs as much of it as is not over: exact for
        arrivals at a steady pace.
        """
        self._turn(now)
        part_left = 1.0 - (now - self._since_s) / WITHIN_S
        return self._count + self._before * part_left >= HAMMERING

    def _turn(self, now: float) -> None:
        windows = int((now - self._since_s) / WITHIN_S)
        if windows > 0:
            self._before = self._count if windows == 1 else 0
            self._count = 0
            self._since_s += windows * WITHIN_S


class Hammering:
    """All keys that were refused lately, and those among them that hammer.

    `sampled` is a key of which one request is being read though it looked like excess, and whose.
    """

    def __init__(self, rng: Random) -> None:
        self.sampled: tuple[_Name, Record] | None = None
        self._rng = rng
        self._known: LRUCache[_Name, Record] = LRUCache(MOST_KEYS)
        # Nearly always empty, which is all that most requests find out.
        self._loud: dict[_Name, Record] = {}
        self._looked_s = 0.0

    def refused(
        self, tenant: str, caller: Caller, retry: RetryHint, pace_per_s: float, now: float
    ) -> Record:
        """A request was refused: what is remembered of its key."""
        name = (tenant, caller.key)
        record = self._known.get(name)
        if record is None:
            record = self._known[name] = Record()
        record.refused(retry, pace_per_s, now)
        if record.hammers(now) and len(self._loud) < MOST_KEYS:
            self._loud[name] = record
        if self._loud and now - self._looked_s >= WITHIN_S:
            self._looked_s = now
            self._loud = {name: one for name, one in self._loud.items() if one.hammers(now)}
        return record

    def excess(self, tenant: str, caller: Caller, now: float) -> Record | None:
        """What is remembered of a key that hammers, if its requests may be refused unread."""
        self.sampled = None
        if not self._loud:
            return None
        name = (tenant, caller.key)
        record = self._loud.get(name)
        if record is None or record.flow is None or now < record.read_all_until_s:
            return None
        if not record.hammers(now):
            del self._loud[name]
            return None
        return record

    def is_read(self, tenant: str, caller: Caller, record: Record) -> bool:
        """Whether a request that looks like excess is read all the same."""
        if self._rng.random() * READ_EVERY >= 1.0:
            return False
        self.sampled = (tenant, caller.key), record
        return True

    def let_in(self, tenant: str, caller: Caller, flow: Flow, now: float) -> None:
        """One of `flow` was let in. If it is the one that looked like excess, the guess may have
        been wrong; what waited at the gate may come between."""
        if self.sampled is None or self.sampled[0] != (tenant, caller.key):
            return
        record, self.sampled = self.sampled[1], None
        if record.flow is not flow:
            record.read_all_until_s = now + record.read_all_s
            record.read_all_s = min(READ_ALL_GROWS * record.read_all_s, MOST_READ_ALL_S)


def is_excess(record: Record, flow: Flow, pool: PoolState, waiting: int, now: float) -> bool:
    """Whether another request like the last would be refused as well, with so many of its flow
    `waiting` at the gate."""
    shares = pool.shares
    if waiting < record.waiting:
        return False
    if flow.used + 0.5 > shares.allowance(flow, float(shares.used)):
        if not record.further:
            return True
    elif shares.used < record.used:
        return False
    full = all(other.used >= used for other, used in record.further)
    return full and now <= record.full_until_s


def note(
    record: Record, view: View, further: Iterable[PoolState], reason: Reason, now: float
) -> None:
    """A request of the key was read, and refused for `reason`, by what `view` shows, and by the
    pools `further` down its chain."""
    record.further = tuple((pool.shares, pool.shares.used) for pool in further)
    record.flow, record.endpoint = view.flow, view.endpoint
    record.pool = view.pool.spec.name
    record.used, record.pool_load = view.pool.shares.used, view.pool_load
    record.full_until_s = now + (FULL_FOR_ITS_SIZE_S if reason in BY_SIZE else FULL_S)
    record.wait_s = view.wait_s
    record.execution_s = view.execution_s
