"""Bytes per token: single counts, and counters matched with what was sent."""

from __future__ import annotations

import json
from math import exp, inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.estimation.tokens import (
    ENOUGH,
    LONGEST_WINDOW_S,
    MOST_GAP_S,
    MOST_KINDS,
    MOST_STEP,
    WINDOW_S,
    ByteRatios,
    Meter,
)

CHAT, CODE = ("m", "chat"), ("m", "completion")
PRIOR = 4.0


def ratios() -> ByteRatios:
    return ByteRatios(1.0, 8.0)


class Engine:
    """An endpoint whose counter grows by the true tokens of what it is sent."""

    def __init__(self, true: dict[tuple[str, str], float]) -> None:
        self.true = true
        self.meter = Meter()
        self.ratios = ratios()
        self.tokens = 0.0
        self.now = 0.0
        self.taught = 0

    def serve(self, kind: tuple[str, str], size: float) -> None:
        """One request comes and goes."""
        self.meter.began()
        self.meter.text(kind, size, PRIOR)
        self.tokens += size / self.true[kind]
        self.meter.ended()

    def tell(self, after_s: float = 1.0, own_only: bool = True) -> None:
        """A scrape."""
        self.now += after_s
        rate, self.tokens = self.tokens / after_s, 0.0
        if self.meter.counted(rate, self.now, own_only):
            self.meter.teach(self.ratios)
            self.taught += 1


@pytest.mark.parametrize("true", [1.4, 2.6, 4.0, 6.1])
def test_one_kind_is_learned_from_the_counter(true: float) -> None:
    """A minute of steady traffic brings the ratio within 2 % of the truth, from a prior of 4."""
    engine, rng = Engine({CHAT: true}), Random(1)
    for _ in range(90):
        for _ in range(10):
            engine.serve(CHAT, rng.uniform(100, 4000))
        engine.tell()
    assert engine.ratios.ratio(CHAT, PRIOR) == pytest.approx(true, rel=0.02)


def test_two_kinds_are_told_apart_by_changing_mixtures() -> None:
    """One counter for both is enough, because windows hold more of the one or of the other."""
    engine, rng = Engine({CHAT: 4.8, CODE: 2.4}), Random(2)
    for second in range(1800):
        part = 0.8 if second // 30 % 2 else 0.2
        for _ in range(10):
            engine.serve(CHAT if rng.random() < part else CODE, rng.uniform(100, 4000))
        engine.tell()
    assert engine.ratios.ratio(CHAT, PRIOR) == pytest.approx(4.8, rel=0.05)
    assert engine.ratios.ratio(CODE, PRIOR) == pytest.approx(2.4, rel=0.05)


def test_a_window_moves_a_ratio_by_a_bounded_step() -> None:
    """However odd the text of one window is, prices change by a tenth at most."""
    engine = Engine({CHAT: 1.0})
    engine.tell()
    for _ in range(5):
        for _ in range(1000):
            engine.serve(CHAT, 100_000)
        engine.tell()
    assert engine.taught == 1
    assert engine.ratios.ratio(CHAT, PRIOR) == pytest.approx(PRIOR * exp(-MOST_STEP))


def test_a_flood_of_single_counts_moves_it_no_faster() -> None:
    """One client's thousand odd requests a second are one window as well."""
    learned = ratios()
    for number in range(10_001):
        learned.saw(CHAT, 1430.0, 1000.0, PRIOR, number / 1000)
    assert learned.ratio(CHAT, PRIOR) >= PRIOR * exp(-2 * MOST_STEP)


def test_single_counts_teach() -> None:
    """They are weighed by tokens, as the engine's counter would: of 4,000 tokens 3,000 had two
    bytes and 1,000 had six."""
    learned = ratios()
    for number in range(600):
        large = number % 2 == 0
        learned.saw(CHAT, *((6000.0, 3000.0) if large else (6000.0, 1000.0)), PRIOR, number / 2)
    assert learned.known(CHAT)
    assert learned.ratio(CHAT, PRIOR) == pytest.approx(12_000 / 4_000, rel=0.05)


def test_a_number_told_again_changes_nothing() -> None:
    """What another source makes the merger repeat, or tells late, is no second reading."""
    once, twice = Engine({CHAT: 2.0}), Engine({CHAT: 2.0})
    for _ in range(60):
        for engine in (once, twice):
            for _ in range(10):
                engine.serve(CHAT, 1000)
            engine.tell()
        for at_s in (twice.now, twice.now - 0.5):
            assert not twice.meter.counted(1e9, at_s, False)
    assert twice.ratios.ratio(CHAT, PRIOR) == once.ratios.ratio(CHAT, PRIOR) < 2.1


def test_foreign_requests_spoil_a_window() -> None:
    """While others use the engine its counter says nothing; afterwards learning goes on."""
    engine = Engine({CHAT: 4.0})
    for second in range(40):
        for _ in range(10):
            engine.serve(CHAT, 1000)
        foreign = second < 20 and second % 4 == 0
        if foreign:
            engine.tokens += 5000
        engine.tell(own_only=not foreign)
    assert engine.taught >= 3
    assert engine.ratios.ratio(CHAT, PRIOR) == pytest.approx(4.0)


