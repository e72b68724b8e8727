"""The file of learned state: whole or not at all, and ignored when it is not what it should be."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ext_authz.errors import StateError
from ext_authz.state import state_file
from ext_authz.state.state_file import (
    ABANDONED_S,
    KIND,
    MAX_AGE_S,
    MAX_BYTES,
    clean_up,
    read_state,
    write_state,
)

ROOT = Path(__file__).resolve().parents[2]
NOW_S = 1_800_000_000.0
LEARNED: dict[str, object] = {
    "pools": {"p": {"of": {"models": []}, "shape": {"buckets": {"3": [1.5, [0.1], []]}}}},
    "costs": {"lengths": [["acme", 'a "model"', {}]], "odd": None},
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """The same values come back, with their age; the file is ours alone and nothing is left."""
    path = tmp_path / "learned.json"
    size = write_state(path, LEARNED, NOW_S)
    assert read_state(path, NOW_S + 90.0) == (LEARNED, 90.0)
    assert path.stat().st_size == size
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["learned"] == LEARNED
    write_state(path, {"newer": 1}, NOW_S)
    assert read_state(path, NOW_S) == ({"newer": 1}, 0.0)
    assert list(tmp_path.iterdir()) == [path]


def test_there_may_be_no_file(tmp_path: Path) -> None:
    """Before the first save nothing is wrong."""
    assert read_state(tmp_path / "learned.json", NOW_S) is None


def document(**changes: Any) -> bytes:
    whole = {KIND: 1, "saved_s": NOW_S, "learned": LEARNED, **changes}
    return json.dumps(whole, separators=(",", ":")).encode()


IGNORED = {
    "empty": (b"", "is empty"),
    "foreign": (b"admission_control:\n", "is not a file of learned state"),
    "torn": (document()[:-20], "is damaged"),
    "deep": (document()[:-1] + b',"x":' + b"[" * 100_000, "is damaged"),
    "huge number": (document()[:-1] + b',"x":' + b"9" * 5000 + b"}", "is damaged"),
    "not text": (document()[:-1] + b',"\xff":1}', "is damaged"),
    "newer version": (document(**{KIND: 2}), "is of version 2, not 1"),
    "no date": (document(saved_s=None), "is damaged"),
    "date is no number": (document(saved_s=float("nan")), "is dated nan days ago"),
    "nothing learned": (document(learned=[]), "is damaged"),
    "old": (document(saved_s=NOW_S - MAX_AGE_S - 1), "is dated 7.0 days ago, more than 7"),
    "from the future": (document(saved_s=NOW_S + 8 * 86_400), "is dated -8.0 days ago"),
}


@pytest.mark.parametrize("kind", IGNORED)
def test_what_must_be_ignored_says_why(tmp_path: Path, kind: str) -> None:
    """Each is a StateError that tells what is wrong."""
    data, why = IGNORED[kind]
    path = tmp_path / "learned.json"
    path.write_bytes(data)
    with pytest.raises(StateError, match=why):
        read_state(path, NOW_S)


def test_a_document_of_the_tests_is_good(tmp_path: Path) -> None:
    """The table above begins with what would be taken."""
    path = tmp_path / "learned.json"
    path.write_bytes(document())
    assert read_state(path, NOW_S) == (LEARNED, 0.0)


def test_no_more_is_read_than_the_bound(tmp_path: Path) -> None:
    """A file of a terabyte is refused after the bound."""
    path = tmp_path / "learned.json"
    path.write_bytes(document())
    os.truncate(path, 1 << 40)
    with pytest.raises(StateError, match=f"is larger than {MAX_BYTES} bytes"):
        read_state(path, NOW_S)


def test_what_could_not_be_read_again_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one stays, and nothing lies about."""
    path = tmp_path / "learned.json"
    write_state(path, LEARNED, NOW_S)
    monkeypatch.setattr(state_file, "MAX_BYTES", 40_000)
    with pytest.raises(StateError, match="would be larger"):
        write_state(path, {"x": ["y" * 100] * 1000}, NOW_S)
    assert read_state(path, NOW_S) == (LEARNED, 0.0)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path: Path, kind: str) -> None:
    """A pipe that nobody writes to holds nothing up."""
    path = tmp_path / "learned.json"
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    for use in (lambda: read_state(path, NOW_S), lambda: write_state(path, LEARNED, NOW_S)):
        with pytest.raises(StateError, match="is not a regular file"):
            use()
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_of_somebody_else_is_never_written_over(tmp_path: Path) -> None:
    """A path that was mistyped costs nobody their configuration; an empty file is nobody's."""
    path = tmp_path / "gate.yaml"
    path.write_text("admission_control: {}\n")
    with pytest.raises(StateError, match="is not a file of learned state"):
        write_state(path, LEARNED, NOW_S)
    assert path.read_text() == "admission_control: {}\n"
    path.write_bytes(b"")
    write_state(path, LEARNED, NOW_S)
    assert read_state(path, NOW_S) is not None


