"""Lengths of answers under caps, against the distributions they were drawn from."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_authz.estimation.output_length import (
    BOUNDS,
    ENOUGH,
    HALF_LIFE,
    MOST_TABLES,
    REFRESH,
    LengthTable,
    OutputLengths,
)

Draw = Callable[[Random], float]
LOGNORMAL: Draw = lambda rng: rng.lognormvariate(5.5, 0.7)  # noqa: E731  # a table of draws
EXPONENTIAL: Draw = lambda rng: rng.expovariate(1 / 300)  # noqa: E731
TWO_KINDS: Draw = lambda rng: rng.gauss(30, 5) if rng.random() < 0.5 else rng.gauss(900, 100)  # noqa: E731


def lengths(draw: Draw, rng: Random, number: int) -> list[int]:
    return [max(1, round(draw(rng))) for _ in range(number)]


def truth(draw: Draw, cap: int | None) -> float:
    """The mean of very many answers under `cap`."""
    many = lengths(draw, Random(0), 60_000)
    return sum(min(each, cap or each) for each in many) / len(many)


def taught(draw: Draw, caps: list[int | None], seed: int, number: int = 2000) -> OutputLengths:
    """Answers whose requests had one of `caps` each."""
    rng, book = Random(seed), OutputLengths()
    for each in lengths(draw, rng, number):
        cap = rng.choice(caps)
        book.learn("t", "m", min(each, cap or each), cap)
    return book


@pytest.mark.parametrize("draw", [LOGNORMAL, EXPONENTIAL, TWO_KINDS])
@pytest.mark.parametrize("caps", [[None], [None, 250, 100], [2000, 300, 250, 100]])
@pytest.mark.parametrize("asked", [20, 64, 256, 1000, None])
def test_expected_under_a_cap(draw: Draw, caps: list[int | None], asked: int | None) -> None:
    """Whatever caps the answers were seen under, the mean under any other is that of the truth:
    within 5 % on average over seeds, where counting what was cut as complete is 30 % off."""
    expected = [taught(draw, caps, seed).expected("t", "m", asked, 256) for seed in range(8)]
    assert sum(expected) / len(expected) == pytest.approx(truth(draw, asked), rel=0.05)


def test_what_is_cut_does_not_teach_shortness() -> None:
    """The naive way, as a check that the test above can fail: cut answers taken for whole ones
    give half of the true mean."""
    rng, naive = Random(1), OutputLengths()
    for each in lengths(EXPONENTIAL, rng, 2000):
        naive.learn("t", "m", min(each, rng.choice([100, 250])), None)
    told = taught(EXPONENTIAL, [100, 250], 1).expected("t", "m", None, 256)
    assert naive.expected("t", "m", None, 256) < 0.55 * truth(EXPONENTIAL, None)
    assert told == pytest.approx(truth(EXPONENTIAL, None), rel=0.15)


def product_limit(seen: list[tuple[float, bool]], at: float) -> float:
    """Kaplan and Meier's estimate of the part of answers longer than `at`, straight from single
    answers; the newest weighs most, as with a table."""
    weights = [2 ** (age / HALF_LIFE) for age in range(len(seen))]
    answers = [(tokens, capped, w) for (tokens, capped), w in zip(seen, weights, strict=True)]
    left = 1.0
    for time in sorted({tokens for tokens, capped in seen if not capped and tokens <= at}):
        risk = sum(w for tokens, _, w in answers if tokens >= time)
        left *= 1 - sum(w for tokens, capped, w in answers if tokens == time and not capped) / risk
    return left


@given(st.data(), st.integers(0, 5))
def test_against_the_product_limit(data: st.DataObject, times: int) -> None:
    """For answers that lie on the bounds of classes a table is the exact product limit."""
    number = ENOUGH + times * REFRESH
    answer = st.tuples(st.sampled_from(BOUNDS[10:40]), st.booleans())
    seen = data.draw(st.lists(answer, min_size=number, max_size=number))
    table = LengthTable()
    for tokens, capped in seen:
        table.learn(tokens, capped)
    longest = max(tokens for tokens, _ in seen)
    for bound in BOUNDS[9:40]:
        # Beyond the longest answer there is no estimate to compare with.
        if bound < longest:
            exact = product_limit(seen, bound)
            assert part_longer(table, bound) == pytest.approx(exact, abs=1e-3)


def part_longer(table: LengthTable, at: float) -> float:
    """The part of answers longer than `at`, from the slope of the mean under a cap."""
    return (table.mean(at + 1e-3) - table.mean(at)) / 1e-3


@given(
    st.lists(st.tuples(st.floats(0, 1e7), st.booleans()), min_size=1, max_size=80),
    st.floats(0, 2e6),
    st.floats(0, 2e6),
)
def test_means_and_quantiles_are_sane(
    seen: list[tuple[float, bool]], one: float, other: float
) -> None:
    """A mean never exceeds its cap and never falls as the cap rises; quantiles rise and stay
    under the cap; nothing is negative, whatever was learned."""
    table = LengthTable()
    for tokens, capped in seen:
        table.learn(tokens, capped)
    low, high = sorted((one, other))
    assert 0.0 <= table.mean(low) <= low * (1 + 1e-9)
    assert table.mean(low) <= table.mean(high) * (1 + 1e-9)
    marks = [table.quantile(part, high) for part in (0.0, 0.3, 0.6, 0.9, 0.99)]
    assert marks == sorted(marks)
    assert 0.0 <= marks[0] <= marks[-1] <= high


def test_quantiles_are_those_of_the_answers() -> None:
    """The median and the 90th per cent of a thousand lengths, to the width of a class."""
    book, rng = LengthTable(), Random(3)
    drawn = lengths(LOGNORMAL, rng, 1000)
    for each in drawn:
        book.learn(each, capped=False)
    recent = sorted(drawn[-600:])
    assert book.quantile(0.5, 1e6) == pytest.approx(recent[300], rel=0.15)
    assert book.quantile(0.9, 1e6) == pytest.approx(recent[540], rel=0.2)
    assert book.quantile(0.9, 100) == 100


def test_before_anything_is_known() -> None:
    """The cap, or the default; then the model's other tenants, then one's own answers."""
    book = OutputLengths()
    assert book.expected("a", "m", 700, 256) == 700
    assert book.expected("a", "m", None, 256) == 256
    assert book.longest("a", "m", 256) == 256
    for _ in range(ENOUGH):
        book.learn("b", "m", 40, None)
    assert book.expected("a", "m", None, 256) == pytest.approx(40, rel=0.12)
    assert book.expected("a", "other", None, 256) == 256
    for _ in range(ENOUGH):
        book.learn("a", "m", 4000, None)
    assert book.expected("a", "m", None, 256) == pytest.approx(4000, rel=0.12)
    assert book.expected("b", "m", None, 256) == pytest.approx(40, rel=0.12)


def test_answers_that_all_reached_their_cap() -> None:
    """They were at least so long; how much longer is unknown, but no more than ten times is
    believed (beyond the class they ended in, which is up to a fifth wider)."""
    book = OutputLengths()
    for _ in range(100):
        book.learn("t", "m", 100, 100)
    assert book.expected("t", "m", 100, 256) == pytest.approx(100, rel=0.02)
    assert 150 < book.expected("t", "m", 1000, 256) <= 1000
    assert book.expected("t", "m", None, 256) <= 1.2 * 100 * 11


def test_a_change_of_habit_is_followed() -> None:
    """After two half-lives three quarters of the weight is the new length's."""
    book = OutputLengths()
    for tokens, number in ((100, 3000), (1000, 800)):
        for _ in range(number):
            book.learn("t", "m", tokens, None)
    assert book.expected("t", "m", None, 256) == pytest.approx(100 / 4 + 1000 * 3 / 4, rel=0.1)