@pytest.mark.parametrize("gap_s", [None, 2 * MOST_GAP_S])
def test_a_restart_or_a_gap_begins_anew(gap_s: float | None) -> None:
    """What was sent while the engine told nothing is in no rate, so it is in no window."""
    engine = Engine({CHAT: 4.0})
    for _ in range(3):
        engine.serve(CHAT, 40_000)
        engine.tell()
    for _ in range(20):
        engine.serve(CHAT, 40_000)
    engine.tokens = 0.0
    if gap_s is None:
        engine.now += 1
        assert not engine.meter.counted(None, engine.now, True)
    else:
        engine.tell(gap_s)
    for _ in range(12):
        engine.serve(CHAT, 40_000)
        engine.tell()
    assert engine.taught >= 1
    assert engine.ratios.ratio(CHAT, PRIOR) == pytest.approx(4.0)


def test_a_start_of_long_answers_teaches_nothing_wrong() -> None:
    """Answers of a minute: the engine counts their tokens from the start, their bytes come at the
    end. Until as many end as begin there is nothing to compare."""
    meter, learned, kind = Meter(), ratios(), ("m", True)
    ends: list[int] = []
    lowest = highest = 5.0
    for second in range(1, 1200):
        meter.began()
        ends.append(second + 60)
        while ends and ends[0] <= second:
            ends.pop(0)
            meter.ended()
            # 10 tokens a second for 60 seconds at 5 bytes each.
            meter.text(kind, 3000.0, 5.0)
        if meter.counted(10.0 * len(ends), float(second), True):
            meter.teach(learned)
            now = learned.ratio(kind, 5.0)
            lowest, highest = min(lowest, now), max(highest, now)
    assert learned.known(kind)
    assert 4.5 < lowest <= highest < 5.5


def test_a_window_that_never_balances_is_given_up() -> None:
    """Requests whose ends are lost do not pile up for ever."""
    engine = Engine({CHAT: 2.0})
    for _ in range(int(LONGEST_WINDOW_S) + 5):
        engine.serve(CHAT, 10_000)
        engine.meter.began()
        engine.tell()
    assert engine.taught == 0
    for _ in range(60):
        engine.serve(CHAT, 10_000)
        engine.tell()
    assert engine.taught >= 5


def test_tokens_beside_text_are_taken_off() -> None:
    """Token ids are known tokens; a picture's are a guess, and mostly guesses teach nothing."""
    for certain, taught in ((True, 2.0), (False, PRIOR)):
        engine = Engine({CHAT: 2.0})
        for _ in range(90):
            for _ in range(10):
                engine.serve(CHAT, 1000)
                engine.meter.other(500.0, certain)
                engine.tokens += 500
            engine.tell()
        assert engine.ratios.ratio(CHAT, PRIOR) == pytest.approx(taught, rel=0.02)


def test_kinds_are_bounded() -> None:
    """Of more kinds than fit those in use stay: this one, which has 3,000 of the 4,000 tokens, the
    others of each window being new."""
    learned = ratios()
    for number in range(3 * MOST_KINDS):
        learned.counted({("m", number): (4000.0, PRIOR), CHAT: (4000.0, PRIOR)}, 4000.0)
    assert len(learned.export()) == MOST_KINDS
    assert learned.ratio(CHAT, PRIOR) == pytest.approx(4000 / 3000, rel=0.01)


sizes = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(st.sampled_from([CHAT, CODE]), sizes, sizes, sizes), max_size=40))
def test_ratios_stay_in_their_bounds(
    seen: list[tuple[tuple[str, str], float, float, float]],
) -> None:
    """Whatever is claimed to have been counted, a ratio is a number from 1 to 8."""
    learned = ratios()
    for number, (kind, size, tokens, total) in enumerate(seen):
        learned.saw(kind, size, tokens, PRIOR, number * WINDOW_S)
        learned.counted({kind: (size, PRIOR)}, total)
        assert 1.0 <= learned.ratio(kind, PRIOR) <= 8.0


def test_what_was_learned_survives() -> None:
    """Through plain JSON and back, the same ratios; a count of corrections of no use is cut."""
    learned, again = ratios(), ratios()
    for _ in range(ENOUGH):
        learned.counted({CHAT: (4000.0, PRIOR)}, 2000.0)
    again.restore(json.loads(json.dumps(learned.export())))
    assert again.ratio(CHAT, PRIOR) == learned.ratio(CHAT, PRIOR)
    assert again.known(CHAT)
    assert not again.known(CODE)


@pytest.mark.parametrize(
    "saved", [None, 7, "x", [1], [[["m"], nan, 1]], [[["m"], inf, 1]], [[[[]], 4, 1]]]
)
def test_nothing_else_is_taken_up(saved: object) -> None:
    """What `export` did not write raises, and changes nothing."""
    learned = ratios()
    learned.counted({CHAT: (4000.0, PRIOR)}, 2000.0)
    before = learned.export()
    with pytest.raises((TypeError, ValueError)):
        learned.restore(saved)
    assert learned.export() == before
