"""Plain, or with what every Check runs through compiled to C where EXT_AUTHZ_COMPILE=1 asks for it.

`make compiled` builds such a wheel; docs/adr/0010-compiled-build.md says what it is for. Everything
else that is to be known of the package stands in pyproject.toml.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

# Of these rooms every module; of what serves, what each Check runs through.
ROOMS = ("admission", "estimation")
SERVING = (
    "answers",
    "check",
    "codec",
    "entries",
    "gate",
    "identity",
    "metadata",
    "request_ids",
    "retry_headers",
    "settlement",
    "tap_memory",
)
# Apart from the plain build's, whose wheel would take in what it finds there.
BUILD = "build/compiled"


def extensions() -> list[Extension]:
    """What is to be compiled: nothing unless it is asked for."""
    if os.environ.get("EXT_AUTHZ_COMPILE") != "1":
        return []
    if lacking := lacks():
        raise SystemExit(f"{lacking}. Without EXT_AUTHZ_COMPILE=1 the package needs none of it.")
    from mypyc.build import mypycify

    files = [str(file) for room in ROOMS for file in sorted(Path("ext_authz", room).rglob("*.py"))]
    files += [f"ext_authz/serving/{name}.py" for name in SERVING]
    made: list[Extension] = mypycify(files, debug_level="0", target_dir=f"{BUILD}/c")
    return made


def lacks() -> str | None:
    """What this machine needs to compile and does not have, and how to get it."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(command) is None:
        return f"To compile, a C compiler is needed and {command!r} is none: install gcc or clang"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "To compile, Python's headers are needed: install python3-dev or what has Python.h"
    try:
        import mypyc.build  # noqa: F401
    except ImportError:
        return (
            "To compile, mypyc is needed where setup.py runs: install what requirements.lock "
            "lists, and build with --no-build-isolation"
        )
    return None


compiled = extensions()
setup(ext_modules=compiled, options={"build": {"build_base": BUILD}} if compiled else {})
