"""The optional compiled build, as far as it goes without waiting for a C compiler for minutes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def setup(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Ask a copy of the sources for their version, which comes after what is to be compiled was
    translated to C."""
    for file in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, folder)
    shutil.copytree(ROOT / "ext_authz", folder / "ext_authz")
    return subprocess.run(
        [sys.executable, "setup.py", "-q", "--version"],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_nothing_is_compiled_unless_asked(tmp_path: Path) -> None:
    """A compiler is not even looked for."""
    done = setup(tmp_path, CC="no-such-compiler")
    assert (done.returncode, done.stdout) == (0, "0.1.0\n"), done.stderr
    assert not (tmp_path / "build").exists()


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    """One line, and what can be done without."""
    done = setup(tmp_path, EXT_AUTHZ_COMPILE="1", CC="no-such-compiler -O2")
    assert done.returncode == 1
    assert done.stderr == (
        "To compile, a C compiler is needed and 'no-such-compiler' is none: install gcc or clang. "
        "Without EXT_AUTHZ_COMPILE=1 the package needs none of it.\n"
    )


@pytest.mark.slow
def test_all_that_is_to_be_compiled_can_be(tmp_path: Path) -> None:
    """What the type checker lets pass the translation may refuse: an int where a float is kept."""
    done = setup(tmp_path, EXT_AUTHZ_COMPILE="1")
    assert done.returncode == 0, done.stdout
    made = {path.stem for path in (tmp_path / "build/compiled/c").rglob("*.c")}
    assert {"controller", "predictor", "gate"} <= made