def test_a_damaged_file_of_ours_is_written_over(tmp_path: Path) -> None:
    """Else one bad block would end learning for good."""
    path = tmp_path / "learned.json"
    path.write_bytes(document()[:-20])
    write_state(path, LEARNED, NOW_S)
    assert read_state(path, NOW_S) == (LEARNED, 0.0)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """What it points to is replaced, where it is."""
    (tmp_path / "volume").mkdir()
    path = tmp_path / "learned.json"
    path.symlink_to("volume/learned.json")
    write_state(path, LEARNED, NOW_S)
    assert path.is_symlink()
    assert read_state(tmp_path / "volume" / "learned.json", NOW_S) == (LEARNED, 0.0)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails in the middle is an OSError, and the old state is there."""
    path = tmp_path / "learned.json"
    write_state(path, LEARNED, NOW_S)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        write_state(path, {"newer": 1}, NOW_S)
    assert read_state(path, NOW_S) == (LEARNED, 0.0)
    assert list(tmp_path.iterdir()) == [path]


STUCK = """\
import os, signal, sys
from pathlib import Path
from ext_authz.state import state_file
before = os.{call}
def stuck(*arguments):
    if "{call}" == "write":
        before(arguments[0], arguments[1][:1000])
    print("stuck", flush=True)
    signal.pause()
state_file.os.{call} = stuck
state_file.write_state(Path(sys.argv[1]), {{"newer": "x" * 100_000}}, 1.8e9)
"""


def child(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_kill_in_the_middle_leaves_the_old_file(tmp_path: Path, call: str) -> None:
    """Wherever SIGKILL comes, before the rename the old state is there; what was left beside it
    goes once it is abandoned, and not before."""
    path = tmp_path / "learned.json"
    write_state(path, LEARNED, NOW_S)
    with child(STUCK.format(call=call), str(path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        process.kill()
    assert read_state(path, NOW_S) == (LEARNED, 0.0)
    (left,) = [one for one in tmp_path.iterdir() if one != path]
    written_s = left.stat().st_mtime
    clean_up(path, written_s + ABANDONED_S - 60.0)
    assert left.exists()
    clean_up(path, written_s + ABANDONED_S + 60.0)
    assert list(tmp_path.iterdir()) == [path]


MANY = """\
import sys
from pathlib import Path
from ext_authz.state.state_file import write_state
for number in range(60):
    write_state(Path(sys.argv[1]), {"who": [int(sys.argv[2])] * 20_000, "number": number}, 1.8e9)
"""


def test_two_writers_never_tear_the_file(tmp_path: Path) -> None:
    """While two processes save into one file each reading is whole, and in the end it is the last
    of one of them."""
    path = tmp_path / "learned.json"
    seen: set[int] = set()

    def read() -> tuple[int, int]:
        found = read_state(path, NOW_S)
        assert found is not None
        who, number = found[0]["who"], found[0]["number"]
        assert isinstance(who, list)
        assert isinstance(number, int)
        assert len(who) == 20_000
        assert who == who[:1] * 20_000
        return int(who[0]), number

    write_state(path, {"who": [0] * 20_000, "number": 0}, NOW_S)
    with child(MANY, str(path), "1") as one, child(MANY, str(path), "2") as other:
        while one.poll() is None or other.poll() is None:
            seen.add(read()[0])
    assert (one.returncode, other.returncode) == (0, 0)
    assert read()[1] == 59
    assert seen & {1, 2}
    assert list(tmp_path.iterdir()) == [path]
