"""Virtual environments of model servers in the cache folder, made once."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.debian import unpacked

CACHE = Path(__file__).parents[2] / ".cache"
INSTALL_WITHIN_S = 1200.0
SYSTEM_PYTHON = Path("/usr/bin/python3")
PYTRITON_STUBS = range(8, 14)
"""Minor versions of Python 3 that the server's Python backend comes for."""

_ASK = "import sys; print(sys.version_info[1])"
_LIBRARY = "import ctypes; ctypes.CDLL('libpython3.{minor}.so.1.0')"


def environment(
    name: str, python: Path, requirements: Sequence[str], without: Sequence[str] = ()
) -> Path:
    """The interpreter of a virtual environment of `python` with `requirements` in it, and
    `without` some of what these bring along. Skips the test if it cannot be made."""
    folder = CACHE / name
    done = folder / "done"
    made_of = "\n".join((str(python), *requirements, *(f"-{package}" for package in without)))
    interpreter = folder / "venv" / "bin" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != made_of:
            done.unlink(missing_ok=True)
            shutil.rmtree(folder / "venv", ignore_errors=True)
            pip = (sys.executable, "-m", "pip", "--python", str(interpreter))
            try:
                _run(str(python), "-m", "venv", "--without-pip", str(folder / "venv"))
                _run(*pip, "install", "--quiet", "--disable-pip-version-check", *requirements)
                if without:
                    _run(*pip, "uninstall", "--quiet", "--yes", *without)
            except (OSError, subprocess.SubprocessError) as error:
                pytest.skip(f"{name} cannot be installed: {_reason(error)}")
            done.write_text(made_of)
    return interpreter


def system_python() -> tuple[Path, dict[str, str]]:
    """The system's own interpreter, and the variables with which others find its library.

    Triton's Python backend links that library, and an interpreter of another build beside it
    fails. Skips the test where there is none that fits.
    """
    try:
        minor = int(_run(str(SYSTEM_PYTHON), "-c", _ASK))
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        pytest.skip(f"the system has no Python of its own: {_reason(error)}")
    if minor not in PYTRITON_STUBS:
        pytest.skip(f"Triton's Python backend does not come for the system's Python 3.{minor}")
    try:
        _run(str(SYSTEM_PYTHON), "-c", _LIBRARY.format(minor=minor))
    except subprocess.SubprocessError:
        root = unpacked(f"libpython3.{minor}")
        (library,) = root.glob(f"usr/lib/*/libpython3.{minor}.so.1.0")
        return SYSTEM_PYTHON, {"LD_LIBRARY_PATH": str(library.parent)}
    return SYSTEM_PYTHON, {}


def _run(*command: str) -> str:
    ended = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=INSTALL_WITHIN_S
    )
    return ended.stdout.strip()


def _reason(error: Exception) -> str:
    printed = str(getattr(error, "stderr", None) or "").strip()
    return printed.splitlines()[-1] if printed else str(error)
