"""The watcher: one reload per change of content, through every way files are replaced."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from ext_authz.config import Loaded, load
from ext_authz.config.watch import ConfigWatcher
from ext_authz.errors import ConfigError, Problem


def text(weight: int, more: str = "") -> str:
    """A configuration in which tenant a has this weight."""
    return f"admission_control: {{tenants: {{a: {{weight: {weight}{more}}}}}}}\n"


class Seen:
    """A watcher of `path` that remembers what it was told."""

    def __init__(self, path: Path, initial: Loaded | None = None) -> None:
        self.weights: list[float] = []
        self.errors: list[ConfigError | OSError] = []
        self.refuse = False
        self.watcher = ConfigWatcher(path, self.changed, self.errors.append, initial=initial)
        self.now = 0.0

    def changed(self, loaded: Loaded) -> None:
        if self.refuse:
            raise ConfigError((Problem("f", 1, "mode", "is not built", "write predictive"),))
        self.weights.append(loaded.settings.admission.tenants["a"].weight)

    def poll(self, after_s: float = 1.0) -> None:
        self.now += after_s
        self.watcher.poll_once(self.now)


def test_first_look_loads_and_later_looks_rest(tmp_path: Path) -> None:
    """Unchanged content is announced once; time and hash of taking over are known."""
    path = tmp_path / "c.yaml"
    path.write_text(text(1))
    seen = Seen(path)
    assert (seen.watcher.fingerprint, seen.watcher.loaded_at_s) == (None, None)
    for _ in range(3):
        seen.poll()
    assert seen.weights == [1]
    assert seen.watcher.fingerprint == load(path).settings.fingerprint
    assert seen.watcher.loaded_at_s == 1.0


def test_initial_configuration_is_not_announced(tmp_path: Path) -> None:
    """What already runs is known; only a change is news."""
    path = tmp_path / "c.yaml"
    path.write_text(text(1))
    seen = Seen(path, initial=load(path))
    seen.poll()
    assert seen.weights == []
    path.write_text(text(2))
    seen.poll()
    assert seen.weights == [2]


def test_content_counts_and_times_do_not(tmp_path: Path) -> None:
    """A new mtime alone is nothing; new content at the old mtime and size is a change."""
    path = tmp_path / "c.yaml"
    path.write_text(text(1))
    os.utime(path, (1000, 1000))
    seen = Seen(path)
    seen.poll()
    os.utime(path, (2000, 2000))
    seen.poll()
    assert seen.weights == [1]
    path.write_text(text(2))
    os.utime(path, (2000, 2000))
    seen.poll()
    assert seen.weights == [1, 2]


def test_config_map_swaps(tmp_path: Path) -> None:
    """Each swap of `..data` above the file is one reload, also with equal times and sizes."""
    for version in (1, 2, 3):
        folder = tmp_path / f"..v{version}"
        folder.mkdir()
        (folder / "c.yaml").write_text(text(version))
        os.utime(folder / "c.yaml", (1000, 1000))
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "c.yaml").symlink_to("..data/c.yaml")
    seen = Seen(tmp_path / "c.yaml")
    seen.poll()
    for version in (2, 3):
        (tmp_path / "..tmp").symlink_to(f"..v{version}")
        os.replace(tmp_path / "..tmp", tmp_path / "..data")
        (tmp_path / f"..v{version - 1}" / "c.yaml").unlink()
        seen.poll()
        seen.poll()
    assert seen.weights == [1, 2, 3]
    assert seen.errors == []


def test_failed_reload_keeps_what_runs(tmp_path: Path) -> None:
    """A bad content is told once, the last good stays, and the next good one is taken over."""
    path = tmp_path / "c.yaml"
    path.write_text(text(1))
    seen = Seen(path)
    seen.poll()
    good = seen.watcher.fingerprint
    path.write_text(text(0))
    seen.poll()
    seen.poll()
    assert len(seen.errors) == 1
    path.write_text("a: [")
    seen.poll()
    seen.poll()
    assert len(seen.errors) == 2
    assert (seen.watcher.fingerprint, seen.watcher.loaded_at_s) == (good, 1.0)
    path.write_text(text(1))
    seen.poll()
    assert seen.weights == [1]
    path.write_text(text(2))
    seen.poll()
    assert seen.weights == [1, 2]
    assert seen.watcher.fingerprint != good


def test_missing_for_a_moment(tmp_path: Path) -> None:
    """Up to ten seconds of absence are no error, more are one, and coming back is fine."""
    path = tmp_path / "c.yaml"
    path.write_text(text(1))
    seen = Seen(path)
    seen.poll()
    path.unlink()
    for _ in range(10):
        seen.poll()
    assert seen.errors == []
    for _ in range(5):
        seen.poll()
    (error,) = seen.errors
    assert isinstance(error, FileNotFoundError)
    path.write_text(text(1))
    seen.poll()
    assert (seen.weights, len(seen.errors)) == ([1], 1)
    path.unlink()
    seen.poll()
    seen.poll(9.0)
    assert len(seen.errors) == 1
    seen.poll(1.0)
    assert len(seen.errors) == 2


def test_key_files_are_watched(tmp_path: Path) -> None:
    """A rotated key is a change; a key file that stays away becomes a problem of its line."""
    path, key = tmp_path / "c.yaml", tmp_path / "k"
    path.write_text(text(1, ", api_key_files: [k]"))
    key.write_text("one\n")
    seen = Seen(path)
    seen.poll()
    key.write_text("two\n")
    seen.poll()
    seen.poll()
    assert seen.weights == [1, 1]
    key.unlink()
    seen.poll()
    assert seen.errors == []
    seen.poll(10.0)
    seen.poll()
    (error,) = seen.errors
    assert isinstance(error, ConfigError)
    assert "cannot be read" in str(error)
    key.write_text("three\n")
    seen.poll()
    assert seen.weights == [1, 1, 1]


def test_change_while_a_key_file_was_never_there(tmp_path: Path) -> None:
    """A configuration that names a missing key file fails at once and heals by itself."""
    path = tmp_path / "c.yaml"
    path.write_text(text(1))
    seen = Seen(path)
    seen.poll()
    path.write_text(text(2, ", api_key_files: [k]"))
    seen.poll()
    assert len(seen.errors) == 1
    seen.poll(60.0)
    seen.poll()
    assert len(seen.errors) == 1
    (tmp_path / "k").write_text("one\n")
    seen.poll()
    assert seen.weights == [1, 2]


def test_refused_by_the_application(tmp_path: Path) -> None:
    """A callback that refuses a content leaves the running one and its age in place."""
    path = tmp_path / "c.yaml"
    path.write_text(text(1))
    seen = Seen(path)
    seen.poll()
    good = seen.watcher.fingerprint
    seen.refuse = True
    path.write_text(text(2))
    seen.poll()
    seen.poll()
    assert len(seen.errors) == 1
    assert (seen.watcher.fingerprint, seen.watcher.loaded_at_s) == (good, 1.0)


def test_pipe_does_not_block(tmp_path: Path) -> None:
    """A pipe in the place of a file is an error, never a wait."""
    path = tmp_path / "c.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a regular file"):
        load(path)


async def test_run_reloads_on_the_loop(tmp_path: Path) -> None:
    """The task reads elsewhere, calls back on its loop, survives a faulty callback, and ends."""
    path = tmp_path / "c.yaml"
    path.write_text(text(1))
    loop, weights = asyncio.get_running_loop(), []
    arrived = asyncio.Event()

    def changed(loaded: Loaded) -> None:
        assert asyncio.get_running_loop() is loop
        weights.append(loaded.settings.admission.tenants["a"].weight)
        arrived.set()
        if weights[-1] == 1:
            raise RuntimeError

    task = asyncio.create_task(ConfigWatcher(path, changed, lambda _: None, 0.005).run())
    async with asyncio.timeout(10):
        await arrived.wait()
        arrived.clear()
        path.write_text(text(2))
        await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert weights == [1, 2]
