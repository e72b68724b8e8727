"""Real servers out of Debian's packages, unpacked into the cache folder, not installed."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[2] / ".cache" / "debian"


def unpacked(package: str) -> Path:
    """The root of `package`'s files. Skips the test if the package cannot be had."""
    folder = CACHE / package
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{package}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            try:
                _fetch(package, folder)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"{package} cannot be fetched: {_reason(error)}")
    return folder / "root"


def _fetch(package: str, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    if not any(folder.glob("*.deb")):
        # The machine's own lists may be missing or old; ours need no rights.
        (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        (folder / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        own = [f"-oDir::State::Lists={folder / 'lists'}", f"-oDir::Cache={folder}"]
        try:
            _run(["apt-get", "download", package], folder)
        except subprocess.CalledProcessError:
            _run(["apt-get", *own, "update"], folder, check=False)
            _run(["apt-get", *own, "download", package], folder)
    (archive,) = folder.glob("*.deb")
    _run(["dpkg", "-x", str(archive), str(folder / "root")], folder)
    (folder / "done").touch()


def _run(command: list[str], folder: Path, check: bool = True) -> None:
    subprocess.run(command, cwd=folder, check=check, capture_output=True, text=True, timeout=100)


def _reason(error: Exception) -> str:
    printed = getattr(error, "stderr", None)
    return str(printed).strip().splitlines()[-1] if printed else str(error)
