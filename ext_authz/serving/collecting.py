"""When the collector of cycles runs while a host serves."""

from __future__ import annotations

import gc

# A host leaves a cycle behind at every call (that of grpc.aio is complete as soon as the call has
# begun), so that the collector has to run: after so many objects more than were put away. Each time
# it walks through all that was made since and lives, ten times as many where the journal forgets
# as much as it keeps. Measured: half a millisecond at 500, five at 3,000, and as much in all.
COLLECT_AFTER = 500
# What outlives that is bookings and records, which need no collector. It walks through them after
# so many times only; by default after ten, of which each took another five milliseconds.
OLDER_AFTER = 1000


class Collecting:
    """Has the collector run as suits a host, until told to leave it as it was."""

    def __init__(self) -> None:
        self._before = gc.get_threshold()

    def start(self) -> None:
        """A host begins to serve."""
        self._before = gc.get_threshold()
        gc.set_threshold(COLLECT_AFTER, OLDER_AFTER, self._before[2])

    def stop(self) -> None:
        """It has ended."""
        gc.set_threshold(*self._before)
