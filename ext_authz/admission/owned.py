"""How many of our own requests an endpoint held at the time that a sample tells of.

PURE. A sample may be told seconds after it was taken: of its load, our own part is what was ours
then, or a fall of our own would look like work of others.
"""

from __future__ import annotations

from collections import deque

# So many intervals between samples are remembered.
MARKS = 128


class Owned:
    """The most there were in each interval between samples, as they came."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        # When each ended, and the most in it.
        self._marks: deque[tuple[float, int]] = deque(maxlen=MARKS)

    def mark(self, peak: int, at_s: float) -> None:
        """An interval ended at `at_s` (monotonic), in which there were up to `peak`."""
        self._marks.append((at_s, peak))

    def most(self, peak: int, from_s: float, to_s: float) -> int:
        """The most there were between two times; `peak` were in the interval that has not ended.
        The one that ended before is counted as well: work that was settled between the engine's
        bookkeeping and our sample must not look like others'."""
        marks = self._marks
        if not marks:
            return peak
        most = -1
        if to_s >= marks[-1][0]:
            most = max(peak, marks[-1][1])
        for place in range(len(marks) - 1, -1, -1):
            ended_s, held = marks[place]
            if ended_s < from_s:
                break
            began_s = marks[place - 1][0] if place else ended_s
            if began_s <= to_s:
                most = max(most, held)
        # Nothing so old is remembered.
        return marks[0][1] if most < 0 else most
