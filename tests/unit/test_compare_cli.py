"""The command line of the comparison."""

from __future__ import annotations

import pytest

from loadtest.compare.__main__ import main, parse
from loadtest.compare.table import QUICK, SCENARIOS
from loadtest.compare.variants import NAMES


def test_what_is_played_unless_it_is_said() -> None:
    """Four scenarios once, or all of them three times; every variant."""
    quick, full = parse([]), parse(["--full"])
    assert (quick.only, quick.rounds, quick.variants) == (QUICK, 1, NAMES)
    assert (full.only, full.rounds, full.variants) == (tuple(SCENARIOS), 3, NAMES)
    some = parse(["--only", "burst,light", "--variants", "product", "--rounds", "2"])
    assert (some.only, some.rounds, some.variants) == (("burst", "light"), 2, ("product",))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "storm"], "there is no storm; known are light, overload-1.5x"),
        (["--variants", "gate"], "there is no gate; known are nothing"),
        (["--again", "gate"], "there is no gate; known are nothing"),
        (["--rounds", "0"], "--rounds: at least 1"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after half an hour."""
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_the_table_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each scenario."""
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SCENARIOS)