def test_a_table_never_runs_over() -> None:
    """Weights grow with every answer and are scaled back in time."""
    table = LengthTable()
    for _ in range(40_000):
        table.learn(50, capped=False)
    assert table.mean(1e6) == pytest.approx(50, rel=0.12)


def test_the_number_of_tables_is_bounded_and_those_in_use_stay() -> None:
    """Tenants that come once are forgotten first, never the model's own table in daily use."""
    book = OutputLengths()
    for _ in range(ENOUGH):
        book.learn("regular", "m", 77, None)
    for number in range(2 * MOST_TABLES):
        book.learn(f"t{number}", "m", 77, None)
    assert len(book.export()) == MOST_TABLES
    assert book.expected("new", "m", None, 256) == pytest.approx(77, rel=0.12)


def test_what_was_learned_survives() -> None:
    """Through plain JSON and back, means and quantiles are the same."""
    book, again = taught(LOGNORMAL, [None, 200], 5), OutputLengths()
    again.restore(json.loads(json.dumps(book.export())))
    for cap in (10, 200, 5000, None):
        before = book.expected("t", "m", cap, 256)
        # The one has up to a few answers that the other has taken in already.
        assert again.expected("t", "m", cap, 256) == pytest.approx(before, rel=0.02)
    assert again.longest("t", "m", 256) == pytest.approx(book.longest("t", "m", 256), rel=0.05)
