"""A bounded number of things that wait, a fair sample of them when they are too many.

PURE.
"""

from __future__ import annotations

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

    def offer(self, item: _Item) -> None:
        """Keep `item` if there is room, or in the place of another one by chance."""
        if len(self._items) < self._capacity:
            self._items.append(item)
            self._offered = len(self._items)
            return
        self._offered += 1
        self.skipped += 1
        place = int(self._rng.random() * self._offered)
        if place < self._capacity:
            self._items[place] = item

    def take(self, most: int) -> list[_Item]:
        """Up to `most` items, which wait no longer; oldest first unless some were skipped."""
        taken = self._items[:most]
        del self._items[:most]
        return taken
