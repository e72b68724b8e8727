"""The safety margin that is taken off every promise: tuned by how many promises were broken.

PURE. The rule is the field's: a tenth more while over 1 % are broken, a twentieth less while under
0.1 %, between 10 and 80 ms where 150 ms are promised, and in that proportion for other promises
and targets. What counts is the rate, not how a handful fell. Each question is a sequential test
of one rate against another: every outcome adds its log likelihood ratio to a score that never
falls below nothing, and a score of h is an answer (CUSUM; Page 1954, "Continuous Inspection
Schemes"). Of its climbs from nothing at most one in e^h ends in a wrong answer (Wald 1945,
"Sequential Tests of Statistical Hypotheses"), at a busy pool after seconds and at a quiet one after
hours, and a long time of calm does not make it slower to see what comes after.

It is the outermost of three loops: level and spread of the predictions come first, and only what
they leave is the margin's. So it is the slowest (see `SETTLE_S`), an outcome judges only the margin
it was let in under, and a raise is on trial: once all is well it is taken back, for the trouble may
be over; if that brings the trouble back, it stays.
"""

from __future__ import annotations

from math import inf, log

TARGET_RATIO = 0.01
RAISE, LOWER = 1.1, 0.95
# Of the promise: 10 and 80 ms of 150.
LOW_RATIO, HIGH_RATIO = 10.0 / 150.0, 80.0 / 150.0
# Least time between two moves, and from the first sign of trouble to a raise. A bound, from the
# practice of cascaded loops: what the predictions absorb within some hundred outcomes (see
# `latency.residuals`) is over by then.
SETTLE_S = 20.0
# A margin matters while requests are refused for the promise; what is let in so long after the last
# of them says nothing of whether less would do.
PRESSED_S = 10.0
# Times the target: the rates that are told apart, (what is asked about, what it would be if not).
TOO_MANY, CALM, TOO_FEW = (1.5, 1.0), (0.5, 1.0), (0.02, 0.1)
# h: a raise costs requests that could be served; the others are undone by a raise if wrong.
SURE, LIKELY = log(100_000.0), log(20.0)


class Score:
    """Evidence that promises are broken at one rate rather than at another, both in 0..1."""

    __slots__ = ("_broken", "_kept", "_most", "value")

    def __init__(self, rates: tuple[float, float], target_ratio: float, most: float) -> None:
        asked, otherwise = (rate * target_ratio for rate in rates)
        self.value = 0.0
        self._most = most
        self._broken = log(asked / otherwise)
        self._kept = log((1.0 - asked) / (1.0 - otherwise))

    def add(self, kept: bool) -> bool:
        """One more outcome; whether the evidence is enough. It is never more than enough, so
        that a burst of trouble fades when it is over."""
        value = self.value + (self._kept if kept else self._broken)
        if value >= self._most:
            self.value = self._most
            return True
        self.value = value if value > 0.0 else 0.0
        return False


class MarginTuner:
    """The margin of one pool: `value_s`, in seconds.

    `configured_s` is where it begins, `promise_s` the usual promise there, None if there is none,
    and then the margin stays as configured. `target_ratio` of the promises may be broken. Raises
    ValueError if that is not above 0 and below a half.
    """

    __slots__ = ("_calm", "_few", "_high_s", "_home_s", "_least_s", "_low_s", "_many", "_moved_s",
                 "_of", "_pressed_s", "_quiet_s", "_returned", "_target_ratio",
                 "value_s")  # fmt: skip

    def __init__(
        self, configured_s: float, promise_s: float | None, target_ratio: float = TARGET_RATIO
    ) -> None:
        if not 0.0 < target_ratio < 0.5:
            raise ValueError(f"target_ratio is {target_ratio}, not between 0 and 0.5")
        self.value_s = configured_s
        # What is learned holds for these only.
        self._of = [configured_s, promise_s, target_ratio]
        self._target_ratio = target_ratio
        # Where it returns to after a raise, and whether its last move was such a return.
        self._home_s = configured_s
        self._returned = False
        self._moved_s = self._pressed_s = self._quiet_s = -inf
        if promise_s is None:
            self._least_s = self._low_s = self._high_s = configured_s
        else:
            # What is configured is allowed whatever the proportion says.
            self._least_s = LOW_RATIO * promise_s
            self._low_s = min(configured_s, self._least_s)
            self._high_s = max(configured_s, HIGH_RATIO * promise_s)
        self._forget()

    def pressed(self, now: float) -> None:
        """A request was refused because its promise would not have been kept."""
        self._pressed_s = now

    def judged(self, kept: bool, admitted_s: float, now: float) -> None:
        """A request ended that was let in at `admitted_s` because its promise was predicted to
        hold: whether it was kept."""
        if admitted_s < self._moved_s:
            return
        if self._many.value == 0.0:
            self._quiet_s = now
        too_many = self._many.add(kept)
        # What was let in while nothing was refused would have been kept with a smaller margin too.
        told = not kept or admitted_s - self._pressed_s <= PRESSED_S
        calm = told and self._calm.add(kept)
        too_few = told and self._few.add(kept)
        if now - self._moved_s < SETTLE_S:
            return
        if too_many:
            if not kept and now - self._quiet_s >= SETTLE_S:
                self._raise(now)
        elif calm and self.value_s > self._home_s:
            self._move(max(self.value_s / RAISE, self._home_s), now)
            self._returned = True
        elif calm and self._returned:
            # All stayed well: trouble that comes now is new.
            self._returned = False
        elif too_few:
            self._move(self.value_s * LOWER, now)
            self._home_s = min(self._home_s, self.value_s)

    def export(self) -> dict[str, object]:
        """What was learned, as plain values, and what it was learned of."""
        return {"of": list(self._of), "value_s": self.value_s, "home_s": self._home_s}

    def restore(self, saved: object) -> bool:
        """Take up what `export` gave; False, and all is as it was, for anything else, the margin
        of another configuration among it."""
        if not isinstance(saved, dict) or saved.get("of") != self._of:
            return False
        try:
            value_s, home_s = float(saved["value_s"]), float(saved["home_s"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return False
        # Not a number lies nowhere.
        if not all(self._low_s <= number_s <= self._high_s for number_s in (value_s, home_s)):
            return False
        self.value_s, self._home_s = value_s, home_s
        self._forget()
        return True

    def _raise(self, now: float) -> None:
        self._move(max(self.value_s * RAISE, self._least_s), now)
        if self._returned:
            # Trouble came with the return: what was taken back is needed.
            self._home_s = self.value_s
            self._returned = False

    def _move(self, to_s: float, now: float) -> None:
        self.value_s = min(max(to_s, self._low_s), self._high_s)
        self._moved_s = now
        self._forget()

    def _forget(self) -> None:
        """What was seen was of another margin."""
        self._many = Score(TOO_MANY, self._target_ratio, SURE)
        self._calm = Score(CALM, self._target_ratio, LIKELY)
        self._few = Score(TOO_FEW, self._target_ratio, LIKELY)
