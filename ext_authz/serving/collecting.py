"""When the collector of cycles runs while a host serves."""

from __future__ import annotations

import gc

# A host leaves a cycle behind at every call, so that the collector has to run. Its usual 700
# objects are about what the calls of a busy moment hold: it would walk through live ones mostly,
# and give them a longer life than theirs. Some thousands are walked through in a millisecond.
COLLECT_AFTER = 3000
# After so many of these walks it goes through all that outlived one of them: ten milliseconds where
# it is 30,000 objects, which by default came after every ten. The cycle at a call of grpc.aio is
# complete as soon as the call has begun, so that the next walk finds it, however long the call
# takes; what lives longer is mostly bookings, which need no collector.
OLDER_AFTER = 200


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
