"""Bytes per token, learned from what engines count.

PURE. A gate sees bytes, an engine counts tokens. Where the count of one request is known (`usage`)
it teaches directly. Everywhere else there are the engine's counters: the tokens of all requests of
some seconds, to be explained by the bytes of all these requests, which may be of several kinds.
Each window corrects the kinds in proportion to what they contributed (Kaczmarz's projection, in
logarithms, so that no ratio gets negative), by a bounded step, so that no window is believed alone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from math import exp, isfinite, log

# By how much (natural logarithm) one window may move a ratio, and the part of its error that is
# believed; the same for the count of one request.
MOST_STEP, BELIEVED, BELIEVED_ONE = 0.2, 0.5, 0.05
MOST_KINDS = 512
# A window of a meter: long against a request, so that what straddles its ends matters little.
WINDOW_S = 5.0
WINDOW_TOKENS = 500.0
# After a gap this long a rate says nothing of the time between.
MOST_GAP_S = 30.0
# Corrections before a ratio is more than its prior.
ENOUGH = 3


class ByteRatios:
    """Bytes per token by kind of request, between `low` and `high`."""

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._high = high
        # The logarithm and how often it was corrected.
        self._logs: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()

    def ratio(self, kind: Hashable, prior: float) -> float:
        """Bytes per token of `kind`; `prior` while nothing was learned of it."""
        known = self._logs.get(kind)
        return prior if known is None else exp(known[0])

    def known(self, kind: Hashable) -> bool:
        """Whether the ratio of `kind` is more than its prior."""
        return self._logs.get(kind, (0.0, 0))[1] >= ENOUGH

    def saw(self, kind: Hashable, text_bytes: float, tokens: float, prior: float) -> None:
        """One request of `kind` was counted: `text_bytes` were `tokens`."""
        if text_bytes > 0.0 and tokens > 0.0:
            error = log(text_bytes / tokens) - log(self.ratio(kind, prior))
            self._move(kind, BELIEVED_ONE * error, prior)

    def counted(self, sent: Mapping[Hashable, tuple[float, float]], tokens: float) -> None:
        """The bytes `sent` by kind, each with the prior of its ratio, were `tokens` together."""
        shares = {
            kind: size / self.ratio(kind, prior) for kind, (size, prior) in sent.items() if size > 0
        }
        expected = sum(shares.values())
        if not (expected > 0.0 and tokens > 0.0):
            return
        # More tokens than expected: fewer bytes in each.
        error = log(expected / tokens)
        norm = sum(share * share for share in shares.values())
        for kind, share in shares.items():
            self._move(kind, BELIEVED * error * share * expected / norm, sent[kind][1])

    def export(self) -> list[object]:
        """What was learned, as plain values; kinds are tuples of plain values."""
        return [
            [list(kind) if isinstance(kind, tuple) else [kind], at, count]
            for kind, (at, count) in self._logs.items()
        ]

    def restore(self, saved: object) -> None:
        """Take up what `export` gave. Raises ValueError or TypeError for anything else, and
        leaves all as it was."""
        logs: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        for kind, at, count in list(saved)[:MOST_KINDS]:  # type: ignore[call-overload]  # raises
            number = float(at)
            if not isfinite(number):
                raise ValueError("not a ratio")
            logs[tuple(kind)] = (self._within(number), min(max(0, int(count)), ENOUGH))
        self._logs = logs

    def _move(self, kind: Hashable, step: float, prior: float) -> None:
        old, count = self._logs.get(kind, (log(prior), 0))
        if kind not in self._logs and len(self._logs) >= MOST_KINDS:
            self._logs.popitem(last=False)
        step = max(-MOST_STEP, min(MOST_STEP, step))
        self._logs[kind] = (self._within(old + step), count + 1)

    def _within(self, at: float) -> float:
        return max(log(self._low), min(log(self._high), at))


class Meter:
    """One endpoint's bytes and the tokens that its engine counted over the same time."""

    __slots__ = ("_began_s", "_rate_s", "_sent", "_spoilt", "_tokens")

    def __init__(self) -> None:
        self._sent: dict[Hashable, tuple[float, float]] = {}
        self._tokens = 0.0
        self._began_s: float | None = None
        self._rate_s: float | None = None
        self._spoilt = False

    def sent(self, kind: Hashable, size: float, prior: float, other_tokens: float = 0.0) -> None:
        """A request of `kind` brought `size` bytes, and `other_tokens` that are no text."""
        if kind in self._sent or len(self._sent) < MOST_KINDS:
            self._sent[kind] = (self._sent.get(kind, (0.0, prior))[0] + size, prior)
        self._tokens -= other_tokens

    def counted(self, tokens_per_s: float | None, at_s: float, own_only: bool) -> bool:
        """The engine counted so many a second since it last told, up to `at_s`. Whether a window
        is full. With requests in it that are none of ours (not `own_only`) it teaches nothing."""
        before, self._rate_s = self._rate_s, at_s
        if tokens_per_s is None or before is None or not 0.0 < at_s - before <= MOST_GAP_S:
            self._restart(at_s)
            return False
        self._tokens += tokens_per_s * (at_s - before)
        self._spoilt = self._spoilt or not own_only
        began_s = at_s if self._began_s is None else self._began_s
        if at_s - began_s < WINDOW_S or self._tokens < WINDOW_TOKENS:
            return False
        if self._spoilt:
            self._restart(at_s)
            return False
        return True

    def teach(self, ratios: ByteRatios) -> None:
        """Have a full window teach, and begin the next."""
        ratios.counted(self._sent, self._tokens)
        self._restart(self._rate_s)

    def _restart(self, at_s: float | None) -> None:
        self._sent.clear()
        self._tokens = 0.0
        self._began_s = at_s
        self._spoilt = False
