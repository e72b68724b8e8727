"""Bytes per token, learned from what engines count.

PURE. A gate sees bytes, an engine counts tokens. Where the count of one request is known (`usage`)
it teaches directly. Everywhere else there are the engine's counters: the tokens of all requests of
some seconds, to be explained by the bytes of all these requests, which may be of several kinds.
Each window corrects the kinds in proportion to what they contributed (Kaczmarz's projection, in
logarithms, so that no ratio gets negative), by a bounded step, so that no window is believed alone
and no client, however odd its text and however much it sends, turns a ratio in a moment.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from math import exp, isfinite, log

# By how much (natural logarithm) one window may move a ratio, and the part of its error that is
# believed.
MOST_STEP, BELIEVED = 0.1, 0.5
MOST_KINDS = 512
# A window lasts at least this long and holds at least so many tokens and, of a meter, ends.
WINDOW_S = 5.0
WINDOW_TOKENS = 500.0
WINDOW_ENDS = 5
# A meter's window is closed only when about as many requests began as ended in it: else the engine
# has counted tokens of requests whose bytes come later, or the other way round.
UNBALANCED_RATIO = 0.2
LONGEST_WINDOW_S = 600.0
# Of a window more of which than this is a guess, nothing is learned.
UNCERTAIN_RATIO = 0.2
# After a gap this long a rate says nothing of the time between.
MOST_GAP_S = 30.0
# No window holds so many bytes or tokens.
NONSENSE = 1e15
# Corrections before a ratio is more than its prior.
ENOUGH = 3


class ByteRatios:
    """Bytes per token by kind of request, between `low` and `high`."""

    def __init__(self, low: float, high: float) -> None:
        self._low = low
        self._high = high
        # The ratio and how often it was corrected.
        self._ratios: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        # Counts of single requests that wait for their window: since when, bytes, tokens.
        self._seen: dict[Hashable, tuple[float, float, float]] = {}

    def ratio(self, kind: Hashable, prior: float) -> float:
        """Bytes per token of `kind`; `prior` while nothing was learned of it."""
        known = self._ratios.get(kind)
        return prior if known is None else known[0]

    def known(self, kind: Hashable) -> bool:
        """Whether the ratio of `kind` is more than its prior."""
        return self._ratios.get(kind, (0.0, 0))[1] >= ENOUGH

    def saw(
        self, kind: Hashable, text_bytes: float, tokens: float, prior: float, now: float
    ) -> None:
        """One request of `kind` was counted: `text_bytes` were `tokens`. What was counted over
        some seconds teaches together."""
        if not (0.0 < text_bytes < NONSENSE and 0.0 < tokens < NONSENSE):
            return
        since_s, all_bytes, all_tokens = self._seen.get(kind, (now, 0.0, 0.0))
        all_bytes += text_bytes
        all_tokens += tokens
        if now - since_s >= WINDOW_S and all_tokens >= WINDOW_TOKENS:
            self._seen.pop(kind, None)
            error = log(all_bytes) - log(all_tokens) - log(self.ratio(kind, prior))
            self._move(kind, BELIEVED * error, prior)
        elif kind in self._seen or len(self._seen) < MOST_KINDS:
            self._seen[kind] = (since_s, all_bytes, all_tokens)

    def counted(self, sent: Mapping[Hashable, tuple[float, float]], tokens: float) -> None:
        """The bytes `sent` by kind, each with the prior of its ratio, were `tokens` together."""
        shares = {
            kind: size / self.ratio(kind, prior) for kind, (size, prior) in sent.items() if size > 0
        }
        expected = sum(shares.values())
        if not (0.0 < expected < NONSENSE and 0.0 < tokens < NONSENSE):
            return
        # More tokens than expected: fewer bytes in each.
        step = BELIEVED * (log(expected) - log(tokens))
        parts = {kind: share / expected for kind, share in shares.items()}
        norm = sum(part * part for part in parts.values())
        for kind, part in parts.items():
            self._move(kind, step * part / norm, sent[kind][1])

    def export(self) -> list[object]:
        """What was learned, as plain values; kinds are tuples of plain values."""
        return [
            [list(kind) if isinstance(kind, tuple) else [kind], ratio, count]
            for kind, (ratio, count) in self._ratios.items()
        ]

    def restore(self, saved: object) -> None:
        """Take up what `export` gave. Raises ValueError or TypeError for anything else, and
        leaves all as it was."""
        ratios: OrderedDict[Hashable, tuple[float, int]] = OrderedDict()
        if not isinstance(saved, list):
            raise TypeError("not a list of ratios")
        for kind, ratio, count in saved[:MOST_KINDS]:
            number = float(ratio)
            if not isinstance(kind, list) or not isfinite(number):
                raise ValueError("not a ratio")
            ratios[tuple(kind)] = (self._within(number), min(max(0, int(count)), ENOUGH))
        self._ratios = ratios
        self._seen = {}

    def _move(self, kind: Hashable, step: float, prior: float) -> None:
        old, count = self._ratios.get(kind, (prior, 0))
        if kind not in self._ratios and len(self._ratios) >= MOST_KINDS:
            self._ratios.popitem(last=False)
        step = max(-MOST_STEP, min(MOST_STEP, step))
        self._ratios[kind] = (self._within(old * exp(step)), count + 1)
        self._ratios.move_to_end(kind)

    def _within(self, ratio: float) -> float:
        return max(self._low, min(self._high, ratio))


class Meter:
    """One endpoint's bytes and the tokens that its engine counted over the same time.

    Bytes are told when a request begins (prompts) or when it ends (answers); the engine counts
    somewhere between. That evens out where beginnings and ends keep pace.
    """

    __slots__ = ("_began_s", "_begun", "_ended", "_rate_s", "_sent", "_tokens", "_uncertain")

    def __init__(self) -> None:
        self._sent: dict[Hashable, tuple[float, float]] = {}
        self._tokens = 0.0
        self._uncertain = 0.0
        self._begun = 0
        self._ended = 0
        self._began_s: float | None = None
        self._rate_s: float | None = None

    def began(self) -> None:
        """A request began."""
        self._begun += 1

    def ended(self) -> None:
        """A request ended."""
        self._ended += 1

    def text(self, kind: Hashable, size: float, prior: float) -> None:
        """There were `size` bytes of text of `kind`."""
        if kind in self._sent or len(self._sent) < MOST_KINDS:
            self._sent[kind] = (self._sent.get(kind, (0.0, prior))[0] + size, prior)

    def other(self, tokens: float, certain: bool) -> None:
        """There were so many tokens beside text, as is known for `certain` or only guessed."""
        self._tokens -= tokens
        if not certain:
            self._uncertain += tokens

    def counted(self, tokens_per_s: float | None, at_s: float, own_only: bool) -> bool:
        """The engine counted so many a second since it last told, up to `at_s`. Whether a window
        is full. With requests in it that are none of ours (not `own_only`) it teaches nothing."""
        before = self._rate_s
        if before is not None and at_s <= before:
            # Told again because another number was told anew, or late.
            return False
        self._rate_s = at_s
        if not own_only or tokens_per_s is None or before is None or at_s - before > MOST_GAP_S:
            self._restart(at_s)
            return False
        self._tokens += tokens_per_s * (at_s - before)
        lasted_s = at_s - (at_s if self._began_s is None else self._began_s)
        if lasted_s > LONGEST_WINDOW_S:
            self._restart(at_s)
            return False
        return (
            lasted_s >= WINDOW_S
            and self._tokens >= WINDOW_TOKENS
            and self._ended >= WINDOW_ENDS
            and abs(self._begun - self._ended) <= UNBALANCED_RATIO * self._ended
        )

    def teach(self, ratios: ByteRatios) -> None:
        """Have a full window teach, and begin the next."""
        if self._uncertain <= UNCERTAIN_RATIO * self._tokens:
            ratios.counted(self._sent, self._tokens)
        self._restart(self._rate_s)

    def _restart(self, at_s: float | None) -> None:
        self._sent.clear()
        self._tokens = self._uncertain = 0.0
        self._begun = self._ended = 0
        self._began_s = at_s
