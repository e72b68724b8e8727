"""The file of learned state as it is configured: where it is, and what is doubtful about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ext_authz.config import load
from ext_authz.settings import LearningSettings


def loaded(tmp_path: Path, learning: str) -> tuple[LearningSettings, list[str]]:
    """The settings, and the warnings under `learning`."""
    path = tmp_path / "gate.yaml"
    path.write_text(f"admission_control:\n  learning: {{{learning}}}\n")
    result = load(path)
    told = [f"{p.line} {p.field.split('.')[-1]} {p.message}" for p in result.warnings]
    return result.settings.learning, [line for line in told if line.startswith("2 ")]


def test_nothing_is_kept_unless_asked_for(tmp_path: Path) -> None:
    """Without the key there is no file."""
    assert loaded(tmp_path, "") == (LearningSettings(None, 60.0), [])


def test_the_file_is_relative_to_the_configuration(tmp_path: Path) -> None:
    """As other files that it names; an absolute path stays."""
    (tmp_path / "volume").mkdir()
    relative, told = loaded(tmp_path, "state_file: volume/learned.json, save_every: 5m")
    assert relative == LearningSettings(str(tmp_path / "volume/learned.json"), 300.0)
    assert told == []
    absolute, told = loaded(tmp_path, f"state_file: {tmp_path}/learned.json")
    assert absolute == LearningSettings(str(tmp_path / "learned.json"), 60.0)
    assert told == []


def test_both_keys_reach_the_settings() -> None:
    """Of the file with every key away from its default."""
    data = Path(__file__).parent.parent / "data" / "config"
    settings = load(data / "full.yaml").settings
    assert settings.learning == LearningSettings(str(data / "learned.json"), 90.0)


def test_an_interval_without_a_file_is_doubtful(tmp_path: Path) -> None:
    """It does nothing."""
    assert loaded(tmp_path, "save_every: 10s")[1] == ["2 save_every is of no use without a file"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing/learned.json", "is in a folder that does not exist"),
        ("gate.yaml/learned.json", "is in a folder that does not exist"),
        ("locked/learned.json", "is in a folder that cannot be written"),
        (".", "is no regular file"),
        ("pipe", "is no regular file"),
    ],
)
def test_a_place_that_cannot_be_written_is_doubtful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    """A warning, as the server may run elsewhere and serves all the same."""
    (tmp_path / "locked").mkdir()
    os.mkfifo(tmp_path / "pipe")
    # Who runs the tests may be allowed everything.
    monkeypatch.setattr(os, "access", lambda folder, _: not str(folder).endswith("locked"))
    assert loaded(tmp_path, f"state_file: {name}")[1] == [f"2 state_file {why}"]
