"""Which booking a request id stands for, so that what Envoy gave up on can be taken back.

When a Check is answered too late, or its client leaves meanwhile, the access log knows nothing of
our decision: only Envoy's own request id joins the two. It may come before we even decide.
"""

from __future__ import annotations

from collections import OrderedDict

# Enough for the Checks of some seconds; what falls out is ended by its lease.
CAPACITY = 8192
LONGEST = 64


_Ids = OrderedDict[str, str | None]


class RequestIds:
    """Bookings and given-up requests by request id, the oldest forgotten first.

    An id that was booked twice stands for neither: a client that may choose ids could end
    bookings of requests that still run.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        # Ordered ones: a plain dict walks over all it has lost to find its oldest.
        self._booked: _Ids = OrderedDict()
        self._given_up: _Ids = OrderedDict()

    def is_given_up(self, request_id: str) -> bool:
        """Whether nobody waits for the answer to this request any more."""
        return request_id in self._given_up

    def book(self, request_id: str, reservation_id: str) -> None:
        """Remember what was booked for a request; without a usable id there is nothing to join."""
        if 0 < len(request_id) <= LONGEST:
            repeated = request_id in self._booked
            self._remember(self._booked, request_id, None if repeated else reservation_id)

    def give_up(self, request_id: str) -> str | None:
        """The booking that has nobody behind it; None if there is none yet, or none for sure."""
        if not 0 < len(request_id) <= LONGEST:
            return None
        if request_id in self._booked:
            return self._booked[request_id]
        self._remember(self._given_up, request_id, None)
        return None

    def _remember(self, ids: _Ids, request_id: str, value: str | None) -> None:
        if len(ids) >= self._capacity and request_id not in ids:
            ids.popitem(last=False)
        ids[request_id] = value
