"""A bounded number of things that wait, a fair sample of them when they are too many.

PURE.
"""

from __future__ import annotations

from collections.abc import Hashable
from random import Random
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Waiting(Generic[_Item]):
    """Keeps at most `capacity` items. Of more, each that came since it was last less than full is
    equally likely to be among those kept (Vitter's algorithm R); `skipped` counts the others."""

    def __init__(self, capacity: int, rng: Random) -> None:
        self.skipped = 0
        self._capacity = capacity
        self._rng = rng
        self._items: list[_Item] = []
        self._offered = 0

    def __len__(self) -> int:
        return len(self._items)

    def offer(self, item: _Item) -> _Item | None:
        """Keep `item` if there is room, or in the place of another one by chance. What is not
        kept, `item` or the other one; None if all are."""
        if len(self._items) < self._capacity:
            self._items.append(item)
            self._offered = len(self._items)
            return None
        self._offered += 1
        self.skipped += 1
        place = int(self._rng.random() * self._offered)
        if place < self._capacity:
            item, self._items[place] = self._items[place], item
        return item

    def take(self, most: int) -> list[_Item]:
        """Up to `most` items, which wait no longer; oldest first unless some were skipped."""
        taken = self._items[:most]
        del self._items[:most]
        return taken


class Turns(Generic[_Item]):
    """A `Waiting` of `capacity` for each kind of item, taken from in turn: of a kind that comes
    seldom as many are taken as of one that comes all the time. There must be few kinds."""

    def __init__(self, capacity: int, rng: Random) -> None:
        self._capacity = capacity
        self._rng = rng
        self._kinds: dict[Hashable, Waiting[_Item]] = {}
        self._skipped = 0

    @property
    def skipped(self) -> int:
        """Items that were offered and not kept."""
        return self._skipped + sum(waiting.skipped for waiting in self._kinds.values())

    def __len__(self) -> int:
        return sum(map(len, self._kinds.values()))

    def offer(self, kind: Hashable, item: _Item) -> _Item | None:
        """As `Waiting.offer`, among those of `kind`."""
        waiting = self._kinds.get(kind)
        if waiting is None:
            waiting = self._kinds[kind] = Waiting(self._capacity, self._rng)
        return waiting.offer(item)

    def take(self, most: int) -> list[_Item]:
        """Up to `most` items, which wait no longer: one of each kind in turn."""
        taken: list[_Item] = []
        while self._kinds and len(taken) < most:
            kind = next(iter(self._kinds))
            waiting = self._kinds.pop(kind)
            taken += waiting.take(1)
            if waiting:
                # Behind all others.
                self._kinds[kind] = waiting
            else:
                self._skipped += waiting.skipped
        return taken
