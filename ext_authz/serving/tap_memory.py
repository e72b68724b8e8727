"""What taps read of answers, joined with how their requests ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

from ext_authz.admission.ledger import Reservation
from ext_authz.model import Outcome, Usage
from ext_authz.serving.tap_read import Reading

# Answers that are read at once: every chunk of each costs this process some tens of microseconds.
# What is beyond passes unseen. Figures in docs/tap.md.
MOST_OPEN = 64
# Words whose outcome is to come: the access log is seldom a second behind.
MOST_TOLD = 1024


class TapMemory:
    """Joins the two, whichever comes first. `on_joined` gets each outcome once, with what was read
    if it was, and the time (monotonic seconds).

    Outcomes come here to be learned from; they were settled before. One waits only while its
    answer is still being read. What is held is bounded by what is read at once, and by
    `most_told`.
    """

    def __init__(
        self,
        on_joined: Callable[[Reservation, Outcome, float], None],
        most_told: int = MOST_TOLD,
    ) -> None:
        self._on_joined = on_joined
        self._most_told = most_told
        # By id; with what waits for the end of the reading.
        self._open: dict[str, tuple[Reservation, Outcome] | None] = {}
        # Ordered: a plain dict walks over all it has lost to find its oldest.
        self._told: OrderedDict[str, Reading] = OrderedDict()

    @property
    def full(self) -> bool:
        """Whether as many answers are being read as may be."""
        return len(self._open) >= MOST_OPEN

    def knows(self, decision_id: str) -> bool:
        """Whether an answer is being read, or was and its outcome is to come."""
        return decision_id in self._open or decision_id in self._told

    def begin(self, decision_id: str) -> bool:
        """An answer is going to be read, and `tell` will follow; False if it is read already."""
        if decision_id in self._open:
            return False
        self._open[decision_id] = None
        return True

    def tell(self, decision_id: str, reading: Reading | None, now: float) -> None:
        """The reading is over; `reading` is None if nothing was learned."""
        waiting = self._open.pop(decision_id, None)
        if reading is not None:
            if len(self._told) >= self._most_told:
                self._told.popitem(last=False)
            self._told[decision_id] = reading
        if waiting is not None:
            self.join(*waiting, now)

    def join(self, charged: Reservation, outcome: Outcome, now: float) -> None:
        """A request has ended."""
        if charged.id in self._open:
            self._open[charged.id] = (charged, outcome)
            return
        usage = self.take(charged.id, charged.opened_s)
        if usage is not None:
            outcome = replace(outcome, usage=usage)
        self._on_joined(charged, outcome, now)

    def take(self, decision_id: str, opened_s: float) -> Usage | None:
        """What was read, once, of the answer to a request that was booked at `opened_s`."""
        read = self._told.pop(decision_id, None)
        if read is None:
            return None
        ttft_s = None if read.first_s is None else max(0.0, read.first_s - opened_s)
        return Usage(read.prompt_tokens, read.output_tokens, ttft_s)
