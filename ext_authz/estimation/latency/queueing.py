"""How long a request waits and runs, before anything finer is learned.

PURE. Continuous batching runs up to `slots` requests at once and queues the rest first come
first served, so with n in flight the next one waits for n - slots + 1 completions, which come
at slots per mean execution time. A fixed-shape model runs one batch at a time on each instance,
so what is before a request is worked off at instances x mean batch per batch time.
"""

from __future__ import annotations

from math import exp, inf

# Engines that run models of fixed shape, one batch an instance.
FIXED_SHAPE = frozenset({"triton"})
# A mean over the last seconds: long against one request, short against a thermal step.
MEMORY_S = 5.0
LEAST_STEP = 0.02
# Outcomes stand in only while the engine itself reports nothing.
ENGINE_WORD_S = 30.0


def wait_s(in_flight: float, slots: int, execution_s: float) -> float:
    """Expected wait of one more request in an engine that holds `in_flight` already."""
    return max(0.0, in_flight - slots + 1.0) * execution_s / slots


def fixed_wait_s(
    in_flight: float, instances: int, mean_batch: float | None, batch_s: float
) -> float:
    """Expected wait of one more request at a fixed-shape model with dynamic batching.

    What does not run is the queue; it is worked off in batches. `batch_s` is the time of one,
    which every request in it is charged; an unknown mean batch counts as one request.
    """
    at_once = instances * max(1.0, mean_batch or 1.0)
    return max(0.0, in_flight - at_once) * batch_s / at_once


class ExecutionMean:
    """Exponentially forgetting mean of execution seconds of one endpoint.

    The engine's own figure (time without its queue) is preferred; finished requests as the
    access log saw them (queue included) are used only where the engine gives none. What is not a
    finite time above 0 is ignored: an engine whose clock stands still says nothing. `value_s` is
    the mean, None while nothing has finished.
    """

    __slots__ = ("_engine_at_s", "_updated_s", "value_s")

    def __init__(self) -> None:
        self.value_s: float | None = None
        self._updated_s = 0.0
        self._engine_at_s: float | None = None

    def measured(self, seconds: float, at_s: float) -> None:
        """The engine's own mean over what finished since it last told."""
        if 0.0 < seconds < inf:
            self._engine_at_s = at_s
            self._blend(seconds, at_s)

    def finished(self, seconds: float, at_s: float) -> None:
        """One completed request, end to end."""
        if not 0.0 < seconds < inf:
            return
        if self._engine_at_s is None or at_s - self._engine_at_s > ENGINE_WORD_S:
            self._blend(seconds, at_s)

    def _blend(self, seconds: float, at_s: float) -> None:
        if self.value_s is None:
            self.value_s = seconds
        else:
            # At least a small step, so that many outcomes at one instant still count.
            since_s = at_s - self._updated_s
            step = 1.0 - exp(-since_s / MEMORY_S) if since_s > 0.0 else 0.0
            self.value_s += (step if step > LEAST_STEP else LEAST_STEP) * (seconds - self.value_s)
        before_s = self._updated_s
        self._updated_s = at_s if at_s > before_s else before_s
