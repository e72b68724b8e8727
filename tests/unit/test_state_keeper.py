"""When learned state is read and saved, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from ext_authz.metrics import Metrics
from ext_authz.settings import LearningSettings
from ext_authz.state import keeper
from ext_authz.state.keeper import Keeper
from ext_authz.state.state_file import read_state, write_state
from tests.support.service import StandingClock


class Kept:
    """A keeper of a number that is learned, on a standing clock."""

    def __init__(self, path: Path | None, left: tuple[str, ...] = ()) -> None:
        self.clock = StandingClock()
        self.metrics = Metrics()
        self.settings = LearningSettings(None if path is None else str(path), 60.0)
        self.learned: dict[str, object] = {"number": 1}
        self.recalled: list[object] = []
        self.left = left
        self.keeper = Keeper(
            lambda: self.settings, self.gathered, self.recall, self.clock, self.metrics
        )

    def gathered(self) -> Generator[None, None, dict[str, object]]:
        """In two pieces."""
        yield
        return self.learned

    def recall(self, saved: object) -> tuple[str, ...]:
        self.recalled.append(saved)
        return self.left

    async def after(self, seconds: float) -> None:
        """Time passes, and a save that begins then comes to its end."""
        self.clock.at_s += seconds
        self.keeper.tick(self.clock.now())
        if (saving := self.keeper._saving) is not None:
            await saving

    def count(self, result: str) -> int:
        return self.metrics.value("learned_state_saves", result)

    def age_s(self) -> float | None:
        for family in self.metrics.collect():
            if family.name == "ext_authz_learned_state_age_seconds":
                return next((float(one.value) for one in family.samples), None)
        raise AssertionError("no such metric")

    def saved(self) -> Any:
        path = self.settings.state_file
        assert path is not None
        found = read_state(Path(path), self.clock.wall())
        return None if found is None else found[0]


async def test_saves_each_interval_and_in_the_end(tmp_path: Path) -> None:
    """Not at the start, once an interval, and with the latest at a drain."""
    kept = Kept(tmp_path / "learned.json")
    kept.keeper.start()
    await kept.after(59.0)
    assert (kept.saved(), kept.age_s()) == (None, None)
    await kept.after(1.0)
    kept.learned = {"number": 2}
    await kept.after(30.0)
    assert (kept.saved(), kept.age_s(), kept.count("saved")) == ({"number": 1}, 30.0, 1)
    await kept.after(30.0)
    assert (kept.saved(), kept.age_s()) == ({"number": 2}, 0.0)
    kept.learned = {"number": 3}
    await kept.keeper.close()
    assert (kept.saved(), kept.count("saved"), kept.count("failed")) == ({"number": 3}, 3, 0)


async def test_is_read_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the file has is recalled, its age goes on from there, and what was left is told in one
    line."""
    caplog.set_level(logging.INFO)
    kept = Kept(tmp_path / "learned.json", left=("pool p: was of other slots", "costs: damaged"))
    write_state(tmp_path / "learned.json", {"number": 7}, kept.clock.wall() - 300.0)
    kept.keeper.start()
    assert kept.recalled == [{"number": 7}]
    assert kept.age_s() == pytest.approx(300.0)
    (line,) = caplog.messages
    assert "of 300 s ago, without: pool p: was of other slots; costs: damaged" in line
    assert kept.keeper.status() == {
        "file": str(tmp_path / "learned.json"),
        "age_s": pytest.approx(300.0),
        "left": ["pool p: was of other slots", "costs: damaged"],
        "trouble": None,
    }


async def test_a_file_that_must_be_ignored_is_told_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line with path and reason; nothing is recalled, and the next save makes it good."""
    path = tmp_path / "learned.json"
    kept = Kept(path)
    path.write_bytes(b'{"ext_authz_learned":1,')
    kept.keeper.start()
    assert (kept.recalled, kept.age_s()) == ([], None)
    assert caplog.messages == [f"learned state {path} is ignored: it is damaged"]
    await kept.after(60.0)
    assert kept.saved() == {"number": 1}


async def test_trouble_is_told_once_and_when_it_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder that is not there is an error once, counted each time, and fatal never."""
    path = tmp_path / "volume" / "learned.json"
    kept = Kept(path)
    kept.keeper.start()
    for _ in range(3):
        await kept.after(60.0)
    await kept.keeper.close()
    assert kept.count("failed") == 4
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert caplog.messages[0].endswith(f"{path} cannot be used: No such file or directory")
    status = kept.keeper.status()
    assert status is not None
    assert status["trouble"] == "cannot be used: No such file or directory"
    path.parent.mkdir()
    await kept.after(60.0)
    assert (kept.count("saved"), caplog.messages[-1].split(",")[0]) == (
        1,
        "learned state is saved again",
    )


async def test_a_fault_of_ours_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be encoded is trouble like any other, at a drain too."""
    kept = Kept(tmp_path / "learned.json")
    kept.learned = {"number": object()}
    await kept.after(60.0)
    await kept.keeper.close()
    assert kept.count("failed") == 2
    assert "fault of ours" in caplog.text
    assert kept.saved() is None


async def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    """Nothing is read, saved, shown or counted; a reload may name a file later."""
    kept = Kept(None)
    kept.keeper.start()
    await kept.after(120.0)
    await kept.keeper.close()
    assert (kept.keeper.status(), kept.age_s(), kept.count("saved")) == (None, None, 0)
    kept.settings = LearningSettings(str(tmp_path / "learned.json"), 1.0)
    await kept.after(60.0)
    assert kept.saved() == {"number": 1}


async def test_one_save_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is being written the next waits for its time, and a drain waits for both."""
    running: list[int] = []
    most: list[int] = []

    def counted(path: Path, learned: dict[str, object], wall_s: float) -> int:
        running.append(1)
        most.append(len(running))
        size = write_state(path, learned, wall_s)
        running.pop()
        return size

    monkeypatch.setattr(keeper, "write_state", counted)
    kept = Kept(tmp_path / "learned.json")
    kept.keeper.start()
    for _ in range(2):
        kept.clock.at_s += 60.0
        kept.keeper.tick(kept.clock.now())
    await kept.keeper.close()
    assert (most, kept.count("saved")) == ([1, 1], 2)
